"""Images on their way to a target.

their size in pixels, scaling, and the budget for many of them.
"""

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


_FORMATS = {"image/jpeg": "JPEG", "image/png": "PNG", "image/webp": "WEBP"}
_QUALITY = 90


def count_images(messages: Sequence[Message]) -> int:
    """How many pictures a conversation shows, those in results with them."""
    blocks = [block for message in messages for block in message.content]
    results = (block.content for block in blocks if isinstance(block, ToolResultBlock))
    return sum(isinstance(block, ImageBlock) for block in chain(blocks, *results))


def size_if_larger(block: ImageBlock, side: int | None) -> Size | None:
    """The size of a picture that is longer than a side; None if it is not, or nobody can tell."""
    if side is None or block.source.kind != "base64":
        return None
    size = image_size(block.source.data)
    return size if size is not None and max(size) > side else None


def scale_image(block: ImageBlock, side: int) -> ImageBlock | None:
    """The picture with its longer side brought to that length; None if it cannot be done."""
    made = _scaled(block.source.data, side)
    if made is None:
        return None
    data, media_type = made
    return replace(block, source=replace(block.source, data=data), media_type=media_type)


@lru_cache(maxsize=16)
def _scaled(data: str, side: int) -> tuple[str, str] | None:
    try:
        pictures: Any = importlib.import_module("PIL.Image")
    except ImportError:
        return None
    try:
        picture = pictures.open(io.BytesIO(base64.b64decode(data)))
        media_type = pictures.MIME.get(picture.format, "image/png")
        if media_type not in _FORMATS:
            media_type = "image/png"
        if media_type == "image/jpeg":
            picture = picture.convert("RGB")
        elif picture.mode not in ("L", "RGB", "RGBA"):
            picture = picture.convert("RGBA")
        picture.thumbnail((side, side))
        written = io.BytesIO()
        picture.save(written, _FORMATS[media_type], quality=_QUALITY)
    except Exception:  # noqa: BLE001 - whatever is wrong with a picture, it cannot be made smaller
        return None
    return base64.b64encode(written.getvalue()).decode(), media_type


IMAGE_BUDGET = 8 * 1024 * 1024
"""The characters of pictures that a session sends along: eight megabytes of base64."""

_STEPS = 4


class _Shown(Struct, frozen=True):
    """A picture whose bytes are in a conversation, and where it stands."""

    message: int
    block: int
    inner: int | None
    image: ImageBlock

    @property
    def path(self) -> str:
        place = f"$.content[{self.block}]"
        return place if self.inner is None else f"{place}.content[{self.inner}]"


def keep_newest_images(
    messages: Sequence[Message], budget: int, ledger: LossRecorder
) -> list[Message]:
    """The conversation with notes for its oldest pictures, so that the others fit into a budget.

    Room is made in steps of a quarter of the budget: a picture more changes what was sent before
    only now and then, and what the provider has cached mostly stays. The newest picture, critical
    ones and those of the target's own clients are never left out.
    """
    sent = list(messages)
    shown = list(_shown(messages)) if "image" in ledger.target.user_blocks else []
    over = sum(len(each.image.source.data) for each in shown) - budget
    if over <= 0:
        return sent
    step = max(1, budget // _STEPS)
    over += -over % step
    before = 0
    for each in shown[:-1]:
        message = messages[each.message]
        if before < over and not each.image.critical and not is_native(message, ledger.target):
            reason = f"more than {budget} characters of images; the newest stay"
            ledger.record_altered(
                message, "image", each.path, f"{reason}; a note stands in its place"
            )
            sent[each.message] = _without(sent[each.message], each)
        before += len(each.image.source.data)
    return sent


def _shown(messages: Sequence[Message]) -> Iterator[_Shown]:
    for place, message in enumerate(messages):
        for index, block in enumerate(message.content):
            if isinstance(block, ToolResultBlock):
                for inner, part in enumerate(block.content):
                    if isinstance(part, ImageBlock) and part.source.kind == "base64":
                        yield _Shown(place, index, inner, part)
            elif isinstance(block, ImageBlock) and block.source.kind == "base64":
                yield _Shown(place, index, None, block)


def _without(message: Message, shown: _Shown) -> Message:
    note = TextBlock(f"[image {shown.image.media_type}: left out to make room for newer ones]")
    block = message.content[shown.block]
    told: ContentBlock = note
    if isinstance(block, ToolResultBlock) and shown.inner is not None:
        inner = (*block.content[: shown.inner], note, *block.content[shown.inner + 1 :])
        told = replace(block, content=inner)
    content = (*message.content[: shown.block], told, *message.content[shown.block + 1 :])
    return replace(message, content=content)
