"""Transfer: a session as JSON lines and back, and as the start of another session.

The first line is the session, each other line one entry, in order. Nothing else is needed: calls,
id map, parents and bookmarks follow from the entries, and are made again as they are read.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from metis.canonical.errors import (
    DecodeError,
    DuplicateSessionError,
    MetisError,
    UnknownMessageError,
)
from metis.canonical.ids import new_session_id, new_ulid
from metis.canonical.metadata import MessageStatus
from metis.canonical.rules import as_failed
from metis.store.appending import Append, prepare
from metis.store.database import Transaction
from metis.store.entries import (
    AnyEntry,
    ForkEntry,
    MessageEntry,
    decode_entry,
    encode_entry,
)
from metis.store.reading import read_history, read_session
from metis.store.recording import Record
from metis.store.records import SESSION_COLUMNS, SessionRecord, session_row
from metis.store.renaming import renaming_for
from metis.store.tables import Tables
from metis.store.work import Work

FORMAT = 1
INSERT_SESSION = f"INSERT INTO sessions ({SESSION_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)"  # noqa: S608 - no input


class _Opening(Struct, kw_only=True, tag="session", tag_field="type", forbid_unknown_fields=True):
    """The first line of an export."""

    format: int = FORMAT
    session: SessionRecord


_read_opening = msgspec.json.Decoder(_Opening).decode
_write_json = msgspec.json.Encoder(order="sorted").encode


def export_lines(transaction: Transaction, session_id: str) -> Iterator[bytes]:
    """A session as lines of JSON, without their ends."""
    yield _write_json(_Opening(session=read_session(transaction, session_id)))
    yield from map(encode_entry, read_history(transaction, session_id))


class Transcript(Struct, frozen=True):
    """A session with all its entries."""

    session: SessionRecord
    entries: tuple[AnyEntry, ...]


def read_transcript(lines: Iterable[bytes]) -> Transcript:
    """What `export_lines` wrote; an error names the line."""
    session: SessionRecord | None = None
    entries: list[AnyEntry] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            if session is None:
                session = _opening(line)
            else:
                entries.append(decode_entry(line.strip()))
        except DecodeError as error:
            path = f"line {number}: {error.path}"
            raise DecodeError(error.reason, path=path) from None
    if session is None:
        raise DecodeError("there is no session in it", path="line 1: $")
    return Transcript(session, tuple(entries))


def _opening(line: bytes) -> SessionRecord:
    try:
        opening = _read_opening(line)
    except msgspec.DecodeError as error:
        raise DecodeError(f"not the first line of an export: {error}") from None
    if opening.format > FORMAT:
        raise DecodeError(f"format {opening.format} is newer than this metis", path="$.format")
    return opening.session


def renamed(transcript: Transcript) -> Transcript:
    """The same under new ids."""
    session_id = new_session_id()
    names = renaming_for(transcript.entries, session_id)
    entries = [names.entry(entry, n) for n, entry in enumerate(transcript.entries, 1)]
    return Transcript(replace(transcript.session, id=session_id), tuple(entries))


class Import(Work):
    """A whole session to be written in one transaction."""

    def __init__(self, transcript: Transcript) -> None:
        self._transcript = transcript
        self._works: list[Append | Record] = []
        for place, entry in enumerate(transcript.entries):
            self._works.append(_work(entry, place, transcript.session.id))

    def write(self, tables: Tables) -> SessionRecord:
        """Write the session, then its entries, each with what follows from it."""
        session = self._transcript.session
        if tables.run("SELECT 1 FROM sessions WHERE id = ?", (session.id,)):
            raise DuplicateSessionError(session.id)
        tables.change(INSERT_SESSION, session_row(session))
        for work in self._works:
            work.write(tables)
        tables.flush()
        # What the entries did to the session on their way is undone: the row is part of the export.
        sql = "UPDATE sessions SET active_model = ?, updated_at = ? WHERE id = ?"
        row = session_row(session)
        tables.change(sql, (row[2], row[6], session.id))
        tables.drop_head(session.id)
        return session

    def explain(self, transaction: Transaction) -> MetisError | None:
        """Which message did not fit to what is there, and how."""
        works = (work.explain(transaction) for work in self._works if isinstance(work, Append))
        return next((found for found in works if found is not None), None)


def _work(entry: AnyEntry, place: int, session_id: str) -> Append | Record:
    if entry.session_id != session_id:
        path = f"line {place + 2}: $.session_id"
        raise DecodeError(f"it is of session {entry.session_id!r}, not {session_id!r}", path=path)
    if isinstance(entry, MessageEntry):
        return Append([prepare(entry.message)])
    return Record(entry)


def fork(
    transaction: Transaction, session_id: str, message_id: str | None, now: datetime
) -> Transcript:
    """A new session that starts as a copy of another, up to a message or to its end."""
    source = read_session(transaction, session_id)
    entries = _until(read_history(transaction, session_id), session_id, message_id)
    new_id = new_session_id()
    names = renaming_for(entries, new_id)
    record = ForkEntry(
        id=new_ulid(),
        session_id=new_id,
        created_at=now,
        seq=1,
        source_session_id=session_id,
        source_message_id=_last_message(entries),
        message_ids=dict(names.messages),
        tool_use_ids=dict(names.calls),
    )
    copies = [_ended(names.entry(entry, n)) for n, entry in enumerate(entries, 2)]
    session = replace(source, id=new_id, created_at=now, updated_at=now)
    return Transcript(session, (record, *copies))


def _ended(entry: AnyEntry) -> AnyEntry:
    """The same entry; nobody goes on writing the copy of a partial message."""
    if isinstance(entry, MessageEntry) and entry.message.metadata.status == MessageStatus.PARTIAL:
        return replace(entry, message=as_failed(entry.message))
    return entry


def _until(
    entries: Sequence[AnyEntry], session_id: str, message_id: str | None
) -> Sequence[AnyEntry]:
    if message_id is None:
        return entries
    for place, entry in enumerate(entries):
        if isinstance(entry, MessageEntry) and entry.id == message_id:
            return entries[: place + 1]
    raise UnknownMessageError(session_id, message_id)


def _last_message(entries: Sequence[AnyEntry]) -> str | None:
    found = [entry.id for entry in entries if isinstance(entry, MessageEntry)]
    return found[-1] if found else None
