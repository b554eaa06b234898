"""Repair: copies the readable part of a damaged store into a new one, and reports what is lost.

The damaged file is only read. Every message is compared with its digest before it is saved. Rows
that follow from messages (calls, results, numbers, bookmarks) are built again, so that the new
store is valid.
"""

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from metis.canonical.errors import DecodeError, MetisError, StoreUnavailableError
from metis.canonical.ids import is_ulid
from metis.canonical.message import SCHEMA_VERSION, Message
from metis.store.append import referenced_message_ids
from metis.store.connection import sqlite_path
from metis.store.entries import AnyEntry, decode_entry
from metis.store.private_files import PRIVATE_FILE
from metis.store.records import (
    EventRecord,
    SessionRecord,
    damage_of_bytes,
    entry_key,
    from_microseconds,
    from_row,
    message_digest,
)
from metis.store.salvage import Damage, DamagedFile, Value
from metis.store.store import Store, open_store

_DECODE_ERRORS = (DecodeError, ValueError, TypeError, AttributeError, OverflowError)
_read_digests = msgspec.json.Decoder(dict[str, int]).decode
# A damaged file can have a damaged cell in every row.
_MAX_DAMAGES = 1000
# The types of the columns of each table: `t` text, `i` integer, `T` text or null.
_SESSION, _MESSAGE, _JOURNAL = "ttTTiii", "tttttii", "tiTTi"
_OLD_JOURNAL, _DIGESTS, _EVENT, _PRICES = "tiTT", "tit", "tiTTTtttt", "tti"


class RepairReport(Struct, frozen=True, kw_only=True):
    """The result of a repair."""

    target: Path
    session_count: int
    message_count: int
    lost: tuple[str, ...]
    """A text for each part that is not in the new store: session, message and cause."""


class _Session(Struct):
    """The salvaged rows of one session."""

    record: SessionRecord | None = None
    rows: dict[str, list[tuple[Any, ...]]] = {}
    """Rows of messages by id; two rows with one id come from two versions of a page."""
    full_texts: dict[str, bytes] = {}
    entries: dict[int, bytes] = {}
    digests: dict[int, dict[str, int]] = {}
    """Rows of digests by their number."""

    @property
    def all_digests(self) -> dict[str, int]:
        """The valid digests; later rows replace earlier ones."""
        return {
            key: digest for _, row in sorted(self.digests.items()) for key, digest in row.items()
        }


class _Salvaged(Struct):
    """All rows that could be read."""

    sessions: dict[str, _Session] = {}
    events: list[EventRecord] = []
    prices: dict[str, Any] = {}
    damages: list[Damage] = []


async def repair(url: str, target: Path) -> RepairReport:
    """Copy the readable part of a SQLite store into a new file.

    Raises:
        StoreUnavailableError: the URL names no file, or the target exists already.
    """
    if not url.startswith("sqlite:"):
        hint = "repair the server with its own tools, or restore a backup"
        raise StoreUnavailableError("only a SQLite file can be repaired", hint=hint)
    salvaged = _read_damaged(sqlite_path(url), target)
    lost: list[str] = []
    count = 0
    async with open_store(f"sqlite:///{target}", recover=False) as store:
        for session_id, session in sorted(salvaged.sessions.items()):
            count += await _save_session(store, session_id, session, lost)
        for version, table in salvaged.prices.items():
            await store.save_prices(version, table)
        unique = {event.id: event for event in salvaged.events}
        await store.add_events(list(unique.values()))
    lost += [f"page {damage.page}: {damage.text}" for damage in salvaged.damages[:_MAX_DAMAGES]]
    return RepairReport(
        target=target,
        session_count=len(salvaged.sessions),
        message_count=count,
        lost=tuple(lost),
    )


def _read_damaged(path: Path, target: Path) -> _Salvaged:
    if target.exists():
        hint = "choose a new file name"
        raise StoreUnavailableError(f"{target}: the file exists already", hint=hint)
    return _salvage(read_with_log(path))


def read_with_log(path: Path) -> bytes:
    """Return the bytes of a store merged with its write-ahead log; neither file is changed."""
    try:
        data = path.read_bytes()
        log = Path(f"{path}-wal")
        if not log.exists() or not log.stat().st_size:
            return data
        with tempfile.TemporaryDirectory(prefix="metis-repair-") as directory:
            copy = Path(directory) / "copy.db"
            for source, target in ((path, copy), (log, Path(f"{copy}-wal"))):
                shutil.copyfile(source, target)
                target.chmod(PRIVATE_FILE)
            # SQLite copies whole pages from the log without checking their content.
            with suppress(sqlite3.Error), closing(sqlite3.connect(copy)) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            return copy.read_bytes()
    except OSError as error:
        raise StoreUnavailableError(f"{path}: cannot be read ({error.strerror})") from None


def _salvage(data: bytes) -> _Salvaged:
    result = _Salvaged(sessions={}, events=[], prices={}, damages=[])
    file = DamagedFile(data)
    for row in file.rows():
        # A damaged row may have the shape of another table; then its content cannot be decoded.
        with suppress(*_DECODE_ERRORS):
            _sort_row(row.values, result)
    result.damages = file.damages
    _return_to_owners(result.sessions)
    return result


def _return_to_owners(sessions: dict[str, _Session]) -> None:
    """Move messages to the session whose digests have them: the id in a row may be damaged."""
    owners = {
        name: session_id for session_id, session in sessions.items() for name in session.all_digests
    }
    for session_id, session in list(sessions.items()):
        if session.record is not None or session.digests:
            continue
        for message_id in list(session.rows):
            owner = owners.get(message_id, session_id)
            if owner != session_id:
                rows = session.rows.pop(message_id)
                moved = [(row[0], owner, *row[2:]) for row in rows]
                sessions[owner].rows.setdefault(message_id, []).extend(moved)
        if not (session.rows or session.entries or session.full_texts):
            del sessions[session_id]


def _sort_row(values: tuple[Value, ...], result: _Salvaged) -> None:
    """Add a row to the result; the table is recognised by the types of its columns."""
    if _fits(values, _MESSAGE):
        message_id, session_id, role = (_text(value) for value in values[:3])
        row = (message_id, session_id, role, *values[3:])
        _session(result, session_id).rows.setdefault(message_id, []).append(row)
    elif _fits(values, _SESSION):
        _add_session(values, result)
    elif _fits(values, _JOURNAL) or _fits(values, _OLD_JOURNAL):
        session, text = _session(result, _text(values[0])), values[3]
        if isinstance(text, bytes) and values[2] is None:
            session.entries[_integer(values[1])] = text
        elif isinstance(text, bytes):
            session.full_texts[_text(values[2])] = text
    elif _fits(values, _DIGESTS):
        digests = _read_digests(_text(values[2]))
        _session(result, _text(values[0])).digests[_integer(values[1])] = digests
    elif _fits(values, _EVENT):
        texts: list[Any] = [
            value if isinstance(value, int | None) else _text(value) for value in values
        ]
        names = EventRecord.__struct_fields__
        result.events.append(EventRecord(**dict(zip(names, texts, strict=True))))
    elif _fits(values, _PRICES) and _text(values[1]).startswith("{"):
        result.prices[_text(values[0])] = msgspec.json.decode(_text(values[1]))


def _fits(values: tuple[Value, ...], shape: str) -> bool:
    return len(values) == len(shape) and all(
        isinstance(value, bytes if kind in "tT" else int) or (kind == "T" and value is None)
        for value, kind in zip(values, shape, strict=True)
    )


def _text(value: Value) -> str:
    if not isinstance(value, bytes):
        raise TypeError
    return value.decode()


def _integer(value: Value) -> int:
    if not isinstance(value, int):
        raise TypeError
    return value


def _session(result: _Salvaged, session_id: str) -> _Session:
    session = result.sessions.get(session_id)
    if session is None:
        session = _Session(rows={}, full_texts={}, entries={}, digests={})
        result.sessions[session_id] = session
    return session


def _add_session(values: tuple[Value, ...], result: _Salvaged) -> None:
    policy = values[3]
    record = SessionRecord(
        id=_text(values[0]),
        workspace_path=_text(values[1]),
        active_model=None if values[2] is None else _text(values[2]),
        routing_policy=None if policy is None else msgspec.json.decode(_text(policy)),
        schema_version=_integer(values[4]),
        created_at=from_microseconds(_integer(values[5])),
        updated_at=from_microseconds(_integer(values[6])),
    )
    _session(result, record.id).record = record


async def _save_session(store: Store, session_id: str, session: _Session, lost: list[str]) -> int:
    """Write one session; return how many of its messages were saved."""
    subject, lost_before = f"session {session_id}", len(lost)
    digests = session.all_digests
    messages = dict(_messages(session, digests, subject, lost))
    entries = dict(_entries(session, digests, subject, lost))
    present = {*messages, *(entry_key(seq) for seq in entries)}
    present.update(session.rows)  # `_messages` has reported the unreadable ones
    present.update(entry_key(seq) for seq in session.entries)
    lost += [
        f"{subject}: {'entry ' + key[1:] if key.startswith('#') else 'message ' + key}: "
        "it is on no page that can be read"
        for key in sorted(digests.keys() - present)
    ]
    is_complete = len(lost) == lost_before
    if digests:
        # Sessions of an older version have no digests, so theirs are not reported.
        unverified = [
            *(f"message {name}" for name in sorted(messages) if name not in digests),
            *(f"entry {seq}" for seq in sorted(entries) if entry_key(seq) not in digests),
        ]
        lost += [
            f"{subject}: {name}: it is saved, but its digest is lost: whether it changed is unknown"
            for name in unverified
        ]
    record = session.record or _substitute_record(session_id, list(messages.values()))
    if session.record is None:
        lost.append(f"{subject}: its row; workspace and model are not known any more")
    await store.restore_session(record)
    saved = 0
    for item in _in_order(messages, entries, is_complete=is_complete):
        try:
            if isinstance(item, Message):
                await store.append(_with_present_parents(item, messages))
                saved += 1
            elif all(name in messages for name in referenced_message_ids(item)):
                await store.record(item)
            else:
                lost.append(f"{subject}: entry {item.seq}: it is about a message that is lost")
        except MetisError as error:
            lost.append(f"{subject}: {type(item).__name__.lower()} {item.id}: {error}")
    await store.restore_session(record)
    return saved


def _substitute_record(session_id: str, messages: list[Message]) -> SessionRecord:
    times = [message.created_at for message in messages] or [from_microseconds(0)]
    return SessionRecord(
        id=session_id,
        workspace_path="",
        schema_version=SCHEMA_VERSION,
        created_at=min(times),
        updated_at=max(times),
    )


def _messages(
    session: _Session, digests: Mapping[str, int], subject: str, lost: list[str]
) -> Iterator[tuple[str, Message]]:
    for message_id, rows in session.rows.items():
        cause = ""
        for row in rows:
            full_json = session.full_texts.get(message_id)
            digest = message_digest(row[2], row[3], row[4], row[5], full_json)
            if digest != digests.get(message_id, digest):
                cause = _cause(row) or (
                    f"its digest is {digest:08x} instead of {digests[message_id]:08x}"
                )
                continue
            try:
                yield message_id, from_row(row, full_json)
                break
            except _DECODE_ERRORS as error:
                cause = _cause(row) or str(error)
        else:
            lost.append(f"{subject}: message {message_id}: {cause}")


def _cause(row: tuple[Any, ...]) -> str | None:
    return damage_of_bytes("content", row[3]) or damage_of_bytes("metadata", row[4])


def _entries(
    session: _Session, digests: Mapping[str, int], subject: str, lost: list[str]
) -> Iterator[tuple[int, AnyEntry]]:
    for seq, text in session.entries.items():
        digest = crc32(text)
        expected = digests.get(entry_key(seq), digest)
        try:
            if digest != expected:
                difference = f"its digest is {digest:08x} instead of {expected:08x}"
                cause = damage_of_bytes("entry", text) or difference
                lost.append(f"{subject}: entry {seq}: {cause}")
            else:
                yield seq, decode_entry(text)
        except MetisError as error:
            lost.append(f"{subject}: entry {seq}: {error}")


def _in_order(
    messages: Mapping[str, Message], entries: Mapping[int, AnyEntry], *, is_complete: bool
) -> list[Message | AnyEntry]:
    """Return messages and entries in their order; after losses it is approximate."""
    ordered = [messages[name] for name in sorted(messages)]
    others = [entries[seq] for seq in sorted(entries)]
    if not is_complete and all(is_ulid(item.id) for item in (*ordered, *others)):
        return sorted([*ordered, *others], key=lambda item: item.id)
    # Entries are inserted by their numbers, which are only approximate after a loss.
    result: list[Message | AnyEntry] = list(ordered)
    for seq in sorted(entries):
        result.insert(seq - 1, entries[seq])
    return result


def _with_present_parents(message: Message, messages: Mapping[str, Message]) -> Message:
    parents = message.metadata.parents
    present = tuple(parent for parent in parents if parent in messages)
    if present == parents:
        return message
    return replace(message, metadata=replace(message.metadata, parents=present))
