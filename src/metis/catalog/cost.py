"""Cost: tokens times rates, exactly, and the cost of stored messages under another table.

The cost is always computed from the price table; a cost that a provider reports is not used
(M-181).
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal, localcontext
from functools import cache, lru_cache, partial
from typing import Any, Self

from msgspec import Struct
from msgspec.structs import replace

from metis.canonical.errors import InvalidValueError, MetisError
from metis.canonical.message import Message
from metis.canonical.metadata import Usage
from metis.catalog.currency import EXACT_CONTEXT
from metis.catalog.models import is_model_id
from metis.catalog.prices import Period, PriceTable, Tariff
from metis.catalog.tables import added_price_tables, catalog, price_table, pricing_versions

_shipped_prices = cache(price_table)
_COUNTS = (
    *("input_tokens", "cached_input_tokens", "cache_creation_input_tokens"),
    *("cache_creation_1h_input_tokens", "output_tokens"),
)
# The names of the standard tier: OpenAI `default` or `auto`, Groq `on_demand`, Anthropic
# `standard`.
_STANDARD_TIERS = frozenset(("", "auto", "default", "on_demand", "standard"))


_ZERO = Decimal(0)


class Cost(Decimal):
    """An amount of US dollars with its breakdown; arithmetic is that of Decimal."""

    model: str
    pricing_version: str
    parts: Mapping[str, Decimal]
    """The amount by bucket: `input`, `cached_read`, `cache_write`, `cache_write_1h`, `output`, and
    `server_tool.<name>` for charges per use; their sum is the amount."""
    notes: tuple[str, ...]
    """Information that the table does not have, such as the rates of a service tier."""

    def __new__(
        cls,
        amount: Decimal,
        *,
        model: str,
        pricing_version: str,
        parts: Mapping[str, Decimal],
        notes: tuple[str, ...] = (),
    ) -> Self:
        """Construct a cost from an amount, its parts and the source of the rates."""
        self = super().__new__(cls, amount)
        self.model = model
        self.pricing_version = pricing_version
        self.parts = parts
        self.notes = notes
        return self

    # Decimal would print small amounts with an exponent.
    def __str__(self) -> str:
        return format(Decimal(self), "f")

    def __repr__(self) -> str:
        return f"Cost('{self}', model={self.model!r}, pricing_version={self.pricing_version!r})"

    def __reduce__(self) -> Any:
        # Decimal would pickle only its digits.
        return partial(Cost, **self.__dict__), (Decimal(self),)


def cost(
    usage: Usage, model: str, at: datetime | None = None, *, table: PriceTable | None = None
) -> Cost:
    """Return the exact cost of a model call.

    Without `table`, the newest table up to `at` that has the model is used, else the oldest later
    one. Without `at`, the rates are those of the date of the table.
    """
    chosen, model_id, period = _period(usage, model, at, table)
    tariff, notes = _tariff(period, usage.service_tier, at)
    # In this context an amount that would have to be rounded raises an error.
    with localcontext(EXACT_CONTEXT):
        token_parts = _token_parts(usage, tariff)
        tool_parts, tool_notes = _tool_parts(usage, period)
        parts = {name: _shortest(amount) for name, amount in {**token_parts, **tool_parts}.items()}
        return Cost(
            _shortest(sum(parts.values(), Decimal(0))),
            model=model_id,
            pricing_version=chosen.pricing_version,
            parts=parts,
            notes=(*notes, *tool_notes),
        )


def price(
    usage: Usage, model: str, at: datetime | None = None, *, table: PriceTable | None = None
) -> Usage:
    """Return a usage with its cost and the version of the price table."""
    chosen, _, period = _period(usage, model, at, table)
    tariff, _ = _tariff(period, usage.service_tier, at)
    # The sum of `cost` without the breakdown, which is not needed after each response.
    with localcontext(EXACT_CONTEXT):
        amount = sum(_token_parts(usage, tariff).values(), _ZERO)
        if usage.server_tool_requests:
            amount = sum(_tool_parts(usage, period)[0].values(), amount)
        amount = _shortest(amount)
    return replace(usage, cost_usd=amount, pricing_version=chosen.pricing_version)


def _period(
    usage: Usage, model: str, at: datetime | None, table: PriceTable | None
) -> tuple[PriceTable, str, Period]:
    """Return the table to use, the canonical id of the model in it, and its rates at a time."""
    _refuse_negative(usage)
    # Price periods and peak hours are defined in UTC.
    if at is not None and at.utcoffset() is None:
        raise InvalidValueError("a time must have a zone", path="$.at")
    day = None if at is None else _day(at)
    chosen, model_id = _choose_table(model, day, table)
    return chosen, model_id, chosen.prices(model_id).period_on(day or chosen.dated_on)


class RepricedMessage(Struct, frozen=True, kw_only=True):
    """The stored cost of a message, and its cost under another table."""

    message_id: str
    model: str
    old_cost_usd: Decimal
    old_pricing_version: str
    new_cost: Cost


class UnpricedMessage(Struct, frozen=True, kw_only=True):
    """A message that the table cannot price, and the reason; its cost is unknown, not zero."""

    message_id: str
    model: str | None
    old_cost_usd: Decimal
    reason: str


class Repricing(Struct, frozen=True, kw_only=True):
    """The cost of stored messages under another table."""

    pricing_version: str
    repriced: tuple[RepricedMessage, ...]
    unpriced: tuple[UnpricedMessage, ...]
    without_usage_count: int
    """The number of messages without a usage, such as those of the user."""

    @property
    def old_total_usd(self) -> Decimal:
        """The stored cost of the messages that could be repriced."""
        return _total(entry.old_cost_usd for entry in self.repriced)

    @property
    def new_total_usd(self) -> Decimal:
        """The new cost of the messages that could be repriced."""
        return _total(entry.new_cost for entry in self.repriced)

    @property
    def unpriced_models(self) -> tuple[str, ...]:
        """The models that the table does not have, sorted."""
        return tuple(sorted({entry.model for entry in self.unpriced if entry.model is not None}))


def reprice(
    messages: Iterable[Message], table: PriceTable | str, *, at_creation: bool = False
) -> Repricing:
    """Return the cost of messages under a table or version; the messages are not changed.

    The rates are those of the date of the table or, with `at_creation`, those of the table for the
    time of each message.
    """
    chosen = price_table(table) if isinstance(table, str) else table
    repriced: list[RepricedMessage] = []
    unpriced: list[UnpricedMessage] = []
    without_usage_count = 0
    for message in messages:
        usage = message.metadata.usage
        if usage is None:
            without_usage_count += 1
            continue
        entry = _reprice(message, usage, chosen, message.created_at if at_creation else None)
        if isinstance(entry, RepricedMessage):
            repriced.append(entry)
        else:
            unpriced.append(entry)
    return Repricing(
        pricing_version=chosen.pricing_version,
        repriced=tuple(repriced),
        unpriced=tuple(unpriced),
        without_usage_count=without_usage_count,
    )


def _reprice(
    message: Message, usage: Usage, table: PriceTable, at: datetime | None
) -> RepricedMessage | UnpricedMessage:
    """Return the cost of one message under a table, or the reason why it has none."""
    model = message.metadata.model
    try:
        if model is None:
            raise InvalidValueError("the message has no model")
        new_cost = cost(usage, model, at, table=table)
    except MetisError as error:
        return UnpricedMessage(
            message_id=message.id, model=model, old_cost_usd=usage.cost_usd, reason=str(error)
        )
    return RepricedMessage(
        message_id=message.id,
        model=new_cost.model,
        old_cost_usd=usage.cost_usd,
        old_pricing_version=usage.pricing_version,
        new_cost=new_cost,
    )


def _total(amounts: Iterable[Decimal]) -> Decimal:
    with localcontext(EXACT_CONTEXT):
        return _shortest(sum(amounts, Decimal(0)))


def _refuse_negative(usage: Usage) -> None:
    for name in _COUNTS:
        if getattr(usage, name) < 0:
            raise InvalidValueError(f"{getattr(usage, name)} is not a count", path=f"$.{name}")
    for tool, count in (usage.server_tool_requests or {}).items():
        if count < 0:
            path = f"$.server_tool_requests.{tool}"
            raise InvalidValueError(f"{count} is not a count", path=path)


def _choose_table(model: str, day: date | None, table: PriceTable | None) -> tuple[PriceTable, str]:
    """Return the table to use, and the canonical id of the model in it."""
    if table is not None:
        return table, _canonical_id(model, table)
    version, model_id = _shipped_choice(model, day)
    if version is not None:
        return _shipped_prices(version), model_id
    # Tables of plugins are used only for models that no table of metis has.
    for added, prices in added_price_tables().items():
        if model_id in prices.models:
            return _shipped_prices(f"{pricing_versions()[-1]}+{added}"), model_id
    return _shipped_prices(), model_id


@lru_cache(maxsize=4096)
def _shipped_choice(model: str, day: date | None) -> tuple[str | None, str]:
    """Return the version of the shipped table that has a model, or None, and the model's id.

    Cached, because the import of a long session prices many responses of a few models.
    """
    model_id = _canonical_id(model, _shipped_prices())
    # A model may be missing in older tables that were valid at the time.
    for version in _versions_by_preference(day):
        if model_id in _shipped_prices(version).models:
            return version, model_id
    return None, model_id


def _canonical_id(model: str, table: PriceTable) -> str:
    """Return the canonical id of a model; an id may have a price without being in the catalogue."""
    # A user's table may price models that the catalogue does not have.
    if model in table.models:
        return model
    models = catalog()
    if is_model_id(model) and model.lower() not in models.aliases:
        return model
    return models.resolve(model)


def _versions_by_preference(day: date | None) -> Iterator[str]:
    """Yield the versions up to a day from newest to oldest, then the later ones from the oldest."""
    versions = pricing_versions()
    newest = versions[-1] if day is None else day.isoformat()
    yield from reversed([version for version in versions if version <= newest])
    yield from (version for version in versions if version > newest)


def _day(at: datetime) -> date:
    return at.astimezone(UTC).date()


def _tariff(
    period: Period, service_tier: object, at: datetime | None
) -> tuple[Tariff, tuple[str, ...]]:
    """Return the tariff for a service tier and a time, and notes on missing information."""
    name = service_tier.lower() if isinstance(service_tier, str) else ""
    if name in period.service_tiers:
        return period.service_tiers[name], ()
    notes: tuple[str, ...] = ()
    if name not in _STANDARD_TIERS or not isinstance(service_tier, str | None):
        notes = (f"no rates for service tier {service_tier!r}: standard rates used",)
    if at is None:
        peak_notes = ("peak hours ignored: no time given",) if period.peak_hours else ()
        return period.standard, (*notes, *peak_notes)
    for peak in period.peak_hours:
        if peak.contains(at):
            return peak.tariff, notes
    return period.standard, notes


def _token_parts(usage: Usage, tariff: Tariff) -> dict[str, Decimal]:
    written_1h = min(usage.cache_creation_1h_input_tokens, usage.cache_creation_input_tokens)
    tokens = {
        "input": usage.input_tokens,
        "cached_read": usage.cached_input_tokens,
        "cache_write": usage.cache_creation_input_tokens - written_1h,
        "cache_write_1h": written_1h,
        "output": usage.output_tokens,
    }
    rates = tariff.rates_for(usage.prompt_tokens).by_bucket()
    return {bucket: count * rates[bucket].scaleb(-6) for bucket, count in tokens.items()}


def _tool_parts(usage: Usage, period: Period) -> tuple[dict[str, Decimal], tuple[str, ...]]:
    """Return the charges of server-side tools, and a note for each tool without one."""
    parts: dict[str, Decimal] = {}
    notes: list[str] = []
    for tool, count in sorted((usage.server_tool_requests or {}).items()):
        charge = period.per_use_usd.get(tool)
        # Counting an unknown charge as zero would hide it, so that a note reports it.
        if charge is None and count:
            notes.append(f"no charge known for server tool {tool!r}: {count} uses not priced")
        elif charge is not None:
            parts[f"server_tool.{tool}"] = count * charge
    return parts, tuple(notes)


def _shortest(amount: Decimal) -> Decimal:
    """Return an amount without trailing zeros and without an exponent."""
    shortest = amount.normalize()
    return shortest.quantize(Decimal(1)) if shortest == shortest.to_integral_value() else shortest
