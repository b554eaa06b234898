"""Streams of Bedrock Converse, from events to bytes."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from metis.canonical.blocks import (
    ContentBlock,
    OpaqueBlock,
    TextBlock,
)
from metis.canonical.errors import EncodeError, NetworkError, ProviderError
from metis.canonical.message import Message
from metis.streaming import (
    BlockAdded,
    MessageComplete,
    MessageStart,
    StreamError,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
    UsageUpdate,
)
from metis.streaming.aws_event_stream import encode_event_frame
from metis.wire.bedrock_converse.blocks import PROTOCOL, encode_block
from metis.wire.bedrock_converse.errors import error_frame
from metis.wire.bedrock_converse.history import WIRE_ID_PREFIX
from metis.wire.bedrock_converse.response import encode_envelope, encode_stop_reason, encode_usage
from metis.wire.call import RequestContext
from metis.wire.errors import STREAM_CUT_OFF, error_of_event, failed_stop_error, is_failed_stop
from metis.wire.json_access import Wire, maybe_object
from metis.wire.original_form import original_form_of
from metis.wire.tool_ids import derived_id

_AT_THE_END = ("trace", "performanceConfig", "serviceTier", "metrics")
_write = msgspec.json.Encoder().encode


class ConverseStreamEncoder:
    """Writes the events of an answer as this protocol streams them."""

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self._open: int | None = None
        self._has_started = False
        self._has_ended = False
        self._has_input = False
        self._has_own_ids = False
        self._usage: Wire = encode_usage(None)
        self._writers: Mapping[type, Callable[[Any], bytes]] = {
            MessageStart: self._message_start,
            TextDelta: self._text,
            ThinkingDelta: self._thinking,
            ToolUseStart: self._tool_start,
            ToolUseInputDelta: self._tool_input,
            ToolUseEnd: self._tool_end,
            BlockAdded: self._block,
            UsageUpdate: self._note_usage,
            MessageComplete: self._complete,
            StreamError: self._error,
        }

    def encode(self, event: StreamEvent) -> bytes:
        """The bytes for one event; some events need none, and nothing follows the end."""
        return b"" if self._has_ended else self._writers[type(event)](event)

    def finish(self) -> bytes:
        """The bytes that close the stream; one that no event has closed ends in an error."""
        return b"" if self._has_ended else self._fail(NetworkError(STREAM_CUT_OFF))

    def _message_start(self, event: MessageStart) -> bytes:
        self._has_own_ids = event.protocol == PROTOCOL
        return self._start()

    def _start(self) -> bytes:
        if self._has_started:
            return b""
        self._has_started = True
        return _frame("messageStart", {"role": "assistant"})

    def _begin(self, index: int) -> bytes:
        """Make the block of an event the open one; texts and thoughts begin without a word."""
        if self._open == index:
            return b""
        before = self._start() + self._stop()
        self._open = index
        return before

    def _stop(self) -> bytes:
        if self._open is None:
            return b""
        body = {"contentBlockIndex": self._open}
        self._open = None
        return _frame("contentBlockStop", body)

    def _text(self, event: TextDelta) -> bytes:
        index = event.content_block_index
        return self._begin(index) + _delta(index, {"text": event.text})

    def _thinking(self, event: ThinkingDelta) -> bytes:
        index = event.content_block_index
        written = self._begin(index)
        if event.text:
            written += _delta(index, {"reasoningContent": {"text": event.text}})
        if event.signature is not None:
            written += _delta(index, {"reasoningContent": {"signature": event.signature}})
        return written

    def _tool_start(self, event: ToolUseStart) -> bytes:
        self._has_input = False
        own = event.provider_id if self._has_own_ids else None
        wire_id = own or derived_id(event.tool_use_id, WIRE_ID_PREFIX)
        call = {"toolUse": {"toolUseId": wire_id, "name": event.tool_name}}
        before = self._begin(event.content_block_index)
        return before + _block_start(event.content_block_index, call)

    def _tool_input(self, event: ToolUseInputDelta) -> bytes:
        self._check_open(event)
        self._has_input = True
        return _delta(event.content_block_index, {"toolUse": {"input": event.partial_json}})

    def _tool_end(self, event: ToolUseEnd) -> bytes:
        self._check_open(event)
        written = b""
        if (event.final_input or event.invalid) and not self._has_input:
            text = event.invalid.raw if event.invalid else _write(event.final_input).decode()
            written = _delta(event.content_block_index, {"toolUse": {"input": text}})
        return written + self._stop()

    def _check_open(self, event: ToolUseInputDelta | ToolUseEnd) -> None:
        if self._open != event.content_block_index:
            raise EncodeError(f"the call {event.tool_use_id} has not begun in this stream")

    def _block(self, event: BlockAdded) -> bytes:
        index, block = event.content_block_index, event.block
        before = self._begin(index)
        return before + _whole(index, _written(block)) + self._stop()

    def _note_usage(self, event: UsageUpdate) -> bytes:
        self._usage = encode_usage(event.usage)
        return b""

    def _error(self, event: StreamError) -> bytes:
        return self._fail(error_of_event(event))

    def _fail(self, error: ProviderError) -> bytes:
        self._has_ended = True
        return error_frame(error)

    def _complete(self, event: MessageComplete) -> bytes:
        message, start = event.message, self._start()
        if message.metadata.usage is not None:
            self._usage = encode_usage(message.metadata.usage)
        if is_failed_stop(event.stop_reason):
            return start + self._fail(failed_stop_error(event.stop_reason))
        self._has_ended = True
        told = maybe_object(original_form_of(message, PROTOCOL).get("response"))
        stop: Wire = {"stopReason": encode_stop_reason(event.stop_reason)}
        if "additionalModelResponseFields" in told:
            stop["additionalModelResponseFields"] = told["additionalModelResponseFields"]
        around = {**encode_envelope(message, self._context), **told}
        last = {key: around[key] for key in _AT_THE_END if key in around}
        return (
            start
            + self._cite(message)
            + self._stop()
            + _frame("messageStop", stop)
            + _frame("metadata", {**last, "usage": self._usage})
        )

    def _cite(self, message: Message) -> bytes:
        """What the text that is still open cites."""
        index = self._open
        block = message.content[index] if index is not None and index < len(message.content) else 0
        if index is None or type(block) is not TextBlock:
            return b""
        notes = (note.raw for note in block.citations if note.raw is not None)
        return b"".join(_delta(index, {"citation": note}) for note in notes)


def _written(block: ContentBlock) -> Wire:
    """A block that comes at once, as a plain answer would hold it; empty if it would not."""
    if isinstance(block, OpaqueBlock):
        return maybe_object(block.data) if block.issuer == PROTOCOL else {}
    part = encode_block(block, lambda ours: derived_id(ours, WIRE_ID_PREFIX))
    return {} if part is None else msgspec.to_builtins(part)


def _whole(index: int, wire: Wire) -> bytes:
    """A block that comes at once: what it begins with, and the rest of it."""
    match wire:
        case {"toolUse": {"input": given, **start}}:
            text = _write(given).decode()
            begun = _block_start(index, {"toolUse": start})
            return begun + _delta(index, {"toolUse": {"input": text}})
        case {"toolResult": {"content": list(), **start}}:
            begun = _block_start(index, {"toolResult": start})
            return begun + _delta(index, {"toolResult": wire["toolResult"]["content"]})
        case {"image": {"format": str(kind), **rest}}:
            return _block_start(index, {"image": {"format": kind}}) + _delta(index, {"image": rest})
        case {"reasoningContent": {"reasoningText": {**thought}}}:
            pieces = ({"reasoningContent": {key: value}} for key, value in thought.items())
            return b"".join(_delta(index, piece) for piece in pieces)
        case {"citationsContent": {"content": list(), "citations": list()}}:
            cited = wire["citationsContent"]
            pieces = (*cited["content"], *({"citation": each} for each in cited["citations"]))
            return b"".join(_delta(index, piece) for piece in pieces)
        case _:
            return _delta(index, wire) if wire else b""


def _block_start(index: int, start: Wire) -> bytes:
    return _frame("contentBlockStart", {"contentBlockIndex": index, "start": start})


def _delta(index: int, delta: Wire) -> bytes:
    return _frame("contentBlockDelta", {"contentBlockIndex": index, "delta": delta})


def _frame(name: str, body: Any) -> bytes:
    headers = {
        ":event-type": name,
        ":content-type": "application/json",
        ":message-type": "event",
    }
    return encode_event_frame(headers, _write(body))
