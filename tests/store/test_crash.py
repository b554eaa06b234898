"""Acknowledged appends survive writers that are killed at random moments.

`METIS_KILLS` sets how often a writer is killed on each store (default 10); `METIS_WRITE_S` for how
many seconds two processes write at once, otherwise they stop after some appends.
"""

import asyncio
import logging
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from judged import request_faults
from many_writer import SHARING, TASKS
from metis.canonical import MessageStatus, validate_session
from metis.store import Store
from metis.store import open as open_store

pytestmark = pytest.mark.slow

log = logging.getLogger("metis.tests")
WRITER = Path(__file__).parent / "crash_writer.py"
MANY_WRITER = Path(__file__).parent / "many_writer.py"
KILLS = int(os.environ.get("METIS_KILLS", "10"))
SECONDS = os.environ.get("METIS_WRITE_S")
APPENDS = 20
_MOST_ASKED = 400
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def killed_writer(url: str, after_s: float) -> list[tuple[str, str, int]]:
    """Start a writer, kill it after a while, and return the ids it reported as acknowledged."""
    with subprocess.Popen(  # noqa: S603 - our own interpreter
        [sys.executable, str(WRITER), url], stdout=subprocess.PIPE, env=ENVIRONMENT
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"open\n"
        time.sleep(after_s)  # the random moment of the kill is the subject of the test
        writer.kill()
        texts, _ = writer.communicate()
    lines = [line.split() for line in texts.decode().split("\n")[:-1]]
    return [(session, message, int(seq)) for session, message, seq in lines]


async def look(
    url: str, acknowledged: list[tuple[str, str, int]], *, everywhere: bool = False
) -> None:
    """Check that every acknowledged append is in its place, and that the sessions are valid."""
    async with open_store(url) as store:
        histories: dict[str, dict[str, int]] = {}
        for session_id in {item[0] for item in acknowledged}:
            entries = await store.history(session_id)
            assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
            histories[session_id] = {entry.id: entry.seq for entry in entries}
        missing = [item for item in acknowledged if histories[item[0]].get(item[1]) != item[2]]
        assert missing == []
        result = [item.id for item in await store.sessions(limit=10_000)]
        for session_id in result if everywhere else histories:
            await check_session(store, session_id)


async def check_session(store: Store, session_id: str) -> None:
    """Check that nothing is half stored, every rule holds, and the next request is valid."""
    messages = await store.messages(session_id)
    assert validate_session(messages) == []
    assert [m for m in messages if m.metadata.status == MessageStatus.PARTIAL] == []
    assert await store.tool_calls(session_id, status="pending") == []
    if messages:
        # A session of a minute of writing is too long for a request.
        assert request_faults(messages[-_MOST_ASKED:]) == {}


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="metis.adapters")


def test_acknowledged_appends_survive_kill_of_writer(url: str) -> None:
    chance = random.Random(20260508)  # noqa: S311 - no secret
    total: list[tuple[str, str, int]] = []
    for _ in range(KILLS):
        acknowledged = killed_writer(url, chance.uniform(0, 0.3))
        total += acknowledged
        asyncio.run(look(url, acknowledged))
    asyncio.run(look(url, total, everywhere=True))
    assert total

    async def check() -> None:
        async with open_store(url) as store:
            assert await store.check() == []

    asyncio.run(check())


def test_two_processes_and_many_tasks_write_the_same_database(url: str, tmp_path: Path) -> None:
    """Each process has its own sessions and all share one: no error, no loss, correct order."""
    shared = "sess_shared"

    async def make() -> None:
        async with open_store(url) as store:
            await store.create_session(shared)

    asyncio.run(make())
    acknowledged = written_by_two(url, shared, tmp_path)
    if SECONDS is None:
        assert len(acknowledged) == 2 * TASKS * APPENDS
    asyncio.run(look(url, acknowledged))

    async def check() -> None:
        async with open_store(url) as store:
            assert len(await store.messages(shared)) == len(
                [item for item in acknowledged if item[0] == shared]
            )
            assert await store.check() == []

    asyncio.run(check())
    log.info("%d appends, %d of %d tasks in one session", len(acknowledged), SHARING, TASKS)


def written_by_two(url: str, shared: str, folder: Path) -> list[tuple[str, str, int]]:
    """Run two writer processes, and return the appends they reported as acknowledged."""
    limit = str(APPENDS) if SECONDS is None else f"{SECONDS}s"
    texts = [folder / f"said-{number}" for number in (1, 2)]
    complaints = [folder / f"complaints-{number}" for number in (1, 2)]
    writers: list[subprocess.Popen[bytes]] = []
    for out, err in zip(texts, complaints, strict=True):
        with out.open("wb") as stdout, err.open("wb") as stderr:
            writer = subprocess.Popen(  # noqa: S603 - our own interpreter
                [sys.executable, str(MANY_WRITER), url, shared, limit],
                stdout=stdout,
                stderr=stderr,
                env=ENVIRONMENT,
            )
        writers.append(writer)
    acknowledged: list[tuple[str, str, int]] = []
    for writer, out, err in zip(writers, texts, complaints, strict=True):
        assert writer.wait() == 0, err.read_text()
        assert err.read_text() == ""
        lines = [line.split() for line in out.read_text().splitlines()]
        acknowledged += [(session, message, int(seq)) for session, message, seq in lines]
    return acknowledged
