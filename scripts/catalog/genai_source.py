"""The prices that genai-prices states, with their dates, tiers and hours."""

from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

from genai_prices.data import providers
from genai_prices.types import (
    ConditionalPrice,
    ModelInfo,
    ModelPrice,
    StartDateConstraint,
    TieredPrices,
    TimeOfDateConstraint,
)

from catalog.facts import GENAI_PROVIDERS
from catalog.rates import RATE_NAMES, Period, Tariff, rounded

FAR_FUTURE = date(2099, 1, 1)

GENAI_RATES = (
    *("input_mtok", "output_mtok", "cache_read_mtok", "cache_write_mtok", "cache_write_1h_mtok"),
)


def genai_models(provider: str) -> list[ModelInfo]:
    """A provider's models in genai-prices."""
    name = GENAI_PROVIDERS[provider]
    return next(known.models for known in providers if known.id == name)


def genai_periods(provider: str, bare: str) -> list[Period]:
    """The prices of a model in genai-prices, one period per start date."""
    known = next(known for known in providers if known.id == GENAI_PROVIDERS[provider])
    info = known.find_model(bare)
    if info is None or (provider == "openrouter" and info.id != bare):
        return []
    starts = [None, *start_dates(info)]
    ends = [*(start - timedelta(days=1) for start in starts[1:] if start), FAR_FUTURE]
    periods = [genai_period(info, *span) for span in zip(starts, ends, strict=True)]
    return merge_equal([period for period in periods if period is not None])


def merge_equal(periods: list[Period]) -> list[Period]:
    """The periods without those that change nothing."""
    return [
        period
        for before, period in zip([None, *periods], periods, strict=False)
        if before is None or period != replace(before, starts_on=period.starts_on)
    ]


def conditional_prices(info: ModelInfo) -> list[ConditionalPrice]:
    """A model's prices, each with its condition."""
    if isinstance(info.prices, ModelPrice):
        return [ConditionalPrice(prices=info.prices)]
    return info.prices


def start_dates(info: ModelInfo) -> list[date]:
    """The days on which a model's prices change."""
    return [
        price.constraint.start_date
        for price in conditional_prices(info)
        if isinstance(price.constraint, StartDateConstraint)
    ]


def genai_period(info: ModelInfo, starts_on: date | None, ends_on: date) -> Period | None:
    """What a model costs within one period; its tiers are those known at its end."""
    at = datetime.combine(ends_on, time(), tzinfo=UTC)
    timeless = ModelInfo(
        id=info.id,
        match=info.match,
        prices=[
            price
            for price in conditional_prices(info)
            if not isinstance(price.constraint, TimeOfDateConstraint)
        ],
        price_variants=info.price_variants,
    )
    standard = genai_tariff(timeless.get_prices(at))
    if standard is None:
        return None
    tiers = {
        tier: genai_tariff(timeless.get_prices(at, {key: tier}))
        for key, tier in sorted(contexts(info))
    }
    return Period(
        starts_on,
        standard,
        {name: tariff for name, tariff in tiers.items() if tariff and tariff != standard},
        # Hours have no dates of their own; they belong to the newest prices.
        genai_peak_hours(info) if ends_on == FAR_FUTURE else (),
        genai_per_use(timeless.get_prices(at)),
    )


def contexts(info: ModelInfo) -> set[tuple[str, str]]:
    """The service tiers for which a model has prices of their own."""
    return {
        (key, tier)
        for variant in info.price_variants or ()
        for key, tier in variant.when.items()
        if key in ("processing", "service_tier") and tier != "default"
    }


def genai_tariff(price: ModelPrice) -> Tariff | None:
    """Rates and tiers as one tariff, if both directions have a rate."""
    values: dict[str, Decimal | TieredPrices] = {}
    for name, key in zip(RATE_NAMES, GENAI_RATES, strict=True):
        value = price.__dict__.get(key)
        if isinstance(value, Decimal | TieredPrices):
            values[name] = value
    if not values.keys() >= set(RATE_NAMES[:2]):
        return None
    starts = {
        tier.start
        for value in values.values()
        if isinstance(value, TieredPrices)
        for tier in value.tiers
    }
    return Tariff(
        {name: rate_above(value, 0) for name, value in values.items()},
        {
            start: {name: rate_above(value, start) for name, value in values.items()}
            for start in sorted(starts)
        },
    )


def rate_above(value: Decimal | TieredPrices, start: int) -> Decimal:
    """A rate for prompts above some length."""
    if isinstance(value, Decimal):
        return rounded(value)
    rates = [tier.price for tier in value.tiers if tier.start <= start]
    return rounded(rates[-1] if rates else value.base)


def genai_peak_hours(info: ModelInfo) -> tuple[tuple[time, time, Tariff], ...]:
    """The hours of the day with rates of their own."""
    peaks = (
        (price.constraint.start_time, price.constraint.end_time, genai_tariff(price.prices))
        for price in conditional_prices(info)
        if isinstance(price.constraint, TimeOfDateConstraint)
    )
    return tuple(
        (start.replace(tzinfo=None), end.replace(tzinfo=None), tariff)
        for start, end, tariff in peaks
        if tariff
    )


def genai_per_use(price: ModelPrice) -> dict[str, Decimal]:
    """Charges per request; the source has them per thousand."""
    keys = {"file_search": "storage_searches_kcount", "web_search": "web_searches_kcount"}
    charges = {name: price.__dict__.get(key) for name, key in keys.items()}
    return {
        name: charge.scaleb(-3) for name, charge in charges.items() if isinstance(charge, Decimal)
    }
