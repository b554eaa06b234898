"""Parts of Bedrock Converse that are written often, as Structs, under the provider's names.

Their fields stand in the order of the sorted names, as the keys of all other objects do.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import UNSET, Struct, UnsetType


class TextPart(Struct, gc=False):
    """A text."""

    text: str


class ToolUse(Struct, gc=False, rename="camel"):
    """What is called, and with which arguments."""

    input: Mapping[str, Any]
    name: str
    tool_use_id: str


class ToolUsePart(Struct, gc=False, rename="camel"):
    """A call of a tool."""

    tool_use: ToolUse


class ToolResult(Struct, gc=False, kw_only=True, rename="camel"):
    """What is answered."""

    content: Sequence[Any]
    status: str | UnsetType = UNSET
    tool_use_id: str


class ToolResultPart(Struct, gc=False, rename="camel"):
    """The answer to a call."""

    tool_result: ToolResult


class ReasoningText(Struct, gc=False, kw_only=True):
    """What was thought, with the seal of the model."""

    signature: str | UnsetType = UNSET
    text: str


class Reasoning(Struct, gc=False, rename="camel"):
    """A thought that can be read."""

    reasoning_text: ReasoningText


class ReasoningPart(Struct, gc=False, rename="camel"):
    """A thought."""

    reasoning_content: Reasoning


Part = TextPart | ToolUsePart | ToolResultPart | ReasoningPart
"""A part of a turn or of an answer."""
