"""Analytics over events: costs, cache hit rate, reliability and budgets."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metis.canonical.errors import InvalidValueError
from metis.canonical.metadata import ChainPolicy
from metis.catalog import price_table
from metis.events import Budget, Event, Spending, check_budget
from metis.events.analytics import (
    Grouping,
    cache_usage,
    cost_by,
    percentile,
    reliability,
    reprice_calls,
    routing_report,
)
from metis.events.system_events import BudgetScope
from sample_events import completed, decided, failed, recording_bus

OPUS, HAIKU = "anthropic:claude-opus-4-7", "anthropic:claude-haiku-4-5"


def emitted_events(*payloads: Any, session_id: str = "sess_1", **settings: Any) -> list[Event]:
    bus, events = recording_bus()
    for payload in payloads:
        bus.emit(payload, session_id=session_id, **settings)
    return events


CALLS = [
    *emitted_events(
        completed(HAIKU, cost_usd=Decimal("0.1")), completed(OPUS, cost_usd=Decimal("0.2"))
    ),
    *emitted_events(
        completed("openai:gpt-5", cost_usd=Decimal("1E-12"), user_id="u"), session_id="sess_2"
    ),
]


@pytest.mark.parametrize(
    ("grouping", "groups"),
    [
        ("model", {HAIKU: "0.1", OPUS: "0.2", "openai:gpt-5": "1E-12"}),
        ("provider", {"anthropic": "0.3", "openai": "1E-12"}),
        ("session", {"sess_1": "0.3", "sess_2": "1E-12"}),
        ("day", {"2026-05-08": "0.300000000001"}),
        ("hour", {"2026-05-08T12": "0.300000000001"}),
        ("user", {"null": "0.3", "u": "1E-12"}),
        ("team", {"null": "0.300000000001"}),
        ("none", {"all": "0.300000000001"}),
    ],
)
def test_costs_are_summed_exactly_by_group(grouping: Grouping, groups: dict[str, str]) -> None:
    lines = cost_by(CALLS, grouping)
    assert {group: line.cost_usd for group, line in lines.items()} == {
        group: Decimal(amount) for group, amount in groups.items()
    }
    assert sum(line.call_count for line in lines.values()) == 3


def test_cache_hit_rate_counts_all_three_buckets() -> None:
    calls = emitted_events(
        completed(input_tokens=1, cached_input_tokens=2, cache_creation_input_tokens=1)
    )
    assert cache_usage(calls).hit_rate == 0.5
    assert cache_usage([]).hit_rate is None


def test_every_slot_is_listed_and_failures_are_counted() -> None:
    events = emitted_events(*(decided(policy) for policy in ChainPolicy), decided(model=None))
    report = routing_report([*events, *CALLS])
    assert report.by_slot == dict.fromkeys(ChainPolicy, 1)
    assert report.hard_failures == 1
    assert report.by_model == {"a:x": 7}
    assert report.rejected == {"not_configured": 1}
    assert list(routing_report([]).by_slot) == list(ChainPolicy)


def test_reliability_has_errors_and_latencies() -> None:
    events = emitted_events(
        *(completed(HAIKU, latency_ms=ms) for ms in range(1, 101)),
        failed("rate_limit", HAIKU),
        failed("rate_limit", HAIKU),
        failed("network"),
    )
    by_model = reliability(events)
    assert by_model[HAIKU].errors == {"rate_limit": 2}
    assert (by_model[HAIKU].p50_latency_ms, by_model[HAIKU].p95_latency_ms) == (50, 95)
    assert (by_model[HAIKU].completed_count, by_model[HAIKU].failed_count) == (100, 2)
    assert by_model["openai:gpt-5"].p50_latency_ms is None
    assert set(reliability(events, "provider")) == {"anthropic", "openai"}


@given(st.lists(st.integers(0, 1000), min_size=1), st.integers(1, 100))
def test_percentile_is_one_of_the_values(numbers: list[int], percent: int) -> None:
    result = percentile(numbers, percent)
    assert result in numbers
    covered = sum(1 for number in numbers if number <= result)
    assert covered * 100 >= percent * len(numbers)


@pytest.mark.row("M-191")
def test_past_events_can_be_repriced() -> None:
    calls = emitted_events(
        completed(HAIKU, input_tokens=1_000_000, output_tokens=0), completed("x:unknown")
    )
    before = list(calls)
    repriced = reprice_calls(calls, price_table())
    assert repriced.old_cost_usd == Decimal("0.001")
    assert (
        repriced.new_cost_usd
        == price_table()
        .prices(HAIKU)
        .period_on(price_table().dated_on)
        .standard.rates_for(1_000_000)
        .by_bucket()["input"]
    )
    assert repriced.unpriced == {"x:unknown": 1}
    assert calls == before


def test_budget_warns_and_then_is_exhausted() -> None:
    budget = Budget(session_usd=Decimal(10), month_usd=Decimal(100))
    assert check_budget(budget, Spending(session_usd=Decimal("7.99"))).warnings == ()
    (first,) = check_budget(budget, Spending(session_usd=Decimal(8))).warnings
    assert (first.scope, first.level) == ("session", Decimal("0.8"))
    told_before: dict[BudgetScope, Decimal] = {first.scope: first.level}
    assert check_budget(budget, Spending(session_usd=Decimal(9)), warned=told_before).warnings == ()
    (second,) = check_budget(
        budget, Spending(session_usd=Decimal("9.6")), warned=told_before
    ).warnings
    assert second.level == Decimal("0.95")
    stop = check_budget(budget, Spending(session_usd=Decimal(10), month_usd=Decimal(90)))
    assert [exceeded.scope for exceeded in stop.exceeded] == ["session"]
    assert [warning.scope for warning in stop.warnings] == ["month"]
    assert check_budget(Budget(), Spending(day_usd=Decimal(10**9))).exceeded == ()
    assert check_budget(Budget(day_usd=Decimal(0)), Spending()).exceeded


@pytest.mark.parametrize(
    "wrong", [{"day_usd": Decimal(-1)}, {"month_usd": Decimal("NaN")}, {"warn_at": (Decimal(1),)}]
)
def test_invalid_budget_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidValueError):
        Budget(**wrong)
