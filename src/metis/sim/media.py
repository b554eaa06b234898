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

# The signatures of all formats and the header of a PNG are within the first bytes.
_HEAD_CHARACTERS = 64
_PNG_HEADER_BYTES = 26
_STANDARD_ALPHABET = str.maketrans("-_", "+/")
_PNG_COLOURS = {0: "grey", 2: "RGB", 3: "palette", 4: "grey with alpha", 6: "RGB with alpha"}
_IMAGE_FORMATS = (
    (b"\x89PNG\r\n\x1a\n", "PNG", "image/png"),
    (b"\xff\xd8", "JPEG", "image/jpeg"),
    (b"GIF8", "GIF", "image/gif"),
    (b"RIFF", "WebP", "image/webp"),
)


def standard_base64(text: str) -> str:
    """Convert base64 of either alphabet to the standard one, padded.

    >>> standard_base64("_-8")
    '/+8='
    """
    # Google's clients use the URL-safe alphabet.
    bare = text.translate(_STANDARD_ALPHABET).rstrip("=")
    return bare + "=" * (-len(bare) % 4)


def decode_base64(text: str) -> bytes | None:
    """Decode base64 of either alphabet; None if the text is not base64."""
    try:
        return base64.b64decode(standard_base64(text), validate=True)
    except (binascii.Error, ValueError):
        return None


def image_media_type(data: str) -> str | None:
    """Return the media type by the first bytes of a base64 image, or None."""
    head = _head(data)
    return next((media for start, _, media in _IMAGE_FORMATS if head.startswith(start)), None)


def describe_media(content: Sequence[ContentBlock]) -> list[str]:
    """Return a sentence for each media block."""
    sentences: list[str] = []
    for block in content:
        match block:
            case ImageBlock():
                sentences.append(f"I see {_describe_image(block.source)}.")
            case DocumentBlock():
                sentences.append(
                    f"I was given {_describe(block.source, 'a document', block.name)}."
                )
            case AudioBlock():
                sentences.append(f"I hear {_describe(block.source, 'a recording')}.")
            case VideoBlock():
                sentences.append(f"I watch {_describe(block.source, 'a video')}.")
            case _:
                pass
    return sentences


def _describe_image(source: ImageSource) -> str:
    if source.kind != "base64":
        return f"an image at {source.data}"
    head = _head(source.data)
    name = next((name for start, name, _ in _IMAGE_FORMATS if head.startswith(start)), None)
    if name is None:
        return f"an image of an unknown format, {_size(source)}"
    size = image_size(standard_base64(source.data))
    facts = [f"a {name} image", *([f"{size[0]} by {size[1]} pixels"] if size else [])]
    if name == "PNG" and len(head) >= _PNG_HEADER_BYTES:
        colours = _PNG_COLOURS.get(head[25], "unknown colours")
        facts.append(f"{head[24]} bits a channel, {colours}")
    return ", ".join([*facts, _size(source)])


def _describe(source: MediaSource, kind: str, name: str | None = None) -> str:
    subject = f"{kind} named {name}" if name else kind
    if source.kind == "text":
        return f"{subject} of {len(source.data.split())} words"
    if source.kind == "base64":
        return f"{subject}, {_size(source)}"
    return f"{subject} at {source.data}"


def _size(source: ImageSource | MediaSource) -> str:
    return f"{len(source.data.rstrip('=')) * 3 // 4} bytes"


def _head(data: str) -> bytes:
    return decode_base64(data[:_HEAD_CHARACTERS]) or b""
