"""Fast paths of Bedrock Converse: shortcuts with the same results as the general path.

- `FastConverseHistoryEncoder` duplicates `blocks.encode_block` for texts, calls and results.
- `FastConverseStreamDecoder` duplicates the handling of `contentBlockDelta`, one per token.

The Structs forbid unknown keys: input with such a key is decoded by the general path.
`tests/wire/test_fast_paths.py` compares both.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from metis.canonical.blocks import TextBlock, ToolResultBlock, ToolUseBlock
from metis.canonical.message import Message
from metis.streaming import StreamEvent, TextDelta, ThinkingDelta
from metis.streaming.aws_event_stream import EventFrame
from metis.wire.bedrock_converse.blocks import (
    TextPart,
    ToolResult,
    ToolResultPart,
    ToolUse,
    ToolUsePart,
    encode_block,
)
from metis.wire.bedrock_converse.history import ConverseHistoryEncoder
from metis.wire.bedrock_converse.stream_decoder import BLOCK_DELTA, ConverseStreamDecoder
from metis.wire.tool_ids import TOOL_ID_PREFIX


class FastConverseHistoryEncoder(ConverseHistoryEncoder):
    """A history encoder that encodes common blocks without a lookup in the encoder table."""

    def _encode_parts(self, message: Message, form: Mapping[str, Any]) -> list[Any]:
        if "blocks" in form or "success" in form or message.metadata.hints:
            return super()._encode_parts(message, form)
        wire_ids = self._wire_ids
        parts: list[Any] = []
        for block in message.content:
            if type(block) is TextBlock and not block.citations:
                parts.append(TextPart(block.text))
            elif type(block) is ToolUseBlock:
                call = block.id
                wire_id = wire_ids.get(call) or self.wire_id_prefix + call.removeprefix(
                    TOOL_ID_PREFIX
                )
                parts.append(ToolUsePart(ToolUse(block.input, block.name, wire_id)))
            elif type(block) is ToolResultBlock:
                parts.append(self._encode_result(block))
            elif (part := encode_block(block, self._wire_id)) is not None:
                parts.append(part)
        return parts

    def _encode_result(self, block: ToolResultBlock) -> ToolResultPart:
        content: list[Any] = []
        for inner in block.content:
            if type(inner) is TextBlock:
                content.append(TextPart(inner.text))
            elif (part := encode_block(inner, self._wire_id)) is not None:
                content.append(part)
        status = "error" if block.is_error else UNSET
        wire_id = self._wire_id(block.tool_use_id)
        return ToolResultPart(ToolResult(content=content, status=status, tool_use_id=wire_id))


class _ReasoningDelta(Struct, gc=False, forbid_unknown_fields=True):
    text: str


class _ToolUseDelta(Struct, gc=False, forbid_unknown_fields=True):
    input: str


class _Delta(Struct, gc=False, forbid_unknown_fields=True, rename="camel"):
    text: str | UnsetType = UNSET
    reasoning_content: _ReasoningDelta | UnsetType = UNSET
    tool_use: _ToolUseDelta | UnsetType = UNSET


class _BlockDelta(Struct, gc=False, forbid_unknown_fields=True, rename="camel"):
    content_block_index: int
    delta: _Delta
    p: str = ""  # padding of AWS, so that the event size does not reveal the length of a token


_read_delta = msgspec.json.Decoder(_BlockDelta).decode


class FastConverseStreamDecoder(ConverseStreamDecoder):
    """A stream decoder that reads common deltas straight into Structs."""

    def _decode_event(self, frame: EventFrame, events: list[StreamEvent]) -> None:
        if frame.name != BLOCK_DELTA:
            super()._decode_event(frame, events)
            return
        try:
            event = _read_delta(frame.payload)
        except (ValueError, RecursionError):
            super()._decode_event(frame, events)
            return
        # The general path starts a block if none is open or the kinds differ.
        block, delta = self._open.get(event.content_block_index), event.delta
        kind = None if block is None else block.kind
        if block is not None and delta.text is not UNSET and kind == "text":
            block.texts.append(delta.text)
            events.append(TextDelta(self._message_id, block.index, delta.text))
        elif block is not None and delta.reasoning_content is not UNSET and kind == "thinking":
            text = delta.reasoning_content.text
            block.texts.append(text)
            events.append(ThinkingDelta(self._message_id, block.index, text))
        elif block is not None and delta.tool_use is not UNSET and kind == "call":
            self._add_input(block, delta.tool_use.input, events)
        else:
            super()._decode_event(frame, events)
