"""The models and prices of litellm's table."""

import json
from decimal import Decimal
from importlib.metadata import distribution
from pathlib import Path

from catalog.facts import NOT_CHAT, SUPERSEDED
from catalog.rates import RATE_NAMES, Entry, Period, Rates, Tariff, rounded

LITELLM_RATES = (
    *("input_cost_per_token", "output_cost_per_token", "cache_read_input_token_cost"),
    *("cache_creation_input_token_cost", "cache_creation_input_token_cost_above_1hr"),
)

LITELLM_TIERS = {"batch": "_batches", "flex": "_flex", "priority": "_priority"}

LITELLM_LIMITS = (100, 128, 200, 272)


def read_litellm() -> dict[str, Entry]:
    """The chat models of litellm's own data file, by name."""
    path = distribution("litellm").locate_file(
        "litellm/model_prices_and_context_window_backup.json"
    )
    content = json.loads(Path(str(path)).read_text(encoding="utf-8"), parse_float=Decimal)
    return {name: entry for name, entry in content.items() if is_chat(name, entry)}


def is_chat(name: str, entry: Entry) -> bool:
    """Whether an entry is a model to talk with."""
    return entry.get("mode") in ("chat", "responses") and not is_left_out(name)


def is_left_out(name: str) -> bool:
    """Whether a name tells that the model does other things than chat, or is long gone."""
    return any(part in name for part in (*NOT_CHAT, *SUPERSEDED))


def litellm_period(entry: Entry, provider: str) -> Period | None:
    """What litellm knows of a model's prices."""
    standard = litellm_tariff(entry, "", provider)
    if standard is None:
        return None
    tiers = {
        name: litellm_tariff(entry, suffix, provider) for name, suffix in LITELLM_TIERS.items()
    }
    complete = {
        name: Tariff(
            {**without_1h(standard.rates), **tariff.rates},
            {limit: {**tariff.rates, **rates} for limit, rates in tariff.long_context.items()},
        )
        for name, tariff in tiers.items()
        if tariff
    }
    search = entry.get("search_context_cost_per_query", {}).get("search_context_size_medium")
    per_use = {"web_search": Decimal(search)} if search else {}
    return Period(None, standard, complete, (), per_use)


def without_1h(rates: Rates) -> Rates:
    """The rates that a service tier shares with the standard one where it states none."""
    return {name: rate for name, rate in rates.items() if name != RATE_NAMES[-1]}


def litellm_tariff(entry: Entry, suffix: str, provider: str) -> Tariff | None:
    """Rates and tiers of one service tier, if both directions have a rate."""
    rates = litellm_rates(entry, suffix)
    if not rates.keys() >= set(RATE_NAMES[:2]):
        return None
    long_context = {
        # xAI's higher rates begin at the limit, those of the others above it.
        thousands * 1000 - (provider == "xai"): rates
        | litellm_rates(entry, f"_above_{thousands}k_tokens{suffix}")
        for thousands in LITELLM_LIMITS
        if f"input_cost_per_token_above_{thousands}k_tokens{suffix}" in entry
    }
    return Tariff(rates, long_context)


def litellm_rates(entry: Entry, suffix: str) -> Rates:
    """The rates whose keys end in a suffix, per million tokens."""
    rates: Rates = {}
    for name, key in zip(RATE_NAMES, LITELLM_RATES, strict=True):
        value = entry.get(key + suffix)
        if value is not None:
            rates[name] = rounded(Decimal(value).scaleb(6))
    if rates.get("cache_write_per_mtok_usd") == 0 and rates.get("input_per_mtok_usd"):
        del rates["cache_write_per_mtok_usd"]  # "no such thing" and not "free"
    return rates
