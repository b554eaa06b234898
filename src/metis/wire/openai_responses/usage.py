"""Usage and stop reasons of OpenAI Responses."""

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from metis.canonical.blocks import ContentBlock, OpaqueBlock, ToolUseBlock
from metis.canonical.metadata import MessageStatus, StopReason, Usage
from metis.canonical.value import made
from metis.wire.call import UNPRICED, RequestContext
from metis.wire.shape import Wire, maybe_object, maybe_text

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
_make_usage = made(Usage)


def decode_status(wire: Wire) -> MessageStatus:
    """How far an answer has come; one that runs in the background may only be queued."""
    return _STATUSES.get(maybe_text(wire.get("status")) or "", MessageStatus.COMPLETE)


def decode_stop_reason(
    wire: Wire, content: Sequence[ContentBlock], *, is_refused: bool
) -> StopReason | None:
    """Our reason for how an answer ended; None while it goes on. Its words stay in the spelling."""
    status = wire.get("status")
    if status == "completed":
        return _end(content, is_refused=is_refused)
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
            return _end(content, is_refused=is_refused)


def _end(content: Sequence[ContentBlock], *, is_refused: bool) -> StopReason:
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
        reported_cost_usd=_cost(usage.get("cost")),
        service_tier=tier if isinstance(tier, str) and tier else None,
    )


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= _LARGEST else None


def _cost(value: Any) -> Decimal | None:
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
