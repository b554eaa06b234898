"""Cost of usage: exact rates, tiers, cache writes, service tiers, periods and currencies."""

import pickle
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from metis.canonical.errors import (
    CatalogDataError,
    InvalidValueError,
    UnknownModelError,
    UnpricedModelError,
)
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageMetadata, Usage
from metis.catalog import PriceTable, cost, price, price_table, read_price_table, reprice

FIRST = "2026-05-08"
SONNET = "anthropic:claude-sonnet-4-6"


def usage(fresh: int = 0, out: int = 0, **fields: Any) -> Usage:
    return Usage(
        input_tokens=fresh,
        output_tokens=out,
        cost_usd=Decimal(0),
        latency_ms=820,
        pricing_version="none",
        **fields,
    )


def table(version: str = "2026-01-01", **rows: object) -> PriceTable:
    models = {f"acme:{name}": row for name, row in rows.items()}
    return read_price_table({"pricing_version": version, "source": "test", "models": models})


def rates(fresh: object, out: object, **others: object) -> dict[str, Any]:
    return {"input_per_mtok_usd": fresh, "output_per_mtok_usd": out, **others}


@pytest.mark.row("M-238", "M-189", "M-103", "M-190")
def test_simple_exchange_has_cost_of_specification() -> None:
    amount = cost(usage(8, 42), SONNET, table=price_table(FIRST))
    assert amount == Decimal("0.000654")
    assert str(amount) == "0.000654"
    assert amount.pricing_version == FIRST
    assert amount.model == SONNET
    assert cost(usage(8, 42), "sonnet") == Decimal("0.000654")


@pytest.mark.row("M-187", "M-188", "M-189", "M-184")
@pytest.mark.parametrize(
    ("model", "dollars"),
    [
        (SONNET, {"input": 3, "output": 15, "cached_read": "0.3", "cache_write": "3.75"}),
        (
            "openai:gpt-5",
            {"input": "2.5", "output": 10, "cached_read": "2.5", "cache_write": "2.5"},
        ),
        ("ollama:llama-3.3-70b", {"input": 0, "output": 0, "cached_read": 0, "cache_write": 0}),
    ],
)
def test_each_rate_is_applied_to_its_own_bucket(model: str, dollars: dict[str, Any]) -> None:
    million = usage(10**6, 10**6, cached_input_tokens=10**6, cache_creation_input_tokens=10**6)
    amount = cost(million, model, table=price_table(FIRST))
    expected = {name: Decimal(usd) for name, usd in dollars.items()}
    assert amount.parts == {**expected, "cache_write_1h": 0}
    assert amount == sum(expected.values())


@pytest.mark.row("T149")
def test_cache_writes_of_five_minutes_and_one_hour_have_separate_rates() -> None:
    both = usage(cache_creation_input_tokens=3_000_000, cache_creation_1h_input_tokens=10**6)
    amount = cost(both, "anthropic:claude-sonnet-4-5")
    assert amount.parts["cache_write"] == 15  # above 200,000 tokens: 7.50
    assert amount.parts["cache_write_1h"] == 12
    small = usage(cache_creation_input_tokens=1000, cache_creation_1h_input_tokens=1000)
    assert cost(small, SONNET) == Decimal("0.006")
    assert cost(usage(cache_creation_input_tokens=1000), SONNET) == Decimal("0.00375")


@pytest.mark.row("T149")
def test_more_one_hour_writes_than_writes_are_counted_once() -> None:
    odd = usage(cache_creation_input_tokens=1000, cache_creation_1h_input_tokens=5000)
    assert cost(odd, SONNET) == Decimal("0.006")


@pytest.mark.row("T150", "M-188")
def test_the_default_for_one_hour_writes_follows_the_tier_in_force() -> None:
    long = {"above_tokens": 1000, **rates(6, 22, cache_write_per_mtok_usd="7.5")}
    row = rates(3, 15, cache_write_per_mtok_usd="3.75", long_context=[long])
    row["service_tiers"] = {"batch": {"multiplier": "0.5"}}

    def one_hour(tokens: int, tier: str | None = None) -> Decimal:
        used = usage(
            cache_creation_input_tokens=tokens,
            cache_creation_1h_input_tokens=tokens,
            service_tier=tier,
        )
        return cost(used, "acme:a", table=table(a=row)) / tokens * 10**6

    assert [one_hour(1000), one_hour(2000), one_hour(2000, "batch")] == [6, 12, 6]


@pytest.mark.row("T151")
@pytest.mark.parametrize("bucket", ["input", "cached_input", "cache_creation_input"])
def test_the_tier_is_chosen_once_from_the_whole_prompt(bucket: str) -> None:
    high = rates(2, 20, cached_read_per_mtok_usd="0.2", cache_write_per_mtok_usd="2.5")
    row = rates(1, 10, cached_read_per_mtok_usd="0.1", cache_write_per_mtok_usd="1.25")
    known = table(a={**row, "long_context": [{"above_tokens": 1000, **high}]})
    counts = dict.fromkeys(("input", "cached_input", "cache_creation_input"), 100)

    def used(prompt: int) -> Usage:
        sizes = {**counts, bucket: prompt - 200}
        return replace(usage(0, 50), **{f"{name}_tokens": size for name, size in sizes.items()})

    def at_rates(of: Usage, chosen: dict[str, Any]) -> Decimal:
        dollars = [Decimal(str(rate)) for rate in chosen.values()]
        tokens = [
            of.input_tokens,
            of.output_tokens,
            of.cached_input_tokens,
            of.cache_creation_input_tokens,
        ]
        return sum((n * usd for n, usd in zip(tokens, dollars, strict=True)), Decimal(0)) / 10**6

    assert cost(used(1000), "acme:a", table=known) == at_rates(used(1000), row)
    assert cost(used(1001), "acme:a", table=known) == at_rates(used(1001), high)


@pytest.mark.row("T152")
@pytest.mark.parametrize(
    ("tier", "dollars"),
    [
        (None, 1),
        ("standard", 1),
        ("default", 1),
        ("auto", 1),
        ("batch", "0.5"),
        ("BATCH", "0.5"),
        ("priority", 3),
    ],
)
def test_the_reported_service_tier_sets_the_price(tier: str | None, dollars: object) -> None:
    tiers = {"batch": {"multiplier": "0.5"}, "priority": rates(3, 9)}
    known = table(a=rates(1, 1, service_tiers=tiers))
    amount = cost(usage(10**6, service_tier=tier), "acme:a", table=known)
    assert amount == Decimal(str(dollars))
    assert amount.notes == ()


@pytest.mark.row("T152")
@pytest.mark.parametrize("tier", ["warp", 3, ["priority"]])
def test_an_unknown_service_tier_is_priced_as_standard_and_noted(tier: Any) -> None:
    amount = cost(usage(10**6, service_tier=tier), "acme:a", table=table(a=rates(1, 1)))
    assert amount == 1
    assert amount.notes == (f"no rates for service tier {tier!r}: standard rates used",)


@pytest.mark.row("T154")
def test_server_tools_are_charged_per_use() -> None:
    known = table(a=rates(1, 1, per_use_usd={"web_search": "0.01"}))
    used = usage(10**6, server_tool_requests={"code": 2, "idle": 0, "web_search": 3})
    amount = cost(used, "acme:a", table=known)
    assert amount.parts["server_tool.web_search"] == Decimal("0.03")
    assert amount == Decimal("1.03")
    assert amount.notes == ("no charge known for server tool 'code': 2 uses not priced",)


@pytest.mark.row("T154")
def test_a_web_search_with_claude_costs_one_cent() -> None:
    assert cost(usage(server_tool_requests={"web_search": 1}), "haiku") == Decimal("0.01")


@pytest.mark.row("M-181", "M-182")
def test_reported_cost_does_not_change_computed_cost() -> None:
    ours = price(usage(8, 42), "sonnet")
    reported = price(usage(8, 42, reported_cost_usd=Decimal(99)), "sonnet")
    assert ours.cost_usd == reported.cost_usd == Decimal("0.000654")
    assert reported.reported_cost_usd == 99


@pytest.mark.row("M-103", "M-190")
def test_price_fills_in_cost_and_version_only() -> None:
    before = usage(8, 42, reasoning_output_tokens=7)
    after = price(before, "sonnet", table=price_table(FIRST))
    assert type(after.cost_usd) is Decimal
    assert after == replace(before, cost_usd=Decimal("0.000654"), pricing_version=FIRST)


@pytest.mark.parametrize("model", ["openai:gpt-4o", "anthropic:claude-sonnet-4-5"])
@pytest.mark.parametrize("tier", [None, "priority", "batch"])
def test_price_is_the_amount_of_cost(model: str, tier: str | None) -> None:
    for counts in ((0, 0), (7, 3), (250_000, 12_345)):
        one = usage(*counts, cached_input_tokens=31, service_tier=tier)
        one = replace(one, server_tool_requests={"web_search": 2})
        for day in (1, 1, 9):  # the second look-up of a day is one of the cache
            at = datetime(2026, 11, day, 12, tzinfo=UTC)
            amount = cost(one, model, at)
            priced = price(one, model, at)
            assert (priced.cost_usd, priced.pricing_version) == (amount, amount.pricing_version)
            assert format(priced.cost_usd, "f") == str(amount)


@pytest.mark.row("M-183", "M-190")
@pytest.mark.parametrize(
    ("at", "version", "dollars"),
    [
        (None, "2026-11-15", "1.25"),
        (datetime(2026, 11, 15, tzinfo=UTC), "2026-11-15", "1.25"),
        (datetime(2026, 11, 14, tzinfo=UTC), FIRST, "2.5"),
        (datetime(2026, 11, 15, 1, tzinfo=timezone(timedelta(hours=2))), FIRST, "2.5"),
        (datetime(2020, 1, 1, tzinfo=UTC), FIRST, "2.5"),
    ],
)
def test_newest_table_before_given_time_applies(
    at: datetime | None, version: str, dollars: str
) -> None:
    amount = cost(usage(10**6), "openai:gpt-5", at)
    assert (amount.pricing_version, amount) == (version, Decimal(dollars))


@pytest.mark.row("M-183")
def test_later_table_applies_where_earlier_lacks_the_model() -> None:
    amount = cost(usage(10**6), "opus", datetime(2026, 6, 1, tzinfo=UTC))
    assert (amount.pricing_version, amount) == ("2026-11-15", 5)


@pytest.mark.row("M-183")
def test_price_period_is_chosen_by_date() -> None:
    known = table("2026-03-05", a=[rates(1, 1), rates(2, 2, starts_on=date(2026, 3, 1))])

    def at(*day: int) -> Decimal:
        return cost(usage(10**6), "acme:a", datetime(*day, tzinfo=UTC), table=known)

    assert [at(2026, 2, 28), at(2026, 3, 1)] == [1, 2]
    assert cost(usage(10**6), "acme:a", table=known) == 2
    assert cost(usage(10**6), "acme:a", table=replace(known, pricing_version="2026-02-01")) == 1


@pytest.mark.row("KX-17")
def test_peak_rates_apply_only_with_known_time() -> None:
    peak = {"starts_at": time(1), "ends_at": time(4), **rates(2, 2)}
    known = table(a=rates(1, 1, peak_hours=[peak]))
    at_two = datetime(2026, 3, 1, 2, tzinfo=UTC)
    assert cost(usage(10**6), "acme:a", at_two, table=known) == 2
    assert cost(usage(10**6), "acme:a", at_two + timedelta(hours=6), table=known) == 1
    without_time = cost(usage(10**6), "acme:a", table=known)
    assert without_time == 1
    assert without_time.notes == ("peak hours ignored: no time given",)


YUAN: dict[str, Any] = {
    "pricing_version": "2026-01-01",
    "source": "test",
    "currencies": {"CNY": Decimal("0.14")},
    "models": {
        "acme:a": {
            "currency": "CNY",
            "input_per_mtok": 2,
            "output_per_mtok": Decimal("0.5"),
            "per_use": {"web_search": 1},
            "long_context": [{"above_tokens": 5, "input_per_mtok": 4, "output_per_mtok": 1}],
            "peak_hours": [
                {
                    "starts_at": time(1),
                    "ends_at": time(4),
                    "input_per_mtok": 20,
                    "output_per_mtok": 5,
                }
            ],
        },
        "acme:b": rates(2, 2),
    },
}


@pytest.mark.row("KX-17")
def test_rates_in_another_currency_are_priced_in_dollars() -> None:
    known = read_price_table(YUAN)
    noon = datetime(2026, 3, 1, 12, tzinfo=UTC)
    assert cost(usage(5), "acme:a", noon, table=known) == Decimal("0.0000014")
    assert cost(usage(6), "acme:a", noon, table=known) == Decimal("0.00000336")
    assert cost(usage(0, 10**6), "acme:a", noon, table=known) == Decimal("0.07")
    # The price at the start of the request applies.
    assert cost(usage(5), "acme:a", noon.replace(hour=2), table=known) == Decimal("0.000014")
    searched = usage(server_tool_requests={"web_search": 3})
    assert cost(searched, "acme:a", noon, table=known) == Decimal("0.42")
    assert cost(usage(10**6), "acme:b", noon, table=known) == 2


@pytest.mark.row("KX-17")
@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"currencies": {}}, '$.models."acme:a".currency'),
        ({"currencies": {"CNY": 0}}, "$.currencies.CNY"),
        ({"currencies": {"CNY": 0.14}}, "$.currencies.CNY"),
        ({"currencies": 1}, "$.currencies"),
        (
            {"models": {"acme:a": {"currency": "CNY", **rates(1, 1), "input_per_mtok": 1.5}}},
            '$.models."acme:a".input_per_mtok_usd',
        ),
    ],
)
def test_currency_without_exchange_rate_is_a_problem(changes: dict[str, Any], path: str) -> None:
    with pytest.raises(CatalogDataError) as caught:
        read_price_table({**YUAN, **changes})
    assert path in [problem.path for problem in caught.value.problems]


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="zone"):
        cost(usage(1), "sonnet", datetime(2026, 1, 1))  # noqa: DTZ001 - the error is the point


@pytest.mark.row("M-184")
def test_a_missing_model_is_an_error_and_never_free() -> None:
    with pytest.raises(UnpricedModelError) as caught:
        cost(usage(1), "openrouter:nobody/nothing")
    assert caught.value.pricing_version == "2026-11-15"
    with pytest.raises(UnpricedModelError):
        cost(usage(1), "opus", table=price_table(FIRST))
    with pytest.raises(UnknownModelError):
        cost(usage(1), "nothing")


@pytest.mark.row("M-184", "M-185")
def test_overlay_prices_unlisted_models() -> None:
    overlay = read_price_table(
        {"pricing_version": "me-1", "source": "me", "models": {"openrouter:me/x": rates(1, 2)}}
    )
    amount = cost(usage(10**6), "openrouter:me/x", table=price_table().with_overlay(overlay))
    assert (amount, amount.pricing_version) == (1, "2026-11-15+me-1")


@pytest.mark.parametrize(
    "wrong",
    [
        {"fresh": -1},
        {"out": -1},
        {"cached_input_tokens": -1},
        {"cache_creation_1h_input_tokens": -1},
        {"server_tool_requests": {"web_search": -1}},
    ],
)
def test_counts_below_zero_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidValueError, match="not a count"):
        cost(usage(**wrong), "sonnet")


COUNTS = st.integers(min_value=0, max_value=2**63 - 1)
RATES = st.decimals(min_value=0, max_value=10**6, places=9, allow_nan=False)


@pytest.mark.row("M-187", "M-103", "M-288")
@given(st.tuples(*[COUNTS] * 4), st.tuples(*[RATES] * 4), st.integers(1, 28))
def test_cost_is_exact_and_the_sum_of_its_parts(
    counts: tuple[int, ...], dollars: tuple[Decimal, ...], precision: int
) -> None:
    fresh, out, read, written = counts
    names = ("cached_read_per_mtok_usd", "cache_write_per_mtok_usd")
    row = rates(*dollars[:2], **dict(zip(names, dollars[2:], strict=True)))
    used = usage(fresh, out, cached_input_tokens=read, cache_creation_input_tokens=written)
    with localcontext(prec=precision):
        amount = cost(used, "acme:a", table=table(a=row))
    judge = sum(
        Fraction(count) * Fraction(usd) / 10**6 for count, usd in zip(counts, dollars, strict=True)
    )
    assert Fraction(amount) == judge
    assert sum(Fraction(part) for part in amount.parts.values()) == judge


@given(st.integers(0, 10**12))
def test_amounts_have_no_exponent(tokens: int) -> None:
    text = str(cost(usage(tokens), "acme:a", table=table(a=rates("0.25", 1))))
    assert text == format((Decimal(tokens) / 4 / 10**6).normalize(), "f")


def test_cost_is_a_decimal_and_picklable() -> None:
    amount = cost(usage(8, 42), "sonnet")
    again = pickle.loads(pickle.dumps(amount))  # noqa: S301 - our own bytes
    assert again == amount
    assert (again.parts, again.model, again.notes) == (amount.parts, amount.model, amount.notes)
    assert amount + amount == Decimal("0.001308")
    assert repr(amount) == f"Cost('0.000654', model='{SONNET}', pricing_version='2026-11-15')"


def message(number: int, model: str | None, used: Usage | None) -> Message:
    return Message(
        content=(),
        created_at=datetime(2026, 5, 9, tzinfo=UTC),
        id=f"m{number}",
        metadata=MessageMetadata(model=model, usage=used),
        role=Role.ASSISTANT,
        session_id="s",
    )


@pytest.mark.row("M-191", "M-183", "M-104")
def test_repricing_gives_new_totals_and_leaves_messages_untouched() -> None:
    old = price(usage(10**6, 10**6), "gpt-5", table=price_table(FIRST))
    messages = [
        message(1, "openai:gpt-5", old),
        message(2, "openai:gpt-5", old),
        message(3, "acme:gone", old),
        message(4, None, old),
        message(5, None, None),
    ]
    digests = [each.digest() for each in messages]
    result = reprice(messages, "2026-11-15")
    assert [each.digest() for each in messages] == digests
    assert result.pricing_version == "2026-11-15"
    assert [entry.message_id for entry in result.repriced] == ["m1", "m2"]
    assert [entry.old_pricing_version for entry in result.repriced] == [FIRST, FIRST]
    assert (result.old_total_usd, result.new_total_usd) == (25, Decimal("22.5"))
    assert [(entry.message_id, entry.old_cost_usd) for entry in result.unpriced] == [
        ("m3", Decimal("12.5")),
        ("m4", Decimal("12.5")),
    ]
    assert result.unpriced_models == ("acme:gone",)
    assert result.without_usage_count == 1


@pytest.mark.row("M-191")
def test_repricing_can_follow_the_time_of_each_message() -> None:
    known = table("2026-12-01", a=[rates(1, 1), rates(2, 2, starts_on=date(2026, 11, 1))])
    messages = [message(1, "acme:a", usage(10**6))]
    assert reprice(messages, known).new_total_usd == 2
    assert reprice(messages, known, at_creation=True).new_total_usd == 1
