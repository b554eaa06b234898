"""Many sessions and many turns: no session waits for another, and memory stays constant."""

import asyncio
import gc
import tracemalloc

import pytest
from aiohttp import web

from metis.session import Metis, Options, TurnEnded
from session.fake import NAMES, Fake, say, serving
from session.helpers import events_of, options

pytestmark = pytest.mark.anyio
MANY = 100


class AnswersAfterAllRequests(Fake):
    """A provider that answers only after every request has arrived."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._all_here = asyncio.Event()
        self._count = count
        self._here = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self._here += 1
        if self._here == self._count:
            self._all_here.set()
        await self._all_here.wait()
        return await super().handle(request)


async def test_a_hundred_sessions_stream_concurrently(url: str) -> None:
    async with serving(AnswersAfterAllRequests(MANY)) as fake, Metis(url, options(fake)) as m:
        models = ["sonnet", "openai:gpt-5", "openai-responses:gpt-5"]
        sessions = [await m.session(model=models[n % len(models)]) for n in range(MANY)]
        turns = await asyncio.gather(*(events_of(each, "hello") for each in sessions))
        assert all(isinstance(events[-1], TurnEnded) for events in turns)
        assert len(fake.requests) == MANY
        assert all(len(each.messages) == 2 for each in sessions)


async def spend(m: Metis, sessions: int, turns: int) -> None:
    for _ in range(sessions):
        session = await m.session(model="sonnet")
        for _ in range(turns):
            await session.ask("hello " * 50)
        await session.end()


async def test_memory_stays_flat_over_many_turns(url: str) -> None:
    # Not with the bytes of calls, which wait in memory for two seconds within a bound of their own.
    fields = {"tools": None, "record_bytes": False}
    async with serving(Fake()) as fake, Metis(url, options(fake, **fields)) as m:

        async def measured(sessions: int) -> int:
            await spend(m, sessions, 5)
            for recorded in (fake.requests, fake.bodies, fake.headers):
                recorded.clear()
            gc.collect()
            return tracemalloc.get_traced_memory()[0]

        await spend(m, 4, 5)
        tracemalloc.start()
        try:
            first = await measured(6)
            grown = await measured(12) - first
        finally:
            tracemalloc.stop()
    assert grown / 60 < 2_000, f"{grown / 60:.0f} bytes a turn"


async def test_unreferenced_session_is_freed(url: str) -> None:
    async with serving(Fake(say("one"))) as fake, Metis(url, options(fake)) as m:
        session = await m.session(model="sonnet")
        await session.ask("hello")
        own, place = session.id, id(session)
        assert id(await m.resume(own)) == place
        del session
        gc.collect()
        again = await m.resume(own)
        assert len(again.messages) == 2


def test_connection_pool_serves_all_sessions() -> None:
    assert Options().limits.connections_per_host >= MANY * len(NAMES)
