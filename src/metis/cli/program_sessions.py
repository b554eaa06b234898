"""`metis sessions --all` and `metis import` without a name: sessions of every program here."""

import os
import sys
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec

from metis.cli.output import echo, echo_json
from metis.cli.stored_sessions import format_age, on_store
from metis.cli.text import escape_controls, table, terminal_width, truncate
from metis.interchange.session_draft import imported_session_id
from metis.interchange.session_index import IndexedSession, SessionIndex
from metis.store import Overview, Store
from metis.store.private_files import home_directory

_COLUMNS = ("#", "program", "changed", "records", "folder", "title")
_MIN_TITLE, _MAX_FOLDER = 20, 30
_OTHER_COLUMNS = 40


def indexed_sessions(home: Path | None = None) -> list[IndexedSession]:
    """Return the sessions of every program, newest first."""
    environment: Mapping[str, str] = {} if home is not None else os.environ
    index = SessionIndex(home_directory(os.environ) / "session-index.json")
    return index.update(home or Path.home(), environment)


@on_store(recover=False)
async def print_all_sessions(
    store: Store, limit: int, *, is_here: bool, as_json: bool, home: Path | None = None
) -> int:
    """Print the sessions of every program, and those of metis, newest first."""
    folder = str(Path.cwd()) if is_here else None
    files = [file for file in indexed_sessions(home) if folder in (None, file.cwd)][:limit]
    overviews = await store.overviews(limit, workspace_path=folder)
    stored_ids = {overview.session.id for overview in overviews}
    file_ids = {imported_session_id(file.format, file.id) for file in files}
    # A session that was imported is listed once, as the file of its program.
    rows = [_file_row(file, stored_ids) for file in files]
    rows += [_store_row(row) for row in overviews if row.session.id not in file_ids]
    rows.sort(key=lambda row: str(row["changed_at"]), reverse=True)
    if as_json:
        echo_json(msgspec.json.format(msgspec.json.encode(rows[:limit])))
        return 0
    width = terminal_width()
    for row in rows[:limit]:
        if width is None:
            values = (row["program"], row["changed_at"], row["id"], row["folder"], row["title"])
            echo("  ".join(escape_controls(str(value)) for value in values))
    if width is not None:
        for line in _table(rows[:limit], width):
            echo(line)
    return 0


def _file_row(file: IndexedSession, stored_ids: AbstractSet[str]) -> dict[str, object]:
    """Return the row of a session file of another program; `session` is its id in the store."""
    session_id = imported_session_id(file.format, file.id)
    return {
        "program": file.program,
        "id": file.id,
        "title": file.title,
        "folder": file.cwd,
        "records": file.records,
        "size": file.size,
        "path": file.path,
        "changed_at": datetime.fromtimestamp(file.changed_ns / 1e9, UTC).isoformat(),
        "session": session_id if session_id in stored_ids else None,
    }


def _store_row(overview: Overview) -> dict[str, object]:
    session = overview.session
    return {
        "program": "metis",
        "id": session.id,
        "title": overview.title,
        "folder": session.workspace_path,
        "records": overview.message_count,
        "size": None,
        "path": None,
        "changed_at": session.updated_at.astimezone(UTC).isoformat(),
        "session": session.id,
    }


def _table(rows: Sequence[dict[str, object]], width: int) -> list[str]:
    now = datetime.now(UTC)
    title_width = max(width - _OTHER_COLUMNS - _MAX_FOLDER, _MIN_TITLE)
    cells = [
        (
            str(number),
            str(row["program"]),
            format_age(datetime.fromisoformat(str(row["changed_at"])), now),
            str(row["records"]),
            truncate(escape_controls(str(row["folder"])), _MAX_FOLDER),
            truncate(escape_controls(str(row["title"] or "(no prompt)")), title_width),
        )
        for number, row in enumerate(rows, 1)
    ]
    return table(_COLUMNS, cells, right=(0, 3))


def choose_files(limit: int = 50) -> list[str]:
    """Ask which of the sessions of other programs to import, and return their files."""
    sessions = indexed_sessions()[:limit]
    if not sessions:
        raise click.UsageError("no session of another program on this machine; give a file")
    for line in _table([_file_row(file, set()) for file in sessions], terminal_width() or 120):
        echo(line, err=True)
    if not sys.stdin.isatty():
        raise click.UsageError("name the files to import, or run it at a terminal to choose")
    answer = click.prompt("Import which? Numbers, or all", err=True, default="1")
    if answer.strip() == "all":
        return [file.path for file in sessions]
    words = answer.replace(",", " ").split()
    if not all(word.isdecimal() and 1 <= int(word) <= len(sessions) for word in words):
        raise click.UsageError(f"expected numbers from 1 to {len(sessions)}, or all")
    return [sessions[int(word) - 1].path for word in words]
