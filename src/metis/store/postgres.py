"""PostgreSQL: the store for many machines.

One connection writes, others read. An acknowledged write is committed at the server; durability
"process" uses the server's settings, "power" turns `synchronous_commit` on.
"""

import select
import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from metis.canonical.errors import (
    ForeignStoreError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreLockedError,
    StoreReadOnlyError,
    StoreUnavailableError,
    StoreVersionError,
)
from metis.store.database import (
    SESSION_TABLES,
    Rows,
    TextOfRow,
    Transaction,
    newest_schema,
    schema_statements,
    schema_steps,
)
from metis.store.sqlite import SqliteDatabase
from metis.store.sqlite_file import copy_tables, create_private_file

try:
    import psycopg
    from psycopg import Connection, sql
    from psycopg.conninfo import conninfo_to_dict, make_conninfo
    from psycopg.pq import TransactionStatus
    from psycopg.rows import TupleRow  # noqa: TC002 - missing without the driver
except ImportError as error:
    raise StoreUnavailableError(
        f"the driver for PostgreSQL is missing ({error})", hint="pip install 'metis-llm[postgres]'"
    ) from None

A = TypeVar("A")
T = TypeVar("T")
DIALECT = "postgres"
# Keys of advisory locks, which are shared by all programs of a database: `meti` and `mets`.
_MIGRATION_LOCK = 0x6D657469
_OPEN_LOCK = 0x6D657473
_VERSION_TABLE = "metis_schema"
_READ_ONLY = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"
# How long a restarting server may take, before the error is raised.
_RESTART_S = 5.0
# A firewall may drop an idle connection silently. Without these settings the next query would wait
# for the keepalive timeout of the kernel, which is two hours.
_CONNECTION = {
    "application_name": "metis",
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
# Rows of one index transaction, so that other writers do not wait long for its locks.
_BATCH = 500
# Ranking all matches of a common word would take longer as the store grows.
_RANKED = 500
_ANALYZE_AFTER = 10_000
# Rows per round trip to the server.
_FETCH = 2000
_HEADLINE = "StartSel=[, StopSel=], MaxWords=14, MinWords=5"
_CLAIM_WAIT_S = 0.5
_PAUSE_S = 0.02
_PENDING = (
    "SELECT m.id, m.session_id, m.role, m.content_json, m.metadata_json, m.created_at, "
    "m.schema_version FROM search_pending p JOIN messages m ON m.id = p.message_id "
    "WHERE p.message_id > ? ORDER BY p.message_id LIMIT ? FOR UPDATE OF p"
)
_INDEX = (
    "INSERT INTO search_index (message_id, session_id, body) VALUES (?, ?, ?) "
    "ON CONFLICT (message_id) DO UPDATE SET body = excluded.body"
)

_KINDS: dict[str, tuple[type[StoreError], str]] = {
    "53100": (
        StoreFullError,
        "free disk space at the server and try again; nothing is lost",
    ),
    "25006": (StoreReadOnlyError, "connect to a writable server"),
    "42501": (StoreReadOnlyError, "grant the user write access"),
    "55P03": (StoreLockedError, "stop the other program or try again"),
    "57014": (StoreLockedError, "stop the other program or try again"),
    "XX001": (StoreCorruptError, "restore a backup"),
    "XX002": (StoreCorruptError, "rebuild the index, or restore a backup"),
}


@cache
def _psycopg_placeholders(statement: str) -> str:
    return statement.replace("%", "%%").replace("?", "%s")


def store_error(error: psycopg.Error, name: str) -> StoreError:
    """Return our error for one of PostgreSQL, with a hint what to do."""
    text = str(error).strip().partition("\n")[0]
    state = error.sqlstate or ""
    if state in _KINDS:
        kind, hint = _KINDS[state]
        return kind(f"{name}: {text}", hint=hint)
    if isinstance(error, psycopg.OperationalError):
        hint = "check that the server runs and can be reached"
        return StoreUnavailableError(f"{name}: {text}", hint=hint)
    return StoreError(f"{name}: {text}")


@contextmanager
def translate_errors(name: str) -> Generator[None]:
    """Raise the errors of PostgreSQL as ours."""
    try:
        yield
    except psycopg.Error as error:
        raise store_error(error, name) from error


def _is_readable(connection: "Connection[TupleRow]") -> bool:
    """Return whether an idle connection has unread bytes, or was closed by the server."""
    return bool(select.select([connection.fileno()], [], [], 0)[0])


class PostgresTransaction:
    """A connection inside a transaction."""

    binary_text = "{}"

    def __init__(self, connection: "Connection[TupleRow]") -> None:
        self._connection = connection

    def run(self, sql: str, values: Sequence[Any] = ()) -> Rows:
        """Run one statement and return its rows."""
        # The driver types SQL as a literal; ours is built from constants.
        cursor = self._connection.execute(_psycopg_placeholders(sql), values)  # pyright: ignore[reportArgumentType] - our own SQL
        return cursor.fetchall() if cursor.description else []

    def stream(self, sql: str, values: Sequence[Any] = ()) -> Iterable[Any]:
        """Run one query and return its rows without loading all of them."""
        # A named cursor is kept at the server; for another one the driver would load every row.
        with self._connection.cursor(name="rows") as cursor:
            cursor.execute(_psycopg_placeholders(sql), values)  # pyright: ignore[reportArgumentType] - our own SQL
            while rows := cursor.fetchmany(_FETCH):
                yield from rows

    def change(self, sql: str, values: Sequence[Any] = ()) -> int:
        """Run one statement and return the number of changed rows."""
        return self._connection.execute(_psycopg_placeholders(sql), values).rowcount  # pyright: ignore[reportArgumentType] - our own SQL

    def change_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> int:
        """Run one statement for each row of values and return the number of changed rows."""
        if len(rows) == 1:
            return self.change(sql, rows[0])
        with self._connection.cursor() as cursor:
            cursor.executemany(_psycopg_placeholders(sql), rows)  # pyright: ignore[reportArgumentType] - our own SQL
            return cursor.rowcount


class PostgresDatabase:
    """A database at a server with the tables of the store."""

    is_cheap_to_commit = False

    def __init__(self, url: str, *, durability: str, wait_s: float) -> None:
        parts = urlsplit(url)
        host = parts.hostname or "local"
        self.name = f"postgresql://{host}{parts.path}"
        self._url = url
        self._synchronous = "on" if durability == "power" else None
        self._wait_ms = int(wait_s * 1000)
        self._lock = threading.Lock()
        self._idle: list[Connection[TupleRow]] = []
        self._claim: Connection[TupleRow] | None = None
        self._search: PostgresSearch | None = None
        self._was_connected = False
        with translate_errors(self.name):
            self._writer = self._connect()
        self._was_connected = True

    def _connect(self, *, autocommit: bool = False) -> "Connection[TupleRow]":
        # Parameters of the URL override the defaults.
        parameters = make_conninfo("", **{**_CONNECTION, **conninfo_to_dict(self._url)})
        connection = psycopg.connect(parameters, autocommit=True)
        connection.execute(sql.SQL("SET lock_timeout = {}").format(self._wait_ms))
        if self._synchronous is not None:
            connection.execute("SET synchronous_commit = on")
        connection.autocommit = autocommit
        return connection

    def _reconnect(self) -> "Connection[TupleRow]":
        """Connect to a server that was reachable before, with retries: it may be restarting."""
        deadline = time.monotonic() + min(self._wait_ms / 1000, _RESTART_S)
        while True:
            try:
                return self._connect()
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(_PAUSE_S)

    def write(self, work: Callable[[PostgresTransaction], T]) -> T:
        """Call a function in a write transaction; it is durable when this returns."""
        with self._lock, translate_errors(self.name):
            is_committing = False

            def run() -> T:
                nonlocal is_committing
                with self._writer.transaction():
                    value = work(PostgresTransaction(self._writer))
                    is_committing = True
                return value

            if not self._writer.closed:
                try:
                    return run()
                except psycopg.OperationalError:
                    # An uncommitted transaction ended with its connection, so it can be repeated.
                    # If the connection was lost during the commit, the server may have committed;
                    # only the caller can check that.
                    if is_committing or not self._writer.closed:
                        raise
            self._writer = self._reconnect()
            self._hold_shared_lock()
            return run()

    def try_write(self, work: Callable[[PostgresTransaction, A], T], argument: A) -> T | None:  # noqa: ARG002 - of the protocol
        """Do nothing: a round trip to a server would block the event loop."""
        return None

    @contextmanager
    def read(self) -> Generator[PostgresTransaction]:
        """Open a read transaction that sees one point in time; for any thread."""
        with translate_errors(self.name):
            connection = self._reading_connection()
            try:
                with connection.transaction():
                    # Several queries of one read must see the same point in time.
                    connection.execute(_READ_ONLY)
                    yield PostgresTransaction(connection)
            finally:
                if not connection.closed:
                    self._idle.append(connection)

    def _reading_connection(self) -> "Connection[TupleRow]":
        """Return a working connection.

        After a restart of the server every idle connection is closed, which only its use shows.
        """
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return self._reconnect() if self._was_connected else self._connect()
            try:
                if connection.pgconn.transaction_status == TransactionStatus.IDLE and (
                    not _is_readable(connection)
                ):
                    return connection
                # Unexpected bytes are probably the notice that the server shuts down.
                with connection.transaction():
                    connection.execute("SELECT 1")
            except psycopg.Error:
                connection.close()
            else:
                return connection

    def has_changed(self, transaction: Transaction) -> bool:  # noqa: ARG002 - of the protocol
        """Return True: other machines may have written at any time."""
        return True

    def lock_sessions(self, transaction: Transaction, ids: Sequence[str]) -> None:
        """Block other writers of these sessions until the transaction ends."""
        marks = ", ".join("?" * len(ids))
        sql = f"SELECT id FROM sessions WHERE id IN ({marks}) ORDER BY id FOR NO KEY UPDATE"  # noqa: S608 - marks only
        transaction.run(sql, ids)

    def is_conflict(self, error: Exception) -> bool:
        """Return whether an error means that a row exists already or is missing."""
        return isinstance(error.__cause__ or error, psycopg.IntegrityError)

    def claim(self, *, wait: bool) -> bool:
        """Return whether no other process has this database open; if so, none can until `share`.

        The server may not have noticed yet that another process was killed; `wait` retries for
        half a second.
        """
        with translate_errors(self.name):
            if self._claim is None:
                self._claim = self._connect(autocommit=True)
            # The lock of a killed client is released when the server reads its closed socket.
            deadline = time.monotonic() + (_CLAIM_WAIT_S if wait else 0)
            while not (is_alone := self._try_lock(self._claim)) and time.monotonic() < deadline:
                time.sleep(_PAUSE_S)
            return is_alone

    def _try_lock(self, connection: "Connection[TupleRow]") -> bool:
        row = connection.execute("SELECT pg_try_advisory_lock(%s)", (_OPEN_LOCK,)).fetchone()
        return bool(row and row[0])

    def share(self, *, was_alone: bool) -> None:
        """Allow other processes to open the database.

        The writer connection holds the shared lock, too, so that the lock lasts as long as one of
        our writes may still reach the server.
        """
        with translate_errors(self.name):
            if self._claim is not None:
                self._claim.execute("SELECT pg_advisory_lock_shared(%s)", (_OPEN_LOCK,))
                if was_alone:
                    self._claim.execute("SELECT pg_advisory_unlock(%s)", (_OPEN_LOCK,))
        with self._lock, translate_errors(self.name):
            self._hold_shared_lock()

    def _hold_shared_lock(self) -> None:
        with self._writer.transaction():
            self._writer.execute("SELECT pg_advisory_lock_shared(%s)", (_OPEN_LOCK,))

    def version(self) -> int:
        """Return the version of the tables; 0 if there are none."""
        with self.read() as transaction:
            return self._version(transaction)

    def _version(self, transaction: PostgresTransaction) -> int:
        rows = transaction.run(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = current_schema()"
        )
        tables = {row[0] for row in rows}
        if _VERSION_TABLE not in tables:
            store_tables = {"sessions", "messages", "tool_calls", "journal", "events"}
            if tables & store_tables:
                text = f"{self.name}: the database has tables of another program"
                raise ForeignStoreError(text, hint="choose another database or schema")
            return 0
        version = transaction.run(f"SELECT max(version) FROM {_VERSION_TABLE}")[0][0] or 0  # noqa: S608 - our own name
        if version > newest_schema(DIALECT):
            raise StoreVersionError(
                f"{self.name}: its tables have version {version}, this metis supports "
                f"{newest_schema(DIALECT)}",
                hint="update metis; nothing was changed",
            )
        return version

    def migrate(self) -> int:
        """Migrate the tables to the newest version and return it."""
        newest = newest_schema(DIALECT)
        if self.version() == newest:
            return newest

        def write(transaction: PostgresTransaction) -> None:
            # Two machines that start at the same time must not run the same step twice.
            transaction.run("SELECT pg_advisory_xact_lock(?)", (_MIGRATION_LOCK,))
            version = self._version(transaction)
            transaction.run(
                f"CREATE TABLE IF NOT EXISTS {_VERSION_TABLE} (version INTEGER PRIMARY KEY)"
            )
            for number, text in schema_steps(DIALECT):
                if number > version:
                    for statement in schema_statements(text):
                        transaction.run(statement)
                    transaction.run(f"INSERT INTO {_VERSION_TABLE} VALUES (?)", (number,))  # noqa: S608 - our own name

        self.write(write)
        return newest

    def maintain(self) -> None:
        """Do nothing: the server maintains itself."""

    def check(self) -> list[str]:
        """Return tables that cannot be read; the server itself checks keys and pages."""
        try:
            with self.read() as transaction:
                for table in (*SESSION_TABLES, "sessions", "events", "price_versions"):
                    transaction.run(f"SELECT count(*) FROM {table}")  # noqa: S608 - a list of ours
        except StoreError as error:
            return [str(error)]
        return []

    def backup(self, target: Path) -> None:
        """Copy all tables, as of one point in time, to a new SQLite store."""
        with create_private_file(target):
            copy = SqliteDatabase(target, durability="process", wait_s=0)
            try:
                copy.migrate()
                with self.read() as transaction:
                    copy.write(lambda rows: copy_tables(transaction, rows))
            finally:
                copy.close()

    def erase(self, session_ids: Sequence[str]) -> None:
        """Delete sessions with all their rows, also from the search index."""

        def write(transaction: PostgresTransaction) -> None:
            for session_id in session_ids:
                transaction.run(
                    "DELETE FROM search_pending WHERE message_id IN "
                    "(SELECT id FROM messages WHERE session_id = ?)",
                    (session_id,),
                )
                for table in ("search_index", *SESSION_TABLES):
                    transaction.run(f"DELETE FROM {table} WHERE session_id = ?", (session_id,))  # noqa: S608 - a list of ours
                transaction.run("DELETE FROM sessions WHERE id = ?", (session_id,))

        self.write(write)

    def purge(self) -> None:
        """Rewrite the tables without deleted rows."""
        with translate_errors(self.name), self._connect(autocommit=True) as connection:
            for table in (*SESSION_TABLES, "sessions", "events", "search_index"):
                connection.execute(sql.SQL("VACUUM (FULL) {}").format(sql.Identifier(table)))

    def index(self) -> "PostgresSearch":
        """Return the search index, which has two tables."""
        if self._search is None:
            self._search = PostgresSearch(self)
        return self._search

    def close(self) -> None:
        """Close every connection."""
        with self._lock, suppress(psycopg.Error):
            for connection in (*self._idle, self._writer, self._claim):
                if connection is not None:
                    connection.close()


class PostgresSearch:
    """A full-text index that is updated by a search, so that appends do not wait for it."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database

    def catch_up(self, text_of: TextOfRow) -> int:
        """Index the messages stored since the last call; return their number."""
        indexed, after = 0, ""
        while True:
            count, after = self._database.write(partial(_index_batch, after=after, text_of=text_of))
            indexed += count
            if not after:
                break
        if indexed >= _ANALYZE_AFTER:
            # Without statistics the planner assumes that every word is rare, and sorts all hits.
            self._database.write(lambda transaction: transaction.run("ANALYZE search_index"))
        return indexed

    def find(self, query: str, session_id: str | None, limit: int) -> Rows:
        """Return session, message and snippet of the best of the newest few hundred matches."""
        where, values = "words @@ query", [query]
        if session_id is not None:
            where, values = f"{where} AND session_id = ?", [query, session_id]
        hits = (
            "SELECT session_id, message_id, body, words, query "  # noqa: S608 - no input
            f"FROM search_index, plainto_tsquery('simple', ?) query WHERE {where} "
            "ORDER BY message_id DESC LIMIT ?"
        )
        best = (
            f"SELECT * FROM ({hits}) hits "  # noqa: S608 - no input
            "ORDER BY ts_rank(words, query) DESC, message_id DESC LIMIT ?"
        )
        snippet = "ts_headline('simple', body, query, ?)"
        sql = f"SELECT session_id, message_id, {snippet} FROM ({best}) best"  # noqa: S608 - no input
        with self._database.read() as transaction:
            return transaction.run(sql, (_HEADLINE, *values, max(_RANKED, limit), limit))

    def clear(self) -> None:
        """Empty the index and mark every message as pending."""
        requeue = "INSERT INTO search_pending SELECT id FROM messages ON CONFLICT DO NOTHING"

        def write(transaction: PostgresTransaction) -> None:
            transaction.run("DELETE FROM search_index")
            transaction.run(requeue)

        self._database.write(write)


def _index_batch(
    transaction: PostgresTransaction, *, after: str, text_of: TextOfRow
) -> tuple[int, str]:
    """Index one batch; return its size, and the id after which the next batch begins, or ''."""
    rows = transaction.run(_PENDING, (after, _BATCH))
    texts = [(row[0], row[1], text_of(row)) for row in rows]
    complete = [row for row in texts if row[2] is not None]
    if complete:
        transaction.change_many(_INDEX, complete)
        done = "DELETE FROM search_pending WHERE message_id = ?"
        transaction.change_many(done, [(row[0],) for row in complete])
    return len(complete), rows[-1][0] if len(rows) == _BATCH else ""
