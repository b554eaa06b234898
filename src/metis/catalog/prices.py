"""PriceTable: the prices of models, by version and date.

A table is read from the data of a TOML file::

    pricing_version = "2026-05-08"
    source = "where the rates come from"

    [models]
    "anthropic:claude-sonnet-4-6" = { input_per_mtok_usd = 3, output_per_mtok_usd = 15,
        cached_read_per_mtok_usd = 0.3, cache_write_per_mtok_usd = 3.75 }

Rates are US dollars per million tokens, or in another currency of the table (see
`metis.catalog.currency`). A model has one set of rates, or a list of them with `starts_on` dates.
In addition to the rates a set may contain

- `long_context`: rates with `above_tokens`, for prompts longer than that;
- `service_tiers`: by name, other rates or a `multiplier` of the standard ones;
- `peak_hours`: rates with `starts_at` and `ends_at`, for those hours of the day in UTC;
- `per_use_usd`: charges per request of a server-side tool.

Missing rates have a default (M-188): cache reads and writes cost as much as uncached input. Writes
for one hour cost twice the input rate if five-minute writes have a rate, otherwise as much as
uncached input. The defaults derive from the rates of the tier that applies.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Context, Decimal, localcontext
from itertools import pairwise
from typing import Any, cast

from msgspec import Struct
from msgspec.structs import asdict, replace

from metis.canonical.errors import CatalogDataError, InvalidValueError, Problem, UnpricedModelError
from metis.catalog.currency import EXACT_CONTEXT, convert_to_usd, exact_decimal, read_currencies
from metis.catalog.models import is_model_id

# A higher rate is a mistake in the table.
_MAX_RATE = 1_000_000
# Finer digits come from a binary float such as 0.30000000000000004.
_FINEST_RATE = Decimal("1E-12")
_ROUNDING_CONTEXT = Context(prec=40, traps=[])


class Rates(Struct, frozen=True, kw_only=True):
    """US dollars per million tokens; a missing cache rate has a default."""

    input_per_mtok_usd: Decimal
    output_per_mtok_usd: Decimal
    cached_read_per_mtok_usd: Decimal | None = None
    cache_write_per_mtok_usd: Decimal | None = None
    cache_write_1h_per_mtok_usd: Decimal | None = None

    def by_bucket(self) -> dict[str, Decimal]:
        """Return the rate of every token bucket, with the defaults filled in."""
        uncached, read, write, write_1h = (
            self.input_per_mtok_usd,
            self.cached_read_per_mtok_usd,
            self.cache_write_per_mtok_usd,
            self.cache_write_1h_per_mtok_usd,
        )
        if write_1h is None:
            # Anthropic charges twice the input rate for writes to its one-hour cache.
            write_1h = uncached if write is None else _multiply(uncached, Decimal(2))
        return {
            "input": uncached,
            "cached_read": uncached if read is None else read,
            "cache_write": uncached if write is None else write,
            "cache_write_1h": write_1h,
            "output": self.output_per_mtok_usd,
        }

    def times(self, multiplier: Decimal) -> "Rates":
        """Return the rates multiplied by a factor."""
        rates = {name: rate for name, rate in asdict(self).items() if rate is not None}
        return Rates(**{name: _multiply(rate, multiplier) for name, rate in rates.items()})


def _multiply(rate: Decimal, multiplier: Decimal) -> Decimal:
    with localcontext(EXACT_CONTEXT):
        return rate * multiplier


class LongContext(Struct, frozen=True):
    """Rates for prompts of more than `above_tokens` tokens."""

    above_tokens: int
    rates: Rates


class Tariff(Struct, frozen=True):
    """The rates of one service tier, for prompts of every length."""

    rates: Rates
    long_context: tuple[LongContext, ...] = ()

    def rates_for(self, prompt_tokens: int) -> Rates:
        """Return the rates for a prompt; exactly at the limit the lower ones apply (T151)."""
        rates = self.rates
        # Gemini and Anthropic charge the higher rate for all tokens of a long prompt, not only for
        # those above the limit.
        for tier in self.long_context:
            if prompt_tokens > tier.above_tokens:
                rates = tier.rates
        return rates

    def times(self, multiplier: Decimal) -> "Tariff":
        """Return the tariff with all rates multiplied by a factor."""
        return Tariff(
            rates=self.rates.times(multiplier),
            long_context=tuple(
                replace(tier, rates=tier.rates.times(multiplier)) for tier in self.long_context
            ),
        )


class PeakHours(Struct, frozen=True):
    """A tariff for some hours of every day, in UTC; the end is exclusive."""

    starts_at: time
    ends_at: time
    tariff: Tariff

    def contains(self, at: datetime) -> bool:
        """Return whether a time is within these hours."""
        time_of_day = at.astimezone(UTC).time()
        if self.starts_at <= self.ends_at:
            return self.starts_at <= time_of_day < self.ends_at
        # The hours may span midnight in UTC.
        return time_of_day >= self.starts_at or time_of_day < self.ends_at


class Period(Struct, frozen=True, kw_only=True):
    """The prices of a model from a day on."""

    starts_on: date | None = None
    standard: Tariff
    service_tiers: Mapping[str, Tariff]
    peak_hours: tuple[PeakHours, ...] = ()
    per_use_usd: Mapping[str, Decimal]
    """Charges per request of a server-side tool, by tool name."""


class ModelPrices(Struct, frozen=True):
    """The prices of a model, in periods from the oldest to the newest."""

    periods: tuple[Period, ...]

    def period_on(self, day: date | None) -> Period:
        """Return the period with the latest start up to a day; without a day, the newest one."""
        if day is None:
            return self.periods[-1]
        # Before the first period, its rates are the best estimate.
        started = [period for period in self.periods if (period.starts_on or date.min) <= day]
        return started[-1] if started else self.periods[0]


class PriceTable(Struct, frozen=True, kw_only=True):
    """The prices of many models under one version."""

    pricing_version: str
    source: str
    models: Mapping[str, ModelPrices]

    @property
    def dated_on(self) -> date | None:
        """The date at the start of the version; None if it does not start with a date."""
        try:
            return date.fromisoformat(self.pricing_version[:10])
        except ValueError:
            return None

    def prices(self, model: str) -> ModelPrices:
        """Return the prices of a canonical model id; raise UnpricedModelError if there are none."""
        prices = self.models.get(model)
        if prices is None:
            # Without the error a missing price would count as zero.
            raise UnpricedModelError(model, self.pricing_version, _hint(model))
        return prices

    def with_overlay(self, overlay: "PriceTable") -> "PriceTable":
        """Return this table with the models of an overlay added or replaced."""
        return PriceTable(
            # Costs record the version, which must show that rates of the overlay may apply.
            pricing_version=f"{self.pricing_version}+{overlay.pricing_version}",
            source=f"{self.source}; {overlay.source}",
            models={**self.models, **overlay.models},
        )


def _hint(model: str) -> str:
    return (
        "add it to a TOML file and read that with price_table(overlay=path):\n"
        '  pricing_version = "mine-1"\n'
        '  source = "where the rates come from"\n'
        "  [models]\n"
        f'  "{model}" = {{ input_per_mtok_usd = 0, output_per_mtok_usd = 0 }}'
    )


_SECTIONS = ("pricing_version", "source", "currencies", "models")


def read_price_table(data: Mapping[str, object]) -> PriceTable:
    """Read a price table from plain data; every problem is reported with its path."""
    problems = list(_unknown_keys(data, _SECTIONS, "$"))
    version = _text(data, "pricing_version", problems)
    source = _text(data, "source", problems)
    currencies = read_currencies(data.get("currencies"), problems)
    models = {
        model: _read_model(model, row, f'$.models."{model}"', problems, currencies)
        for model, row in _table(data.get("models"), "$.models", problems).items()
    }
    if problems:
        raise CatalogDataError("the price table cannot be used", problems)
    return PriceTable(pricing_version=version, source=source, models=models)


def _text(data: Mapping[str, object], name: str, problems: list[Problem]) -> str:
    value = data.get(name)
    if not isinstance(value, str) or not value.strip():
        problems.append(Problem(f"$.{name}", "M-186", f"a price table must state its {name}"))
        return ""
    return value


def _read_model(
    model: str,
    row: object,
    path: str,
    problems: list[Problem],
    currencies: Mapping[str, Decimal],
) -> ModelPrices:
    """Read the prices of one model: one set of rates, or a list of periods."""
    if not is_model_id(model):
        problems.append(Problem(path, "M-178", "the key is not <provider>:<model_name>"))
    if isinstance(row, list):
        rows = cast("list[object]", row)
        paths = [(period, f"{path}[{index}]") for index, period in enumerate(rows)]
    else:
        paths = [(row, path)]
    periods = [
        _read_period(convert_to_usd(period, currencies, place, problems), place, problems)
        for period, place in paths
    ]
    problems += _period_problems(periods, path)
    return ModelPrices(tuple(periods))


def _period_problems(periods: Sequence[Period], path: str) -> Iterator[Problem]:
    if not periods:
        yield Problem(path, "M-186", "a model must have at least one set of rates")
    starts = [period.starts_on or date.min for period in periods]
    if any(later <= earlier for earlier, later in pairwise(starts)):
        yield Problem(path, "M-183", "each period must have a later starts_on than the one before")


_PERIOD_KEYS = ("starts_on", "service_tiers", "peak_hours", "per_use_usd")
_TARIFF_KEYS = (*Rates.__struct_fields__, "long_context")
_REQUIRED_RATES = ("input_per_mtok_usd", "output_per_mtok_usd")


def _read_period(row: object, path: str, problems: list[Problem]) -> Period:
    """Read one set of rates with its tiers, peak hours and charges."""
    fields = _table(row, path, problems)
    problems += _unknown_keys(fields, (*_PERIOD_KEYS, *_TARIFF_KEYS), path)
    standard = _read_tariff(fields, path, problems)
    return Period(
        starts_on=_day(fields.get("starts_on"), f"{path}.starts_on", problems),
        standard=standard,
        service_tiers={
            name: _read_service_tier(tier, standard, f"{path}.service_tiers.{name}", problems)
            for name, tier in _optional_table(fields, "service_tiers", path, problems).items()
        },
        peak_hours=tuple(
            _read_peak_hours(peak, f"{path}.peak_hours[{index}]", problems)
            for index, peak in enumerate(_optional_list(fields, "peak_hours", path, problems))
        ),
        per_use_usd={
            name: _amount(charge, f"{path}.per_use_usd.{name}", problems)
            for name, charge in _optional_table(fields, "per_use_usd", path, problems).items()
        },
    )


def _read_tariff(fields: Mapping[str, object], path: str, problems: list[Problem]) -> Tariff:
    tiers = tuple(
        _read_long_context(tier, f"{path}.long_context[{index}]", problems)
        for index, tier in enumerate(_optional_list(fields, "long_context", path, problems))
    )
    limits = [tier.above_tokens for tier in tiers]
    if limits != sorted(set(limits)):
        problems.append(
            Problem(f"{path}.long_context", "T151", "above_tokens must rise from tier to tier")
        )
    return Tariff(_read_rates(fields, path, problems), tiers)


def _read_rates(fields: Mapping[str, object], path: str, problems: list[Problem]) -> Rates:
    # Rates without a default are read even if they are missing, which reports the problem.
    names = [name for name in Rates.__struct_fields__ if name in fields or name in _REQUIRED_RATES]
    return Rates(**{name: _amount(fields.get(name), f"{path}.{name}", problems) for name in names})


def _read_long_context(row: object, path: str, problems: list[Problem]) -> LongContext:
    fields = _table(row, path, problems)
    problems += _unknown_keys(fields, ("above_tokens", *Rates.__struct_fields__), path)
    above_tokens = fields.get("above_tokens")
    if type(above_tokens) is not int or above_tokens < 1:
        problems.append(Problem(f"{path}.above_tokens", "T151", "must be a token count"))
        above_tokens = 0
    return LongContext(above_tokens, _read_rates(fields, path, problems))


def _read_service_tier(row: object, standard: Tariff, path: str, problems: list[Problem]) -> Tariff:
    fields = _table(row, path, problems)
    if "multiplier" not in fields:
        problems += _unknown_keys(fields, _TARIFF_KEYS, path)
        return _read_tariff(fields, path, problems)
    problems += _unknown_keys(fields, ("multiplier",), path)
    return standard.times(_amount(fields["multiplier"], f"{path}.multiplier", problems))


def _read_peak_hours(row: object, path: str, problems: list[Problem]) -> PeakHours:
    fields = _table(row, path, problems)
    problems += _unknown_keys(fields, ("starts_at", "ends_at", *_TARIFF_KEYS), path)
    hours = {name: fields.get(name) for name in ("starts_at", "ends_at")}
    for name, hour in hours.items():
        if type(hour) is not time:
            problems.append(Problem(f"{path}.{name}", "T152", "must be a time of day in UTC"))
    return PeakHours(
        starts_at=cast("time", hours["starts_at"]),
        ends_at=cast("time", hours["ends_at"]),
        tariff=_read_tariff(fields, path, problems),
    )


def _day(value: object, path: str, problems: list[Problem]) -> date | None:
    if value is None or type(value) is date:
        return value
    problems.append(Problem(path, "M-183", "must be a date"))
    return None


def _amount(value: object, path: str, problems: list[Problem]) -> Decimal:
    """Return an exact, non-negative amount; a float, which may have lost digits, is a problem."""
    try:
        amount = _exact(value)
    except InvalidValueError as error:
        problems.append(Problem(path, "M-103", error.reason))
        return Decimal(0)
    return amount


def _exact(value: object) -> Decimal:
    amount = exact_decimal(value)
    if amount is None:
        raise InvalidValueError(f"{value!r} is not an exact decimal number")
    if not amount.is_finite() or not 0 <= amount <= _MAX_RATE:
        raise InvalidValueError(f"{value} is not between 0 and {_MAX_RATE}")
    # Rates are from files; a printed binary float is recognised by its digits.
    if amount != amount.quantize(_FINEST_RATE, context=_ROUNDING_CONTEXT):
        raise InvalidValueError(f"{value} is finer than {_FINEST_RATE}, as if it had been a float")
    return amount


def _table(value: object, path: str, problems: list[Problem]) -> Mapping[str, Any]:
    if isinstance(value, dict):
        return cast("dict[str, Any]", value)
    problems.append(Problem(path, "M-186", "must be a table"))
    return {}


def _optional_table(
    fields: Mapping[str, object], name: str, path: str, problems: list[Problem]
) -> Mapping[str, Any]:
    return _table(fields[name], f"{path}.{name}", problems) if name in fields else {}


def _optional_list(
    fields: Mapping[str, object], name: str, path: str, problems: list[Problem]
) -> Sequence[object]:
    value = fields.get(name, [])
    if isinstance(value, list):
        return cast("list[object]", value)
    problems.append(Problem(f"{path}.{name}", "M-186", "must be a list"))
    return []


def _unknown_keys(
    fields: Mapping[str, object], allowed: Sequence[str], path: str
) -> Iterator[Problem]:
    for name in fields:
        if name not in allowed:
            yield Problem(
                f"{path}.{name}", "M-186", f"unknown key; allowed are {', '.join(allowed)}"
            )
