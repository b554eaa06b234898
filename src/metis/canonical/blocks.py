"""The content blocks: a closed set of block types, each with its tag."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from metis.canonical.errors import InvalidValueError
from metis.canonical.json_value import json_text_fault
from metis.canonical.metadata import Count
from metis.canonical.value import Value, normalised_json


class Block(Value, frozen=True, kw_only=True, tag_field="type"):
    """Base class of all blocks."""

    critical: bool = False
    """Whether it is an error, instead of a loss, if a target does not accept the block."""


class Citation(Value, frozen=True):
    """A source that a text cites; `raw` is the provider's object."""

    kind: str
    cited_text: str | None = None
    url: str | None = None
    title: str | None = None
    start: Count | None = None
    end: Count | None = None
    raw: Mapping[str, Any] | None = None
    json_fields = ("raw",)


class TextBlock(Block, frozen=True, tag="text"):
    """Plain text."""

    type: ClassVar[Literal["text"]] = "text"
    text: str
    citations: tuple[Citation, ...] = ()
    tuple_fields = ("citations",)


class InvalidInput(Value, frozen=True):
    """Arguments that are not a JSON object: the raw text, and the fault."""

    raw: str
    error: str


class ToolUseBlock(Block, frozen=True, tag="tool_use"):
    """A tool call of the model; `input` is `{}` when `invalid` is set."""

    type: ClassVar[Literal["tool_use"]] = "tool_use"
    id: str
    name: str
    input: Mapping[str, Any]
    invalid: InvalidInput | None = None
    json_fields = ("input",)


class ToolResultBlock(Block, frozen=True, tag="tool_result"):
    """The result of one tool call."""

    type: ClassVar[Literal["tool_result"]] = "tool_result"
    tool_use_id: str
    content: "tuple[ContentBlock, ...]"
    is_error: bool = False
    tuple_fields = ("content",)

    def comparable(self) -> Self:
        """Return the block with opaque JSON in normal form, for comparison."""
        return replace(self, content=comparable_blocks(self.content))


class ImageSource(Value, frozen=True):
    """The location of the bytes of an image: inline, at a URL, or in a workspace file."""

    kind: Literal["base64", "url", "file_ref"]
    data: str


ANY_IMAGE_TYPE = "image/*"
"""The media type of an image that is given by a URL and has no known type."""


class ImageBlock(Block, frozen=True, tag="image"):
    """An image for the model."""

    type: ClassVar[Literal["image"]] = "image"
    source: ImageSource
    media_type: str


class ThinkingBlock(Block, frozen=True, tag="thinking"):
    """The thinking of a model; only its issuer can read `signature`."""

    type: ClassVar[Literal["thinking"]] = "thinking"
    text: str
    signature: str | None = None
    id: str | None = None
    format: str | None = None
    issuer: str | None = None


class RedactedThinkingBlock(Block, frozen=True, tag="redacted_thinking"):
    """Thinking that only its issuer can read."""

    type: ClassVar[Literal["redacted_thinking"]] = "redacted_thinking"
    data: str
    id: str | None = None
    format: str | None = None
    issuer: str | None = None


class MediaSource(Value, frozen=True):
    """The location of the bytes of a document, audio, video or artifact.

    In addition to the kinds of an image: with `text`, `data` is plain text; with `file_id`, it is
    the id of a file that was uploaded to `issuer`.
    """

    kind: Literal["base64", "url", "file_ref", "text", "file_id"]
    data: str
    issuer: str | None = None


class DocumentBlock(Block, frozen=True, tag="document"):
    """A document for the model: a PDF, a text file, a table."""

    type: ClassVar[Literal["document"]] = "document"
    source: MediaSource
    media_type: str
    name: str | None = None
    context: str | None = None


class AudioBlock(Block, frozen=True, tag="audio"):
    """Audio for the model."""

    type: ClassVar[Literal["audio"]] = "audio"
    source: MediaSource
    media_type: str
    transcript: str | None = None


class VideoBlock(Block, frozen=True, tag="video"):
    """Video for the model."""

    type: ClassVar[Literal["video"]] = "video"
    source: MediaSource
    media_type: str


class ArtifactBlock(Block, frozen=True, tag="artifact"):
    """A file that the model or a tool created: an image, audio, a table."""

    type: ClassVar[Literal["artifact"]] = "artifact"
    source: MediaSource
    media_type: str
    name: str | None = None
    id: str | None = None
    transcript: str | None = None


class OpaqueBlock(Block, frozen=True, tag="opaque"):
    """A part that only its issuer understands, with its exact JSON."""

    type: ClassVar[Literal["opaque"]] = "opaque"
    issuer: str
    raw: Raw
    kind: str | None = None
    """The issuer's name for this kind of part."""

    @property
    def data(self) -> Any:
        """The part as plain values."""
        return msgspec.json.decode(self.raw)

    def __post_init__(self) -> None:
        """Raise an error for invalid JSON, also when decoding: nothing else parses `raw`."""
        # None must give an InvalidValueError, not a TypeError.
        fault = json_text_fault(bytes(self.raw or b""))
        if fault:
            raise InvalidValueError(fault, path="$.raw")

    def comparable(self) -> Self:
        """Return the block with its JSON in normal form, for comparison."""
        return replace(self, raw=Raw(normalised_json(bytes(self.raw))))


KnownBlock = (
    TextBlock
    | ToolUseBlock
    | ToolResultBlock
    | ImageBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | DocumentBlock
    | AudioBlock
    | VideoBlock
    | ArtifactBlock
    | OpaqueBlock
)

# msgspec decodes only the known tags; `reader` decodes blocks with other tags.
if TYPE_CHECKING:
    from metis.canonical.value import UnknownBlock

    ContentBlock = KnownBlock | UnknownBlock
else:
    ContentBlock = KnownBlock


def comparable_blocks(blocks: "tuple[ContentBlock, ...]") -> "tuple[ContentBlock, ...]":
    """Return blocks with all opaque JSON in normal form, for comparison."""
    # Without opaque blocks no copy is needed.
    if not any(isinstance(block, OpaqueBlock | ToolResultBlock) for block in blocks):
        return blocks
    return tuple(_comparable_block(block) for block in blocks)


def _comparable_block(block: "ContentBlock") -> "ContentBlock":
    if isinstance(block, ToolResultBlock):
        content = comparable_blocks(block.content)
        return block if content is block.content else replace(block, content=content)
    return block.comparable() if isinstance(block, OpaqueBlock) else block


BLOCK_TYPES: dict[str, type[Block]] = {kind.type: kind for kind in KnownBlock.__args__}
"""Every tag of the canonical form with its block type."""
