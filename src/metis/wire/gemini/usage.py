"""Usage and ends of answers, to and from ours."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from metis.canonical.metadata import StopReason, Usage
from metis.canonical.value import made
from metis.wire.call import UNPRICED, RequestContext
from metis.wire.gemini.names import field
from metis.wire.shape import Wire, maybe_count, maybe_list, maybe_object, maybe_text

_make_usage = made(Usage)

_BLOCKED = (
    "SAFETY",
    "RECITATION",
    "LANGUAGE",
    "BLOCKLIST",
    "PROHIBITED_CONTENT",
    "SPII",
    "MODEL_ARMOR",
    "IMAGE_SAFETY",
    "IMAGE_PROHIBITED_CONTENT",
    "IMAGE_RECITATION",
)
_STOP_REASONS: Mapping[str, StopReason] = {
    "STOP": StopReason.END_TURN,
    "FUNCTION_CALL": StopReason.END_TURN,  # the word of other servers that speak this protocol
    "MAX_TOKENS": StopReason.MAX_TOKENS,
    **dict.fromkeys(_BLOCKED, StopReason.CONTENT_FILTER),
    "MALFORMED_FUNCTION_CALL": StopReason.ERROR,
    "MALFORMED_RESPONSE": StopReason.ERROR,
    "MISSING_THOUGHT_SIGNATURE": StopReason.ERROR,
    "TOO_MANY_TOOL_CALLS": StopReason.ERROR,
    "UNEXPECTED_TOOL_CALL": StopReason.ERROR,
}
_WORDS: Mapping[StopReason, str] = {
    StopReason.MAX_TOKENS: "MAX_TOKENS",
    StopReason.CONTENT_FILTER: "SAFETY",
    StopReason.REFUSAL: "SAFETY",
    StopReason.ERROR: "OTHER",
    StopReason.CANCELLED: "OTHER",
    StopReason.UNKNOWN: "OTHER",
}
# The two hosts count their words differently from the sixth on.
_NUMBERS = (
    "FINISH_REASON_UNSPECIFIED",
    "STOP",
    "MAX_TOKENS",
    "SAFETY",
    "RECITATION",
    "OTHER",
)
_AI_STUDIO = (
    "LANGUAGE",
    "BLOCKLIST",
    "PROHIBITED_CONTENT",
    "SPII",
    "MALFORMED_FUNCTION_CALL",
    "IMAGE_SAFETY",
    "UNEXPECTED_TOOL_CALL",
    "TOO_MANY_TOOL_CALLS",
)
_VERTEX = ("BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "MALFORMED_FUNCTION_CALL", "MODEL_ARMOR")


def finish_word(value: Any, provider: str | None) -> str | None:
    """The word for the end of an answer; some hosts write the numbers of their enum."""
    if type(value) is not int:
        return maybe_text(value)
    words = (*_NUMBERS, *(_VERTEX if provider == "vertex" else _AI_STUDIO))
    return words[value] if 0 <= value < len(words) else str(value)


def decode_stop_reason(word: str | None, *, has_calls: bool) -> StopReason:
    """Our reason for the provider's word, which says nothing of calls (T163)."""
    reason = _STOP_REASONS.get(word or "", StopReason.UNKNOWN)
    return StopReason.TOOL_USE if has_calls and reason is StopReason.END_TURN else reason


def encode_stop_reason(reason: StopReason | None) -> str:
    """The provider's word for our reason; calls end with `STOP` as well."""
    return "STOP" if reason is None else _WORDS.get(reason, "STOP")


def decode_usage(body: Mapping[str, Any], context: RequestContext) -> Usage | None:
    """The usage of a response in disjoint buckets; absent usage is unknown, not zero (T153).

    The prompt includes what was cached (T142), the prompts of server-side tools come on top (T146),
    and thoughts stand beside the answer (T145). A count of zero is left out on the wire.
    """
    counts = maybe_object(field(body, "usageMetadata"))
    if not counts:
        return None
    prompt = _count(counts, "promptTokenCount")
    if not prompt and not _count(counts, "totalTokenCount"):
        return None
    cached = min(_count(counts, "cachedContentTokenCount"), prompt)
    thoughts = _count(counts, "thoughtsTokenCount")
    searches = _searches(body)
    return _make_usage(
        input_tokens=prompt - cached + _count(counts, "toolUsePromptTokenCount"),
        cached_input_tokens=cached,
        output_tokens=_count(counts, "candidatesTokenCount") + thoughts,
        reasoning_output_tokens=thoughts,
        cost_usd=_NOTHING,
        pricing_version=UNPRICED,
        latency_ms=context.latency_ms,
        service_tier=maybe_text(field(counts, "serviceTier")),
        server_tool_requests={"web_search": searches} if searches else None,
    )


_NOTHING = Decimal(0)


def _count(counts: Wire, name: str) -> int:
    return maybe_count(field(counts, name)) or 0


def _searches(body: Mapping[str, Any]) -> int:
    """How many searches an answer rests on."""
    candidates = maybe_list(body.get("candidates"))
    first = maybe_object(candidates[0]) if candidates else {}
    grounding = maybe_object(field(first, "groundingMetadata"))
    return len(maybe_list(field(grounding, "webSearchQueries"))) if grounding else 0


def encode_usage(usage: Usage | None) -> Wire | None:
    """The usage of a response in this protocol's words; None if it is unknown."""
    if usage is None:
        return None
    prompt, thoughts = usage.prompt_tokens, usage.reasoning_output_tokens
    wire: Wire = {
        "promptTokenCount": prompt,
        "candidatesTokenCount": max(usage.output_tokens - thoughts, 0),
        "totalTokenCount": prompt + usage.output_tokens,
    }
    if usage.cached_input_tokens:
        wire["cachedContentTokenCount"] = usage.cached_input_tokens
    if thoughts:
        wire["thoughtsTokenCount"] = thoughts
    return wire
