"""Stream decoder of Bedrock Converse: event-stream frames in, stream events out.

The stop reason is sent before the usage: the response is complete when both have been received, or
when the bytes end after the stop reason.
"""

import base64
import binascii
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

from metis.canonical.blocks import Citation, TextBlock, ThinkingBlock, ToolUseBlock
from metis.canonical.errors import NetworkError, ProviderError, ResponseLimitError
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
from metis.streaming.aws_event_stream import EventFrame, EventStreamParser
from metis.wire.bedrock_converse.blocks import CLIENT_CALL, PROTOCOL, decode_block
from metis.wire.bedrock_converse.media import decode_citation
from metis.wire.bedrock_converse.response import (
    decode_body,
    decode_error,
    decode_usage,
    refine_stream_error,
    tool_use_id_of,
)
from metis.wire.call import RequestContext
from metis.wire.errors import has_failed, read_error
from metis.wire.json_access import Wire, maybe_count, maybe_list, maybe_object, maybe_text
from metis.wire.stream_decoder import BaseStreamDecoder

BLOCK_DELTA = "contentBlockDelta"
"""The name of the event with a delta of a block."""
_PADDING = "p"
_BlockKind = Literal["text", "thinking", "call", "result", "image", "other"]
_KINDS: dict[str, _BlockKind] = {
    "text": "text",
    "citation": "text",
    "reasoningContent": "thinking",
    "toolUse": "call",
    "toolResult": "result",
    "image": "image",
}


def _kind_of(wire: Wire) -> _BlockKind:
    """Return the kind of block that a start or a delta belongs to."""
    return _KINDS.get(next(iter(wire), ""), "other")


class _Pieces(list[str]):
    """The pieces of a text, joined only at the end: repeated concatenation would be quadratic."""


class _PartialBlock:
    """A wire block whose deltas are still being received."""

    __slots__ = (
        "arguments",
        "citations",
        "index",
        "inner",
        "kind",
        "other",
        "results",
        "sealed",
        "signatures",
        "start",
        "texts",
        "tool_use_id",
    )

    def __init__(self, kind: _BlockKind, index: int, start: Wire) -> None:
        self.kind: _BlockKind = kind
        self.index = index
        self.start = start
        self.texts: list[str] = []
        self.arguments: list[str] = []
        self.citations: list[Any] = []
        self.results: list[Any] = []
        self.sealed: list[str] = []
        self.signatures: list[str] = []
        self.inner: Wire = {}
        """The inner keys of deltas that have no field in our events."""
        self.other: Wire = {}
        """Deltas of unknown kinds."""
        self.tool_use_id = ""

    def add(self, delta: Wire) -> None:
        """Add a delta of any kind."""
        for key, value in delta.items():
            match key, value:
                case "text", str():
                    self.texts.append(value)
                case "citation", dict():
                    self.citations.append(value)
                case "toolUse", dict():
                    call = maybe_object(value)
                    self.arguments += filter(None, (maybe_text(call.get("input")),))
                    self.inner |= {name: item for name, item in call.items() if name != "input"}
                case "reasoningContent", dict():
                    self._add_thinking(maybe_object(value))
                case "toolResult", list():
                    self._add_results(maybe_list(value))
                case "image", dict():
                    self.inner |= maybe_object(value)
                case _ if key not in _KINDS:
                    self.other[key] = value
                case _:
                    pass  # a known key with a value of a wrong type

    def _add_thinking(self, delta: Wire) -> None:
        # Text, signature and redacted content may be in separate deltas or in one (T42).
        text, sealed = maybe_text(delta.get("text")), maybe_text(delta.get("redactedContent"))
        if text is not None:
            self.texts.append(text)
        if sealed is not None:
            self.sealed.append(sealed)
        signature = maybe_text(delta.get("signature"))
        if signature is not None:
            self.signatures.append(signature)
        self.inner |= {key: value for key, value in delta.items() if key not in _THINKING_KEYS}

    def _add_results(self, parts: list[Any]) -> None:
        for part in parts:
            text = maybe_text(maybe_object(part).get("text"))
            if text is None:
                self.results.append(part)
            elif self.results and isinstance(self.results[-1], _Pieces):
                self.results[-1].append(text)
            else:
                self.results.append(_Pieces([text]))

    def to_wire(self) -> Wire:
        """Return the block in the form of a plain response."""
        return {**self._known_keys(), **self.other}

    def _known_keys(self) -> Wire:
        """Return the block without keys of deltas that this decoder does not interpret."""
        match self.kind:
            case "text":
                text = {"text": "".join(self.texts)}
                cited = {"citations": self.citations, "content": [text]}
                return {"citationsContent": cited} if self.citations else text
            case "thinking":
                return {"reasoningContent": self._reasoning()}
            case "call":
                call = maybe_object(self.start.get("toolUse"))
                arguments, _ = parse_arguments("".join(self.arguments))
                return {"toolUse": {**call, **self.inner, "input": arguments}}
            case "image":
                return {"image": {**maybe_object(self.start.get("image")), **self.inner}}
            case "result":
                result = maybe_object(self.start.get("toolResult"))
                content = [
                    {"text": "".join(part)} if isinstance(part, _Pieces) else part
                    for part in self.results
                ]
                return {"toolResult": {**result, "content": content}}
            case _:
                return self.start

    def _reasoning(self) -> Wire:
        wire: Wire = dict(self.inner)
        if self.texts or self.signatures:
            wire["reasoningText"] = {"text": "".join(self.texts)}
            if self.signatures:
                wire["reasoningText"]["signature"] = "".join(self.signatures)
        if self.sealed:
            wire["redactedContent"] = _join_base64(self.sealed)
        return wire


def _join_base64(pieces: list[str]) -> str:
    """Join pieces of binary data that are each encoded as base64 separately."""
    if len(pieces) == 1:
        return pieces[0]
    try:
        return base64.b64encode(b"".join(map(base64.b64decode, pieces))).decode()
    except (binascii.Error, ValueError):
        return "".join(pieces)


class ConverseStreamDecoder(BaseStreamDecoder):
    """Turns the bytes of one streamed response into events."""

    def __init__(self, context: RequestContext) -> None:
        super().__init__(context)
        self._frames = EventStreamParser(context.limits)
        self._body: Wire = {}
        self._blocks: list[_PartialBlock] = []
        self._call_counts: dict[str, int] = {}
        self._open: dict[int, _PartialBlock] = {}
        """The blocks without a stop event, by their wire index."""
        self._last_index = -1
        """The wire index of the block that started last."""

    def _decode_bytes(self, chunk: bytes, events: list[StreamEvent]) -> None:
        if not self._has_started:
            self._store_head(chunk)
        for frame in self._frames.feed(chunk):
            if self._end is not None:
                break
            self._decode_event(frame, events)
        # The parser stores an exception frame as `error` and reads nothing after it.
        error = self._frames.error
        if error is None or self._end is not None:
            return
        if isinstance(error, ResponseLimitError):
            self._end_at_limit(error, events)
        elif error.code is not None:
            self._fail(refine_stream_error(error), events)
        elif self._has_started:
            # Bytes that are not a frame. Before the start they may be an error body: see
            # `_early_end_error`.
            self._fail(error, events)

    def _decode_remaining(self, events: list[StreamEvent]) -> None:
        self._frames.finish()
        if self._end is None and self._frames.error is None and "stopReason" in self._body:
            self._complete(events)

    def _early_end_error(self) -> ProviderError:
        if not self._has_started and self._head.strip():
            wire = read_error(self._head)
            if has_failed(self._context) or "__type" in wire or self._head.lstrip()[:1] == b"{":
                return decode_error(wire, self._context.status)
        return self._frames.error or super()._early_end_error()

    def _decode_event(self, frame: EventFrame, events: list[StreamEvent]) -> None:
        handler = self._handlers.get(frame.name)
        wire = None if handler is None else self._read_event(frame.payload, events)
        if handler is not None and wire is not None:
            # AWS pads events, so that their size does not reveal the length of a token.
            wire.pop(_PADDING, None)
            handler(self, wire, events)

    def _begin_response(self, events: list[StreamEvent]) -> None:
        # No event of the stream names the model.
        model = self._context.model or f"{self._context.provider or PROTOCOL}:unknown"
        # A host that leaves the start out means the same.
        output = self._body.setdefault("output", {"message": {"role": "assistant"}})
        form = maybe_object(maybe_object(output).get("message"))
        self._begin(events, model, protocol=PROTOCOL, original_form=form)

    def _on_message_start(self, wire: Wire, events: list[StreamEvent]) -> None:
        if self._has_started:
            # A proxy retried upstream after the client had received part of a response (T133).
            self._fail(NetworkError("another response began in the same stream"), events)
            return
        self._body["output"] = {"message": {"role": "assistant", **wire}}
        self._begin_response(events)

    def _on_block_start(self, wire: Wire, events: list[StreamEvent]) -> None:
        start = maybe_object(wire.get("start"))
        if start:
            self._start_block(_index(wire), _kind_of(start), start, events)
        else:  # the first delta determines the kind of block
            self._close_block(_index(wire), events)

    def _start_block(
        self, index: int, kind: _BlockKind, start: Wire, events: list[StreamEvent]
    ) -> _PartialBlock:
        """Start a block; the block before it is closed, even without a stop event (T124)."""
        self._begin_response(events)
        self._close_block(index, events)
        self._close_last(events)
        if kind == "call":
            self._meter.add_call()
        else:
            self._meter.add_block()
        block = _PartialBlock(kind, len(self._blocks), start)
        self._blocks.append(block)
        self._open[index], self._last_index = block, index
        match start.get("toolUse"):
            case {"toolUseId": str(wire_id), "name": str(name), **other} if _is_client_call(other):
                call = tool_use_id_of(self._context, self._message_id, wire_id, self._call_counts)
                block.tool_use_id = call
                form = start if other else None
                event = ToolUseStart(self._message_id, block.index, call, name, wire_id, form)
                events.append(event)
            case _:
                pass
        return block

    def _close_last(self, events: list[StreamEvent]) -> None:
        """End the last block if it is open, unless arguments of a call are missing."""
        last = self._open.get(self._last_index)
        if last is None:
            return
        is_missing = last.tool_use_id and (
            not last.arguments or parse_arguments("".join(last.arguments))[1] is not None
        )
        if not is_missing:
            self._close_block(self._last_index, events)

    def _on_block_delta(self, wire: Wire, events: list[StreamEvent]) -> None:
        """Append the event of a delta, and add the delta to its block, which it may start."""
        index, delta = _index(wire), maybe_object(wire.get("delta"))
        if not delta:
            return
        kind, block = _kind_of(delta), self._open.get(index)
        if block is None or kind not in (block.kind, "other"):
            block = self._start_block(index, kind, {}, events)
        match delta:
            case {"text": str(text)} if block.kind == "text":
                form = _other_keys(delta)
                cited = _citations(delta)
                events.append(TextDelta(self._message_id, block.index, text, form, cited))
            case {"citation": {}} if block.kind == "text":
                form, cited = _other_keys(delta), _citations(delta)
                events.append(TextDelta(self._message_id, block.index, "", form, cited))
            case {"toolUse": {"input": str(text)}} if block.tool_use_id:
                self._meter.add_arguments(block, len(text))
                call = block.tool_use_id
                events.append(ToolUseInputDelta(self._message_id, block.index, call, text))
            case {"reasoningContent": {**thinking}} if block.kind == "thinking":
                text, signature = (maybe_text(thinking.get(key)) for key in ("text", "signature"))
                # Sealed content is reported when it is complete, with all keys.
                form = None if "redactedContent" in thinking else _other_keys(delta)
                if text is not None or signature is not None or form is not None:
                    event = ThinkingDelta(
                        self._message_id, block.index, text or "", signature, original_form=form
                    )
                    events.append(event)
            case _ if (form := _other_keys(delta)) and block.kind == "text":
                events.append(TextDelta(self._message_id, block.index, "", form))
            case _ if form is not None and block.kind == "thinking":
                event = ThinkingDelta(self._message_id, block.index, "", original_form=form)
                events.append(event)
            case _:
                pass
        block.add(delta)

    def _add_input(self, block: _PartialBlock, text: str, events: list[StreamEvent]) -> None:
        block.arguments.append(text)
        self._meter.add_arguments(block, len(text))
        if block.tool_use_id:
            event = ToolUseInputDelta(self._message_id, block.index, block.tool_use_id, text)
            events.append(event)

    def _on_block_stop(self, wire: Wire, events: list[StreamEvent]) -> None:
        index = _index(wire)
        if index not in self._open and self._open:
            return  # the stop of an unknown block does not end the open one
        if index not in self._open:
            # AWS sends only a stop event for an empty text block (T39).
            block = self._start_block(index, "text", {}, events)
            events.append(TextDelta(self._message_id, block.index, ""))
        self._close_block(index, events)

    def _close_block(self, index: int, events: list[StreamEvent]) -> None:
        block = self._open.pop(index, None)
        if block is None:
            return
        if block.tool_use_id:
            arguments, invalid = parse_arguments("".join(block.arguments))
            other = {**block.other}
            if block.inner:
                other["toolUse"] = block.inner
            form = {"delta": other} if other else None
            call = block.tool_use_id
            events.append(ToolUseEnd(self._message_id, block.index, call, arguments, invalid, form))
            return
        wire = block.to_wire()
        decoded = decode_block(wire, is_response=True)
        if not isinstance(decoded, TextBlock | ThinkingBlock | ToolUseBlock):
            events.append(BlockAdded(self._message_id, block.index, decoded, wire))

    def _on_message_stop(self, wire: Wire, events: list[StreamEvent]) -> None:
        self._begin_response(events)
        # The key marks the end of the response even if a host omits the reason.
        self._body |= {"stopReason": None, **wire}
        if "usage" in self._body:
            self._complete(events)

    def _on_metadata(self, wire: Wire, events: list[StreamEvent]) -> None:
        self._begin_response(events)
        self._body |= wire
        self._add_usage(decode_usage(self._body, self._context), events)
        if "stopReason" in self._body:
            self._complete(events)

    def _fail(self, error: ProviderError, events: list[StreamEvent]) -> None:
        # Blocks without deltas, such as images, have no event before they are closed. Calls stay
        # open, because their arguments are truncated.
        for index in [index for index, block in self._open.items() if not block.tool_use_id]:
            self._close_block(index, events)
        super()._fail(error, events)

    def _complete(self, events: list[StreamEvent]) -> None:
        for index in [*self._open]:
            self._close_block(index, events)
        super()._complete(events)

    def _build_message(self, status: MessageStatus) -> Message:
        message = maybe_object(maybe_object(self._body.get("output")).get("message"))
        content = [block.to_wire() for block in self._blocks]
        body = {**self._body, "output": {"message": {**message, "content": content}}}
        built = decode_body(body, self._context, message_id=self._message_id, status=status)
        return mark_invalid_calls(built, (block.arguments for block in self._blocks))

    # A table of the class: bound methods in each decoder would be reference cycles, and an ended
    # stream would stay in memory until a collection of the oldest generation.
    _handlers: ClassVar[Mapping[str, Callable[[Any, Wire, list[StreamEvent]], None]]] = {
        "messageStart": _on_message_start,
        "contentBlockStart": _on_block_start,
        BLOCK_DELTA: _on_block_delta,
        "contentBlockStop": _on_block_stop,
        "messageStop": _on_message_stop,
        "metadata": _on_metadata,
    }


_THINKING_KEYS = frozenset({"text", "signature", "redactedContent"})


def _other_keys(delta: Wire) -> Wire | None:
    """Return the keys of a delta that events have no field for, as `{"delta": …}`, or None."""
    other = {key: value for key, value in delta.items() if key not in _KINDS}
    reasoning = maybe_object(delta.get("reasoningContent"))
    inner = {key: value for key, value in reasoning.items() if key not in _THINKING_KEYS}
    if inner:
        other["reasoningContent"] = inner
    return {"delta": other} if other else None


def _citations(delta: Wire) -> tuple[Citation, ...]:
    citation = delta.get("citation")
    return (decode_citation(maybe_object(citation)),) if isinstance(citation, dict) else ()


def _is_client_call(call: Mapping[str, Any]) -> bool:
    """Whether the client, not the provider, runs a call."""
    return call.get("type", CLIENT_CALL) == CLIENT_CALL


def _index(wire: Wire) -> int:
    """Return the index of a block event; 0 if a server omits it."""
    return maybe_count(wire.get("contentBlockIndex")) or 0
