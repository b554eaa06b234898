"""Transfer: a session as JSON lines and back, under the same or new ids.

And as the start of a fork.

The first line is the session, each other line one entry, in order. Tool calls, id map, parents and
bookmarks follow from the entries and are rebuilt when they are read.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from metis.canonical.blocks import ContentBlock, ToolResultBlock, ToolUseBlock
from metis.canonical.errors import (
    DecodeError,
    DuplicateSessionError,
    MetisError,
    UnknownMessageError,
)
from metis.canonical.ids import new_session_id, new_ulid, new_ulids
from metis.canonical.message import Message
from metis.canonical.metadata import MessageStatus
from metis.canonical.rules import as_failed
from metis.store.append import AppendJob, RecordJob, prepare_message
from metis.store.database import Transaction
from metis.store.entries import (
    AnyEntry,
    ForkEntry,
    MessageEntry,
    UnknownEntry,
    decode_entry,
    encode_entry,
    place_entry,
)
from metis.store.queries import read_history, read_session
from metis.store.records import SESSION_COLUMNS, SessionRecord, session_row
from metis.store.tables import Tables
from metis.store.writer import WriteJob
from metis.wire.original_form import with_tool_ids

_NAMING = ("message_id", "first_kept_id", "head_id", "to_id")


class IdMapping(Struct, frozen=True):
    """New ids for old ones."""

    session_id: str
    message_ids: Mapping[str, str]
    tool_use_ids: Mapping[str, str]
    entry_ids: Mapping[str, str]

    def map_entry(self, entry: AnyEntry, seq: int) -> AnyEntry:
        """The same entry under its new ids."""
        if isinstance(entry, UnknownEntry):
            return place_entry(entry, session_id=self.session_id, seq=seq)
        fields: dict[str, Any] = {"id": self.entry_ids[entry.id], "session_id": self.session_id}
        if isinstance(entry, MessageEntry):
            return replace(entry, **fields, seq=seq, message=self.map_message(entry.message))
        for name in _NAMING:
            old = getattr(entry, name, None)
            if old is not None:
                fields[name] = self.message_ids.get(old, old)
        return replace(entry, **fields, seq=seq)

    def map_message(self, message: Message) -> Message:
        """The same message under its new ids."""
        metadata = message.metadata
        parent, parents = metadata.parent_tool_use_id, metadata.parents
        if parent is not None or parents:
            metadata = replace(
                metadata,
                parent_tool_use_id=self.tool_use_ids.get(parent, parent) if parent else parent,
                parents=tuple(self.message_ids.get(each, each) for each in parents),
            )
        renamed = replace(
            message,
            id=self.message_ids[message.id],
            session_id=self.session_id,
            content=tuple(self._block(block) for block in message.content),
            metadata=metadata,
        )
        return with_tool_ids(renamed, self.tool_use_ids)

    def _block(self, block: ContentBlock) -> ContentBlock:
        if isinstance(block, ToolUseBlock):
            return replace(block, id=self.tool_use_ids.get(block.id, block.id))
        if isinstance(block, ToolResultBlock):
            return replace(
                block, tool_use_id=self.tool_use_ids.get(block.tool_use_id, block.tool_use_id)
            )
        return block


def new_id_mapping(entries: Sequence[AnyEntry], session_id: str) -> IdMapping:
    """Fresh ids for everything in a list of entries, in the same order."""
    fresh = dict(zip((entry.id for entry in entries), new_ulids(len(entries)), strict=True))
    messages = [entry.message for entry in entries if isinstance(entry, MessageEntry)]
    calls = list(dict.fromkeys(_calls(messages)))
    return IdMapping(
        session_id=session_id,
        message_ids={message.id: fresh[message.id] for message in messages},
        tool_use_ids={
            old: f"tu_{new}" for old, new in zip(calls, new_ulids(len(calls)), strict=True)
        },
        entry_ids=fresh,
    )


def _calls(messages: Iterable[Message]) -> Iterable[str]:
    for message in messages:
        for block in message.content:
            if isinstance(block, ToolUseBlock):
                yield block.id
            elif isinstance(block, ToolResultBlock):
                yield block.tool_use_id


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


def with_new_ids(transcript: Transcript) -> Transcript:
    """The same under new ids."""
    session_id = new_session_id()
    names = new_id_mapping(transcript.entries, session_id)
    entries = [names.map_entry(entry, n) for n, entry in enumerate(transcript.entries, 1)]
    return Transcript(replace(transcript.session, id=session_id), tuple(entries))


class ImportJob(WriteJob):
    """A whole session to be written in one transaction."""

    def __init__(self, transcript: Transcript) -> None:
        self._transcript = transcript
        self._works: list[AppendJob | RecordJob] = []
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
        tables.forget_head(session.id)
        return session

    def explain(self, transaction: Transaction) -> MetisError | None:
        """Which message did not fit to what is there, and how."""
        works = (work.explain(transaction) for work in self._works if isinstance(work, AppendJob))
        return next((found for found in works if found is not None), None)


def _work(entry: AnyEntry, place: int, session_id: str) -> AppendJob | RecordJob:
    if entry.session_id != session_id:
        path = f"line {place + 2}: $.session_id"
        raise DecodeError(f"it is of session {entry.session_id!r}, not {session_id!r}", path=path)
    if isinstance(entry, MessageEntry):
        return AppendJob([prepare_message(entry.message)])
    return RecordJob(entry)


def fork_transcript(
    transaction: Transaction, session_id: str, message_id: str | None, now: datetime
) -> Transcript:
    """A new session that starts as a copy of another, up to a message or to its end."""
    source = read_session(transaction, session_id)
    entries = _until(read_history(transaction, session_id), session_id, message_id)
    new_id = new_session_id()
    names = new_id_mapping(entries, new_id)
    record = ForkEntry(
        id=new_ulid(),
        session_id=new_id,
        created_at=now,
        seq=1,
        source_session_id=session_id,
        source_message_id=_last_message(entries),
        message_ids=dict(names.message_ids),
        tool_use_ids=dict(names.tool_use_ids),
    )
    copies = [_ended(names.map_entry(entry, n)) for n, entry in enumerate(entries, 2)]
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
