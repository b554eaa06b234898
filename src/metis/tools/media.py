"""Media files as content blocks."""

import base64

from msgspec.structs import replace

from metis.canonical.blocks import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    ImageSource,
    MediaSource,
    VideoBlock,
)
from metis.tools.workspace import Workspace

# In base64 this stays below the 32 MB that Anthropic accepts in one request.
MAX_BYTES = 20_000_000
"""The largest file that becomes a block."""

PDF = "application/pdf"
_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", PDF),
)


def media_type(head: bytes) -> str | None:
    """Return the media type by the first bytes of a file: an image, a PDF, or None."""
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for signature, kind in _SIGNATURES if head.startswith(signature)), None)


def media_block(data: bytes, kind: str, name: str) -> ContentBlock:
    """Return an image or a document block."""
    text = base64.b64encode(data).decode()
    if kind == PDF:
        return DocumentBlock(MediaSource(kind="base64", data=text), media_type=kind, name=name)
    return ImageBlock(ImageSource(kind="base64", data=text), media_type=kind)


def embed(
    blocks: tuple[ContentBlock, ...], workspace: Workspace, max_bytes: int = MAX_BYTES
) -> tuple[ContentBlock, ...]:
    """Replace references to files of the workspace by the bytes of the files."""
    return tuple(_embed(block, workspace, max_bytes) for block in blocks)


def _embed(block: ContentBlock, workspace: Workspace, max_bytes: int) -> ContentBlock:
    is_media = isinstance(block, ImageBlock | DocumentBlock | AudioBlock | VideoBlock)
    if not is_media or block.source.kind != "file_ref":
        return block
    data = base64.b64encode(workspace.read_bytes(block.source.data, max_bytes)).decode()
    return replace(block, source=replace(block.source, kind="base64", data=data))
