"""Responses of Anthropic Messages."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, NamedTuple, cast

import msgspec
from msgspec import UNSET, Struct, to_builtins
from msgspec.structs import replace

from metis.canonical.blocks import ContentBlock, ToolUseBlock
from metis.canonical.digest import content_digest
from metis.canonical.errors import DecodeError
from metis.canonical.ids import new_ulid
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageMetadata, MessageStatus, StopReason, Usage
from metis.canonical.value import made
from metis.wire.anthropic.blocks import (
    PROTOCOL,
    decode_block,
    decode_part,
    encode_block,
    is_exact,
    is_exact_part,
)
from metis.wire.anthropic.errors import decode_error
from metis.wire.anthropic.parts import Part, ToolUsePart
from metis.wire.call import UNPRICED, RequestContext
from metis.wire.failure import FIRST_ERROR_STATUS, is_broken
from metis.wire.shape import (
    Wire,
    list_at,
    maybe_count,
    maybe_object,
    maybe_text,
    read_object,
)
from metis.wire.spelling import spelled_blocks, spelling_of
from metis.wire.tool_ids import canonical_tool_id, derived_id

_STOP_REASONS = {
    "end_turn": StopReason.END_TURN,
    "max_tokens": StopReason.MAX_TOKENS,
    "model_context_window_exceeded": StopReason.MAX_TOKENS,
    "stop_sequence": StopReason.STOP_SEQUENCE,
    "tool_use": StopReason.TOOL_USE,
    "pause_turn": StopReason.PAUSE,
    "refusal": StopReason.REFUSAL,
}
_WORDS: Mapping[StopReason, str] = {
    StopReason.END_TURN: "end_turn",
    StopReason.MAX_TOKENS: "max_tokens",
    StopReason.STOP_SEQUENCE: "stop_sequence",
    StopReason.TOOL_USE: "tool_use",
    StopReason.PAUSE: "pause_turn",
    StopReason.REFUSAL: "refusal",
    StopReason.CONTENT_FILTER: "refusal",
}
_write = msgspec.json.Encoder().encode
_TEXT_KEPT = 500
_ASSISTANT, _COMPLETE = Role.ASSISTANT, MessageStatus.COMPLETE
_FREE = Decimal(0)
_make_message = made(Message)
_make_metadata = made(MessageMetadata)
_make_usage = made(Usage)


class _Answer(Struct, gc=False, forbid_unknown_fields=True):
    """A response of common parts; everything else is read as plain JSON."""

    content: list[Part]
    id: Any = UNSET
    container: Any = UNSET
    context_management: Any = UNSET
    model: Any = UNSET
    role: Any = UNSET
    stop_details: Any = UNSET
    stop_reason: Any = UNSET
    stop_sequence: Any = UNSET
    type: Any = UNSET
    usage: Any = UNSET


_ENVELOPE = _Answer.__struct_fields__[1:]
_read_answer = msgspec.json.Decoder(_Answer).decode


def decode_response(body: bytes | Wire, context: RequestContext) -> Message:
    """The message of a response body; an error body raises the error that it stands for."""
    if isinstance(body, bytes) and not failed(context):
        try:
            answer = _read_answer(body)
        except (ValueError, RecursionError):
            pass
        else:
            return _decode_answer(answer, context)
    if isinstance(body, dict):
        wire = body
    else:
        wire = read_error(body) if failed(context) else read_object(body, "response")
    if wire.get("type") == "error" or failed(context):
        raise decode_error(wire, context.status)
    return decode_body(wire, context, message_id=new_ulid())


def _decode_answer(answer: _Answer, context: RequestContext) -> Message:
    message_id = new_ulid()
    envelope: Wire = {}
    for name in _ENVELOPE:
        value = getattr(answer, name)
        if value is not UNSET:
            envelope[name] = value
    ids: dict[str, str] = {}
    odd: Wire = {}
    content: list[ContentBlock] = []
    for index, part in enumerate(answer.content):
        ours = None
        if type(part) is ToolUsePart:
            ours = call_id(context, envelope, message_id, part.id)
            ids[ours] = part.id
        content.append(decode_part(part, ours))
        if not is_exact_part(part):
            odd[str(index)] = to_builtins(part)
    return _message(envelope, content, _Spelling(ids, odd), context, message_id)


def failed(context: RequestContext) -> bool:
    """Whether the status of a response says that it is an error."""
    return (context.status or 0) >= FIRST_ERROR_STATUS


def read_error(body: bytes) -> Wire:
    """An error body; what is no JSON object, such as a page of a proxy, is its own text."""
    try:
        return read_object(body, "response")
    except DecodeError:
        return {"message": body.decode(errors="replace")[:_TEXT_KEPT] or "an empty body"}


def decode_body(
    wire: Wire,
    context: RequestContext,
    *,
    message_id: str,
    status: MessageStatus = MessageStatus.COMPLETE,
) -> Message:
    """The message of a response, whole or as far as it has come."""
    ids: dict[str, str] = {}
    odd: Wire = {}
    content: list[ContentBlock] = []
    for index, part in enumerate(list_at(wire.get("content"), "$.content")):
        block = decode_block(part)
        if not is_exact(block, part):
            odd[str(index)] = part
        if isinstance(block, ToolUseBlock):
            ours = call_id(context, wire, message_id, block.id)
            ids[ours] = block.id
            block = replace(block, id=ours)
        content.append(block)
    envelope = {name: value for name, value in wire.items() if name != "content"}
    return _message(envelope, content, _Spelling(ids, odd), context, message_id, status)


class _Spelling(NamedTuple):
    """What is remembered of the blocks of an answer."""

    ids: dict[str, str]
    odd: Wire


def _message(  # noqa: PLR0913, PLR0917 - the parts of one message, each of another kind
    envelope: Wire,
    content: list[ContentBlock],
    spelling: _Spelling,
    context: RequestContext,
    message_id: str,
    status: MessageStatus = _COMPLETE,
) -> Message:
    provider = context.provider or PROTOCOL
    if status is _COMPLETE and not content:
        status = MessageStatus.ERROR  # nothing is no answer (M-123, T166)
    raw: Wire = {"response": envelope}
    if spelling.ids:
        raw["ids"] = spelling.ids
    if spelling.odd:
        raw["blocks"] = spelling.odd
        raw["digest"] = content_digest(Role.ASSISTANT, content)
    return _make_message(
        id=message_id,
        session_id=context.session_id,
        role=_ASSISTANT,
        content=tuple(content),
        created_at=context.created_at,
        metadata=_make_metadata(
            model=context.model or f"{provider}:{envelope.get('model', 'unknown')}",
            provider=provider,
            origin=provider,
            status=status,
            usage=decode_usage(envelope.get("usage"), context),
            stop_reason=decode_stop_reason(maybe_text(envelope.get("stop_reason"))),
            response_id=maybe_text(envelope.get("id")),
            provider_raw={PROTOCOL: raw},
        ),
    )


def call_id(context: RequestContext, wire: Wire, message_id: str, theirs: str) -> str:
    """Our id for a call of an answer; an id that comes again in another answer is another (T09)."""
    answer = maybe_text(wire.get("id")) or message_id
    return canonical_tool_id(f"{context.session_id}\0{answer}", theirs)


def decode_stop_reason(word: str | None) -> StopReason | None:
    """Our reason for the provider's; its own word stays in the spelling."""
    return None if word is None else _STOP_REASONS.get(word, StopReason.UNKNOWN)


def encode_stop_reason(reason: StopReason | None) -> str | None:
    """The provider's word for our reason; none if it is not known or no clean end (T164)."""
    return None if reason is None else _WORDS.get(reason)


def decode_usage(wire: object, context: RequestContext) -> Usage | None:
    """The usage of a response in disjoint buckets; absent usage is unknown, not zero (T153)."""
    if not isinstance(wire, dict):
        return None
    counts = cast("Wire", wire)
    fresh = maybe_count(counts.get("input_tokens"))
    if fresh is None:
        return None
    written = maybe_object(counts.get("cache_creation"))
    total = maybe_count(counts.get("cache_creation_input_tokens")) or 0
    one_hour = maybe_count(written.get("ephemeral_1h_input_tokens")) or 0
    server = counts.get("server_tool_use")
    return _make_usage(
        input_tokens=fresh,
        output_tokens=maybe_count(counts.get("output_tokens")) or 0,
        cached_input_tokens=maybe_count(counts.get("cache_read_input_tokens")) or 0,
        cache_creation_input_tokens=total,
        cache_creation_1h_input_tokens=min(one_hour, total),
        cost_usd=_FREE,
        pricing_version=UNPRICED,
        latency_ms=context.latency_ms,
        service_tier=maybe_text(counts.get("service_tier")),
        server_tool_requests=_server_tools(maybe_object(server)) or None if server else None,
    )


def _server_tools(counts: Wire) -> dict[str, int]:
    return {
        name.removesuffix("_requests"): count
        for name, count in counts.items()
        if name.endswith("_requests") and maybe_count(count)
    }


def encode_response(message: Message, context: RequestContext) -> bytes:
    """The response body for a message."""
    spelling = spelling_of(message, PROTOCOL)
    known = cast("Mapping[str, str]", spelling.get("ids", {}))
    odd = spelled_blocks(message, spelling)
    blocks = [
        odd.get(str(index))
        or encode_block(block, lambda ours: known.get(ours) or derived_id(ours, "toolu_"))
        for index, block in enumerate(message.content)
    ]
    envelope = spelling.get("response") or encode_envelope(message, context)
    if is_broken(message.metadata.stop_reason):
        envelope = {**envelope, "stop_reason": None}
    return _write({**envelope, "content": [block for block in blocks if block is not None]})


def encode_envelope(message: Message, context: RequestContext) -> Wire:
    """What stands around the content of a response."""
    metadata = message.metadata
    model = context.model or metadata.model or ""
    return {
        "id": metadata.response_id or f"msg_{message.id}",
        "type": "message",
        "role": "assistant",
        "model": model.partition(":")[2] or model,
        "stop_reason": encode_stop_reason(metadata.stop_reason),
        "stop_sequence": None,
        "usage": encode_usage(metadata.usage),
    }


def encode_usage(usage: Usage | None) -> Wire:
    """The usage of a response in this protocol's words; it has no word for unknown."""
    if usage is None:
        return {"input_tokens": 0, "output_tokens": 0}
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cache_creation_input_tokens": usage.cache_creation_input_tokens,
        "cache_read_input_tokens": usage.cached_input_tokens,
    }
