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
"""The media type of a file that is referenced by id, whose real type is unknown."""
PDF = "application/pdf"
"""The media type of a document that does not state one."""

_DATA_URL = re.compile(r"data:([^;,]+);base64,(.*)", re.DOTALL)
# OpenAI expects a file format, not a media type, and accepts only `wav` and `mp3` (T99).
_AUDIO_TYPES = {"mp3": "audio/mpeg"}
_AUDIO_FORMATS = {media_type: name for name, media_type in _AUDIO_TYPES.items()}
_MAX_INDEX = 2**63


def parse_data_url(url: str) -> tuple[str, str] | None:
    """Return the base64 data and the media type of a data URL; None for other URLs."""
    match = _DATA_URL.fullmatch(url)
    return None if match is None else (match[2], match[1])


def media_url(source: MediaSource | ImageSource, media_type: str) -> str | None:
    """Return the URL or data URL for a source; None for files that only another host can read."""
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
    """Decode an audio part; None if `input_audio` is not of the documented form."""
    match wire.get("input_audio"):
        case {"data": str(data), "format": str(name)}:
            media_type = _AUDIO_TYPES.get(name, f"audio/{name}")
            return AudioBlock(MediaSource("base64", data), media_type)
        case _:
            return None


def encode_audio(block: AudioBlock) -> Wire | None:
    """Encode an audio part; None unless the block contains the data."""
    if block.source.kind != "base64":
        return None
    kind = block.media_type
    name = _AUDIO_FORMATS.get(kind) or kind.removeprefix("audio/").removeprefix("x-")
    return {"type": "input_audio", "input_audio": {"data": block.source.data, "format": name}}


def file_name(block: DocumentBlock) -> str:
    """Return the name of a document, or a name derived from its media type."""
    # Without a filename OpenAI rejects `file_data` with 400, "`file_id` is missing".
    return block.name or f"document.{block.media_type.partition('/')[2]}"


def decode_index(value: Any) -> int | None:
    """Return the index of a citation if it is an integer of 64 bits, else None."""
    return value if type(value) is int and abs(value) < _MAX_INDEX else None


def encode_page(citation: Citation) -> Wire | None:
    """Encode another provider's citation of a web page; None if the citation has no URL."""
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
    # xAI excludes cached tokens from the prompt of some models: the parts exceed it (T143).
    return prompt - cached - written if cached + written <= prompt else prompt


def decode_cost(value: Any) -> Decimal | None:
    """Return the cost that the host reports, if it is a finite, non-negative number."""
    is_amount = type(value) in (int, float) and 0 <= value < math.inf
    return Decimal(str(value)) if is_amount else None
