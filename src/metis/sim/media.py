"""Describe images and other media by their first bytes."""

import base64
import binascii
from collections.abc import Sequence

from metis.canonical.blocks import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    ImageSource,
    MediaSource,
    VideoBlock,
)
from metis.projection.images import image_size

_PLAIN = str.maketrans("-_", "+/")


def standard_base64(text: str) -> str:
    """The same bytes in the usual alphabet, padded.

    >>> plain_base64("_-8")
    '/+8='
    """
    bare = text.translate(_PLAIN).rstrip("=")
    return bare + "=" * (-len(bare) % 4)


def decode_base64(text: str) -> bytes | None:
    """The bytes that a text stands for, in either alphabet; None if it is no base64."""
    try:
        return base64.b64decode(standard_base64(text), validate=True)
    except (binascii.Error, ValueError):
        return None


_HEAD_CHARACTERS = 64
_COLOURS = {0: "grey", 2: "RGB", 3: "palette", 4: "grey with alpha", 6: "RGB with alpha"}
_KINDS = (
    (b"\x89PNG\r\n\x1a\n", "PNG", "image/png"),
    (b"\xff\xd8", "JPEG", "image/jpeg"),
    (b"GIF8", "GIF", "image/gif"),
    (b"RIFF", "WebP", "image/webp"),
)
_PNG_HEADER = 26


def describe_media(content: Sequence[ContentBlock]) -> list[str]:
    """A sentence for each file among some blocks."""
    told: list[str] = []
    for block in content:
        match block:
            case ImageBlock():
                told.append(f"I see {describe_image(block.source)}.")
            case DocumentBlock():
                told.append(f"I was given {_describe(block.source, 'a document', block.name)}.")
            case AudioBlock():
                told.append(f"I hear {_describe(block.source, 'a recording')}.")
            case VideoBlock():
                told.append(f"I watch {_describe(block.source, 'a film')}.")
            case _:
                pass
    return told


def image_media_type(data: str) -> str | None:
    """The media type that the bytes of a picture in base64 show; None if they show none."""
    head = _head(data)
    return next((media for start, _, media in _KINDS if head.startswith(start)), None)


def describe_image(source: ImageSource) -> str:
    """What the bytes of a picture tell: kind, size, colours."""
    if source.kind != "base64":
        return f"an image at {source.data}"
    head = _head(source.data)
    kind = next((name for start, name, _ in _KINDS if head.startswith(start)), None)
    if kind is None:
        return f"an image of an unknown kind, {_size(source)}"
    size = image_size(standard_base64(source.data))
    facts = [f"a {kind} image", *([f"{size[0]} by {size[1]} pixels"] if size else [])]
    if kind == "PNG" and len(head) >= _PNG_HEADER:
        facts.append(f"{head[24]} bits a channel, {_COLOURS.get(head[25], 'unknown colours')}")
    return ", ".join([*facts, _size(source)])


def _describe(source: MediaSource, what: str, name: str | None = None) -> str:
    named = f"{what} named {name}" if name else what
    if source.kind == "text":
        return f"{named} of {len(source.data.split())} words"
    return f"{named}, {_size(source)}" if source.kind == "base64" else f"{named} at {source.data}"


def _size(source: ImageSource | MediaSource) -> str:
    return f"{len(source.data.rstrip('=')) * 3 // 4} bytes"


def _head(data: str) -> bytes:
    return decode_base64(data[:_HEAD_CHARACTERS]) or b""
