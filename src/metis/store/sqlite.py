"""SQLite: the store in one file, for one machine.

One connection writes, others read. Durability "process" is WAL with synchronous NORMAL: an
acknowledged write survives a crash of the process. "power" is FULL: it survives a power failure.
"""

import fcntl
import os
import random
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing, contextmanager, suppress
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from metis.canonical.errors import StoreError, StoreReadOnlyError, StoreUnavailableError
from metis.store.database import (
    SESSION_TABLES,
    Rows,
    Transaction,
    newest_schema,
    schema_statements,
    schema_steps,
)
from metis.store.private_files import (
    ReadOnlyFile,
    is_read_only,
    make_private_directory,
    make_private_file,
)
from metis.store.search import SqliteSearch
from metis.store.sqlite_file import (
    APPLICATION_ID,
    check_file,
    check_version,
    create_private_file,
    is_busy,
    store_error,
    translate_errors,
)

if TYPE_CHECKING:
    from metis.store.vectors import VectorIndex

A = TypeVar("A")
T = TypeVar("T")
DIALECT = "sqlite"
# A long log slows readers down, and a checkpoint waits for the disk; this number balances both.
_CHECKPOINT_CHANGES = 2500
# Readers can keep the log from being reused; above this size it is truncated, which waits for them.
_MAX_LOG_BYTES = 64 * 1024 * 1024
# The store runs more different statements than the default cache of 128 has.
_STATEMENTS = 256
CACHE_BYTES = 32 * 1024 * 1024
"""The default size of the page cache of each connection."""
_RETRY_PAUSE_S = 0.001
# Rows per multi-row INSERT: fewer are faster one by one, more are not faster.
_BLOCK = 16
_ONE_ROW = re.compile(r"(INSERT INTO [^?]* VALUES )(\([?, ]+\))")


@cache
def _multi_row_insert(sql: str) -> str | None:
    """Return the INSERT for a block of rows; None if this is not an INSERT of one row."""
    match = _ONE_ROW.match(sql)
    if match is None:
        return None
    return match[1] + ", ".join([match[2]] * _BLOCK) + sql[match.end() :]


class SqliteTransaction:
    """A connection inside a transaction."""

    # Decoders and checksums read bytes; text would first be validated, copied and encoded.
    binary_text = "CAST({} AS BLOB)"

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._cursor = connection.cursor()

    def run(self, sql: str, values: Sequence[Any] = ()) -> Rows:
        """Run one statement and return its rows."""
        return self._cursor.execute(sql, values).fetchall()

    def stream(self, sql: str, values: Sequence[Any] = ()) -> Iterable[Any]:
        """Run one query and return its rows without loading all of them."""
        return self._connection.execute(sql, values)

    def change(self, sql: str, values: Sequence[Any] = ()) -> int:
        """Run one statement and return the number of changed rows."""
        return self._cursor.execute(sql, values).rowcount

    def change_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> int:
        """Run one statement for each row of values and return the number of changed rows."""
        if len(rows) == 1:
            return self._cursor.execute(sql, rows[0]).rowcount
        # One statement for 16 rows is faster than 16 runs of a statement for one.
        block = _multi_row_insert(sql) if len(rows) >= _BLOCK else None
        if block is None:
            return self._cursor.executemany(sql, rows).rowcount
        changed, end = 0, len(rows) // _BLOCK * _BLOCK
        for start in range(0, end, _BLOCK):
            values = list(chain.from_iterable(rows[start : start + _BLOCK]))
            changed += self._cursor.execute(block, values).rowcount
        if end < len(rows):
            changed += self._cursor.executemany(sql, rows[end:]).rowcount
        return changed


class SqliteDatabase:
    """A file with the tables of the store."""

    def __init__(
        self, path: Path, *, durability: str, wait_s: float, cache_bytes: int = CACHE_BYTES
    ) -> None:
        self.name = str(path)
        self.is_cheap_to_commit = durability == "process"
        self._path = path
        self._synchronous = "NORMAL" if durability == "process" else "FULL"
        self._wait_s = wait_s
        self._cache_kib = max(1, cache_bytes // 1024)
        self._lock = threading.Lock()
        # Held during a checkpoint of the log; acquired before the other lock.
        self._checkpoint_lock = threading.Lock()
        self._idle: list[sqlite3.Connection] = []
        self._data_version: int | None = None
        self._checkpointed_changes = 0
        self._checkpointer: sqlite3.Connection | None = None
        self._lock_file: int | None = None
        self._search: SqliteSearch | None = None
        self._vectors: VectorIndex | None = None
        self._read_only: ReadOnlyFile | None = None
        check_file(path, newest_schema(DIALECT))
        with translate_errors(self.name):
            self._create_file()
            if is_read_only(path):
                self._read_only = ReadOnlyFile(path, newest_version=newest_schema(DIALECT))
                if self._read_only.is_copy:
                    _migrate_copy(self._read_only.path)
            self._writer = self._connect()
        self._transaction = SqliteTransaction(self._writer)
        # One cursor for BEGIN and COMMIT; `Connection.execute` would create one each time.
        self._execute = self._writer.cursor().execute

    def _create_file(self) -> None:
        """Create a missing file and write our application id, before WAL mode is on."""
        try:
            make_private_directory(self._path.parent)
            if not self._path.exists():
                make_private_file(self._path)
        except OSError as error:
            text = f"{self.name}: cannot create the file ({error.strerror})"
            hint = "choose a writable directory with --store or METIS_STORE"
            raise StoreUnavailableError(text, hint=hint) from None
        # Only a new file needs the id: `check_file` refused those of other programs.
        if self._path.stat().st_size:
            return
        with closing(sqlite3.connect(self._path, isolation_level=None)) as connection:
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")

    def _connect(self) -> sqlite3.Connection:
        if self._read_only is not None:
            return self._read_only.connect(timeout=self._wait_s, cached_statements=_STATEMENTS)
        connection = sqlite3.connect(
            self._path,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=_STATEMENTS,
            timeout=self._wait_s,
        )
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            # `maintain` checkpoints in the writer thread, and `_begin` waits for other processes,
            # so that SQLite does neither during an append.
            for pragma in (
                f"synchronous = {self._synchronous}",
                "foreign_keys = ON",
                "temp_store = MEMORY",
                "wal_autocheckpoint = 0",
                "busy_timeout = 0",
                f"cache_size = {-self._cache_kib}",
            ):
                connection.execute(f"PRAGMA {pragma}")
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def write(self, work: Callable[[SqliteTransaction], T]) -> T:
        """Call a function in a write transaction; it is durable when this returns."""
        with self._lock:
            try:
                self._begin()
                return self._finish(work)
            except sqlite3.Error as error:
                raise store_error(error, self.name) from error

    def try_write(self, work: Callable[[SqliteTransaction, A], T], argument: A) -> T | None:
        """Write like `write`, but return None at once if another process is writing."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            if self._try_begin() is not None:
                return None
            try:
                value = work(self._transaction, argument)
                self._execute("COMMIT")
            except BaseException:
                self._roll_back()
                raise
        except sqlite3.Error as error:
            raise store_error(error, self.name) from error
        else:
            return value
        finally:
            self._lock.release()

    def _try_begin(self) -> sqlite3.Error | None:
        try:
            self._execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
            return error
        return None

    def _begin(self) -> None:
        """Begin a write transaction, and wait while another process writes."""
        deadline = time.monotonic() + self._wait_s
        while (busy := self._try_begin()) is not None:
            if time.monotonic() > deadline:
                raise busy
            # Random pauses, so that two waiting processes do not retry at the same times.
            time.sleep(_RETRY_PAUSE_S * (0.5 + random.random()))  # noqa: S311 - no secret

    def _finish(self, work: Callable[[SqliteTransaction], T]) -> T:
        """Call a function in the open transaction, and commit."""
        try:
            value = work(self._transaction)
            self._writer.execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise
        return value

    def _roll_back(self) -> None:
        self._data_version = None
        if self._writer.in_transaction:
            self._writer.execute("ROLLBACK")

    @contextmanager
    def read(self) -> Generator[SqliteTransaction]:
        """Open a read transaction that sees one point in time; for any thread."""
        with translate_errors(self.name):
            try:
                connection = self._idle.pop()
            except IndexError:
                connection = self._connect()
            try:
                connection.execute("BEGIN")
                yield SqliteTransaction(connection)
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                self._idle.append(connection)

    def has_changed(self, transaction: Transaction) -> bool:  # noqa: ARG002 - there is one writer
        """Return whether another process may have written since our last write."""
        last_version = self._data_version
        # SQLite increments this number when another connection commits.
        (self._data_version,) = self._execute("PRAGMA data_version").fetchone()
        return self._data_version != last_version

    def lock_sessions(self, transaction: Transaction, ids: Sequence[str]) -> None:
        """Do nothing: only one transaction writes at a time."""

    def is_conflict(self, error: Exception) -> bool:
        """Return whether an error means that a row exists already or is missing."""
        return isinstance(error.__cause__ or error, sqlite3.IntegrityError)

    def claim(self, *, wait: bool) -> bool:  # noqa: ARG002 - the kernel knows at once
        """Return whether no other process has this file open; if so, none can until `share`."""
        if self._read_only is not None:
            return False  # a read-only file is not recovered, so it needs no exclusive access
        try:
            if self._lock_file is None:
                self._lock_file = os.open(f"{self.name}-lock", os.O_CREAT | os.O_RDWR, 0o600)
        except OSError as error:
            text = f"{self.name}: read-only ({error.strerror})"
            hint = "make the file and its directory writable, or choose another file with --store"
            raise StoreReadOnlyError(text, hint=hint) from None
        try:
            # The kernel releases the lock when a process ends, so a crash never blocks the next
            # start.
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(self._lock_file, fcntl.LOCK_SH)
            return False
        return True

    def share(self, *, was_alone: bool) -> None:  # noqa: ARG002 - the same either way
        """Allow other processes to open the file."""
        if self._lock_file is not None:
            fcntl.flock(self._lock_file, fcntl.LOCK_SH)

    def version(self) -> int:
        """Return the version of the tables."""
        with translate_errors(self.name):
            return self._writer.execute("PRAGMA user_version").fetchone()[0]

    def migrate(self) -> int:
        """Migrate the tables to the newest version and return it."""
        newest = newest_schema(DIALECT)
        check_version(self._path, self.version(), newest)
        if self.version() == newest:
            return newest

        def write(transaction: SqliteTransaction) -> None:
            # Read again inside the transaction: another process may have migrated meanwhile.
            version = transaction.run("PRAGMA user_version")[0][0]
            check_version(self._path, version, newest)
            for number, text in schema_steps(DIALECT):
                if number > version:
                    for statement in schema_statements(text):
                        transaction.run(statement)
                    transaction.run(f"PRAGMA user_version = {number}")

        self.write(write)
        return newest

    def maintain(self) -> None:
        """Checkpoint the write-ahead log once it is long.

        The first checkpoint copies most of the log into the file while others write. The second one
        copies the remaining pages, so that the next writer restarts the log.
        """
        changes = self._writer.total_changes
        is_long = self._log_size() > _MAX_LOG_BYTES
        if changes - self._checkpointed_changes < _CHECKPOINT_CHANGES and not is_long:
            return
        self._checkpointed_changes = changes
        with self._checkpoint_lock, translate_errors(self.name):
            if self._checkpointer is None:
                self._checkpointer = self._connect()
            self._checkpointer.execute("PRAGMA wal_checkpoint(PASSIVE)")
            with self._lock:
                mode = "TRUNCATE" if is_long else "PASSIVE"
                self._writer.execute(f"PRAGMA wal_checkpoint({mode})")

    def _log_size(self) -> int:
        with suppress(OSError):
            return Path(f"{self.name}-wal").stat().st_size
        return 0

    def check(self) -> list[str]:
        """Return the faults of the file itself."""
        try:
            with self.read() as transaction:
                problems = [
                    row[0] for row in transaction.run("PRAGMA integrity_check") if row[0] != "ok"
                ]
                broken = transaction.run("PRAGMA foreign_key_check")
        except StoreError as error:
            return [str(error)]
        return problems + [f"{row[0]}: a row refers to a missing {row[2]}" for row in broken]

    def backup(self, target: Path) -> None:
        """Copy all tables to a file, while other processes read and write."""
        with (
            create_private_file(target),
            translate_errors(self.name),
            closing(sqlite3.connect(target)) as copy,
            closing(self._connect()) as source,
        ):
            source.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")

    def erase(self, session_ids: Sequence[str]) -> None:
        """Delete sessions with all their rows, also from the search indexes."""
        index, vectors = self.index(), self._stored_vectors()

        def remove(_: Transaction) -> None:
            newest = self._erase(session_ids)
            index.remove_sessions(session_ids, newest)
            if vectors is not None:
                vectors.remove_sessions(session_ids, newest)

        with self._lock, translate_errors(self.name):
            # Foreign keys are switched off, because SQLite would scan all tool calls for each
            # message.
            self._writer.execute("PRAGMA foreign_keys = OFF")
            try:
                self._begin()
                self._finish(remove)
            finally:
                self._data_version = None
                self._writer.execute("PRAGMA foreign_keys = ON")

    def _erase(self, session_ids: Sequence[str]) -> int:
        execute = self._writer.execute
        for session_id in session_ids:
            for table in SESSION_TABLES:
                execute(f"DELETE FROM {table} WHERE session_id = ?", (session_id,))  # noqa: S608 - a list of ours
            execute("DELETE FROM sessions WHERE id = ?", (session_id,))
        return execute("SELECT max(rowid) FROM messages").fetchone()[0] or 0

    def purge(self) -> None:
        """Rewrite the file without deleted rows, and empty the log."""
        index, vectors = self.index(), self._stored_vectors()
        with self._checkpoint_lock, self._lock, translate_errors(self.name):
            self._writer.execute("VACUUM")
            self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        index.clear()
        if vectors is not None:
            vectors.purge()  # not cleared, because computing them again costs money

    def index(self) -> SqliteSearch:
        """Return the search index, a separate file."""
        if self._search is None:
            # For a read-only store a temporary index is built, which SQLite deletes.
            path = None if self._read_only is not None else Path(f"{self.name}-search")
            self._search = SqliteSearch(path, self.read)
        return self._search

    def vectors(self) -> "VectorIndex":
        """Return the index of vectors, a separate file.

        Raises:
            StoreReadOnlyError: the file cannot be written.
        """
        if self._vectors is None:
            if self._read_only is not None:
                text = f"{self.name}: read-only, so it cannot have embeddings"
                hint = "make the file and its directory writable, or copy the store first"
                raise StoreReadOnlyError(text, hint=hint)
            # Imported here, because only the commands on embeddings need it.
            from metis.store.vectors import VectorIndex  # noqa: PLC0415

            self._vectors = VectorIndex(Path(f"{self.name}-vectors"), self.read)
        return self._vectors

    def _stored_vectors(self) -> "VectorIndex | None":
        """Return the index of vectors if there is one."""
        return self.vectors() if Path(f"{self.name}-vectors").exists() else None

    def close(self) -> None:
        """Checkpoint the log and close every connection."""
        for index in (self._search, self._vectors):
            if index is not None:
                index.close()
        with self._checkpoint_lock, self._lock:
            with suppress(sqlite3.Error):
                self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            for connection in (*self._idle, self._checkpointer, self._writer):
                if connection is not None:
                    connection.close()
        if self._read_only is not None:
            self._read_only.close()
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None


def _migrate_copy(path: Path) -> None:
    """Migrate a private copy; closing it moves its log into the file."""
    database = SqliteDatabase(path, durability="process", wait_s=0)
    try:
        database.migrate()
    finally:
        database.close()
