"""Stream events of Bedrock Converse that come often, as Structs, under the provider's names.

Keys that are not listed here are not skipped: such an event is read again as plain JSON. `p` is
padding, which hides how long an event is.
"""

from msgspec import UNSET, Struct, UnsetType


class ReasoningDelta(Struct, gc=False, forbid_unknown_fields=True):
    """More of a thought."""

    text: str


class ToolUseDelta(Struct, gc=False, forbid_unknown_fields=True):
    """More of the arguments of a call."""

    input: str


class Delta(Struct, gc=False, forbid_unknown_fields=True, rename="camel"):
    """More of something; one of these is there."""

    text: str | UnsetType = UNSET
    reasoning_content: ReasoningDelta | UnsetType = UNSET
    tool_use: ToolUseDelta | UnsetType = UNSET


class ContentBlockDelta(Struct, gc=False, forbid_unknown_fields=True, rename="camel"):
    """More of a block."""

    content_block_index: int
    delta: Delta
    p: str = ""
