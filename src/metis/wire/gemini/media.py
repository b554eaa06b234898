"""Media of Gemini, to and from ours: `inlineData` holds bytes, `fileData` says where they are."""

import base64
from collections.abc import Mapping

from metis.canonical.blocks import (
    ANY_IMAGE,
    ArtifactBlock,
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    ImageSource,
    MediaSource,
    VideoBlock,
)
from metis.wire.gemini.names import plain_base64
from metis.wire.shape import Wire

Media = ImageBlock | DocumentBlock | AudioBlock | VideoBlock | ArtifactBlock
"""The blocks that hold media."""

_IMAGES: Mapping[str, str] = {
    "gif": "image/gif",
    "heic": "image/heic",
    "heif": "image/heif",
    "png": "image/png",
    "webp": "image/webp",
}
_OWN_FILES = ("gs://", "https://generativelanguage.googleapis.com/", "projects/", "files/")


def decode_media(part: Wire, issuer: str, *, is_made: bool) -> ContentBlock | None:
    """Our block for a part with media; None if it is none of those that we know.

    `is_made` says that a model made them.
    """
    match part:
        case {"inlineData": {"mimeType": str(kind), "data": str(data)}}:
            text = None if is_made else _plain_text(kind, data)
            if text is not None:
                return DocumentBlock(MediaSource("text", text), kind)
            return _block("base64", plain_base64(data), kind, None, is_made=is_made)
        case {"fileData": {"mimeType": str(kind), "fileUri": str(uri)}}:
            if uri.startswith(_OWN_FILES):
                return _block("file_id", uri, kind, issuer, is_made=is_made)
            return _block("url", uri, kind, None, is_made=is_made)
        case _:
            return None


def _plain_text(kind: str, data: str) -> str | None:
    """The words of a file that is text, which other providers take as such (G-010)."""
    if not kind.startswith(("text/", "application/json")):
        return None
    try:
        return base64.b64decode(plain_base64(data), validate=True).decode()
    except ValueError:
        return None


def _block(
    where: str, data: str, kind: str, issuer: str | None, *, is_made: bool
) -> ContentBlock | None:
    family = kind.partition("/")[0]
    if family == "image" and not is_made:
        # An image that exists as a file of one provider only is opaque to everybody else.
        if where == "file_id":
            return None
        return ImageBlock(ImageSource("base64" if where == "base64" else "url", data), kind)
    source = MediaSource(
        "base64" if where == "base64" else "url" if where == "url" else "file_id", data, issuer
    )
    if is_made:
        return ArtifactBlock(source, kind)
    if family == "audio":
        return AudioBlock(source, kind)
    return VideoBlock(source, kind) if family == "video" else DocumentBlock(source, kind)


def encode_media(block: Media) -> Wire | None:
    """The part for a block with media; None if its bytes are not at hand."""
    source, kind = block.source, block.media_type
    match source.kind:
        case "base64":
            return {"inlineData": {"mimeType": kind, "data": source.data}}
        case "url" | "file_id":
            if kind == ANY_IMAGE:
                kind = _kind_of(source.data)
            return {"fileData": {"mimeType": kind, "fileUri": source.data}}
        case "text":
            return {"text": source.data}
        case "file_ref":
            return None


def _kind_of(url: str) -> str:
    """The kind of an image by the end of its URL; the protocol wants one kind, not any."""
    return _IMAGES.get(url.partition("?")[0].rpartition(".")[2].lower(), "image/jpeg")
