"""Commands on stored sessions: list, show, fork, search, export and import them."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import IO

import click

from metis import store
from metis.cli.columns import printable, terminal_width
from metis.cli.documents import name_of
from metis.cli.exports import WRITERS, Talk
from metis.cli.failure import guarded
from metis.cli.finding import find_session
from metis.cli.listing import SHORT
from metis.cli.render import count, render_conversation
from metis.cli.requests import loss_line
from metis.cli.table import cut
from metis.store import Store
from metis.store.threads import Threads

Work = Callable[[Store], Awaitable[int]]


def with_store(url: str | None, work: Work, *, recover: bool = True) -> int:
    """Run work on a store; an error is a line for people and the exit code 2."""

    async def run() -> int:
        async with store.open(url, recover=recover) as keep:
            return await work(keep)

    return guarded(lambda: asyncio.run(run()))


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
            snippet = printable(" ".join(match.snippet.split()))
            if width is None:
                click.echo(f"{match.session_id}  {match.message_id}  {snippet}")
            else:
                own = click.style(match.session_id[-SHORT:], dim=True)
                click.echo(f"{own}  {cut(snippet, width - SHORT - 2)}")
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
        written = WRITERS[form](Talk(record, path))
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
        click.echo(f"{name_of(source)}: {messages}", err=True)
        return 0

    sys.stdout.flush()
    return with_store(url, work)
