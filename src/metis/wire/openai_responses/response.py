"""Responses of OpenAI Responses, with their usage and stop reasons."""

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from msgspec.structs import replace

from metis.canonical.blocks import ContentBlock, OpaqueBlock, ToolUseBlock
from metis.canonical.errors import DecodeError
from metis.canonical.ids import new_ulid
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageMetadata, MessageStatus, StopReason, Usage
from metis.canonical.value import raw_constructor
from metis.wire.call import UNPRICED, RequestContext
from metis.wire.errors import has_failed
from metis.wire.json_access import (
    Wire,
    maybe_list,
    maybe_object,
    maybe_text,
    object_at,
    read_object,
)
from metis.wire.openai_errors import decode_error
from metis.wire.openai_responses.answer import Answer, read_common
from metis.wire.openai_responses.blocks import PROTOCOL, write_json
from metis.wire.openai_responses.items import OutputRun, encode_items, is_refused
from metis.wire.openai_responses.tool_calls import CallIndex
from metis.wire.original_form import original_form_of
from metis.wire.tool_ids import CallIds

_LARGEST = 2**63 - 1
_INCOMPLETE: Mapping[str, StopReason] = {
    "max_output_tokens": StopReason.MAX_TOKENS,
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
_make_usage = raw_constructor(Usage)


def decode_status(wire: Wire) -> MessageStatus:
    """How far an answer has come; one that runs in the background may only be queued."""
    return _STATUSES.get(maybe_text(wire.get("status")) or "", MessageStatus.COMPLETE)


def decode_stop_reason(
    wire: Wire, content: Sequence[ContentBlock], *, is_refused: bool
) -> StopReason | None:
    """Our reason for how an answer ended; None while it goes on. Its words stay in the spelling."""
    status = wire.get("status")
    if status == "completed":
        return _completed_reason(content, is_refused=is_refused)
    match status:
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
            return _completed_reason(content, is_refused=is_refused)


def _completed_reason(content: Sequence[ContentBlock], *, is_refused: bool) -> StopReason:
    reason = StopReason.REFUSAL if is_refused else StopReason.END_TURN
    for block in content:
        if type(block) is ToolUseBlock:
            return StopReason.TOOL_USE
        if type(block) is OpaqueBlock and block.kind == _APPROVAL:
            reason = StopReason.PAUSE
    return reason


def encode_status(reason: StopReason | None) -> tuple[str, Wire | None]:
    """The status of an answer and why it is not whole, for our reason."""
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
    """The usage of a response in disjoint buckets; absent usage is unknown, not zero (T153)."""
    if not wire:
        return None
    usage = maybe_object(wire)
    prompt, output = _count(usage.get("input_tokens")), _count(usage.get("output_tokens"))
    if prompt is None and output is None:
        return None
    prompt, output = prompt or 0, output or 0
    details = maybe_object(usage.get("input_tokens_details"))
    cached = _count(details.get("cached_tokens")) or 0
    written = _count(details.get("cache_write_tokens")) or 0
    outputs = maybe_object(usage.get("output_tokens_details"))
    reasoning = _count(outputs.get("reasoning_tokens")) or 0
    return _make_usage(
        # A sum smaller than its parts counts them apart (T143).
        input_tokens=prompt - cached - written if cached + written <= prompt else prompt,
        cached_input_tokens=cached,
        cache_creation_input_tokens=written,
        output_tokens=output,
        reasoning_output_tokens=min(reasoning, output),
        cost_usd=Decimal(0),
        pricing_version=UNPRICED,
        latency_ms=context.latency_ms,
        reported_cost_usd=_decode_cost(usage.get("cost")),
        service_tier=tier if isinstance(tier, str) and tier else None,
    )


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= _LARGEST else None


def _decode_cost(value: Any) -> Decimal | None:
    """What the host says it charged, if that is an amount of money."""
    is_amount = type(value) in (int, float) and 0 <= value < math.inf
    return Decimal(str(value)) if is_amount else None


def encode_usage(usage: Usage) -> Wire:
    """The usage of a response in this protocol's words, where the input includes the cache."""
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


DEFAULT_PROVIDER = "openai-responses"
"""Who answers if nobody says."""

_make_message = raw_constructor(Message)
_make_metadata = raw_constructor(MessageMetadata)
_ASSISTANT = Role.ASSISTANT


def decode_response(body: bytes | Wire, context: RequestContext) -> Message:
    """The message of a response body; an error body raises the error that it stands for."""
    provider = context.provider or DEFAULT_PROVIDER
    if has_failed(context):
        raise decode_error(body, context.status, provider)
    wire = body if isinstance(body, dict) else read_object(body, "response")
    output = wire.get("output")
    if wire.get("error") and (not output or wire.get("status") == "failed"):
        raise decode_error(wire, context.status, provider)
    if not isinstance(output, list):
        raise DecodeError("a response has a list of output items", path="$.output")
    return decode_body(wire, context, message_id=new_ulid())


def decode_body(
    wire: Wire,
    context: RequestContext,
    *,
    message_id: str,
    status: MessageStatus | None = None,
    scope: str | None = None,
) -> Message:
    """The message of a response, whole or as far as it has come; `scope` is what calls are of."""
    provider = context.provider or DEFAULT_PROVIDER
    response_id, model = _text(wire.get("id")), _text(wire.get("model"))
    envelope = wire.copy()
    output = maybe_list(envelope.pop("output", None))
    scope = scope or response_id or message_id
    answer = read_common(output, f"{context.session_id}\0{scope}")
    if answer is None:
        answer = _decode_items(output, response_call_ids(context, scope, message_id), context)
    content, spelling, is_refused = answer
    spelling["response"] = envelope
    status = status or decode_status(wire)
    if status is MessageStatus.COMPLETE and not content:
        status = MessageStatus.ERROR  # nothing is no answer (M-123, T166)
    return _make_message(
        id=message_id,
        session_id=context.session_id,
        role=_ASSISTANT,
        content=content,
        created_at=context.created_at,
        metadata=_make_metadata(
            model=f"{provider}:{model}" if model else context.model,
            provider=provider,
            origin=provider,
            status=status,
            usage=decode_usage(wire.get("usage"), context, wire.get("service_tier")),
            stop_reason=decode_stop_reason(wire, content, is_refused=is_refused),
            response_id=response_id,
            provider_raw={PROTOCOL: spelling},
        ),
    )


def _decode_items(output: list[Any], ids: CallIds, context: RequestContext) -> Answer:
    """What items of any kind say, and how they were spelled."""
    run = OutputRun(ids, context.provider or PROTOCOL)
    for index, item in enumerate(output):
        run.take(object_at(item, f"$.output[{index}]"))
    return Answer(tuple(run.blocks), run.spelling(), is_refused(run.texts))


def response_call_ids(context: RequestContext, answer: str, message_id: str) -> CallIds:
    """What gives the calls of one answer their ids."""
    ids = CallIds(context.session_id, message_id)
    ids.enter_response(answer)
    return ids


def encode_response(message: Message, context: RequestContext) -> bytes:
    """The response body for a message."""
    spelling = original_form_of(message, PROTOCOL)
    output = encode_output_items(message, spelling)
    envelope: Wire = spelling.get("response") or new_envelope(message, context)
    return write_json({**envelope, "output": output})


def encode_output_items(message: Message, spelling: Mapping[str, Any]) -> Sequence[Any]:
    """The output items for a message."""
    calls = CallIndex()
    calls.learn(spelling)
    return encode_items(message.content, spelling, calls, "answer", message.id)


def new_envelope(message: Message, context: RequestContext) -> Wire:
    """What stands around the items of a response that was born elsewhere."""
    metadata = message.metadata
    status, details = encode_status(metadata.stop_reason)
    return {
        **bare_envelope(
            metadata.response_id or f"resp_{message.id}",
            int(message.created_at.timestamp()),
            wire_model(context.model or metadata.model),
        ),
        "status": status,
        "incomplete_details": details,
        "usage": None if metadata.usage is None else encode_usage(metadata.usage),
    }


def bare_envelope(response_id: str, created: int, model: str) -> Wire:
    """A response of which nothing is known yet; clients want every key."""
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


def wire_model(model: str | None) -> str:
    """The name of a model without its provider."""
    name = model or ""
    return name.partition(":")[2] or name


def with_status(message: Message, status: MessageStatus, reason: StopReason) -> Message:
    """The same message, ended in another way."""
    metadata = replace(message.metadata, status=status, stop_reason=reason)
    return replace(message, metadata=metadata)


def _text(value: Any) -> str | None:
    return maybe_text(value) or None
