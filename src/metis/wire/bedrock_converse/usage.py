"""Usage and ends of answers of Bedrock Converse, to and from ours."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from msgspec.structs import replace

from metis.canonical.metadata import StopReason, Usage
from metis.canonical.value import made
from metis.wire.call import UNPRICED, RequestContext
from metis.wire.shape import Wire, maybe_count, maybe_list, maybe_object, maybe_text

_STOP_REASONS = {
    "end_turn": StopReason.END_TURN,
    "max_tokens": StopReason.MAX_TOKENS,
    "model_context_window_exceeded": StopReason.MAX_TOKENS,
    "stop_sequence": StopReason.STOP_SEQUENCE,
    "tool_use": StopReason.TOOL_USE,
    "content_filtered": StopReason.CONTENT_FILTER,
    "guardrail_intervened": StopReason.CONTENT_FILTER,
    "malformed_model_output": StopReason.ERROR,
    "malformed_tool_use": StopReason.ERROR,
}
_WORDS: Mapping[StopReason, str] = {
    StopReason.END_TURN: "end_turn",
    StopReason.MAX_TOKENS: "max_tokens",
    StopReason.STOP_SEQUENCE: "stop_sequence",
    StopReason.TOOL_USE: "tool_use",
    StopReason.CONTENT_FILTER: "content_filtered",
    StopReason.REFUSAL: "content_filtered",
    # The model has more to say: an answer that was cut is gone on with, a whole one is not (T158).
    StopReason.PAUSE: "max_tokens",
}
_LONG = "1h"
_FREE = Decimal(0)
_KEYS_OF_USAGE = 3
_make_usage = made(Usage)


def decode_stop_reason(word: str | None) -> StopReason | None:
    """Our reason for the provider's; its own word stays in the spelling."""
    return None if word is None else _STOP_REASONS.get(word, StopReason.UNKNOWN)


def encode_stop_reason(reason: StopReason | None) -> str | None:
    """The provider's word for our reason; none if it is not known or no clean end (T164)."""
    return None if reason is None else _WORDS.get(reason)


def decode_usage(wire: Mapping[str, Any], context: RequestContext) -> Usage | None:
    """The usage that a response tells, in disjoint buckets; absent is unknown, not zero (T153)."""
    counts = maybe_object(wire.get("usage"))
    fresh = maybe_count(counts.get("inputTokens"))
    if fresh is None:
        return None
    usage = _make_usage(
        input_tokens=fresh,
        output_tokens=maybe_count(counts.get("outputTokens")) or 0,
        cost_usd=_FREE,
        pricing_version=UNPRICED,
        latency_ms=context.latency_ms,
        service_tier=maybe_text(maybe_object(wire.get("serviceTier")).get("type")),
    )
    return replace(usage, **_more_usage(counts)) if len(counts) > _KEYS_OF_USAGE else usage


def _more_usage(counts: Wire) -> dict[str, Any]:
    """What a usage tells beside the three counts that it always has."""
    written = maybe_count(counts.get("cacheWriteInputTokens")) or 0
    server = maybe_object(counts.get("serverToolUsage"))
    return {
        "cached_input_tokens": maybe_count(counts.get("cacheReadInputTokens")) or 0,
        "cache_creation_input_tokens": written,
        "cache_creation_1h_input_tokens": min(_long_lived(counts), written),
        "server_tool_requests": {n: c for n, c in server.items() if maybe_count(c)} or None,
    }


def _long_lived(counts: Wire) -> int:
    """The tokens that were written for an hour (T149)."""
    details = (maybe_object(each) for each in maybe_list(counts.get("cacheDetails")))
    return sum(
        maybe_count(each.get("inputTokens")) or 0 for each in details if each.get("ttl") == _LONG
    )


def encode_usage(usage: Usage | None) -> Wire:
    """The usage of a response in this protocol's words; it has no word for unknown."""
    if usage is None:
        return {"inputTokens": 0, "outputTokens": 0, "totalTokens": 0}
    wire: Wire = {
        "inputTokens": usage.input_tokens,
        "outputTokens": usage.output_tokens,
        "totalTokens": usage.prompt_tokens + usage.output_tokens,
    }
    if usage.cached_input_tokens or usage.cache_creation_input_tokens:
        wire["cacheReadInputTokens"] = usage.cached_input_tokens
        wire["cacheWriteInputTokens"] = usage.cache_creation_input_tokens
    if usage.cache_creation_1h_input_tokens:
        wire["cacheDetails"] = _details(usage)
    return wire


def _details(usage: Usage) -> list[Wire]:
    long = usage.cache_creation_1h_input_tokens
    short = usage.cache_creation_input_tokens - long
    details: list[Wire] = [{"ttl": _LONG, "inputTokens": long}]
    return [*details, {"ttl": "5m", "inputTokens": short}] if short else details
