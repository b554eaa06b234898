"""Content blocks and cache points of Bedrock Converse, to and from canonical blocks and hints.

A wire block is an object with one key, which names its kind. A decoded block is *exact* if
encoding it gives the JSON that was read. Inexact blocks are stored in their original form (see
`original_form`); blocks without a canonical meaning become opaque.
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
    """A text."""

    text: str


class ToolUse(Struct, gc=False, rename="camel"):
    """What is called, and with which arguments."""

    input: Mapping[str, Any]
    name: str
    tool_use_id: str


class ToolUsePart(Struct, gc=False, rename="camel"):
    """A call of a tool."""

    tool_use: ToolUse


class ToolResult(Struct, gc=False, kw_only=True, rename="camel"):
    """What is answered."""

    content: Sequence[Any]
    status: str | UnsetType = UNSET
    tool_use_id: str


class ToolResultPart(Struct, gc=False, rename="camel"):
    """The answer to a call."""

    tool_result: ToolResult


class ReasoningText(Struct, gc=False, kw_only=True):
    """What was thought, with the seal of the model."""

    signature: str | UnsetType = UNSET
    text: str


class Reasoning(Struct, gc=False, rename="camel"):
    """A thought that can be read."""

    reasoning_text: ReasoningText


class ReasoningPart(Struct, gc=False, rename="camel"):
    """A thought."""

    reasoning_content: Reasoning


Part = TextPart | ToolUsePart | ToolResultPart | ReasoningPart
"""A part of a turn or of an answer."""


PROTOCOL = "bedrock_converse"
"""The name under which messages remember how they were spelled here."""
SERVER_CALL, SERVER_RESULT = "server_tool_use", "server_tool_result"
"""The kinds of opaque parts that are a call which the provider ran itself, and its result."""
CLIENT_CALL = "tool_use"
"""What answers say of a call that the client shall run; requests do not say it."""

_KEYS_OF_CALL = 3
_write = msgspec.json.Encoder().encode
_read = msgspec.json.Decoder().decode
_make_text = raw_constructor(TextBlock)
_make_call = raw_constructor(ToolUseBlock)
_make_result = raw_constructor(ToolResultBlock)
_make_thinking = raw_constructor(ThinkingBlock)


def decode_block(wire: Any, *, is_answer: bool = False) -> ContentBlock:
    """Our block for a block of the protocol; ids of calls are still the provider's.

    `is_answer` says that the model speaks: what it shows it has made.
    """
    own = maybe_object(wire)
    key = next(iter(own), "") if len(own) == 1 else ""
    block = None
    if is_answer and key == "image":
        block = decode_generated_image(maybe_object(own[key]), PROTOCOL)
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


def is_plain_call(call: Wire) -> bool:
    """Whether a call has what every call has, and nothing else."""
    return (
        len(call) == _KEYS_OF_CALL
        and type(call.get("input")) is dict
        and type(call.get("name")) is str
        and type(call.get("toolUseId")) is str
    )


def plain_result_text(answer: Wire) -> str | None:
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
    return type(block) is OpaqueBlock or encode_alone(block, wire_id) == wire


def encode_alone(block: ContentBlock, wire_id: "WireId" = str) -> Any:
    """The JSON that a block alone stands for."""
    if isinstance(block, ToolResultBlock) and any(map(_is_raw, block.content)):
        return _read(_write(encode_block(block, wire_id)))
    return to_builtins(encode_block(block, wire_id))


def _is_raw(block: ContentBlock) -> bool:
    return type(block) is OpaqueBlock


WireId = Callable[[str], str]
"""The protocol's id for one of ours."""
EncodedBlock = Part | Wire | Raw
"""A block of the protocol, ready to be written."""


def encode_block(block: ContentBlock, wire_id: WireId) -> EncodedBlock | None:
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
    if own.get("type", CLIENT_CALL) != CLIENT_CALL:
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
    return {"reasoningContent": {"redactedContent": ensure_base64(block.data)}}


def ensure_base64(data: str) -> str:
    """Sealed data as bytes are written; what another provider sealed may be any text."""
    return data if is_base64(data) else base64.b64encode(data.encode()).decode()


def _encode_media(block: Media, _: WireId) -> Wire | None:
    return encode_media(block)


def _encode_opaque(block: OpaqueBlock, _: WireId) -> Raw | None:
    return block.raw if block.issuer == PROTOCOL else None


_ENCODERS: Mapping[type, Callable[[Any, WireId], EncodedBlock | None]] = {
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


_KEY = "cachePoint"
_TTLS = (None, "5m", "1h")


def cache_hint(part: Any, after: int) -> CacheHint | None:
    """The hint that a mark stands for; None if it is none, or says more."""
    own = maybe_object(part)
    mark = maybe_object(own.get(_KEY))
    if len(own) != 1 or mark.get("type") != "default" or after < 0:
        return None
    ttl = maybe_text(mark.get("ttl"))
    return CacheHint(after=after, ttl=ttl) if mark == _mark(ttl) and ttl in _TTLS else None


def _mark(ttl: str | None) -> Wire:
    return {"type": "default"} if ttl is None else {"ttl": ttl, "type": "default"}


def with_cache_points(parts: Sequence[Any], hints: Sequence[CacheHint]) -> list[Any]:
    """The parts of a message, one for each block, with the marks that hints ask for.

    A block that has no part is not marked itself: what stands before it is.
    """
    marked: list[Any] = []
    for index, part in enumerate(parts):
        if part is not None:
            marked.append(part)
        if marked:
            marked += ({_KEY: _mark(hint.ttl)} for hint in hints if hint.after == index)
    return marked


def cache_marks(wire: Mapping[str, Any]) -> list[Wire]:
    """The marks that a request sets beside its messages: on tools."""
    tools = maybe_list(maybe_object(wire.get("toolConfig")).get("tools"))
    marks = (maybe_object(maybe_object(tool).get(_KEY)) for tool in tools)
    return [mark for mark in marks if mark]


_TOLD = {"json": "text", "searchResult": "document"}
"""Parts that are told under another name, with all that they say."""


def unmapped_keys(message: Message) -> Iterator[str]:
    """The paths of keys that another protocol is not told."""
    spelling = original_form_of(message, PROTOCOL)
    keys = maybe_object(spelling.get("keys"))
    yield from (f"$.{key}" for key, value in keys.items() if is_meaningful(key, value))
    ids = spelling.get("ids") or EMPTY
    for index, wire in original_blocks(message, spelling).items():
        plain = encode_alone(message.content[int(index)], lambda ours: ids.get(ours, ours))
        yield from unmapped_paths(_normal(wire), plain, f"$.content[{index}]")


def _normal(wire: Any) -> Wire:
    """A part with what is told under another name under that."""
    own = maybe_object(wire)
    answer = maybe_object(own.get("toolResult"))
    if answer:
        content = [_normal(part) for part in maybe_list(answer.get("content"))]
        status = {"status": None} if answer.get("status") == "success" else {}
        return {"toolResult": {**answer, "content": content, **status}}
    call = maybe_object(own.get("toolUse"))
    if call.get("type") == "tool_use":
        return {"toolUse": {key: value for key, value in call.items() if key != "type"}}
    return {_TOLD.get(key, key): value for key, value in own.items()}
