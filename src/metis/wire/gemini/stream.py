"""Streams of Gemini, from bytes to events.

Every chunk is a small response. The decoder puts their parts together, and makes the final message
of them exactly as of a plain response, so that the two cannot differ. Pieces of text are joined; a
part with a signature is never joined with another, because the signature belongs to that part.
"""

from typing import Any, cast

import msgspec
from msgspec import UNSET, Raw

from metis.canonical.blocks import ContentBlock, TextBlock, ThinkingBlock, ToolUseBlock
from metis.canonical.errors import NetworkError, ProviderError
from metis.canonical.ids import new_ulid
from metis.canonical.message import Message
from metis.canonical.metadata import MessageStatus, StopReason
from metis.streaming import (
    BlockAdded,
    MessageComplete,
    MessageStart,
    StreamError,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseStart,
    UsageUpdate,
)
from metis.wire.call import RequestContext
from metis.wire.failure import has_failed, stream_error
from metis.wire.gemini.calls import CallNames
from metis.wire.gemini.errors import decode_error, read_error
from metis.wire.gemini.frames import ChunkParser
from metis.wire.gemini.names import PROTOCOL, field, normal_part
from metis.wire.gemini.partial import PartialCall, is_partial
from metis.wire.gemini.parts import PartReader
from metis.wire.gemini.response import (
    call_scope,
    decode_body,
    first_candidate,
    refused_call,
)
from metis.wire.gemini.types import TextChunk
from metis.wire.shape import Wire, maybe_list, maybe_object, maybe_text

_read_text_chunk = msgspec.json.Decoder(TextChunk).decode
_read_chunk = msgspec.json.Decoder(dict[str, Any]).decode
_KEYS_OF_THOUGHT = 2


class StreamDecoder:
    """Turns the bytes of a streamed answer into events; `message` is what has come so far."""

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self._chunks = ChunkParser()
        self._id = new_ulid()
        self._scope = self._id
        self._reader: PartReader | None = None
        self._body: Wire = {}
        self._candidate: Wire = {}
        self._parts: list[Any] = []
        self._pieces: list[str] = []
        """The text of the last part, while more may come."""
        self._partial: PartialCall | None = None
        self._index = -1
        self._response_id: str | None = None
        self._usage = Raw(b"")
        self._end: MessageComplete | StreamError | None = None

    @property
    def message(self) -> Message:
        """The message as far as it has come; whole once the stream has ended."""
        if isinstance(self._end, MessageComplete):
            return self._end.message
        return self._message(MessageStatus.PARTIAL if self._end is None else MessageStatus.ERROR)

    def feed(self, chunk: bytes) -> list[StreamEvent]:
        """The events that are complete with this chunk."""
        events: list[StreamEvent] = []
        for data in self._chunks.feed(chunk):
            if not self._take_quickly(data, events):
                self._take(data, events)
        return events

    def finish(self) -> list[StreamEvent]:
        """The last events; the protocol has no mark of the end but a reason to finish."""
        events: list[StreamEvent] = []
        for data in self._chunks.finish():
            self._take(data, events)
        if self._end is not None:
            return events
        self._close_partial(events)
        if has_failed(self._context) or not self._has_ended():
            self._fail(self._reason(), events)
        else:
            self._complete(events)
        return events

    def _has_ended(self) -> bool:
        blocked = maybe_object(field(self._body, "promptFeedback"))
        return bool(field(self._candidate, "finishReason") or field(blocked, "blockReason"))

    def _reason(self) -> ProviderError:
        """Why a stream ended too early: it was an error body, or it was cut off."""
        if not self._body and has_failed(self._context):
            return self._error(read_error(self._chunks.head))
        return NetworkError("the stream ended before the answer was complete")

    def _error(self, wire: Wire) -> ProviderError:
        return decode_error(wire, self._context.status, self._context.provider or PROTOCOL)

    def _take_quickly(self, data: bytes, events: list[StreamEvent]) -> bool:
        """Take a chunk of text that continues a text; most chunks do nothing else."""
        if not self._pieces or self._end is not None:
            return False
        try:
            chunk = _read_text_chunk(data)
        except (ValueError, RecursionError):
            return False
        (candidate,) = chunk.candidates
        (part,) = candidate.content.parts
        if chunk.response_id != self._response_id or not self._is_open(None):
            return False
        if candidate.index is not UNSET:
            self._candidate["index"] = 0
        self._body["modelVersion"] = chunk.model_version
        self._usage = chunk.usage_metadata or self._usage
        self._take_text(part.text, events)
        return True

    def _take(self, data: bytes, events: list[StreamEvent]) -> None:
        """Take one chunk of the answer."""
        if self._end is not None or data == b"[DONE]":
            return
        try:
            wire = _read_chunk(data)
        except (ValueError, RecursionError) as error:
            if has_failed(self._context):
                self._fail(self._error(read_error(data)), events)
            else:
                self._fail(NetworkError(f"the stream holds what is no event: {error}"), events)
            return
        if "error" in wire or has_failed(self._context):
            self._fail(self._error(wire), events)
            return
        if not self._body:
            self._start(wire, events)
        self._read_usage()
        for key, value in wire.items():
            if key != "candidates":
                self._body[key] = value
        count = len(self._parts)
        try:
            self._take_candidate(first_candidate(wire), events)
        except RecursionError:
            del self._parts[count:]
            self._fail(NetworkError("the stream holds what is nested too deeply"), events)

    def _start(self, wire: Wire, events: list[StreamEvent]) -> None:
        response_id = maybe_text(field(wire, "responseId"))
        self._response_id = response_id
        self._scope = response_id or self._id
        issuer = self._context.provider or PROTOCOL
        names = CallNames(call_scope(self._context, self._scope))
        self._reader = PartReader(issuer, names, is_model=True)
        model = self._context.model or maybe_text(field(wire, "modelVersion"))
        self._body["candidates"] = []
        events.append(MessageStart(self._id, model, response_id, protocol=PROTOCOL))

    def _take_candidate(self, candidate: Wire, events: list[StreamEvent]) -> None:
        for key, value in candidate.items():
            if key != "content":
                # Metadata come in any chunk, and an empty object takes nothing away (T200).
                if value or key not in self._candidate:
                    self._candidate[key] = value
                continue
            content = maybe_object(value)
            self._candidate.setdefault("content", {}).update(
                {name: own for name, own in content.items() if name != "parts"}
            )
            for part in maybe_list(content.get("parts")):
                self._take_part(part, events)

    def _take_part(self, part: Any, events: list[StreamEvent]) -> None:
        if type(part) is not dict:
            self._take_whole(part, events)
            return
        own = cast("Wire", part)
        text = own.get("text")
        if type(text) is str:
            if len(own) == 1:
                self._take_text(text, events)
                return
            if len(own) == _KEYS_OF_THOUGHT and type(own.get("thought")) is bool:
                self._take_spoken(text, own["thought"], events)
                return
        call = own.get("functionCall") or own.get("function_call")
        if self._partial is not None or (call and is_partial(normal_part(maybe_object(call)))):
            self._take_piece(own, events)
            return
        self._take_whole(own, events)

    def _take_text(self, text: str, events: list[StreamEvent]) -> None:
        if not text:
            return  # an empty piece says nothing, and begins nothing
        if not self._is_open(None):
            self._open({}, events)
        self._pieces.append(text)
        events.append(TextDelta(self._id, self._index, text))

    def _take_spoken(self, text: str, thought: bool, events: list[StreamEvent]) -> None:  # noqa: FBT001 - the wire's own flag
        """Take a piece that says whether it is a thought."""
        if not self._is_open(thought):
            self._open({"thought": thought}, events)
        self._pieces.append(text)
        delta = ThinkingDelta if thought else TextDelta
        events.append(delta(self._id, self._index, text))

    def _is_open(self, thought: bool | None) -> bool:  # noqa: FBT001 - the same
        """Whether the last part grows, and says the same of being a thought."""
        return bool(self._pieces) and self._parts[-1].get("thought") is thought

    def _open(self, part: Wire, events: list[StreamEvent]) -> None:
        self._close_partial(events)
        self._close()
        self._parts.append({"text": "", **part})
        self._index += 1

    def _close(self) -> None:
        if self._pieces:
            self._parts[-1]["text"] = "".join(self._pieces)
            self._pieces = []

    def _take_piece(self, part: Wire, events: list[StreamEvent]) -> None:
        """Take a piece of a call; what is no call ends the one that was coming."""
        normal = normal_part(part)
        if self._partial is not None and "functionCall" not in normal:
            self._close_partial(events)
            self._take_part(part, events)
            return
        self._partial = self._partial or PartialCall()
        if self._partial.add(normal):
            self._close_partial(events)

    def _close_partial(self, events: list[StreamEvent]) -> None:
        partial, self._partial = self._partial, None
        if partial is not None:
            self._take_whole(partial.whole(), events)

    def _take_whole(self, part: Any, events: list[StreamEvent]) -> None:
        self._close()
        self._parts.append(part)
        blocks: list[ContentBlock] = []
        if self._reader is not None:
            self._reader.read([part], blocks)
        for block in blocks:
            self._index += 1
            self._tell(block, events)

    def _tell(self, block: ContentBlock, events: list[StreamEvent]) -> None:
        index = self._index
        match block:
            case TextBlock():
                events.append(TextDelta(self._id, index, block.text))
            case ThinkingBlock() if block.format is None:
                events.append(ThinkingDelta(self._id, index, block.text, block.signature))
            case ToolUseBlock():
                events.append(ToolUseStart(self._id, index, block.id, block.name))
                events.append(ToolUseEnd(self._id, index, block.id, block.input))
            case _:
                events.append(BlockAdded(self._id, index, block))

    def _complete(self, events: list[StreamEvent]) -> None:
        message = self._message(MessageStatus.COMPLETE)
        failure = refused_call(message, self._context)
        if failure is not None:
            self._fail(failure, events)
            return
        if message.metadata.usage is not None:
            events.append(UsageUpdate(self._id, message.metadata.usage))
        reason = message.metadata.stop_reason or StopReason.UNKNOWN
        self._end = MessageComplete(self._id, reason, message)
        events.append(self._end)

    def _fail(self, error: ProviderError, events: list[StreamEvent]) -> None:
        self._end = stream_error(self._id, error, self._message(MessageStatus.ERROR))
        events.append(self._end)

    def _read_usage(self) -> None:
        """Read the usage that the last quick chunk left."""
        if self._usage:
            self._body["usageMetadata"] = msgspec.json.decode(self._usage)
            self._usage = Raw(b"")

    def _message(self, status: MessageStatus) -> Message:
        self._close_text()
        self._read_usage()
        candidate = dict(self._candidate)
        content = maybe_object(candidate.get("content"))
        if self._parts:
            candidate["content"] = {**content, "parts": list(self._parts)}
        body = {**self._body, "candidates": [candidate]} if candidate or self._parts else self._body
        return decode_body(
            body, self._context, message_id=self._id, scope=self._scope, status=status
        )

    def _close_text(self) -> None:
        """Write the text so far into its part, without ending it."""
        if self._pieces:
            self._pieces = ["".join(self._pieces)]
            self._parts[-1]["text"] = self._pieces[0]
