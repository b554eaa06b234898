"""Responses of Anthropic Messages."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from metis.canonical.blocks import ContentBlock, TextBlock, ThinkingBlock, ToolUseBlock
from metis.canonical.digest import content_digest
from metis.canonical.ids import new_ulid
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageMetadata, MessageStatus, StopReason, Usage
from metis.canonical.value import raw_constructor
from metis.wire.anthropic.blocks import (
    PROTOCOL,
    decode_non_result,
    encode_block,
    is_exact,
)
from metis.wire.anthropic.errors import decode_error
from metis.wire.call import UNPRICED, RequestContext
from metis.wire.errors import has_failed, is_failed_stop, read_error
from metis.wire.json_access import Wire, list_at, maybe_count, maybe_object, maybe_text, read_object
from metis.wire.original_form import original_blocks, original_form_of
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
_KEYS_OF_USAGE = 2
_KEYS_OF_TEXT, _KEYS_OF_THOUGHT, _KEYS_OF_CALL = 2, 3, 4
_ASSISTANT, _COMPLETE = Role.ASSISTANT, MessageStatus.COMPLETE
_FREE = Decimal(0)
_make_text = raw_constructor(TextBlock)
_make_call = raw_constructor(ToolUseBlock)
_make_thinking = raw_constructor(ThinkingBlock)
_make_message = raw_constructor(Message)
_make_metadata = raw_constructor(MessageMetadata)
_make_usage = raw_constructor(Usage)


def decode_response(body: bytes | Wire, context: RequestContext) -> Message:
    """The message of a response body; an error body raises the error that it stands for."""
    is_error = has_failed(context)
    if isinstance(body, dict):
        wire = {**body}
    else:
        wire = read_error(body) if is_error else read_object(body, "response")
    if is_error or wire.get("type") == "error":
        raise decode_error(wire, context.status)
    return decode_body(wire, context, message_id=new_ulid())


def decode_body(
    wire: Wire,
    context: RequestContext,
    *,
    message_id: str,
    status: MessageStatus = MessageStatus.COMPLETE,
) -> Message:
    """The message of a response, whole or as far as it has come; its content is taken out of it."""
    parts = list_at(wire.pop("content", None), "$.content")
    content, ids, odd = _decode_content(parts, _scope(context, wire, message_id))
    raw: Wire = {"response": wire}
    if ids:
        raw["ids"] = ids
    if odd:
        raw["blocks"] = odd
        raw["digest"] = content_digest(_ASSISTANT, content)
    provider, word = context.provider or PROTOCOL, wire.get("stop_reason")
    if status is _COMPLETE and not content:
        status = MessageStatus.ERROR  # nothing is no answer (M-123, T166)
    return _make_message(
        id=message_id,
        session_id=context.session_id,
        role=_ASSISTANT,
        content=tuple(content),
        created_at=context.created_at,
        metadata=_make_metadata(
            model=context.model or f"{provider}:{wire.get('model', 'unknown')}",
            provider=provider,
            origin=provider,
            status=status,
            usage=decode_usage(wire.get("usage"), context),
            stop_reason=decode_stop_reason(maybe_text(word)),
            response_id=maybe_text(wire.get("id")),
            provider_raw={PROTOCOL: raw},
        ),
    )


_Content = tuple[list[ContentBlock], dict[str, str], Wire]
"""The blocks of an answer, the provider's ids of its calls, and the parts that say more."""


def _decode_content(parts: list[Any], scope: str) -> _Content:
    try:
        common = _decode_common(parts, scope)
    except (KeyError, TypeError):
        common = None
    return common or _decode_all(parts, scope)


def _decode_common(parts: list[Wire], scope: str) -> _Content | None:
    """The same in one pass for texts, calls and signed thoughts; None or an error for all else."""
    content: list[ContentBlock] = []
    ids: dict[str, str] = {}
    for part in parts:
        kind, count = part["type"], len(part)
        if kind == "text" and count == _KEYS_OF_TEXT:
            text = part["text"]
            if type(text) is not str:
                return None
            content.append(_make_text(text))
        elif kind == "tool_use" and count == _KEYS_OF_CALL:
            theirs, name, given = part["id"], part["name"], part["input"]
            if type(theirs) is not str or type(name) is not str or type(given) is not dict:
                return None
            ours = canonical_tool_id(scope, theirs)
            ids[ours] = theirs
            content.append(_make_call(ours, name, given))
        elif kind == "thinking" and count == _KEYS_OF_THOUGHT:
            text, signature = part["thinking"], part["signature"]
            if type(text) is not str or type(signature) is not str:
                return None
            content.append(_make_thinking(text, signature, None, None, PROTOCOL))
        else:
            return None
    return content, ids, {}


def _decode_all(parts: list[Any], scope: str) -> _Content:
    content: list[ContentBlock] = []
    ids: dict[str, str] = {}
    odd: Wire = {}
    for index, part in enumerate(parts):
        block = decode_non_result(part)
        if not is_exact(block, part):
            odd[str(index)] = part
        if isinstance(block, ToolUseBlock):
            ours = canonical_tool_id(scope, block.id)
            ids[ours] = block.id
            block = replace(block, id=ours)
        content.append(block)
    return content, ids, odd


def _scope(context: RequestContext, wire: Wire, message_id: str) -> str:
    """What ids of calls are told apart by: one that comes again in another answer is another."""
    return f"{context.session_id}\0{maybe_text(wire.get('id')) or message_id}"


def tool_use_id_of(context: RequestContext, wire: Wire, message_id: str, wire_id: str) -> str:
    """Our id for a call of an answer (T09)."""
    return canonical_tool_id(_scope(context, wire, message_id), wire_id)


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
    usage = _make_usage(
        input_tokens=fresh,
        output_tokens=maybe_count(counts.get("output_tokens")) or 0,
        cost_usd=_FREE,
        pricing_version=UNPRICED,
        latency_ms=context.latency_ms,
    )
    return replace(usage, **_more_usage(counts)) if len(counts) > _KEYS_OF_USAGE else usage


def _more_usage(counts: Wire) -> dict[str, Any]:
    """What a usage tells beside the two counts that it always has."""
    written = maybe_object(counts.get("cache_creation"))
    total = maybe_count(counts.get("cache_creation_input_tokens")) or 0
    one_hour = maybe_count(written.get("ephemeral_1h_input_tokens")) or 0
    server = counts.get("server_tool_use")
    return {
        "cached_input_tokens": maybe_count(counts.get("cache_read_input_tokens")) or 0,
        "cache_creation_input_tokens": total,
        "cache_creation_1h_input_tokens": min(one_hour, total),
        "service_tier": maybe_text(counts.get("service_tier")),
        "server_tool_requests": _server_tools(maybe_object(server)) or None if server else None,
    }


def _server_tools(counts: Wire) -> dict[str, int]:
    return {
        name.removesuffix("_requests"): count
        for name, count in counts.items()
        if name.endswith("_requests") and maybe_count(count)
    }


def encode_response(message: Message, context: RequestContext) -> bytes:
    """The response body for a message."""
    spelling = original_form_of(message, PROTOCOL)
    known = cast("Mapping[str, str]", spelling.get("ids", {}))
    odd = original_blocks(message, spelling)
    blocks = [
        odd.get(str(index))
        or encode_block(block, lambda ours: known.get(ours) or derived_id(ours, "toolu_"))
        for index, block in enumerate(message.content)
    ]
    envelope = spelling.get("response") or encode_envelope(message, context)
    if is_failed_stop(message.metadata.stop_reason):
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
