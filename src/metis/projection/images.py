"""Projection of images: size in pixels, scaling, and the budget for all images of a request."""

import base64
import binascii
import importlib
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from metis.canonical.blocks import ContentBlock, ImageBlock, TextBlock, ToolResultBlock
from metis.canonical.message import Message
from metis.projection.loss import LossRecorder
from metis.projection.target import is_native

IMAGE_BUDGET = 8 * 1024 * 1024
"""How many characters of base64 images a session sends with a request."""

_HEAD_LENGTHS = (64, 1 << 12, 1 << 18)
"""How many characters to decode, one after the other: most images have their size at the start."""
_PNG = b"\x89PNG\r\n\x1a\n"
_JPEG = b"\xff\xd8"
# Start-of-frame markers of JPEG; C4, C8 and CC in this range are other segments.
_SIZE_MARKERS = frozenset({*range(0xC0, 0xD0)}) - {0xC4, 0xC8, 0xCC}
# JPEG markers that are not followed by a length.
_STANDALONE_MARKERS = frozenset({0x01, *range(0xD0, 0xDA)})
# How many bytes of a lossless WebP are needed for its size.
_LOSSLESS_HEAD = 25
_FORMATS = {"image/jpeg": "JPEG", "image/png": "PNG", "image/webp": "WEBP"}
_QUALITY = 90
_STEPS = 4

Size = tuple[int, int]
"""Width and height."""


def image_size(data: str) -> Size | None:
    """Return width and height of a base64 image; None if they cannot be read."""
    for length in _HEAD_LENGTHS:
        try:
            head = base64.b64decode(data[:length])
        except (binascii.Error, ValueError):
            return None
        readers = (reader for magic, reader in _SIZE_READERS.items() if head.startswith(magic))
        read_size = next(readers, None)
        size = None if read_size is None else read_size(head)
        if size is not None:
            return size if min(size) > 0 else None
        # Only in a JPEG the size may follow long metadata.
        if read_size is not _jpeg_size or length >= len(data):
            break
    return None


def _png_size(head: bytes) -> Size | None:
    return _two_numbers(head, 16, 4, "big")


def _gif_size(head: bytes) -> Size | None:
    return _two_numbers(head, 6, 2, "little")


def _webp_size(head: bytes) -> Size | None:
    kind = head[12:16]
    if kind == b"VP8 ":
        size = _two_numbers(head, 26, 2, "little")
        return None if size is None else (size[0] & 0x3FFF, size[1] & 0x3FFF)
    if kind == b"VP8L" and len(head) >= _LOSSLESS_HEAD:
        bits = int.from_bytes(head[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8X":
        size = _two_numbers(head, 24, 3, "little")
        return None if size is None else (size[0] + 1, size[1] + 1)
    return None


def _jpeg_size(head: bytes) -> Size | None:
    """Return the size in the first frame header of a JPEG; None if it is not in `head`."""
    # The size is in the first frame header, after segments that begin with their length.
    offset = 2
    while offset + 9 <= len(head) and head[offset] == 0xFF:  # noqa: PLR2004 - starts a marker
        marker = head[offset + 1]
        if marker in _SIZE_MARKERS:
            height, width = (
                int.from_bytes(head[offset + n : offset + n + 2], "big") for n in (5, 7)
            )
            return width, height
        is_standalone = marker in _STANDALONE_MARKERS
        segment = 0 if is_standalone else int.from_bytes(head[offset + 2 : offset + 4], "big")
        offset += 2 + segment
    return None


def _two_numbers(
    head: bytes, offset: int, length: int, order: Literal["big", "little"]
) -> Size | None:
    if len(head) < offset + 2 * length:
        return None
    middle, end = offset + length, offset + 2 * length
    return int.from_bytes(head[offset:middle], order), int.from_bytes(head[middle:end], order)


_SIZE_READERS: Mapping[bytes, Callable[[bytes], Size | None]] = {
    _PNG: _png_size,
    _JPEG: _jpeg_size,
    b"GIF8": _gif_size,
    b"RIFF": _webp_size,
}


def count_images(messages: Sequence[Message]) -> int:
    """Return the number of images in a history, including those in tool results."""
    blocks = [block for message in messages for block in message.content]
    results = (block.content for block in blocks if isinstance(block, ToolResultBlock))
    return sum(isinstance(block, ImageBlock) for block in chain(blocks, *results))


def size_if_larger(block: ImageBlock, side: int | None) -> Size | None:
    """Return the size of an inline image with a side longer than `side`; None otherwise."""
    if side is None or block.source.kind != "base64":
        return None
    size = image_size(block.source.data)
    return size if size is not None and max(size) > side else None


def scale_image(block: ImageBlock, side: int) -> ImageBlock | None:
    """Return the image with its longer side scaled to `side`; None if that is not possible.

    Scaling needs Pillow, an optional dependency.
    """
    scaled = _scaled(block.source.data, side)
    if scaled is None:
        return None
    data, media_type = scaled
    return replace(block, source=replace(block.source, data=data), media_type=media_type)


# Cached, because scaling is slow and the same image must give the same bytes in every request:
# otherwise the prompt cache of the provider misses (T90).
@lru_cache(maxsize=16)
def _scaled(data: str, side: int) -> tuple[str, str] | None:
    """Return the data and media type of a scaled image; None if that is not possible."""
    try:
        pillow: Any = importlib.import_module("PIL.Image")
    except ImportError:
        return None
    try:
        image = pillow.open(io.BytesIO(base64.b64decode(data)))
        media_type = pillow.MIME.get(image.format, "image/png")
        if media_type not in _FORMATS:
            media_type = "image/png"
        if media_type == "image/jpeg":
            image = image.convert("RGB")
        elif image.mode not in ("L", "RGB", "RGBA"):
            image = image.convert("RGBA")
        image.thumbnail((side, side))
        output = io.BytesIO()
        image.save(output, _FORMATS[media_type], quality=_QUALITY)
    except Exception:  # noqa: BLE001 - Pillow raises many types for damaged images
        return None
    return base64.b64encode(output.getvalue()).decode(), media_type


class _InlineImage(Struct, frozen=True):
    """An image with inline data, and its position in a history."""

    message_index: int
    block_index: int
    inner_index: int | None
    image: ImageBlock

    @property
    def path(self) -> str:
        path = f"$.content[{self.block_index}]"
        return path if self.inner_index is None else f"{path}.content[{self.inner_index}]"


def keep_newest_images(
    messages: Sequence[Message], budget: int, recorder: LossRecorder
) -> list[Message]:
    """Return the history with its oldest images replaced by notes, so that the budget suffices.

    The newest image, critical images and images in native messages are never replaced.
    """
    sent = list(messages)
    has_images = "image" in recorder.target.user_blocks
    images = list(_inline_images(messages)) if has_images else []
    excess = sum(len(inline.image.source.data) for inline in images) - budget
    if excess <= 0:
        return sent
    # In steps of a quarter of the budget: otherwise each new image would change an earlier message,
    # and with it the prefix that the provider has cached.
    step = max(1, budget // _STEPS)
    excess += -excess % step
    older_size = 0
    for inline in images[:-1]:
        message = messages[inline.message_index]
        must_stay = inline.image.critical or is_native(message, recorder.target)
        if older_size < excess and not must_stay:
            reason = f"more than {budget} characters of images; the newest stay; replaced by a note"
            recorder.record_altered(message, "image", inline.path, reason)
            sent[inline.message_index] = _with_note(sent[inline.message_index], inline)
        older_size += len(inline.image.source.data)
    return sent


def _inline_images(messages: Sequence[Message]) -> Iterator[_InlineImage]:
    for message_index, message in enumerate(messages):
        for index, block in enumerate(message.content):
            if isinstance(block, ToolResultBlock):
                for inner, part in enumerate(block.content):
                    if isinstance(part, ImageBlock) and part.source.kind == "base64":
                        yield _InlineImage(message_index, index, inner, part)
            elif isinstance(block, ImageBlock) and block.source.kind == "base64":
                yield _InlineImage(message_index, index, None, block)


def _with_note(message: Message, inline: _InlineImage) -> Message:
    note = TextBlock(f"[image {inline.image.media_type}: left out to make room for newer ones]")
    content = list(message.content)
    block = content[inline.block_index]
    replacement: ContentBlock = note
    if isinstance(block, ToolResultBlock) and inline.inner_index is not None:
        inner = list(block.content)
        inner[inline.inner_index] = note
        replacement = replace(block, content=tuple(inner))
    content[inline.block_index] = replacement
    return replace(message, content=tuple(content))
