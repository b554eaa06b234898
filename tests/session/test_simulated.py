"""The simulator is loaded at the first call."""

import asyncio
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

import metis
from metis.session import Options
from metis.session.conversation import SpendTracker

pytestmark = pytest.mark.anyio

_QUIET = """
import asyncio, sys, metis
from metis.session import Options

async def run():
    async with metis.open("sqlite:///%s", Options(simulate=True)) as m:
        await m.session(model="sonnet")
        names = ("aiohttp", "metis.sim", "metis.wire.gemini.codec", "yarl")
        print([name for name in names if name in sys.modules])

asyncio.run(run())
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'metis.db'}"


def test_simulator_is_not_loaded_before_first_call(tmp_path: Path) -> None:
    done = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", _QUIET % (tmp_path / "metis.db")],
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "[]\n"
    assert not done.stderr


async def test_the_first_call_is_answered_with_and_without_preparation(url: str) -> None:
    for is_prepared in (False, True):
        async with metis.open(url, Options(simulate=True)) as m:
            if is_prepared:
                await m.prepare()
            session = await m.session(model="sonnet")
            answer = await session.ask("say all is well")
            assert answer is not None


async def test_concurrent_first_calls_wait_for_loading(url: str) -> None:
    async with metis.open(url, Options(simulate=True)) as m:
        sessions = [await m.session(model="sonnet") for _ in range(8)]
        answers = await asyncio.gather(*(each.ask("say here") for each in sessions))
    assert all(answers)


async def test_close_during_loading_leaves_nothing_behind(url: str) -> None:
    async with metis.open(url, Options(simulate=True)) as m:
        preparing = asyncio.create_task(m.prepare())
        await asyncio.sleep(0)
        preparing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await preparing


async def test_concurrent_spending_queries_count_nothing_twice(url: str) -> None:
    async with metis.open(url, Options(simulate=True)) as m:
        session = await m.session(model="sonnet")
        await session.ask("say all is well")
        spending = SpendTracker(m.store, now=lambda: datetime.now(UTC))
        spent = await asyncio.gather(spending.totals(), spending.totals())
    assert [each.day_usd for each in spent] == [session.cost().total_usd] * 2
