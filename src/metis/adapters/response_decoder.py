"""Decoded responses in canonical terms.

issuers of sealed parts, our tool names, one block per call.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from metis.adapters.profile import Profile
from metis.canonical.blocks import (
    ArtifactBlock,
    ContentBlock,
    OpaqueBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from metis.canonical.ids import hashed_tool_id
from metis.canonical.message import Message, Role
from metis.canonical.metadata import StopReason
from metis.projection.tool_calls import wire_tool_name
from metis.streaming import (
    BlockAdded,
    MessageComplete,
    StreamError,
    StreamEvent,
    TextDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
)
from metis.streaming.arguments import split_joined_objects
from metis.wire.codec import StreamDecoder
from metis.wire.json_access import maybe_list, maybe_object, maybe_text

_Names = dict[str | None, str]
_SEALED = (ThinkingBlock, RedactedThinkingBlock, OpaqueBlock)


def with_issuer(message: Message, profile: Profile) -> Message:
    """An answer whose sealed parts say which host and account they belong to."""
    return _renamed(message, dict.fromkeys((None, profile.name, *profile.issuers), profile.issuer))


def for_issuer(messages: Sequence[Message], profile: Profile) -> Sequence[Message]:
    """The messages as one host knows them: its own parts are its own, its namesakes' are not."""
    usual = f"{profile.name}@{profile.usual_host}"
    names: _Names = {**dict.fromkeys((profile.name, *profile.issuers), usual)}
    names[profile.issuer] = profile.name
    # A part that does not say whose it is belongs to whoever gave the answer.
    unsaid: _Names = {**names, None: usual}
    found = [
        message
        if message.role is not Role.ASSISTANT
        else _renamed(message, unsaid if message.metadata.provider == profile.name else names)
        for message in messages
    ]
    return found if any(map(_is_not, found, messages)) else messages


def _is_not(one: object, other: object) -> bool:
    return one is not other


def _renamed(message: Message, names: _Names) -> Message:
    for block in message.content:
        if type(block) in _SEALED or type(block) is ArtifactBlock:
            content = tuple(_under(each, names) for each in message.content)
            return replace(message, content=content)
    return message


def _under(block: ContentBlock, names: _Names) -> ContentBlock:
    if isinstance(block, _SEALED):
        name = names.get(block.issuer)
        return block if name is None else replace(block, issuer=name)
    if isinstance(block, ArtifactBlock) and block.source.issuer is not None:
        name = names.get(block.source.issuer)
        return block if name is None else replace(block, source=replace(block.source, issuer=name))
    return block


class IssuerDecoder:
    """A stream reader that says of sealed parts which host and account they belong to."""

    def __init__(self, reader: StreamDecoder, profile: Profile) -> None:
        self._reader = reader
        self._profile = profile

    @property
    def message(self) -> Message:
        """The message as far as it has come."""
        return with_issuer(self._reader.message, self._profile)

    def feed(self, chunk: bytes) -> list[StreamEvent]:
        """The events that are complete with this chunk."""
        return [self._read(event) for event in self._reader.feed(chunk)]

    def finish(self) -> list[StreamEvent]:
        """The last events."""
        return [self._read(event) for event in self._reader.finish()]

    def _read(self, event: StreamEvent) -> StreamEvent:
        profile = self._profile
        match event:
            case MessageComplete():
                return replace(event, message=with_issuer(event.message, profile))
            case StreamError() if event.message is not None:
                return replace(event, message=with_issuer(event.message, profile))
            case BlockAdded():
                names = dict.fromkeys((None, profile.name, *profile.issuers), profile.issuer)
                return replace(event, block=_under(event.block, names))
            case _:
                return event


OUTPUT_TOOL = "metis_answer"
"""The tool that stands for the answer, where a model is made to call one."""

_WRAPPERS = frozenset({"multi_tool_use.parallel", "multi_tool_use", "parallel"})

_ABOUT_CALLS = frozenset({ToolUseStart, ToolUseEnd, MessageComplete, StreamError})


class ToolCallRules:
    """How the calls of an answer are read, given the tools that the model was told of."""

    def __init__(self, tools: Sequence[str], length: int) -> None:
        self._ours = {wire_tool_name(name, length): name for name in tools}

    def normalise(self, message: Message) -> Message:
        """The message with its calls as they were meant."""
        if not self._ours and not _has_odd_calls(message.content):
            return message
        content: list[ContentBlock] = []
        has_answer = False
        for block in message.content:
            if not isinstance(block, ToolUseBlock):
                content.append(block)
            elif self.is_output_tool(block.name):
                has_answer = True
                content.append(TextBlock(answer_text(block)))
            else:
                content += self.split_call(block)
        if has_answer:
            return _answered(message, tuple(content))
        same = len(content) == len(message.content) and all(
            one is other for one, other in zip(content, message.content, strict=True)
        )
        return message if same else replace(message, content=tuple(content))

    def split_call(self, call: ToolUseBlock) -> list[ToolUseBlock]:
        """The calls that one call stands for; mostly itself."""
        if call.invalid is not None:
            found = [
                (self.our_name(call.name), each) for each in split_joined_objects(call.invalid.raw)
            ]
        elif self.is_wrapper(call.name):
            found = self._unwrapped(call)
        else:
            found = []
        if not found:
            name = self.our_name(call.name)
            return [call if name == call.name else replace(call, name=name)]
        return [
            ToolUseBlock(hashed_tool_id(call.id, str(n)) if n else call.id, name, arguments)
            for n, (name, arguments) in enumerate(found)
        ]

    def our_name(self, theirs: str) -> str:
        """Our name of a tool that the provider calls so."""
        return self._ours.get(theirs, theirs)

    def is_output_tool(self, name: str) -> bool:
        """Whether a call of that name is the answer: nobody declared such a tool."""
        return name == OUTPUT_TOOL and OUTPUT_TOOL not in self._ours

    def is_wrapper(self, name: str) -> bool:
        """Whether a call of that name may hold others: nobody declared such a tool."""
        return bool(self._ours) and name in _WRAPPERS and name not in self._ours

    def _unwrapped(self, call: ToolUseBlock) -> list[tuple[str, dict[str, object]]]:
        uses = [maybe_object(use) for use in maybe_list(call.input.get("tool_uses"))]
        names = [(maybe_text(use.get("recipient_name")) or "").rpartition(".")[2] for use in uses]
        if not all(name in self._ours for name in names):
            return []
        return [
            (self.our_name(name), maybe_object(use.get("parameters")))
            for name, use in zip(names, uses, strict=True)
        ]


def _has_odd_calls(content: Sequence[ContentBlock]) -> bool:
    for block in content:
        if type(block) is ToolUseBlock and (block.invalid is not None or block.name == OUTPUT_TOOL):
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


class ToolCallDecoder:
    """A stream reader whose calls are read as they were meant."""

    def __init__(self, reader: StreamDecoder, reading: ToolCallRules) -> None:
        self._reader = reader
        self._reading = reading
        self._names: dict[str, str] = {}
        self._held: list[StreamEvent] = []
        """The events of a call that may hold others, until it is whole."""
        self._shift = 0

    @property
    def message(self) -> Message:
        """The message as far as it has come."""
        return self._reading.normalise(self._reader.message)

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
                message = self._reading.normalise(event.message)
                reason = message.metadata.stop_reason or event.stop_reason
                return [replace(event, message=message, stop_reason=reason)]
            case StreamError() if event.message is not None:
                held, self._held = self._held, []
                if held and self._is_answer(held[0]):
                    held = []
                return [*held, replace(event, message=self._reading.normalise(event.message))]
            case _:
                return [event]

    def _start(self, event: ToolUseStart) -> list[StreamEvent]:
        self._names[event.tool_use_id] = event.tool_name
        if self._reading.is_wrapper(event.tool_name) or self._is_answer(event):
            self._held = [event]
            return []
        return [replace(event, tool_name=self._reading.our_name(event.tool_name))]

    def _is_answer(self, event: StreamEvent) -> bool:
        return type(event) is ToolUseStart and self._reading.is_output_tool(event.tool_name)

    def _end(self, event: ToolUseEnd) -> list[StreamEvent]:
        held, self._held = self._held, []
        name = self._names.get(event.tool_use_id, "")
        call = ToolUseBlock(event.tool_use_id, name, event.final_input, event.invalid)
        if self._reading.is_output_tool(name):
            return [TextDelta(event.message_id, event.content_block_index, answer_text(call))]
        first, *others = self._reading.split_call(call)
        if not others and first.name == self._reading.our_name(name):
            return [*held, event]
        ended: list[StreamEvent] = []
        for place, part in enumerate((first, *others)):
            index = event.content_block_index + place
            if place or held:
                ended.append(ToolUseStart(event.message_id, index, part.id, part.name))
            ended.append(ToolUseEnd(event.message_id, index, part.id, part.input))
        self._shift += len(others)
        return ended
