"""`metis cost`: what conversations have cost, by day, model, provider or session."""

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal

import click
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from metis import adapters
from metis.canonical.metadata import StopReason, Usage
from metis.catalog.models import is_model_id
from metis.catalog.tables import price_table
from metis.cli.render import count
from metis.cli.sessions import with_store
from metis.cli.text import bar, format_usd, screen_width, short_count, table
from metis.events import Actor, Event, Sensitivity
from metis.events.analytics import CostLine, RepricedTotals, cache_usage, cost_by, reprice_calls
from metis.events.turn_events import LlmCallCompleted
from metis.session.conversation import USAGE_KIND, recorded_usage
from metis.store import Store
from metis.store.entries import AnyEntry, CompactionEntry, MessageEntry, SidecarEntry
from metis.wire.call import UNPRICED

_ALL = 1_000_000


async def call_events(keep: Store, *, since: datetime | None = None) -> AsyncIterator[Event]:
    """Every call of a store that cost something or could have, session by session."""
    for record in await keep.sessions(_ALL):
        if since is not None and record.updated_at < since:
            return
        for event in session_call_events(await keep.history(record.id)):
            if since is None or event.timestamp >= since:
                yield event


def session_call_events(history: Iterable[AnyEntry]) -> Iterator[Event]:
    """The calls of one session: answers, summaries, and calls that left no message."""
    for entry in history:
        match entry:
            case MessageEntry() if entry.message.metadata.usage is not None:
                metadata = entry.message.metadata
                if metadata.usage is not None:
                    stop = metadata.stop_reason or StopReason.UNKNOWN
                    yield _call_event(entry, metadata.model or "", metadata.usage, stop)
            case SidecarEntry() if entry.kind == USAGE_KIND:
                yield _call_event(entry, *recorded_usage(entry.data))
            case CompactionEntry() if entry.details and "usage" in entry.details:
                yield _call_event(entry, *recorded_usage(entry.details))
            case _:
                pass


def _call_event(
    entry: MessageEntry | SidecarEntry | CompactionEntry,
    model: str,
    usage: Usage,
    stop_reason: StopReason = StopReason.UNKNOWN,
) -> Event:
    return Event(
        id=entry.id,
        timestamp=entry.created_at,
        session_id=entry.session_id,
        type="llm.call_completed",
        actor=Actor.SYSTEM,
        sensitivity=Sensitivity.PSEUDONYMOUS,
        payload=LlmCallCompleted(
            model=model or "unknown",
            provider=model.partition(":")[0] if is_model_id(model) else "unknown",
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cached_input_tokens=usage.cached_input_tokens,
            cache_creation_input_tokens=usage.cache_creation_input_tokens,
            cache_creation_1h_input_tokens=usage.cache_creation_1h_input_tokens,
            cost_usd=usage.cost_usd,
            pricing_version=usage.pricing_version,
            latency_ms=usage.latency_ms,
            stop_reason=stop_reason,
        ),
    )


Grouping = Literal["day", "model", "provider", "session"]
_NARROWEST_BAR = 6


class _Report(Struct, frozen=True, kw_only=True):
    """The same as the table, for scripts."""

    by: str
    groups: Mapping[str, CostLine]
    total: CostLine
    unpriced_models: tuple[str, ...]
    repriced: RepricedTotals | None


def print_cost(
    url: str | None, by: Grouping, *, days: int | None, reprice: str | None, as_json: bool
) -> int:
    """Print what was spent; `reprice` is the version of a price table to compare with."""
    since = None if days is None else datetime.now(UTC) - timedelta(days=days)
    prices = None if reprice is None else price_table(None if reprice == "newest" else reprice)

    async def work(keep: Store) -> int:
        calls = [event async for event in call_events(keep, since=since)]
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
    effect = cache_usage(calls).hit_rate or 0.0
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
    room = screen_width() - max(len(click.unstyle(line)) for line in lines) - 2
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
        short_count(_input(line)),
        short_count(line.output_tokens),
        format_usd(line.cost_usd),
    )


def _input(line: CostLine) -> int:
    return line.input_tokens + line.cached_input_tokens + line.cache_creation_input_tokens


def _total(line: CostLine) -> str:
    tokens = f"{short_count(_input(line))} tokens in, {short_count(line.output_tokens)} out"
    return f"{format_usd(line.cost_usd)} for {count(line.call_count, 'call')}, {tokens}"


def _comparison(told: RepricedTotals) -> str:
    old, new = told.old_cost_usd, told.new_cost_usd
    change = f" ({(new - old) / old:+.0%})" if old else ""
    amounts = f"{format_usd(new)} in place of {format_usd(old)}{change}"
    text = f"At prices of {told.pricing_version}: {amounts}"
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
    return f"{profile.catalog_provider or profile.name}:{name}"
