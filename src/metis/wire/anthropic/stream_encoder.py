"""Streams of Anthropic Messages, from events to bytes."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from metis.canonical.blocks import TextBlock
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
from metis.wire.anthropic.blocks import PROTOCOL, encode_block
from metis.wire.anthropic.errors import encode_error
from metis.wire.anthropic.response import encode_envelope, encode_stop_reason, encode_usage
from metis.wire.call import RequestContext
from metis.wire.errors import STREAM_CUT_OFF, error_of_event, failed_stop_error, is_failed_stop
from metis.wire.json_access import Wire, maybe_object
from metis.wire.original_form import original_form_of
from metis.wire.tool_ids import derived_id

_write = msgspec.json.Encoder().encode


class AnthropicStreamEncoder:
    """Writes the events of an answer as this protocol streams them."""

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self._open: int | None = None
        self._has_started = False
        self._has_ended = False
        self._has_input = False
        self._has_own_ids = False
        self._usage: Wire = {"input_tokens": 0, "output_tokens": 0}
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
        return self._start(event.message_id, event.response_id, event.model)

    def _text(self, event: TextDelta) -> bytes:
        start = self._begin(event, {"type": "text", "text": ""})
        return start + _delta(event, {"type": "text_delta", "text": event.text})

    def _tool_start(self, event: ToolUseStart) -> bytes:
        self._has_input = False
        own = event.provider_id if self._has_own_ids else None
        wire_id = own or derived_id(event.tool_use_id, "toolu_")
        call: Wire = {"type": "tool_use", "id": wire_id, "name": event.tool_name, "input": {}}
        return self._begin(event, call)

    def _tool_input(self, event: ToolUseInputDelta) -> bytes:
        self._check_open(event)
        self._has_input = True
        return _delta(event, {"type": "input_json_delta", "partial_json": event.partial_json})

    def _note_usage(self, event: UsageUpdate) -> bytes:
        self._usage = encode_usage(event.usage)
        return b""

    def _error(self, event: StreamError) -> bytes:
        return self._fail(error_of_event(event))

    def _fail(self, error: ProviderError) -> bytes:
        self._has_ended = True
        _, body = encode_error(error)
        return b"event: error\ndata: %b\n\n" % body

    def _check_open(self, event: ToolUseInputDelta | ToolUseEnd) -> None:
        if self._open != event.content_block_index:
            raise EncodeError(f"the call {event.tool_use_id} has not begun in this stream")

    def _start(self, message_id: str, response_id: str | None, model: str | None) -> bytes:
        self._has_started = True
        name = self._context.model or model or ""
        message: Wire = {
            "id": response_id or f"msg_{message_id}",
            "type": "message",
            "role": "assistant",
            "model": name.partition(":")[2] or name,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage,
        }
        return _frame("message_start", {"type": "message_start", "message": message})

    def _begin(self, event: Any, block: Wire) -> bytes:
        """Open the block of an event, unless it is open already."""
        index: int = event.content_block_index
        if self._open == index:
            return b""
        start = b"" if self._has_started else self._start(event.message_id, None, None)
        start += self._stop()
        self._open = index
        body = {"type": "content_block_start", "index": index, "content_block": block}
        return start + _frame("content_block_start", body)

    def _stop(self) -> bytes:
        if self._open is None:
            return b""
        body = {"type": "content_block_stop", "index": self._open}
        self._open = None
        return _frame("content_block_stop", body)

    def _thinking(self, event: ThinkingDelta) -> bytes:
        written = self._begin(event, {"type": "thinking", "thinking": "", "signature": ""})
        if event.text:
            written += _delta(event, {"type": "thinking_delta", "thinking": event.text})
        if event.signature is not None:
            written += _delta(event, {"type": "signature_delta", "signature": event.signature})
        return written

    def _tool_end(self, event: ToolUseEnd) -> bytes:
        self._check_open(event)
        written = b""
        if (event.final_input or event.invalid) and not self._has_input:
            text = event.invalid.raw if event.invalid else _write(event.final_input).decode()
            written = _delta(event, {"type": "input_json_delta", "partial_json": text})
        return written + self._stop()

    def _block(self, event: BlockAdded) -> bytes:
        wire = encode_block(event.block, lambda ours: derived_id(ours, "toolu_"))
        if wire is None:
            return b""
        body: Wire = {
            "type": "content_block_start",
            "index": event.content_block_index,
            "content_block": wire,
        }
        start = b"" if self._has_started else self._start(event.message_id, None, None)
        start += self._stop()
        self._open = event.content_block_index
        return start + _frame("content_block_start", body) + self._stop()

    def _complete(self, event: MessageComplete) -> bytes:
        message = event.message
        start = b""
        if not self._has_started:
            envelope = encode_envelope(message, self._context)
            start = self._start(message.id, envelope["id"], envelope["model"])
        if message.metadata.usage is not None:
            self._usage = encode_usage(message.metadata.usage)
        if is_failed_stop(event.stop_reason):
            return start + self._fail(failed_stop_error(event.stop_reason))
        return start + self._close(event, message)

    def _close(self, event: MessageComplete, message: Message) -> bytes:
        self._has_ended = True
        told = maybe_object(original_form_of(message, PROTOCOL).get("response"))
        delta = {
            "stop_reason": encode_stop_reason(event.stop_reason),
            "stop_sequence": told.get("stop_sequence"),
        }
        body = {"type": "message_delta", "delta": delta, "usage": self._usage}
        return (
            self._cite(message)
            + self._stop()
            + _frame("message_delta", body)
            + _frame("message_stop", {"type": "message_stop"})
        )

    def _cite(self, message: Message) -> bytes:
        """What the text that is still open cites."""
        index = self._open
        block = message.content[index] if index is not None and index < len(message.content) else 0
        if type(block) is not TextBlock:
            return b""
        notes = (note.raw for note in block.citations if note.raw is not None)
        return b"".join(
            _delta_at(index, {"type": "citations_delta", "citation": note}) for note in notes
        )


def _delta(event: Any, delta: Wire) -> bytes:
    return _delta_at(event.content_block_index, delta)


def _delta_at(index: int | None, delta: Wire) -> bytes:
    body = {"type": "content_block_delta", "index": index, "delta": delta}
    return b"event: content_block_delta\ndata: %b\n\n" % _write(body)


def _frame(name: str, body: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _write(body))
