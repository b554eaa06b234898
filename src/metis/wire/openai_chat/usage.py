"""Usage and stop reasons of Chat Completions, in the words of all hosts that speak it."""

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from metis.canonical.metadata import StopReason, Usage
from metis.canonical.value import made
from metis.wire.call import UNPRICED, RequestContext
from metis.wire.shape import Wire, maybe_object

_LARGEST = 2**63 - 1
_FREE = Decimal(0)
_make_usage = made(Usage)
_CACHE_KEYS = ("prompt_cache_hit_tokens", "num_cached_tokens", "cached_tokens")

_END_TURN, _TOOL_USE = StopReason.END_TURN, StopReason.TOOL_USE
_STOP_REASONS: Mapping[str, StopReason] = {
    "stop": StopReason.END_TURN,
    "eos": StopReason.END_TURN,
    "eos_token": StopReason.END_TURN,
    "end_turn": StopReason.END_TURN,
    "stop_sequence": StopReason.STOP_SEQUENCE,
    "length": StopReason.MAX_TOKENS,
    "max_tokens": StopReason.MAX_TOKENS,
    "model_length": StopReason.MAX_TOKENS,
    "tool_calls": StopReason.TOOL_USE,
    "function_call": StopReason.TOOL_USE,
    "content_filter": StopReason.CONTENT_FILTER,
    "sensitive": StopReason.CONTENT_FILTER,
    "refusal": StopReason.REFUSAL,
    "error": StopReason.ERROR,
    "network_error": StopReason.ERROR,
}
_WORDS: Mapping[StopReason, str] = {
    StopReason.END_TURN: "stop",
    StopReason.STOP_SEQUENCE: "stop",
    StopReason.MAX_TOKENS: "length",
    StopReason.TOOL_USE: "tool_calls",
    StopReason.CONTENT_FILTER: "content_filter",
    StopReason.REFUSAL: "content_filter",
    StopReason.PAUSE: "length",
    StopReason.ERROR: "error",
    StopReason.CANCELLED: "error",
}


def decode_stop_reason(choice: Wire, *, has_calls: bool, is_refused: bool) -> StopReason:
    """Our reason for the one of a choice; its own word stays in the spelling."""
    word = choice.get("finish_reason")
    reason = _STOP_REASONS.get(word) if isinstance(word, str) else None
    if reason is _END_TURN or reason is None:
        if has_calls:
            # Some hosts say stop, or nothing, although tools were called (T163).
            return _TOOL_USE
        if is_refused:
            return StopReason.REFUSAL
        if reason and (choice.get("native_finish_reason") == "stop_sequence" or _hit(choice)):
            return StopReason.STOP_SEQUENCE
    return reason or StopReason.UNKNOWN


def _hit(choice: Wire) -> bool:
    """Whether the host names the stop sequence that it met, as vLLM does."""
    return isinstance(choice.get("stop_reason"), str)


def encode_stop_reason(reason: StopReason | None) -> str | None:
    """The word for our reason; none if it is not known, for only a clean end is a stop (T164)."""
    return None if reason is None else _WORDS.get(reason)


def decode_usage(wire: Any, context: RequestContext, tier: Any = None) -> Usage | None:
    """The usage of a response in disjoint buckets; absent usage is unknown, not zero (T153)."""
    if not wire:
        return None
    usage = maybe_object(wire)
    prompt, output = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
    if prompt is None and output is None:
        return None
    prompt, output = prompt or 0, output or 0
    details = maybe_object(usage.get("prompt_tokens_details"))
    cached = _first_count(details, ("cached_tokens",)) or _first_count(usage, _CACHE_KEYS)
    written = _first_count(details, ("cache_write_tokens", "cache_creation_tokens"))
    output, reasoning = _outputs(usage, prompt, output)
    return _make_usage(
        # A sum smaller than its parts counts them apart (T143).
        input_tokens=prompt - cached - written if cached + written <= prompt else prompt,
        cached_input_tokens=cached,
        cache_creation_input_tokens=written,
        output_tokens=output,
        reasoning_output_tokens=reasoning,
        cost_usd=_FREE,
        pricing_version=UNPRICED,
        latency_ms=context.latency_ms,
        reported_cost_usd=_cost(usage.get("cost")),
        server_tool_requests=_server_tools(usage),
        service_tier=tier if isinstance(tier, str) and tier else None,
    )


def _outputs(usage: Wire, prompt: int, output: int) -> tuple[int, int]:
    """All output tokens, and those of them that were spent on reasoning.

    Some hosts count reasoning apart: then the total is more than the sum of the two (T144).
    """
    details = maybe_object(usage.get("completion_tokens_details"))
    reasoning = _first_count(details, ("reasoning_tokens",))
    apart = _first_count(usage, ("total_tokens",)) - prompt - output
    if apart > 0 and reasoning in (0, apart):
        return output + apart, apart
    return output, min(reasoning, output)


def _server_tools(usage: Wire) -> dict[str, int] | None:
    used = maybe_object(usage.get("server_tool_use_details") or usage.get("server_tool_use"))
    if not used:
        return None
    counts = {
        name.removesuffix("_requests"): count
        for name, value in used.items()
        if name.endswith("_requests") and (count := _count(value))
    }
    return counts or None


def _first_count(wire: Wire, keys: tuple[str, ...]) -> int:
    for key in keys:
        count = wire.get(key)
        if type(count) is int and 0 < count <= _LARGEST:
            return count
    return 0


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= _LARGEST else None


def _cost(value: Any) -> Decimal | None:
    """What the host says it charged, if that is an amount of money."""
    if type(value) not in (int, float) or not 0 <= value < math.inf:
        return None
    return Decimal(str(value))


def encode_usage(usage: Usage) -> Wire:
    """The usage of a response in this protocol's words, where the prompt includes the cache."""
    prompt_details: Wire = {"cached_tokens": usage.cached_input_tokens}
    if usage.cache_creation_input_tokens:
        prompt_details["cache_write_tokens"] = usage.cache_creation_input_tokens
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
        "prompt_tokens_details": prompt_details,
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_output_tokens},
    }
