"""Nothing acknowledged is lost: writers are killed at random moments, and then we count.

`METIS_KILLS` sets how often a writer is killed on each store; 10 unless told otherwise.
"""

import asyncio
import os
import random
import subprocess
import sys
import time
from pathlib import Path

from metis import adapters, store
from metis.canonical import Message, MessageStatus, Role, validate_session
from metis.store import Store

WRITER = Path(__file__).parent / "crash_writer.py"
KILLS = int(os.environ.get("METIS_KILLS", "10"))
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def killed_writer(url: str, after_s: float) -> list[tuple[str, str, int]]:
    """Start a writer, kill it after a while, and give what it said was acknowledged."""
    with subprocess.Popen(  # noqa: S603 - our own interpreter
        [sys.executable, str(WRITER), url], stdout=subprocess.PIPE, env=ENVIRONMENT
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"open\n"
        time.sleep(after_s)  # the moment of the kill is what is tested
        writer.kill()
        said, _ = writer.communicate()
    lines = [line.split() for line in said.decode().split("\n")[:-1]]
    return [(session, message, int(seq)) for session, message, seq in lines]


async def look(
    url: str, acknowledged: list[tuple[str, str, int]], *, everywhere: bool = False
) -> None:
    async with store.open(url) as keep:
        histories: dict[str, dict[str, int]] = {}
        for session_id in {each[0] for each in acknowledged}:
            entries = await keep.history(session_id)
            assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
            histories[session_id] = {entry.id: entry.seq for entry in entries}
        missing = [each for each in acknowledged if histories[each[0]].get(each[1]) != each[2]]
        assert missing == []
        found = [each.id for each in await keep.sessions(limit=10_000)]
        for session_id in found if everywhere else histories:
            await check_session(keep, session_id)


async def check_session(keep: Store, session_id: str) -> None:
    """Nothing is half there, every rule holds, and the next request is valid everywhere."""
    messages = await keep.messages(session_id)
    assert validate_session(messages) == []
    assert [m for m in messages if m.metadata.status == MessageStatus.PARTIAL] == []
    assert await keep.tool_calls(session_id, status="pending") == []
    if messages:
        check_requests(messages)


def check_requests(messages: list[Message]) -> None:
    asked = next(message for message in messages if message.role is Role.USER)
    for name in ("anthropic", "openai"):
        wire = adapters.get(name).to_wire([*messages, asked])
        assert wire.body


def test_what_was_acknowledged_survives_the_death_of_its_writer(url: str) -> None:
    chance = random.Random(20260508)  # noqa: S311 - no secret
    total: list[tuple[str, str, int]] = []
    for _ in range(KILLS):
        acknowledged = killed_writer(url, chance.uniform(0, 0.3))
        total += acknowledged
        asyncio.run(look(url, acknowledged))
    asyncio.run(look(url, total, everywhere=True))
    assert total

    async def check() -> None:
        async with store.open(url) as keep:
            assert await keep.check() == []

    asyncio.run(check())


def test_two_processes_and_many_tasks_write_the_same_database(url: str) -> None:
    """Each process has sessions of its own and all share one; no error, nothing lost, in order."""
    shared = "sess_shared"

    async def make() -> None:
        async with store.open(url) as keep:
            await keep.create_session(shared)

    asyncio.run(make())
    script = f"""
import asyncio
from build import user
from msgspec.structs import replace
from metis import store
from metis.canonical import new_session_id, new_ulid

async def write(keep, session_id, count):
    for number in range(count):
        message = replace(user(str(number)), id=new_ulid(), session_id=session_id)
        entry = await keep.append(message, renew_ids=True)
        print(session_id, entry.id, entry.seq)

async def main():
    async with store.open({url!r}) as keep:
        own = [(await keep.create_session(new_session_id())).id for _ in range(12)]
        await asyncio.gather(*(write(keep, each, 25) for each in own + [{shared!r}] * 4))

asyncio.run(main())
"""
    writers = [
        subprocess.Popen(  # noqa: S603 - our own interpreter
            [sys.executable, "-c", script],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=ENVIRONMENT,
        )
        for _ in range(2)
    ]
    acknowledged: list[tuple[str, str, int]] = []
    heard = [(writer, *writer.communicate()) for writer in writers]
    for writer, said, complaint in heard:
        assert writer.returncode == 0, complaint.decode()
        lines = [line.split() for line in said.decode().splitlines()]
        acknowledged += [(session, message, int(seq)) for session, message, seq in lines]
    assert len(acknowledged) == 2 * 16 * 25
    asyncio.run(look(url, acknowledged))

    async def check() -> None:
        async with store.open(url) as keep:
            assert len(await keep.messages(shared)) == 2 * 4 * 25
            assert await keep.check() == []

    asyncio.run(check())
