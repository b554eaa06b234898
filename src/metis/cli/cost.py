"""`metis cost`: what conversations have cost, by day, model, provider or session."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from metis import adapters
from metis.canonical.errors import ProviderError
from metis.canonical.message import Message
from metis.catalog.tables import price_table
from metis.cli.output import echo, echo_json
from metis.cli.stored_sessions import find_session, on_store
from metis.cli.text import (
    bar,
    cell_width,
    count,
    format_usd,
    screen_width,
    short_count,
    style,
    table,
    unstyled,
)
from metis.events import Event
from metis.events.analytics import CostLine, RepricedTotals, cache_usage, cost_by, reprice_calls
from metis.events.turn_events import LlmCallCompleted
from metis.session.stored_calls import stored_calls
from metis.settings import UserPaths, load
from metis.store import Store
from metis.wire.call import SIMULATED, UNPRICED

if TYPE_CHECKING:
    from metis.transport import Transport

Grouping = Literal["day", "model", "provider", "session"]
_MAX_LOOK_UPS = 1000
"""How many of the newest messages are looked up: each is a request to the provider."""
_MIN_BAR_WIDTH = 6
_MAX_BAR_WIDTH = 30


class _Report(Struct, frozen=True, kw_only=True):
    """The numbers of the table, as `--json` prints them."""

    by: str
    groups: Mapping[str, CostLine]
    total: CostLine
    unpriced_models: tuple[str, ...]
    simulated_models: tuple[str, ...] = ()
    repriced: RepricedTotals | None


@on_store(recover=False)
async def print_cost(
    store: Store, by: Grouping, *, days: int | None, reprice: str | None, as_json: bool
) -> int:
    """Print what was spent; `reprice` is the version of a price table to compare with."""
    since = None if days is None else datetime.now(UTC) - timedelta(days=days)
    prices = None if reprice is None else price_table(None if reprice == "newest" else reprice)
    calls = [event async for event in stored_calls(store, since=since)]
    report = _Report(
        by=by,
        groups=cost_by(calls, by),
        total=cost_by(calls, "none").get("all", CostLine()),
        unpriced_models=_models_priced_as(UNPRICED, calls),
        simulated_models=_models_priced_as(SIMULATED, calls),
        repriced=None if prices is None else reprice_calls(_with_priced_names(calls), prices),
    )
    if as_json:
        echo_json(msgspec.json.format(msgspec.json.encode(report)))
    else:
        _print(report, calls, days)
    return 0


class _Charge(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The cost of one call by the price tables of metis, and the amount its provider reports."""

    response_id: str
    model: str
    cost_usd: Decimal
    reported_cost_usd: Decimal | None = None
    error: str | None = None


@on_store(recover=False)
async def print_charges(store: Store, name: str, *, as_json: bool) -> int:
    """Print what the providers charged for the calls of a session; the exit code is 1 on a failure.

    Calls of providers without a cost look-up are left out; OpenRouter has one. The amounts are a
    cross-check and are not stored: messages never change.
    """
    from metis.transport import Keys, Transport  # noqa: PLC0415 - only look-ups need the network

    record = await find_session(store, name)
    messages = await store.messages(record.id, newest=_MAX_LOOK_UPS)
    base_urls = load().settings.base_urls
    charges: list[_Charge] = []
    async with Transport(keys=Keys(file=UserPaths.from_environment().keys)) as transport:
        for message in messages:
            charge = await _look_up_charge(transport, message, base_urls)
            if charge is not None:
                charges.append(charge)
    if as_json:
        echo_json(msgspec.json.format(msgspec.json.encode(charges)))
    elif charges:
        _print_charges(charges)
    else:
        echo("No provider of this session has a cost look-up, such as openrouter has.")
    return int(any(charge.error is not None for charge in charges))


async def _look_up_charge(
    transport: "Transport", message: Message, base_urls: Mapping[str, str]
) -> _Charge | None:
    """Return the charge of a response; None if its provider has no cost look-up."""
    provider, usage = message.metadata.provider or "", message.metadata.usage
    response_id = message.metadata.response_id
    if usage is None or not response_id or provider not in adapters.names():
        return None
    adapter = adapters.get(provider, base_url=base_urls.get(provider))
    if not adapter.profile.cost_path:
        return None
    charge = _Charge(
        response_id=response_id,
        model=message.metadata.model or provider,
        cost_usd=usage.cost_usd,
        reported_cost_usd=usage.reported_cost_usd,
    )
    try:
        priced_usage = (await transport.look_up_cost(adapter, message)).metadata.usage
    except ProviderError as error:
        return replace(charge, error=str(error))
    amount = None if priced_usage is None else priced_usage.reported_cost_usd
    return replace(charge, reported_cost_usd=amount)


def _print_charges(charges: Sequence[_Charge]) -> None:
    rows = [
        (
            charge.model,
            charge.response_id,
            format_usd(charge.cost_usd),
            "" if charge.reported_cost_usd is None else format_usd(charge.reported_cost_usd),
            charge.error or "",
        )
        for charge in charges
    ]
    for line in table(("model", "response", "by our prices", "charged", ""), rows, right=(2, 3)):
        echo(line)
    reported = [charge for charge in charges if charge.reported_cost_usd is not None]
    computed_usd = sum((charge.cost_usd for charge in reported), Decimal(0))
    charged_usd = sum((charge.reported_cost_usd or Decimal(0) for charge in reported), Decimal(0))
    calls = count(len(reported), "call")
    computed = f"{format_usd(computed_usd)} by our prices"
    echo(f"\n{format_usd(charged_usd)} charged for {calls}, {computed}")


def _print(report: _Report, calls: Sequence[Event], days: int | None) -> None:
    if not calls:
        period = "" if days is None else f" in the last {count(days, 'day')}"
        echo(f"No model calls{period}.")
        return
    for line in _lines(report):
        echo(line)
    hit_rate = cache_usage(calls).hit_rate or 0.0
    echo(f"\n{_total(report.total)}, {hit_rate:.0%} cached input")
    if report.simulated_models:
        echo(f"Simulated, at no cost: {', '.join(report.simulated_models)}")
    if report.unpriced_models:
        echo(f"No price known, not in the total: {', '.join(report.unpriced_models)}")
    if report.repriced is not None:
        echo(_comparison(report.repriced))


def _lines(report: _Report) -> list[str]:
    """Return the table, with a bar behind each group if the screen is wide enough."""
    rows = [_row(name, line) for name, line in report.groups.items()]
    lines = table((report.by, "calls", "in", "out", "cost"), rows, right=(1, 2, 3, 4))
    width = screen_width() - max(cell_width(unstyled(line)) for line in lines) - 2
    largest = max(line.cost_usd for line in report.groups.values())
    if width < _MIN_BAR_WIDTH or not largest:
        return lines
    bars = [
        bar(line.cost_usd, largest, min(width, _MAX_BAR_WIDTH)) for line in report.groups.values()
    ]
    with_bars = [
        f"{line}  {style(drawn, fg='cyan')}" if drawn else line
        for line, drawn in zip(lines[1:], bars, strict=True)
    ]
    return [lines[0], *with_bars]


def _row(name: str, line: CostLine) -> tuple[str, ...]:
    return (
        name,
        str(line.call_count),
        short_count(_input_tokens(line)),
        short_count(line.output_tokens),
        format_usd(line.cost_usd),
    )


def _input_tokens(line: CostLine) -> int:
    return line.input_tokens + line.cached_input_tokens + line.cache_creation_input_tokens


def _total(line: CostLine) -> str:
    tokens = f"{short_count(_input_tokens(line))} tokens in, {short_count(line.output_tokens)} out"
    return f"{format_usd(line.cost_usd)} for {count(line.call_count, 'call')}, {tokens}"


def _comparison(totals: RepricedTotals) -> str:
    old, new = totals.old_cost_usd, totals.new_cost_usd
    change = f" ({(new - old) / old:+.0%})" if old else ""
    text = (
        f"At prices of {totals.pricing_version}: "
        f"{format_usd(new)} instead of {format_usd(old)}{change}"
    )
    if totals.unpriced:
        models = ", ".join(f"{model} ({number})" for model, number in totals.unpriced.items())
        text += f"\nIn neither total, because that table has no price: {models}"
    return text


def _models_priced_as(version: str, calls: Sequence[Event]) -> tuple[str, ...]:
    models = {
        event.payload.model
        for event in calls
        if isinstance(event.payload, LlmCallCompleted) and event.payload.pricing_version == version
    }
    return tuple(sorted(models))


def _with_priced_names(calls: Sequence[Event]) -> list[Event]:
    """Return the calls under the names of the price tables: a host may serve another's models."""
    return [
        replace(event, payload=replace(call, model=_priced_name(call.model)))
        for event in calls
        if isinstance(call := event.payload, LlmCallCompleted)
    ]


def _priced_name(model: str) -> str:
    provider, _, name = model.partition(":")
    if provider not in adapters.names():
        return model
    profile = adapters.profile_of(provider)
    return f"{profile.catalog_provider or profile.name}:{name}"
