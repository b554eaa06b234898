"""Responses of OpenAI Responses, both directions, with their usage and stop reasons."""

from collections.abc import Mapping, Sequence
from typing import Any

from metis.canonical.blocks import ContentBlock, OpaqueBlock, ToolUseBlock
from metis.canonical.errors import DecodeError
from metis.canonical.ids import new_ulid
from metis.canonical.message import Message
from metis.canonical.metadata import MessageStatus, StopReason, Usage
from metis.wire.call import RequestContext
from metis.wire.declared_tools import DeclaredTool
from metis.wire.errors import has_failed
from metis.wire.json_access import (
    Wire,
    maybe_count,
    maybe_list,
    maybe_object,
    maybe_text,
    object_at,
    read_object,
)
from metis.wire.openai_errors import decode_error
from metis.wire.openai_responses.blocks import PROTOCOL, write_json
from metis.wire.openai_responses.items import OutputRun, encode_items
from metis.wire.openai_responses.tool_calls import CallIndex
from metis.wire.openai_values import decode_cost, input_tokens
from metis.wire.original_form import original_form_of
from metis.wire.response import model_name, new_usage, response_message
from metis.wire.tool_ids import CallIds

DEFAULT_PROVIDER = "openai-responses"
"""The provider of a response whose context names none."""

_INCOMPLETE: Mapping[str, StopReason] = {
    "max_output_tokens": StopReason.MAX_TOKENS,
    # Other servers of the protocol use the names of Chat Completions.
    "max_tokens": StopReason.MAX_TOKENS,
    "length": StopReason.MAX_TOKENS,
    "content_filter": StopReason.CONTENT_FILTER,
    "max_messages": StopReason.PAUSE,
    "steered": StopReason.PAUSE,
}
_STATUSES: Mapping[str, MessageStatus] = {
    "queued": MessageStatus.PARTIAL,
    "in_progress": MessageStatus.PARTIAL,
    "cancelled": MessageStatus.CANCELLED,
    "failed": MessageStatus.ERROR,
}
_APPROVAL = "mcp_approval_request"


def decode_response(body: bytes | Wire, context: RequestContext) -> Message:
    """Decode a response body; an error body is raised as a ProviderError."""
    provider = context.provider or DEFAULT_PROVIDER
    if has_failed(context):
        raise decode_error(body, context.status, provider)
    wire = body if isinstance(body, dict) else read_object(body, "response")
    output = wire.get("output")
    # A failed response has HTTP status 200, an error object, and the output before the failure.
    if wire.get("error") and (not output or wire.get("status") == "failed"):
        raise decode_error(wire, context.status, provider)
    if not isinstance(output, list):
        raise DecodeError("a response needs a list of output items", path="$.output")
    return decode_body(wire, context, message_id=new_ulid())


def decode_body(
    wire: Wire,
    context: RequestContext,
    *,
    message_id: str,
    status: MessageStatus | None = None,
    scope: str | None = None,
) -> Message:
    """Decode a response, complete or partial; `scope` is the scope of its call ids."""
    provider = context.provider or DEFAULT_PROVIDER
    response_id, model = maybe_text(wire.get("id")) or None, maybe_text(wire.get("model"))
    # A copy, because a stream decodes its body several times and needs the output again.
    envelope = wire.copy()
    ids = response_call_ids(context, scope or response_id or message_id, message_id)
    run = OutputRun(ids, context.provider or PROTOCOL)
    for index, item in enumerate(maybe_list(envelope.pop("output", None))):
        run.add(object_at(item, f"$.output[{index}]"))
    return response_message(
        tuple(run.blocks),
        context,
        (PROTOCOL, {**run.original_form(), "response": envelope}),
        provider=provider,
        message_id=message_id,
        model=f"{provider}:{model}" if model else context.model,
        # A background response may still be queued.
        status=status
        or _STATUSES.get(maybe_text(wire.get("status")) or "", MessageStatus.COMPLETE),
        usage=decode_usage(wire.get("usage"), context, wire.get("service_tier")),
        stop_reason=_decode_stop_reason(wire, run.blocks, is_refusal=run.has_refusal),
        response_id=response_id,
    )


def response_call_ids(context: RequestContext, response_id: str, message_id: str) -> CallIds:
    """Return the source of tool_use_ids for the calls of one response."""
    ids = CallIds(context.session_id, message_id)
    ids.enter_response(response_id)
    return ids


def encode_response(message: Message, context: RequestContext) -> bytes:
    """Encode a message as a response body."""
    form = original_form_of(message, PROTOCOL)
    envelope: Wire = form.get("response") or _new_envelope(message, context)
    reason = message.metadata.stop_reason
    parts = (part for text in form.get("texts") or () for part in text.get("parts") or ())
    is_refusal = any(part.get("type") == "refusal" for part in parts)
    original = _decode_stop_reason(envelope, message.content, is_refusal=is_refusal)
    if "response" in form and reason is not original and reason is not None:
        # The stored status is outdated if the response was cancelled later (T164).
        status, details = encode_status(reason)
        envelope = {**envelope, "status": status, "incomplete_details": details}
    declared = context.declared_tools
    return write_json({**envelope, "output": encode_output_items(message, form, declared)})


def encode_output_items(
    message: Message, form: Mapping[str, Any], declared: Mapping[str, DeclaredTool]
) -> list[Any]:
    """Encode a message as the output items of a response."""
    calls = CallIndex(declared)
    calls.add(form)
    return list(encode_items(message.content, form, calls, "response", message.id))


def _new_envelope(message: Message, context: RequestContext) -> Wire:
    """Return the keys of a response besides its output, for a message of another protocol."""
    metadata = message.metadata
    status, details = encode_status(metadata.stop_reason)
    return {
        **empty_envelope(
            metadata.response_id or f"resp_{message.id}",
            int(message.created_at.timestamp()),
            model_name(context.model or metadata.model),
        ),
        "status": status,
        "incomplete_details": details,
        "usage": None if metadata.usage is None else encode_usage(metadata.usage),
    }


def empty_envelope(response_id: str, created: int, model: str) -> Wire:
    """Return a response without output, with all keys that OpenAI's SDKs require."""
    return {
        "id": response_id,
        "object": "response",
        "created_at": created,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": model,
        "output": [],
        "parallel_tool_calls": True,
        "temperature": None,
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
        "usage": None,
    }


def _decode_stop_reason(
    wire: Wire, content: Sequence[ContentBlock], *, is_refusal: bool
) -> StopReason | None:
    """Decode the stop reason; None as long as the response is not finished."""
    match wire.get("status"):
        case "queued" | "in_progress":
            return None
        case "cancelled":
            return StopReason.CANCELLED
        case "failed":
            return StopReason.ERROR
        case "incomplete":
            reason = maybe_text(maybe_object(wire.get("incomplete_details")).get("reason"))
            return _INCOMPLETE.get(reason or "", StopReason.UNKNOWN)
        case _:
            return _completed_reason(content, is_refusal=is_refusal)


def _completed_reason(content: Sequence[ContentBlock], *, is_refusal: bool) -> StopReason:
    reason = StopReason.REFUSAL if is_refusal else StopReason.END_TURN
    for block in content:
        if type(block) is ToolUseBlock:
            return StopReason.TOOL_USE
        # OpenAI waits until the user approves a call of a hosted MCP server.
        if type(block) is OpaqueBlock and block.kind == _APPROVAL:
            reason = StopReason.PAUSE
    return reason


def encode_status(reason: StopReason | None) -> tuple[str, Wire | None]:
    """Encode a stop reason as `status` and `incomplete_details` of a response."""
    match reason:
        case StopReason.MAX_TOKENS:
            return "incomplete", {"reason": "max_output_tokens"}
        case StopReason.CONTENT_FILTER:
            return "incomplete", {"reason": "content_filter"}
        case StopReason.CANCELLED:
            return "cancelled", None
        case StopReason.ERROR:
            return "failed", None
        case _:
            return "completed", None


def decode_usage(wire: Any, context: RequestContext, tier: Any = None) -> Usage | None:
    """Decode a usage into disjoint buckets; an absent usage is unknown, not zero (T153)."""
    if not wire:
        return None
    usage = maybe_object(wire)
    prompt, output = maybe_count(usage.get("input_tokens")), maybe_count(usage.get("output_tokens"))
    if prompt is None and output is None:
        return None
    prompt, output = prompt or 0, output or 0
    details = maybe_object(usage.get("input_tokens_details"))
    cached = maybe_count(details.get("cached_tokens")) or 0
    written = maybe_count(details.get("cache_write_tokens")) or 0
    output_details = maybe_object(usage.get("output_tokens_details"))
    reasoning = maybe_count(output_details.get("reasoning_tokens")) or 0
    return new_usage(
        latency_ms=context.latency_ms,
        input_tokens=input_tokens(prompt, cached, written),
        cached_input_tokens=cached,
        cache_creation_input_tokens=written,
        output_tokens=output,
        reasoning_output_tokens=min(reasoning, output),
        reported_cost_usd=decode_cost(usage.get("cost")),
        service_tier=maybe_text(tier) or None,
    )


def encode_usage(usage: Usage) -> Wire:
    """Encode a usage; the input tokens of this protocol include cached tokens."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_input_tokens,
            "cache_write_tokens": usage.cache_creation_input_tokens,
        },
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_output_tokens},
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
    }
