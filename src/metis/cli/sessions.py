"""Commands on the store.

list, show, fork and search sessions; check, back up and clean the database.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Any

import click
import msgspec

from metis import store
from metis.catalog.tables import catalog
from metis.cli.conversion import loss_line
from metis.cli.error_text import run_guarded
from metis.cli.message_files import file_label
from metis.cli.render import count, render_conversation
from metis.cli.stored_sessions import (
    COLUMNS,
    EMPTY_TITLE,
    RIGHT_ALIGNED,
    SHORT_ID,
    find_session,
    model_namer,
    session_rows,
)
from metis.cli.text import escape_controls, format_usd, table, terminal_width, truncate
from metis.interchange.export import Conversation
from metis.interchange.writers import WRITERS
from metis.store import Overview, Policy, Store
from metis.store.threads import Threads
from metis.tools.builtin import BUILTINS

StoreAction = Callable[[Store], Awaitable[int]]


def with_store(url: str | None, work: StoreAction, *, recover: bool = True) -> int:
    """Run work on a store; an error is a line for people and the exit code 2."""

    async def run() -> int:
        async with store.open(url, recover=recover) as keep:
            return await work(keep)

    return run_guarded(lambda: asyncio.run(run()))


def print_session(url: str | None, session_id: str) -> int:
    """Print a session as a conversation for people."""

    async def work(keep: Store) -> int:
        record = await find_session(keep, session_id)
        for part in render_conversation(await keep.messages(record.id)):
            click.echo(part)
        return 0

    return with_store(url, work, recover=False)


def print_fork(url: str | None, session_id: str, at: str | None) -> int:
    """Fork a session and print the id of the new one."""

    async def work(keep: Store) -> int:
        record = await find_session(keep, session_id)
        click.echo((await keep.fork(record.id, at=at)).id)
        return 0

    return with_store(url, work)


def print_matches(url: str | None, words: str, session_id: str | None, limit: int) -> int:
    """Print the messages that hold all words; exits with 1 if there is none."""

    async def work(keep: Store) -> int:
        found = await keep.search(words, session_id=session_id, limit=limit)
        width = terminal_width()
        for match in found:
            snippet = escape_controls(" ".join(match.snippet.split()))
            if width is None:
                click.echo(f"{match.session_id}  {match.message_id}  {snippet}")
            else:
                own = click.style(match.session_id[-SHORT_ID:], dim=True)
                click.echo(f"{own}  {truncate(snippet, width - SHORT_ID - 2)}")
        return 0 if found else 1

    return with_store(url, work, recover=False)


def write_export(url: str | None, session_id: str, target: IO[bytes]) -> int:
    """Write a session as JSON lines."""

    async def work(keep: Store) -> int:
        record = await find_session(keep, session_id)
        for line in await keep.export(record.id):
            target.write(line + b"\n")
        return 0

    return with_store(url, work, recover=False)


def write_form(url: str | None, wanted: str, form: str, target: IO[bytes]) -> int:
    """Write a session in a form for others; each loss is a line on standard error."""

    async def work(keep: Store) -> int:
        record = await find_session(keep, wanted)
        path = Threads(await keep.history(record.id)).path()
        written = WRITERS[form](
            Conversation(record, path, [tool().definition for tool in BUILTINS])
        )
        target.write(written.data)
        places = {message.id: number for number, message in enumerate(path, 1)}
        for loss in written.losses:
            click.echo(loss_line(loss, places), err=True)
        return 0

    return with_store(url, work, recover=False)


def read_import(url: str | None, source: IO[bytes], *, new_ids: bool) -> int:
    """Read a session from JSON lines and print its id."""

    async def work(keep: Store) -> int:
        session = await keep.import_lines(source.read().splitlines(), new_ids=new_ids)
        click.echo(session.id)
        messages = count(len(await keep.messages(session.id)), "message")
        click.echo(f"{file_label(source)}: {messages}", err=True)
        return 0

    sys.stdout.flush()
    return with_store(url, work)


_WIDEST = 120
_NOTHING = "No conversation is kept yet; `metis` starts one."
_NOTHING_HERE = "No conversation was held in this folder yet; without --here all are listed."


def print_sessions(url: str | None, limit: int, *, is_here: bool, as_json: bool) -> int:
    """Print the sessions that changed last, one a line; whole ids where nobody watches."""
    here = str(Path.cwd()) if is_here else None

    async def work(keep: Store) -> int:
        found = await keep.overviews(limit, workspace_path=here)
        if as_json:
            click.echo(msgspec.json.format(msgspec.json.encode([_as_json(each) for each in found])))
        elif not found:
            click.echo(_NOTHING_HERE if is_here else _NOTHING, err=True)
        else:
            width = terminal_width()
            for line in _session_lines(found) if width is None else _session_table(found, width):
                click.echo(line)
        return 0

    return with_store(url, work, recover=False)


def _session_table(found: Sequence[Overview], width: int) -> list[str]:
    rows = session_rows(
        found,
        min(width, _WIDEST),
        now=datetime.now(UTC),
        name=model_namer(dict(catalog().aliases)),
    )
    lines = table(COLUMNS, rows, right=RIGHT_ALIGNED)
    hint = "metis -s ID goes on with one · metis show ID prints it"
    return [*lines, click.style(hint, dim=True)]


def _session_lines(found: Sequence[Overview]) -> list[str]:
    return ["  ".join(_line_cells(each)) for each in found]


def _line_cells(each: Overview) -> tuple[str, ...]:
    when = each.session.updated_at.astimezone().strftime("%Y-%m-%d %H:%M")
    counted = (str(each.message_count), format_usd(each.cost_usd))
    return (
        each.session.id,
        when,
        each.model or "-",
        *counted,
        escape_controls(each.title or EMPTY_TITLE),
    )


def _as_json(each: Overview) -> Mapping[str, Any]:
    session = each.session
    return {
        "id": session.id,
        "title": each.title,
        "model": each.model,
        "message_count": each.message_count,
        "cost_usd": str(each.cost_usd),
        "created_at": session.created_at,
        "updated_at": session.updated_at,
        "folder": session.workspace_path,
    }


def print_check(url: str | None) -> int:
    """Print what is wrong, one problem a line; exits with 1 if anything is."""

    async def work(keep: Store) -> int:
        found = await keep.check()
        for problem in found:
            click.echo(problem)
        click.echo(f"{keep.name}: {count(len(found), 'problem')}", err=True)
        return 1 if found else 0

    return with_store(url, work, recover=False)


def write_backup(url: str | None, target: Path) -> int:
    """Copy a store to a new file."""

    async def work(keep: Store) -> int:
        await keep.backup(target)
        click.echo(f"{target}: done", err=True)
        return 0

    return with_store(url, work, recover=False)


def print_sweep(url: str | None, policy: Policy, *, is_dry_run: bool) -> int:
    """Let go of what is old or large, or say what that would be."""

    async def work(keep: Store) -> int:
        found = await keep.sweep(policy, is_dry_run=is_dry_run)
        for session_id in found.sessions:
            click.echo(f"session {session_id}")
        for eviction in found.evictions:
            where = f"session {eviction.session_id} message {eviction.message_id}"
            click.echo(f"{where}: {eviction.size_bytes} raw bytes")
        if found.event_count:
            click.echo(count(found.event_count, "event"))
        if is_dry_run:
            click.echo("nothing was changed; --apply does it", err=True)
        return 0

    return with_store(url, work)


def print_migration(url: str | None) -> int:
    """Bring the tables up to date and say so; opening a store does the same."""

    async def work(keep: Store) -> int:
        click.echo(f"{keep.name}: tables of version {await keep.version()}")
        return 0

    return with_store(url, work, recover=False)


def days_ago(days: float | None) -> datetime | None:
    """The moment that many days ago."""
    return None if days is None else datetime.now(UTC) - timedelta(days=days)
