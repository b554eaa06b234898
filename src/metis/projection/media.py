"""Media on its way to a target: what it is, and whether the target takes it."""

import base64
import binascii
import re
from collections.abc import Mapping
from typing import TypeVar, cast

import pybase64
from msgspec.structs import replace

from metis.canonical.blocks import (
    ANY_IMAGE,
    ArtifactBlock,
    AudioBlock,
    DocumentBlock,
    ImageBlock,
    ImageSource,
    MediaSource,
    VideoBlock,
)
from metis.projection.scaling import oversize
from metis.projection.target import Target

Media = ImageBlock | DocumentBlock | AudioBlock | VideoBlock
"""What a model is shown."""

_M = TypeVar("_M", bound=Media | ArtifactBlock)

_TO_PLAIN = str.maketrans("-_", "+/")
_QUANTUM = 4
_LAST = (*(f"{letter}=" for letter in "AEIMQUYcgkosw048"), *(f"{letter}==" for letter in "AQgw"))
"""How padded base64 ends."""
NO_BASE64 = "its data is no base64"
"""Why media cannot be sent that nobody could read."""

_TEXTUAL = re.compile(r"application/(?:(?:.+\+)?(?:json|xml|yaml)|x-yaml|toml|javascript|sql)")
"""Other types whose bytes are text."""
_DATA_URL = re.compile(r"data:([^;,]+);base64,", re.IGNORECASE)
_HEAD = 16
_MAGIC: Mapping[bytes, str] = {
    b"\x89PNG": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
}


def is_base64(data: str) -> bool:
    """Whether data is base64 as every provider reads it: padded, in one piece, not empty.

    >>> is_base64("aWY="), is_base64("aWY"), is_base64("a W="), is_base64("aWZ=")
    (True, False, False, False)
    """
    if not data or len(data) % _QUANTUM:
        return False
    try:
        pybase64.b64decode(data, validate=True)
    except ValueError:
        return False
    # The last letter says nothing beyond the last byte; strict readers look.
    return data[-1] != "=" or data.endswith(_LAST)


def with_plain_base64(block: _M) -> _M:
    """The same media with its bytes in plain base64; as it was if they are, or are none at all."""
    source = block.source
    if source.kind != "base64" or is_base64(source.data):
        return block
    bare = "".join(source.data.split()).translate(_TO_PLAIN).rstrip("=")
    plain = bare + "=" * (-len(bare) % _QUANTUM)
    try:
        plain = base64.b64encode(base64.b64decode(plain, validate=True)).decode()
    except ValueError:
        return block
    return replace(block, source=replace(source, data=plain)) if plain else block


def worded(block: DocumentBlock) -> DocumentBlock:
    """A document whose bytes are text, as that text; as it is if they are not (G-010)."""
    source, kind = block.source, block.media_type.partition(";")[0].strip().lower()
    if source.kind != "base64" or not (kind.startswith("text/") or _TEXTUAL.fullmatch(kind)):
        return block
    try:
        text = base64.b64decode(source.data, validate=True).decode()
    except ValueError:
        return block
    return replace(block, source=MediaSource("text", text)) if text.strip() else block


def settled_media(block: _M) -> _M:
    """Media whose bytes are in plain base64, and whose type is theirs where they tell it."""
    if isinstance(block, ImageBlock):
        return cast("_M", settled_image(block))
    return with_plain_base64(block)


def settled_image(image: ImageBlock) -> ImageBlock:
    """The image with plain base64 and the media type that its bytes have (T89, T94)."""
    if image.source.kind != "base64":
        return image
    prefix = _DATA_URL.match(image.source.data)
    if prefix is not None:
        image = replace(
            image,
            source=ImageSource("base64", image.source.data[prefix.end() :]),
            media_type=prefix[1].lower(),
        )
    image = with_plain_base64(image)
    kind = sniffed(image.source.data)
    return image if kind in (None, image.media_type) else replace(image, media_type=kind)


def sniffed(data: str) -> str | None:
    """The media type that the first bytes of an image speak of; None if they say nothing."""
    try:
        head = base64.b64decode(data[:_HEAD])
    except (binascii.Error, ValueError):
        return None
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), None)


def media_refusal(block: Media, target: Target) -> str | None:
    """Why a picture, a document or a recording cannot be sent; None if it can."""
    source = block.source
    if block.type not in target.user_blocks:
        return f"the model takes no {block.type}"
    if source.kind == "file_ref":
        return "the file was not read before sending"
    if isinstance(source, MediaSource) and source.kind == "file_id":
        if source.issuer not in target.issuers:
            return f"the file lies at {source.issuer or 'another provider'}"
        return None if block.type in target.file_blocks else f"{block.type} is not taken by id"
    if source.kind == "url":
        return _address_refusal(block, target)
    return _content_refusal(block, target)


def _address_refusal(block: Media, target: Target) -> str | None:
    scheme = block.source.data.partition(":")[0].lower()
    if block.type not in target.url_blocks:
        return f"{block.type} is not taken by URL"
    # A bucket of a cloud can be read by its own host only (T93).
    return (
        None if scheme in target.address_schemes else f"a {scheme!r} address cannot be read there"
    )


def _content_refusal(block: Media, target: Target) -> str | None:
    limit = target.max_image_chars
    if isinstance(block, ImageBlock) and limit is not None and len(block.source.data) > limit:
        # What counts is the text that is sent, a third longer than the file (T91).
        return f"an image of {len(block.source.data)} characters is more than {limit}"
    if isinstance(block, ImageBlock) and (size := oversize(block, target.max_image_side)):
        return f"an image of {size[0]} x {size[1]} pixels has sides over {target.max_image_side}"
    kinds = _KINDS.get(type(block))
    taken = getattr(target, kinds) if kinds and block.source.kind != "text" else None
    if taken is not None and block.media_type not in taken and block.media_type != ANY_IMAGE:
        return f"{block.media_type} is not taken"
    is_unreadable = block.source.kind == "base64" and not is_base64(block.source.data)
    return NO_BASE64 if is_unreadable else None


_KINDS: Mapping[type, str] = {
    ImageBlock: "image_media_types",
    AudioBlock: "audio_media_types",
    DocumentBlock: "document_media_types",
}
