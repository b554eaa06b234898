"""One price list out of two sources."""

from collections.abc import Mapping
from datetime import date
from decimal import Decimal

from catalog.facts import PREFER_LITELLM
from catalog.genai_source import genai_periods
from catalog.litellm_source import litellm_period
from catalog.rates import Entry, Model, Period, Rates, Tariff


def find_periods(
    name: str, model: Model, litellm: Mapping[str, Entry], built_on: date
) -> list[Period]:
    """The prices of a model from whoever has them."""
    provider, _, bare = name.partition(":")
    if provider == "ollama":
        free: Rates = {"input_per_mtok_usd": Decimal(0), "output_per_mtok_usd": Decimal(0)}
        return [Period(None, Tariff(free), {}, (), {})]
    bare = model.wire_name or bare
    entry = litellm.get(bare) or litellm.get(f"{provider}/{bare}")
    if entry and entry["litellm_provider"] != provider:
        entry = litellm.get(f"{provider}/{bare}")
    second = litellm_period(entry, provider) if entry else None
    first = [] if name in PREFER_LITELLM else genai_periods(provider, bare)
    if not first:
        return [second] if second else []
    return join_sources(name, first, second, built_on)


def join_sources(
    name: str, first: list[Period], second: Period | None, built_on: date
) -> list[Period]:
    """The first source's prices; where both agree, with service tiers that only the second has."""
    begun = [period for period in first if (period.starts_on or date.min) <= built_on]
    current = begun[-1]
    if second is None:
        return first
    if current.standard.rates != second.standard.rates:
        print(f"sources differ: {name}: {brief(current.standard)} / {brief(second.standard)}")
        return first
    tiers = {
        name: next((t for t in current.service_tiers.values() if t.rates == tier.rates), tier)
        for name, tier in second.service_tiers.items()
    }
    tiers = {
        name: tier
        for name, tier in tiers.items()
        # A tier without its long-context rates would price long prompts too low.
        if tier.long_context.keys() == current.standard.long_context.keys()
    } | current.service_tiers
    joined = Period(
        current.starts_on, current.standard, tiers, current.peak_hours, current.per_use_usd
    )
    return [joined if period is current else period for period in first]


def brief(tariff: Tariff) -> str:
    """The rates on one line of a report."""
    return " ".join(f"{name.split('_per')[0]}={rate}" for name, rate in tariff.rates.items())
