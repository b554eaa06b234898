"""Stream decoder of Gemini: chunks in, stream events out.

Every chunk is a small response. The decoder joins their parts and decodes the final message from
them exactly as from a plain response, so that the two cannot differ. Pieces of text are joined; a
part with a signature is never joined with another, because the signature belongs to that part.
"""

import re
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
    JsonArrayParser,
    MessageComplete,
    MessageStart,
    SseParser,
    StreamError,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseStart,
    UsageUpdate,
)
from metis.wire.call import RequestContext
from metis.wire.errors import has_failed, stream_error
from metis.wire.gemini.fast import WireTextChunk
from metis.wire.gemini.key_names import PROTOCOL, field, with_camel_keys
from metis.wire.gemini.parts import PartDecoder
from metis.wire.gemini.request import CallPairing
from metis.wire.gemini.response import (
    call_scope,
    decode_body,
    decode_error,
    first_candidate,
    read_error,
    refused_call,
)
from metis.wire.json_access import Wire, maybe_list, maybe_object, maybe_text

_BLANKS = b" \t\r\n"
_BOM = b"\xef\xbb\xbf"
_HEAD_BYTES = 65536


class ChunkParser:
    """Splits the bytes of a stream into chunks of JSON; feed it as the bytes come, then finish."""

    def __init__(self) -> None:
        self._events = SseParser()
        self._array: JsonArrayParser | None = None
        self._is_sure = False
        self._is_body: bool = False
        self._head: bytes = b""
        """What came before the first chunk, in case that it is no stream at all."""

    def feed(self, data: bytes) -> list[bytes]:
        """The chunks that are complete with these bytes."""
        if not self._is_sure:
            data = self._recognise(data)
        if self._is_body:
            self._head += data
            return []
        if self._array is not None:
            return self._array.feed(data)
        if len(self._head) < _HEAD_BYTES:
            self._head += data
        return [found for _, found in self._events.feed(data)]

    def finish(self) -> list[bytes]:
        """The last chunks; bytes that were no stream are one chunk."""
        if self._is_body or not self._is_sure:
            return [self._head] if self._head.strip() else []
        if self._array is not None:
            rest = self._array.finish()
            return [rest] if rest else []
        return [found for _, found in self._events.finish()]

    @property
    def head(self) -> bytes:
        """The beginning of what came, if it was no array."""
        return self._head

    def _recognise(self, data: bytes) -> bytes:
        """Find out what kind of stream it is; the bytes that are to be read then."""
        data = self._head + data
        first = data.removeprefix(_BOM).lstrip(_BLANKS)[:1]
        self._head = b""
        if not first or _BOM.startswith(data):
            self._head = data
            return b""
        self._is_sure = True
        if first == b"[":
            self._array = JsonArrayParser()
        self._is_body = first == b"{"
        return data


_STEP = re.compile(r"""\.([^.\[\]]+)|\[(\d{1,6})\]|\['([^']*)'\]|\["([^"]*)"\]""")
_VALUES = ("stringValue", "numberValue", "boolValue")


def is_partial(call: Wire) -> bool:
    """Whether a call is a piece of one."""
    return bool(call.get("willContinue")) or "partialArgs" in call


class PartialCall:
    """A call that is coming in, piece by piece."""

    def __init__(self) -> None:
        self._part: Wire = {}
        self._call: Wire = {}
        self._arguments: Wire = {}
        self._growing: str | None = None
        """The path of a string that goes on in the next piece."""

    def add(self, part: Wire) -> bool:
        """Take a piece into account; whether the call is whole now."""
        call = maybe_object(part.get("functionCall"))
        self._part |= {key: value for key, value in part.items() if key != "functionCall"}
        self._call |= {key: call[key] for key in ("id", "name") if key in call}
        self._arguments |= maybe_object(call.get("args"))
        for piece in maybe_list(call.get("partialArgs")):
            self._set(maybe_object(piece))
        return not call.get("willContinue")

    def to_wire(self) -> Wire:
        """The call as a plain response would hold it."""
        return {**self._part, "functionCall": {**self._call, "args": self._arguments}}

    def _set(self, piece: Wire) -> None:
        path = maybe_text(piece.get("jsonPath")) or ""
        steps = [
            int(found[2]) if found[2] is not None else found[1] or found[3] or found[4] or ""
            for found in _STEP.finditer(path.removeprefix("$"))
        ]
        if not steps:
            return
        value: Any = next((piece[key] for key in _VALUES if key in piece), None)
        place = _place(self._arguments, steps)
        if place is None:
            return
        holder, last = place
        if path == self._growing and isinstance(value, str):
            value = str(holder[last]) + value
        elif path == self._growing and value is None and "nullValue" not in piece:
            value = holder[last]
        holder[last] = value
        self._growing = path if piece.get("willContinue") and isinstance(value, str) else None


def _place(root: Wire, steps: list[str | int]) -> tuple[Any, str | int] | None:
    """The object or list that holds the last step, with that step; made where it is missing."""
    holder: Any = root
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        if not _fit(holder, step):
            return None
        if following is None:
            return holder, step
        if not isinstance(holder[step], dict | list):
            holder[step] = [] if isinstance(following, int) else {}
        holder = holder[step]
    return None


def _fit(holder: Any, step: str | int) -> bool:
    """Whether a step can be taken; a list grows by one at a time."""
    if isinstance(holder, list) and isinstance(step, int):
        items = cast("list[Any]", holder)
        if step == len(items):
            items.append(None)
        return step < len(items)
    if isinstance(holder, dict) and isinstance(step, str):
        cast("Wire", holder).setdefault(step, None)
        return True
    return False


_read_text_chunk = msgspec.json.Decoder(WireTextChunk).decode
_read_chunk = msgspec.json.Decoder(dict[str, Any]).decode
_KEYS_OF_THOUGHT = 2


class GeminiStreamDecoder:
    """Turns the bytes of a streamed answer into events; `message` is what has come so far."""

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self._chunks = ChunkParser()
        self._id = new_ulid()
        self._scope = self._id
        self._reader: PartDecoder | None = None
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
        names = CallPairing(call_scope(self._context, self._scope))
        self._reader = PartDecoder(issuer, names, is_model=True)
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
        if self._partial is not None or (call and is_partial(with_camel_keys(maybe_object(call)))):
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
        normal = with_camel_keys(part)
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
            self._take_whole(partial.to_wire(), events)

    def _take_whole(self, part: Any, events: list[StreamEvent]) -> None:
        self._close()
        self._parts.append(part)
        blocks: list[ContentBlock] = []
        if self._reader is not None:
            self._reader.decode([part], blocks)
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
