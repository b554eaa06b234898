"""`metis export` and `metis import`: sessions as files, for metis and for other programs."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import click
import msgspec

from metis import interchange
from metis.canonical.errors import (
    DecodeError,
    ForeignDocumentError,
    MetisError,
    UnknownFormatError,
)
from metis.cli.handoff import handoff_links
from metis.cli.output import StatusLine, echo, echo_json, write_file
from metis.cli.render import loss_line, message_numbers
from metis.cli.stored_sessions import find_session, on_store
from metis.cli.text import count
from metis.interchange.export import Conversation, ExportedFile
from metis.interchange.redaction import Redacted, redact
from metis.interchange.registry import detect_format, session_format, session_formats
from metis.interchange.session_draft import ForeignSession
from metis.interchange.session_export import write_session
from metis.interchange.session_format import SessionFormat, WriteOptions
from metis.interchange.session_import import import_session
from metis.interchange.source import Source
from metis.interchange.writers import WRITERS
from metis.projection.loss import Loss
from metis.store import SessionRecord, Store
from metis.store.entries import AnyEntry, MessageEntry
from metis.store.threads import Threads
from metis.tools.builtin import BUILTINS

# The format of metis itself: lossless, and `metis import` reads it back.
JSONL = "jsonl"
METIS_FORMATS = frozenset({JSONL, "metis"})

_IGNORED_DIRECTORIES = frozenset({".git", "node_modules", ".venv", "__pycache__"})
_MAX_FILES = 1_000_000
_MAX_PIPED_BYTES = 512 * 1024 * 1024
_WATCH_INTERVAL_S = 1.0


def export_formats() -> tuple[str, ...]:
    """Return the names of all formats that a session can be written in."""
    writable = (name for name in session_formats() if session_format(name).is_writable)
    return tuple(dict.fromkeys((JSONL, "metis", *WRITERS, *interchange.formats(), *writable)))


@on_store(recover=False)
async def write_export(  # noqa: PLR0913 - the options of the command
    store: Store,
    session_name: str,
    format_name: str,
    target: IO[bytes],
    *,
    share: bool = False,
    as_json: bool = False,
) -> int:
    """Write a session in a format; each loss is a line on standard error."""
    record = await find_session(store, session_name)
    exported = await export_session(store, record, format_name)
    data, redacted = exported.data, list[Redacted]()
    if share:
        data, redacted = redact(data, [os.environ.get("HOME", "")])
    write_file(target, data)
    if as_json:
        path = getattr(target, "name", "-")
        report: dict[str, object] = {
            "path": "-" if path == "<stdout>" else str(path),
            "losses": exported.losses,
        }
        if share:
            report["redacted"] = redacted
        echo_json(msgspec.json.encode(report), err=path == "<stdout>")
        return 0
    for item in redacted:
        echo(f"removed: {item.kind}, {count(item.count, 'time')}, line {item.first_line}", err=True)
    # Losses name messages by id; the printed lines name them by position.
    numbers = message_numbers(await store.messages(record.id))
    for loss in exported.losses:
        echo(loss_line(loss, numbers), err=True)
    return 0


async def export_session(store: Store, record: SessionRecord, format_name: str) -> ExportedFile:
    """Return a session in a format, and the losses.

    Only the messages on the path to the newest one are written: rewound messages stay in the store.
    A session that was imported from a program is written with everything that came from its file.
    """
    if format_name in METIS_FORMATS:
        return ExportedFile(b"".join(line + b"\n" for line in await store.export(record.id)))
    history = await store.history(record.id)
    messages = Threads(history).path()
    if format_name in WRITERS:
        tools = [tool().definition for tool in BUILTINS]
        return WRITERS[format_name](Conversation(record, messages, tools))
    if format_name in interchange.formats():
        # A rewind keeps the removed messages in the journal, and they are not part of the
        # conversation.
        active = {message.id for message in messages}
        document = interchange.dump(
            format_name, [entry for entry in history if _is_active(entry, active)]
        )
        return ExportedFile(document.data, tuple(document.losses))
    options = WriteOptions(cwd=record.workspace_path, model=record.active_model)
    written = write_session(session_format(format_name), history, options)
    return ExportedFile(written.data, tuple(written.losses))


def _is_active(entry: AnyEntry, message_ids: set[str]) -> bool:
    return not isinstance(entry, MessageEntry) or entry.message.id in message_ids


# Import


class ImportReport(msgspec.Struct, frozen=True):
    """The result of importing one session of a file."""

    session: str
    format: str
    messages: int
    losses: Sequence[Loss]
    path: str
    added: int


@on_store(recover=True)
async def read_import(  # noqa: PLR0913 - the options of the command
    store: Store,
    paths: Sequence[str],
    *,
    format_name: str | None,
    new_ids: bool,
    watch: bool = False,
    as_json: bool = False,
) -> int:
    """Store the sessions of files and directories; print an id, or a line of JSON, for each."""
    if watch and "-" in paths:
        raise click.UsageError("--watch follows files; standard input is read once")
    file_states: dict[str, tuple[int, int]] = {}
    while True:
        exit_code = await _import_changed(
            store, paths, format_name, new_ids, file_states, as_json=as_json
        )
        if not watch:
            return exit_code
        await asyncio.sleep(_WATCH_INTERVAL_S)


async def _import_changed(  # noqa: PLR0913 - the options of the command
    store: Store,
    paths: Sequence[str],
    format_name: str | None,
    new_ids: bool,  # noqa: FBT001 - handed on
    file_states: dict[str, tuple[int, int]],
    *,
    as_json: bool,
) -> int:
    """Store the files that have changed since the last time."""
    exit_code = 0
    file_count = session_count = 0
    status = StatusLine(is_shown=not as_json)
    try:
        for source, is_named in sources_of(paths):
            if not source.has_changed(file_states):
                continue
            file_count += 1
            sessions = count(session_count, "session")
            status.show(f"{sessions} imported, reading file {file_count}: {source.name}")
            reports = import_source(
                store, source, format_name=format_name, new_ids=new_ids, is_named=is_named
            )
            try:
                async for report in reports:
                    session_count += 1
                    status.clear()
                    await _print_report(store, report, as_json=as_json)
            except UnknownFormatError:
                # A directory holds files of all kinds; a file that was named must be a session.
                if is_named:
                    raise
            except MetisError as error:
                if is_named and len(paths) == 1:
                    raise
                status.clear()
                echo(f"{source.name}: {error}", err=True)
                exit_code = 1
    finally:
        status.clear()
    return exit_code


def sources_of(paths: Sequence[str]) -> Iterator[tuple[Source, bool]]:
    """Yield the files of paths, each with whether it was named itself."""
    for name in paths:
        if name == "-":
            yield Source(None, _piped()), True
        elif Path(name).is_dir():
            for path in _files(Path(name)):
                yield Source(path), False
        else:
            yield Source.of(name), True


def _piped() -> bytes:
    """Return standard input, which may have no end."""
    data = sys.stdin.buffer.read(_MAX_PIPED_BYTES + 1)
    if len(data) > _MAX_PIPED_BYTES:
        reason = f"more than {_MAX_PIPED_BYTES:,} bytes on standard input; import it as a file"
        raise ForeignDocumentError(reason, format="session file", line=1)
    return data


def _files(directory: Path) -> Iterator[Path]:
    """Yield the regular files below a directory; links are not followed, they may form cycles."""
    number = 0
    for parent, names, files in os.walk(directory):
        names[:] = sorted(name for name in names if name not in _IGNORED_DIRECTORIES)
        for file in sorted(files):
            path = Path(parent, file)
            if path.is_file() and not path.is_symlink():
                number += 1
                if number > _MAX_FILES:
                    return
                yield path


async def import_source(
    store: Store,
    source: Source,
    *,
    format_name: str | None = None,
    new_ids: bool = False,
    is_named: bool = True,
) -> AsyncIterator[ImportReport]:
    """Store the sessions of a file, and yield a report for each."""
    handler: SessionFormat | None = None
    if format_name not in (*METIS_FORMATS, *_document_names()):
        handler = _handler(source, format_name, is_named=is_named)
    if handler is None:
        yield await _import_document(store, source, format_name or JSONL, new_ids=new_ids)
        return
    for session in handler.read(source):
        yield await _import(store, session, source)


async def _import(store: Store, session: ForeignSession, source: Source) -> ImportReport:
    imported = await import_session(
        store, session, workspace=str(Path.cwd()), links=handoff_links()
    )
    return ImportReport(
        session=imported.record.id,
        format=session.format,
        messages=session.message_count,
        losses=session.losses,
        path=source.name,
        added=imported.added,
    )


def _document_names() -> tuple[str, ...]:
    return tuple(name for name in interchange.formats() if name not in session_formats())


def _handler(source: Source, format_name: str | None, *, is_named: bool) -> SessionFormat | None:
    """Return the format of a file; None if it is read as an export of metis."""
    if format_name is not None:
        return session_format(format_name)
    try:
        return detect_format(source)
    except UnknownFormatError:
        first = source.sample_records(1)
        # A directory contains other JSON files; only one that begins like an export is read.
        if not is_named and not (first and "session" in first[0]):
            raise
        return None


async def _import_document(
    store: Store, source: Source, format_name: str, *, new_ids: bool
) -> ImportReport:
    data = source.read()
    losses: Sequence[Loss] = ()
    if format_name in METIS_FORMATS:
        format_name = JSONL
        session = await _import_jsonl(store, data, new_ids=new_ids)
    else:
        document = interchange.load(format_name, data)
        losses = document.losses
        session = await store.import_entries(document.entries, workspace_path=Path.cwd())
    number = len(await store.messages(session.id))
    return ImportReport(session.id, format_name, number, losses, source.name, number)


async def _print_report(store: Store, report: ImportReport, *, as_json: bool) -> None:
    if as_json:
        echo_json(msgspec.json.encode(report))
        return
    echo(report.session)
    numbers: Mapping[str, int] = message_numbers(await store.messages(report.session))
    for loss in report.losses:
        echo(loss_line(loss, numbers), err=True)
    imported = count(report.messages, "message")
    echo(f"{report.path}: {imported} imported as {report.format}", err=True)


async def _import_jsonl(store: Store, data: bytes, *, new_ids: bool) -> SessionRecord:
    try:
        return await store.import_lines(data.splitlines(), new_ids=new_ids)
    except DecodeError as error:
        formats = ", ".join(session_formats())
        reason = f"{error.reason}. Not an export of metis; other formats: {formats}"
        raise DecodeError(reason, path=error.path) from None
