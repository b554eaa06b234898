"""Writer: group commit.

Everything that is written goes through here; concurrent jobs share a commit.

A caller queues its job and yields once, so that all other ready tasks can queue theirs; the first
to resume commits the batch. After a batch of one, a caller yields only now and then. A small
commit that does not wait for the disk takes less time than waking another thread, so it runs in
the caller's thread. One writer thread does everything else: large batches, commits that wait for
the disk or for another process, and upkeep. No job overtakes those handed to the thread, and a
caller gets its result only after the commit.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Generator, Sequence
from queue import Empty, SimpleQueue
from types import coroutine
from typing import Any

from metis.canonical.errors import MetisError, StoreClosedError
from metis.store.database import Database, Transaction
from metis.store.tables import Tables, UnmatchedResultError


class WriteJob:
    """Something to write; it may be run again, in a transaction of its own, if others spoil it."""

    session_ids: Sequence[str] = ()
    """The sessions that it is known to write to."""
    size: int = 0
    """About how many bytes it writes."""
    future: asyncio.Future[None] | None = None
    """What its caller waits for, if another thread does it."""
    result: Any = None
    error: Exception | None = None
    is_done: bool = False

    def write(self, tables: Tables, /) -> Any:
        """Write it, and give what the caller waits for."""
        raise NotImplementedError

    def explain(self, transaction: Transaction, /) -> MetisError | None:  # noqa: ARG002 - nothing to say
        """What is wrong with it, if it did not fit to what is there."""
        return None

    def finish(self, value: Any, error: Exception | None) -> None:
        """Note what became of it."""
        self.result, self.error, self.is_done = value, error, True


class FunctionJob(WriteJob):
    """Work that is one function."""

    def __init__(self, write: Callable[[Tables], Any]) -> None:
        self._write = write

    def write(self, tables: Tables, /) -> Any:
        """Call it."""
        return self._write(tables)


_MOST = 512
_SMALL_JOBS = 64
_SMALL_BYTES = 128 * 1024
_UPKEEP_EVERY = 128
_HURRY = 32


@coroutine
def _turn() -> Generator[None, None, None]:
    """Let every task that is ready go first."""
    yield


class Writer:
    """Commits jobs, alone or together; for the tasks of one event loop."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._is_cheap = database.is_cheap_to_commit
        self._tables = Tables(database)
        self._pending: list[WriteJob] = []
        self._handed: SimpleQueue[list[WriteJob] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._commits = 0
        self._is_alone = False
        self._hurried = 0
        self._away = 0
        """How many jobs the thread was given and has not answered."""

    async def submit(self, job: WriteJob) -> Any:
        """Have something written; the answer comes when it is durable."""
        if self._is_closed:
            raise StoreClosedError("the store was closed")
        if not (self._is_alone and self._is_done_at_once(job)):
            self._pending.append(job)
            try:
                await _turn()
            except asyncio.CancelledError:
                if job in self._pending:
                    self._pending.remove(job)
                raise
            if job.future is None and not job.is_done:
                self._commit_pending()
            if job.future is not None:  # the thread marks a job as done before it is durable
                await job.future
        if job.error is not None:
            raise job.error
        return job.result

    def _is_done_at_once(self, job: WriteJob) -> bool:
        """Whether a job was committed without a turn for others, since nobody else has any."""
        if self._hurried >= _HURRY or self._pending:
            self._hurried = 0
            return False
        self._hurried += 1
        is_small = self._is_cheap and job.size <= _SMALL_BYTES and not self._away
        return is_small and self._commit_here((job,))

    def _is_small(self, batch: Sequence[WriteJob]) -> bool:
        return (
            self._is_cheap
            and not self._away
            and len(batch) <= _SMALL_JOBS
            and sum([job.size for job in batch]) <= _SMALL_BYTES
        )

    def run(self, job: WriteJob) -> Any:
        """Have something written at once, by this thread."""
        self._database.write(lambda transaction: self._apply(transaction, (job,)))
        return job.result

    def close(self) -> None:
        """Write what waits, and end."""
        self._is_closed = True
        if self._thread is not None:
            self._handed.put(None)
            self._thread.join()
        if self._pending:
            self._commit(self._pending)
            self._pending = []

    def _commit_pending(self) -> None:
        """Commit what is there: here if that is quick, else in the thread."""
        batch, self._pending = self._pending, []
        self._is_alone = len(batch) == 1
        if self._is_small(batch) and self._commit_here(batch):
            return
        loop = asyncio.get_running_loop()
        for job in batch:
            job.future = loop.create_future()
        self._away += len(batch)
        self._hand_over(batch)

    def _commit_here(self, batch: Sequence[WriteJob]) -> bool:
        """Commit in the caller's thread; False if somebody else is writing."""
        try:
            done = self._database.try_write(self._apply, batch)
        except Exception as error:  # noqa: BLE001 - every caller gets it
            self._one_by_one(batch, error)
        else:
            if done is None:
                return False
        self._commits += 1
        if self._commits >= _UPKEEP_EVERY:
            self._commits = 0
            self._hand_over([])
        return True

    def _hand_over(self, batch: list[WriteJob]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="metis-store", daemon=True)
            self._thread.start()
        self._handed.put(batch)

    def _serve(self) -> None:
        while (batch := self._handed.get()) is not None:
            is_last = self._gather(batch)
            if batch:
                self._commit(batch)
                self._answer(batch)
            with contextlib.suppress(MetisError):  # what fails for good fails a commit, too
                self._database.maintain()
            if is_last:
                return

    def _answer(self, batch: list[WriteJob]) -> None:
        """Wake those who wait for jobs that the thread did, with one word to their loop."""
        loop = next((job.future.get_loop() for job in batch if job.future is not None), None)
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._wake, batch)

    def _wake(self, batch: list[WriteJob]) -> None:
        self._away -= len(batch)
        for job in batch:
            if job.future is not None and not job.future.done():
                job.future.set_result(None)

    def _gather(self, batch: list[WriteJob]) -> bool:
        """Add what came in meanwhile; True if that was the last."""
        with contextlib.suppress(Empty):
            while len(batch) < _MOST:
                more = self._handed.get_nowait()
                if more is None:
                    return True
                batch += more
        return False

    def _commit(self, batch: list[WriteJob]) -> None:
        try:
            self._database.write(lambda transaction: self._apply(transaction, batch))
        except Exception as error:  # noqa: BLE001 - every caller gets it
            self._one_by_one(batch, error)

    def _apply(self, transaction: Transaction, batch: Sequence[WriteJob]) -> bool:
        """Run every job; one that fails before it wrote anything fails alone."""
        tables = self._tables
        try:
            tables.begin(transaction, batch)
            messages, journal = tables.messages, tables.journal
            for job in batch:
                rows = len(messages) + len(journal)
                try:
                    job.result = job.write(tables)
                except MetisError as error:
                    if len(batch) == 1 or len(messages) + len(journal) != rows:
                        raise
                    job.error = error
                job.is_done = True
            tables.flush()
        except BaseException:
            tables.reset()
            raise
        return True

    def _one_by_one(self, batch: Sequence[WriteJob], error: Exception) -> None:
        """One job spoiled the batch: give each a transaction of its own."""
        if len(batch) == 1:
            batch[0].finish(None, self._explained(batch[0], error))
            return
        for job in batch:
            try:
                job.finish(None, None)
                self.run(job)
            except Exception as own:  # noqa: BLE001 - its caller gets it
                job.finish(None, self._explained(job, own))

    def _explained(self, job: WriteJob, error: Exception) -> Exception:
        if not (isinstance(error, UnmatchedResultError) or self._database.is_conflict(error)):
            return error
        try:
            with self._database.read() as transaction:
                return job.explain(transaction) or error
        except MetisError:
            return error
