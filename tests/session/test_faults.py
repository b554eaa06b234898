"""Faults at every wait and chunk, and process death: the session stays valid and continues."""

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import metis
from metis.canonical.errors import MetisError
from metis.session import Metis, Session, ToolStarted
from metis.sim import Script, Simulator
from metis.sim.request import Settings
from session.faults import ALL, MODELS, check_goes_on, check_whole, options_for, run_with

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
WORDS = "Read a.txt and b.txt"
LONG = "The tide came in over the grey stones and nobody at the harbour saw the lamp. " * 20
STEPS = len(MODELS)
_LEAST_WAITS = 10
"""Every turn waits at least so often, even if many chunks come at once; later may be too late."""


class InjectedError(RuntimeError):
    """An unexpected error."""


@pytest.mark.parametrize("fault", [asyncio.CancelledError, InjectedError])
@pytest.mark.parametrize("model", MODELS)
async def test_session_continues_after_fault_at_any_wait(
    tmp_path: Path, model: str, fault: Callable[[], BaseException]
) -> None:
    # The default run tests each wait with one model and one fault, the slow run with all.
    at = 0 if ALL else MODELS.index(model) + STEPS * (fault is InjectedError)
    came_so_far = True
    async with Simulator() as sim:
        options = options_for(sim.base_url)
        while came_so_far:
            url = f"sqlite:///{tmp_path / f'{at}.db'}"
            async with Metis(url, options) as m:
                session = await m.session(model=model, system="Be short.")
                came_so_far = await run_with(session, WORDS, at, fault)
                assert not session.is_running
            async with Metis(url, options) as m:
                assert m.store.recoveries == []
                await check_goes_on(m, session.id, at // STEPS)
                assert await m.store.check() == []
            at += 1 if ALL else 2 * STEPS
    assert at > 20


@pytest.mark.parametrize("fault", [asyncio.CancelledError, InjectedError])
async def test_session_continues_after_fault_during_summary(
    tmp_path: Path, fault: Callable[[], BaseException]
) -> None:
    """Parts, their costs and the summary are each stored or not, and the history is complete."""
    before = tmp_path / "before.db"
    async with Simulator() as large, Metis(f"sqlite:///{before}", options_for(large.base_url)) as m:
        session = await m.session(model=MODELS[0])
        for number in range(6):
            await session.ask(f"say {number}: {LONG}")
        await session.ask(WORDS)
    at = 0 if fault is InjectedError else 1
    came_so_far = True
    async with Simulator(settings=Settings(window_tokens=2500)) as sim:
        options = options_for(sim.base_url)
        while came_so_far:
            now = tmp_path / f"{at}.db"
            shutil.copy(before, now)
            async with Metis(f"sqlite:///{now}", options) as m:
                again = await m.resume(session.id)
                came_so_far = await run_with(again, "say all is well", at, fault)
                cost = again.cost()
            async with Metis(f"sqlite:///{now}", options) as m:
                after = await m.resume(session.id)
                assert after.cost() == cost
                check_whole(await m.store.messages(session.id))
                assert await after.ask("say goodbye") is not None
                assert await m.store.check() == []
            at += 1 if ALL else 6
    assert at > 20


async def cut(session: Session, script: Script, size: int, *, late: bool) -> bool:
    """Send with the first or second response cut after some bytes; return whether it was cut."""
    step = f"sim: cut {size}"
    if not late:
        script.add(step)
    try:
        async for event in session.send(WORDS):
            if late and isinstance(event, ToolStarted) and not len(script):
                script.add(step)
    except MetisError:
        return True
    return False


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("model", MODELS)
async def test_session_continues_after_cut_at_any_chunk(
    tmp_path: Path, model: str, *, late: bool
) -> None:
    url = f"sqlite:///{tmp_path / 'metis.db'}"
    size, count, is_cut, script = 1, 0, True, Script()
    async with Simulator(script=script) as sim:
        while is_cut:
            async with Metis(url, options_for(sim.base_url)) as m:
                session = await m.session(model=model)
                is_cut = await cut(session, script, size, late=late)
            assert not len(script)
            async with Metis(url, options_for(sim.base_url)) as m:
                await check_goes_on(m, session.id, count)
                assert await m.store.check() == []
            size, count = size + (23 if ALL else 401), count + 1
    assert count > 2


CHILD = """
import asyncio, os, signal, sys
sys.path.insert(0, sys.argv[1])
from session.faults import options_for, run_with, MODELS
from metis.session import Metis, Session, ToolStarted

def die():
    os.kill(os.getpid(), signal.SIGKILL)

async def main(url, base_url, model, at):
    async with Metis(url, options_for(base_url)) as m:
        session = await m.session(model=model, system="Be short.")
        print(session.id, flush=True)
        await run_with(session, "Read a.txt and b.txt", at, die)

asyncio.run(main(sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5])))
"""


@pytest.mark.parametrize("number", range(40 if ALL else 5))
async def test_session_resumes_after_process_is_killed(tmp_path: Path, number: int) -> None:
    url = f"sqlite:///{tmp_path / 'metis.db'}"
    model, at = MODELS[number % STEPS], number if ALL else 3 + 3 * number
    tests = str(Path(__file__).parents[1])
    source = str(Path(metis.__file__).parents[1])
    async with Simulator() as sim:
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-c", CHILD, tests, url, sim.base_url, model, str(at)),
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": source, "PYTHONWARNINGS": "ignore"},
        )
        out, _ = await child.communicate()
        if at < _LEAST_WAITS:
            assert child.returncode == -signal.SIGKILL
        async with Metis(url, options_for(sim.base_url)) as m:
            await check_goes_on(m, out.decode().strip(), number)
            assert await m.store.check() == []
