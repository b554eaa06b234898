"""Content blocks of Anthropic Messages, to and from ours.

A decoded block is *exact* if encoding it gives the JSON that was read. What is not exact is
remembered as it came (see `spelling`), and what has no canonical meaning is opaque.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Raw

from metis.canonical.blocks import (
    ANY_IMAGE,
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
from metis.canonical.value import made
from metis.wire.shape import Wire, maybe_list, maybe_object, maybe_text

PROTOCOL = "anthropic"
"""The name under which messages remember how they were spelled here."""

_KEYS_OF_TEXT = 2
_KEYS_OF_CALL = 4

_write = msgspec.json.Encoder().encode
_make_text = made(TextBlock)
_make_call = made(ToolUseBlock)
_make_result = made(ToolResultBlock)
_make_thinking = made(ThinkingBlock)


def decode_block(wire: Any) -> ContentBlock:
    """Our block for a block of the protocol; ids of calls are still the provider's."""
    kind = maybe_text(maybe_object(wire).get("type"))
    decode = _DECODERS.get(kind or "")
    block = None if decode is None else decode(wire)
    return block or OpaqueBlock(PROTOCOL, Raw(_write(wire)), kind)


def is_result(wire: Any) -> bool:
    """Whether a block of the protocol answers a call."""
    own = maybe_object(wire)
    return own.get("type") == "tool_result" and isinstance(own.get("tool_use_id"), str)


def is_exact(block: ContentBlock, wire: Any) -> bool:
    """Whether encoding a block gives the JSON that it was decoded from."""
    kind = type(block)
    if kind is TextBlock and len(wire) == _KEYS_OF_TEXT:
        return True
    if kind is ToolUseBlock and len(wire) == _KEYS_OF_CALL:
        return True
    again = encode_block(block, str)
    return isinstance(again, Raw) or again == wire


def encode_block(block: ContentBlock, wire_id: Callable[[str], str]) -> Wire | Raw | None:
    """The block of the protocol for ours; None if it has no place there."""
    encode = _ENCODERS.get(type(block))
    return None if encode is None else encode(block, wire_id)


def _decode_text(wire: Wire) -> ContentBlock | None:
    text = wire.get("text")
    if not isinstance(text, str):
        return None
    citations = wire.get("citations")
    if not citations:
        return _make_text(text)
    return TextBlock(
        text, tuple(_decode_citation(maybe_object(each)) for each in maybe_list(citations))
    )


def _decode_citation(wire: Wire) -> Citation:
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
        parts = tuple(decode_block(part) for part in maybe_list(content))
    return _make_result(call, parts, is_error=wire.get("is_error") is True)


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
        case {"type": "url", "url": str(url)}:
            return ImageBlock(ImageSource("url", url), ANY_IMAGE)
        case _:
            return None


def _decode_document(wire: Wire) -> ContentBlock | None:
    match wire.get("source"):
        case {"type": "base64" | "text" as kind, "media_type": str(media_type), "data": str(data)}:
            source = MediaSource(kind, data)
        case {"type": "url", "url": str(data)}:
            source, media_type = MediaSource("url", data), "application/pdf"
        case {"type": "file", "file_id": str(data)}:
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


def _encode_text(block: TextBlock, _: Callable[[str], str]) -> Wire:
    wire: Wire = {"type": "text", "text": block.text}
    if block.citations:
        own = [citation.raw for citation in block.citations if citation.raw is not None]
        if own:
            wire["citations"] = own
    return wire


def _encode_tool_use(block: ToolUseBlock, wire_id: Callable[[str], str]) -> Wire:
    return {
        "type": "tool_use",
        "id": wire_id(block.id),
        "name": block.name,
        "input": block.input,
    }


def _encode_tool_result(block: ToolResultBlock, wire_id: Callable[[str], str]) -> Wire:
    content = [encode_block(part, wire_id) for part in block.content]
    wire: Wire = {
        "type": "tool_result",
        "tool_use_id": wire_id(block.tool_use_id),
        "content": [part for part in content if part is not None],
    }
    if block.is_error:
        wire["is_error"] = True
    return wire


def _encode_thinking(block: ThinkingBlock, _: Callable[[str], str]) -> Wire | None:
    if block.signature is None:
        return None
    return {"type": "thinking", "thinking": block.text, "signature": block.signature}


def _encode_redacted(block: RedactedThinkingBlock, _: Callable[[str], str]) -> Wire:
    return {"type": "redacted_thinking", "data": block.data}


def _encode_image(block: ImageBlock, _: Callable[[str], str]) -> Wire | None:
    source = block.source
    if source.kind == "base64":
        inner = {"type": "base64", "media_type": block.media_type, "data": source.data}
        return {"type": "image", "source": inner}
    if source.kind == "url":
        return {"type": "image", "source": {"type": "url", "url": source.data}}
    return None


def _encode_document(block: DocumentBlock, _: Callable[[str], str]) -> Wire | None:
    source = block.source
    match source.kind:
        case "base64" | "text":
            inner = {"type": source.kind, "media_type": block.media_type, "data": source.data}
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


def _encode_opaque(block: OpaqueBlock, _: Callable[[str], str]) -> Raw | None:
    return block.raw if block.issuer == PROTOCOL else None


_ENCODERS: Mapping[type, Callable[[Any, Callable[[str], str]], Wire | Raw | None]] = {
    TextBlock: _encode_text,
    ToolUseBlock: _encode_tool_use,
    ToolResultBlock: _encode_tool_result,
    ThinkingBlock: _encode_thinking,
    RedactedThinkingBlock: _encode_redacted,
    ImageBlock: _encode_image,
    DocumentBlock: _encode_document,
    OpaqueBlock: _encode_opaque,
}
