"""Appends are acknowledged only after the commit, by whichever thread commits."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from metis.canonical.errors import StoreClosedError, StoreFullError, UnknownSessionError
from metis.store.database import Database
from metis.store.tables import Tables
from metis.store.writer import FunctionJob, Writer

pytestmark = pytest.mark.anyio


class Slow:
    """A database whose commits wait until they are released."""

    name = "slow"
    is_cheap_to_commit = False

    def __init__(self) -> None:
        self.has_run = threading.Event()
        self.may_commit = threading.Event()
        self.failing = False

    def write(self, work: Callable[[Any], Any]) -> Any:
        """Do the work, and wait before the commit."""
        value = work(self)
        self.has_run.set()
        self.may_commit.wait()
        if self.failing:
            raise StoreFullError("slow: the disk is full")
        return value

    def try_write(self, work: Callable[[Any, Any], Any], given: Any) -> Any:
        """Do the work in the calling thread."""
        return work(self, given)

    def has_changed(self, _: object) -> bool:
        return False

    def change_many(self, _: str, rows: list[object]) -> int:
        return len(rows)

    def is_conflict(self, _: Exception) -> bool:
        return False

    def maintain(self) -> None:
        """Do nothing."""


def value_of(number: int) -> Callable[[Tables], int]:
    return lambda _: number


async def test_no_append_is_acknowledged_before_the_commit() -> None:
    database = Slow()
    writer = Writer(cast("Database", database))

    async def until_the_thread_has_run() -> None:
        await asyncio.sleep(0)
        database.has_run.wait()

    # The first task submits everything; when the others run, the thread has done the work.
    tasks = [asyncio.create_task(writer.submit(FunctionJob(value_of(0))))]
    between = asyncio.create_task(until_the_thread_has_run())
    tasks += [asyncio.create_task(writer.submit(FunctionJob(value_of(n)))) for n in range(1, 8)]
    await between
    for _ in range(20):
        await asyncio.sleep(0)
    assert not any(task.done() for task in tasks)
    database.may_commit.set()
    assert await asyncio.gather(*tasks) == list(range(8))
    await asyncio.to_thread(writer.close)
    with pytest.raises(StoreClosedError):
        await writer.submit(FunctionJob(value_of(0)))


async def test_failed_commit_is_raised_to_every_waiting_caller() -> None:
    database = Slow()
    database.failing = True
    database.may_commit.set()
    writer = Writer(cast("Database", database))
    answers = await asyncio.gather(
        *(writer.submit(FunctionJob(value_of(n))) for n in range(4)), return_exceptions=True
    )
    assert [type(answer) for answer in answers] == [StoreFullError] * 4
    await asyncio.to_thread(writer.close)


async def test_failed_append_does_not_affect_others() -> None:
    database = Slow()
    database.may_commit.set()
    writer = Writer(cast("Database", database))

    def refuse(_: Tables) -> None:
        raise UnknownSessionError("sess_9")

    works = [FunctionJob(value_of(1)), FunctionJob(refuse), FunctionJob(value_of(3))]
    answers = await asyncio.gather(*map(writer.submit, works), return_exceptions=True)
    assert [answers[0], answers[2]] == [1, 3]
    assert isinstance(answers[1], UnknownSessionError)
    await asyncio.to_thread(writer.close)


async def test_later_writes_do_not_overtake_queued_ones() -> None:
    database = Slow()
    database.is_cheap_to_commit = True
    writer = Writer(cast("Database", database))
    order: list[int] = []

    def put(number: int) -> FunctionJob:
        return FunctionJob(lambda _: order.append(number))

    many = [asyncio.create_task(writer.submit(put(number))) for number in range(100)]
    for _ in range(3):
        await asyncio.sleep(0)
    late = [asyncio.create_task(writer.submit(put(number))) for number in (100, 101)]
    for _ in range(5):
        await asyncio.sleep(0)
    database.may_commit.set()
    await asyncio.gather(*many, *late)
    assert order == list(range(102))
    await writer.submit(put(102))
    assert order[-1] == 102
    await asyncio.to_thread(writer.close)
