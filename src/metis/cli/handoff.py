"""`metis handoff`: continue a session in another program, and import what was added there."""

import asyncio
import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from metis.canonical.errors import StoreError
from metis.cli.output import echo, echo_json
from metis.cli.render import loss_line, message_numbers
from metis.cli.stored_sessions import find_session, on_store
from metis.cli.text import count
from metis.interchange.handoff_links import HandoffLink, HandoffLinks
from metis.interchange.opencode_database import FORMAT as OPENCODE
from metis.interchange.opencode_database import database_sessions, is_database
from metis.interchange.programs import (
    PROGRAMS,
    Program,
    claude_directory,
    marked_folder,
    program,
    write_new_file,
)
from metis.interchange.registry import detect_format, session_format
from metis.interchange.session_export import write_session
from metis.interchange.session_format import WriteOptions
from metis.interchange.session_import import import_session
from metis.interchange.source import Source
from metis.projection.loss import Loss
from metis.store import SessionRecord, Store
from metis.store.private_files import home_directory
from metis.wire.json_access import maybe_object, maybe_text

METIS = "metis"
# How many of the newest session files of a program are opened to find the one of a folder.
_MAX_OPENED = 500
# The exit code of shells for a program that is not installed.
_COMMAND_NOT_FOUND = 127


class HandoffOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the command."""

    target: str
    session: str | None = None
    home: Path | None = None
    cwd: Path | None = None
    map_tools: bool = False
    run: bool = False
    as_json: bool = False


class HandoffReport(msgspec.Struct, frozen=True):
    """Where the session is now, and how the program continues it."""

    path: str
    resume: Sequence[str]
    losses: Sequence[Loss]
    session: str


class CurrentFile(NamedTuple):
    """The session file of a folder that a program wrote last."""

    program: Program
    source: Source
    changed_at: float


def handoff_links() -> HandoffLinks:
    """Return the links of this user."""
    return HandoffLinks(home_directory(os.environ) / "handoffs")


@on_store(recover=True)
async def hand_over(store: Store, options: HandoffOptions) -> int:
    """Write the session where the target looks for it, and print the command that resumes it."""
    cwd = (options.cwd or Path.cwd()).absolute()
    environment: Mapping[str, str] = {} if options.home is not None else os.environ
    home = options.home or Path.home()
    record, read_losses = await _session(store, options.session, home, environment, cwd)
    if options.target == METIS:
        report = HandoffReport(store.name, ["metis", "-s", record.id], read_losses, record.id)
    else:
        report = await _write(store, record, options, home, environment, cwd)
    await _print(store, report, options)
    if options.run:
        # The program uses the terminal until it ends; nothing else runs meanwhile.
        return await asyncio.to_thread(_run, report.resume, cwd)
    return 0


def _run(command: Sequence[str], cwd: Path) -> int:
    try:
        return subprocess.run(list(command), cwd=cwd, check=False).returncode  # noqa: S603 - the command comes from `PROGRAMS`
    except OSError as error:
        # The session is written: once the program is installed, the printed command works.
        echo(f"cannot run {command[0]}: {error.strerror}: {error.filename}", err=True)
        return _COMMAND_NOT_FOUND


async def _session(
    store: Store, name: str | None, home: Path, environment: Mapping[str, str], cwd: Path
) -> tuple[SessionRecord, Sequence[Loss]]:
    """Return the session to hand over: the named one, or that of the folder that changed last."""
    if name is not None:
        source = Source.of(name)
        if await asyncio.to_thread(source.is_file):
            return await _import(store, source, cwd)
        return await find_session(store, name), ()
    stored = await store.overviews(1, workspace_path=str(cwd))
    current = current_file(home, environment, cwd)
    if current is not None:
        stored_at = stored[0].session.updated_at.timestamp() if stored else 0.0
        if current.changed_at >= stored_at:
            return await _import(store, current.source, cwd, current.program.format)
    if not stored:
        hint = "give a session, or a folder with --cwd"
        raise StoreError(f"no program has a session in {cwd}", hint=hint)
    return stored[0].session, ()


async def _import(
    store: Store, source: Source, cwd: Path, format_name: str | None = None
) -> tuple[SessionRecord, Sequence[Loss]]:
    handler = detect_format(source) if format_name is None else session_format(format_name)
    for session in handler.read(source):
        imported = await import_session(store, session, workspace=str(cwd), links=handoff_links())
        return imported.record, session.losses
    raise StoreError(f"{source.name} contains no session")


def current_file(home: Path, environment: Mapping[str, str], cwd: Path) -> CurrentFile | None:
    """Return the newest session file of a folder among all programs; None if there is none."""
    newest: CurrentFile | None = None
    for candidate_program in PROGRAMS:
        root = candidate_program.root(home, environment)
        candidate = _newest_file(candidate_program, root, cwd)
        if candidate is not None and (newest is None or candidate.changed_at > newest.changed_at):
            newest = candidate
    return newest


def _newest_file(owner: Program, root: Path, cwd: Path) -> CurrentFile | None:
    if not root.is_dir():
        return None
    pattern = owner.pattern
    if owner.name == "claude":
        # Claude Code names each directory after the folder of its sessions.
        pattern = f"{claude_directory(str(cwd))}/*.jsonl"
    files = [(path.stat().st_mtime, path) for path in root.glob(pattern) if path.is_file()]
    # Older files of programs that metis can write for may name no folder at all; such a file
    # counts for every folder.
    accepted = (str(cwd),) if owner.new_path is None else (str(cwd), None)
    for changed_at, path in sorted(files, reverse=True)[:_MAX_OPENED]:
        source = Source(path)
        if owner.format == OPENCODE and is_database(source):
            session = next((s for s in database_sessions(source) if s.directory == str(cwd)), None)
            if session is not None:
                member = Source(path, member=session.id)
                return CurrentFile(owner, member, session.updated_ms / 1000)
        elif (_cwd_of(source) or marked_folder(path)) in accepted:
            return CurrentFile(owner, source, changed_at)
    return None


def _cwd_of(source: Source) -> str | None:
    """Return the folder that a session file names first; None if it names none."""
    for record in source.sample_records(50):
        context = maybe_object(maybe_object(record.get("data")).get("context"))
        for fields in (maybe_object(record.get("payload")), context, record):
            for key in ("cwd", "directory"):
                folder = maybe_text(fields.get(key))
                if folder is not None:
                    return folder
    return None


async def _write(  # noqa: PLR0913, PLR0917 - the session, the options and three directories
    store: Store,
    record: SessionRecord,
    options: HandoffOptions,
    home: Path,
    environment: Mapping[str, str],
    cwd: Path,
) -> HandoffReport:
    """Write the session for the target program, with a link by which it is imported again."""
    target = program(options.target)
    file_format = session_format(target.format)
    now = datetime.now(UTC)
    foreign_id = target.new_id()
    written = write_session(
        file_format,
        await store.history(record.id),
        WriteOptions(
            foreign_id=foreign_id,
            cwd=str(cwd),
            now=now,
            model=record.active_model,
            map_tools=options.map_tools,
        ),
    )
    assert target.new_path is not None  # noqa: S101 - `program` returns no other program
    root = target.root(home, environment)
    path = target.new_path(root, foreign_id, str(cwd), now)
    if target.prepare is not None:
        target.prepare(root, str(cwd))
    link = HandoffLink(
        session_id=record.id,
        system=file_format.system,
        foreign_id=foreign_id,
        keys=written.keys,
        record_count=written.record_count,
    )
    # The link is written first: without it, a later import would create a second session.
    handoff_links().add(link)
    write_new_file(path, written.data)
    resume = target.resume_command(foreign_id, path)
    return HandoffReport(str(path), resume, written.losses, record.id)


async def _print(store: Store, report: HandoffReport, options: HandoffOptions) -> None:
    if options.as_json:
        echo_json(msgspec.json.encode(report))
        return
    numbers = message_numbers(await store.messages(report.session))
    for loss in report.losses:
        echo(loss_line(loss, numbers), err=True)
    parts = count(len(report.losses), "part")
    echo(f"{report.path}: {parts} changed or left out", err=True)
    echo(shlex.join(report.resume))
