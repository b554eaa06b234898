"""The viewer on a large store: CPU of the server for lists, searches and a long conversation.

    python benchmarks/viewer.py [--conversations 100000] [--messages 9] [--long 100000] [--tails N]

Each figure is CPU time of the process that answers, so that other load on the machine does not
change it; the floor is an answer of the same application without any data (an error page). Two
figures are of another kind: the time until Chromium has painted the newest page of the long
conversation, the best of ten loads; and what pages that follow conversations add to the CPU time
of as many streams, the median of rounds with and without them.
"""

import argparse
import asyncio
import shutil
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import uvicorn

from metis import store as stores
from metis.canonical import (
    Message,
    MessageMetadata,
    Role,
    RoutingDecisionRecord,
    RoutingMode,
    TextBlock,
    Usage,
    new_ulid,
)
from metis.session import Metis, Options
from metis.store import Store
from metis.web.app import COOKIE, TokenAccess, Viewer
from metis.web.index import ViewerIndex

MODELS = ("anthropic:claude-sonnet-4-6", "openai:gpt-5", "gemini:gemini-3.5-flash")
_PAINTS = "performance.getEntriesByName('first-contentful-paint')"
WORDS = ["owl", "badger", "otter", "heron", "lynx", "marten", "stoat", "wren", "adder", "newt"]


def messages(session_id: str, count: int, number: int, start: datetime) -> Iterable[Message]:
    """Yield a conversation of short messages."""
    for index in range(count):
        role = Role.USER if index % 2 == 0 else Role.ASSISTANT
        metadata = MessageMetadata()
        if role is Role.ASSISTANT:
            usage = Usage(
                input_tokens=100 * index,
                output_tokens=50,
                cost_usd=Decimal("0.00123"),
                pricing_version="2026-05-08",
                latency_ms=900 + index,
            )
            model = MODELS[number % 3]
            routing = RoutingDecisionRecord(
                mode=RoutingMode.DEFAULT, chosen_model=model, reason="default"
            )
            metadata = MessageMetadata(
                model=model, provider=model.partition(":")[0], usage=usage, routing=routing
            )
        yield Message(
            id=new_ulid(),
            session_id=session_id,
            role=role,
            content=(TextBlock(f"{WORDS[(number + index) % 10]} number {number} line {index}"),),
            created_at=start + timedelta(seconds=index),
            metadata=metadata,
        )


async def fill(store: Store, conversations: int, count: int, long: int) -> str:
    """Fill a store; return the id of the long conversation."""
    start = datetime.now(UTC) - timedelta(days=300)
    batch: list[Message] = []
    for number in range(conversations):
        session = await store.create_session(workspace_path=f"/project/{number % 40}")
        batch += messages(session.id, count, number, start + timedelta(minutes=number % 400_000))
        if len(batch) >= 5_000:  # noqa: PLR2004 - messages in one transaction
            await store.append_all(batch)
            batch.clear()
    session = await store.create_session(workspace_path="/project/long")
    for part in range(0, long, 5_000):
        await store.append_all(
            messages(session.id, min(5_000, long - part), part, start + timedelta(days=100 + part))
        )
    await store.append_all(batch)
    return session.id


async def cpu_ms(viewer: Viewer, target: str, repeats: int = 5) -> float:
    """Return the least CPU time of a request, in milliseconds."""
    scope = scope_of(target)

    async def receive() -> dict[str, object]:
        return {"type": "http.request"}

    async def send(event: dict[str, object]) -> None:
        del event

    best = float("inf")
    for _ in range(repeats):
        begin = time.process_time()
        await viewer(scope, receive, send)
        best = min(best, (time.process_time() - begin) * 1000)
    return best


async def painted_ms(viewer: Viewer, target: str) -> float | None:
    """Return the milliseconds until Chromium has painted a page; None without a browser."""
    chromium = shutil.which("chromium")
    if chromium is None:
        return None
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(viewer, lifespan="off", log_config=None, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve([listening]))
    root = f"http://127.0.0.1:{listening.getsockname()[1]}"
    try:
        return await asyncio.to_thread(_load_pages, chromium, root, target)
    finally:
        server.should_exit = True
        await serving
        listening.close()


def _load_pages(chromium: str, root: str, target: str) -> float:
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - only where there is a browser

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(f"{root}/?token=token")
        times: list[float] = []
        for _ in range(10):
            page.goto(f"{root}{target}")
            # The policy of the page forbids the scripts by which `wait_for_function` waits.
            while not page.evaluate(f"{_PAINTS}.length"):
                page.wait_for_timeout(20)
            times.append(page.evaluate(f"{_PAINTS}[0].startTime"))
        browser.close()
    return min(times)


async def tail_share(count: int, rounds: int = 5) -> float:
    """Return by how many percent pages that follow `count` streams raise their CPU time."""
    with tempfile.TemporaryDirectory() as directory:
        options = Options(simulate=True, home=Path(directory))
        async with Metis(f"sqlite:///{directory}/live.db", options) as library:
            viewer = Viewer(library.store, TokenAccess("token"))
            plain, followed = list[float](), list[float]()
            for number in range(2 * rounds + 1):
                times = followed if number % 2 else plain
                times.append(await _streams_s(library, viewer, count, is_followed=bool(number % 2)))
    # The first round also loads modules.
    return 100 * (statistics.median(followed) / statistics.median(plain[1:]) - 1)


async def _streams_s(library: Metis, viewer: Viewer, count: int, *, is_followed: bool) -> float:
    sessions = [await library.session() for _ in range(count)]
    left = asyncio.Event()
    tails: list[asyncio.Task[None]] = []
    begin = time.process_time()
    if is_followed:
        paths = [f"/s/{session.id}/live" for session in sessions]
        tails = [asyncio.create_task(_follow(viewer, path, left)) for path in paths]
    await asyncio.gather(*(session.ask("count to 400") for session in sessions))
    await asyncio.sleep(1)  # what came last is shown as well
    used = time.process_time() - begin
    left.set()
    await asyncio.gather(*tails)
    return used


async def _follow(viewer: Viewer, path: str, left: asyncio.Event) -> None:
    async def receive() -> dict[str, object]:
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(event: dict[str, object]) -> None:
        del event

    await viewer(scope_of(path), receive, send)


def scope_of(target: str) -> dict[str, Any]:
    """Return the scope of a request."""
    path, _, query = target.partition("?")
    return {
        "type": "http",
        "method": "GET",
        "path": path,
        "query_string": query.encode(),
        "headers": [(b"host", b"127.0.0.1"), (b"cookie", f"{COOKIE}=token".encode())],
    }


async def run(arguments: argparse.Namespace) -> None:
    """Fill a store and measure."""
    if arguments.tails:
        share = await tail_share(arguments.tails)
        echo(f"following {arguments.tails} streams adds {share:.1f} % CPU")
    with tempfile.TemporaryDirectory() as directory:
        url = f"sqlite:///{directory}/large.db"
        async with stores.open(url) as store:
            begin = time.process_time()
            long = await fill(store, arguments.conversations, arguments.messages, arguments.long)
            total = arguments.conversations * arguments.messages + arguments.long
            echo(f"{total:,} messages stored in {time.process_time() - begin:.0f} s of CPU")
            begin = time.process_time()
            index = ViewerIndex(store, Path(directory) / "index.db")
            await index.refresh()
            echo(f"indexed in {time.process_time() - begin:.0f} s of CPU")
            begin = time.process_time()
            await store.search("owl")
            echo(f"search index in {time.process_time() - begin:.0f} s of CPU")
            viewer = Viewer(store, TokenAccess("token"), index=index)
            floor = await cpu_ms(viewer, "/nothing")
            echo(f"floor {floor:.2f} ms")
            for target in (
                "/",
                "/?sort=cost",
                "/?model=openai%3Agpt-5&project=%2Fproject%2F7",
                "/?provider=gemini&min_cost=0.002",
                "/?q=owl",
                "/?q=badger+number+77",
                f"/s/{long}",
                f"/s/{long}/older?before=50000",
                "/cost?days=3650",
                "/speed?days=3650",
            ):
                echo(f"{await cpu_ms(viewer, target):8.1f} ms  {target.replace(long, 'LONG')}")
            painted = await painted_ms(viewer, f"/s/{long}")
            if painted is not None:
                echo(f"{painted:8.0f} ms  until Chromium has painted /s/LONG")
            index.close()


def echo(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--conversations", type=int, default=100_000)
    parser.add_argument("--messages", type=int, default=9)
    parser.add_argument("--long", type=int, default=100_000)
    parser.add_argument("--tails", type=int, default=100)
    asyncio.run(run(parser.parse_args()))
