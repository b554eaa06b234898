"""Several processes record into one store, in a file and on a server."""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from metis.canonical.message import Role
from metis.gateway.exchange import Exchange, Tenant
from metis.gateway.recorder import Recorder
from metis.session.models import Models
from metis.store import open as open_store
from metis.store.threads import Threads
from postgres import Server, start_server

pytestmark = pytest.mark.anyio

TURNS = 12
TENANT = Tenant(user_id="ann")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def postgres() -> Iterator[Server]:
    server = start_server()
    yield server
    server.stop()


def body_of(history: list[tuple[str, str]]) -> bytes:
    messages = ",".join(f'{{"role":"{role}","content":"{text}"}}' for role, text in history)
    return f'{{"model":"gpt-4o","messages":[{messages}]}}'.encode()


def response_of(text: str) -> bytes:
    choice = (
        f'{{"index":0,"finish_reason":"stop","message":{{"role":"assistant","content":"{text}"}}}}'
    )
    usage = '{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15}'
    return f'{{"id":"c","model":"gpt-4o","choices":[{choice}],"usage":{usage}}}'.encode()


async def talk(recorder: Recorder, name: str, headers: dict[str, str]) -> list[Exchange]:
    """Run one conversation of several turns; each request has the whole history."""
    history: list[tuple[str, str]] = []
    exchanges: list[Exchange] = []
    for number in range(TURNS):
        history.append(("user", f"{name} {number}"))
        exchange = Exchange(
            tenant=TENANT,
            client_protocol="openai",
            client_adapter="openai",
            path="/v1/chat/completions",
            headers=headers,
            requested_model="gpt-4o",
            provider="openai",
            model="gpt-4o",
            request_body=body_of(history),
        )
        if not recorder.begin(exchange):
            await recorder.search(exchange)
        exchange.response_parts = [response_of(f"{name} answer {number}")]
        exchange.status = 200
        exchange.timings.end = exchange.timings.begin + 0.01
        recorder.record(exchange)
        exchanges.append(exchange)
        history.append(("assistant", f"{name} answer {number}"))
        await asyncio.sleep(0.001)
    return exchanges


async def record_all(url: str, process: str) -> None:
    """Run in each process: one own conversation, and one in a shared session."""
    async with open_store(url, recover=False) as store:
        recorder = Recorder(store, Models())
        await recorder.start()
        shared = {"x-session-id": "shared"}
        talks = (talk(recorder, f"{process} own", {}), talk(recorder, f"{process} shared", shared))
        await asyncio.gather(*talks)
        await recorder.close()
        counts = recorder.metrics()
        assert counts["stored"] == 2 * TURNS, counts
        assert counts["shed_messages"] == counts["dropped"] == 0


async def check_all(url: str, processes: list[str]) -> None:
    async with open_store(url) as store:
        sessions = await store.sessions()
        assert len(sessions) == len(processes) + 1
        responses = 0
        for session in sessions:
            history = await store.history(session.id)
            messages = await store.messages(session.id)
            responses += sum(message.role is Role.ASSISTANT for message in messages)
            threads = Threads(history)
            ends = {text: m.id for m in messages for text in [getattr(m.content[0], "text", "")]}
            for process in processes:
                for kind in ("own", "shared"):
                    end = ends.get(f"{process} {kind} answer {TURNS - 1}")
                    if end is not None:
                        assert len(threads.path(end)) == 2 * TURNS
        assert responses == 2 * TURNS * len(processes)
        assert await store.check() == []


async def in_processes(url: str, processes: list[str]) -> None:
    code = (
        "import asyncio, sys; sys.path[:0] = [sys.argv[1], sys.argv[1] + '/../store']; "
        "import test_recorder_workers as t; asyncio.run(t.record_all(sys.argv[2], sys.argv[3]))"
    )
    here = str(Path(__file__).parent)
    running = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", code, here, url, name)
        for name in processes
    ]
    try:
        codes = [await process.wait() for process in running]
    finally:
        for process in running:
            if process.returncode is None:
                process.kill()
    assert codes == [0] * len(processes)
    await check_all(url, processes)


async def test_two_processes_write_to_one_file(tmp_path: Path) -> None:
    await in_processes(f"sqlite:///{tmp_path}/metis.db", ["a", "b"])


@pytest.mark.slow
async def test_two_processes_write_to_one_server(postgres: Server) -> None:
    await in_processes(postgres.new_database(), ["a", "b"])
