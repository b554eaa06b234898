"""Commands on the store: list, show, fork and search sessions; check, back up and clean it."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import msgspec

from metis.catalog.tables import catalog
from metis.cli.output import echo, echo_json
from metis.cli.render import render_conversation
from metis.cli.stored_sessions import (
    COLUMNS,
    EMPTY_TITLE,
    RIGHT_ALIGNED,
    SHORT_ID,
    find_session,
    label_session,
    labelled_title,
    model_namer,
    on_store,
    session_rows,
)
from metis.cli.text import (
    count,
    escape_controls,
    format_usd,
    style,
    table,
    terminal_width,
    truncate,
)
from metis.store import Overview, Policy, Store, repair
from metis.store.connection import default_url

_MAX_WIDTH = 120
_ALL = 100_000
_NO_SESSIONS = "No conversations yet; `metis` starts one."
_NO_SESSIONS_HERE = "No conversations in this directory yet; without --here all are listed."


@on_store(recover=False)
async def print_sessions(
    store: Store, limit: int, *, is_here: bool, as_json: bool, tag: str | None = None
) -> int:
    """Print the sessions that changed last; in a pipe one line each, with the full id."""
    workspace = str(Path.cwd()) if is_here else None
    overviews = await store.overviews(limit, workspace_path=workspace)
    if tag is not None:
        overviews = [overview for overview in overviews if tag in overview.tags]
    if as_json:
        echo_json(msgspec.json.format(msgspec.json.encode([_as_json(o) for o in overviews])))
    elif not overviews:
        echo(_NO_SESSIONS_HERE if is_here else _NO_SESSIONS, err=True)
    else:
        width = terminal_width()
        for line in map(_line, overviews) if width is None else _table(overviews, width):
            echo(line)
    return 0


def _table(overviews: Sequence[Overview], width: int) -> list[str]:
    name = model_namer(dict(catalog().aliases))
    rows = session_rows(overviews, min(width, _MAX_WIDTH), now=datetime.now(UTC), name=name)
    hint = "metis -s ID continues one · metis show ID prints it"
    return [*table(COLUMNS, rows, right=RIGHT_ALIGNED), style(hint, dim=True)]


def _line(overview: Overview) -> str:
    cells = (
        overview.session.id,
        overview.session.updated_at.astimezone().strftime("%Y-%m-%d %H:%M"),
        overview.model or "-",
        str(overview.message_count),
        format_usd(overview.cost_usd),
        escape_controls(labelled_title(overview)),
    )
    return "  ".join(cells)


def _as_json(overview: Overview) -> Mapping[str, Any]:
    session = overview.session
    return {
        "id": session.id,
        "title": overview.title,
        "tags": overview.tags,
        "model": overview.model,
        "message_count": overview.message_count,
        "cost_usd": str(overview.cost_usd),
        "created_at": session.created_at,
        "updated_at": session.updated_at,
        "folder": session.workspace_path,
    }


@on_store(recover=True)
async def rename_session(store: Store, session_name: str, title: str) -> int:
    """Give a session a title."""
    record = await find_session(store, session_name)
    await label_session(store, record.id, title=title)
    echo(f"Renamed {record.id[-SHORT_ID:]} to {escape_controls(title)}", err=True)
    return 0


@on_store(recover=True)
async def tag_session(
    store: Store, session_name: str, tags: Sequence[str], *, is_removal: bool
) -> int:
    """Add tags to a session or remove them, and print those that it has."""
    record = await find_session(store, session_name)
    overviews = await store.overviews(_ALL)
    current = next(row.tags for row in overviews if row.session.id == record.id)
    names = [tag.lstrip("#") for tag in tags]
    changed = [tag for tag in current if tag not in names]
    if tags:
        changed = changed if is_removal else [*changed, *names]
        await label_session(store, record.id, tags=changed)
    echo(" ".join(map(escape_controls, changed if tags else current)))
    return 0


@on_store(recover=True)
async def delete_sessions(store: Store, session_names: Sequence[str], *, is_confirmed: bool) -> int:
    """Delete sessions; each is shown first unless the deletion is confirmed."""
    records = [await find_session(store, name) for name in session_names]
    titles = {row.session.id: labelled_title(row) for row in await store.overviews(_ALL)}
    for record in records:
        shown = f"{record.id[-SHORT_ID:]} {escape_controls(titles.get(record.id, EMPTY_TITLE))}"
        if is_confirmed or click.confirm(f"Delete {shown}?", err=True):
            await store.delete(record.id)
            echo(f"Deleted {shown}", err=True)
    return 0


@on_store(recover=False)
async def print_session(store: Store, session_name: str) -> int:
    """Print a stored session as a conversation."""
    record = await find_session(store, session_name)
    for part in render_conversation(await store.messages(record.id)):
        echo(part)
    return 0


@on_store(recover=True)
async def print_fork(store: Store, session_name: str, at: str | None) -> int:
    """Fork a session and print the id of the new one."""
    record = await find_session(store, session_name)
    echo((await store.fork(record.id, at=at)).id)
    return 0


@on_store(recover=False)
async def print_matches(store: Store, words: str, session_id: str | None, limit: int) -> int:
    """Print the messages that contain all words; the exit code is 1 if there are none."""
    matches = await store.search(words, session_id=session_id, limit=limit)
    width = terminal_width()
    for match in matches:
        snippet = escape_controls(" ".join(match.snippet.split()))
        if width is None:
            echo(f"{match.session_id}  {match.message_id}  {snippet}")
        else:
            short_id = style(match.session_id[-SHORT_ID:], dim=True)
            echo(f"{short_id}  {truncate(snippet, width - SHORT_ID - 2)}")
    return 0 if matches else 1


@on_store(recover=False)
async def print_check(store: Store) -> int:
    """Print the problems of a database, one a line; the exit code is 1 if there are any."""
    problems = await store.check()
    for problem in problems:
        echo(problem)
    echo(f"{store.name}: {count(len(problems), 'problem')}", err=True)
    return 1 if problems else 0


def repair_store(url: str | None, target: Path) -> int:
    """Save everything readable of a damaged store into a new file; print what is lost."""
    report = asyncio.run(repair(url or default_url(os.environ), target))
    for line in report.lost:
        echo(line)
    saved = f"{count(report.message_count, 'message')} of {count(report.session_count, 'session')}"
    echo(f"Saved {saved} to {target}; {count(len(report.lost), 'part')} lost", err=True)
    echo(f"Use it with --store sqlite:///{target.absolute()}", err=True)
    return 0


@on_store(recover=False)
async def write_backup(store: Store, target: Path) -> int:
    """Copy a store to a new file."""
    await store.backup(target)
    echo(f"Backed up {store.name} to {target}", err=True)
    return 0


@on_store(recover=True)
async def print_sweep(store: Store, policy: Policy, *, is_dry_run: bool) -> int:
    """Delete old or large data, or print what would be deleted."""
    sweep = await store.sweep(policy, is_dry_run=is_dry_run)
    for session_id in sweep.sessions:
        echo(f"session {session_id}")
    for eviction in sweep.evictions:
        location = f"session {eviction.session_id} message {eviction.message_id}"
        echo(f"{location}: {eviction.size_bytes} raw bytes")
    if sweep.event_count:
        echo(count(sweep.event_count, "event"))
    if is_dry_run:
        echo("Nothing was deleted; add --apply to delete this", err=True)
    return 0


@on_store(recover=False)
async def print_migration(store: Store) -> int:
    """Upgrade the schema, as opening a store does, and print its version."""
    echo(f"{store.name}: schema version {await store.version()}")
    return 0


def days_ago(days: float | None) -> datetime | None:
    """Return the moment that many days ago."""
    return None if days is None else datetime.now(UTC) - timedelta(days=days)
