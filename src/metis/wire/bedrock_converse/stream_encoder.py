"""Stream encoder of Bedrock Converse: stream events in, event-stream frames out."""

from collections.abc import Mapping
from typing import Any

import msgspec

from metis.canonical.blocks import ContentBlock, OpaqueBlock
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
from metis.streaming.aws_event_stream import encode_event_frame
from metis.wire.bedrock_converse.blocks import PROTOCOL, WIRE_ID_PREFIX, encode_block
from metis.wire.bedrock_converse.response import (
    encode_response,
    encode_usage,
    error_frame,
)
from metis.wire.errors import is_failed_stop
from metis.wire.json_access import Wire, maybe_object
from metis.wire.stream_encoder import BlockStreamEncoder
from metis.wire.tool_ids import derived_id

_STOP_KEYS = ("stopReason", "additionalModelResponseFields")
"""The keys of a plain response that the `messageStop` event carries."""
_DELTA_KEYS = frozenset({"text", "citationsContent", "reasoningContent"})
"""The keys of a block whose text is encoded as deltas."""
_ENCODED_KEYS = frozenset({"output", *_STOP_KEYS})
"""The keys that earlier events carry; the last event, `metadata`, carries all others."""
_NO_METADATA: Wire = {"usage": encode_usage(None), "metrics": {"latencyMs": 0}}
"""The keys that SDKs require in a `metadata` event."""
_write = msgspec.json.Encoder().encode


class ConverseStreamEncoder(BlockStreamEncoder):
    """Turns the events of one response into the bytes of a stream."""

    protocol = PROTOCOL
    wire_id_prefix = WIRE_ID_PREFIX
    encode_response = staticmethod(encode_response)

    def _message_start(self, event: MessageStart) -> bytes:
        super()._message_start(event)
        if not self._is_native or event.original_form is None:
            return self._encode_start(event)
        self._has_started = True
        return _frame("messageStart", event.original_form)

    def _text(self, event: TextDelta) -> bytes:
        index, encoded = event.content_block_index, self._open_block(event, {})
        other = self._original_delta(event.original_form)
        if event.text or other or not event.citations:
            encoded += self._encode_delta(index, {"text": event.text, **other})
        if event.citations:
            encoded += self._encode_citations(index, event.citations)
        return encoded

    def _thinking(self, event: ThinkingDelta) -> bytes:
        index, is_new = event.content_block_index, self._open_index != event.content_block_index
        encoded = self._open_block(event, {})
        # A decoder reads a block without deltas as an empty text.
        other = self._original_delta(event.original_form)
        if event.text or other or (is_new and event.signature is None):
            thinking = {"text": event.text, **maybe_object(other.get("reasoningContent"))}
            encoded += self._encode_delta(index, {**other, "reasoningContent": thinking})
        if event.signature is not None:
            delta = {"reasoningContent": {"signature": event.signature}}
            encoded += self._encode_delta(index, delta)
        return encoded

    def _tool_start(self, event: ToolUseStart) -> bytes:
        start: Wire = {"toolUse": {"toolUseId": self._wire_id(event), "name": event.tool_name}}
        if event.original_form is not None and self._is_native:
            # The form of a plain response contains the arguments, which deltas carry in a stream.
            call = maybe_object(event.original_form.get("toolUse"))
            call_keys = {key: value for key, value in call.items() if key != "input"}
            start = {**event.original_form}
            if call:
                start["toolUse"] = call_keys
        # Only calls have a start event; texts and thinking start with their first delta.
        opened = self._open_call(event, {})
        return opened + self._encode_block_start(event.content_block_index, start)

    def _tool_end(self, event: ToolUseEnd) -> bytes:
        other = self._original_delta(event.original_form)
        encoded = b""
        if other:
            call = {**maybe_object(other.get("toolUse")), "input": ""}
            encoded = self._encode_delta(event.content_block_index, {"toolUse": call, **other})
        return encoded + super()._tool_end(event)

    def _original_delta(self, form: Mapping[str, Any] | None) -> Wire:
        """Return the keys of the provider's deltas that have no field in our events."""
        return maybe_object(form.get("delta")) if self._is_native and form is not None else {}

    def _block(self, event: BlockAdded) -> bytes:
        has_deltas = event.content_block_index in self._started_blocks
        start = self._open_block(event, {})
        original = event.original_form if self._is_native else None
        wire = _encode_alone(event.block) if original is None else dict(original)
        if has_deltas:
            wire = _without_text(wire)
        encoded = self._encode_block(event.content_block_index, wire)
        return start + encoded + self._close_block()

    def _encode_block(self, index: int, wire: Wire) -> bytes:
        """Encode the start and the deltas of a block that was received complete."""
        start: Wire = {}
        match wire:
            case {"toolUse": {"input": arguments, **call_keys}}:
                start = {"toolUse": call_keys}
                deltas = [self._input_delta(_write(arguments).decode())]
            case {"toolResult": {"content": list(), **result_keys}}:
                start = {"toolResult": result_keys}
                deltas = [{"toolResult": wire["toolResult"]["content"]}]
            case {"image": {"format": str(kind), **image_keys}}:
                start, deltas = {"image": {"format": kind}}, [{"image": image_keys}]
            case {"reasoningContent": {"reasoningText": {**reasoning}}}:
                deltas = [{"reasoningContent": {key: value}} for key, value in reasoning.items()]
            case {"citationsContent": {"content": list(), "citations": list()}}:
                cited = wire["citationsContent"]
                deltas = [*cited["content"], *map(self._citation_delta, cited["citations"])]
            case _:
                deltas = [wire] if wire else []
        encoded = self._encode_block_start(index, start) if start else b""
        return encoded + b"".join(self._encode_delta(index, delta) for delta in deltas)

    def _start_late(self, event: MessageComplete) -> bytes:
        return self._encode_start(event)

    def _complete(self, event: MessageComplete) -> bytes:
        # Stop reasons such as `malformed_tool_use` already tell the client about the failure.
        if is_failed_stop(event.stop_reason) and self._plain_body(event).get("stopReason"):
            self._has_ended = True
            return self._start_late(event) + self._encode_end(event)
        return super()._complete(event)

    def _encode_end(self, event: MessageComplete) -> bytes:
        body = self._plain_body(event)
        stop = {key: body.get(key) for key in _STOP_KEYS if key in body}
        metadata = {key: value for key, value in body.items() if key not in _ENCODED_KEYS}
        if metadata and not self._is_native:
            metadata = {**_NO_METADATA, **metadata}
        return (
            self._encode_unsent_citations(event.message)
            + self._close_all()
            + _frame("messageStop", stop)
            + (_frame("metadata", metadata) if metadata else b"")
        )

    def _encode_failure(self, error: ProviderError) -> bytes:
        return error_frame(error)

    def _encode_start(self, _: Any) -> bytes:
        if self._has_started:
            return b""
        self._has_started = True
        return _frame("messageStart", {"role": "assistant"})

    def _encode_block_start(self, index: int, block: Wire) -> bytes:
        return _frame("contentBlockStart", {"contentBlockIndex": index, "start": block})

    def _encode_block_stop(self, index: int) -> bytes:
        return _frame("contentBlockStop", {"contentBlockIndex": index})

    def _encode_delta(self, index: int, delta: Wire) -> bytes:
        return _frame("contentBlockDelta", {"contentBlockIndex": index, "delta": delta})

    def _input_delta(self, text: str) -> Wire:
        return {"toolUse": {"input": text}}

    def _citation_delta(self, citation: Mapping[str, Any]) -> Wire:
        return {"citation": citation}


def _without_text(wire: Wire) -> Wire:
    """Return a block without text and signature, which earlier deltas contain."""
    reasoning = maybe_object(wire.get("reasoningContent"))
    inner = {key: value for key, value in reasoning.items() if key != "reasoningText"}
    other_keys = {key: value for key, value in wire.items() if key not in _DELTA_KEYS}
    return {"reasoningContent": inner, **other_keys} if inner else other_keys


def _encode_alone(block: ContentBlock) -> Wire:
    """Encode a block in the form of a plain response; empty if the protocol has no such block."""
    if isinstance(block, OpaqueBlock):
        return maybe_object(block.data) if block.issuer == PROTOCOL else {}
    part = encode_block(block, lambda call: derived_id(call, WIRE_ID_PREFIX))
    return {} if part is None else msgspec.to_builtins(part)


def _frame(name: str, body: Any) -> bytes:
    headers = {
        ":event-type": name,
        ":content-type": "application/json",
        ":message-type": "event",
    }
    return encode_event_frame(headers, _write(body))
