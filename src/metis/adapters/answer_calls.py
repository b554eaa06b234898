"""Calls in an answer, read as what was meant: our names, and one block a call.

A name that was changed for the provider is ours again (T111); calls that a model glued into one
string (T35) or wrapped in one call (T140) are taken apart, each with an id of its own. A call of
the tool that stands for the answer is the answer; nobody else sees the tool (T116).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from metis.canonical.blocks import ContentBlock, TextBlock, ToolUseBlock
from metis.canonical.ids import hashed_tool_id
from metis.canonical.message import Message
from metis.canonical.metadata import StopReason
from metis.projection.calls import wire_name
from metis.streaming import (
    MessageComplete,
    StreamError,
    StreamEvent,
    TextDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
)
from metis.streaming.arguments import split_arguments
from metis.wire.codec import StreamReader
from metis.wire.shape import maybe_list, maybe_object, maybe_text

ANSWER_TOOL = "metis_answer"
"""The tool that stands for the answer, where a model is made to call one."""

_WRAPPERS = frozenset({"multi_tool_use.parallel", "multi_tool_use", "parallel"})

_ABOUT_CALLS = frozenset({ToolUseStart, ToolUseEnd, MessageComplete, StreamError})


class CallReading:
    """How the calls of an answer are read, given the tools that the model was told of."""

    def __init__(self, tools: Sequence[str], length: int) -> None:
        self._ours = {wire_name(name, length): name for name in tools}

    def read(self, message: Message) -> Message:
        """The message with its calls as they were meant."""
        if not self._ours and not _has_odd_calls(message.content):
            return message
        content: list[ContentBlock] = []
        has_answer = False
        for block in message.content:
            if not isinstance(block, ToolUseBlock):
                content.append(block)
            elif self.is_answer(block.name):
                has_answer = True
                content.append(TextBlock(answer_text(block)))
            else:
                content += self.parts(block)
        if has_answer:
            return _answered(message, tuple(content))
        same = len(content) == len(message.content) and all(
            one is other for one, other in zip(content, message.content, strict=True)
        )
        return message if same else replace(message, content=tuple(content))

    def parts(self, call: ToolUseBlock) -> list[ToolUseBlock]:
        """The calls that one call stands for; mostly itself."""
        if call.invalid is not None:
            found = [(self.name(call.name), each) for each in split_arguments(call.invalid.raw)]
        elif self.is_wrapper(call.name):
            found = self._unwrapped(call)
        else:
            found = []
        if not found:
            name = self.name(call.name)
            return [call if name == call.name else replace(call, name=name)]
        return [
            ToolUseBlock(hashed_tool_id(call.id, str(n)) if n else call.id, name, arguments)
            for n, (name, arguments) in enumerate(found)
        ]

    def name(self, theirs: str) -> str:
        """Our name of a tool that the provider calls so."""
        return self._ours.get(theirs, theirs)

    def is_answer(self, name: str) -> bool:
        """Whether a call of that name is the answer: nobody declared such a tool."""
        return name == ANSWER_TOOL and ANSWER_TOOL not in self._ours

    def is_wrapper(self, name: str) -> bool:
        """Whether a call of that name may hold others: nobody declared such a tool."""
        return bool(self._ours) and name in _WRAPPERS and name not in self._ours

    def _unwrapped(self, call: ToolUseBlock) -> list[tuple[str, dict[str, object]]]:
        uses = [maybe_object(use) for use in maybe_list(call.input.get("tool_uses"))]
        names = [(maybe_text(use.get("recipient_name")) or "").rpartition(".")[2] for use in uses]
        if not all(name in self._ours for name in names):
            return []
        return [
            (self.name(name), maybe_object(use.get("parameters")))
            for name, use in zip(names, uses, strict=True)
        ]


def _has_odd_calls(content: Sequence[ContentBlock]) -> bool:
    for block in content:
        if type(block) is ToolUseBlock and (block.invalid is not None or block.name == ANSWER_TOOL):
            return True
    return False


def answer_text(call: ToolUseBlock) -> str:
    """The answer that a call of the answer's own tool gives."""
    return call.invalid.raw if call.invalid else msgspec.json.encode(call.input).decode()


def _answered(message: Message, content: tuple[ContentBlock, ...]) -> Message:
    """The message with the answer in the place of the call; of its spelling the ids are left."""
    metadata = message.metadata
    raw = metadata.provider_raw
    if raw is not None:
        metadata = replace(metadata, provider_raw=_ids_of(raw))
    calls = any(isinstance(block, ToolUseBlock) for block in content)
    if metadata.stop_reason is StopReason.TOOL_USE and not calls:
        metadata = replace(metadata, stop_reason=StopReason.END_TURN)
    return replace(message, content=content, metadata=metadata)


def _ids_of(raw: Mapping[str, Any]) -> Mapping[str, Any] | None:
    return {
        protocol: {"ids": ids}
        for protocol, spelling in raw.items()
        if (ids := maybe_object(spelling).get("ids"))
    } or None


class CallReader:
    """A stream reader whose calls are read as they were meant."""

    def __init__(self, reader: StreamReader, reading: CallReading) -> None:
        self._reader = reader
        self._reading = reading
        self._names: dict[str, str] = {}
        self._held: list[StreamEvent] = []
        """The events of a call that may hold others, until it is whole."""
        self._shift = 0

    @property
    def message(self) -> Message:
        """The message as far as it has come."""
        return self._reading.read(self._reader.message)

    def feed(self, chunk: bytes) -> list[StreamEvent]:
        """The events that are complete with this chunk."""
        return self._read_all(self._reader.feed(chunk))

    def finish(self) -> list[StreamEvent]:
        """The last events."""
        return self._read_all(self._reader.finish())

    def _read_all(self, events: list[StreamEvent]) -> list[StreamEvent]:
        if not (self._shift or self._held):
            for event in events:
                if type(event) in _ABOUT_CALLS:
                    break
            else:
                return events
        return [read for event in events for read in self._read(event)]

    def _read(self, event: StreamEvent) -> list[StreamEvent]:
        index = getattr(event, "content_block_index", None)
        if self._shift and index is not None:
            event = replace(event, content_block_index=index + self._shift)
        match event:
            case ToolUseStart():
                return self._start(event)
            case ToolUseInputDelta() if self._held:
                self._held.append(event)
                return []
            case ToolUseEnd():
                return self._end(event)
            case MessageComplete():
                message = self._reading.read(event.message)
                reason = message.metadata.stop_reason or event.stop_reason
                return [replace(event, message=message, stop_reason=reason)]
            case StreamError() if event.message is not None:
                held, self._held = self._held, []
                if held and self._is_answer(held[0]):
                    held = []
                return [*held, replace(event, message=self._reading.read(event.message))]
            case _:
                return [event]

    def _start(self, event: ToolUseStart) -> list[StreamEvent]:
        self._names[event.tool_use_id] = event.tool_name
        if self._reading.is_wrapper(event.tool_name) or self._is_answer(event):
            self._held = [event]
            return []
        return [replace(event, tool_name=self._reading.name(event.tool_name))]

    def _is_answer(self, event: StreamEvent) -> bool:
        return type(event) is ToolUseStart and self._reading.is_answer(event.tool_name)

    def _end(self, event: ToolUseEnd) -> list[StreamEvent]:
        held, self._held = self._held, []
        name = self._names.get(event.tool_use_id, "")
        call = ToolUseBlock(event.tool_use_id, name, event.final_input, event.invalid)
        if self._reading.is_answer(name):
            return [TextDelta(event.message_id, event.content_block_index, answer_text(call))]
        first, *others = self._reading.parts(call)
        if not others and first.name == self._reading.name(name):
            return [*held, event]
        ended: list[StreamEvent] = []
        for place, part in enumerate((first, *others)):
            index = event.content_block_index + place
            if place or held:
                ended.append(ToolUseStart(event.message_id, index, part.id, part.name))
            ended.append(ToolUseEnd(event.message_id, index, part.id, part.input))
        self._shift += len(others)
        return ended
