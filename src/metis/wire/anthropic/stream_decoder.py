"""Stream decoder of Anthropic Messages: server-sent events in, stream events out."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from metis.canonical.blocks import Citation, TextBlock, ThinkingBlock, ToolUseBlock
from metis.canonical.errors import NetworkError, ProviderError
from metis.canonical.message import Message
from metis.canonical.metadata import MessageStatus
from metis.streaming import (
    BlockAdded,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
    parse_arguments,
)
from metis.streaming.arguments import mark_invalid_calls
from metis.streaming.text_frames import UNREADABLE
from metis.wire.anthropic.blocks import PROTOCOL, decode_citation, decode_non_result
from metis.wire.anthropic.errors import decode_error
from metis.wire.anthropic.response import decode_body, decode_usage, tool_use_id_of
from metis.wire.call import RequestContext
from metis.wire.errors import has_failed, read_error
from metis.wire.json_access import Wire, maybe_count, maybe_list, maybe_object, maybe_text
from metis.wire.stream_decoder import SseStreamDecoder


class _PartialBlock:
    """A wire block whose deltas are still being received."""

    __slots__ = (
        "arguments",
        "input_keys",
        "is_closed",
        "is_reported",
        "kind",
        "original_form",
        "string_pieces",
        "text_pieces",
        "thinking_pieces",
        "tool_use_id",
        "wire",
    )

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.kind = str(wire.get("type"))
        # A plain start contains nothing beyond its event, so that it need not be stored.
        self.original_form = None if _is_plain_start(wire) else _copy(wire)
        self.is_reported = False
        """Whether an event for the start of the block has been appended."""
        self.text_pieces: list[str] = []
        self.thinking_pieces: list[str] = []
        self.arguments: list[str] = []
        self.input_keys: Wire = {}
        """Additional keys in deltas of arguments."""
        self.string_pieces: dict[str, list[str]] = {}
        """The pieces of other string values, such as a signature, by key."""
        self.tool_use_id = ""
        self.is_closed = False

    @property
    def is_empty(self) -> bool:
        """Whether only the plain start of a text or thinking block has been received."""
        return self.wire in _PLAIN_STARTS and not (self.is_reported or self.is_closed)

    def has_only_start(self, wire: Wire) -> bool:
        """Whether only this start of the block has been received."""
        pieces = (self.text_pieces, self.thinking_pieces, self.arguments, self.string_pieces)
        return not (any(pieces) or self.is_closed) and self.wire == wire

    def first_form(self, delta_form: Wire | None = None) -> Wire | None:
        """Return the original form for an event: that of the block start, for its first event only.

        `delta_form` contains unusual keys of the delta itself, which any event may carry.
        """
        if self.is_reported:
            return delta_form
        self.is_reported = True
        if delta_form is None or self.original_form is None:
            return self.original_form or delta_form
        return {**self.original_form, **delta_form}

    def add(self, delta: Mapping[str, Any]) -> None:
        """Add a delta: strings and citations are appended, other values are replaced."""
        for key, value in delta.items():
            if key == "type":
                continue
            if key == "citation":
                self._list("citations").append(value)
            elif key == "text" and isinstance(value, str):
                self.text_pieces.append(value)
            elif key == "thinking" and isinstance(value, str):
                self.thinking_pieces.append(value)
            elif isinstance(value, str):
                self.string_pieces.setdefault(key, []).append(value)
            else:
                self.wire[key] = value

    def add_input_keys(self, keys: Wire) -> None:
        """Add the other keys of a delta of arguments: strings are appended, others replaced."""
        for key, value in keys.items():
            text = maybe_text(self.input_keys.get(key)) or ""
            self.input_keys[key] = text + value if isinstance(value, str) else value

    def _list(self, key: str) -> list[Any]:
        """Return the list of a key, which may be extended in place."""
        value = self.wire.get(key)
        if not isinstance(value, list):
            value = self.wire[key] = list[Any]()
        return maybe_list(value)

    def to_wire(self) -> Wire:
        """Return the block in the form of a plain response."""
        wire = dict(self.wire)
        for key, pieces in self.string_pieces.items():
            wire[key] = (maybe_text(wire.get(key)) or "") + "".join(pieces)
        if self.text_pieces:
            wire["text"] = (maybe_text(wire.get("text")) or "") + "".join(self.text_pieces)
        if self.thinking_pieces:
            wire["thinking"] = (maybe_text(wire.get("thinking")) or "") + "".join(
                self.thinking_pieces
            )
        if self.arguments:
            wire["input"] = parse_arguments("".join(self.arguments))[0]
        return wire


class AnthropicStreamDecoder(SseStreamDecoder):
    """Turns the bytes of one streamed response into events."""

    def __init__(self, context: RequestContext) -> None:
        super().__init__(context)
        self._body: Wire = {}
        self._blocks: dict[int, _PartialBlock] = {}
        self._call_counts: dict[str, int] = {}
        self._newest = 0
        """The highest index of a block."""
        self._moved: dict[int, int] = {}
        """The index in our events of a block whose wire index an earlier block has used."""

    def _early_end_error(self) -> ProviderError:
        if not self._has_started and self._head.strip():
            wire = read_error(self._head)
            if has_failed(self._context) or wire.get("type") == "error":
                return decode_error(wire, self._context.status)
        return super()._early_end_error()

    def _decode_frame(self, name: bytes, data: bytes, events: list[StreamEvent]) -> None:
        # An unreadable line before the start belongs to a body that is not a stream.
        if name != UNREADABLE or self._has_started:
            self._decode_event(data, events)

    def _decode_event(self, data: bytes, events: list[StreamEvent]) -> None:
        """Decode an event; unknown types are skipped, as Anthropic's documentation requires."""
        if self._end is not None:
            return
        wire = self._read_event(data, events)
        kind = "" if wire is None else maybe_text(wire.get("type")) or ""
        handler = self._handlers.get(kind)
        if wire is None or handler is None:
            return
        if not self._has_started and kind not in ("message_start", "error"):
            # Some compatible hosts omit `message_start`.
            self._begin(events, self._context.model, None, PROTOCOL, {})
        handler(self, wire, events)

    def _on_message_start(self, wire: Wire, events: list[StreamEvent]) -> None:
        body = dict(maybe_object(wire.get("message")))
        if self._body or self._blocks:
            if body.get("id") != self._body.get("id"):
                # A proxy retried upstream after the client had received part of a response (T133).
                self._fail(NetworkError("another response began in the same stream"), events)
            return
        self._body = body
        model = self._context.model or maybe_text(body.get("model"))
        # A copy, because later events change the body and its usage in place.
        self._begin(events, model, maybe_text(body.get("id")), PROTOCOL, _copy(body))
        self._add_usage(decode_usage(body.get("usage"), self._context), events)

    def _on_block_start(self, wire: Wire, events: list[StreamEvent]) -> None:
        """Start a block, and append the event for content that its start already contains."""
        start = dict(maybe_object(wire.get("content_block")))
        index = _index(wire, len(self._blocks))
        earlier = self._blocks.get(index)
        if earlier is not None and earlier.has_only_start(start):
            return  # a second call with the same id would be another call
        # Some proxies send the start of a block twice, the first time without content.
        is_repeated = earlier is not None and earlier.is_empty
        if not is_repeated:
            self._report_unclosed(events)
            index = self._new_index(index, events)
        block = self._new_block(index, start)
        match block.wire:
            case {"type": "tool_use", "id": str(wire_id), "name": str(name)}:
                call = tool_use_id_of(
                    self._context, self._body, self._message_id, wire_id, self._call_counts
                )
                block.tool_use_id = call
                form = block.first_form()
                events.append(ToolUseStart(self._message_id, index, call, name, wire_id, form))
            case {"type": "text", "text": str(text)} if text:
                events.append(TextDelta(self._message_id, index, text, block.first_form()))
            case {"type": "thinking", "thinking": str(text)} if text:
                events.append(self._thinking(index, block, text))
            case _:
                pass

    def _new_index(self, index: int, events: list[StreamEvent]) -> int:
        """Return the index in our events of a block that starts.

        A server may start two blocks with the same index. Without a new index the second block
        would replace the first, whose deltas the client has already received.
        """
        self._moved.pop(index, None)
        block = self._blocks.get(index)
        if block is None:
            return index
        self._close_block(index, events)
        block.is_reported = False  # the fast path leaves deltas of such blocks to this class
        self._moved[index] = self._newest + 1
        return self._newest + 1

    def _new_block(self, index: int, wire: Wire) -> _PartialBlock:
        if wire.get("type") == "tool_use":
            self._meter.add_call()
        else:
            self._meter.add_block()
        block = self._blocks[index] = _PartialBlock(wire)
        self._newest = max(self._newest, index)
        return block

    def _on_block_delta(self, wire: Wire, events: list[StreamEvent]) -> None:
        """Append the event of a delta, and add the delta to its block."""
        index, delta = _index(wire, self._newest), maybe_object(wire.get("delta"))
        if self._moved:
            index = self._moved.get(index, index)
        block = self._blocks.get(index)
        if block is None:
            # Some hosts send deltas without the start of their block.
            block = self._new_block(index, _start_for(delta))
        kind = block.kind
        text_key = _TEXT_KEYS.get(kind)
        is_text = delta.get("type") != "input_json_delta"
        if is_text and text_key is not None and text_key not in block.wire:
            block.wire[text_key] = ""  # some hosts omit the empty text in the start
        if block.is_closed and kind not in _STREAMED_TYPES:
            return  # its event contains the complete block
        form = _unusual_keys(delta, kind)
        if kind == "text":
            text, cited = maybe_text(delta.get("text")), _citations(delta)
            if text is not None or cited or form is not None:
                first = block.first_form(form)
                events.append(TextDelta(self._message_id, index, text or "", first, cited))
        elif kind == "thinking":
            texts = (maybe_text(delta.get(key)) for key in ("thinking", "signature"))
            thought, signature = texts
            if thought is not None or signature is not None or form is not None:
                events.append(self._thinking(index, block, thought or "", signature, form))
        elif self._add_input_delta(index, block, delta, form, events):
            return
        block.add(delta)

    def _add_input_delta(
        self,
        index: int,
        block: _PartialBlock,
        delta: Wire,
        form: Wire | None,
        events: list[StreamEvent],
    ) -> bool:
        """Add the arguments of a delta; return False if it is not a delta of arguments."""
        if form is not None:
            block.add_input_keys(form["delta"])
        text = maybe_text(delta.get("partial_json"))
        if delta.get("type") != "input_json_delta" or text is None:
            return False
        self._add_input(index, block, text, events)
        # Other types of blocks with arguments, such as `server_tool_use`, have no such form.
        if form is not None or block.kind not in _DELTA_KEYS:
            block.add({key: value for key, value in delta.items() if key != "partial_json"})
        return True

    def _thinking(
        self,
        index: int,
        block: _PartialBlock,
        text: str,
        signature: str | None = None,
        delta_form: Wire | None = None,
    ) -> ThinkingDelta:
        form = block.first_form(delta_form)
        return ThinkingDelta(self._message_id, index, text, signature, original_form=form)

    def _add_input(
        self, index: int, block: _PartialBlock, text: str, events: list[StreamEvent]
    ) -> None:
        if block.is_closed or block.kind in _WITHOUT_INPUT:
            return
        block.arguments.append(text)
        self._meter.add_arguments(block, len(text))
        if block.tool_use_id:
            events.append(ToolUseInputDelta(self._message_id, index, block.tool_use_id, text))

    def _on_block_stop(self, wire: Wire, events: list[StreamEvent]) -> None:
        index = _index(wire, self._newest)
        self._close_block(self._moved.get(index, index), events)

    def _close_block(self, index: int, events: list[StreamEvent]) -> None:
        """Close a block, and append its end event or the event of a block without deltas."""
        block = self._blocks.get(index)
        if block is None or block.is_closed:
            return
        block.is_closed = True
        decoded = decode_non_result(block.to_wire())
        if block.tool_use_id:
            arguments, invalid = parse_arguments("".join(block.arguments))
            # Some hosts send all arguments in the start of a call, without deltas.
            arguments = arguments or maybe_object(block.wire.get("input"))
            form = {"delta": block.input_keys} if block.input_keys else None
            end = ToolUseEnd(self._message_id, index, block.tool_use_id, arguments, invalid, form)
            events.append(end)
        elif not isinstance(decoded, TextBlock | ThinkingBlock | ToolUseBlock):
            events.append(BlockAdded(self._message_id, index, decoded, block.to_wire()))
        elif not block.is_reported and type(decoded) is TextBlock:
            # A block without deltas is part of the message, so it needs an event, too.
            events.append(TextDelta(self._message_id, index, "", block.first_form()))
        elif not block.is_reported and type(decoded) is ThinkingBlock:
            events.append(self._thinking(index, block, "", decoded.signature or None))

    def _on_message_delta(self, wire: Wire, events: list[StreamEvent]) -> None:
        late = {**wire, **maybe_object(wire.get("delta"))}
        for key, value in late.items():
            # `type` is that of the event, and `message_start` contains the id and the role.
            if key not in _EVENT_KEYS and not (key in _NAME_KEYS and key in self._body):
                self._body[key] = value
        # `message_start` and `message_delta` both contain totals: the latest non-null value of each
        # field replaces the earlier one; adding them would count the prompt twice (T130).
        if not isinstance(self._body.get("usage"), dict):
            self._body["usage"] = {}
        usage = maybe_object(self._body["usage"])
        for name, count in maybe_object(wire.get("usage")).items():
            if count is not None or name not in usage:
                usage[name] = count
        self._add_usage(decode_usage(usage, self._context), events)

    def _on_message_stop(self, wire: Wire, events: list[StreamEvent]) -> None:
        if "delta" in wire or "usage" in wire:
            self._on_message_delta(wire, events)
        # Bedrock adds `amazon-bedrock-invocationMetrics` to this event.
        self._body |= {key: value for key, value in wire.items() if key not in _EVENT_KEYS}
        self._report_unclosed(events)
        self._complete(events)

    def _report_unclosed(self, events: list[StreamEvent]) -> None:
        """Close the newest block if it has no event yet and the host omitted its stop event."""
        block = self._blocks.get(self._newest)
        if block is None or block.is_closed:
            return
        if block.kind not in _STREAMED_TYPES or not block.is_reported:
            self._close_block(self._newest, events)

    def _fail(self, error: ProviderError, events: list[StreamEvent]) -> None:
        self._report_unclosed(events)
        super()._fail(error, events)

    def _on_error(self, wire: Wire, events: list[StreamEvent]) -> None:
        self._fail(decode_error(wire, self._context.status), events)

    def _build_message(self, status: MessageStatus) -> Message:
        blocks = [self._blocks[index] for index in sorted(self._blocks)]
        body = {**self._body, "content": [block.to_wire() for block in blocks]}
        message = decode_body(body, self._context, message_id=self._message_id, status=status)
        arguments = [block.arguments for block in blocks]
        return mark_invalid_calls(message, arguments) if any(arguments) else message

    # A table of the class: bound methods in each decoder would be reference cycles, and an ended
    # stream would stay in memory until a collection of the oldest generation.
    _handlers: ClassVar[Mapping[str, Callable[[Any, Wire, list[StreamEvent]], None]]] = {
        "message_start": _on_message_start,
        "content_block_start": _on_block_start,
        "content_block_delta": _on_block_delta,
        "content_block_stop": _on_block_stop,
        "message_delta": _on_message_delta,
        "message_stop": _on_message_stop,
        "error": _on_error,
    }


_PLAIN_STARTS: tuple[Wire, ...] = (
    {"type": "text", "text": ""},
    {"type": "thinking", "thinking": "", "signature": ""},
)
_CALL_KEYS = {"type", "id", "name", "input"}
_TEXT_KEYS = {"text": "text", "thinking": "thinking"}
_WITHOUT_INPUT = frozenset({"text", "thinking", "redacted_thinking", "compaction"})
_STREAMED_TYPES = ("text", "thinking", "tool_use")
"""The types of blocks whose deltas are events."""


_EVENT_KEYS = frozenset({"type", "delta", "usage"})
_NAME_KEYS = frozenset({"id", "role"})
_DELTA_KEYS: Mapping[str, Mapping[str, type]] = {
    "text": {"text": str, "citation": dict},
    "thinking": {"thinking": str, "signature": str},
    "tool_use": {"partial_json": str},
}
"""Per type of block the keys of deltas that events have a field for."""


def _unusual_keys(delta: Wire, kind: str) -> Wire | None:
    """Return the keys of a delta that events have no field for, as `{"delta": …}`, or None."""
    usual = _DELTA_KEYS.get(kind)
    if usual is None:
        return None  # the event of such a block contains the complete block
    keys = {
        key: value
        for key, value in delta.items()
        if key != "type" and not (key in usual and isinstance(value, usual[key]))
    }
    return {"delta": keys} if keys else None


def _start_for(delta: Wire) -> Wire:
    """Return the start of a block that a host has left out."""
    if "thinking" in delta or "signature" in delta:
        return dict(_PLAIN_STARTS[1])
    if delta.get("type") == "compaction_delta":
        return {"type": "compaction", "content": None}
    return dict(_PLAIN_STARTS[0])


def _citations(delta: Wire) -> tuple[Citation, ...]:
    citation = delta.get("citation")
    return (decode_citation(maybe_object(citation)),) if isinstance(citation, dict) else ()


def _is_plain_start(wire: Wire) -> bool:
    """Whether the start of a block has the form that the stream encoder writes."""
    return wire in _PLAIN_STARTS or (wire.get("type") == "tool_use" and wire.keys() == _CALL_KEYS)


def _copy(wire: Wire) -> Wire:
    """Copy an object and its direct lists and objects, which later events extend in place."""
    return {
        key: value.copy() if isinstance(value, dict | list) else value
        for key, value in wire.items()
    }


def _index(wire: Wire, default: int) -> int:
    """Return the index of a block event, or `default` if a server omits it."""
    index = maybe_count(wire.get("index"))
    return default if index is None else index
