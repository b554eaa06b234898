"""Usage as klaude-code counts it: cached tokens are part of the input, costs are floats."""

from decimal import Decimal
from typing import Any

from metis.canonical.metadata import MessageMetadata, StopReason, Usage
from metis.interchange.klaude import types
from metis.wire.call import UNPRICED
from metis.wire.shape import Wire

STOP_REASONS = {
    "stop": StopReason.END_TURN,
    "length": StopReason.MAX_TOKENS,
    "tool_use": StopReason.TOOL_USE,
    "error": StopReason.ERROR,
    "aborted": StopReason.CANCELLED,
}
"""Their words for why a model stopped, with ours."""

_WORDS = {ours: theirs for theirs, ours in STOP_REASONS.items()} | {
    StopReason.STOP_SEQUENCE: "stop",
    StopReason.REFUSAL: "stop",
    StopReason.CONTENT_FILTER: "stop",
    StopReason.PAUSE: "stop",
    StopReason.UNKNOWN: "stop",
}


def encode_stop(metadata: MessageMetadata) -> str | None:
    """Their word for why a model stopped; a message that was cut off by a person is aborted."""
    if metadata.status == "cancelled":
        return "aborted"
    if metadata.status == "error":
        return "error"
    return None if metadata.stop_reason is None else _WORDS.get(metadata.stop_reason, "stop")


def decode_usage(wire: types.Usage) -> Usage | None:
    """Our disjoint counts; None where theirs do not add up."""
    counts = (wire.input_tokens, wire.cached_tokens, wire.reasoning_tokens, wire.output_tokens)
    if not all(0 <= count < 2**63 for count in counts):
        return None
    if wire.cached_tokens > wire.input_tokens or wire.reasoning_tokens > wire.output_tokens:
        return None
    return Usage(
        input_tokens=wire.input_tokens - wire.cached_tokens,
        cached_input_tokens=wire.cached_tokens,
        output_tokens=wire.output_tokens,
        reasoning_output_tokens=wire.reasoning_tokens,
        cost_usd=Decimal(0),
        pricing_version=UNPRICED,
        latency_ms=0,
    )


def decode_model(wire: types.Usage) -> dict[str, Any]:
    """Model and provider, where both are named in a way that makes an id."""
    provider, name = wire.provider or "", wire.model_name
    if not provider or not name or ":" in provider:
        return {}
    return {"model": f"{provider}:{name}", "provider": provider}


def encode_usage(metadata: MessageMetadata) -> Wire | None:
    """Their counts of a usage, with the model that they keep there."""
    usage = metadata.usage
    if usage is None and metadata.model is None:
        return None
    provider, _, name = (metadata.model or "").partition(":")
    wire: Wire = (
        {}
        if usage is None
        else {
            "input_tokens": usage.input_tokens
            + usage.cached_input_tokens
            + usage.cache_creation_input_tokens,
            "cached_tokens": usage.cached_input_tokens,
            "reasoning_tokens": usage.reasoning_output_tokens,
            "output_tokens": usage.output_tokens,
        }
    )
    return wire | {"model_name": name, "provider": provider or None}
