"""Transfer: export and import of a session as JSON lines, copies under new ids, and forks.

The first line is the session, each other line one entry, in order. Tool calls, the id map, parents
and bookmarks follow from the entries and are rebuilt by an import.
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

FORMAT = 1
INSERT_SESSION = f"INSERT INTO sessions ({SESSION_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)"  # noqa: S608 - no input
_MESSAGE_ID_FIELDS = ("message_id", "first_kept_id", "head_id", "to_id")


class _FirstLine(Struct, kw_only=True, tag="session", tag_field="type", forbid_unknown_fields=True):
    """The first line of an export."""

    format: int = FORMAT
    session: SessionRecord


_read_first_line = msgspec.json.Decoder(_FirstLine).decode
_write_json = msgspec.json.Encoder(order="sorted").encode


class Transcript(Struct, frozen=True):
    """A session with all its entries."""

    session: SessionRecord
    entries: tuple[AnyEntry, ...]


def export_lines(transaction: Transaction, session_id: str) -> Iterator[bytes]:
    """Yield a session as lines of JSON, without line ends."""
    yield _write_json(_FirstLine(session=read_session(transaction, session_id)))
    yield from map(encode_entry, read_history(transaction, session_id))


def read_transcript(lines: Iterable[bytes]) -> Transcript:
    """Read the lines of `export_lines`.

    Raises:
        DecodeError: a line is not part of an export; the path has its number.
    """
    session: SessionRecord | None = None
    entries: list[AnyEntry] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            if session is None:
                session = _decode_first_line(line)
            else:
                entries.append(_checked(decode_entry(line.strip())))
        except DecodeError as error:
            path = f"line {number}: {error.path}"
            raise DecodeError(error.reason, path=path) from None
    if session is None:
        raise DecodeError("the export holds no session", path="line 1: $")
    return Transcript(session, tuple(entries))


def _checked(entry: AnyEntry) -> AnyEntry:
    """Return an entry, if its id and session are those of its message.

    Raises:
        DecodeError: they differ.
    """
    if isinstance(entry, MessageEntry):
        for name in ("id", "session_id"):
            if getattr(entry, name) != getattr(entry.message, name):
                text = "the entry and its message state different values"
                raise DecodeError(text, path=f"$.message.{name}")
    return entry


def _decode_first_line(line: bytes) -> SessionRecord:
    try:
        first = _read_first_line(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DecodeError(f"not the first line of an export: {error}") from None
    # A newer format may have data that this version would silently drop.
    if first.format > FORMAT:
        raise DecodeError(f"format {first.format} is newer than this metis", path="$.format")
    return first.session


class ImportJob(WriteJob):
    """Write a session with all its entries in one transaction."""

    def __init__(self, transcript: Transcript) -> None:
        self._transcript = transcript
        self._jobs: list[AppendJob | RecordJob] = []
        for index, entry in enumerate(transcript.entries):
            self._jobs.append(_entry_job(entry, index, transcript.session.id))

    def write(self, tables: Tables) -> SessionRecord:
        """Write the session, then its entries, each with the rows that follow from it."""
        session = self._transcript.session
        if tables.run("SELECT 1 FROM sessions WHERE id = ?", (session.id,)):
            raise DuplicateSessionError(session.id)
        tables.change(INSERT_SESSION, session_row(session))
        for job in self._jobs:
            job.write(tables)
        # The entries changed the session row; it is set to the exported values again.
        sql = "UPDATE sessions SET active_model = ?, updated_at = ? WHERE id = ?"
        row = session_row(session)
        tables.change(sql, (row[2], row[6], session.id))
        tables.forget_head(session.id)
        return session

    def explain(self, transaction: Transaction) -> MetisError | None:
        """Return the error for the first message that conflicts with stored rows."""
        jobs = (job for job in self._jobs if isinstance(job, AppendJob))
        return next(filter(None, (job.explain(transaction) for job in jobs)), None)


class ExtendJob(WriteJob):
    """Append messages and other entries to a session in one transaction, in their order."""

    def __init__(self, entries: Sequence[AnyEntry]) -> None:
        self.session_ids = list({entry.session_id for entry in entries})
        self._jobs = [
            _entry_job(entry, index, entry.session_id) for index, entry in enumerate(entries)
        ]
        self.size = sum(job.size for job in self._jobs)

    def write(self, tables: Tables) -> None:
        """Write each entry with the rows that follow from it."""
        for job in self._jobs:
            job.write(tables)

    def explain(self, transaction: Transaction) -> MetisError | None:
        """Return the error for the first message that conflicts with stored rows."""
        jobs = (job for job in self._jobs if isinstance(job, AppendJob))
        return next(filter(None, (job.explain(transaction) for job in jobs)), None)


def _entry_job(entry: AnyEntry, index: int, session_id: str) -> AppendJob | RecordJob:
    if entry.session_id != session_id:
        path = f"line {index + 2}: $.session_id"
        text = f"the entry is of session {entry.session_id!r}, not {session_id!r}"
        raise DecodeError(text, path=path)
    if isinstance(entry, MessageEntry):
        return AppendJob([prepare_message(entry.message)])
    return RecordJob(entry)


class IdMapping(Struct, frozen=True):
    """New ids by old ids, for a copy of a session."""

    session_id: str
    message_ids: Mapping[str, str]
    tool_use_ids: Mapping[str, str]
    entry_ids: Mapping[str, str]

    def map_entry(self, entry: AnyEntry, seq: int) -> AnyEntry:
        """Return an entry under its new ids."""
        if isinstance(entry, UnknownEntry):
            return place_entry(entry, session_id=self.session_id, seq=seq)
        fields: dict[str, Any] = {"id": self.entry_ids[entry.id], "session_id": self.session_id}
        if isinstance(entry, MessageEntry):
            return replace(entry, **fields, seq=seq, message=self.map_message(entry.message))
        for name in _MESSAGE_ID_FIELDS:
            old_id = getattr(entry, name, None)
            if old_id is not None:
                fields[name] = self.message_ids.get(old_id, old_id)
        return replace(entry, **fields, seq=seq)

    def map_message(self, message: Message) -> Message:
        """Return a message under its new ids, also in the original forms of its calls."""
        metadata = message.metadata
        call_id, parents = metadata.parent_tool_use_id, metadata.parents
        if call_id is not None or parents:
            metadata = replace(
                metadata,
                parent_tool_use_id=self.tool_use_ids.get(call_id, call_id) if call_id else call_id,
                parents=tuple(self.message_ids.get(parent, parent) for parent in parents),
            )
        mapped = replace(
            message,
            id=self.message_ids[message.id],
            session_id=self.session_id,
            content=tuple(self._map_block(block) for block in message.content),
            metadata=metadata,
        )
        # The original forms of providers also contain our ids.
        return with_tool_ids(mapped, self.tool_use_ids)

    def _map_block(self, block: ContentBlock) -> ContentBlock:
        if isinstance(block, ToolUseBlock):
            return replace(block, id=self.tool_use_ids.get(block.id, block.id))
        if isinstance(block, ToolResultBlock):
            new_id = self.tool_use_ids.get(block.tool_use_id, block.tool_use_id)
            return replace(block, tool_use_id=new_id)
        return block


def new_id_mapping(entries: Sequence[AnyEntry], session_id: str) -> IdMapping:
    """Return new ids for entries, messages and calls, in the same order."""
    new_ids = dict(zip((entry.id for entry in entries), new_ulids(len(entries)), strict=True))
    messages = [entry.message for entry in entries if isinstance(entry, MessageEntry)]
    # A call and its result have the same id; new ids are assigned in the order of first use.
    calls = list(dict.fromkeys(_tool_use_ids(messages)))
    return IdMapping(
        session_id=session_id,
        message_ids={message.id: new_ids[message.id] for message in messages},
        tool_use_ids={
            old: f"tu_{new}" for old, new in zip(calls, new_ulids(len(calls)), strict=True)
        },
        entry_ids=new_ids,
    )


def _tool_use_ids(messages: Iterable[Message]) -> Iterable[str]:
    for message in messages:
        for block in message.content:
            if isinstance(block, ToolUseBlock):
                yield block.id
            elif isinstance(block, ToolResultBlock):
                yield block.tool_use_id


def with_new_ids(transcript: Transcript) -> Transcript:
    """Return a copy of a session under new ids, so that it can be stored beside the original."""
    session_id = new_session_id()
    ids = new_id_mapping(transcript.entries, session_id)
    entries = [ids.map_entry(entry, seq) for seq, entry in enumerate(transcript.entries, 1)]
    return Transcript(replace(transcript.session, id=session_id), tuple(entries))


def fork_transcript(
    transaction: Transaction, session_id: str, message_id: str | None, now: datetime
) -> Transcript:
    """Return a new session that starts as a copy of another, up to a message or to its end."""
    source = read_session(transaction, session_id)
    entries = _up_to(read_history(transaction, session_id), session_id, message_id)
    message_ids = [entry.id for entry in entries if isinstance(entry, MessageEntry)]
    new_id = new_session_id()
    ids = new_id_mapping(entries, new_id)
    fork_entry = ForkEntry(
        id=new_ulid(),
        session_id=new_id,
        created_at=now,
        seq=1,
        source_session_id=session_id,
        # A viewer shows both conversations side by side from this message on.
        source_message_id=message_ids[-1] if message_ids else None,
        message_ids=dict(ids.message_ids),
        tool_use_ids=dict(ids.tool_use_ids),
    )
    copies = [_without_partial(ids.map_entry(entry, seq)) for seq, entry in enumerate(entries, 2)]
    session = replace(source, id=new_id, created_at=now, updated_at=now)
    return Transcript(session, (fork_entry, *copies))


def _without_partial(entry: AnyEntry) -> AnyEntry:
    # Only the original of a partial message will be completed, never its copy.
    if isinstance(entry, MessageEntry) and entry.message.metadata.status == MessageStatus.PARTIAL:
        return replace(entry, message=as_failed(entry.message))
    return entry


def _up_to(
    entries: Sequence[AnyEntry], session_id: str, message_id: str | None
) -> Sequence[AnyEntry]:
    if message_id is None:
        return entries
    for index, entry in enumerate(entries):
        if isinstance(entry, MessageEntry) and entry.id == message_id:
            return entries[: index + 1]
    raise UnknownMessageError(session_id, message_id)
