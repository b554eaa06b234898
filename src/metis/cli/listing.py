"""Listing: conversations as rows, for the command line and for the chat."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from metis.catalog.model_id import ModelId, is_model_id
from metis.cli.columns import cells, printable
from metis.cli.table import cut, dollars
from metis.store import Overview

HEAD = ("id", "changed", "title", "model", "msgs", "cost")
RIGHT = (4, 5)
"""The columns that end at the right."""
SHORT = 6
"""How much of the end of an id names a session."""
SILENT = "(nothing said)"

_GAP = 2
_TITLE = 2
_NARROWEST_TITLE = 12
_WIDEST_MODEL = 20
_STEPS = ((timedelta(hours=1), 60, "min"), (timedelta(days=1), 3600, "h"))
_WEEK = timedelta(days=7)

Naming = Callable[[str], str]
"""The short name of a model."""


def session_rows(
    overviews: Sequence[Overview], width: int, *, now: datetime, name: Naming
) -> list[tuple[str, ...]]:
    """A row for each session; the titles have the room that the others leave."""
    rows = [_row(each, now, name) for each in overviews]
    others = sum(
        max(cells(row[place]) for row in (HEAD, *rows)) + _GAP
        for place in range(len(HEAD))
        if place != _TITLE
    )
    room = max(width - others, _NARROWEST_TITLE)
    return [_with_title(row, room) for row in rows]


def _row(each: Overview, now: datetime, name: Naming) -> tuple[str, ...]:
    return (
        each.session.id[-SHORT:],
        ago(each.session.updated_at, now),
        printable(each.title or SILENT),
        cut(name(each.model), _WIDEST_MODEL) if each.model else "",
        str(each.message_count),
        dollars(each.cost_usd),
    )


def _with_title(row: tuple[str, ...], room: int) -> tuple[str, ...]:
    title = cut(row[_TITLE], room)
    return (*row[:_TITLE], title + " " * (room - cells(title)), *row[_TITLE + 1 :])


def short_name(aliases: dict[str, str]) -> Naming:
    """Names models by their shortest alias, else without their provider."""
    short: dict[str, str] = {}
    for alias, model in aliases.items():
        if len(alias) < len(short.get(model, model)):
            short[model] = alias
    return lambda model: short.get(model) or _bare(model)


def _bare(model: str) -> str:
    return ModelId.parse(model).name if is_model_id(model) else model


def ago(moment: datetime, now: datetime) -> str:
    """How long ago something was; what is older than a week has a date.

    >>> noon = datetime(2026, 11, 15, 12)
    >>> [ago(noon - timedelta(minutes=m), noon) for m in (0, 12, 60 * 5, 60 * 24 * 3)]
    ['now', '12 min ago', '5 h ago', '3 d ago']
    """
    passed = now - moment
    if passed < timedelta(minutes=1):
        return "now"
    for limit, unit_s, unit in _STEPS:
        if passed < limit:
            return f"{passed.total_seconds() // unit_s:.0f} {unit} ago"
    if passed < _WEEK:
        return f"{passed.days} d ago"
    return moment.astimezone().strftime("%Y-%m-%d")
