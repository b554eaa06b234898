"""How the store takes it to grow: the same work with more and more stored.

Sessions have 100 messages each. `append` is one at a time into a new session, `load` a whole
session from the middle of what is stored, `search` looks for two words that most messages hold,
everywhere and in one session.
"""

import asyncio
from collections.abc import Sequence

from store_floors import Clock, Time

from canonical import make_messages
from metis import store
from metis.canonical import Message, new_session_id, new_tool_use_id, new_ulid
from metis.canonical.blocks import ToolResultBlock, ToolUseBlock
from metis.canonical.value import made
from metis.store import Store

_SESSION_SIZE = 100
_AT_ONCE = 20
_make_message = made(Message)
_make_use = made(ToolUseBlock)
_make_result = made(ToolResultBlock)


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
                metadata = made(type(metadata))(parent_tool_use_id=calls[number])
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


async def append_one_by_one(keep: Store, messages: Sequence[Message]) -> Time:
    """Each append waits for the one before."""
    await keep.create_session(messages[0].session_id)
    clock = Clock()
    for message in messages:
        await keep.append(message)
    return clock.read(len(messages))


async def load(keep: Store, session_id: str, newest: int | None = None) -> Time:
    """A session into typed objects, all or its newest messages."""
    await keep.sessions(1)
    clock = Clock()
    found = await keep.messages(session_id, newest=newest)
    whole = clock.read(1)
    return Time(whole.elapsed / len(found), whole.cpu / len(found))


class Growth:
    """One store that grows, and what work takes in it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._template = make_messages(_SESSION_SIZE)
        self._stored = 0
        self._middle = ""

    async def run(self, sizes: Sequence[int]) -> None:
        """Measure at each size."""
        names = ("append us", "load us", "search ms", "in session", "open ms")
        print(f"\n{'messages':>10}" + "".join(f"{name:>12}{'CPU':>8}" for name in names))
        async with store.open(self._url) as keep:
            for size in sizes:
                await self._fill(keep, size)
                values = await self._measure(keep)
                cells = [f"{value.elapsed:>12.1f}{value.cpu:>8.1f}" for value in values]
                print(f"{size:>10}" + "".join(cells), flush=True)

    async def _fill(self, keep: Store, size: int) -> None:
        while self._stored < size:
            parts = copies(
                self._template, min(_AT_ONCE, (size - self._stored) // _SESSION_SIZE + 1)
            )
            for part in parts:
                await keep.create_session(part[0].session_id)
            await asyncio.gather(*(keep.append_all(part) for part in parts))
            self._stored += sum(map(len, parts))
            if self._stored >= size // 2 and not self._middle.startswith(f"{size} "):
                self._middle = f"{size} {parts[0][0].session_id}"
        await keep.search("warm")

    async def _measure(self, keep: Store) -> list[Time]:
        appended = await append_one_by_one(keep, copies(self._template, 1)[0])
        self._stored += _SESSION_SIZE
        middle = self._middle.split()[1]
        loaded = await load(keep, middle)
        await keep.search("rates")
        clock = Clock()
        await keep.search("traced table", limit=5)
        everywhere = clock.read(1000)
        clock = Clock()
        await keep.search("traced table", limit=5, session_id=middle)
        inside = clock.read(1000)
        clock = Clock()
        another = store.open(self._url, recover=False)
        opened = clock.read(1000)
        await another.close()
        return [appended, loaded, everywhere, inside, opened]
