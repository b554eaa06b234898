"""What comes often, as Structs under the provider's names: a chunk with one piece of text.

Keys that are not listed here are not skipped: such a chunk is read again as plain JSON.
"""

from typing import Literal

from msgspec import UNSET, Raw, Struct, UnsetType


class TextPart(Struct, gc=False, forbid_unknown_fields=True):
    """A piece of text."""

    text: str


class TextContent(Struct, gc=False, forbid_unknown_fields=True):
    """What the model says in a chunk."""

    parts: tuple[TextPart]
    role: Literal["model"]


class TextCandidate(Struct, gc=False, forbid_unknown_fields=True):
    """The one answer of a chunk."""

    content: TextContent
    index: Literal[0] | UnsetType = UNSET


class TextChunk(Struct, gc=False, forbid_unknown_fields=True, rename="camel"):
    """A chunk of a stream that holds nothing but text."""

    candidates: tuple[TextCandidate]
    model_version: str
    response_id: str
    usage_metadata: Raw = Raw(b"")
