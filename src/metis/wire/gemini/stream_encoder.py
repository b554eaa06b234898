"""Stream encoder of Gemini: stream events in, chunks out."""

from collections.abc import Mapping
from typing import Any, Literal, cast

import msgspec
from msgspec.structs import replace

from metis.canonical.blocks import ThinkingBlock
from metis.canonical.errors import ProviderError
from metis.canonical.message import Message
from metis.projection.blocks import SIGNATURE_ON_NEXT
from metis.streaming import (
    BlockAdded,
    MessageComplete,
    MessageStart,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseStart,
    encode_sse,
)
from metis.wire.call import RequestContext
from metis.wire.gemini.key_names import PROTOCOL
from metis.wire.gemini.parts import WIRE_ID_PREFIX, PartEncoder
from metis.wire.gemini.response import encode_error, encode_response, first_candidate
from metis.wire.json_access import Wire, maybe_object, read_object
from metis.wire.response import model_name
from metis.wire.seals import is_envelope
from metis.wire.stream_encoder import BaseStreamEncoder
from metis.wire.tool_ids import derived_id

_write = msgspec.json.Encoder().encode
Framing = Literal["sse", "array"]
"""The framing of chunks: server-sent events (`alt=sse`), or one JSON array."""
_BEFORE_TEXT = b'{"candidates":[{"content":{"parts":[{"text":'
"""The bytes of a text chunk before its text."""
_LAST_KEYS = ("candidates", "usageMetadata", "usage_metadata", "promptFeedback", "prompt_feedback")
"""The keys of a response that only the last chunk contains."""
_SIGNATURE_KEYS = frozenset({"thoughtSignature", "thought_signature"})
_THOUGHT_KEYS = 2
_END_KEYS = ("finishReason", "finish_reason", "finishMessage", "finish_message")


class GeminiStreamEncoder(BaseStreamEncoder):
    """Turns the events of one response into the bytes of a stream.

    A call is encoded as one part at its end event. The usage is part of the last chunk.
    """

    protocol = PROTOCOL
    wire_id_prefix = WIRE_ID_PREFIX
    encode_response = staticmethod(encode_response)

    def __init__(self, context: RequestContext, framing: Framing = "sse") -> None:
        super().__init__(context)
        self._framing = framing
        self._envelope: Wire = {}
        self._candidate: Wire = {"content": {"role": "model"}, "index": 0}
        """The keys of the candidate in every chunk."""
        self._after_text = b""
        """The bytes of a text chunk after its text, which are the same in all of them."""
        self._calls: dict[str, ToolUseStart] = {}
        self._form: Wire = {}
        self._form_index = -1
        """The block index of `_form`, the other keys of a text part, which each piece repeats."""
        self._signature: str | None = None
        self._part_encoder = PartEncoder(lambda call: derived_id(call, WIRE_ID_PREFIX), {})

    def finish(self) -> bytes:
        """Return the bytes that close the stream; one without a final event ends in an error."""
        closing = super().finish()
        return closing + b"]" if self._framing == "array" else closing

    def _message_start(self, event: MessageStart) -> bytes:
        super()._message_start(event)
        if not self._is_native:
            self._set_envelope(event.message_id, event.response_id, event.model)
            return b""
        form = event.original_form or {}
        first = first_candidate(form)
        role = maybe_object(first.get("content")).get("role")
        self._candidate = {"content": {} if role is None else {"role": role}}
        self._candidate |= {"index": first["index"]} if "index" in first else {}
        self._envelope = {key: form[key] for key in form if key not in _LAST_KEYS}
        if event.response_id is not None and not form:
            self._envelope = {"responseId": event.response_id}
        return b""

    def _set_envelope(self, message_id: str, response_id: str | None, model: str | None) -> None:
        if not self._envelope and not self._is_native:
            self._envelope = {
                "modelVersion": model_name(self._context.model or model),
                "responseId": response_id or message_id,
            }

    def _text(self, event: TextDelta) -> bytes:
        index = event.content_block_index
        if event.original_form is not None:
            self._open_form(event)
        if self._signature is not None or index == self._form_index:
            form = self._form if index == self._form_index else {}
            return self._encode_part(event.message_id, {**form, "text": event.text})
        # Fast path: a chunk of text is joined from bytes (test_stream_encoders compares it).
        if not self._after_text:
            self._set_envelope(event.message_id, None, None)
            self._after_text = self._encode_after_text()
        return self._frame(b"%b%b%b" % (_BEFORE_TEXT, _write(event.text), self._after_text))

    def _encode_after_text(self) -> bytes:
        """Encode the bytes of a text chunk after its text."""
        empty = {"parts": [{"text": ""}], **maybe_object(self._candidate.get("content"))}
        chunk = {"candidates": [{**self._candidate, "content": empty}], **self._envelope}
        return _write(chunk).removeprefix(_BEFORE_TEXT + b'""')

    def _thinking(self, event: ThinkingDelta) -> bytes:
        """Encode a piece of thinking as a part; an envelope becomes a separate part."""
        index = event.content_block_index
        if event.text and is_envelope(event.signature):
            # An envelope is a separate part, as in a plain response.
            text, seal = replace(event, signature=None), replace(event, text="")
            return self._thinking(text) + self._thinking(seal)
        part: Wire = {"text": event.text, "thought": True}
        if event.signature:
            part["thoughtSignature"] = event.signature
        if event.original_form is not None and self._is_native:
            self._open_form(event)
            part = {**self._form, "text": event.text}
        elif index == self._form_index:
            part = {**self._form, **part}
        elif not event.text and len(part) == _THOUGHT_KEYS:
            return b""  # a plain response has no part for empty thinking either
        return self._encode_part(event.message_id, part)

    def _open_form(self, event: TextDelta | ThinkingDelta) -> None:
        if self._is_native and event.original_form is not None:
            self._form = {key: v for key, v in event.original_form.items() if key != "text"}
            self._form_index = event.content_block_index

    def _tool_start(self, event: ToolUseStart) -> bytes:
        self._calls[event.tool_use_id] = event
        return b""

    def _tool_end(self, event: ToolUseEnd) -> bytes:
        start = self._calls.pop(event.tool_use_id, None)
        if start is not None and start.original_form is not None and self._is_native:
            part = _with_arguments(start.original_form, event.final_input)
            return self._encode_part(event.message_id, part)
        call: Wire = {"args": event.final_input, "name": "" if start is None else start.tool_name}
        # Gemini's calls may have no id. Calls of other providers get one, because clients match
        # results by id.
        wire_id = derived_id(event.tool_use_id, WIRE_ID_PREFIX)
        if self._is_native:
            wire_id = None if start is None else start.provider_id
        if wire_id is not None:
            call["id"] = wire_id
        return self._encode_part(event.message_id, {"functionCall": call})

    def _block(self, event: BlockAdded) -> bytes:
        block = event.block
        if isinstance(block, ThinkingBlock) and block.format == SIGNATURE_ON_NEXT:
            self._signature = block.signature
            return b""
        if event.original_form is not None and self._is_native:
            return self._encode_part(event.message_id, {**event.original_form})
        parts = self._part_encoder.encode((block,))
        return b"".join(self._encode_part(event.message_id, part) for part in parts)

    def _complete(self, event: MessageComplete) -> bytes:
        # Gemini reports failures by a finish reason, so that no error is needed in the stream.
        self._has_ended = True
        self._usage = event.message.metadata.usage or self._usage
        return self._encode_end(event)

    def _encode_end(self, event: MessageComplete) -> bytes:
        """Encode the last chunk, with the finish reason, the usage and the remaining keys."""
        body = self._plain_body(event)
        candidate = first_candidate(body)
        if not candidate:
            return self._frame(_write(body))  # a prompt that was blocked
        last: Wire = {"text": ""}
        if self._signature is not None:
            last["thoughtSignature"] = self._signature
        if "content" in candidate:
            content = {**maybe_object(candidate["content"]), "parts": [last]}
            candidate = {**candidate, "content": content}
        body["candidates"][0] = candidate
        if not self._is_native:
            body |= self._envelope  # model and response id must be those of earlier chunks
        return self._frame(_write(body))

    def _encode_unsent(self, message: Message, /) -> bytes:
        body = read_object(self.encode_response(message, self._context), "response")
        candidate = first_candidate(body)
        encoded_keys = {*self._candidate, *_END_KEYS, "content"}
        unsent = {key: value for key, value in candidate.items() if key not in encoded_keys}
        if not unsent:
            return b""
        unsent |= {key: value for key, value in self._candidate.items() if key != "content"}
        return self._frame(_write({"candidates": [unsent], **self._envelope}))

    def _encode_failure(self, error: ProviderError) -> bytes:
        _, body = encode_error(error)
        return self._frame(body)

    def _encode_part(self, message_id: str, part: Any) -> bytes:
        self._set_envelope(message_id, None, None)
        signature, self._signature = self._signature, None
        if signature is not None and isinstance(part, dict):
            wire = cast("Wire", part)
            # The original form of a part already contains its signature.
            if _SIGNATURE_KEYS.isdisjoint(wire):
                wire["thoughtSignature"] = signature
        content: Wire = {"parts": [part], **maybe_object(self._candidate.get("content"))}
        chunk: Wire = {"candidates": [{**self._candidate, "content": content}], **self._envelope}
        return self._frame(_write(chunk))

    def _frame(self, body: bytes) -> bytes:
        is_first, self._has_started = not self._has_started, True
        if self._framing == "sse":
            return encode_sse(body)
        return (b"[" if is_first else b",\r\n") + body


def _with_arguments(part: Mapping[str, Any], arguments: Mapping[str, Any]) -> Wire:
    """Return the original part of a call with its final arguments."""
    key = "functionCall" if "functionCall" in part else "function_call"
    call = maybe_object(part.get(key))
    if "args" in call or arguments:
        call = {**call, "args": arguments}
    return {**part, key: call}
