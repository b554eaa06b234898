"""Writer: group commit. All writes use it; concurrent jobs share commits.

A caller queues its job and yields once, so that all other ready tasks can queue theirs; the first
task to resume commits the batch. After a batch of one job, callers yield only after every 32nd
commit. A small commit that does not wait for the disk takes less time than waking another thread,
so it runs in the caller's thread. The writer thread does everything else: large batches, commits
that wait for the disk or for another process, and maintenance. No job overtakes those of the
thread, and a caller gets its result only after the commit.
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

# Bounds how long the first caller of a batch waits for the others.
_MAX_BATCH = 512
# A commit up to these sizes takes less time than waking the writer thread.
_SMALL_JOBS = 64
_SMALL_BYTES = 128 * 1024
# Maintenance may wait for the disk, so it does not follow every commit.
_UPKEEP_COMMITS = 128
# After this number of commits of single jobs a caller yields again, so that other tasks can join
# the batch.
_MAX_SOLO_COMMITS = 32
# A crash loses the digests and wire bodies of this time, but no message.
_DEFERRED_S = 2.0
_MAX_DEFERRED_BYTES = 4 * 1024 * 1024
"""The size of deferred jobs at which the thread gets them without waiting for the timer."""


class WriteJob:
    """A unit of writing; it may run again, in a separate transaction, if its batch fails."""

    session_ids: Sequence[str] = ()
    """The sessions that it writes to, if they are known before it runs."""
    size: int = 0
    """The approximate number of bytes that it writes."""
    future: asyncio.Future[None] | None = None
    """Set if the writer thread runs the job; its caller awaits it."""
    result: Any = None
    error: Exception | None = None
    is_done: bool = False

    def write(self, tables: Tables, /) -> Any:
        """Write the rows and return the result for the caller."""
        raise NotImplementedError

    def explain(self, transaction: Transaction, /) -> MetisError | None:  # noqa: ARG002 - the default
        """Return an error that describes the conflict with stored rows, after the write failed."""
        return None

    def finish(self, result: Any, error: Exception | None) -> None:
        """Set the outcome."""
        self.result, self.error, self.is_done = result, error, True


class FunctionJob(WriteJob):
    """A job that is one function."""

    def __init__(self, write: Callable[[Tables], Any]) -> None:
        self._write = write

    def write(self, tables: Tables, /) -> Any:
        """Call the function."""
        return self._write(tables)


@coroutine
def _yield_to_ready_tasks() -> Generator[None, None, None]:
    yield


class Writer:
    """Commits jobs, alone or together; for the tasks of one event loop."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._is_cheap = database.is_cheap_to_commit
        # Reused by all transactions, because its session heads save a query per append.
        self._tables = Tables(database)
        self._pending: list[WriteJob] = []
        self._batches: SimpleQueue[list[WriteJob] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._commits_since_upkeep = 0
        self._was_solo = False
        self._solo_commits = 0
        self._jobs_in_thread = 0
        self._deferred: list[WriteJob] = []
        self._deferred_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    async def submit(self, job: WriteJob) -> Any:
        """Run a job and return its result once it is durable."""
        if self._is_closed:
            raise StoreClosedError("the store was closed")
        if not (self._was_solo and self._commit_solo(job)):
            self._pending.append(job)
            try:
                await _yield_to_ready_tasks()
            except asyncio.CancelledError:
                # The job is not committed yet, so a cancelled append is not stored.
                if job in self._pending:
                    self._pending.remove(job)
                raise
            if job.future is None and not job.is_done:
                self._commit_pending()
            if job.future is not None:  # the thread marks a job as done before it is durable
                await job.future
        if job.error is not None:
            raise job.error
        if self._timer is None:
            self._start_timer()
        return job.result

    def defer(self, job: WriteJob) -> None:
        """Let the thread run a job within two seconds; no caller waits for it."""
        if self._is_closed:
            raise StoreClosedError("the store was closed")
        self._deferred.append(job)
        self._deferred_bytes += job.size
        if self._deferred_bytes > _MAX_DEFERRED_BYTES:
            self._write_deferred()
        elif self._timer is None:
            self._start_timer()

    def _start_timer(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_DEFERRED_S, self._write_deferred)

    def _take_deferred(self) -> list[WriteJob]:
        jobs, self._deferred, self._deferred_bytes = self._deferred, [], 0
        if self._tables.has_pending_digests:
            jobs.append(FunctionJob(Tables.write_digests))
        return jobs

    def _write_deferred(self) -> None:
        """Let the thread run the deferred jobs and write the digests in memory."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        jobs = [] if self._is_closed else self._take_deferred()
        if jobs:
            loop = asyncio.get_running_loop()
            for job in jobs:
                job.future = loop.create_future()
            self._jobs_in_thread += len(jobs)
            self._hand_over(jobs)

    def _commit_solo(self, job: WriteJob) -> bool:
        """Commit one job without yielding; False if others wait or it is not small."""
        if self._solo_commits >= _MAX_SOLO_COMMITS or self._pending:
            self._solo_commits = 0
            return False
        self._solo_commits += 1
        is_small = self._is_cheap and job.size <= _SMALL_BYTES and not self._jobs_in_thread
        return is_small and self._commit_here((job,))

    def _is_small(self, batch: Sequence[WriteJob]) -> bool:
        return (
            self._is_cheap
            and not self._jobs_in_thread
            and len(batch) <= _SMALL_JOBS
            and sum([job.size for job in batch]) <= _SMALL_BYTES
        )

    def run(self, job: WriteJob) -> Any:
        """Run a job now, in this thread and in a separate transaction."""
        self._database.write(lambda transaction: self._apply(transaction, (job,)))
        return job.result

    def close(self) -> None:
        """Write what is queued, then stop."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._thread is not None:
            self._batches.put(None)
            self._thread.join()
        if self._pending:
            self._commit(self._pending)
            self._pending = []
        if jobs := self._take_deferred():
            self._commit(jobs)

    def _commit_pending(self) -> None:
        """Commit the queued jobs: in this thread if that is fast, else in the writer thread."""
        batch, self._pending = self._pending, []
        self._was_solo = len(batch) == 1
        if self._is_small(batch) and self._commit_here(batch):
            return
        loop = asyncio.get_running_loop()
        for job in batch:
            job.future = loop.create_future()
        self._jobs_in_thread += len(batch)
        self._hand_over(batch)

    def _commit_here(self, batch: Sequence[WriteJob]) -> bool:
        """Commit in the caller's thread; False if another process is writing."""
        try:
            done = self._database.try_write(self._apply, batch)
        except Exception as error:  # noqa: BLE001 - every caller gets it
            self._run_separately(batch, error)
        else:
            if done is None:
                return False
        # Maintenance may wait for readers, so it never runs in the caller's thread.
        self._commits_since_upkeep += 1
        if self._commits_since_upkeep >= _UPKEEP_COMMITS:
            self._commits_since_upkeep = 0
            self._hand_over([])
        return True

    def _hand_over(self, batch: list[WriteJob]) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._serve, name="metis-store", daemon=True)
            thread.start()
            self._thread = thread  # set after the start, because `close` joins it in another thread
        self._batches.put(batch)

    def _serve(self) -> None:
        """Commit batches until `close`; the body of the writer thread."""
        while (batch := self._batches.get()) is not None:
            is_last = self._collect(batch)
            if batch:
                self._commit(batch)
                self._notify(batch)
            with contextlib.suppress(MetisError):  # a permanent fault also fails the next commit
                self._database.maintain()
            if is_last:
                return

    def _notify(self, batch: list[WriteJob]) -> None:
        """Wake the callers of jobs that the thread ran, with one call to their loop."""
        # One call to the loop per batch: each call wakes it through a pipe.
        loop = next((job.future.get_loop() for job in batch if job.future is not None), None)
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._wake, batch)

    def _wake(self, batch: list[WriteJob]) -> None:
        self._jobs_in_thread -= len(batch)
        for job in batch:
            if job.future is not None and not job.future.done():
                job.future.set_result(None)

    def _collect(self, batch: list[WriteJob]) -> bool:
        """Add the batches that were queued meanwhile; return whether `close` was called."""
        with contextlib.suppress(Empty):
            while len(batch) < _MAX_BATCH:
                next_batch = self._batches.get_nowait()
                if next_batch is None:
                    return True
                batch += next_batch
        return False

    def _commit(self, batch: list[WriteJob]) -> None:
        try:
            self._database.write(lambda transaction: self._apply(transaction, batch))
        except Exception as error:  # noqa: BLE001 - every caller gets it
            self._run_separately(batch, error)

    def _apply(self, transaction: Transaction, batch: Sequence[WriteJob]) -> bool:
        """Run every job; a job that fails before it wrote any row does not fail the others."""
        tables = self._tables
        try:
            tables.begin(transaction, batch)
            messages, journal = tables.messages, tables.journal
            for job in batch:
                # A job that buffered rows before it failed would leave a part of them in the
                # shared batch.
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

    def _run_separately(self, batch: Sequence[WriteJob], error: Exception) -> None:
        """Run each job of a failed batch in a separate transaction."""
        # The buffers still have the rows of the failed transaction.
        self._tables.reset()
        if len(batch) == 1:
            batch[0].finish(None, self._explain(batch[0], error))
            return
        for job in batch:
            try:
                job.finish(None, None)
                self.run(job)
            except Exception as job_error:  # noqa: BLE001 - its caller gets it
                job.finish(None, self._explain(job, job_error))

    def _explain(self, job: WriteJob, error: Exception) -> Exception:
        # A constraint error does not name the message; `explain` determines it and the rule.
        if not (isinstance(error, UnmatchedResultError) or self._database.is_conflict(error)):
            return error
        try:
            with self._database.read() as transaction:
                return job.explain(transaction) or error
        except MetisError:
            return error
