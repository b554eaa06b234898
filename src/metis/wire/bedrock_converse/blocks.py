"""Content blocks and cache points of Bedrock Converse, to and from canonical blocks and hints.

A wire block is an object with one key, which names its kind. A decoded block is *exact* if
encoding it gives the JSON that it was decoded from. The JSON of inexact blocks is stored in the
original form of the message (see `original_form`). Blocks of unknown kinds become opaque blocks.
"""

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, to_builtins

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
from metis.canonical.message import Message
from metis.canonical.metadata import CacheHint
from metis.canonical.schema.subset import describe
from metis.canonical.value import raw_constructor
from metis.projection.media import is_base64
from metis.wire.bedrock_converse.media import (
    Media,
    decode_audio,
    decode_cited,
    decode_document,
    decode_generated_image,
    decode_image,
    decode_search_result,
    decode_video,
    encode_cited,
    encode_media,
)
from metis.wire.json_access import Wire, maybe_list, maybe_object, maybe_text
from metis.wire.original_form import (
    EMPTY,
    is_meaningful,
    original_blocks,
    original_form_of,
    unmapped_paths,
)


class TextPart(Struct, gc=False):
    """A text block."""

    text: str


class ToolUse(Struct, gc=False, rename="camel"):
    """The tool of a call and its arguments."""

    input: Mapping[str, Any]
    name: str
    tool_use_id: str


class ToolUsePart(Struct, gc=False, rename="camel"):
    """A tool call."""

    tool_use: ToolUse


class ToolResult(Struct, gc=False, kw_only=True, rename="camel"):
    """The content of a tool result."""

    content: Sequence[Any]
    status: str | UnsetType = UNSET
    tool_use_id: str


class ToolResultPart(Struct, gc=False, rename="camel"):
    """A tool result."""

    tool_result: ToolResult


class ReasoningText(Struct, gc=False, kw_only=True):
    """Thinking with its signature."""

    signature: str | UnsetType = UNSET
    text: str


class Reasoning(Struct, gc=False, rename="camel"):
    """The readable form of thinking, as opposed to `redactedContent`."""

    reasoning_text: ReasoningText


class ReasoningPart(Struct, gc=False, rename="camel"):
    """A thinking block."""

    reasoning_content: Reasoning


Part = TextPart | ToolUsePart | ToolResultPart | ReasoningPart
"""A common wire block as a Struct, with sorted fields like all keys of a request."""


PROTOCOL = "bedrock_converse"
"""The name of the protocol, under which messages store their original form."""
WIRE_ID_PREFIX = "tooluse_"
"""The prefix of wire ids that are derived from tool_use_ids."""
SERVER_CALL, SERVER_RESULT = "server_tool_use", "server_tool_result"
"""The kinds of opaque blocks for a call that the provider ran, and for its result."""
CLIENT_CALL = "tool_use"
"""The type of a call that the client runs; some responses contain it, requests do not."""

_CALL_KEYS = 3
_write = msgspec.json.Encoder().encode
_read = msgspec.json.Decoder().decode
_make_text = raw_constructor(TextBlock)
_make_call = raw_constructor(ToolUseBlock)
_make_result = raw_constructor(ToolResultBlock)
_make_thinking = raw_constructor(ThinkingBlock)


def decode_block(wire: Any, *, is_response: bool = False) -> ContentBlock:
    """Decode a block; calls still have wire ids.

    With `is_response`, the model wrote the block: an image in it is a generated one.
    """
    part = maybe_object(wire)
    # A block with two keys is invalid; as an opaque block the API decides what to do with it.
    key = next(iter(part), "") if len(part) == 1 else ""
    block = None
    if is_response and key == "image":
        block = decode_generated_image(maybe_object(part[key]), PROTOCOL)
    elif key in _DECODERS:
        block = _DECODERS[key](part[key])
    return block or _opaque(wire)


def decode_part(wire: Any, *, is_response: bool = False) -> ContentBlock:
    """Decode a block or a result; calls and results still have wire ids."""
    if is_result(wire) and not is_response:
        return decode_result(wire, maybe_object(wire["toolResult"])["toolUseId"])
    return decode_block(wire, is_response=is_response)


def _opaque(wire: Any) -> OpaqueBlock:
    return OpaqueBlock(PROTOCOL, Raw(_write(wire)), _kind_of(maybe_object(wire)))


def _kind_of(part: Wire) -> str | None:
    """Return the kind of an opaque block."""
    if "toolResult" in part:
        return SERVER_RESULT
    if maybe_object(part.get("toolUse")).get("type") == SERVER_CALL:
        return SERVER_CALL
    return next(iter(part), None)


def is_result(wire: Any) -> bool:
    """Whether a wire block is the result of a call."""
    result = maybe_object(maybe_object(wire).get("toolResult"))
    return isinstance(result.get("toolUseId"), str)


def is_plain_call(call: Wire) -> bool:
    """Whether a call has exactly the keys `input`, `name` and `toolUseId`."""
    return (
        len(call) == _CALL_KEYS
        and type(call.get("input")) is dict
        and type(call.get("name")) is str
        and type(call.get("toolUseId")) is str
    )


def plain_result_text(result: Wire) -> str | None:
    """Return the text of a result with one text and any status; None for any other result."""
    content, status = result.get("content"), result.get("status")
    if status not in (None, "success", "error") or len(result) != (2 if status is None else 3):
        return None
    if type(content) is not list or len(cast("list[Any]", content)) != 1:
        return None
    only = maybe_object(content[0])
    text = only.get("text")
    return text if type(text) is str and len(only) == 1 else None


def decode_result(wire: Any, tool_use_id: str) -> ToolResultBlock:
    """Decode a result; `tool_use_id` replaces the wire id."""
    result = maybe_object(maybe_object(wire).get("toolResult"))
    content = tuple([_decode_inner(part) for part in maybe_list(result.get("content"))])
    return _make_result(tool_use_id, content, is_error=result.get("status") == "error")


def _decode_inner(wire: Any) -> ContentBlock:
    """Decode a block inside a result: JSON becomes text, a call becomes an opaque block."""
    part = maybe_object(wire)
    if len(part) == 1 and "json" in part:
        return _make_text(_write(part["json"]).decode())
    block = decode_block(wire)
    return _opaque(wire) if isinstance(block, ToolUseBlock) else block


def is_exact(block: ContentBlock, wire: Any, wire_id: "WireId") -> bool:
    """Whether encoding a block gives the JSON that it was decoded from."""
    if type(block) is OpaqueBlock or (type(block) is TextBlock and "text" in wire):
        return True  # the only key of a text part is `text`
    return encode_alone(block, wire_id) == wire


def encode_alone(block: ContentBlock, wire_id: "WireId" = str) -> Any:
    """Return the JSON of a block without its original form."""
    # `to_builtins` does not parse raw JSON, which only results with opaque blocks contain.
    if isinstance(block, ToolResultBlock) and any(map(_is_raw, block.content)):
        return _read(_write(encode_block(block, wire_id)))
    return to_builtins(encode_block(block, wire_id))


def _is_raw(block: ContentBlock) -> bool:
    return type(block) is OpaqueBlock


WireId = Callable[[str], str]
"""Returns the wire id for a tool_use_id."""
EncodedBlock = Part | Wire | Raw
"""A wire block, ready to be written as JSON."""


def encode_block(block: ContentBlock, wire_id: WireId) -> EncodedBlock | None:
    """Encode a block; None if the protocol has no block for it."""
    encode = _ENCODERS.get(type(block))
    return None if encode is None else encode(block, wire_id)


def _decode_text(text: Any) -> ContentBlock | None:
    return _make_text(text) if isinstance(text, str) else None


def _decode_call(call: Any) -> ContentBlock | None:
    wire = maybe_object(call)
    wire_id, name, arguments = wire.get("toolUseId"), wire.get("name"), wire.get("input", {})
    if not isinstance(wire_id, str) or not isinstance(name, str):
        return None
    if wire.get("type", CLIENT_CALL) != CLIENT_CALL:
        return None
    if isinstance(arguments, dict):
        return _make_call(wire_id, name, cast("Wire", arguments))
    # Arguments that are not an object are stored as invalid, so that the call is not run.
    text = _write(arguments).decode()
    fault = InvalidInput(text, f"not an object but {describe(arguments)}")
    return ToolUseBlock(wire_id, name, {}, fault)


def _decode_reasoning(wire: Any) -> ContentBlock | None:
    match wire:
        case {"reasoningText": {"text": str(text), "signature": str(signature)}}:
            return _thinking(cast("Wire", wire), text, signature)
        case {"reasoningText": {"text": str(text)}}:
            return _thinking(cast("Wire", wire), text, None)
        case {"redactedContent": str(data)} if len(cast("Wire", wire)) == 1:
            return RedactedThinkingBlock(data, issuer=PROTOCOL)
        case _:
            return None


def _thinking(wire: Wire, text: str, signature: str | None) -> ContentBlock | None:
    return _make_thinking(text, signature, issuer=PROTOCOL) if len(wire) == 1 else None


def _decode_guarded(wire: Any) -> ContentBlock | None:
    """Decode `guardContent`: content for a guardrail that is also part of the prompt."""
    match wire:
        case {"text": {"text": str(text)}}:
            return _make_text(text)
        case {"image": {"source": {"bytes": str()}} as image}:
            return decode_image(cast("Wire", image))
        case _:
            return None


def _object(decode: Callable[[Wire], ContentBlock | None]) -> Callable[[Any], ContentBlock | None]:
    def decode_any(wire: Any) -> ContentBlock | None:
        return decode(cast("Wire", wire)) if isinstance(wire, dict) else None

    return decode_any


_DECODERS: Mapping[str, Callable[[Any], ContentBlock | None]] = {
    "text": _decode_text,
    "toolUse": _decode_call,
    "reasoningContent": _decode_reasoning,
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


def _encode_thinking(block: ThinkingBlock, _: WireId) -> ReasoningPart:
    signature = UNSET if block.signature is None else block.signature
    return ReasoningPart(Reasoning(ReasoningText(signature=signature, text=block.text)))


def _encode_redacted(block: RedactedThinkingBlock, _: WireId) -> Wire:
    return {"reasoningContent": {"redactedContent": ensure_base64(block.data)}}


def ensure_base64(data: str) -> str:
    """Return redacted data as base64, which Bedrock requires; other providers use any text."""
    return data if is_base64(data) else base64.b64encode(data.encode()).decode()


def _encode_media(block: Media, _: WireId) -> Wire | None:
    return encode_media(block)


def _encode_opaque(block: OpaqueBlock, _: WireId) -> Raw | None:
    # Bedrock rejects unknown keys, so that opaque blocks of others are not sent.
    return block.raw if block.issuer == PROTOCOL else None


_ENCODERS: Mapping[type, Callable[[Any, WireId], EncodedBlock | None]] = {
    TextBlock: _encode_text,
    ToolUseBlock: _encode_call,
    ToolResultBlock: _encode_result,
    ThinkingBlock: _encode_thinking,
    RedactedThinkingBlock: _encode_redacted,
    ImageBlock: _encode_media,
    DocumentBlock: _encode_media,
    AudioBlock: _encode_media,
    VideoBlock: _encode_media,
    ArtifactBlock: _encode_media,
    OpaqueBlock: _encode_opaque,
}


_KEY = "cachePoint"
# Bedrock rejects other values; a cache point with one is sent unchanged as an opaque block.
_TTLS = (None, "5m", "1h")


def cache_hint(part: Any, after: int) -> CacheHint | None:
    """Decode a cache point into a hint; None for other parts and for unknown keys or values."""
    wire = maybe_object(part)
    mark = maybe_object(wire.get(_KEY))
    if len(wire) != 1 or mark.get("type") != "default" or after < 0:
        return None
    ttl = maybe_text(mark.get("ttl"))
    return CacheHint(after=after, ttl=ttl) if mark == _mark(ttl) and ttl in _TTLS else None


def _mark(ttl: str | None) -> Wire:
    return {"type": "default"} if ttl is None else {"ttl": ttl, "type": "default"}


def with_cache_points(parts: Sequence[Any], hints: Sequence[CacheHint]) -> list[Any]:
    """Return the parts of a message with a cache point for each hint.

    `parts` has one entry per block, None for a block that the protocol cannot encode. A cache point
    after such a block is placed after the preceding part.
    """
    marked: list[Any] = []
    for index, part in enumerate(parts):
        if part is not None:
            marked.append(part)
        if marked:
            marked += ({_KEY: _mark(hint.ttl)} for hint in hints if hint.after == index)
    return marked


def cache_marks(wire: Mapping[str, Any]) -> list[Wire]:
    """Return the cache points of a request outside of its messages: those in the tool list."""
    tools = maybe_list(maybe_object(wire.get("toolConfig")).get("tools"))
    marks = (maybe_object(maybe_object(tool).get(_KEY)) for tool in tools)
    return [mark for mark in marks if mark]


_RENAMED_PARTS = {"json": "text", "searchResult": "document"}
"""The keys of parts that are encoded under another key, with the same content."""


def unmapped_keys(message: Message) -> Iterator[str]:
    """Yield the paths of keys that other protocols have no field for."""
    form = original_form_of(message, PROTOCOL)
    keys = maybe_object(form.get("keys"))
    yield from (f"$.{key}" for key, value in keys.items() if is_meaningful(key, value))
    ids = form.get("ids") or EMPTY
    for index, wire in original_blocks(message, form, decode_part).items():
        plain = encode_alone(message.content[int(index)], lambda call: ids.get(call, call))
        yield from unmapped_paths(_normal(wire), plain, f"$.content[{index}]")


def _normal(wire: Any) -> Wire:
    """Return a part with the key of its encoded block and without default values."""
    part = maybe_object(wire)
    result = maybe_object(part.get("toolResult"))
    if result:
        content = [_normal(inner) for inner in maybe_list(result.get("content"))]
        status = {"status": None} if result.get("status") == "success" else {}
        return {"toolResult": {**result, "content": content, **status}}
    call = maybe_object(part.get("toolUse"))
    if call.get("type") == CLIENT_CALL:
        return {"toolUse": {key: value for key, value in call.items() if key != "type"}}
    return {_RENAMED_PARTS.get(key, key): value for key, value in part.items()}
