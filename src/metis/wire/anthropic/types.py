"""Stream events of Anthropic Messages that come often, as Structs, under the provider's names.

Keys that are not listed here are not skipped: such an event is read again as plain JSON.
"""

from msgspec import Struct


class TextDelta(Struct, tag="text_delta", gc=False, forbid_unknown_fields=True):
    """More text."""

    text: str


class ThinkingDelta(Struct, tag="thinking_delta", gc=False, forbid_unknown_fields=True):
    """More of a thought."""

    thinking: str


class InputJsonDelta(Struct, tag="input_json_delta", gc=False, forbid_unknown_fields=True):
    """More of the arguments of a call."""

    partial_json: str


class ContentBlockDelta(Struct, tag="content_block_delta", gc=False, forbid_unknown_fields=True):
    """More of a block."""

    index: int
    delta: TextDelta | ThinkingDelta | InputJsonDelta
