"""Content blocks of Bedrock Converse, to and from ours.

A block of the wire is an object with one key, which says what it is. A decoded block is *exact* if
encoding it gives the JSON that was read. What is not exact is remembered as it came (see
`spelling`), and what has no canonical meaning is opaque.
"""

import base64
from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec
from msgspec import UNSET, Raw, to_builtins

from metis.canonical.blocks import (
    ArtifactBlock,
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    InvalidInput,
    OpaqueBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    VideoBlock,
)
from metis.canonical.tool_schema import describe
from metis.canonical.value import made
from metis.projection.media import is_base64
from metis.wire.bedrock_converse.citations import decode_cited, encode_cited
from metis.wire.bedrock_converse.media import (
    Media,
    decode_audio,
    decode_document,
    decode_image,
    decode_made_image,
    decode_search_result,
    decode_video,
    encode_media,
)
from metis.wire.bedrock_converse.parts import (
    Part,
    Reasoning,
    ReasoningPart,
    ReasoningText,
    TextPart,
    ToolResult,
    ToolResultPart,
    ToolUse,
    ToolUsePart,
)
from metis.wire.shape import Wire, maybe_list, maybe_object

PROTOCOL = "bedrock_converse"
"""The name under which messages remember how they were spelled here."""
SERVER_CALL, SERVER_RESULT = "server_tool_use", "server_tool_result"
"""The kinds of opaque parts that are a call which the provider ran itself, and its result."""
CALL = "tool_use"
"""What answers say of a call that the client shall run; requests do not say it."""

_KEYS_OF_CALL = 3
_write = msgspec.json.Encoder().encode
_read = msgspec.json.Decoder().decode
_make_text = made(TextBlock)
_make_call = made(ToolUseBlock)
_make_result = made(ToolResultBlock)
_make_thinking = made(ThinkingBlock)


def decode_block(wire: Any, *, is_answer: bool = False) -> ContentBlock:
    """Our block for a block of the protocol; ids of calls are still the provider's.

    `is_answer` says that the model speaks: what it shows it has made.
    """
    own = maybe_object(wire)
    key = next(iter(own), "") if len(own) == 1 else ""
    block = None
    if is_answer and key == "image":
        block = decode_made_image(maybe_object(own[key]), PROTOCOL)
    elif key in _DECODERS:
        block = _DECODERS[key](own[key])
    return block or _opaque(wire)


def _opaque(wire: Any) -> OpaqueBlock:
    return OpaqueBlock(PROTOCOL, Raw(_write(wire)), _kind_of(maybe_object(wire)))


def _kind_of(own: Wire) -> str | None:
    """What an opaque part is called; calls of the provider and their results are told apart."""
    if "toolResult" in own:
        return SERVER_RESULT
    if maybe_object(own.get("toolUse")).get("type") == SERVER_CALL:
        return SERVER_CALL
    return next(iter(own), None)


def is_result(wire: Any) -> bool:
    """Whether a block of the protocol answers a call."""
    answer = maybe_object(maybe_object(wire).get("toolResult"))
    return isinstance(answer.get("toolUseId"), str)


def is_usual_call(call: Wire) -> bool:
    """Whether a call has what every call has, and nothing else."""
    return (
        len(call) == _KEYS_OF_CALL
        and type(call.get("input")) is dict
        and type(call.get("name")) is str
        and type(call.get("toolUseId")) is str
    )


def only_text(answer: Wire) -> str | None:
    """The text of a result that is nothing else, however it ended: the common case."""
    content, status = answer.get("content"), answer.get("status")
    if status not in (None, "success", "error") or len(answer) != (2 if status is None else 3):
        return None
    if type(content) is not list or len(cast("list[Any]", content)) != 1:
        return None
    only = maybe_object(content[0])
    text = only.get("text")
    return text if type(text) is str and len(only) == 1 else None


def decode_result(wire: Any, tool_use_id: str) -> ToolResultBlock:
    """Our block for a result; `tool_use_id` is our id of the call."""
    answer = maybe_object(maybe_object(wire).get("toolResult"))
    content = tuple([_decode_inner(part) for part in maybe_list(answer.get("content"))])
    return _make_result(tool_use_id, content, is_error=answer.get("status") == "error")


def _decode_inner(wire: Any) -> ContentBlock:
    """A part of a result; an object is told as the JSON that it is."""
    own = maybe_object(wire)
    if len(own) == 1 and "json" in own:
        return _make_text(_write(own["json"]).decode())
    block = decode_block(wire)
    # Nobody calls within a result.
    return _opaque(wire) if isinstance(block, ToolUseBlock) else block


def is_exact(block: ContentBlock, wire: Any, wire_id: "WireId") -> bool:
    """Whether encoding a block gives the JSON that it was decoded from."""
    return type(block) is OpaqueBlock or plain_block(block, wire_id) == wire


def plain_block(block: ContentBlock, wire_id: "WireId" = str) -> Any:
    """The JSON that a block alone stands for."""
    if isinstance(block, ToolResultBlock) and any(map(_is_raw, block.content)):
        return _read(_write(encode_block(block, wire_id)))
    return to_builtins(encode_block(block, wire_id))


def _is_raw(block: ContentBlock) -> bool:
    return type(block) is OpaqueBlock


WireId = Callable[[str], str]
"""The protocol's id for one of ours."""
Written = Part | Wire | Raw
"""A block of the protocol, ready to be written."""


def encode_block(block: ContentBlock, wire_id: WireId) -> Written | None:
    """The block of the protocol for ours; None if it has no place there."""
    encode = _ENCODERS.get(type(block))
    return None if encode is None else encode(block, wire_id)


def _decode_text(text: Any) -> ContentBlock | None:
    return _make_text(text) if isinstance(text, str) else None


def _decode_call(call: Any) -> ContentBlock | None:
    own = maybe_object(call)
    theirs, name, given = own.get("toolUseId"), own.get("name"), own.get("input")
    if not isinstance(theirs, str) or not isinstance(name, str):
        return None
    if own.get("type", CALL) != CALL:
        return None
    if isinstance(given, dict):
        return _make_call(theirs, name, cast("Wire", given))
    if "input" not in own:
        return _make_call(theirs, name, {})
    fault = InvalidInput(_write(given).decode(), f"not an object but {describe(given)}")
    return ToolUseBlock(theirs, name, {}, fault)


def _decode_thought(wire: Any) -> ContentBlock | None:
    match wire:
        case {"reasoningText": {"text": str(text), "signature": str(signature)}}:
            return _thought(cast("Wire", wire), text, signature)
        case {"reasoningText": {"text": str(text)}}:
            return _thought(cast("Wire", wire), text, None)
        case {"redactedContent": str(data)} if len(cast("Wire", wire)) == 1:
            return RedactedThinkingBlock(data, issuer=PROTOCOL)
        case _:
            return None


def _thought(wire: Wire, text: str, signature: str | None) -> ContentBlock | None:
    return _make_thinking(text, signature, issuer=PROTOCOL) if len(wire) == 1 else None


def _decode_guarded(wire: Any) -> ContentBlock | None:
    """What a guardrail looks at is what the model is told."""
    match wire:
        case {"text": {"text": str(text)}}:
            return _make_text(text)
        case {"image": {"source": {"bytes": str()}} as shown}:
            return decode_image(cast("Wire", shown))
        case _:
            return None


def _object(decode: Callable[[Wire], ContentBlock | None]) -> Callable[[Any], ContentBlock | None]:
    def decode_any(wire: Any) -> ContentBlock | None:
        return decode(cast("Wire", wire)) if isinstance(wire, dict) else None

    return decode_any


_DECODERS: Mapping[str, Callable[[Any], ContentBlock | None]] = {
    "text": _decode_text,
    "toolUse": _decode_call,
    "reasoningContent": _decode_thought,
    "image": _object(decode_image),
    "document": _object(decode_document),
    "video": _object(decode_video),
    "audio": _object(decode_audio),
    "guardContent": _decode_guarded,
    "citationsContent": _object(decode_cited),
    "searchResult": _object(decode_search_result),
}


def _encode_text(block: TextBlock, _: WireId) -> TextPart | Wire:
    return encode_cited(block) if block.citations else TextPart(block.text)


def _encode_call(block: ToolUseBlock, wire_id: WireId) -> ToolUsePart:
    return ToolUsePart(ToolUse(block.input, block.name, wire_id(block.id)))


def _encode_result(block: ToolResultBlock, wire_id: WireId) -> ToolResultPart:
    content: list[Any] = []
    for inner in block.content:
        if type(inner) is TextBlock:
            content.append(TextPart(inner.text))
        elif (part := encode_block(inner, wire_id)) is not None:
            content.append(part)
    return ToolResultPart(
        ToolResult(
            content=content,
            status="error" if block.is_error else UNSET,
            tool_use_id=wire_id(block.tool_use_id),
        )
    )


def _encode_thought(block: ThinkingBlock, _: WireId) -> ReasoningPart:
    sealed = UNSET if block.signature is None else block.signature
    return ReasoningPart(Reasoning(ReasoningText(signature=sealed, text=block.text)))


def _encode_redacted(block: RedactedThinkingBlock, _: WireId) -> Wire:
    return {"reasoningContent": {"redactedContent": as_bytes(block.data)}}


def as_bytes(data: str) -> str:
    """Sealed data as bytes are written; what another provider sealed may be any text."""
    return data if is_base64(data) else base64.b64encode(data.encode()).decode()


def _encode_media(block: Media, _: WireId) -> Wire | None:
    return encode_media(block)


def _encode_opaque(block: OpaqueBlock, _: WireId) -> Raw | None:
    return block.raw if block.issuer == PROTOCOL else None


_ENCODERS: Mapping[type, Callable[[Any, WireId], Written | None]] = {
    TextBlock: _encode_text,
    ToolUseBlock: _encode_call,
    ToolResultBlock: _encode_result,
    ThinkingBlock: _encode_thought,
    RedactedThinkingBlock: _encode_redacted,
    ImageBlock: _encode_media,
    DocumentBlock: _encode_media,
    AudioBlock: _encode_media,
    VideoBlock: _encode_media,
    ArtifactBlock: _encode_media,
    OpaqueBlock: _encode_opaque,
}
