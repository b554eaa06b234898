"""`metis store`: check, back up, sweep and migrate a store."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from metis.cli.render import count
from metis.cli.stored import with_store
from metis.store import Policy, Store


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
