"""Media: files that a model is shown and not told."""

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

MAX_BYTES = 20_000_000
"""The largest file that becomes a block."""

_PDF = "application/pdf"
_OPENINGS = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", _PDF),
)


def media_type(opening: bytes) -> str | None:
    """The media type that the first bytes of a file tell, of those that models are shown."""
    if opening[:4] == b"RIFF" and opening[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for sign, kind in _OPENINGS if opening.startswith(sign)), None)


def media_block(data: bytes, kind: str, name: str) -> ContentBlock:
    """A picture or a document as a block."""
    text = base64.b64encode(data).decode()
    if kind == _PDF:
        return DocumentBlock(MediaSource(kind="base64", data=text), media_type=kind, name=name)
    return ImageBlock(ImageSource(kind="base64", data=text), media_type=kind)


def embed(
    blocks: tuple[ContentBlock, ...], workspace: Workspace, max_bytes: int = MAX_BYTES
) -> tuple[ContentBlock, ...]:
    """The same blocks with the bytes of the workspace's files in place of references to them."""
    return tuple(_embedded(block, workspace, max_bytes) for block in blocks)


def _embedded(block: ContentBlock, workspace: Workspace, max_bytes: int) -> ContentBlock:
    match block:
        case ImageBlock() | DocumentBlock() | AudioBlock() | VideoBlock():
            source = block.source
            if source.kind != "file_ref":
                return block
            data = base64.b64encode(workspace.read_bytes(source.data, max_bytes)).decode()
            return replace(block, source=replace(source, kind="base64", data=data))
        case _:
            return block
