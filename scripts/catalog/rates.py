"""What a model can do and what it costs, as the builder holds it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, time
from decimal import Decimal
from typing import Any

RATE_DECIMALS = 9

RATE_NAMES = (
    "input_per_mtok_usd",
    "output_per_mtok_usd",
    "cached_read_per_mtok_usd",
    "cache_write_per_mtok_usd",
    "cache_write_1h_per_mtok_usd",
)

Entry = Mapping[str, Any]

Rates = dict[str, Decimal]


@dataclass(frozen=True)
class Tariff:
    """Rates, and those for prompts above some lengths."""

    rates: Rates
    long_context: dict[int, Rates] = field(default_factory=dict[int, Rates])


@dataclass(frozen=True)
class Period:
    """All that a model costs from a day on."""

    starts_on: date | None
    standard: Tariff
    service_tiers: dict[str, Tariff]
    peak_hours: tuple[tuple[time, time, Tariff], ...]
    per_use_usd: dict[str, Decimal]


@dataclass(frozen=True)
class Model:
    """One line of `models.toml`."""

    max_context_tokens: int
    max_output_tokens: int
    supports: frozenset[str]
    lacks: frozenset[str] = frozenset()
    wire_name: str = ""
    deprecated_on: str = ""


def rounded(rate: Decimal) -> Decimal:
    """A rate without the noise of floats, which some sources have been through."""
    return round(rate, RATE_DECIMALS).normalize()
