"""Content blocks of Anthropic Messages, to and from canonical blocks.

A decoded block is *exact* if encoding it gives the JSON that it was decoded from. The JSON of
inexact blocks is stored in the original form of the message (see `original_form`). Blocks of
unknown types become opaque blocks.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import replace

from metis.canonical.blocks import (
    ANY_IMAGE_TYPE,
    Citation,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    ImageSource,
    MediaSource,
    OpaqueBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from metis.canonical.message import Message
from metis.canonical.metadata import CacheHint
from metis.canonical.value import raw_constructor
from metis.wire.json_access import Wire, maybe_list, maybe_object, maybe_text
from metis.wire.original_form import (
    is_meaningful,
    original_blocks,
    original_form_of,
    unmapped_paths,
)


class TextPart(Struct, tag="text", gc=False, forbid_unknown_fields=True):
    """A text block."""

    text: str
    cache_control: Any = UNSET
    citations: Any = UNSET


class ThinkingPart(Struct, tag="thinking", gc=False, forbid_unknown_fields=True):
    """A signed thinking block, which cannot carry a cache mark."""

    cache_control: ClassVar[UnsetType] = UNSET
    signature: str
    thinking: str


class RedactedPart(Struct, tag="redacted_thinking", gc=False, forbid_unknown_fields=True):
    """A thinking block that only its issuer can read."""

    cache_control: ClassVar[UnsetType] = UNSET
    data: str


class ToolUsePart(Struct, tag="tool_use", gc=False, forbid_unknown_fields=True):
    """A tool call."""

    id: str
    input: Mapping[str, Any]
    name: str
    cache_control: Any = UNSET


class InlineImage(Struct, tag="base64", gc=False, forbid_unknown_fields=True):
    """An image whose bytes are in the request."""

    data: str
    media_type: str


class LinkedImage(Struct, tag="url", gc=False, forbid_unknown_fields=True):
    """An image that the provider fetches."""

    url: str


class ImagePart(Struct, tag="image", gc=False, forbid_unknown_fields=True):
    """An image."""

    source: InlineImage | LinkedImage
    cache_control: Any = UNSET


class ToolResultPart(Struct, tag="tool_result", gc=False, forbid_unknown_fields=True):
    """A tool result."""

    tool_use_id: str
    content: "str | list[TextPart | ImagePart] | UnsetType" = UNSET
    is_error: bool | UnsetType = UNSET
    cache_control: Any = UNSET


Part = TextPart | ThinkingPart | RedactedPart | ToolUsePart | ImagePart | ToolResultPart
"""A common wire block as a Struct; used for encoding, and for decoding by the fast path."""


PROTOCOL = "anthropic"
"""The name of the protocol, under which messages store their original form."""
WIRE_ID_PREFIX = "toolu_"
"""The prefix of wire ids that are derived from tool_use_ids."""

_KEY_COUNTS: Mapping[type, int] = {TextBlock: 2, ThinkingBlock: 3, ToolUseBlock: 4}
"""The number of keys in the wire block that a canonical block is encoded to."""

_write = msgspec.json.Encoder().encode
_read = msgspec.json.Decoder().decode
_make_text = raw_constructor(TextBlock)
_make_call = raw_constructor(ToolUseBlock)
_make_result = raw_constructor(ToolResultBlock)
_make_thinking = raw_constructor(ThinkingBlock)


def decode_block(wire: Any) -> ContentBlock:
    """Decode a block; calls and results still have wire ids."""
    # Anthropic adds block types without notice; as opaque blocks they can be sent back unchanged.
    kind = maybe_text(maybe_object(wire).get("type"))
    decode = _DECODERS.get(kind or "")
    block = None if decode is None else decode(wire)
    return block or opaque_block(wire, kind)


def decode_non_result(wire: Any) -> ContentBlock:
    """Decode a block outside of a user message, where a tool result becomes an opaque block."""
    block = decode_block(wire)
    return opaque_block(wire, block.type) if isinstance(block, ToolResultBlock) else block


def opaque_block(wire: Any, kind: str | None) -> OpaqueBlock:
    """Return an opaque block for JSON that has no canonical meaning in its position."""
    return OpaqueBlock(PROTOCOL, Raw(_write(wire)), kind)


def with_id(block: ContentBlock, tool_use_id: str | None) -> ContentBlock:
    """Return a call or a result with a tool_use_id in place of the wire id."""
    if tool_use_id is None:
        return block
    if isinstance(block, ToolUseBlock):
        return replace(block, id=tool_use_id)
    is_result = isinstance(block, ToolResultBlock)
    return replace(block, tool_use_id=tool_use_id) if is_result else block


def is_result(wire: Any) -> bool:
    """Whether a wire block is the result of a call."""
    block = maybe_object(wire)
    return block.get("type") == "tool_result" and isinstance(block.get("tool_use_id"), str)


def is_exact(block: ContentBlock, wire: Any) -> bool:
    """Whether encoding a block gives the JSON that it was decoded from."""
    if type(block) is OpaqueBlock:
        return True
    # A block with the expected number of keys has no others; counting is faster than encoding.
    if len(wire) == _KEY_COUNTS.get(type(block)):
        return type(block) is not ThinkingBlock or block.signature is not None
    return encode_alone(block) == wire


def encode_alone(block: ContentBlock) -> Any:
    """Return the JSON of a block without its original form and with tool_use_ids."""
    return _read(_write(encode_block(block, str)))


WireId = Callable[[str], str]
"""Returns the wire id for a tool_use_id."""
EncodedBlock = Part | Wire | Raw
"""A wire block, ready to be written as JSON."""


def encode_block(block: ContentBlock, wire_id: WireId) -> EncodedBlock | None:
    """Encode a block; None if the protocol has no block for it."""
    encode = _ENCODERS.get(type(block))
    return None if encode is None else encode(block, wire_id)


def _decode_text(wire: Wire) -> ContentBlock | None:
    text = wire.get("text")
    if not isinstance(text, str):
        return None
    citations = wire.get("citations")
    if not citations:
        return _make_text(text)
    return TextBlock(text, tuple(map(decode_citation, map(maybe_object, maybe_list(citations)))))


def decode_citation(wire: Wire) -> Citation:
    """Decode a citation of any kind."""
    return Citation(
        kind=str(wire.get("type")),
        cited_text=maybe_text(wire.get("cited_text")),
        url=maybe_text(wire.get("url")),
        title=maybe_text(wire.get("title") or wire.get("document_title")),
        raw=wire,
    )


def _decode_tool_use(wire: Wire) -> ContentBlock | None:
    call, name, arguments = wire.get("id"), wire.get("name"), wire.get("input")
    if isinstance(call, str) and isinstance(name, str) and isinstance(arguments, dict):
        return _make_call(call, name, arguments)
    return None


def _decode_tool_result(wire: Wire) -> ContentBlock | None:
    call, content = wire.get("tool_use_id"), wire.get("content")
    if not isinstance(call, str):
        return None
    if isinstance(content, str):
        parts: tuple[ContentBlock, ...] = (_make_text(content),)
    else:
        parts = tuple(_decode_inner(part) for part in maybe_list(content))
    return _make_result(call, parts, is_error=wire.get("is_error") is True)


def _decode_inner(wire: Any) -> ContentBlock:
    """Decode a block within a result, where calls and results have no meaning."""
    block = decode_block(wire)
    is_misplaced = isinstance(block, ToolUseBlock | ToolResultBlock)
    return opaque_block(wire, block.type) if is_misplaced else block


def _decode_thinking(wire: Wire) -> ContentBlock | None:
    text, signature = wire.get("thinking"), wire.get("signature")
    if isinstance(text, str) and isinstance(signature, str | None):
        return _make_thinking(text, signature, issuer=PROTOCOL)
    return None


def _decode_redacted(wire: Wire) -> ContentBlock | None:
    data = wire.get("data")
    return RedactedThinkingBlock(data, issuer=PROTOCOL) if isinstance(data, str) else None


def _decode_image(wire: Wire) -> ContentBlock | None:
    match wire.get("source"):
        case {"type": "base64", "media_type": str(media_type), "data": str(data)}:
            return ImageBlock(ImageSource("base64", data), media_type)
        # The media type of the image behind a URL is unknown.
        case {"type": "url", "url": str(url)}:
            return ImageBlock(ImageSource("url", url), ANY_IMAGE_TYPE)
        case _:
            return None


def _decode_document(wire: Wire) -> ContentBlock | None:
    match wire.get("source"):
        case {"type": "base64" | "text" as kind, "media_type": str(media_type), "data": str(data)}:
            source = MediaSource(kind, data)
        case {"type": "url", "url": str(data)}:
            # Anthropic fetches only PDF files by URL.
            source, media_type = MediaSource("url", data), "application/pdf"
        case {"type": "file", "file_id": str(data)}:
            # The media type of an uploaded file is unknown.
            source, media_type = MediaSource("file_id", data, PROTOCOL), "application/octet-stream"
        case _:
            return None
    title, context = maybe_text(wire.get("title")), maybe_text(wire.get("context"))
    return DocumentBlock(source, media_type, title, context)


_DECODERS: Mapping[str, Callable[[Wire], ContentBlock | None]] = {
    "text": _decode_text,
    "tool_use": _decode_tool_use,
    "tool_result": _decode_tool_result,
    "thinking": _decode_thinking,
    "redacted_thinking": _decode_redacted,
    "image": _decode_image,
    "document": _decode_document,
}


def _encode_text(block: TextBlock, _: WireId) -> TextPart | Wire:
    citations = [citation.raw for citation in block.citations if citation.raw is not None]
    if not citations:
        return TextPart(block.text)
    return {"type": "text", "text": block.text, "citations": citations}


def _encode_tool_use(block: ToolUseBlock, wire_id: WireId) -> ToolUsePart:
    return ToolUsePart(wire_id(block.id), block.input, block.name)


def _encode_tool_result(block: ToolResultBlock, wire_id: WireId) -> ToolResultPart:
    content: list[Any] = []
    for inner in block.content:
        if type(inner) is TextBlock and not inner.citations:
            content.append(TextPart(inner.text))
        elif (part := encode_block(inner, wire_id)) is not None:
            content.append(part)
    return ToolResultPart(wire_id(block.tool_use_id), content, True if block.is_error else UNSET)


def _encode_thinking(block: ThinkingBlock, _: WireId) -> ThinkingPart | None:
    # Anthropic rejects thinking without its signature.
    return None if block.signature is None else ThinkingPart(block.signature, block.text)


def _encode_redacted(block: RedactedThinkingBlock, _: WireId) -> RedactedPart:
    return RedactedPart(block.data)


def _encode_image(block: ImageBlock, _: WireId) -> ImagePart | None:
    source = block.source
    if source.kind == "base64":
        return ImagePart(InlineImage(source.data, block.media_type))
    return ImagePart(LinkedImage(source.data)) if source.kind == "url" else None


def _encode_document(block: DocumentBlock, _: WireId) -> Wire | None:
    source = block.source
    match source.kind:
        case "base64":
            inner = {"type": "base64", "media_type": block.media_type, "data": source.data}
        case "text":
            # Anthropic accepts only this media type for text, even for Markdown or CSV.
            inner = {"type": "text", "media_type": "text/plain", "data": source.data}
        case "url":
            inner = {"type": "url", "url": source.data}
        case "file_id":
            inner = {"type": "file", "file_id": source.data}
        case "file_ref":
            return None
    wire: Wire = {"type": "document", "source": inner}
    if block.name is not None:
        wire["title"] = block.name
    if block.context is not None:
        wire["context"] = block.context
    return wire


def _encode_opaque(block: OpaqueBlock, _: WireId) -> Raw | None:
    # Anthropic rejects unknown block types, so that opaque blocks of others are not sent.
    return block.raw if block.issuer == PROTOCOL else None


_ENCODERS: Mapping[type, Callable[[Any, WireId], EncodedBlock | None]] = {
    TextBlock: _encode_text,
    ToolUseBlock: _encode_tool_use,
    ToolResultBlock: _encode_tool_result,
    ThinkingBlock: _encode_thinking,
    RedactedThinkingBlock: _encode_redacted,
    ImageBlock: _encode_image,
    DocumentBlock: _encode_document,
    OpaqueBlock: _encode_opaque,
}


def cache_hints(blocks: Mapping[str, Any]) -> tuple[CacheHint, ...]:
    """Decode the cache marks of blocks; a mark inside a result applies to the result."""
    return tuple(
        CacheHint(after=int(index), ttl=maybe_text(mark.get("ttl")))
        for index, block in blocks.items()
        if (mark := _mark_of(block))
    )


def _mark_of(block: Any) -> Wire:
    wire = maybe_object(block)
    is_result = wire.get("type") == "tool_result"
    parts = (wire, *map(maybe_object, maybe_list(wire.get("content")))) if is_result else (wire,)
    marks = (maybe_object(part.get("cache_control")) for part in parts)
    return next((mark for mark in marks if mark), Wire())


def add_cache_marks(blocks: list[Any], hints: Iterable[CacheHint]) -> None:
    """Add cache marks to the blocks that hints refer to; existing marks are not changed."""
    for hint in hints:
        if 0 <= hint.after < len(blocks):
            blocks[hint.after] = _with_mark(blocks[hint.after], hint.ttl)


def _with_mark(block: Any, ttl: str | None) -> Any:
    # Without a TTL Anthropic caches the prefix for five minutes.
    mark = {"type": "ephemeral"} if ttl is None else {"type": "ephemeral", "ttl": ttl}
    if isinstance(block, TextPart | ToolUsePart | ToolResultPart | ImagePart):
        block.cache_control = mark
        return block
    wire = maybe_object(block)
    return block if not wire or _mark_of(wire) else {**wire, "cache_control": mark}


def unmapped_keys(message: Message) -> Iterator[str]:
    """Yield the paths of keys that other protocols have no field for."""
    form = original_form_of(message, PROTOCOL)
    keys = maybe_object(form.get("keys"))
    yield from (f"$.{key}" for key, value in keys.items() if is_meaningful(key, value))
    for index, wire in original_blocks(message, form, decode_block).items():
        plain = encode_alone(message.content[int(index)])
        yield from unmapped_paths(wire, plain, f"$.content[{index}]")
