"""Parts of Anthropic Messages that come often, as Structs, under the provider's names.

They are read where a request or an answer holds nothing else, and always written. Keys that are not
listed are not skipped: what holds one is read again as plain JSON.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from msgspec import UNSET, Struct, UnsetType


class TextPart(Struct, tag="text", gc=False, forbid_unknown_fields=True):
    """A text."""

    text: str
    cache_control: Any = UNSET
    citations: Any = UNSET


class ThinkingPart(Struct, tag="thinking", gc=False, forbid_unknown_fields=True):
    """A signed thought; it bears no mark."""

    cache_control: ClassVar[UnsetType] = UNSET
    signature: str
    thinking: str


class RedactedPart(Struct, tag="redacted_thinking", gc=False, forbid_unknown_fields=True):
    """A thought that only its issuer can read."""

    cache_control: ClassVar[UnsetType] = UNSET
    data: str


class ToolUsePart(Struct, tag="tool_use", gc=False, forbid_unknown_fields=True):
    """A call of a tool."""

    id: str
    input: Mapping[str, Any]
    name: str
    cache_control: Any = UNSET


class InlineImage(Struct, tag="base64", gc=False, forbid_unknown_fields=True):
    """An image that is in the request."""

    data: str
    media_type: str


class LinkedImage(Struct, tag="url", gc=False, forbid_unknown_fields=True):
    """An image that the provider fetches."""

    url: str


class ImagePart(Struct, tag="image", gc=False, forbid_unknown_fields=True):
    """An image."""

    source: InlineImage | LinkedImage
    cache_control: Any = UNSET


class ToolResultPart(Struct, tag="tool_result", gc=False, forbid_unknown_fields=True):
    """The answer to a call."""

    tool_use_id: str
    content: "str | list[TextPart | ImagePart] | UnsetType" = UNSET
    is_error: bool | UnsetType = UNSET
    cache_control: Any = UNSET


Part = TextPart | ThinkingPart | RedactedPart | ToolUsePart | ImagePart | ToolResultPart
"""A part of a turn or of an answer."""
