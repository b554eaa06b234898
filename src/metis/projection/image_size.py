"""The size of a picture in pixels, read from the first bytes of PNG, JPEG, GIF and WebP."""

import base64
import binascii
from collections.abc import Callable, Mapping
from typing import Literal

_HEADS = (64, 1 << 12, 1 << 18)
"""How many characters are looked at: most pictures tell their size in the first few."""
_PNG = b"\x89PNG\r\n\x1a\n"
_JPEG = b"\xff\xd8"
_SIZE_MARKERS = frozenset({*range(0xC0, 0xD0)}) - {0xC4, 0xC8, 0xCC}
_LOSSLESS_HEAD = 25
_STANDALONE = frozenset({0x01, *range(0xD0, 0xDA)})

Size = tuple[int, int]
"""Width and height."""


def image_size(data: str) -> Size | None:
    """Width and height of a picture in base64; None if they cannot be read."""
    for characters in _HEADS:
        try:
            head = base64.b64decode(data[:characters])
        except (binascii.Error, ValueError):
            return None
        read = next((one for start, one in _READERS.items() if head.startswith(start)), None)
        size = None if read is None else read(head)
        if size is not None:
            return size if min(size) > 0 else None
        if read is not _jpeg or characters >= len(data):
            break
    return None


def _png(head: bytes) -> Size | None:
    return _pair(head, 16, 4, "big")


def _gif(head: bytes) -> Size | None:
    return _pair(head, 6, 2, "little")


def _webp(head: bytes) -> Size | None:
    kind = head[12:16]
    if kind == b"VP8 ":
        size = _pair(head, 26, 2, "little")
        return None if size is None else (size[0] & 0x3FFF, size[1] & 0x3FFF)
    if kind == b"VP8L" and len(head) >= _LOSSLESS_HEAD:
        bits = int.from_bytes(head[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8X":
        size = _pair(head, 24, 3, "little")
        return None if size is None else (size[0] + 1, size[1] + 1)
    return None


def _jpeg(head: bytes) -> Size | None:
    """The size stands in the first frame header, behind segments that each tell their length."""
    at = 2
    while at + 9 <= len(head) and head[at] == 0xFF:  # noqa: PLR2004 - how a marker begins
        marker = head[at + 1]
        if marker in _SIZE_MARKERS:
            height, width = (int.from_bytes(head[at + n : at + n + 2], "big") for n in (5, 7))
            return width, height
        length = 0 if marker in _STANDALONE else int.from_bytes(head[at + 2 : at + 4], "big")
        at += 2 + length
    return None


def _pair(head: bytes, at: int, length: int, order: Literal["big", "little"]) -> Size | None:
    if len(head) < at + 2 * length:
        return None
    first, second = head[at : at + length], head[at + length : at + 2 * length]
    return int.from_bytes(first, order), int.from_bytes(second, order)


_READERS: Mapping[bytes, Callable[[bytes], Size | None]] = {
    _PNG: _png,
    _JPEG: _jpeg,
    b"GIF8": _gif,
    b"RIFF": _webp,
}
