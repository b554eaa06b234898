"""Analytics: cost, cache use, routing and reliability, computed exactly from events."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC
from decimal import Decimal, localcontext
from math import ceil
from typing import Literal, NamedTuple

from msgspec import Struct

from metis.canonical.errors import MetisError
from metis.canonical.metadata import ChainPolicy, StopReason, Usage
from metis.catalog.cost import cost
from metis.catalog.currency import EXACT_CONTEXT
from metis.catalog.prices import PriceTable
from metis.events.event import Event
from metis.events.turn_events import (
    LlmCallCompleted,
    LlmCallFailed,
    RouteDecided,
    SessionCompacted,
)

Grouping = Literal["model", "provider", "session", "day", "hour", "user", "team", "none"]


class CostLine(Struct, frozen=True, kw_only=True):
    """Tokens and cost of a group of model calls."""

    call_count: int = 0
    input_tokens: int = 0
    cached_input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: Decimal = Decimal(0)


class CacheUsage(Struct, frozen=True, kw_only=True):
    """The input tokens by whether they were read from a cache."""

    uncached_tokens: int
    cached_tokens: int
    written_tokens: int

    @property
    def hit_rate(self) -> float | None:
        """The fraction of tokens that was read from a cache, or None if there was no input."""
        total = self.uncached_tokens + self.cached_tokens + self.written_tokens
        return self.cached_tokens / total if total else None


class RoutingReport(Struct, frozen=True, kw_only=True):
    """How often each routing slot chose the model; every slot is listed."""

    by_slot: Mapping[str, int]
    by_model: Mapping[str, int]
    rejected: Mapping[str, int]
    """How often a candidate was rejected, by reason."""
    hard_failures: int


class Reliability(Struct, frozen=True, kw_only=True):
    """Successes, failures and latencies of a group of model calls."""

    completed_count: int
    failed_count: int
    errors: Mapping[str, int]
    p50_latency_ms: int | None
    p95_latency_ms: int | None


class RepricedTotals(Struct, frozen=True, kw_only=True):
    """The cost of calls, and their cost under another price table."""

    pricing_version: str
    old_cost_usd: Decimal
    new_cost_usd: Decimal
    unpriced: Mapping[str, int]
    """The number of calls without a price in the table, by model; they are in neither sum."""


_SUMMED_FIELDS = CostLine.__struct_fields__[1:]
_USAGE_FIELDS = (
    *_SUMMED_FIELDS,
    "cache_creation_1h_input_tokens",
    "pricing_version",
    "latency_ms",
)


class _Call(NamedTuple):
    event: Event
    payload: LlmCallCompleted | LlmCallFailed


def cost_by(events: Iterable[Event], grouping: Grouping) -> Mapping[str, CostLine]:
    """Return calls, tokens and cost by group; calls without a user or team are under `null`."""
    group_of = _GROUPS[grouping]
    lines: dict[str, CostLine] = {}
    # Sums of exact costs stay exact, whatever decimal context the caller has set.
    with localcontext(EXACT_CONTEXT):
        for call in _calls(events):
            group = group_of(call)
            lines[group] = _add(lines.get(group, CostLine()), call.payload)
    return dict(sorted(lines.items()))


def _add(line: CostLine, call: LlmCallCompleted | LlmCallFailed) -> CostLine:
    sums = {name: getattr(line, name) + getattr(call, name) for name in _SUMMED_FIELDS}
    return CostLine(call_count=line.call_count + 1, **sums)


def cache_usage(events: Iterable[Event]) -> CacheUsage:
    """Return how many input tokens were read from a cache, written to one, or neither."""
    calls = [call.payload for call in _calls(events)]
    return CacheUsage(
        uncached_tokens=sum(call.input_tokens for call in calls),
        cached_tokens=sum(call.cached_input_tokens for call in calls),
        written_tokens=sum(call.cache_creation_input_tokens for call in calls),
    )


def routing_report(events: Iterable[Event]) -> RoutingReport:
    """Count the slots, models and rejection reasons of routing decisions."""
    # Slots that never chose are listed, too: a zero may show a rule that never matches.
    by_slot = {policy.value: 0 for policy in ChainPolicy}
    by_model: dict[str, int] = {}
    rejected: dict[str, int] = {}
    hard_failures = 0
    for event in events:
        if not isinstance(event.payload, RouteDecided):
            continue
        decided = event.payload
        if decided.chosen_model is None:
            hard_failures += 1
        else:
            _count(by_slot, decided.chain[decided.winner_index].policy.value)
            _count(by_model, decided.chosen_model)
        for step in decided.chain:
            if step.validation_failure is not None:
                _count(rejected, step.validation_failure)
    return RoutingReport(
        by_slot=by_slot,
        by_model=dict(sorted(by_model.items())),
        rejected=dict(sorted(rejected.items())),
        hard_failures=hard_failures,
    )


def reliability(
    events: Iterable[Event], grouping: Literal["model", "provider"] = "model"
) -> Mapping[str, Reliability]:
    """Return successes, error classes and latencies by model or provider."""
    latencies: dict[str, list[int]] = {}
    errors: dict[str, dict[str, int]] = {}
    for event in events:
        payload = event.payload
        if isinstance(payload, LlmCallCompleted | LlmCallFailed):
            group = getattr(payload, grouping)
            group_latencies = latencies.setdefault(group, [])
            group_errors = errors.setdefault(group, {})
            if isinstance(payload, LlmCallCompleted):
                group_latencies.append(payload.latency_ms)
            else:
                _count(group_errors, payload.error_class)
    return {group: _reliability(latencies[group], errors[group]) for group in sorted(latencies)}


def _reliability(latencies: Sequence[int], errors: Mapping[str, int]) -> Reliability:
    return Reliability(
        completed_count=len(latencies),
        failed_count=sum(errors.values()),
        errors=dict(sorted(errors.items())),
        p50_latency_ms=percentile(latencies, 50),
        p95_latency_ms=percentile(latencies, 95),
    )


def percentile(numbers: Sequence[int], percent: int) -> int | None:
    """Return the smallest number that at least this percentage of the numbers does not exceed.

    >>> percentile([30, 10, 20], 50), percentile([30, 10, 20], 95), percentile([], 50)
    (20, 30, None)
    """
    if not numbers:
        return None
    return sorted(numbers)[max(0, ceil(len(numbers) * percent / 100) - 1)]


def reprice_calls(events: Iterable[Event], table: PriceTable) -> RepricedTotals:
    """Price past calls under another table; the events are not changed."""
    old = new = Decimal(0)
    unpriced: dict[str, int] = {}
    with localcontext(EXACT_CONTEXT):
        for call in _calls(events):
            try:
                amount = cost(_usage(call.payload), call.payload.model, table=table)
            # Calls without a price are in neither sum, so that the two can be compared.
            except MetisError:
                _count(unpriced, call.payload.model)
                continue
            old, new = old + call.payload.cost_usd, new + amount
    return RepricedTotals(
        pricing_version=table.pricing_version,
        old_cost_usd=old,
        new_cost_usd=Decimal(new),
        unpriced=dict(sorted(unpriced.items())),
    )


def _usage(call: LlmCallCompleted | LlmCallFailed) -> Usage:
    return Usage(**{name: getattr(call, name) for name in _USAGE_FIELDS})


def _calls(events: Iterable[Event]) -> Iterator[_Call]:
    """Yield the calls with a cost: complete ones, interrupted ones, and those of summaries."""
    for event in events:
        match event.payload:
            case LlmCallCompleted() as payload:
                yield _Call(event, payload)
            case LlmCallFailed() as payload if payload.input_tokens:
                yield _Call(event, payload)
            case SessionCompacted() as payload:
                yield _Call(event, _summary_call(payload))
            case _:
                pass


def _summary_call(compacted: SessionCompacted) -> LlmCallCompleted:
    """Return the model call that wrote a summary."""
    return LlmCallCompleted(
        model=compacted.model or "",
        provider=compacted.provider,
        stop_reason=StopReason.END_TURN,
        **{name: getattr(compacted, name) for name in _USAGE_FIELDS},
    )


def _count(counts: dict[str, int], name: str) -> None:
    counts[name] = counts.get(name, 0) + 1


def _utc(call: _Call, form: str) -> str:
    return call.event.timestamp.astimezone(UTC).strftime(form)


_GROUPS: Mapping[Grouping, Callable[[_Call], str]] = {
    "model": lambda call: call.payload.model,
    "provider": lambda call: call.payload.provider,
    "session": lambda call: call.event.session_id,
    "day": lambda call: _utc(call, "%Y-%m-%d"),
    "hour": lambda call: _utc(call, "%Y-%m-%dT%H"),
    # Calls of the terminal have no user and no team; with `null` they are in the totals.
    "user": lambda call: call.payload.user_id or "null",
    "team": lambda call: call.payload.team_id or "null",
    "none": lambda _: "all",
}
