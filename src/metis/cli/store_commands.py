"""Parsers of the commands on what is kept."""

import sys
from pathlib import Path
from typing import IO

import click

from metis.cli.arguments import INPUT, SESSION, STORE


@click.command()
@click.argument("source", metavar="[SESSION|FILE|-]", default="last")
@STORE
def show(source: str, store: str | None) -> None:
    """Print a stored session, or a JSON or JSONL file of messages, as a conversation for people.

    Without a name it is the one that changed last.
    """
    if source != "-" and not Path(source).exists():
        from metis.cli.sessions import print_session

        sys.exit(print_session(store, source))
    from metis.cli.message_files import print_conversation

    with click.open_file(source, "rb") as file:
        sys.exit(print_conversation(file))


@click.command()
@STORE
@click.option("--limit", default=100, show_default=True, help="How many at most.")
@click.option("--here", "is_here", is_flag=True, help="Only those of this folder.")
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON.")
def sessions(store: str | None, limit: int, *, is_here: bool, as_json: bool) -> None:
    """List conversations, the one that changed last first: what was asked, who answered, the cost.

    In a pipe each is a line that begins with its whole id.
    """
    from metis.cli.sessions import print_sessions

    sys.exit(print_sessions(store, limit, is_here=is_here, as_json=as_json))


@click.command()
@SESSION
@STORE
@click.option("--at", metavar="MESSAGE", help="The last message to copy; all if not given.")
def fork(session_id: str, store: str | None, at: str | None) -> None:
    """Start a new session as a copy of another, and print its id."""
    from metis.cli.sessions import print_fork

    sys.exit(print_fork(store, session_id, at))


@click.command()
@click.argument("words", nargs=-1, required=True)
@STORE
@click.option("--session", metavar="SESSION", help="Search in one session only.")
@click.option("--limit", default=20, show_default=True, help="How many at most.")
def search(words: tuple[str, ...], store: str | None, session: str | None, limit: int) -> None:
    """Find the messages that hold all words, best first.

    Exits with 1 if there is none.
    """
    from metis.cli.sessions import print_matches

    sys.exit(print_matches(store, " ".join(words), session, limit))


@click.command()
@SESSION
@STORE
@click.option(
    "--format",
    "form",
    type=click.Choice(["jsonl", "json", "markdown", "html", "openai-finetune", "sharegpt"]),
    default="jsonl",
    show_default=True,
    help="jsonl loses nothing and can be imported again.",
)
@click.option("-o", "--output", "target", type=click.File("wb"), default="-", help="A file.")
def export(session_id: str, store: str | None, form: str, target: IO[bytes]) -> None:
    """Write a session: as JSON lines with all that is needed to have it again, or for others.

    What a form cannot hold is told on standard error, one part a line.
    """
    from metis.cli.sessions import write_export, write_form

    if form == "jsonl":
        sys.exit(write_export(store, session_id, target))
    sys.exit(write_form(store, session_id, form, target))


@click.command(name="import")
@INPUT
@STORE
@click.option("--new-ids", is_flag=True, help="Import beside a session of the same id.")
def import_session(source: IO[bytes], store: str | None, *, new_ids: bool) -> None:
    """Read what `metis export` wrote, and print the id of the session."""
    from metis.cli.sessions import read_import

    sys.exit(read_import(store, source, new_ids=new_ids))


@click.group(name="store")
def upkeep() -> None:
    """Check, back up, sweep and migrate a store."""


@upkeep.command()
@STORE
def check(store: str | None) -> None:
    """Look for broken pages, broken rules and tables that disagree.

    Exits with 1 if anything is wrong.
    """
    from metis.cli.sessions import print_check

    sys.exit(print_check(store))


@upkeep.command()
@click.argument("target", metavar="FILE", type=click.Path(path_type=Path))
@STORE
def backup(target: Path, store: str | None) -> None:
    """Copy everything to a new file, while others go on."""
    from metis.cli.sessions import write_backup

    sys.exit(write_backup(store, target))


@upkeep.command()
@STORE
@click.option("--sessions", type=float, metavar="DAYS", help="Delete sessions unchanged so long.")
@click.option("--events", type=float, metavar="DAYS", help="Delete events older than this.")
@click.option("--raw", type=float, metavar="DAYS", help="Drop raw parts older than this.")
@click.option("--raw-bytes", type=int, help="Drop raw parts larger than this.")
@click.option("--apply", is_flag=True, help="Do it; without this only say what would be done.")
def sweep(  # noqa: PLR0913 - one parameter an option
    store: str | None,
    sessions: float | None,
    events: float | None,
    raw: float | None,
    raw_bytes: int | None,
    *,
    apply: bool,
) -> None:
    """Let go of what is old or large."""
    from metis.cli.sessions import days_ago, print_sweep
    from metis.store import Policy

    policy = Policy(
        sessions_before=days_ago(sessions),
        events_before=days_ago(events),
        raw_before=days_ago(raw),
        raw_bytes=raw_bytes,
    )
    sys.exit(print_sweep(store, policy, is_dry_run=not apply))


@upkeep.command()
@STORE
def migrate(store: str | None) -> None:
    """Bring the tables up to date; opening a store does the same."""
    from metis.cli.sessions import print_migration

    sys.exit(print_migration(store))
