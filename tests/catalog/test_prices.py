"""Price tables: rows, rates, tiers, periods and overlays."""

from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from metis.canonical.errors import CatalogDataError, Problem, UnpricedModelError
from metis.catalog import (
    LongContext,
    ModelPrices,
    PeakHours,
    Period,
    PriceTable,
    Rates,
    Tariff,
    read_price_table,
)
from metis.catalog.currency import read_currencies

PLAIN = {"input_per_mtok_usd": 3, "output_per_mtok_usd": 15}


def table(row: object, **fields: object) -> PriceTable:
    data: dict[str, object] = {
        "pricing_version": "2026-01-01",
        "source": "test",
        "models": {"acme:a": row},
    }
    return read_price_table({**data, **fields})


def problems(row: object, **fields: object) -> list[str]:
    with pytest.raises(CatalogDataError) as caught:
        table(row, **fields)
    return [problem.path for problem in caught.value.problems]


def rates(fresh: str, out: str, **others: Decimal) -> Rates:
    return Rates(input_per_mtok_usd=Decimal(fresh), output_per_mtok_usd=Decimal(out), **others)


@pytest.mark.row("M-186", "M-187")
def test_a_full_row_is_read() -> None:
    row = {
        **PLAIN,
        "cached_read_per_mtok_usd": Decimal("0.3"),
        "cache_write_per_mtok_usd": "3.75",
        "cache_write_1h_per_mtok_usd": 6,
        "starts_on": date(2026, 2, 1),
        "long_context": [
            {"above_tokens": 200_000, "input_per_mtok_usd": 6, "output_per_mtok_usd": 22}
        ],
        "service_tiers": {"batch": {"multiplier": Decimal("0.5")}, "priority": PLAIN},
        "peak_hours": [{"starts_at": time(1), "ends_at": time(4), **PLAIN}],
        "per_use_usd": {"web_search": Decimal("0.01")},
    }
    standard = rates(
        "3",
        "15",
        cached_read_per_mtok_usd=Decimal("0.3"),
        cache_write_per_mtok_usd=Decimal("3.75"),
        cache_write_1h_per_mtok_usd=Decimal(6),
    )
    half = rates(
        "1.5",
        "7.5",
        cached_read_per_mtok_usd=Decimal("0.15"),
        cache_write_per_mtok_usd=Decimal("1.875"),
        cache_write_1h_per_mtok_usd=Decimal(3),
    )
    assert table(row).prices("acme:a") == ModelPrices(
        (
            Period(
                starts_on=date(2026, 2, 1),
                standard=Tariff(standard, (LongContext(200_000, rates("6", "22")),)),
                service_tiers={
                    "batch": Tariff(half, (LongContext(200_000, rates("3", "11")),)),
                    "priority": Tariff(rates("3", "15")),
                },
                peak_hours=(PeakHours(time(1), time(4), Tariff(rates("3", "15"))),),
                per_use_usd={"web_search": Decimal("0.01")},
            ),
        )
    )


@pytest.mark.row("M-186")
@pytest.mark.parametrize("missing", ["pricing_version", "source"])
@pytest.mark.parametrize("value", [None, "", "  ", 3])
def test_a_table_states_version_and_source(missing: str, value: object) -> None:
    assert problems(PLAIN, **{missing: value}) == [f"$.{missing}"]


@pytest.mark.row("M-178")
@pytest.mark.parametrize("model", ["sonnet", "no colon:x y", ":x"])
def test_keys_are_canonical_ids(model: str) -> None:
    assert problems(PLAIN, models={model: PLAIN}) == [f'$.models."{model}"']


@pytest.mark.row("M-186", "M-103")
@pytest.mark.parametrize(
    "rate",
    [
        0.1,
        -1,
        Decimal("-0.01"),
        "NaN",
        "Infinity",
        "cheap",
        True,
        None,
        [],
        "0.1000000000000000055511151231257827",
        10**7,
    ],
)
def test_a_rate_is_an_exact_decimal_not_below_zero(rate: object) -> None:
    assert problems({**PLAIN, "input_per_mtok_usd": rate}) == [
        '$.models."acme:a".input_per_mtok_usd'
    ]


@pytest.mark.row("M-186")
def test_every_problem_is_reported_in_one_error() -> None:
    row: dict[str, Any] = {
        "output_per_mtok_usd": -1,
        "colour": "red",
        "starts_on": "2026-02-01",
        "long_context": [{"above_tokens": "many", **PLAIN}],
        "service_tiers": {"batch": {"multiplier": -1, "speed": 1}, "flex": 3},
        "peak_hours": {"starts_at": 1},
        "per_use_usd": {"web_search": 0.01},
    }
    path = '$.models."acme:a"'
    assert problems(row, pricing_version="") == [
        "$.pricing_version",
        f"{path}.colour",
        f"{path}.long_context[0].above_tokens",
        f"{path}.input_per_mtok_usd",
        f"{path}.output_per_mtok_usd",
        f"{path}.starts_on",
        f"{path}.service_tiers.batch.speed",
        f"{path}.service_tiers.batch.multiplier",
        f"{path}.service_tiers.flex",
        f"{path}.service_tiers.flex.input_per_mtok_usd",
        f"{path}.service_tiers.flex.output_per_mtok_usd",
        f"{path}.peak_hours",
        f"{path}.per_use_usd.web_search",
    ]


@pytest.mark.row("M-186")
@pytest.mark.parametrize(
    "row",
    [
        [],
        "free",
        [PLAIN, PLAIN],
        [{**PLAIN, "starts_on": date(2026, 2, 1)}, PLAIN],
        [{**PLAIN, "starts_on": date(2026, 2, 1)}] * 2,
        {**PLAIN, "peak_hours": [{"starts_at": 1, "ends_at": time(4), **PLAIN}]},
        {**PLAIN, "long_context": [{"above_tokens": 9, **PLAIN}, {"above_tokens": 9, **PLAIN}]},
    ],
)
def test_rows_of_another_shape_are_refused(row: object) -> None:
    assert problems(row)


@pytest.mark.row("M-188", "T149")
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"cached_read": 3, "cache_write": 3, "cache_write_1h": 3}),
        ({"cached_read": 1}, {"cached_read": 1, "cache_write": 3, "cache_write_1h": 3}),
        ({"cache_write": 4}, {"cached_read": 3, "cache_write": 4, "cache_write_1h": 6}),
        ({"cache_write_1h": 5}, {"cached_read": 3, "cache_write": 3, "cache_write_1h": 5}),
        ({"cached_read": 0}, {"cached_read": 0, "cache_write": 3, "cache_write_1h": 3}),
    ],
)
def test_absent_cache_rates_have_a_default(given: dict[str, int], expected: dict[str, int]) -> None:
    row = {**PLAIN, **{f"{name}_per_mtok_usd": rate for name, rate in given.items()}}
    buckets = table(row).prices("acme:a").period_on(None).standard.rates.by_bucket()
    assert buckets == {"input": 3, "output": 15, **expected}


@pytest.mark.row("T151")
def test_lower_tier_applies_at_its_limit() -> None:
    low, high, higher = rates("1", "1"), rates("2", "2"), rates("3", "3")
    tariff = Tariff(low, (LongContext(100, high), LongContext(200, higher)))
    assert [tariff.rates_for(count) for count in (0, 100, 101, 200, 201)] == [
        low,
        low,
        high,
        high,
        higher,
    ]


@pytest.mark.row("M-183")
def test_period_with_latest_start_applies() -> None:
    row = [
        PLAIN,
        {**PLAIN, "starts_on": date(2026, 2, 1)},
        {**PLAIN, "starts_on": date(2026, 3, 1)},
    ]
    prices = table(row).prices("acme:a")
    days = [date(2020, 1, 1), date(2026, 1, 31), date(2026, 2, 1), date(2026, 3, 1), None]
    assert [prices.periods.index(prices.period_on(day)) for day in days] == [0, 0, 1, 2, 2]


@pytest.mark.row("M-183")
def test_first_period_applies_before_its_start() -> None:
    prices = table({**PLAIN, "starts_on": date(2026, 2, 1)}).prices("acme:a")
    assert prices.period_on(date(2020, 1, 1)) is prices.periods[0]


@pytest.mark.parametrize(
    ("hours", "at", "holds"),
    [
        ((1, 4), datetime(2026, 1, 1, 1, tzinfo=UTC), True),
        ((1, 4), datetime(2026, 1, 1, 4, tzinfo=UTC), False),
        ((1, 4), datetime(2026, 1, 1, 9, tzinfo=timezone(timedelta(hours=8))), True),
        ((22, 2), datetime(2026, 1, 1, 23, tzinfo=UTC), True),
        ((22, 2), datetime(2026, 1, 1, 1, tzinfo=UTC), True),
        ((22, 2), datetime(2026, 1, 1, 12, tzinfo=UTC), False),
    ],
)
def test_peak_hours_are_hours_of_the_day_in_utc(
    hours: tuple[int, int], at: datetime, *, holds: bool
) -> None:
    peak = PeakHours(time(hours[0]), time(hours[1]), Tariff(rates("1", "1")))
    assert peak.contains(at) is holds


@pytest.mark.row("M-184")
def test_missing_model_error_explains_how_to_add_it() -> None:
    with pytest.raises(UnpricedModelError) as caught:
        table(PLAIN).prices("acme:b")
    assert caught.value.pricing_version == "2026-01-01"
    assert '"acme:b" = { input_per_mtok_usd = 0' in caught.value.hint


@pytest.mark.row("M-185")
def test_an_overlay_replaces_and_adds_models_and_names_itself() -> None:
    base = table(PLAIN, models={"acme:a": PLAIN, "acme:b": PLAIN})
    other = {"input_per_mtok_usd": 1, "output_per_mtok_usd": 2}
    overlay = table(None, pricing_version="mine-2", models={"acme:b": other, "open:c/d": other})
    both = base.with_overlay(overlay)
    assert both.pricing_version == "2026-01-01+mine-2"
    assert both.dated_on == date(2026, 1, 1)
    assert both.prices("acme:a") == base.prices("acme:a")
    assert both.prices("acme:b") == both.prices("open:c/d") == overlay.prices("open:c/d")
    assert overlay.dated_on is None


def test_a_table_without_other_currencies_has_no_rates() -> None:
    noted: list[Problem] = []
    assert read_currencies(None, noted) == {}
    assert noted == []
