"""Scaling: pictures that are larger than a target takes, made smaller where that can be done (T90).

It is done with Pillow, if that is installed. The same picture always becomes the same smaller one,
so that what a provider has cached of a request stays as it was.
"""

import base64
import importlib
import io
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

from msgspec.structs import replace

from metis.canonical.blocks import ImageBlock, ToolResultBlock
from metis.canonical.message import Message
from metis.projection.image_size import Size, image_size

_FORMATS = {"image/jpeg": "JPEG", "image/png": "PNG", "image/webp": "WEBP"}
_QUALITY = 90


def image_count(messages: Sequence[Message]) -> int:
    """How many pictures a conversation shows, those in results with them."""
    blocks = [block for message in messages for block in message.content]
    results = (block.content for block in blocks if isinstance(block, ToolResultBlock))
    return sum(isinstance(block, ImageBlock) for block in chain(blocks, *results))


def oversize(block: ImageBlock, side: int | None) -> Size | None:
    """The size of a picture that is longer than a side; None if it is not, or nobody can tell."""
    if side is None or block.source.kind != "base64":
        return None
    size = image_size(block.source.data)
    return size if size is not None and max(size) > side else None


def scaled(block: ImageBlock, side: int) -> ImageBlock | None:
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
