"""Images on their way to a target: their size in pixels, scaling, and a budget for many."""

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

_HEADS = (64, 1 << 12, 1 << 18)
"""How many characters to decode: most images state their size in the first few."""
_PNG = b"\x89PNG\r\n\x1a\n"
_JPEG = b"\xff\xd8"
_SIZE_MARKERS = frozenset({*range(0xC0, 0xD0)}) - {0xC4, 0xC8, 0xCC}
_STANDALONE_MARKERS = frozenset({0x01, *range(0xD0, 0xDA)})
_LOSSLESS_HEAD = 25
_FORMATS = {"image/jpeg": "JPEG", "image/png": "PNG", "image/webp": "WEBP"}
_QUALITY = 90
_STEPS = 4

Size = tuple[int, int]
"""Width and height."""


def image_size(data: str) -> Size | None:
    """Return width and height of a base64 image; None if they cannot be read."""
    for characters in _HEADS:
        try:
            head = base64.b64decode(data[:characters])
        except (binascii.Error, ValueError):
            return None
        read = next((one for start, one in _SIZE_READERS.items() if head.startswith(start)), None)
        size = None if read is None else read(head)
        if size is not None:
            return size if min(size) > 0 else None
        if read is not _jpeg_size or characters >= len(data):
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
    # The size is in the first frame header, which follows segments that state their length.
    at = 2
    while at + 9 <= len(head) and head[at] == 0xFF:  # noqa: PLR2004 - how a marker begins
        marker = head[at + 1]
        if marker in _SIZE_MARKERS:
            height, width = (int.from_bytes(head[at + n : at + n + 2], "big") for n in (5, 7))
            return width, height
        is_standalone = marker in _STANDALONE_MARKERS
        at += 2 + (0 if is_standalone else int.from_bytes(head[at + 2 : at + 4], "big"))
    return None


def _two_numbers(head: bytes, at: int, length: int, order: Literal["big", "little"]) -> Size | None:
    if len(head) < at + 2 * length:
        return None
    first, second = head[at : at + length], head[at + length : at + 2 * length]
    return int.from_bytes(first, order), int.from_bytes(second, order)


_SIZE_READERS: Mapping[bytes, Callable[[bytes], Size | None]] = {
    _PNG: _png_size,
    _JPEG: _jpeg_size,
    b"GIF8": _gif_size,
    b"RIFF": _webp_size,
}


def count_images(messages: Sequence[Message]) -> int:
    """Return how many images a history has, including those in results."""
    blocks = [block for message in messages for block in message.content]
    results = (block.content for block in blocks if isinstance(block, ToolResultBlock))
    return sum(isinstance(block, ImageBlock) for block in chain(blocks, *results))


def size_if_larger(block: ImageBlock, side: int | None) -> Size | None:
    """Return the size of an image that is wider or higher than a side; else None."""
    if side is None or block.source.kind != "base64":
        return None
    size = image_size(block.source.data)
    return size if size is not None and max(size) > side else None


def scale_image(block: ImageBlock, side: int) -> ImageBlock | None:
    """Return the image with its longer side brought to a length; None if that is not possible.

    It needs Pillow, which is optional.
    """
    scaled = _scaled(block.source.data, side)
    if scaled is None:
        return None
    data, media_type = scaled
    return replace(block, source=replace(block.source, data=data), media_type=media_type)


# The same image must always give the same bytes: a changed prefix would not be found in the cache
# of the provider (T90). It is also slow enough to be cached here.
@lru_cache(maxsize=16)
def _scaled(data: str, side: int) -> tuple[str, str] | None:
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
    except Exception:  # noqa: BLE001 - whatever is wrong with an image, it cannot be scaled
        return None
    return base64.b64encode(output.getvalue()).decode(), media_type


class _InlineImage(Struct, frozen=True):
    """An image whose bytes are in a history, and where it is."""

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
    """Return the history with notes for its oldest images, so that the others fit into a budget.

    The newest image, critical ones and those of the target's own clients are never left out.
    """
    sent = list(messages)
    has_images = "image" in recorder.target.user_blocks
    images = list(_inline_images(messages)) if has_images else []
    excess = sum(len(one.image.source.data) for one in images) - budget
    if excess <= 0:
        return sent
    # In steps of a quarter of the budget: one more image changes what was sent before only now and
    # then, so that the prefix that the provider has cached mostly stays.
    step = max(1, budget // _STEPS)
    excess += -excess % step
    older_size = 0
    for one in images[:-1]:
        message = messages[one.message_index]
        is_kept = one.image.critical or is_native(message, recorder.target)
        if older_size < excess and not is_kept:
            reason = f"more than {budget} characters of images; the newest stay; replaced by a note"
            recorder.record_altered(message, "image", one.path, reason)
            sent[one.message_index] = _with_note(sent[one.message_index], one)
        older_size += len(one.image.source.data)
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


def _with_note(message: Message, one: _InlineImage) -> Message:
    note = TextBlock(f"[image {one.image.media_type}: left out to make room for newer ones]")
    block = message.content[one.block_index]
    replacement: ContentBlock = note
    if isinstance(block, ToolResultBlock) and one.inner_index is not None:
        before, after = block.content[: one.inner_index], block.content[one.inner_index + 1 :]
        replacement = replace(block, content=(*before, note, *after))
    before, after = message.content[: one.block_index], message.content[one.block_index + 1 :]
    return replace(message, content=(*before, replacement, *after))
