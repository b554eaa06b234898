"""The connection of a store: opening, recovery after a crash, writing, reading and closing.

Entries that cannot be stored while the database is unreachable are spooled in local files.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeVar
from urllib.parse import unquote, urlsplit

from metis.canonical.errors import (
    MetisError,
    StoreError,
    StoreFullError,
    StoreLockedError,
    StoreReadOnlyError,
    StoreSpooledError,
    StoreUnavailableError,
)
from metis.canonical.ids import new_ulid
from metis.store import maintenance
from metis.store.database import Database, Transaction
from metis.store.entries import AnyEntry, RecoveryEntry
from metis.store.private_files import home_directory
from metis.store.records import to_microseconds
from metis.store.spool import RestoreJob, Spool
from metis.store.sqlite import CACHE_BYTES, SqliteDatabase
from metis.store.tables import UnmatchedResultError
from metis.store.wire_bodies import BodyPacker
from metis.store.writer import FunctionJob, WriteJob, Writer

if TYPE_CHECKING:
    from metis.store.vectors import VectorIndex

T = TypeVar("T")
log = logging.getLogger("metis.store")

Durability = Literal["process", "power"]
"""What an acknowledged write survives: a crash of the process, or also a power failure."""

WAIT_S = 30.0
"""How long to wait for another process that is writing."""
# Each thread may open a connection, and reads of one process rarely overlap.
_READER_THREADS = 4


def utc_now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)


class StoreConnection:
    """The database of a store, the threads that use it, and the spool beside it."""

    max_tracked_sessions: ClassVar[int] = 10_000
    """How many written sessions are remembered, to check on close that their calls are complete."""

    def __init__(
        self,
        database: Database,
        *,
        spool: Spool | None = None,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self._database = database
        self._spool = spool
        self._writer = Writer(database)
        self._body_packer = BodyPacker()
        self._readers = ThreadPoolExecutor(_READER_THREADS, thread_name_prefix="metis-store-read")
        self._now = now
        self._id = new_ulid()
        self._has_written = False
        self._is_closed = False
        self._written_sessions: set[str] = set()
        self.recoveries: list[RecoveryEntry] = []
        """The entries of the recovery at the start, one per session that a crash left open."""

    @property
    def name(self) -> str:
        """The location of the store for messages, without a password."""
        return self._database.name

    def start(self, *, recover: bool) -> None:
        """Migrate the tables, and recover from a crash if no other process has them open."""
        # While another process has the store open, recovery would abort its running calls.
        is_alone = self._database.claim(wait=recover)
        try:
            self._database.migrate()
            self._restore_at_start()
            if recover and is_alone and self._was_not_closed():
                self.recoveries = self._writer.run(
                    FunctionJob(lambda tables: maintenance.Recovery(tables, self._now).run())
                )
        finally:
            self._database.share(was_alone=is_alone)

    def _restore_at_start(self) -> None:
        """Store the spooled entries of earlier processes.

        This precedes the recovery, which would add aborted results to calls whose results are
        spooled.
        """
        for path in self._spool.files() if self._spool is not None else ():
            try:
                self._restore(path)
            except (StoreError, OSError) as error:
                log.warning("%s is not stored yet: %s", path, error)
                return

    def _restore(self, path: Path) -> None:
        spool = self._spool
        assert spool is not None  # noqa: S101 - the caller has its files
        entries = spool.read(path)
        job = RestoreJob(entries)
        try:
            if entries:
                self._writer.run(job)
        except (StoreUnavailableError, StoreReadOnlyError, StoreLockedError, StoreFullError):
            raise  # the file stays, for the next attempt
        except MetisError as error:
            spool.refuse(path, error)
        except UnmatchedResultError:
            with self._database.read() as transaction:
                error = job.explain(transaction)
            spool.refuse(path, error or StoreError("a result has no pending call"))
        else:
            spool.remove(path)

    async def restore_spooled(self) -> None:
        """Store the entries that were spooled while the database was unreachable.

        Raises:
            StoreError: the database is still unreachable.
        """
        spool = self._spool
        if spool is not None:
            for path in await self._in_thread(spool.files):
                # In a thread: `_restore` waits until the writer thread releases the connection.
                await self._in_thread(partial(self._restore, path))

    async def spool(self, entries: Sequence[AnyEntry], error: StoreError) -> StoreError:
        """Save entries that could not be stored in a local file.

        Return a StoreSpooledError with the file, or the given error if nothing was saved.
        """
        spool = self._spool
        if spool is None or not entries:
            return error
        try:
            path = await self._in_thread(partial(spool.add, entries))
        except (OSError, StoreError) as problem:
            log.warning("entries that could not be stored were not spooled either: %s", problem)
            return error
        return StoreSpooledError(error, str(path))

    def _was_not_closed(self) -> bool:
        with self._database.read() as transaction:
            return bool(transaction.run("SELECT 1 FROM writers LIMIT 1"))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Write what is queued and close every connection; a second call does nothing."""
        if not self._is_closed:
            self._is_closed = True
            await asyncio.get_running_loop().run_in_executor(self._readers, self._close)
            self._readers.shutdown()

    def _close(self) -> None:
        try:
            self._writer.close()
            if self._has_written and not self._has_open_work():
                sql = "DELETE FROM writers WHERE id = ?"
                self._writer.run(FunctionJob(lambda tables: tables.change(sql, (self._id,))))
        except StoreError as error:
            # Acknowledged writes are durable; the next process that opens the store recovers.
            log.warning("%s was not closed in order: %s", self.name, error)
        finally:
            self._database.close()

    def _has_open_work(self) -> bool:
        if len(self._written_sessions) > self.max_tracked_sessions:
            return True  # too many to check; the next process that opens the store checks all
        calls = maintenance.PENDING_CALL
        with self._database.read() as transaction:
            return bool(transaction.run("SELECT 1 FROM open_messages LIMIT 1")) or any(
                transaction.run(calls, (session_id,)) for session_id in self._written_sessions
            )

    # Writing

    async def _write(self, job: WriteJob) -> Any:
        if not self._has_written:
            await self._register_writer()
        self._track(*job.session_ids)
        return await self._writer.submit(job)

    async def _register_writer(self) -> None:
        """Add a row for this process to `writers`; `close` removes it, and a crash does not."""
        sql = "INSERT INTO writers (id, created_at) VALUES (?, ?) ON CONFLICT DO NOTHING"
        values = (self._id, to_microseconds(self._now()))
        await self._writer.submit(FunctionJob(lambda tables: tables.change(sql, values)))
        self._has_written = True

    def _track(self, *session_ids: str) -> None:
        if len(self._written_sessions) <= self.max_tracked_sessions:
            self._written_sessions.update(session_ids)

    # Threads

    async def read(self, query: Callable[[Transaction], T]) -> T:
        """Call a function with a read-only transaction, which sees one point in time."""

        def run() -> T:
            with self._database.read() as transaction:
                return query(transaction)

        def run_again() -> T:
            try:
                return run()
            # A read changes nothing, so one that lost its connection can be repeated.
            except StoreUnavailableError:
                return run()

        return await self._in_thread(run_again)

    async def vectors(self) -> "VectorIndex":
        """Return the index of vectors of messages, by embedding model; its methods block.

        Raises:
            StoreError: this is not a SQLite store, or it cannot be written.
        """
        database = self._database
        if not isinstance(database, SqliteDatabase):
            hint = "name one with --store, or use the vectors of PostgreSQL itself"
            raise StoreError("embeddings of messages need a SQLite store", hint=hint)
        return await self._in_thread(database.vectors)

    async def _in_thread(self, function: Callable[[], T]) -> T:
        if self._is_closed:
            raise StoreError("the store was closed")
        return await asyncio.get_running_loop().run_in_executor(self._readers, function)


def open_database(
    url: str, *, durability: Durability, wait_s: float, cache_bytes: int = CACHE_BYTES
) -> Database:
    """Open the database at a URL; `cache_bytes` is the page cache of a SQLite connection.

    Raises:
        StoreUnavailableError: the URL has another scheme, or the database cannot be opened.
    """
    scheme = urlsplit(url).scheme
    if scheme == "sqlite":
        path = sqlite_path(url)
        return SqliteDatabase(path, durability=durability, wait_s=wait_s, cache_bytes=cache_bytes)
    if scheme in ("postgresql", "postgres"):
        from metis.store.postgres import PostgresDatabase  # noqa: PLC0415 - an optional driver

        return PostgresDatabase(url, durability=durability, wait_s=wait_s)
    hint = "sqlite:///path/to/file.db or postgresql://host/name"
    raise StoreUnavailableError(f"unknown kind of store: {scheme or url!r}", hint=hint)


def sqlite_path(url: str) -> Path:
    """Return the file of a SQLite URL: three slashes before a relative path, four before `/`."""
    path = unquote(urlsplit(url).path)[1:]
    if not path.strip("/") or urlsplit(url).netloc:
        raise StoreUnavailableError(f"{url!r} names no file", hint="sqlite:///path/to/file.db")
    return Path(path)


def default_url(environment: Mapping[str, str]) -> str:
    """Return the URL of the user's store: `metis.db` under `$METIS_HOME`."""
    return f"sqlite:///{home_directory(environment) / 'metis.db'}"
