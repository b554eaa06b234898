"""Find stored sessions by id or title, and list them as rows."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from metis.canonical.errors import StoreError
from metis.catalog.models import ModelId, is_model_id
from metis.cli.text import cell_width, escape_controls, format_usd, truncate
from metis.store import Overview, SessionRecord, Store

LAST = "last"
_ALL = 100_000
_RECENT = 1000


async def find_session(keep: Store, wanted: str) -> SessionRecord:
    """A session by a part of its id that fits one only, else by words of its title.

    The word `last` is the one that changed last.
    """
    records = await keep.sessions(1 if wanted == LAST else _ALL)
    if wanted == LAST and records:
        return records[0]
    fitting = [each for each in records if wanted in each.id] or await _titled(keep, wanted)
    if len(fitting) > 1 and all(each.id != wanted for each in fitting):
        hint = "write more of the id; `metis sessions` lists all"
        raise StoreError(f"{wanted!r} fits {len(fitting)} sessions", hint=hint)
    return fitting[0] if len(fitting) == 1 else await keep.session(wanted)


async def _titled(keep: Store, wanted: str) -> list[SessionRecord]:
    found = await keep.overviews(_RECENT)
    return [each.session for each in found if wanted.lower() in each.title.lower()]


COLUMNS = ("id", "changed", "title", "model", "msgs", "cost")
RIGHT_ALIGNED = (4, 5)
"""The columns that end at the right."""
SHORT_ID = 6
"""How much of the end of an id names a session."""
EMPTY_TITLE = "(nothing said)"

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
        max(cell_width(row[place]) for row in (COLUMNS, *rows)) + _GAP
        for place in range(len(COLUMNS))
        if place != _TITLE
    )
    room = max(width - others, _NARROWEST_TITLE)
    return [_with_title(row, room) for row in rows]


def _row(each: Overview, now: datetime, name: Naming) -> tuple[str, ...]:
    return (
        each.session.id[-SHORT_ID:],
        format_age(each.session.updated_at, now),
        escape_controls(each.title or EMPTY_TITLE),
        truncate(name(each.model), _WIDEST_MODEL) if each.model else "",
        str(each.message_count),
        format_usd(each.cost_usd),
    )


def _with_title(row: tuple[str, ...], room: int) -> tuple[str, ...]:
    title = truncate(row[_TITLE], room)
    return (*row[:_TITLE], title + " " * (room - cell_width(title)), *row[_TITLE + 1 :])


def model_namer(aliases: dict[str, str]) -> Naming:
    """Names models by their shortest alias, else without their provider."""
    short: dict[str, str] = {}
    for alias, model in aliases.items():
        if len(alias) < len(short.get(model, model)):
            short[model] = alias
    return lambda model: short.get(model) or _bare(model)


def _bare(model: str) -> str:
    return ModelId.parse(model).name if is_model_id(model) else model


def format_age(moment: datetime, now: datetime) -> str:
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
