"""Stream encoder of Anthropic Messages: stream events in, server-sent events out."""

from collections.abc import Mapping
from typing import Any

import msgspec

from metis.canonical.blocks import OpaqueBlock
from metis.canonical.errors import ProviderError
from metis.streaming import (
    BlockAdded,
    MessageComplete,
    MessageStart,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseStart,
)
from metis.wire.anthropic.blocks import PROTOCOL, WIRE_ID_PREFIX, encode_block
from metis.wire.anthropic.errors import encode_error
from metis.wire.anthropic.response import encode_envelope, encode_response, encode_usage
from metis.wire.call import RequestContext
from metis.wire.json_access import Wire, maybe_object
from metis.wire.response import model_name
from metis.wire.stream_encoder import BlockStreamEncoder
from metis.wire.tool_ids import derived_id

_write = msgspec.json.Encoder().encode
_END_KEYS = ("stop_reason", "stop_sequence")
_DELTA_KEYS = ("text", "thinking", "signature", "input")
"""The keys of a block that deltas carry; they are empty in its start event."""
_ENCODED_KEYS = frozenset({"content", "usage", "id", "type", "role", "model", *_END_KEYS})
"""The keys of a plain response that have a fixed place in the events of a stream."""
_OUTER_KEYS = ("context_management",)
"""The keys that `message_delta` has next to its `delta`."""

_STOP_KEYS = ("amazon-bedrock-invocationMetrics",)
"""The keys of `message_stop`, the last event."""


class AnthropicStreamEncoder(BlockStreamEncoder):
    """Turns the events of one response into the bytes of a stream."""

    protocol = PROTOCOL
    wire_id_prefix = WIRE_ID_PREFIX
    encode_response = staticmethod(encode_response)

    def __init__(self, context: RequestContext) -> None:
        super().__init__(context)
        self._start: Wire = {}
        """The `message` object of the `message_start` event."""

    def _message_start(self, event: MessageStart) -> bytes:
        super()._message_start(event)
        if not self._is_native or event.original_form is None:
            return self._encode_message_start(event.message_id, event.response_id, event.model)
        # The events of a plain response have its stop reason in the start; a stream has null there.
        end_keys = {key: None for key in _END_KEYS if key in event.original_form}
        return self._write_start({**event.original_form, "content": [], **end_keys})

    def _text(self, event: TextDelta) -> bytes:
        index = event.content_block_index
        encoded = b""
        if self._open_index != index:
            start = self._original_start(event, {"type": "text", "text": ""})
            encoded = self._open_block(event, start)
        keys = self._delta_keys(event.original_form)
        if event.text or keys:
            delta: Wire = {"type": "text_delta", "text": event.text, **keys}
            encoded += self._encode_delta(index, delta)
        if event.citations:
            encoded += self._encode_citations(index, event.citations)
        return encoded

    def _thinking(self, event: ThinkingDelta) -> bytes:
        index = event.content_block_index
        plain = {"type": "thinking", "thinking": "", "signature": ""}
        encoded = self._open_block(event, self._original_start(event, plain))
        keys = self._delta_keys(event.original_form)
        if event.text or keys:
            delta: Wire = {"type": "thinking_delta", "thinking": event.text, **keys}
            encoded += self._encode_delta(index, delta)
        if event.signature is not None:
            delta = {"type": "signature_delta", "signature": event.signature}
            encoded += self._encode_delta(index, delta)
        return encoded

    def _tool_start(self, event: ToolUseStart) -> bytes:
        wire_id = self._wire_id(event)
        call: Wire = {"type": "tool_use", "id": wire_id, "name": event.tool_name, "input": {}}
        return self._open_call(event, self._original_start(event, call))

    def _original_start(self, event: TextDelta | ThinkingDelta | ToolUseStart, plain: Wire) -> Wire:
        """Return the start of a block in its original form, with empty values for delta keys."""
        form = event.original_form
        if form is None or not self._is_native:
            return plain
        form = {key: value for key, value in form.items() if key != "delta"} or plain
        return {**form, **{key: plain[key] for key in _DELTA_KEYS if key in form and key in plain}}

    def _delta_keys(self, form: Mapping[str, Any] | None) -> Wire:
        """Return the keys of the provider's delta that have no field in our events."""
        return maybe_object(form.get("delta")) if self._is_native and form is not None else {}

    def _tool_end(self, event: ToolUseEnd) -> bytes:
        keys = self._delta_keys(event.original_form)
        encoded = b""
        if keys:
            delta = {**self._input_delta(""), **keys}
            encoded = self._encode_delta(event.content_block_index, delta)
        return encoded + super()._tool_end(event)

    def _block(self, event: BlockAdded) -> bytes:
        """Encode a complete block as start, delta of the arguments if any, and stop."""
        block = encode_block(event.block, lambda call: derived_id(call, WIRE_ID_PREFIX))
        if block is None:
            return b""
        index = event.content_block_index
        encoded = self._encode_start(event) + self._close_block()
        arguments: Wire = {}
        if isinstance(event.block, OpaqueBlock):
            # SDKs read the arguments of server tool calls from deltas, as for any other call.
            wire = maybe_object(event.block.data)
            arguments = maybe_object(wire.get("input"))
            block = Wire({**wire, "input": {}}) if arguments else block
        elif self._is_native and event.original_form is not None:
            block = dict(event.original_form)
        encoded += self._encode_block_start(index, block)
        if arguments:
            delta = self._input_delta(_write(arguments).decode())
            encoded += self._encode_delta(index, delta)
        return encoded + self._encode_block_stop(index)

    def _start_late(self, event: MessageComplete) -> bytes:
        if self._has_started:
            return b""
        envelope = encode_envelope(event.message, self._context)
        return self._encode_message_start(event.message.id, envelope["id"], envelope["model"])

    def _encode_end(self, event: MessageComplete) -> bytes:
        """Encode `message_delta` with the remaining keys of the response, and `message_stop`."""
        body = self._plain_body(event)
        delta: Wire = {"stop_reason": body.get("stop_reason")}
        if "stop_sequence" in body or not self._is_native:
            delta["stop_sequence"] = body.get("stop_sequence")
        outer: Wire = {}
        stop: Wire = {"type": "message_stop"}
        for key, value in body.items():
            if key in _ENCODED_KEYS or (key in self._start and self._start[key] == value):
                continue
            (stop if key in _STOP_KEYS else outer if key in _OUTER_KEYS else delta)[key] = value
        usage = body.get("usage") or encode_usage(self._usage)
        end = {"type": "message_delta", "delta": delta, "usage": usage, **outer}
        return (
            self._encode_unsent_citations(event.message)
            + self._close_all()
            + _frame("message_delta", end)
            + _frame("message_stop", stop)
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
        usage = encode_usage(self._usage)
        if not self._usage:
            # Clients display the used context from this estimate; `message_delta` has the count.
            usage["input_tokens"] = self._context.prompt_tokens
        message: Wire = {
            "id": response_id or f"msg_{message_id}",
            "type": "message",
            "role": "assistant",
            "model": model_name(self._context.model or model),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            # SDKs read the prompt tokens from this object, and fail without it.
            "usage": usage,
        }
        return self._write_start(message)

    def _write_start(self, message: Wire) -> bytes:
        self._has_started, self._start = True, message
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
