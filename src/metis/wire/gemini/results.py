"""Results of calls: `functionResponse` holds an object, and media beside it.

The protocol names two keys of that object: `output` and `error`. What has another form is told to
other providers as JSON, and comes back here as it was.
"""

from typing import Any, cast

import msgspec

from metis.canonical.blocks import (
    ContentBlock,
    DocumentBlock,
    OpaqueBlock,
    TextBlock,
    ToolResultBlock,
)
from metis.canonical.value import made
from metis.wire.gemini.media import Media, decode_media, encode_media
from metis.wire.gemini.names import PROTOCOL
from metis.wire.shape import Wire, maybe_list, maybe_object

_write_sorted = msgspec.json.Encoder(order="deterministic").encode
_make_text = made(TextBlock)
_SAID = ("output", "result")
_MANY = 2


def decode_answer(response: Any) -> tuple[tuple[ContentBlock, ...], bool]:
    """What a response object says, and whether it is an error."""
    if type(response) is dict and len(cast("Wire", response)) == 1:
        ((key, value),) = cast("Wire", response).items()
        if key == "error":
            return (_make_text(value if type(value) is str else _text(value)),), True
        if key in _SAID and type(value) is str:
            return (_make_text(value),), False
        if key == "output" and _are_texts(value):
            return tuple(_make_text(text) for text in value), False
    if not response:
        return (), False
    return (_make_text(_text(response)),), False


def _are_texts(value: Any) -> bool:
    return (
        type(value) is list
        and len(cast("list[Any]", value)) >= _MANY
        and all(type(text) is str for text in cast("list[Any]", value))
    )


def _text(value: Any) -> str:
    # Sorted, so that the text is the same before and after the object was stored.
    return _write_sorted(value).decode()


def encode_answer(result: ToolResultBlock) -> Wire:
    """The response object for a result."""
    texts = [text for block in result.content if (text := _text_of(block)) is not None]
    if result.is_error:
        return {"error": "\n".join(texts)}
    if len(texts) == 1:
        return {"output": texts[0]}
    return {"output": texts} if texts else {}


def _text_of(block: ContentBlock) -> str | None:
    """The words of a text, or of a document that is plain text; media of results have none."""
    if type(block) is TextBlock:
        return block.text
    if isinstance(block, DocumentBlock) and block.source.kind == "text":
        return block.source.data
    return None


def is_said_by(response: Any, result: ToolResultBlock) -> bool:
    """Whether a response object still says what a result says."""
    texts, is_error = decode_answer(response)
    said = tuple(block for block in result.content if type(block) is TextBlock)
    return is_error == result.is_error and _words(texts) == _words(said)


def _words(blocks: tuple[ContentBlock, ...]) -> list[str]:
    return [block.text for block in blocks if isinstance(block, TextBlock)]


def decode_result_media(wire: Wire, issuer: str) -> tuple[ContentBlock, ...]:
    """The media of a result."""
    return tuple(
        decode_media(maybe_object(part), issuer, is_made=False)
        or OpaqueBlock(issuer, msgspec.Raw(_write_sorted(part)), PROTOCOL)
        for part in maybe_list(wire.get("parts"))
    )


def encode_result_media(result: ToolResultBlock) -> list[Any]:
    """The parts for the media of a result."""
    parts: list[Any] = []
    for block in result.content:
        if isinstance(block, OpaqueBlock):
            parts.append(block.raw)
        elif isinstance(block, Media) and block.source.kind != "text":
            part = encode_media(block)
            if part is not None:
                parts.append(part)
    return parts
