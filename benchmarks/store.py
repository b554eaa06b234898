"""Speed of the store: ours as multiples of raw SQLite, in turns within one run.

The floor is sqlite3 with msgspec, WAL and synchronous NORMAL: one INSERT of one JSON column a
message, each its own transaction; it validates nothing and knows no calls, no journal and no ids.
Ours validates, writes messages, tool calls, their answers and the journal, and answers when that is
durable. `rows` is what the bare driver takes for the same rows as ours. What counts is the median
of the ratios of each round, in elapsed time and in CPU time.

    python benchmarks/store.py [--messages N] [--rounds N] [--long N] [--growth N,N] [--postgres]
"""

import argparse
import asyncio
import platform
import shutil
import sqlite3
import statistics
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import store_floors as floors
from store_floors import TASKS, Clock, Time
from store_growth import Growth, append_one_by_one, copies, load

from canonical import make_messages
from metis.canonical import Message, encode
from metis.store import Durability, Store
from metis.store import open as open_store

sys.path.append(str(Path(__file__).parents[1] / "tests" / "store"))
from postgres import start_server


async def append_from_tasks(store: Store, parts: Sequence[Sequence[Message]]) -> Time:
    """Many tasks append at once, each to a session of its own."""
    for part in parts:
        await store.create_session(part[0].session_id)

    async def write(part: Sequence[Message]) -> None:
        for message in part:
            await store.append(message)

    clock = Clock()
    await asyncio.gather(*(write(part) for part in parts))
    return clock.read(sum(len(part) for part in parts))


async def append_to_one(store: Store, messages: Sequence[Message]) -> Time:
    """Many tasks append at once to one session, each the message that is next."""
    await store.create_session(messages[0].session_id)
    waiting = iter(messages)

    async def write() -> None:
        for message in waiting:
            await store.append(message)

    clock = Clock()
    await asyncio.gather(*(write() for _ in range(TASKS)))
    return clock.read(len(messages))


async def in_store(
    url: str, work: Callable[[Store], Awaitable[Time]], durability: Durability = "process"
) -> Time:
    """Run work on a store and close it."""
    async with open_store(url, durability=durability) as store:
        return await work(store)


class Bench:
    """One conversation, and the times of every kind of work."""

    def __init__(self, folder: Path, messages: Sequence[Message]) -> None:
        self._folder = folder
        self._messages = messages
        self._parts = copies(messages[: len(messages) // TASKS // 4 * 4], TASKS)
        self._plain = [floors.read_plain(encode(message)) for message in messages]
        self._single = floors.statements([message] for message in messages)
        self._grouped = floors.statements(zip(*self._parts, strict=True))
        starts = range(0, len(messages), TASKS)
        self._joined = floors.statements(messages[start : start + TASKS] for start in starts)
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

    def note_rows(self, name: str, took: Time, count: int) -> None:
        """Keep the time of all rows together."""
        self.note(name, Time(took.elapsed / count, took.cpu / count))

    def _from_tasks(self, url: str) -> Time:
        return asyncio.run(in_store(url, lambda k: append_from_tasks(k, self._parts)))

    def round(self) -> None:
        """Each kind of work once, in SQLite."""
        messages, folder = self._messages, self._new()
        few, session = messages[: len(messages) // 20], messages[0].session_id
        grouped = sum(map(len, self._parts))
        self.note("floor append", floors.floor_append(folder, self._plain))
        self.note("floor load", floors.floor_load(folder / "floor.db", len(messages)))
        took = floors.rows_in_sqlite(folder / "rows.db", [session], self._single)
        self.note_rows("rows, one", took, len(messages))
        url = f"sqlite:///{folder / 'metis.db'}"
        self.note("append", asyncio.run(in_store(url, lambda k: append_one_by_one(k, messages))))
        self.note("load", asyncio.run(in_store(url, lambda k: load(k, session))))
        sessions = [part[0].session_id for part in self._parts]
        took = floors.rows_in_sqlite(folder / "rows64.db", sessions, self._grouped)
        self.note_rows("rows, by 64", took, grouped)
        url = f"sqlite:///{folder / 'tasks.db'}"
        self.note("64 tasks", self._from_tasks(url))
        took = floors.rows_in_sqlite(folder / "joined.db", [session], self._joined)
        self.note_rows("rows, 64 in one", took, len(messages))
        url = f"sqlite:///{folder / 'one.db'}"
        self.note("64 in one", asyncio.run(in_store(url, lambda k: append_to_one(k, messages))))
        shutil.rmtree(folder)
        folder = self._new()
        url = f"sqlite:///{folder / 'metis.db'}"
        self.note("floor FULL", floors.floor_append(folder, self._plain[: len(few)], full=True))
        work = in_store(url, lambda k: append_one_by_one(k, few), "power")
        self.note("append power", asyncio.run(work))
        shutil.rmtree(folder)

    def round_at_server(self, new_database: Callable[[], str]) -> None:
        """The same at a PostgreSQL server, against the bare driver with the same statements."""
        messages, url, raw = self._messages, new_database(), new_database()
        session = messages[0].session_id
        asyncio.run(open_store(raw).close())
        took = floors.rows_in_postgres(raw, [session], self._single)
        self.note_rows("rows, one", took, len(messages))
        self.note("append", asyncio.run(in_store(url, lambda k: append_one_by_one(k, messages))))
        self.note("floor load", floors.load_from_postgres(raw, session))
        self.note("load", asyncio.run(in_store(url, lambda k: load(k, session))))
        self.note("64 tasks", self._from_tasks(url))

    def show(self, floor_of: dict[str, str], usual: str) -> None:
        """The table."""
        print(f"\n{'work':<16}{'us/message':>12}{'CPU us':>10}{'x floor':>10}{'CPU x':>8}")
        for name, own in self.times.items():
            is_floor = name.startswith("floor") or name == usual
            floor = self.times[name if is_floor else floor_of.get(name, usual)]
            line = [statistics.median(each) for each in zip(*own, strict=True)]
            ratios = [
                statistics.median(a[n] / b[n] for a, b in zip(own, floor, strict=True))
                for n in (0, 1)
            ]
            print(f"{name:<16}{line[0]:>12.1f}{line[1]:>10.1f}{ratios[0]:>10.3f}{ratios[1]:>8.3f}")
        self.times.clear()


async def newest_of_many(url: str, count: int) -> None:
    """The newest 50 messages of a long session, as a share of loading it all."""
    async with open_store(url) as store:
        messages = make_messages(count)
        session_id = messages[0].session_id
        await store.create_session(session_id)
        for start in range(0, count, 1000):
            await store.append_all(messages[start : start + 1000])
        newest = [await load(store, session_id, 50) for _ in range(5)]
        whole = [await load(store, session_id) for _ in range(3)]
    share = 50 * min(newest).elapsed / (count * min(whole).elapsed)
    print(f"\nthe newest 50 of {count} messages take {share:.2%} of the time for all of them")


def main() -> None:
    """Run the rounds and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--long", type=int, default=100_000, help="messages of the long session")
    parser.add_argument("--growth", default="10000,100000", help="up to 10000000 with patience")
    parser.add_argument("--postgres", action="store_true", help="at a server, started for this")
    arguments = parser.parse_args()
    print(f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}")
    folder = Path(tempfile.mkdtemp(prefix="metis-bench-"))
    server = start_server(durable=True) if arguments.postgres else None
    new_url = server.new_database if server else lambda: f"sqlite:///{folder / 'more.db'}"
    try:
        if arguments.rounds:
            bench = Bench(folder, make_messages(arguments.messages))
            for _ in range(arguments.rounds):
                if server:
                    bench.round_at_server(server.new_database)
                else:
                    bench.round()
            print(f"{arguments.messages} messages, {arguments.rounds} rounds")
            if server:
                bench.show({"load": "floor load"}, "rows, one")
            else:
                bench.show({"load": "floor load", "append power": "floor FULL"}, "floor append")
        if arguments.long:
            asyncio.run(newest_of_many(new_url(), arguments.long))
        sizes = [int(each) for each in arguments.growth.split(",") if each]
        if sizes:
            url = server.new_database() if server else f"sqlite:///{folder / 'growth.db'}"
            asyncio.run(Growth(url).run(sizes))
    finally:
        if server:
            server.stop()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
