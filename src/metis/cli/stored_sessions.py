"""Open the store, find sessions by id or title, and list them as rows."""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Concatenate, ParamSpec

from metis.canonical.errors import StoreError
from metis.canonical.ids import new_ulid
from metis.catalog.models import ModelId, is_model_id
from metis.cli.text import cell_width, escape_controls, format_usd, truncate
from metis.settings import load
from metis.store import Overview, SessionRecord, Store
from metis.store import open as open_store
from metis.store.entries import SidecarEntry
from metis.store.queries import LABEL_KIND

# The name of the session that changed last.
LAST = "last"
COLUMNS = ("id", "changed", "title", "model", "msgs", "cost")
RIGHT_ALIGNED = (4, 5)
# How many characters at the end of an id name a session.
SHORT_ID = 6
MAX_TITLE = 200
EMPTY_TITLE = "(empty)"

_ALL = 100_000
_RECENT = 1000
_LISTED_MATCHES = 5
_GAP = 2
_TITLE = 2
_MIN_TITLE_WIDTH = 12
_MAX_MODEL_WIDTH = 20
_AGE_UNITS = ((timedelta(hours=1), 60, "min"), (timedelta(days=1), 3600, "h"))
_WEEK = timedelta(days=7)

P = ParamSpec("P")
StoreAction = Callable[Concatenate[Store, P], Awaitable[int]]
StoreCommand = Callable[Concatenate[str | None, P], int]
# Returns the short name of a model.
ModelNamer = Callable[[str], str]


def on_store(*, recover: bool) -> Callable[[StoreAction[P]], StoreCommand[P]]:
    """Turn a coroutine that takes a store into a command that takes the URL of one.

    Only commands that write may recover: recovery closes turns that another process left open.
    """

    def decorate(action: StoreAction[P]) -> StoreCommand[P]:
        @functools.wraps(action)
        def command(url: str | None, *args: P.args, **kwargs: P.kwargs) -> int:
            async def run() -> int:
                # Without --store the settings decide where conversations are stored.
                async with open_store(url or load().settings.store, recover=recover) as store:
                    return await action(store, *args, **kwargs)

            return asyncio.run(run())

        return command

    return decorate


async def find_session(store: Store, name: str) -> SessionRecord:
    """Return the session with this part of an id, or else with this part of a title.

    Raises:
        StoreError: several sessions match, or the last one is wanted and the store is empty.
        UnknownSessionError: none matches.
    """
    if name == LAST:
        if records := await store.sessions(1):
            return records[0]
        raise StoreError("no conversation is stored yet", hint="start one with `metis`")
    # A full id may be part of another one, such as sess_1 of sess_12.
    matches = await matching_sessions(store, name)
    if len(matches) > 1:
        ids = ", ".join(record.id[-SHORT_ID:] for record in matches[:_LISTED_MATCHES])
        more = ", …" if len(matches) > _LISTED_MATCHES else ""
        hint = "give more of the id"
        raise StoreError(f"{len(matches)} sessions match {name!r}: {ids}{more}", hint=hint)
    return matches[0] if len(matches) == 1 else await store.session(name)


async def matching_sessions(store: Store, name: str) -> list[SessionRecord]:
    """Return the sessions with this part of an id, or else with this part of a title or a tag."""
    records = await store.sessions(_ALL)
    exact = [record for record in records if record.id == name]
    return (
        exact or [record for record in records if name in record.id] or await _titled(store, name)
    )


async def label_session(
    store: Store,
    session_id: str,
    *,
    title: str | None = None,
    tags: Sequence[str] | None = None,
) -> None:
    """Give a session a title or tags; None leaves what it has."""
    data: dict[str, Any] = {}
    if title is not None:
        data["title"] = " ".join(title.split())[:MAX_TITLE]
    if tags is not None:
        data["tags"] = list(tags)
    entry = SidecarEntry(
        id=new_ulid(),
        session_id=session_id,
        created_at=datetime.now(UTC),
        kind=LABEL_KIND,
        data=data,
    )
    await store.record(entry)


async def _titled(store: Store, words: str) -> list[SessionRecord]:
    overviews = await store.overviews(_RECENT)
    pattern = words.lower()
    return [
        row.session
        for row in overviews
        if pattern in row.title.lower() or pattern in map(str.lower, row.tags)
    ]


def session_rows(
    overviews: Sequence[Overview], width: int, *, now: datetime, name: ModelNamer
) -> list[tuple[str, ...]]:
    """Return a row for each session; titles get the width that the other columns leave."""
    rows = [_row(overview, now, name) for overview in overviews]
    others = sum(
        max(cell_width(row[column]) for row in (COLUMNS, *rows)) + _GAP
        for column in range(len(COLUMNS))
        if column != _TITLE
    )
    title_width = max(width - others, _MIN_TITLE_WIDTH)
    return [_with_title_width(row, title_width) for row in rows]


def labelled_title(overview: Overview) -> str:
    """Return the title of a session, with its tags before it."""
    tags = "".join(f"#{tag} " for tag in overview.tags)
    return f"{tags}{overview.title or EMPTY_TITLE}"


def _row(overview: Overview, now: datetime, name: ModelNamer) -> tuple[str, ...]:
    return (
        overview.session.id[-SHORT_ID:],
        format_age(overview.session.updated_at, now),
        escape_controls(labelled_title(overview)),
        truncate(name(overview.model), _MAX_MODEL_WIDTH) if overview.model else "",
        str(overview.message_count),
        format_usd(overview.cost_usd),
    )


def _with_title_width(row: tuple[str, ...], width: int) -> tuple[str, ...]:
    title = truncate(row[_TITLE], width)
    return (*row[:_TITLE], title + " " * (width - cell_width(title)), *row[_TITLE + 1 :])


def model_namer(aliases: dict[str, str]) -> ModelNamer:
    """Return a function that names models by their shortest alias, else without the provider."""
    short: dict[str, str] = {}
    for alias, model in aliases.items():
        if len(alias) < len(short.get(model, model)):
            short[model] = alias
    return lambda model: short.get(model) or _without_provider(model)


def _without_provider(model: str) -> str:
    return ModelId.parse(model).name if is_model_id(model) else model


def format_age(moment: datetime, now: datetime) -> str:
    """Return how long ago a moment was; older than a week, its date.

    >>> noon = datetime(2026, 11, 15, 12)
    >>> [format_age(noon - timedelta(minutes=m), noon) for m in (0, 12, 60 * 5, 60 * 24 * 3)]
    ['now', '12 min ago', '5 h ago', '3 d ago']
    """
    age = now - moment
    if age < timedelta(minutes=1):
        return "now"
    for limit, unit_s, unit in _AGE_UNITS:
        if age < limit:
            return f"{age.total_seconds() // unit_s:.0f} {unit} ago"
    if age < _WEEK:
        return f"{age.days} d ago"
    return moment.astimezone().strftime("%Y-%m-%d")
