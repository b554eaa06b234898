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
    ToolUseStart,
)
from metis.streaming.aws_event_stream import encode_event_frame
from metis.wire.bedrock_converse.blocks import PROTOCOL, WIRE_ID_PREFIX, encode_block
from metis.wire.bedrock_converse.response import (
    encode_envelope,
    encode_stop_reason,
    encode_usage,
    error_frame,
)
from metis.wire.json_access import Wire, maybe_object
from metis.wire.original_form import original_form_of
from metis.wire.stream_encoder import BlockStreamEncoder
from metis.wire.tool_ids import derived_id

_METADATA_KEYS = ("trace", "performanceConfig", "serviceTier", "metrics")
"""The keys of a plain response that a stream carries in its last event."""
_write = msgspec.json.Encoder().encode


class ConverseStreamEncoder(BlockStreamEncoder):
    """Turns the events of one response into the bytes of a stream."""

    protocol = PROTOCOL
    wire_id_prefix = WIRE_ID_PREFIX

    def _message_start(self, event: MessageStart) -> bytes:
        super()._message_start(event)
        return self._encode_start(event)

    def _text(self, event: TextDelta) -> bytes:
        start = self._open_block(event, {})
        return start + self._encode_delta(event.content_block_index, {"text": event.text})

    def _thinking(self, event: ThinkingDelta) -> bytes:
        index, encoded = event.content_block_index, self._open_block(event, {})
        if event.text:
            encoded += self._encode_delta(index, {"reasoningContent": {"text": event.text}})
        if event.signature is not None:
            delta = {"reasoningContent": {"signature": event.signature}}
            encoded += self._encode_delta(index, delta)
        return encoded

    def _tool_start(self, event: ToolUseStart) -> bytes:
        self._has_input = False
        call = {"toolUseId": self._wire_id(event), "name": event.tool_name}
        # Only calls have a start event; texts and thinking begin with their first delta.
        opened = self._open_block(event, {})
        return opened + self._encode_block_start(event.content_block_index, {"toolUse": call})

    def _block(self, event: BlockAdded) -> bytes:
        start = self._open_block(event, {})
        encoded = self._encode_block(event.content_block_index, _encode_alone(event.block))
        return start + encoded + self._close_block()

    def _encode_block(self, index: int, wire: Wire) -> bytes:
        """Encode a block that comes at once, as the start and the deltas that it would have."""
        start: Wire = {}
        match wire:
            case {"toolUse": {"input": arguments, **rest}}:
                start = {"toolUse": rest}
                deltas = [self._input_delta(_write(arguments).decode())]
            case {"toolResult": {"content": list(), **rest}}:
                start = {"toolResult": rest}
                deltas = [{"toolResult": wire["toolResult"]["content"]}]
            case {"image": {"format": str(kind), **rest}}:
                start, deltas = {"image": {"format": kind}}, [{"image": rest}]
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

    def _encode_end(self, event: MessageComplete) -> bytes:
        response = maybe_object(original_form_of(event.message, PROTOCOL).get("response"))
        stop: Wire = {"stopReason": encode_stop_reason(event.stop_reason)}
        if "additionalModelResponseFields" in response:
            stop["additionalModelResponseFields"] = response["additionalModelResponseFields"]
        envelope = {**encode_envelope(event.message, self._context), **response}
        metadata = {key: envelope[key] for key in _METADATA_KEYS if key in envelope}
        return (
            self._encode_citations(event.message)
            + self._close_block()
            + _frame("messageStop", stop)
            + _frame("metadata", {**metadata, "usage": encode_usage(self._usage)})
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


def _encode_alone(block: ContentBlock) -> Wire:
    """Encode a block as a plain response would hold it; empty if it would not."""
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
