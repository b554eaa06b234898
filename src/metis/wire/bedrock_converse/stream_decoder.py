"""Stream decoder of Bedrock Converse: event-stream frames in, stream events out.

The decoder collects the wire blocks as they grow and decodes the final message from them exactly as
from a plain response, so that the two cannot differ. The stop reason comes before the usage: the
response is complete when both have come, or when the stream ends.
"""

import base64
import binascii
from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from metis.canonical.blocks import TextBlock, ThinkingBlock, ToolUseBlock
from metis.canonical.errors import NetworkError, ProviderError
from metis.canonical.ids import new_ulid
from metis.canonical.message import Message
from metis.canonical.metadata import MessageStatus, StopReason
from metis.streaming import (
    BlockAdded,
    MessageComplete,
    MessageStart,
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
from metis.streaming.aws_event_stream import EventFrame, EventStreamParser
from metis.wire.bedrock_converse.blocks import CLIENT_CALL, PROTOCOL, decode_block
from metis.wire.bedrock_converse.errors import decode_error, refine_stream_error
from metis.wire.bedrock_converse.response import decode_body, decode_usage, tool_use_id_of
from metis.wire.call import RequestContext
from metis.wire.errors import STREAM_CUT_OFF, has_failed, read_error, stream_error
from metis.wire.json_access import Wire, maybe_count, maybe_list, maybe_object, maybe_text


class WireReasoningDelta(Struct, gc=False, forbid_unknown_fields=True):
    """More of a thought."""

    text: str


class WireToolUseDelta(Struct, gc=False, forbid_unknown_fields=True):
    """More of the arguments of a call."""

    input: str


class WireDelta(Struct, gc=False, forbid_unknown_fields=True, rename="camel"):
    """More of something; one of these is there."""

    text: str | UnsetType = UNSET
    reasoning_content: WireReasoningDelta | UnsetType = UNSET
    tool_use: WireToolUseDelta | UnsetType = UNSET


class WireBlockDelta(Struct, gc=False, forbid_unknown_fields=True, rename="camel"):
    """More of a block."""

    content_block_index: int
    delta: WireDelta
    p: str = ""


BlockKind = Literal["text", "thought", "call", "result", "picture", "other"]
"""What a block is, as far as deltas tell it."""

_KINDS: dict[str, BlockKind] = {
    "text": "text",
    "citation": "text",
    "reasoningContent": "thought",
    "toolUse": "call",
    "toolResult": "result",
    "image": "picture",
}


def kind_of(wire: Wire) -> BlockKind:
    """What a start or a delta is of."""
    return _KINDS.get(next(iter(wire), ""), "other")


class PartialBlock:
    """A block of the wire that is still coming in."""

    __slots__ = (
        "arguments",
        "citations",
        "index",
        "kind",
        "other",
        "results",
        "sealed",
        "signature",
        "start",
        "texts",
        "tool_use_id",
    )

    def __init__(self, kind: BlockKind, place: int, start: Wire) -> None:
        self.kind: BlockKind = kind
        self.index = place
        self.start = start
        """What the block began with."""
        self.texts: list[str] = []
        self.arguments: list[str] = []
        self.citations: list[Any] = []
        self.results: list[Any] = []
        self.sealed: list[str] = []
        self.signature: str | None = None
        self.other: Wire = {}
        self.tool_use_id = ""

    def add(self, delta: Wire) -> None:
        """Take a delta of any kind into account."""
        for key, value in delta.items():
            match key, value:
                case "text", str():
                    self.texts.append(value)
                case "citation", _:
                    self.citations.append(value)
                case "toolUse", {"input": str(text)}:
                    self.arguments.append(text)
                case "reasoningContent", dict():
                    self._add_thought(maybe_object(value))
                case "toolResult", list():
                    self._add_results(maybe_list(value))
                case "image", dict():
                    self.other |= maybe_object(value)
                case _:
                    self.other[key] = value

    def _add_thought(self, delta: Wire) -> None:
        """A thought, its seal, or both at once (T42)."""
        text, sealed = maybe_text(delta.get("text")), maybe_text(delta.get("redactedContent"))
        if text is not None:
            self.texts.append(text)
        if sealed is not None:
            self.sealed.append(sealed)
        signature = maybe_text(delta.get("signature"))
        if signature is not None:
            self.signature = (self.signature or "") + signature

    def _add_results(self, parts: list[Any]) -> None:
        for part in parts:
            text = maybe_text(maybe_object(part).get("text"))
            last = maybe_object(self.results[-1]) if self.results else {}
            if text is not None and isinstance(last.get("text"), str):
                self.results[-1] = {"text": last["text"] + text}
            else:
                self.results.append(part)

    def to_wire(self) -> Wire:
        """The block as a plain response would hold it."""
        if self.kind == "picture":
            return {"image": {**maybe_object(self.start.get("image")), **self.other}}
        return {**self._known(), **self.other}

    def _known(self) -> Wire:
        match self.kind:
            case "text" if not self.citations:
                return {"text": "".join(self.texts)}
            case "text":
                content = [{"text": "".join(self.texts)}]
                return {"citationsContent": {"citations": self.citations, "content": content}}
            case "thought":
                return {"reasoningContent": self._thought()}
            case "call":
                call, given = self.start.get("toolUse"), parse_arguments("".join(self.arguments))[0]
                return {"toolUse": {**maybe_object(call), "input": given}}
            case "result":
                answer = maybe_object(self.start.get("toolResult"))
                return {"toolResult": {**answer, "content": self.results}}
            case _:
                return self.start

    def _thought(self) -> Wire:
        wire: Wire = {}
        if self.texts or self.signature is not None:
            wire["reasoningText"] = {"text": "".join(self.texts)}
            if self.signature is not None:
                wire["reasoningText"]["signature"] = self.signature
        if self.sealed:
            wire["redactedContent"] = _joined(self.sealed)
        return wire


def _joined(pieces: list[str]) -> str:
    """Bytes that came in pieces, each of which is base64."""
    if len(pieces) == 1:
        return pieces[0]
    try:
        return base64.b64encode(b"".join(map(base64.b64decode, pieces))).decode()
    except (binascii.Error, ValueError):
        return "".join(pieces)


_HEAD_BYTES = 65536
_DELTA = "contentBlockDelta"
_PADDING = "p"
_read_delta = msgspec.json.Decoder(WireBlockDelta).decode
_read_event = msgspec.json.Decoder(dict[str, Any]).decode


class ConverseStreamDecoder:
    """Turns the bytes of a streamed answer into events; `message` is what has come so far."""

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self._frames = EventStreamParser()
        self._id = new_ulid()
        self._body: Wire = {}
        self._has_begun = False
        self._blocks: list[PartialBlock] = []
        self._open: dict[int, PartialBlock] = {}
        """The blocks that go on, by the index that the provider gives them."""
        self._end: StreamEvent | None = None
        self._head = b""
        """What came before the answer began, in case that it is no stream at all."""
        self._takers: Mapping[str, Callable[[Wire, list[StreamEvent]], None]] = {
            "messageStart": self._take_start,
            "contentBlockStart": self._take_block_start,
            _DELTA: self._take_block_delta,
            "contentBlockStop": self._take_block_stop,
            "messageStop": self._take_stop,
            "metadata": self._take_metadata,
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
        if not self._has_begun and len(self._head) < _HEAD_BYTES:
            self._head += chunk
        for frame in self._frames.feed(chunk):
            if self._end is not None:
                break
            if frame.name != _DELTA or not self._take_common(frame.payload, events):
                self._take(frame, events)
        error = self._frames.error
        if error is not None and error.code is not None and self._end is None:
            self._fail(refine_stream_error(error), events)
        return events

    def finish(self) -> list[StreamEvent]:
        """The last events; a stream that broke off ends in an error that keeps what came."""
        events: list[StreamEvent] = []
        self._frames.finish()
        if self._end is not None:
            return events
        if self._frames.error is None and "stopReason" in self._body:
            self._complete(events)
        else:
            self._fail(self._reason(), events)
        return events

    def _reason(self) -> ProviderError:
        """Why a stream ended too early: it was an error body, or it was cut off."""
        if not self._has_begun and self._head.strip():
            wire = read_error(self._head)
            if has_failed(self._context) or "__type" in wire or self._head.lstrip()[:1] == b"{":
                return decode_error(wire, self._context.status)
        return self._frames.error or NetworkError(STREAM_CUT_OFF)

    def _take_common(self, payload: bytes, events: list[StreamEvent]) -> bool:
        """Take more text, thought or arguments of a block that goes on; False for all else."""
        try:
            event = _read_delta(payload)
        except (ValueError, RecursionError):
            return False
        block, delta = self._open.get(event.content_block_index), event.delta
        if block is None:
            return False
        if delta.text is not UNSET and block.kind == "text":
            block.texts.append(delta.text)
            events.append(TextDelta(self._id, block.index, delta.text))
            return True
        if delta.reasoning_content is not UNSET and block.kind == "thought":
            text = delta.reasoning_content.text
            block.texts.append(text)
            events.append(ThinkingDelta(self._id, block.index, text))
            return True
        if delta.tool_use is not UNSET and block.kind == "call":
            self._take_arguments(block, delta.tool_use.input, events)
            return True
        return False

    def _take(self, frame: EventFrame, events: list[StreamEvent]) -> None:
        """Take an event of any kind."""
        take = self._takers.get(frame.name)
        if take is None:
            return
        try:
            wire = _read_event(frame.payload)
        except (ValueError, RecursionError) as error:
            self._fail(NetworkError(f"the stream holds what is no event: {error}"), events)
            return
        wire.pop(_PADDING, None)
        take(wire, events)

    def _take_start(self, wire: Wire, events: list[StreamEvent]) -> None:
        if self._has_begun:
            # Another answer was begun after part of this one was shown (T133).
            self._fail(NetworkError("another answer began in the same stream"), events)
            return
        self._begin(events)
        self._body["output"] = {"message": wire}

    def _begin(self, events: list[StreamEvent]) -> None:
        if not self._has_begun:
            self._has_begun = True
            events.append(MessageStart(self._id, self._context.model, None, protocol=PROTOCOL))

    def _take_block_start(self, wire: Wire, events: list[StreamEvent]) -> None:
        start = maybe_object(wire.get("start"))
        if not start:
            self._close_block(_index(wire), events)
            return  # what it is comes with the first delta
        self._start_block(_index(wire), kind_of(start), start, events)

    def _start_block(
        self, index: int, kind: BlockKind, start: Wire, events: list[StreamEvent]
    ) -> PartialBlock:
        """Begin a block; one of the same index is over then, be it told or not (T124)."""
        self._begin(events)
        self._close_block(index, events)
        block = PartialBlock(kind, len(self._blocks), start)
        self._blocks.append(block)
        self._open[index] = block
        match start.get("toolUse"):
            case {"toolUseId": str(theirs), "name": str(name), **rest} if _is_call(rest):
                block.tool_use_id = tool_use_id_of(self._context, self._id, theirs)
                events.append(ToolUseStart(self._id, block.index, block.tool_use_id, name, theirs))
            case _:
                pass
        return block

    def _take_block_delta(self, wire: Wire, events: list[StreamEvent]) -> None:
        index, delta = _index(wire), maybe_object(wire.get("delta"))
        kind, block = kind_of(delta), self._open.get(index)
        if block is None or kind not in (block.kind, "other"):
            block = self._start_block(index, kind, {}, events)
        match delta:
            case {"text": str(text)} if kind == "text":
                events.append(TextDelta(self._id, block.index, text))
            case {"toolUse": {"input": str(text)}} if block.tool_use_id:
                events.append(ToolUseInputDelta(self._id, block.index, block.tool_use_id, text))
            case {"reasoningContent": dict()} if kind == "thought":
                self._tell_thought(block, delta["reasoningContent"], events)
            case _:
                pass
        block.add(delta)

    def _tell_thought(self, block: PartialBlock, delta: Wire, events: list[StreamEvent]) -> None:
        text, signature = maybe_text(delta.get("text")), maybe_text(delta.get("signature"))
        if text is not None or signature is not None:
            events.append(ThinkingDelta(self._id, block.index, text or "", signature))

    def _take_arguments(self, block: PartialBlock, text: str, events: list[StreamEvent]) -> None:
        block.arguments.append(text)
        if block.tool_use_id:
            events.append(ToolUseInputDelta(self._id, block.index, block.tool_use_id, text))

    def _take_block_stop(self, wire: Wire, events: list[StreamEvent]) -> None:
        index = _index(wire)
        if index not in self._open:
            # A text without words has neither a start nor a delta, but it has a place (T39).
            block = self._start_block(index, "text", {}, events)
            events.append(TextDelta(self._id, block.index, ""))
        self._close_block(index, events)

    def _close_block(self, index: int, events: list[StreamEvent]) -> None:
        block = self._open.pop(index, None)
        if block is None:
            return
        if block.tool_use_id:
            given, invalid = parse_arguments("".join(block.arguments))
            events.append(ToolUseEnd(self._id, block.index, block.tool_use_id, given, invalid))
            return
        whole = decode_block(block.to_wire(), is_answer=True)
        if not isinstance(whole, TextBlock | ThinkingBlock | ToolUseBlock):
            events.append(BlockAdded(self._id, block.index, whole))

    def _take_stop(self, wire: Wire, events: list[StreamEvent]) -> None:
        self._begin(events)
        self._body |= {"stopReason": None, **wire}
        if "usage" in self._body:
            self._complete(events)

    def _take_metadata(self, wire: Wire, events: list[StreamEvent]) -> None:
        self._begin(events)
        self._body |= wire
        usage = decode_usage(self._body, self._context)
        if usage is not None:
            events.append(UsageUpdate(self._id, usage))
        if "stopReason" in self._body:
            self._complete(events)

    def _complete(self, events: list[StreamEvent]) -> None:
        for index in [*self._open]:
            self._close_block(index, events)
        message = self._message(MessageStatus.COMPLETE)
        reason = message.metadata.stop_reason or StopReason.UNKNOWN
        self._end = MessageComplete(self._id, reason, message)
        events.append(self._end)

    def _fail(self, error: ProviderError, events: list[StreamEvent]) -> None:
        self._end = stream_error(self._id, error, self._message(MessageStatus.ERROR))
        events.append(self._end)

    def _message(self, status: MessageStatus) -> Message:
        said = maybe_object(maybe_object(self._body.get("output")).get("message"))
        content = [block.to_wire() for block in self._blocks]
        body = {**self._body, "output": {"message": {**said, "content": content}}}
        message = decode_body(body, self._context, message_id=self._id, status=status)
        return mark_invalid_calls(message, (block.arguments for block in self._blocks))


def _is_call(rest: Mapping[str, Any]) -> bool:
    """Whether a call is one that the client shall run."""
    return rest.get("type", CLIENT_CALL) == CLIENT_CALL


def _index(wire: Wire) -> int:
    """The index of a block event; a server that leaves it out means the first."""
    return maybe_count(wire.get("contentBlockIndex")) or 0
