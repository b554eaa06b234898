"""Stream encoder of Gemini: stream events in, chunks out."""

from typing import Any, Literal

import msgspec

from metis.canonical.blocks import ThinkingBlock
from metis.canonical.errors import ProviderError, ServerError
from metis.canonical.metadata import StopReason
from metis.projection.blocks import SIGNATURE_ON_NEXT
from metis.streaming import (
    BlockAdded,
    MessageComplete,
    MessageStart,
    StreamError,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseStart,
    encode_sse,
)
from metis.wire.call import RequestContext
from metis.wire.gemini.key_names import HOSTS, PROTOCOL
from metis.wire.gemini.parts import WIRE_ID_PREFIX, PartEncoder
from metis.wire.gemini.response import encode_error, encode_stop_reason, encode_usage
from metis.wire.json_access import Wire
from metis.wire.response import model_name
from metis.wire.stream_encoder import BaseStreamEncoder
from metis.wire.tool_ids import derived_id

_write = msgspec.json.Encoder().encode
Framing = Literal["sse", "array"]
"""How chunks are sent: as server-sent events (`alt=sse`), or as one JSON array."""
_BEFORE_TEXT = b'{"candidates":[{"content":{"parts":[{"text":'
_AFTER_TEXT = b'}],"role":"model"},"index":0}],'


class GeminiStreamEncoder(BaseStreamEncoder):
    """Turns the events of one response into the bytes of a stream.

    Calls are sent whole, with the end of their event; the usage goes with the last chunk.
    """

    protocol = PROTOCOL
    wire_id_prefix = WIRE_ID_PREFIX

    def __init__(self, context: RequestContext, framing: Framing = "sse") -> None:
        super().__init__(context)
        self._framing = framing
        self._envelope: Wire = {}
        self._envelope_json = b""
        """What follows the text in a chunk of text; it is the same in all of them."""
        self._tool_names: dict[str, str] = {}
        self._signature: str | None = None
        self._hides_signatures = False
        """Whether another provider answers, whose signatures the client must not send back."""
        self._part_encoder = PartEncoder(lambda call: derived_id(call, WIRE_ID_PREFIX), {})

    def finish(self) -> bytes:
        """Return the bytes that close a stream without a final event."""
        closing = b"" if self._has_ended or not self._has_started else self._encode_last(None)
        if self._framing == "sse":
            return closing
        return closing + (b"]" if self._has_started else b"[]")

    def _message_start(self, event: MessageStart) -> bytes:
        # Clients send signatures back to this provider, which refuses those of others.
        host, _, _ = (event.model or "").partition(":")
        self._hides_signatures = event.protocol != PROTOCOL and host not in HOSTS
        self._set_envelope(event.message_id, event.response_id, event.model)
        return b""

    def _set_envelope(self, message_id: str, response_id: str | None, model: str | None) -> None:
        if not self._envelope:
            self._envelope = {
                "modelVersion": model_name(self._context.model or model),
                "responseId": response_id or message_id,
            }

    def _text(self, event: TextDelta) -> bytes:
        if self._signature is not None:
            return self._encode_part(event.message_id, {"text": event.text})
        # Fast path: a chunk of text is joined from bytes (test_stream_encoders compares it).
        if not self._envelope_json:
            self._set_envelope(event.message_id, None, None)
            self._envelope_json = _AFTER_TEXT + _write(self._envelope)[1:]
        return self._frame(b"%b%b%b" % (_BEFORE_TEXT, _write(event.text), self._envelope_json))

    def _thinking(self, event: ThinkingDelta) -> bytes:
        part: Wire = {"text": event.text, "thought": True}
        if event.signature is not None and not self._hides_signatures:
            part["thoughtSignature"] = event.signature
        return self._encode_part(event.message_id, part)

    def _tool_start(self, event: ToolUseStart) -> bytes:
        self._tool_names[event.tool_use_id] = event.tool_name
        return b""

    def _tool_end(self, event: ToolUseEnd) -> bytes:
        call = {
            "args": event.final_input,
            "id": derived_id(event.tool_use_id, WIRE_ID_PREFIX),
            "name": self._tool_names.get(event.tool_use_id, ""),
        }
        return self._encode_part(event.message_id, {"functionCall": call})

    def _block(self, event: BlockAdded) -> bytes:
        block = event.block
        if isinstance(block, ThinkingBlock) and block.format == SIGNATURE_ON_NEXT:
            self._signature = block.signature
            return b""
        parts = self._part_encoder.encode((block,))
        return b"".join(self._encode_part(event.message_id, part) for part in parts)

    def _error(self, event: StreamError) -> bytes:
        return self._fail(ServerError(event.text))

    def _complete(self, event: MessageComplete) -> bytes:
        # There is a finish reason for failures, too, so that they need no error in the stream.
        metadata = event.message.metadata
        self._usage = metadata.usage or self._usage
        self._set_envelope(event.message_id, metadata.response_id, metadata.model)
        return self._encode_end(event)

    def _encode_end(self, event: MessageComplete) -> bytes:
        return self._encode_last(event.stop_reason)

    def _encode_failure(self, error: ProviderError) -> bytes:
        _, body = encode_error(error)
        return self._frame(body)

    def _encode_part(self, message_id: str, part: Any) -> bytes:
        self._set_envelope(message_id, None, None)
        if self._signature is not None and isinstance(part, dict):
            part["thoughtSignature"], self._signature = self._signature, None
        return self._encode_chunk({"content": {"parts": [part], "role": "model"}, "index": 0})

    def _encode_last(self, reason: StopReason | None) -> bytes:
        self._has_ended = True
        last: Wire = {"text": ""}
        if self._signature is not None:
            last["thoughtSignature"] = self._signature
        candidate = {
            "content": {"parts": [last], "role": "model"},
            "finishReason": encode_stop_reason(reason),
            "index": 0,
        }
        usage = encode_usage(self._usage)
        return self._encode_chunk(candidate, {} if usage is None else {"usageMetadata": usage})

    def _encode_chunk(self, candidate: Wire, more: Wire | None = None) -> bytes:
        return self._frame(_write({"candidates": [candidate], **self._envelope, **(more or {})}))

    def _frame(self, body: bytes) -> bytes:
        is_first, self._has_started = not self._has_started, True
        if self._framing == "sse":
            return encode_sse(body)
        return (b"[" if is_first else b",\r\n") + body
