"""Stream decoder of Gemini: chunks in, stream events out."""

import re
from typing import Any, cast

import msgspec
from msgspec import Raw

from metis.canonical.blocks import ContentBlock, TextBlock, ThinkingBlock, ToolUseBlock
from metis.canonical.errors import NetworkError, ProviderError
from metis.canonical.message import Message
from metis.canonical.metadata import MessageStatus
from metis.streaming import (
    BlockAdded,
    JsonArrayParser,
    SseFrame,
    SseParser,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseStart,
)
from metis.streaming.limits import StreamLimits, limit_error
from metis.streaming.text_frames import UNREADABLE
from metis.wire.call import RequestContext
from metis.wire.errors import has_failed
from metis.wire.gemini.key_names import PROTOCOL, field, with_camel_keys
from metis.wire.gemini.original_parts import joined_candidate
from metis.wire.gemini.parts import PartDecoder
from metis.wire.gemini.request import CallPairing
from metis.wire.gemini.response import (
    call_scope,
    decode_body,
    decode_error,
    first_candidate,
    malformed_call_error,
    read_error,
)
from metis.wire.json_access import Wire, maybe_list, maybe_object, maybe_text
from metis.wire.stream_decoder import BaseStreamDecoder, StreamMeter

_SPACES = b" \t\r\n"
_BAD_USAGE = "the stream contains a usage that is not JSON"
_BOM = b"\xef\xbb\xbf"
_THOUGHT_KEYS = 2  # `text` and `thought`


class _ChunkParser:
    """Splits the bytes of a stream into chunks of JSON.

    A stream is server-sent events, a JSON array of chunks, or one plain body. The first byte
    determines which: an array begins with a bracket, a body with a brace, an event with neither.
    """

    def __init__(self, head_bytes: int, limits: StreamLimits) -> None:
        self._limits = limits
        self._events = SseParser(limits)
        self._array: JsonArrayParser | None = None
        self._is_recognised = False
        self._is_body: bool = False
        self._head_bytes = head_bytes
        self._head = bytearray()

    @property
    def head(self) -> bytes:
        """The first bytes of a stream that is not an array: they may be an error body."""
        return bytes(self._head)

    def feed(self, data: bytes) -> list[SseFrame]:
        """Return the chunks that these bytes complete, each with the name of its event."""
        if not self._is_recognised:
            data = self._recognise(data)
        if self._is_body:
            self._head += data
            if len(self._head) > self._limits.frame_bytes:
                raise limit_error(self._limits, "frame_bytes")
            return []
        if self._array is not None:
            return [(b"", element) for element in self._array.feed(data)]
        if len(self._head) < self._head_bytes:
            self._head += data
        return self._events.feed(data)

    def finish(self) -> list[SseFrame]:
        """Return the last chunks; a plain body is one chunk."""
        if self._is_body or not self._is_recognised:
            return [(b"", self.head)] if self._head.strip() else []
        if self._array is not None:
            incomplete = self._array.finish()
            return [(b"", incomplete)] if incomplete else []
        return self._events.finish()

    def _recognise(self, data: bytes) -> bytes:
        """Recognise the kind of stream; return the bytes to parse, none if it is still unknown."""
        data = bytes(self._head) + data
        self._head.clear()
        first = data.removeprefix(_BOM).lstrip(_SPACES)
        if not first or _BOM.startswith(data):
            # Spaces are not stored, because a hostile server could send any number of them.
            self._head += data if _BOM.startswith(data) else data[: len(_BOM)].rstrip(_SPACES)
            return b""
        self._is_recognised = True
        if first[:1] == b"[":
            self._array = JsonArrayParser(self._limits)
        self._is_body = first[:1] == b"{"
        return data


_STEP = re.compile(r"""\.([^.\[\]]+)|\[(\d{1,6})\]|\['([^']*)'\]|\["([^"]*)"\]""")
_VALUES = ("stringValue", "numberValue", "boolValue")
_EMPTY: tuple[Any, ...] = (None, "", [], {})
_MAX_STEPS = 200
"""The deepest JSON path of an argument; more deeply nested JSON is rejected everywhere."""


def _is_piece(call: Wire) -> bool:
    """Whether a function call contains only some of the arguments."""
    return bool(call.get("willContinue")) or "partialArgs" in call


class _PartialCall:
    """A call whose arguments are received as separate values, each with its JSON path."""

    def __init__(self, meter: StreamMeter) -> None:
        self._meter = meter
        self._meter_key = object()
        self._part: Wire = {}
        self._call: Wire = {}
        self._arguments: Wire = {}
        self._open_path: str | None = None
        """The path of a string that continues in the next piece."""
        self._open_target: tuple[Any, str | int] | None = None
        self._open_pieces: list[str] = []

    def add(self, part: Wire) -> bool:
        """Add a piece; return whether the call is complete."""
        call = maybe_object(part.get("functionCall"))
        self._part |= {key: value for key, value in part.items() if key != "functionCall"}
        self._call |= {key: call[key] for key in ("id", "name") if key in call}
        self._arguments |= maybe_object(call.get("args"))
        for piece in maybe_list(call.get("partialArgs")):
            self._set(maybe_object(piece))
        return not call.get("willContinue")

    def to_wire(self) -> Wire:
        """Return the call in the form of a plain response."""
        self._close_text()
        return {**self._part, "functionCall": {**self._call, "args": self._arguments}}

    def _set(self, piece: Wire) -> None:
        """Set the value at a JSON path, or extend the open string at this path."""
        path = maybe_text(piece.get("jsonPath")) or ""
        value: Any = next((piece[key] for key in _VALUES if key in piece), None)
        size = len(value) if isinstance(value, str) else 1
        self._meter.add_arguments(self._meter_key, len(path) + size)
        is_text = isinstance(value, str) or (value is None and "nullValue" not in piece)
        if self._open_target is not None and path == self._open_path and is_text:
            self._open_pieces.append(value or "")
            if not piece.get("willContinue"):
                self._close_text()
            return
        self._close_text()
        if path.count(".") + path.count("[") > _MAX_STEPS:
            raise RecursionError(f"a JSON path in the arguments has over {_MAX_STEPS} steps")
        steps = [
            int(step[2]) if step[2] is not None else step[1] or step[3] or step[4] or ""
            for step in _STEP.finditer(path.removeprefix("$"))
        ]
        target = _parent_of(self._arguments, steps) if steps else None
        if target is None:
            return
        parent, key = target
        parent[key] = value
        if piece.get("willContinue") and isinstance(value, str):
            self._open_path, self._open_target, self._open_pieces = path, target, [value]

    def _close_text(self) -> None:
        """Set a string from its pieces; they are joined once, because each join copies all."""
        if self._open_target is not None:
            parent, key = self._open_target
            parent[key] = "".join(self._open_pieces)
        self._open_path = self._open_target = None
        self._open_pieces = []


def _parent_of(root: Wire, steps: list[str | int]) -> tuple[Any, str | int] | None:
    """Return the object or list that contains the last step of a path, and that step.

    Missing objects and lists are created; None if the path does not fit the existing values.
    """
    parent: Any = root
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        if not _ensure_entry(parent, step):
            return None
        if following is None:
            return parent, step
        if not isinstance(parent[step], dict | list):
            parent[step] = [] if isinstance(following, int) else {}
        parent = parent[step]
    return None


def _ensure_entry(parent: Any, step: str | int) -> bool:
    """Create a missing entry; return False if that is not possible."""
    # A list is extended by one entry at a time: a large index would allocate memory.
    if isinstance(parent, list) and isinstance(step, int):
        items = cast("list[Any]", parent)
        if step == len(items):
            items.append(None)
        return step < len(items)
    if isinstance(parent, dict) and isinstance(step, str):
        cast("Wire", parent).setdefault(step, None)
        return True
    return False


class GeminiStreamDecoder(BaseStreamDecoder):
    """Turns the bytes of one streamed response into events.

    Every chunk is a small response, and adjacent pieces of text become one part. A part with a
    signature is not joined with another, because the signature belongs to that part.
    """

    def __init__(self, context: RequestContext) -> None:
        super().__init__(context)
        self._chunks = _ChunkParser(self.head_bytes, context.limits)
        self._provider = context.provider or PROTOCOL
        self._scope = self._message_id
        self._part_decoder: PartDecoder | None = None
        self._body: Wire = {}
        self._candidate: Wire = {}
        self._alternatives: dict[int, list[Wire]] = {}
        """The pieces of other candidates, by index; they are part of the message only."""
        self._parts: list[Any] = []
        self._pieces: list[str] = []
        """The text of the last part, as long as it may continue."""
        self._partial_call: _PartialCall | None = None
        self._index = -1
        self._response_id: str | None = None
        self._usage_json = Raw(b"")
        """The unparsed usage of the last chunk; the fast path does not parse each one."""

    def _decode_bytes(self, chunk: bytes, events: list[StreamEvent]) -> None:
        for name, data in self._chunks.feed(chunk):
            # An unreadable line before the start belongs to a body that is not a stream.
            if name != UNREADABLE or self._has_started:
                self._decode_chunk(data, events)

    def _decode_remaining(self, events: list[StreamEvent]) -> None:
        for name, data in self._chunks.finish():
            if name != UNREADABLE or self._has_started:
                self._decode_chunk(data, events)

    def _end_early(self, events: list[StreamEvent]) -> None:
        # Gemini has no event for the end; a finish reason marks a complete response.
        self._close_partial_call(events)
        blocked = maybe_object(field(self._body, "promptFeedback"))
        has_reason = field(self._candidate, "finishReason") or field(blocked, "blockReason")
        if has_reason and not has_failed(self._context):
            self._complete(events)
        else:
            self._fail(self._early_end_error(), events)

    def _early_end_error(self) -> ProviderError:
        if not self._has_started and has_failed(self._context):
            return self._error(read_error(self._chunks.head))
        return super()._early_end_error()

    def _fail(self, error: ProviderError, events: list[StreamEvent]) -> None:
        # An incomplete call is part of the message, too.
        self._close_partial_call(events)
        super()._fail(error, events)

    def _error(self, wire: Wire) -> ProviderError:
        return decode_error(wire, self._context.status, self._provider)

    def _decode_chunk(self, data: bytes, events: list[StreamEvent]) -> None:
        """Decode one chunk: merge its keys into the body, and append the events of its parts."""
        # `[DONE]` belongs to the OpenAI protocol, but some proxies send it here, too.
        if self._end is not None or data == b"[DONE]":
            return
        if has_failed(self._context):
            self._fail(self._error(read_error(data)), events)
            return
        wire = self._read_event(data, events)
        if wire is None:
            return
        if "error" in wire:
            self._fail(self._error(wire), events)
            return
        if not self._has_started:
            self._start(wire, events)
        if not self._read_usage():
            self._fail(NetworkError(_BAD_USAGE), events)
            return
        self._body |= {key: value for key, value in wire.items() if key != "candidates"}
        count = len(self._parts)
        try:
            candidates = map(maybe_object, maybe_list(wire.get("candidates")))
            for position, candidate in enumerate(candidates):
                index = candidate.get("index")
                index = index if type(index) is int and index > 0 else position
                if index:
                    self._alternatives.setdefault(index, []).append(candidate)
                else:
                    self._add_candidate(candidate, events)
        except RecursionError:
            # Remove the part that is too deep, so that the partial message can be built.
            del self._parts[count:]
            self._fail(NetworkError("the stream contains JSON that is nested too deeply"), events)

    def _start(self, wire: Wire, events: list[StreamEvent]) -> None:
        response_id = maybe_text(field(wire, "responseId"))
        self._response_id = response_id
        self._scope = response_id or self._message_id
        pairing = CallPairing(call_scope(self._context, self._scope))
        self._part_decoder = PartDecoder(self._provider, pairing, is_model=True)
        self._body["candidates"] = []
        model = self._context.model or maybe_text(field(wire, "modelVersion")) or "unknown"
        self._begin(events, model, response_id, PROTOCOL, _without_parts(wire))

    def _add_candidate(self, candidate: Wire, events: list[StreamEvent]) -> None:
        for key, value in candidate.items():
            if key != "content":
                # Any chunk may contain metadata; a later empty object must not erase it (T200).
                if value not in _EMPTY or key not in self._candidate:
                    self._candidate[key] = value
                continue
            content = maybe_object(value)
            self._candidate.setdefault("content", {}).update(
                {name: item for name, item in content.items() if name != "parts"}
            )
            for part in maybe_list(content.get("parts")):
                self._add_part(part, events)

    def _add_part(self, part: Any, events: list[StreamEvent]) -> None:
        """Add a part: a piece of text, a piece of a call, or a complete part."""
        if type(part) is not dict:
            self._add_complete_part(part, events)
            return
        wire = cast("Wire", part)
        text = wire.get("text")
        if type(text) is str:
            if len(wire) == 1:
                self._add_text(text, events)
                return
            if len(wire) == _THOUGHT_KEYS and type(wire.get("thought")) is bool:
                self._add_flagged_text(text, wire["thought"], events)
                return
        call = wire.get("functionCall") or wire.get("function_call")
        is_piece = call and _is_piece(with_camel_keys(maybe_object(call)))
        if self._partial_call is not None or is_piece:
            self._add_call_piece(wire, events)
            return
        self._add_complete_part(wire, events)

    def _add_text(self, text: str, events: list[StreamEvent]) -> None:
        if not text:
            return  # an empty piece must not start a block
        if not self._is_open(None):
            self._open_part({}, events)
        self._pieces.append(text)
        events.append(TextDelta(self._message_id, self._index, text))

    def _add_flagged_text(self, text: str, thought: bool, events: list[StreamEvent]) -> None:  # noqa: FBT001 - the flag of the wire
        """Add a piece of text that has the key `thought`, be it true or false."""
        form: Wire | None = None
        if not self._is_open(thought):
            self._open_part({"thought": thought}, events)
            form = {"thought": False}
        self._pieces.append(text)
        if thought:
            events.append(ThinkingDelta(self._message_id, self._index, text))
        else:
            events.append(TextDelta(self._message_id, self._index, text, form))

    def _is_open(self, thought: bool | None) -> bool:  # noqa: FBT001 - the flag of the wire
        """Whether the last part is an open text with the same flag."""
        return bool(self._pieces) and self._parts[-1].get("thought") is thought

    def _open_part(self, part: Wire, events: list[StreamEvent]) -> None:
        self._close_partial_call(events)
        self._store_text()
        self._pieces = []
        self._meter.add_block()
        self._parts.append({"text": "", **part})
        self._index += 1

    def _store_text(self) -> None:
        """Set the text of the last part from its pieces."""
        if self._pieces:
            self._pieces = ["".join(self._pieces)]
            self._parts[-1]["text"] = self._pieces[0]

    def _add_call_piece(self, part: Wire, events: list[StreamEvent]) -> None:
        """Add a piece of a call; any other part ends the call."""
        wire = with_camel_keys(part)
        if self._partial_call is not None and "functionCall" not in wire:
            self._close_partial_call(events)
            self._add_part(part, events)
            return
        self._partial_call = self._partial_call or _PartialCall(self._meter)
        if self._partial_call.add(wire):
            self._close_partial_call(events)

    def _close_partial_call(self, events: list[StreamEvent]) -> None:
        partial, self._partial_call = self._partial_call, None
        if partial is not None:
            self._add_complete_part(partial.to_wire(), events)

    def _add_complete_part(self, part: Any, events: list[StreamEvent]) -> None:
        """Add a part that no later chunk continues, and append the events of its blocks."""
        wire = maybe_object(part)
        if "functionCall" in wire or "function_call" in wire:
            self._meter.add_call()
        else:
            self._meter.add_block()
        self._store_text()
        self._pieces = []
        self._parts.append(part)
        blocks: list[ContentBlock] = []
        if self._part_decoder is not None:
            self._part_decoder.decode([part], blocks)
        for block in blocks:
            self._index += 1
            self._report(block, maybe_object(part) or None, events)

    def _report(self, block: ContentBlock, part: Wire | None, events: list[StreamEvent]) -> None:
        message_id, index = self._message_id, self._index
        match block:
            case TextBlock():
                events.append(TextDelta(message_id, index, block.text, part))
            case ThinkingBlock() if block.format is None:
                text, signature = block.text, block.signature
                event = ThinkingDelta(message_id, index, text, signature, original_form=part)
                events.append(event)
            case ToolUseBlock():
                wire_id = _wire_id(part or {})
                start = ToolUseStart(message_id, index, block.id, block.name, wire_id, part)
                end = ToolUseEnd(message_id, index, block.id, block.input)
                events += (start, end)
            case _:
                events.append(BlockAdded(message_id, index, block, part))

    def _complete(self, events: list[StreamEvent]) -> None:
        if not self._read_usage():
            self._fail(NetworkError(_BAD_USAGE), events)
            return
        message = self._build_message(MessageStatus.COMPLETE)
        failure = malformed_call_error(message, self._context)
        if failure is not None:
            self._fail(failure, events)
            return
        self._add_usage(message.metadata.usage, events)
        self._end_with(message, events)

    def _read_usage(self) -> bool:
        """Read the usage of the last chunk; return whether it is JSON."""
        raw, self._usage_json = self._usage_json, Raw(b"")
        if raw:
            try:
                self._body["usageMetadata"] = msgspec.json.decode(raw)
            except ValueError:  # `Raw` is not validated: invalid UTF-8 in a string, for example
                return False
        return True

    def _build_message(self, status: MessageStatus) -> Message:
        self._store_text()
        self._read_usage()
        candidate = dict(self._candidate)
        content = maybe_object(candidate.get("content"))
        if self._parts:
            candidate["content"] = {**content, "parts": list(self._parts)}
        body = self._body
        if candidate or self._parts or self._alternatives:
            others = (
                joined_candidate(self._alternatives[index]) for index in sorted(self._alternatives)
            )
            body = {**body, "candidates": [candidate, *others]}
        return decode_body(
            body, self._context, message_id=self._message_id, scope=self._scope, status=status
        )


def _without_parts(chunk: Wire) -> Wire:
    """Return the first chunk without its parts, which have their own events."""
    candidate = first_candidate(chunk)
    if not candidate:
        return {key: value for key, value in chunk.items() if key != "candidates"}
    content = maybe_object(candidate.get("content"))
    content_keys = {key: value for key, value in content.items() if key != "parts"}
    return {**chunk, "candidates": [{**candidate, "content": content_keys}]}


def _wire_id(part: Wire) -> str | None:
    """Return the wire id of a call; None if it has none."""
    call = part.get("functionCall") or part.get("function_call")
    return maybe_text(maybe_object(call).get("id")) or None
