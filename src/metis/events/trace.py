"""Trace: stored events; the protocol of trace stores, and two of them: in memory and in SQLite."""

import asyncio
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from metis.canonical.errors import EventError
from metis.events.bus import Bus
from metis.events.event import Event, encode_json, read_payload, unfinished_events
from metis.events.registry import CATALOGUE, Actor, Sensitivity
from metis.events.system_events import BusGapDetected, TraceSwept
from metis.store.private_files import (
    ReadOnlyFile,
    is_read_only,
    make_private_directory,
    make_private_file,
)

USER_VERSION = 1
"""The version of the tables, written into the file."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS events (
    id TEXT PRIMARY KEY,
    timestamp_us INTEGER NOT NULL,
    session_id TEXT NOT NULL,
    turn_id TEXT,
    parent_event_id TEXT,
    type TEXT NOT NULL,
    actor TEXT NOT NULL,
    sensitivity TEXT NOT NULL,
    payload_json TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS events_by_session ON events (session_id, id);
CREATE INDEX IF NOT EXISTS events_by_type ON events (type, timestamp_us);
CREATE INDEX IF NOT EXISTS events_by_turn ON events (turn_id);
CREATE INDEX IF NOT EXISTS events_by_parent ON events (parent_event_id);
CREATE INDEX IF NOT EXISTS events_by_time ON events (timestamp_us);
"""
# An event may be delivered twice by a retry after a crash.
_INSERT = "INSERT OR IGNORE INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
# How long SQLite waits for another process that writes.
_WAIT_S = 5.0
_MAX_ROWS_HERE = 64
"""How many rows are inserted in the caller's thread, which takes about half a millisecond."""
_CHECKPOINT_ROWS = 4000
"""After how many rows the write-ahead log is checkpointed; it then has about four megabytes."""


class EventQuery(Struct, frozen=True, kw_only=True):
    """Which events to select, in the order of their ids; None is all."""

    session_id: str | None = None
    turn_id: str | None = None
    types: AbstractSet[str] | None = None
    after: str | None = None
    """Only ids greater than this one."""
    since: datetime | None = None
    until: datetime | None = None
    """Only times before this one."""
    limit: int | None = None

    def matches(self, event: Event) -> bool:
        """Return whether an event is selected, apart from the limit."""
        return (
            (self.session_id is None or event.session_id == self.session_id)
            and (self.turn_id is None or event.turn_id == self.turn_id)
            and (self.types is None or event.type in self.types)
            and (self.after is None or event.id > self.after)
            and (self.since is None or event.timestamp >= self.since)
            and (self.until is None or event.timestamp < self.until)
        )


class Sweep(Struct, frozen=True, kw_only=True):
    """The result of a retention sweep: what was deleted, or would be in a dry run."""

    deleted: Mapping[str, int]
    """The number of deleted events by type."""
    spared_count: int
    """The number of old events of audit types, which are not deleted."""
    is_dry_run: bool

    @property
    def deleted_count(self) -> int:
        """The number of deleted events of all types."""
        return sum(self.deleted.values())


class TraceStore(Protocol):
    """Stores events: append-only, except for the sweep."""

    async def append(self, events: Sequence[Event], /) -> None:
        """Store events; an id that exists already is stored once."""

    async def select(self, query: EventQuery, /) -> list[Event]:
        """Return the events that match a query."""
        ...

    async def sweep(self, *, before: datetime, dry_run: bool = True) -> Sweep:
        """Delete older events, except those of audit types."""
        ...


def audit_types() -> frozenset[str]:
    """Return the types that a sweep does not delete."""
    return frozenset(name for name, row in CATALOGUE.items() if row.is_audit)


class MemoryTrace:
    """Events in memory."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self._events = {event.id: event for event in events}

    async def append(self, events: Sequence[Event], /) -> None:
        """Store events; an id that exists already is stored once."""
        for event in events:
            self._events.setdefault(event.id, event)

    async def select(self, query: EventQuery, /) -> list[Event]:
        """Return the events that match a query."""
        matching = [event for _, event in sorted(self._events.items()) if query.matches(event)]
        return matching if query.limit is None else matching[: query.limit]

    async def sweep(self, *, before: datetime, dry_run: bool = True) -> Sweep:
        """Delete older events, except those of audit types."""
        old = [event for event in self._events.values() if event.timestamp < before]
        swept = [event for event in old if not event.event_type.is_audit]
        if not dry_run:
            for event in swept:
                del self._events[event.id]
        return Sweep(
            deleted=dict(sorted(Counter(event.type for event in swept).items())),
            spared_count=len(old) - len(swept),
            is_dry_run=dry_run,
        )


class SqliteTrace:
    """Events in a SQLite file that many readers and one writer can use at the same time."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._read_only: ReadOnlyFile | None = None
        self._rows_in_log = 0
        try:
            if is_read_only(path):
                self._read_only = ReadOnlyFile(path, newest_version=USER_VERSION)
                self._connection = self._read_only.connect(timeout=_WAIT_S)
            else:
                # Events contain sessions, models and costs, so other users must not read them.
                make_private_directory(path.parent)
                make_private_file(path)
                # Calls come from worker threads; `_lock` serialises them.
                self._connection = sqlite3.connect(
                    path, check_same_thread=False, isolation_level=None, timeout=_WAIT_S
                )
        except (OSError, sqlite3.Error) as error:
            raise EventError(f"{path} cannot be used as a trace: {error}") from None
        try:
            self._open(path)
        except BaseException:
            self.close()
            raise

    def _open(self, path: Path) -> None:
        run = self._connection.execute
        try:
            (version,) = run("PRAGMA user_version").fetchone()
            if version not in (0, USER_VERSION):
                text = f"{path} has version {version}; this metis supports {USER_VERSION}"
                raise EventError(text)
            if self._read_only is not None:
                return
            # Readers such as `metis trace` must not block the session that writes.
            run("PRAGMA journal_mode = WAL")
            run("PRAGMA synchronous = NORMAL")
            # A checkpoint waits for the disk, so it is made only in a worker thread.
            run("PRAGMA wal_autocheckpoint = 0")
            self._connection.executescript(_SCHEMA)
            run(f"PRAGMA user_version = {USER_VERSION}")
        except sqlite3.DatabaseError as error:
            raise EventError(f"{path} cannot be used as a trace: {error}") from None

    def close(self) -> None:
        """Close the file."""
        self._connection.close()
        if self._read_only is not None:
            self._read_only.close()

    async def append(self, events: Sequence[Event], /) -> None:
        """Store events; an id that exists already is stored once."""
        rows = [_row(event) for event in events]
        if not self._insert_here(rows):
            await asyncio.to_thread(self._insert, rows)

    async def select(self, query: EventQuery, /) -> list[Event]:
        """Return the events that match a query."""
        conditions, values = _where(query)
        limit = -1 if query.limit is None else query.limit
        sql = f"SELECT * FROM events WHERE {conditions} ORDER BY id LIMIT ?"  # noqa: S608 - ours
        rows = await asyncio.to_thread(self._fetch, sql, [*values, limit])
        return list(_events(rows))

    async def sweep(self, *, before: datetime, dry_run: bool = True) -> Sweep:
        """Delete older events, except those of audit types."""
        return await asyncio.to_thread(self._sweep, _microseconds(before), dry_run=dry_run)

    def _insert_here(self, rows: list[tuple[Any, ...]]) -> bool:
        """Insert few rows in this thread; False if that could wait for the disk or a process.

        A row takes ten microseconds, waking a thread a hundred.
        """
        if len(rows) > _MAX_ROWS_HERE or self._rows_in_log + len(rows) > _CHECKPOINT_ROWS:
            return False
        if not self._lock.acquire(blocking=False):
            return False
        run = self._connection.execute
        try:
            run("PRAGMA busy_timeout = 0")
            try:
                run("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return False  # a worker thread then waits, or raises the error
            finally:
                run(f"PRAGMA busy_timeout = {_WAIT_S * 1000:.0f}")
            self._write(rows)
        finally:
            self._lock.release()
        return True

    def _insert(self, rows: list[tuple[Any, ...]]) -> None:
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            self._write(rows)
            if self._rows_in_log > _CHECKPOINT_ROWS:
                self._rows_in_log = 0
                self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def _write(self, rows: list[tuple[Any, ...]]) -> None:
        """Insert rows and end the transaction."""
        run = self._connection.execute
        try:
            self._connection.executemany(_INSERT, rows)
            run("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                run("ROLLBACK")
            raise
        self._rows_in_log += len(rows)

    def _fetch(self, sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._connection.execute(sql, values).fetchall()

    def _sweep(self, cutoff: int, *, dry_run: bool) -> Sweep:
        # Audit events record who changed what, and must outlive the retention period.
        spared = sorted(audit_types())
        marks = ", ".join("?" * len(spared))
        old = f"timestamp_us < ? AND type NOT IN ({marks})"
        by_type = self._fetch(
            f"SELECT type, COUNT(*) FROM events WHERE {old} GROUP BY type ORDER BY type",  # noqa: S608 - marks only
            [cutoff, *spared],
        )
        ((all_old,),) = self._fetch("SELECT COUNT(*) FROM events WHERE timestamp_us < ?", [cutoff])
        deleted = dict[str, int](by_type)
        if not dry_run:
            self._fetch(f"DELETE FROM events WHERE {old}", [cutoff, *spared])  # noqa: S608 - marks only
        return Sweep(
            deleted=deleted, spared_count=all_old - sum(deleted.values()), is_dry_run=dry_run
        )


def _row(event: Event) -> tuple[Any, ...]:
    return (
        event.id,
        _microseconds(event.timestamp),
        event.session_id,
        event.turn_id,
        event.parent_event_id,
        event.type,
        event.actor.value,
        event.sensitivity.value,
        encode_json(event.payload).decode(),
    )


def _events(rows: list[tuple[Any, ...]]) -> Iterator[Event]:
    for row in rows:
        payload = read_payload(row[5], row[8].encode())
        if payload is not None:
            fields: dict[str, Any] = dict(zip(Event.__struct_fields__, row, strict=True))
            fields["timestamp"] = _EPOCH + row[1] * _MICROSECOND
            fields["actor"], fields["sensitivity"] = Actor(row[6]), Sensitivity(row[7])
            fields["payload"] = payload
            yield Event(**fields)


def _where(query: EventQuery) -> tuple[str, list[Any]]:
    """Return the conditions of a query as SQL with placeholders, and their values."""
    conditions, values = ["1"], list[Any]()
    for sql, value in (
        ("session_id = ?", query.session_id),
        ("turn_id = ?", query.turn_id),
        ("id > ?", query.after),
        ("timestamp_us >= ?", query.since and _microseconds(query.since)),
        ("timestamp_us < ?", query.until and _microseconds(query.until)),
    ):
        if value is not None:
            conditions.append(sql)
            values.append(value)
    if query.types is not None:
        conditions.append(f"type IN ({', '.join('?' * len(query.types))})")
        values += sorted(query.types)
    return " AND ".join(conditions), values


def _microseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND


async def report_gaps(store: TraceStore, bus: Bus) -> tuple[Event, ...]:
    """Emit a `bus.gap_detected` event for each start event without an end; for start-up.

    Each gap is reported once.
    """
    # Only start and end events are read; a trace may have millions of others.
    types = {"bus.gap_detected"}
    for row in CATALOGUE.values():
        types |= {row.type, *row.ends} if row.ends else set()
    events = await store.select(EventQuery(types=types))
    reported = {
        event.payload.unfinished_event_id
        for event in events
        if isinstance(event.payload, BusGapDetected)
    }
    gaps = tuple(event for event in unfinished_events(events) if event.id not in reported)
    for event in gaps:
        bus.emit(
            BusGapDetected(unfinished_event_id=event.id, unfinished_type=event.type),
            session_id=event.session_id,
            turn_id=event.turn_id,
            parent=event,
        )
    return gaps


async def sweep_trace(
    store: TraceStore, *, before: datetime, dry_run: bool = True, bus: Bus | None = None
) -> Sweep:
    """Delete old events, and emit a `trace.swept` event unless it is a dry run."""
    swept = await store.sweep(before=before, dry_run=dry_run)
    if bus is not None and not dry_run:
        bus.emit(
            TraceSwept(
                cutoff=before.isoformat(),
                deleted_count=swept.deleted_count,
                spared_count=swept.spared_count,
            )
        )
    return swept
