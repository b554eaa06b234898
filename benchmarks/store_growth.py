"""How the store takes it to grow: the same work with more and more stored.

Sessions have ten messages each, so that ten million messages are a million sessions. `append` is
one at a time into new sessions, `load` are whole sessions from all over the store, `search` looks
for two words that most messages hold, everywhere and in one session, `open` is a second store on
the same database. Each is the median of a number of tries.
"""

import asyncio
import random
import statistics
from collections.abc import Sequence

from store_bulk import SESSION_SIZE, fill_store, session_id
from store_floors import Clock, Time

from canonical import make_messages
from metis.canonical import (
    Message,
    new_session_id,
    new_tool_use_id,
    new_ulid,
    validate_session,
)
from metis.canonical.blocks import ToolResultBlock, ToolUseBlock
from metis.canonical.value import raw_constructor
from metis.store import Store
from metis.store import open as open_store

_TRIES = 25
_make_message = raw_constructor(Message)
_make_use = raw_constructor(ToolUseBlock)
_make_result = raw_constructor(ToolResultBlock)


def copies(template: Sequence[Message], count: int) -> list[list[Message]]:
    """The conversation in several new sessions, whose messages were made in turns."""
    parts: list[list[Message]] = [[] for _ in range(count)]
    sessions = [new_session_id() for _ in parts]
    calls = [""] * count
    for message in template:
        for number, part in enumerate(parts):
            content = list(message.content)
            metadata = message.metadata
            last = content[-1]
            if type(last) is ToolUseBlock:
                calls[number] = new_tool_use_id()
                content[-1] = _make_use(id=calls[number], name=last.name, input=last.input)
            elif type(last) is ToolResultBlock:
                content[-1] = _make_result(tool_use_id=calls[number], content=last.content)
                metadata = raw_constructor(type(metadata))(parent_tool_use_id=calls[number])
            part.append(
                _make_message(
                    id=new_ulid(),
                    session_id=sessions[number],
                    role=message.role,
                    content=tuple(content),
                    created_at=message.created_at,
                    metadata=metadata,
                )
            )
    return parts


async def append_one_by_one(store: Store, messages: Sequence[Message]) -> Time:
    """Each append waits for the one before."""
    await store.create_session(messages[0].session_id)
    clock = Clock()
    for message in messages:
        await store.append(message)
    return clock.read(len(messages))


async def load(store: Store, name: str, newest: int | None = None) -> Time:
    """A session into typed objects, all or its newest messages."""
    await store.session(name)
    clock = Clock()
    found = await store.messages(name, newest=newest)
    whole = clock.read(1)
    return Time(whole.elapsed / len(found), whole.cpu / len(found))


def _middle(times: Sequence[Time]) -> Time:
    """The medians of elapsed time and of CPU time."""
    elapsed, cpu = zip(*times, strict=True)
    return Time(statistics.median(elapsed), statistics.median(cpu))


class Growth:
    """One store that grows, and what work takes in it."""

    def __init__(self, url: str) -> None:
        self._url = url
        turns = make_messages(SESSION_SIZE + 2)
        self._template = [*turns[: SESSION_SIZE - 1], turns[-1]]
        self._sessions = 0

    async def run(self, sizes: Sequence[int]) -> None:
        """Measure at each size."""
        names = ("append us", "load us", "search ms", "in session", "open ms")
        print(f"\n{'messages':>10}" + "".join(f"{name:>12}{'CPU':>8}" for name in names))
        async with open_store(self._url) as store:
            for size in sizes:
                await self._fill(store, size)
                values = await self._measure(store)
                cells = [f"{value.elapsed:>12.1f}{value.cpu:>8.1f}" for value in values]
                print(f"{size:>10}" + "".join(cells), flush=True)

    async def _fill(self, store: Store, size: int) -> None:
        """Store sessions up to a size, and have them all in the search index."""
        await store.search("warm")
        count = size // SESSION_SIZE - self._sessions
        await asyncio.to_thread(fill_store, self._url, self._sessions + 1, count)
        self._sessions += count
        await store.search("warm")

    async def _measure(self, store: Store) -> list[Time]:
        news = copies(self._template, _TRIES)
        chance = random.Random(self._sessions)  # noqa: S311 - the same draw in every run
        some = [session_id(chance.randint(1, self._sessions)) for _ in range(_TRIES)]
        assert validate_session(await store.messages(some[0])) == []  # noqa: S101 - what is no session measures nothing
        return [
            _middle([await append_one_by_one(store, part) for part in news]),
            _middle([await load(store, each) for each in some]),
            _middle([await self._search(store, None) for _ in some]),
            _middle([await self._search(store, each) for each in some]),
            _middle([await self._open() for _ in some]),
        ]

    async def _search(self, store: Store, name: str | None) -> Time:
        clock = Clock()
        found = await store.search("traced table", limit=5, session_id=name)
        assert found  # noqa: S101 - as above
        return clock.read(1000)

    async def _open(self) -> Time:
        clock = Clock()
        another = open_store(self._url, recover=False)
        opened = clock.read(1000)
        await another.close()
        return opened
