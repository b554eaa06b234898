"""Stream encoder of Anthropic Messages: stream events in, server-sent events out."""

from collections.abc import Mapping
from typing import Any

import msgspec

from metis.canonical.errors import ProviderError
from metis.streaming import (
    BlockAdded,
    MessageComplete,
    MessageStart,
    TextDelta,
    ThinkingDelta,
    ToolUseStart,
)
from metis.wire.anthropic.blocks import PROTOCOL, WIRE_ID_PREFIX, encode_block
from metis.wire.anthropic.errors import encode_error
from metis.wire.anthropic.response import encode_envelope, encode_stop_reason, encode_usage
from metis.wire.json_access import Wire, maybe_object
from metis.wire.original_form import original_form_of
from metis.wire.response import model_name
from metis.wire.stream_encoder import BlockStreamEncoder
from metis.wire.tool_ids import derived_id

_write = msgspec.json.Encoder().encode


class AnthropicStreamEncoder(BlockStreamEncoder):
    """Turns the events of one response into the bytes of a stream."""

    protocol = PROTOCOL
    wire_id_prefix = WIRE_ID_PREFIX

    def _message_start(self, event: MessageStart) -> bytes:
        super()._message_start(event)
        return self._encode_message_start(event.message_id, event.response_id, event.model)

    def _text(self, event: TextDelta) -> bytes:
        start = self._open_block(event, {"type": "text", "text": ""})
        delta = {"type": "text_delta", "text": event.text}
        return start + self._encode_delta(event.content_block_index, delta)

    def _thinking(self, event: ThinkingDelta) -> bytes:
        index = event.content_block_index
        encoded = self._open_block(event, {"type": "thinking", "thinking": "", "signature": ""})
        if event.text:
            delta = {"type": "thinking_delta", "thinking": event.text}
            encoded += self._encode_delta(index, delta)
        if event.signature is not None:
            delta = {"type": "signature_delta", "signature": event.signature}
            encoded += self._encode_delta(index, delta)
        return encoded

    def _tool_start(self, event: ToolUseStart) -> bytes:
        self._has_input = False
        wire_id = self._wire_id(event)
        call: Wire = {"type": "tool_use", "id": wire_id, "name": event.tool_name, "input": {}}
        return self._open_block(event, call)

    def _block(self, event: BlockAdded) -> bytes:
        block = encode_block(event.block, lambda call: derived_id(call, WIRE_ID_PREFIX))
        if block is None:
            return b""
        index = event.content_block_index
        encoded = self._encode_start(event) + self._close_block()
        return encoded + self._encode_block_start(index, block) + self._encode_block_stop(index)

    def _start_late(self, event: MessageComplete) -> bytes:
        if self._has_started:
            return b""
        envelope = encode_envelope(event.message, self._context)
        return self._encode_message_start(event.message.id, envelope["id"], envelope["model"])

    def _encode_end(self, event: MessageComplete) -> bytes:
        response = maybe_object(original_form_of(event.message, PROTOCOL).get("response"))
        delta = {
            "stop_reason": encode_stop_reason(event.stop_reason),
            "stop_sequence": response.get("stop_sequence"),
        }
        body = {"type": "message_delta", "delta": delta, "usage": encode_usage(self._usage)}
        return (
            self._encode_citations(event.message)
            + self._close_block()
            + _frame("message_delta", body)
            + _frame("message_stop", {"type": "message_stop"})
        )

    def _encode_failure(self, error: ProviderError) -> bytes:
        _, body = encode_error(error)
        return b"event: error\ndata: %b\n\n" % body

    def _encode_start(self, event: Any) -> bytes:
        return (
            b"" if self._has_started else self._encode_message_start(event.message_id, None, None)
        )

    def _encode_message_start(
        self, message_id: str, response_id: str | None, model: str | None
    ) -> bytes:
        self._has_started = True
        message: Wire = {
            "id": response_id or f"msg_{message_id}",
            "type": "message",
            "role": "assistant",
            "model": model_name(self._context.model or model),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            # SDKs read the usage of the prompt from here, and fail without the object.
            "usage": encode_usage(self._usage),
        }
        return _frame("message_start", {"type": "message_start", "message": message})

    def _encode_block_start(self, index: int, block: Any) -> bytes:
        body = {"type": "content_block_start", "index": index, "content_block": block}
        return _frame("content_block_start", body)

    def _encode_block_stop(self, index: int) -> bytes:
        return _frame("content_block_stop", {"type": "content_block_stop", "index": index})

    def _encode_delta(self, index: int, delta: Wire) -> bytes:
        body = {"type": "content_block_delta", "index": index, "delta": delta}
        return b"event: content_block_delta\ndata: %b\n\n" % _write(body)

    def _input_delta(self, text: str) -> Wire:
        return {"type": "input_json_delta", "partial_json": text}

    def _citation_delta(self, citation: Mapping[str, Any]) -> Wire:
        return {"type": "citations_delta", "citation": citation}


def _frame(name: str, body: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _write(body))
