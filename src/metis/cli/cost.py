"""`metis cost`: what conversations have cost, by day, model or session, with a plot."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal

import click
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from metis import adapters
from metis.catalog.load import price_table
from metis.cli.calls import calls_in
from metis.cli.columns import columns
from metis.cli.render import count
from metis.cli.stored import with_store
from metis.cli.table import bar, dollars, short, table
from metis.events import Event
from metis.events.analytics import CostLine, Repriced, cache_effect, cost_by, reprice_calls
from metis.events.work import LlmCallCompleted
from metis.store import Store
from metis.wire.call import UNPRICED

Grouping = Literal["day", "model", "provider", "session"]
_NARROWEST_BAR = 6


class _Report(Struct, frozen=True, kw_only=True):
    """The same as the table, for scripts."""

    by: str
    groups: Mapping[str, CostLine]
    total: CostLine
    unpriced_models: tuple[str, ...]
    repriced: Repriced | None


def print_cost(
    url: str | None, by: Grouping, *, days: int | None, reprice: str | None, as_json: bool
) -> int:
    """Print what was spent; `reprice` is the version of a price table to compare with."""
    since = None if days is None else datetime.now(UTC) - timedelta(days=days)
    prices = None if reprice is None else price_table(None if reprice == "newest" else reprice)

    async def work(keep: Store) -> int:
        calls = [event async for event in calls_in(keep, since=since)]
        report = _Report(
            by=by,
            groups=cost_by(calls, by),
            total=cost_by(calls, "none").get("all", CostLine()),
            unpriced_models=_unpriced(calls),
            repriced=None if prices is None else reprice_calls(_as_priced(calls), prices),
        )
        if as_json:
            click.echo(msgspec.json.format(msgspec.json.encode(report)))
        else:
            _print(report, calls, days)
        return 0

    return with_store(url, work, recover=False)


def _print(report: _Report, calls: Sequence[Event], days: int | None) -> None:
    if not calls:
        within = "" if days is None else f" in the last {count(days, 'day')}"
        click.echo(f"Nothing was asked{within}.")
        return
    for line in _lines(report):
        click.echo(line)
    effect = cache_effect(calls).hit_rate or 0.0
    click.echo(f"\n{_total(report.total)}, {effect:.0%} of the input from a cache")
    if report.unpriced_models:
        names = ", ".join(report.unpriced_models)
        click.echo(f"Without a price, and so not in the sum: {names}")
    if report.repriced is not None:
        click.echo(_comparison(report.repriced))


def _lines(report: _Report) -> list[str]:
    """The table, with a bar for each group in the room that is left."""
    rows = [_row(name, line) for name, line in report.groups.items()]
    head = (report.by, "calls", "in", "out", "cost")
    lines = table(head, rows, right=(1, 2, 3, 4))
    room = columns() - max(len(click.unstyle(line)) for line in lines) - 2
    most = max(line.cost_usd for line in report.groups.values())
    if room < _NARROWEST_BAR or not most:
        return lines
    bars = [bar(line.cost_usd, most, min(room, 30)) for line in report.groups.values()]
    drawn = [
        f"{line}  {click.style(each, fg='cyan')}" if each else line
        for line, each in zip(lines[1:], bars, strict=True)
    ]
    return [lines[0], *drawn]


def _row(name: str, line: CostLine) -> tuple[str, ...]:
    return (
        name,
        str(line.call_count),
        short(_input(line)),
        short(line.output_tokens),
        dollars(line.cost_usd),
    )


def _input(line: CostLine) -> int:
    return line.input_tokens + line.cached_input_tokens + line.cache_creation_input_tokens


def _total(line: CostLine) -> str:
    tokens = f"{short(_input(line))} tokens in, {short(line.output_tokens)} out"
    return f"{dollars(line.cost_usd)} for {count(line.call_count, 'call')}, {tokens}"


def _comparison(told: Repriced) -> str:
    old, new = told.old_cost_usd, told.new_cost_usd
    change = f" ({(new - old) / old:+.0%})" if old else ""
    text = f"At prices of {told.pricing_version}: {dollars(new)} in place of {dollars(old)}{change}"
    if told.unpriced:
        left_out = ", ".join(f"{model} ({number})" for model, number in told.unpriced.items())
        text += f"\nIn neither sum, because that table has no price: {left_out}"
    return text


def _unpriced(calls: Sequence[Event]) -> tuple[str, ...]:
    told = (event.payload for event in calls)
    return tuple(
        sorted(
            {
                call.model
                for call in told
                if isinstance(call, LlmCallCompleted) and call.pricing_version == UNPRICED
            }
        )
    )


def _as_priced(calls: Sequence[Event]) -> list[Event]:
    """The calls under the names that price tables know: a host may serve another's models."""
    return [
        replace(event, payload=replace(call, model=_priced_as(call.model)))
        for event in calls
        if isinstance(call := event.payload, LlmCallCompleted)
    ]


def _priced_as(model: str) -> str:
    provider, _, name = model.partition(":")
    if provider not in adapters.names():
        return model
    profile = adapters.profile_of(provider)
    return f"{profile.catalogued or profile.name}:{name}"
