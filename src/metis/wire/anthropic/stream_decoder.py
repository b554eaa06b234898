"""Stream decoder of Anthropic Messages: server-sent events in, stream events out.

The decoder collects the wire blocks as they grow and decodes the final message from them exactly as
from a plain response, so that the two cannot differ.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from metis.canonical.blocks import TextBlock, ThinkingBlock, ToolUseBlock
from metis.canonical.errors import NetworkError, ProviderError
from metis.canonical.ids import new_ulid
from metis.canonical.message import Message
from metis.canonical.metadata import MessageStatus, StopReason
from metis.streaming import (
    BlockAdded,
    MessageComplete,
    MessageStart,
    SseParser,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
    UsageUpdate,
    parse_arguments,
)
from metis.streaming.arguments import mark_invalid_calls
from metis.wire.anthropic.blocks import PROTOCOL, decode_non_result
from metis.wire.anthropic.errors import decode_error
from metis.wire.anthropic.fast import WireBlockDelta, WireInputDelta
from metis.wire.anthropic.fast import WireTextDelta as SomeText
from metis.wire.anthropic.fast import WireThinkingDelta as SomeThought
from metis.wire.anthropic.response import decode_body, decode_usage, tool_use_id_of
from metis.wire.call import RequestContext
from metis.wire.errors import has_failed, read_error, stream_error
from metis.wire.json_access import Wire, maybe_count, maybe_list, maybe_object, maybe_text

_read_delta = msgspec.json.Decoder(WireBlockDelta).decode
_HEAD_BYTES = 65536
_read_event = msgspec.json.Decoder(dict[str, Any]).decode


class _Growing:
    """A block of the wire that is still coming in."""

    __slots__ = ("arguments", "is_closed", "texts", "thoughts", "tool_use_id", "wire")

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.texts: list[str] = []
        self.thoughts: list[str] = []
        self.arguments: list[str] = []
        self.tool_use_id = ""
        self.is_closed = False

    def add(self, delta: Mapping[str, Any]) -> None:
        """Take a delta of any kind into account: strings grow, lists gain, the rest is set."""
        for key, value in delta.items():
            if key == "type":
                continue
            if key == "citation":
                self.wire["citations"] = [*maybe_list(self.wire.get("citations")), value]
            elif key == "text" and isinstance(value, str):
                self.texts.append(value)
            elif key == "thinking" and isinstance(value, str):
                self.thoughts.append(value)
            elif isinstance(value, str):
                self.wire[key] = (maybe_text(self.wire.get(key)) or "") + value
            else:
                self.wire[key] = value

    def whole(self) -> Wire:
        """The block as a plain response would hold it."""
        wire = dict(self.wire)
        if self.texts:
            wire["text"] = (maybe_text(wire.get("text")) or "") + "".join(self.texts)
        if self.thoughts:
            wire["thinking"] = (maybe_text(wire.get("thinking")) or "") + "".join(self.thoughts)
        if self.arguments:
            wire["input"] = parse_arguments("".join(self.arguments))[0]
        return wire


class AnthropicStreamDecoder:
    """Turns the bytes of a streamed answer into events; `message` is what has come so far."""

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self._frames = SseParser()
        self._id = new_ulid()
        self._body: Wire = {}
        self._blocks: dict[int, _Growing] = {}
        self._end: StreamEvent | None = None
        self._head = b""
        """What came before the answer began, in case that it is no stream at all."""
        self._takers: Mapping[str, Callable[[Wire, list[StreamEvent]], None]] = {
            "message_start": self._take_start,
            "content_block_start": self._take_block_start,
            "content_block_delta": self._take_block_delta,
            "content_block_stop": self._take_block_stop,
            "message_delta": self._take_message_delta,
            "message_stop": self._take_stop,
            "error": self._take_error,
        }

    @property
    def message(self) -> Message:
        """The message as far as it has come; whole once the stream has ended."""
        if isinstance(self._end, MessageComplete):
            return self._end.message
        return self._message(MessageStatus.PARTIAL if self._end is None else MessageStatus.ERROR)

    def feed(self, chunk: bytes) -> list[StreamEvent]:
        """The events that are complete with this chunk."""
        events: list[StreamEvent] = []
        if not self._body and len(self._head) < _HEAD_BYTES:
            self._head += chunk
        for _, data in self._frames.feed(chunk):
            try:
                event = _read_delta(data)
            except (ValueError, RecursionError):
                self._take(data, events)
                continue
            delta, index = event.delta, event.index
            block = self._blocks.get(index)
            if block is None or self._end is not None:
                self._take(data, events)
            elif type(delta) is SomeText:
                text = delta.text
                block.texts.append(text)
                events.append(TextDelta(self._id, index, text))
            elif type(delta) is SomeThought:
                text = delta.thinking
                block.thoughts.append(text)
                events.append(ThinkingDelta(self._id, index, text))
            elif type(delta) is WireInputDelta:
                self._take_arguments(index, block, delta.partial_json, events)
        return events

    def finish(self) -> list[StreamEvent]:
        """The last events; a stream that broke off ends in an error that keeps what came."""
        events: list[StreamEvent] = []
        for _, data in self._frames.finish():
            self._take(data, events)
        if self._end is None:
            self._fail(self._reason(), events)
        return events

    def _reason(self) -> ProviderError:
        """Why a stream ended too early: it was an error body, or it was cut off."""
        if not self._body and self._head.strip():
            wire = read_error(self._head)
            if has_failed(self._context) or wire.get("type") == "error":
                return decode_error(wire, self._context.status)
        return NetworkError("the stream ended before the answer was complete")

    def _take(self, data: bytes, events: list[StreamEvent]) -> None:
        """Take an event of any kind."""
        if self._end is not None:
            return
        try:
            wire = _read_event(data)
        except (ValueError, RecursionError) as error:
            self._fail(NetworkError(f"the stream holds what is no event: {error}"), events)
            return
        take = self._takers.get(maybe_text(wire.get("type")) or "")
        if take is not None:
            take(wire, events)

    def _take_start(self, wire: Wire, events: list[StreamEvent]) -> None:
        message = dict(maybe_object(wire.get("message")))
        if self._body:
            if message.get("id") != self._body.get("id"):
                # Another answer was begun after part of this one was shown (T133).
                self._fail(NetworkError("another answer began in the same stream"), events)
            return
        self._body = message
        model = self._context.model or maybe_text(self._body.get("model"))
        response_id = maybe_text(self._body.get("id"))
        events.append(MessageStart(self._id, model, response_id, protocol=PROTOCOL))
        self._tell_usage(events)

    def _take_block_start(self, wire: Wire, events: list[StreamEvent]) -> None:
        index = _index(wire, len(self._blocks))
        block = _Growing(dict(maybe_object(wire.get("content_block"))))
        self._blocks[index] = block
        match block.wire:
            case {"type": "tool_use", "id": str(theirs), "name": str(name)}:
                block.tool_use_id = tool_use_id_of(self._context, self._body, self._id, theirs)
                events.append(ToolUseStart(self._id, index, block.tool_use_id, name, theirs))
            case {"type": "text", "text": str(text)} if text:
                events.append(TextDelta(self._id, index, text))
            case {"type": "thinking", "thinking": str(text)} if text:
                events.append(ThinkingDelta(self._id, index, text))
            case _:
                pass

    def _take_block_delta(self, wire: Wire, events: list[StreamEvent]) -> None:
        index, delta = _index(wire, max(self._blocks, default=0)), maybe_object(wire.get("delta"))
        block = self._blocks.get(index)
        if block is None:
            block = self._blocks[index] = _Growing({"type": "text", "text": ""})
        match delta:
            case {"type": "input_json_delta", "partial_json": str(text)}:
                self._take_arguments(index, block, text, events)
            case {"type": "signature_delta", "signature": str(signature)}:
                block.add(delta)
                events.append(ThinkingDelta(self._id, index, "", signature))
            case {"text": str(text)} if block.wire.get("type") == "text":
                block.add(delta)
                events.append(TextDelta(self._id, index, text))
            case {"thinking": str(text)} if block.wire.get("type") == "thinking":
                block.add(delta)
                signature = maybe_text(delta.get("signature"))
                events.append(ThinkingDelta(self._id, index, text, signature))
            case _:
                block.add(delta)

    def _take_arguments(
        self, index: int, block: _Growing, text: str, events: list[StreamEvent]
    ) -> None:
        block.arguments.append(text)
        if block.tool_use_id:
            events.append(ToolUseInputDelta(self._id, index, block.tool_use_id, text))

    def _take_block_stop(self, wire: Wire, events: list[StreamEvent]) -> None:
        index = _index(wire, max(self._blocks, default=0))
        block = self._blocks.get(index)
        if block is None or block.is_closed:
            return
        block.is_closed = True
        whole = decode_non_result(block.whole())
        if block.tool_use_id:
            arguments, invalid = parse_arguments("".join(block.arguments))
            given = arguments or maybe_object(block.wire.get("input"))
            events.append(ToolUseEnd(self._id, index, block.tool_use_id, given, invalid))
        elif not isinstance(whole, TextBlock | ThinkingBlock | ToolUseBlock):
            events.append(BlockAdded(self._id, index, whole))

    def _take_message_delta(self, wire: Wire, events: list[StreamEvent]) -> None:
        self._body |= maybe_object(wire.get("delta"))
        self._body |= {k: v for k, v in wire.items() if k not in ("type", "delta", "usage")}
        # Per field the latest that is not null; the two events are never added up (T130).
        stated = maybe_object(wire.get("usage"))
        usage = {name: count for name, count in stated.items() if count is not None}
        self._body["usage"] = {**maybe_object(self._body.get("usage")), **usage}
        self._tell_usage(events)

    def _take_stop(self, _: Wire, events: list[StreamEvent]) -> None:
        message = self._message(MessageStatus.COMPLETE)
        reason = message.metadata.stop_reason or StopReason.UNKNOWN
        self._end = MessageComplete(self._id, reason, message)
        events.append(self._end)

    def _take_error(self, wire: Wire, events: list[StreamEvent]) -> None:
        self._fail(decode_error(wire, self._context.status), events)

    def _fail(self, error: ProviderError, events: list[StreamEvent]) -> None:
        self._end = stream_error(self._id, error, self._message(MessageStatus.ERROR))
        events.append(self._end)

    def _tell_usage(self, events: list[StreamEvent]) -> None:
        usage = decode_usage(self._body.get("usage"), self._context)
        if usage is not None:
            events.append(UsageUpdate(self._id, usage))

    def _message(self, status: MessageStatus) -> Message:
        blocks = [self._blocks[index] for index in sorted(self._blocks)]
        body = {**self._body, "content": [block.whole() for block in blocks]}
        message = decode_body(body, self._context, message_id=self._id, status=status)
        return mark_invalid_calls(message, (block.arguments for block in blocks))


def _index(wire: Wire, otherwise: int) -> int:
    """The index of a block event; a server that leaves it out means the newest block."""
    index = maybe_count(wire.get("index"))
    return otherwise if index is None else index
