"""Floors for the store: raw SQLite with one column of JSON, and the rows of the store without it.

`rows` are the very statements that the store runs for each message, taken down beforehand and run
again by the bare driver: no check, no encoding, no task, no thread. What they take is SQLite's or
PostgreSQL's own share; nothing above can be quicker.
"""

import sqlite3
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec
import psycopg
from plain import AnyBlock, Metadata, PlainMessage

from metis.canonical import Message
from metis.store.append import AppendJob, prepare_message
from metis.store.database import Rows, schema_steps
from metis.store.sqlite import SqliteTransaction
from metis.store.tables import Tables

Statement = tuple[str, list[Sequence[Any]]]
"""A statement, and each row of values that it is run with."""

TASKS = 64
write_plain = msgspec.json.Encoder().encode
read_plain = msgspec.json.Decoder(PlainMessage).decode
_read_content = msgspec.json.Decoder(list[AnyBlock]).decode
_read_metadata = msgspec.json.Decoder(Metadata).decode
_TABLE = (
    "CREATE TABLE messages (session TEXT NOT NULL, seq INTEGER NOT NULL, body BLOB NOT NULL, "
    "PRIMARY KEY (session, seq)) WITHOUT ROWID"
)
_INSERT = "INSERT INTO messages VALUES (?, ?, ?)"
_SESSION = "INSERT INTO sessions VALUES (?, '', NULL, NULL, 1, 0, 0)"
_LOAD = (
    "SELECT id, role, content_json, metadata_json, created_at FROM messages "
    "WHERE session_id = %s ORDER BY created_at"
)
_LOCK = "SELECT id FROM sessions WHERE id = %s FOR NO KEY UPDATE"


class Time(NamedTuple):
    """Microseconds a message, elapsed and of CPU."""

    elapsed: float
    cpu: float


class Clock:
    """Measures from its making."""

    def __init__(self) -> None:
        self._elapsed, self._cpu = time.perf_counter_ns(), time.process_time_ns()

    def read(self, count: int) -> Time:
        """The time since, for each of a number of messages."""
        elapsed = time.perf_counter_ns() - self._elapsed
        return Time(elapsed / 1000 / count, (time.process_time_ns() - self._cpu) / 1000 / count)


def open_sqlite(path: Path, *, full: bool = False) -> sqlite3.Connection:
    """A connection as the floor has it."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {'FULL' if full else 'NORMAL'}")
    return connection


def floor_append(folder: Path, plain: Sequence[PlainMessage], *, full: bool = False) -> Time:
    """One INSERT a message, each its own transaction."""
    with closing(open_sqlite(folder / "floor.db", full=full)) as connection:
        connection.execute(_TABLE)
        clock = Clock()
        for seq, message in enumerate(plain):
            connection.execute(_INSERT, ("s", seq, write_plain(message)))
        return clock.read(len(plain))


def floor_load(path: Path, count: int) -> Time:
    """Every message of a session into typed objects."""
    clock = Clock()
    with closing(open_sqlite(path)) as connection:
        rows = connection.execute("SELECT body FROM messages WHERE session = 's' ORDER BY seq")
        loaded = [read_plain(body) for (body,) in rows]
    assert len(loaded) == count  # noqa: S101 - a measure of nothing is none
    return clock.read(count)


class Taker:
    """Stands for a database and takes down what would be written."""

    def __init__(self) -> None:
        self.taken: list[Statement] = []

    def has_changed(self, _: object) -> bool:
        """Nobody else writes."""
        return False

    def lock_sessions(self, _: object, ids: Sequence[str]) -> None:
        """Nobody else is there."""

    def run(self, _: str, values: Sequence[Any] = ()) -> Rows:
        """Every session is new."""
        return [(session_id, 0, None, 0, None, None, None, False) for session_id in values]

    def change_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> int:
        """Take it down."""
        self.taken.append((sql, [tuple(row) for row in rows]))
        return len(rows)


def statements(groups: Iterable[Sequence[Message]]) -> list[list[Statement]]:
    """What the store runs for each group of messages that is committed together."""
    taker = Taker()
    tables = Tables(cast("Any", taker))
    found: list[list[Statement]] = []
    for group in groups:
        works = [AppendJob((prepare_message(message),)) for message in group]
        tables.begin(cast("Any", taker), cast("Any", works))
        for work in works:
            work.write(tables)
        tables.flush()
        found.append(taker.taken)
        taker.taken = []
    return found


def rows_in_sqlite(path: Path, sessions: Iterable[str], groups: list[list[Statement]]) -> Time:
    """The time for all groups, each in a transaction; the log is moved as SQLite does it."""
    with closing(open_sqlite(path)) as connection:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA cache_size = -32768")
        connection.execute("PRAGMA temp_store = MEMORY")
        for _, text in schema_steps("sqlite"):
            connection.executescript(text)
        connection.executemany(_SESSION, [(each,) for each in sessions])
        execute, clock = connection.execute, Clock()
        change_many = SqliteTransaction(connection).change_many
        for group in groups:
            execute("BEGIN IMMEDIATE")
            for sql, rows in group:
                change_many(sql, rows)
            execute("COMMIT")
        return clock.read(1)


def rows_in_postgres(url: str, sessions: Sequence[str], groups: list[list[Statement]]) -> Time:
    """The same at a server, with the lock of the session that the store takes."""
    prepared = [[(sql.replace("?", "%s"), rows) for sql, rows in group] for group in groups]
    with psycopg.connect(url) as connection, connection.cursor() as cursor:
        insert: Any = _SESSION.replace("?", "%s")
        cursor.executemany(insert, [(each,) for each in sessions])
        connection.commit()
        clock = Clock()
        for group in prepared:
            with connection.transaction():
                cursor.execute(_LOCK, (sessions[0],))
                for sql, rows in group:
                    statement: Any = sql
                    if len(rows) == 1:
                        cursor.execute(statement, rows[0])
                    else:
                        cursor.executemany(statement, rows)
        return clock.read(1)


def load_from_postgres(url: str, session_id: str) -> Time:
    """The messages of a session as plain typed objects, by the store's own query."""
    with psycopg.connect(url) as connection:
        clock = Clock()
        loaded = [
            (row[0], row[1], _read_content(row[2]), _read_metadata(row[3]), row[4])
            for row in connection.execute(_LOAD, (session_id,))
        ]
        return clock.read(len(loaded))
