"""Speed of the store: ours as multiples of raw SQLite, in turns within one run.

The floor is sqlite3 with msgspec, WAL and synchronous NORMAL: one INSERT of one JSON column a
message, each its own transaction; it validates nothing and knows no calls, no journal and no ids.
Ours validates, writes messages, tool calls, their answers and the journal, and answers when that is
durable. What counts is the median of the ratios of each round, in elapsed time and in CPU time.

    python benchmarks/store.py [--messages N] [--rounds N] [--long N] [--growth N,N,...]
"""

import argparse
import asyncio
import platform
import shutil
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import msgspec
from plain import PlainMessage

from canonical import make_messages
from metis import store
from metis.canonical import Message, encode, new_session_id
from metis.store import Store
from metis.store.entries import MessageEntry
from metis.store.renaming import renaming_for

TASKS = 64
_write = msgspec.json.Encoder().encode
_read = msgspec.json.Decoder(PlainMessage).decode
_TABLE = (
    "CREATE TABLE messages (session TEXT NOT NULL, seq INTEGER NOT NULL, body BLOB NOT NULL, "
    "PRIMARY KEY (session, seq)) WITHOUT ROWID"
)
_INSERT = "INSERT INTO messages VALUES (?, ?, ?)"


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


def open_floor(path: Path, *, full: bool = False) -> sqlite3.Connection:
    """A database with the one table of the floor."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {'FULL' if full else 'NORMAL'}")
    return connection


def floor_append(folder: Path, plain: Sequence[PlainMessage], *, full: bool = False) -> Time:
    """One INSERT a message."""
    with closing(open_floor(folder / "floor.db", full=full)) as connection:
        connection.execute(_TABLE)
        clock = Clock()
        for seq, message in enumerate(plain):
            connection.execute(_INSERT, ("s", seq, _write(message)))
        return clock.read(len(plain))


def floor_load(path: Path, count: int) -> Time:
    """Every message of a session into typed objects."""
    clock = Clock()
    with closing(open_floor(path)) as connection:
        rows = connection.execute("SELECT body FROM messages WHERE session = 's' ORDER BY seq")
        loaded = [_read(body) for (body,) in rows]
    assert len(loaded) == count  # noqa: S101 - a measure of nothing is none
    return clock.read(count)


async def append_one_by_one(keep: Store, messages: Sequence[Message]) -> Time:
    """Each append waits for the one before."""
    await keep.create_session(messages[0].session_id)
    clock = Clock()
    for message in messages:
        await keep.append(message)
    return clock.read(len(messages))


async def append_from_tasks(keep: Store, messages: Sequence[Message]) -> Time:
    """Many tasks append at once, each to a session of its own."""
    parts = split(messages, TASKS)
    for part in parts:
        await keep.create_session(part[0].session_id)

    async def write(part: Sequence[Message]) -> None:
        for message in part:
            await keep.append(message)

    clock = Clock()
    await asyncio.gather(*(write(part) for part in parts))
    return clock.read(sum(len(part) for part in parts))


def split(messages: Sequence[Message], count: int) -> list[list[Message]]:
    """Conversations of the same size in sessions of their own, each with whole exchanges."""
    size = max(4, len(messages) // count // 4 * 4)
    parts: list[list[Message]] = []
    for number in range(min(count, len(messages) // size)):
        entries = [
            MessageEntry(id=m.id, session_id=m.session_id, created_at=m.created_at, message=m)
            for m in messages[number * size : (number + 1) * size]
        ]
        names = renaming_for(entries, new_session_id())
        parts.append([names.message(entry.message) for entry in entries])
    return parts


async def in_store(
    url: str, work: Callable[[Store], Awaitable[Time]], durability: store.Durability = "process"
) -> Time:
    """Run work on a store and close it."""
    async with store.open(url, durability=durability) as keep:
        return await work(keep)


class Bench:
    """One folder, one conversation, and the times of every kind of work."""

    def __init__(self, folder: Path, messages: Sequence[Message]) -> None:
        self._folder = folder
        self._messages = messages
        self._plain = [_read(encode(message)) for message in messages]
        self._count = 0
        self.times: dict[str, list[Time]] = {}

    def _new(self) -> Path:
        self._count += 1
        path = self._folder / str(self._count)
        path.mkdir()
        return path

    def note(self, name: str, measured: Time) -> None:
        """Keep a time."""
        self.times.setdefault(name, []).append(measured)

    def round(self) -> None:
        """Each kind of work once."""
        messages, few = self._messages, self._messages[: len(self._messages) // 20]
        folder = self._new()
        self.note("floor append", floor_append(folder, self._plain))
        self.note("floor load", floor_load(folder / "floor.db", len(messages)))
        url = f"sqlite:///{folder / 'metis.db'}"
        self.note("append", asyncio.run(in_store(url, lambda k: append_one_by_one(k, messages))))
        session = messages[0].session_id
        self.note("load", asyncio.run(in_store(url, lambda k: load(k, session, None))))
        shutil.rmtree(folder)
        folder = self._new()
        url = f"sqlite:///{folder / 'metis.db'}"
        self.note("64 tasks", asyncio.run(in_store(url, lambda k: append_from_tasks(k, messages))))
        shutil.rmtree(folder)
        folder = self._new()
        url = f"sqlite:///{folder / 'metis.db'}"
        self.note("floor FULL", floor_append(folder, self._plain[: len(few)], full=True))
        work = in_store(url, lambda k: append_one_by_one(k, few), "power")
        self.note("append power", asyncio.run(work))
        shutil.rmtree(folder)

    def show(self) -> None:
        """The table."""
        floors = {"load": "floor load", "append power": "floor FULL"}
        print(f"{'work':<16}{'us/message':>12}{'CPU us':>10}{'x floor':>10}{'CPU x':>8}")
        for name, own in self.times.items():
            floor = self.times[
                name if name.startswith("floor") else floors.get(name, "floor append")
            ]
            line = [statistics.median(each) for each in zip(*own, strict=True)]
            ratios = [
                statistics.median(a[n] / b[n] for a, b in zip(own, floor, strict=True))
                for n in (0, 1)
            ]
            print(f"{name:<16}{line[0]:>12.1f}{line[1]:>10.1f}{ratios[0]:>10.3f}{ratios[1]:>8.3f}")


async def load(keep: Store, session_id: str, newest: int | None) -> Time:
    """A session into typed objects, all or its newest messages."""
    await keep.sessions(1)
    clock = Clock()
    found = await keep.messages(session_id, newest=newest)
    whole = clock.read(1)
    return Time(whole.elapsed / len(found), whole.cpu / len(found))


async def grow(keep: Store, sizes: Sequence[int]) -> None:
    """How the same work takes longer as the store grows; sessions have 100 messages each."""
    print(f"\n{'messages':>10}{'append us':>12}{'load us':>12}{'search ms':>12}{'open ms':>10}")
    template, stored = make_messages(100), 0
    for size in sizes:
        session_id = ""
        while stored < size:
            part = split(template, 1)[0]
            session_id = part[0].session_id
            await keep.create_session(session_id)
            await keep.append_all(part)
            stored += len(part)
        append = await append_one_by_one(keep, split(template, 1)[0])
        stored += len(template)
        loaded = await load(keep, session_id, None)
        await keep.search("rates")
        clock = Clock()
        await keep.search("traced table", limit=5, session_id=session_id)
        search = clock.read(1)
        clock = Clock()
        async with store.open(f"sqlite:///{keep.name}", recover=False):
            opened = clock.read(1)
        print(
            f"{size:>10}{append.elapsed:>12.1f}{loaded.elapsed:>12.1f}"
            f"{search.elapsed / 1000:>12.1f}{opened.elapsed / 1000:>10.1f}"
        )


async def newest_of_many(folder: Path, count: int) -> None:
    """The newest 50 messages of a long session, as a share of loading it all."""
    async with store.open(f"sqlite:///{folder / 'long.db'}") as keep:
        messages = make_messages(count)
        session_id = messages[0].session_id
        await keep.create_session(session_id)
        for start in range(0, count, 1000):
            await keep.append_all(messages[start : start + 1000])
        newest = [await load(keep, session_id, 50) for _ in range(5)]
        whole = [await load(keep, session_id, None) for _ in range(3)]
    share = 50 * min(newest).elapsed / (count * min(whole).elapsed)
    print(f"\nthe newest 50 of {count} messages take {share:.2%} of the time for all of them")


async def growth(folder: Path, sizes: Sequence[int]) -> None:
    """The growth curve in a store of its own."""
    async with store.open(f"sqlite:///{folder / 'growth.db'}") as keep:
        await grow(keep, sizes)


def main() -> None:
    """Run the rounds and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--long", type=int, default=100_000, help="messages of the long session")
    parser.add_argument("--growth", default="10000,100000")
    arguments = parser.parse_args()
    print(f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}")
    messages = make_messages(arguments.messages)
    folder = Path(tempfile.mkdtemp(prefix="metis-bench-"))
    try:
        bench = Bench(folder, messages)
        for _ in range(arguments.rounds):
            bench.round()
        print(f"{len(messages)} messages, {arguments.rounds} rounds\n")
        bench.show()
        asyncio.run(newest_of_many(folder, arguments.long))
        if arguments.growth:
            asyncio.run(growth(folder, [int(each) for each in arguments.growth.split(",")]))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
