"""Images of Ollama: bare base64, without a word on what is in it."""

import base64
import binascii
import re

from metis.canonical.blocks import ArtifactBlock, ImageBlock, ImageSource, MediaSource

UNKNOWN = "application/octet-stream"
"""The media type of bytes that nobody can name."""

_DATA_URL = re.compile(r"data:([^;,]+);base64,(.*)", re.DOTALL)
_HEAD = 24
_KINDS = (
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "image/png"),
    (re.compile(rb"\xff\xd8\xff"), "image/jpeg"),
    (re.compile(rb"GIF8[79]a"), "image/gif"),
    (re.compile(rb"RIFF.{4}WEBP", re.DOTALL), "image/webp"),
    (re.compile(rb"BM"), "image/bmp"),
)


def decode_image(data: str) -> ImageBlock:
    """The picture of an entry of `images`; some clients leave the prefix of a data URL on (T94)."""
    inline = _DATA_URL.fullmatch(data) if data.startswith("data:") else None
    if inline is not None:
        return ImageBlock(ImageSource("base64", inline[2]), inline[1])
    return ImageBlock(ImageSource("base64", data), media_type(data))


def decode_artifact(data: str) -> ArtifactBlock:
    """The picture that a model made."""
    return ArtifactBlock(MediaSource("base64", data), media_type(data))


def media_type(data: str) -> str:
    """What base64 holds, as its first bytes tell."""
    try:
        head = base64.b64decode(data[:_HEAD], validate=True)
    except (binascii.Error, ValueError):
        return UNKNOWN
    return next((name for mark, name in _KINDS if mark.match(head)), UNKNOWN)
