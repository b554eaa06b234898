"""The viewer on a large store: CPU of the server for lists, searches and a long conversation.

    python benchmarks/viewer.py [--conversations 100000] [--messages 10] [--long 100000]

Each figure is CPU time of the process that answers, so that other load on the machine does not
change it; the floor is an answer of the same application without any data (an error page).
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

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
from metis.store import Store
from metis.web.app import COOKIE, TokenAccess, Viewer
from metis.web.index import ViewerIndex

MODELS = ("anthropic:claude-sonnet-4-6", "openai:gpt-5", "gemini:gemini-3.5-flash")
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
    path, _, query = target.partition("?")
    scope: dict[str, Any] = {
        "type": "http",
        "method": "GET",
        "path": path,
        "query_string": query.encode(),
        "headers": [(b"host", b"127.0.0.1"), (b"cookie", f"{COOKIE}=token".encode())],
    }

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


async def run(arguments: argparse.Namespace) -> None:
    """Fill a store and measure."""
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
    asyncio.run(run(parser.parse_args()))
