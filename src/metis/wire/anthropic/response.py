"""Responses of Anthropic Messages: messages, usage and stop reasons."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from metis.canonical.blocks import ContentBlock, ThinkingBlock, ToolUseBlock
from metis.canonical.digest import content_digest
from metis.canonical.ids import new_ulid
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageStatus, StopReason, Usage
from metis.wire.anthropic.blocks import (
    PROTOCOL,
    WIRE_ID_PREFIX,
    EncodedBlock,
    ThinkingPart,
    WireId,
    decode_non_result,
    encode_block,
    is_exact,
)
from metis.wire.anthropic.errors import decode_error
from metis.wire.call import RequestContext
from metis.wire.errors import has_failed, is_failed_stop
from metis.wire.json_access import (
    Wire,
    list_at,
    maybe_count,
    maybe_list,
    maybe_object,
    maybe_text,
)
from metis.wire.original_form import EMPTY, original_blocks, original_form_of
from metis.wire.response import model_name, new_usage, read_response, response_message
from metis.wire.tool_ids import derived_id, next_tool_id

_STOP_REASONS = {
    "end_turn": StopReason.END_TURN,
    "max_tokens": StopReason.MAX_TOKENS,
    # A full context window truncates a response as the token limit does.
    "model_context_window_exceeded": StopReason.MAX_TOKENS,
    "stop_sequence": StopReason.STOP_SEQUENCE,
    "tool_use": StopReason.TOOL_USE,
    "pause_turn": StopReason.PAUSE,
    "refusal": StopReason.REFUSAL,
}
_STOP_REASON_NAMES: Mapping[StopReason, str] = {
    StopReason.END_TURN: "end_turn",
    StopReason.MAX_TOKENS: "max_tokens",
    StopReason.STOP_SEQUENCE: "stop_sequence",
    StopReason.TOOL_USE: "tool_use",
    StopReason.PAUSE: "pause_turn",
    StopReason.REFUSAL: "refusal",
    # Anthropic has no reason for a content filter; clients handle both in the same way.
    StopReason.CONTENT_FILTER: "refusal",
}
_write = msgspec.json.Encoder().encode
_USAGE_KEYS = 2
"""The number of keys in a usage that has only input and output tokens."""


def decode_response(body: bytes | Wire, context: RequestContext) -> Message:
    """Decode a response body; an error body is raised as a ProviderError."""
    wire = read_response(body, context)
    if has_failed(context) or wire.get("type") == "error":
        raise decode_error(wire, context.status)
    return decode_body(wire, context, message_id=new_ulid())


def decode_body(
    wire: Wire,
    context: RequestContext,
    *,
    message_id: str,
    status: MessageStatus = MessageStatus.COMPLETE,
) -> Message:
    """Decode a response, complete or partial; its content is removed from `wire`."""
    parts = list_at(wire.pop("content", None), "$.content")
    scope = _scope(context, wire, message_id)
    content: list[ContentBlock] = []
    ids: dict[str, str] = {}
    counts: dict[str, int] = {}
    inexact: Wire = {}
    for index, part in enumerate(parts):
        block = decode_non_result(part)
        if not is_exact(block, part):
            inexact[str(index)] = part
        if isinstance(block, ToolUseBlock):
            tool_use_id = next_tool_id(scope, block.id, counts)
            # Anthropic rejects requests with two calls of one id: a repeated wire id is not stored,
            # so that the next request derives another one from the tool_use_id.
            if counts[block.id] == 1:
                ids[tool_use_id] = block.id
            block = replace(block, id=tool_use_id)
        content.append(block)
    form: Wire = {"response": wire}
    if ids:
        form["ids"] = ids
    if inexact:
        form["blocks"], form["digest"] = inexact, content_digest(Role.ASSISTANT, content)
    provider = context.provider or PROTOCOL
    return response_message(
        content,
        context,
        (PROTOCOL, form),
        message_id=message_id,
        provider=provider,
        model=context.model or f"{provider}:{maybe_text(wire.get('model')) or 'unknown'}",
        status=status,
        usage=decode_usage(wire.get("usage"), context),
        stop_reason=decode_stop_reason(maybe_text(wire.get("stop_reason"))),
        response_id=maybe_text(wire.get("id")),
    )


def _scope(context: RequestContext, wire: Wire, message_id: str) -> str:
    """Return the scope of call ids: the same wire id in another response is another call."""
    return f"{context.session_id}\0{maybe_text(wire.get('id')) or message_id}"


def tool_use_id_of(
    context: RequestContext, wire: Wire, message_id: str, wire_id: str, counts: dict[str, int]
) -> str:
    """Return the tool_use_id of the next call; some hosts reuse wire ids in each response (T09)."""
    return next_tool_id(_scope(context, wire, message_id), wire_id, counts)


def decode_stop_reason(name: str | None) -> StopReason | None:
    """Decode a stop reason; UNKNOWN for a new name, which the original form still contains."""
    return None if name is None else _STOP_REASONS.get(name, StopReason.UNKNOWN)


def encode_stop_reason(reason: StopReason | None) -> str | None:
    """Encode a stop reason; None for an unknown one and for failed responses (T164)."""
    return None if reason is None else _STOP_REASON_NAMES.get(reason)


def decode_usage(wire: object, context: RequestContext) -> Usage | None:
    """Decode a usage into disjoint buckets; an absent usage is unknown, not zero (T153)."""
    counts = maybe_object(wire)
    input_tokens = maybe_count(counts.get("input_tokens"))
    if input_tokens is None:
        return None
    if counts.get("iterations"):
        counts = _with_compactions(counts)
        input_tokens = counts["input_tokens"]
    return new_usage(
        latency_ms=context.latency_ms,
        input_tokens=input_tokens,
        output_tokens=maybe_count(counts.get("output_tokens")) or 0,
        **_decode_extra_usage(counts) if len(counts) > _USAGE_KEYS else {},
    )


_TOKEN_KEYS = (
    "input_tokens",
    "output_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
)


def _with_compactions(counts: Wire) -> Wire:
    """Add the tokens of compactions, which are billed but not part of the totals (T222)."""
    total = dict(counts)
    for iteration in map(maybe_object, maybe_list(counts.get("iterations"))):
        if iteration.get("type") == "compaction":
            for key in _TOKEN_KEYS:
                total[key] = (maybe_count(total.get(key)) or 0) + (
                    maybe_count(iteration.get(key)) or 0
                )
    return total


def _decode_extra_usage(counts: Wire) -> dict[str, Any]:
    """Decode the buckets besides input and output tokens."""
    by_duration = maybe_object(counts.get("cache_creation"))
    total = maybe_count(counts.get("cache_creation_input_tokens")) or 0
    one_hour = maybe_count(by_duration.get("ephemeral_1h_input_tokens")) or 0
    requests = counts.get("server_tool_use")
    details = maybe_object(counts.get("output_tokens_details"))
    output = maybe_count(counts.get("output_tokens")) or 0
    return {
        # A wrong count of a compatible host must not exceed the total that includes it.
        "reasoning_output_tokens": min(maybe_count(details.get("thinking_tokens")) or 0, output),
        "cached_input_tokens": maybe_count(counts.get("cache_read_input_tokens")) or 0,
        "cache_creation_input_tokens": total,
        # Tokens cached for one hour are part of the total and have a higher price.
        "cache_creation_1h_input_tokens": min(one_hour, total),
        "service_tier": maybe_text(counts.get("service_tier")),
        "server_tool_requests": (requests and _server_tools(maybe_object(requests))) or None,
    }


def _server_tools(counts: Wire) -> dict[str, int]:
    return {
        name.removesuffix("_requests"): count
        for name, count in counts.items()
        if name.endswith("_requests") and maybe_count(count)
    }


def encode_response(message: Message, context: RequestContext) -> bytes:
    """Encode the response body for a message."""
    form = original_form_of(message, PROTOCOL)
    wire_ids: Mapping[str, str] = form.get("ids", EMPTY)
    originals = original_blocks(message, form, decode_non_result)
    blocks = [
        originals.get(str(index))
        or encode_served_block(
            block, lambda call: wire_ids.get(call) or derived_id(call, WIRE_ID_PREFIX)
        )
        for index, block in enumerate(message.content)
    ]
    envelope = form.get("response") or encode_envelope(message, context)
    reason = message.metadata.stop_reason
    envelope_reason = decode_stop_reason(maybe_text(envelope.get("stop_reason")))
    if is_failed_stop(reason) or envelope_reason is not reason:
        # The stored envelope is outdated if the message has changed since, and a client must not
        # treat a failed response as complete (T164).
        envelope = {**envelope, "stop_reason": encode_stop_reason(reason)}
    return _write({**envelope, "content": [block for block in blocks if block is not None]})


def encode_served_block(block: ContentBlock, wire_id: WireId) -> EncodedBlock | None:
    """Encode a block of a response for a client; None if the protocol has no block for it.

    Thinking of other providers has no signature. Anthropic rejects it in a request, but clients
    can display it.
    """
    if type(block) is ThinkingBlock and block.signature is None:
        return ThinkingPart("", block.text)
    return encode_block(block, wire_id)


def encode_envelope(message: Message, context: RequestContext) -> Wire:
    """Encode the keys of a response other than its content."""
    metadata = message.metadata
    return {
        "id": metadata.response_id or f"msg_{message.id}",
        "type": "message",
        "role": "assistant",
        "model": model_name(context.model or metadata.model),
        "stop_reason": encode_stop_reason(metadata.stop_reason),
        "stop_sequence": None,
        "usage": encode_usage(metadata.usage),
    }


def encode_usage(usage: Usage | None) -> Wire:
    """Encode a usage; an unknown usage becomes zero, because SDKs require the object."""
    if usage is None:
        return {"input_tokens": 0, "output_tokens": 0}
    wire: Wire = {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cache_creation_input_tokens": usage.cache_creation_input_tokens,
        "cache_read_input_tokens": usage.cached_input_tokens,
    }
    if usage.reasoning_output_tokens:
        wire["output_tokens_details"] = {"thinking_tokens": usage.reasoning_output_tokens}
    if one_hour := usage.cache_creation_1h_input_tokens:
        wire["cache_creation"] = {
            "ephemeral_5m_input_tokens": usage.cache_creation_input_tokens - one_hour,
            "ephemeral_1h_input_tokens": one_hour,
        }
    return wire
