"""Values that Chat Completions and OpenAI Responses encode alike: media, citations and usage."""

import math
import re
from decimal import Decimal
from typing import Any

from metis.canonical.blocks import (
    ANY_IMAGE_TYPE,
    AudioBlock,
    Citation,
    DocumentBlock,
    ImageBlock,
    ImageSource,
    MediaSource,
)
from metis.wire.json_access import Wire

ANY_FILE = "application/octet-stream"
"""The media type of a file that is only known by its id."""
PDF = "application/pdf"
"""The media type that a document without one is assumed to have."""

_DATA_URL = re.compile(r"data:([^;,]+);base64,(.*)", re.DOTALL)
# The API names the file format, not the media type; it takes `wav` and `mp3` only (T99).
_AUDIO_TYPES = {"mp3": "audio/mpeg"}
_AUDIO_FORMATS = {media_type: name for name, media_type in _AUDIO_TYPES.items()}
_MAX_INDEX = 2**63


def parse_data_url(url: str) -> tuple[str, str] | None:
    """Return the base64 data and the media type of a data URL; None for other URLs."""
    match = _DATA_URL.fullmatch(url)
    return None if match is None else (match[2], match[1])


def media_url(source: MediaSource | ImageSource, media_type: str) -> str | None:
    """Return the URL for a source; None if the provider could not open it."""
    if source.kind == "base64":
        return f"data:{media_type};base64,{source.data}"
    return source.data if source.kind == "url" else None


def decode_image_url(url: str) -> ImageBlock:
    """Decode the URL of an image, or an image in a data URL."""
    inline = parse_data_url(url)
    if inline is None:
        return ImageBlock(ImageSource("url", url), ANY_IMAGE_TYPE)
    data, media_type = inline
    return ImageBlock(ImageSource("base64", data), media_type)


def decode_audio(wire: Wire) -> AudioBlock | None:
    """Decode a part of audio; None if it has another form."""
    match wire.get("input_audio"):
        case {"data": str(data), "format": str(name)}:
            media_type = _AUDIO_TYPES.get(name, f"audio/{name}")
            return AudioBlock(MediaSource("base64", data), media_type)
        case _:
            return None


def encode_audio(block: AudioBlock) -> Wire | None:
    """Encode audio as a part; None if its data is elsewhere."""
    if block.source.kind != "base64":
        return None
    kind = block.media_type
    name = _AUDIO_FORMATS.get(kind) or kind.removeprefix("audio/").removeprefix("x-")
    return {"type": "input_audio", "input_audio": {"data": block.source.data, "format": name}}


def file_name(block: DocumentBlock) -> str:
    """Return the name of a document, or one made of its type."""
    # Without a filename OpenAI takes `file_data` for a reference: 400, `file_id` is missing.
    return block.name or f"document.{block.media_type.partition('/')[2]}"


def decode_index(value: Any) -> int | None:
    """Return an index of a citation, if it is a number that a store can hold."""
    return value if type(value) is int and abs(value) < _MAX_INDEX else None


def encode_page(citation: Citation) -> Wire | None:
    """Encode the web page of another provider's citation; None if it cites no page."""
    if citation.url is None:
        return None
    return {
        "start_index": citation.start or 0,
        "end_index": citation.end or 0,
        "title": citation.title or "",
        "url": citation.url,
    }


def input_tokens(prompt: int, cached: int, written: int) -> int:
    """Return the prompt tokens that were neither read from the cache nor written to it."""
    # xAI counts cached tokens apart for some models: then the parts exceed the sum (T143).
    return prompt - cached - written if cached + written <= prompt else prompt


def decode_cost(value: Any) -> Decimal | None:
    """Return what the host charged, if it is an amount of money."""
    is_amount = type(value) in (int, float) and 0 <= value < math.inf
    return Decimal(str(value)) if is_amount else None
