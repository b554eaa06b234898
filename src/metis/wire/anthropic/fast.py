"""Fast paths of Anthropic Messages."""

from msgspec import Struct


class WireTextDelta(Struct, tag="text_delta", gc=False, forbid_unknown_fields=True):
    """More text."""

    text: str


class WireThinkingDelta(Struct, tag="thinking_delta", gc=False, forbid_unknown_fields=True):
    """More of a thought."""

    thinking: str


class WireInputDelta(Struct, tag="input_json_delta", gc=False, forbid_unknown_fields=True):
    """More of the arguments of a call."""

    partial_json: str


class WireBlockDelta(Struct, tag="content_block_delta", gc=False, forbid_unknown_fields=True):
    """More of a block."""

    index: int
    delta: WireTextDelta | WireThinkingDelta | WireInputDelta
