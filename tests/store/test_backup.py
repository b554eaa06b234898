"""A backup is a complete store as of one moment, made while others write."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from build import assistant, call, tool, tool_id, ulid, user
from metis.canonical import Message
from metis.canonical.errors import StoreError, StoreUnavailableError
from metis.canonical.ids import new_ulid
from metis.store import EventRecord, Store
from metis.store import open as open_store
from metis.store.entries import BookmarkEntry, SwapEntry

pytestmark = pytest.mark.anyio
TASKS = 4
ENOUGH = 20


def message_entry(task: int) -> Message:
    return replace(user("on and on"), id=new_ulid(), session_id=f"sess_{task}")


async def write(
    store: Store, task: int, done: list[str], started: asyncio.Barrier, stop: asyncio.Event
) -> None:
    while not stop.is_set():
        done.append((await store.append(message_entry(task))).id)
        if len(done) == ENOUGH:
            await started.wait()
        await asyncio.sleep(0)


async def test_backup_is_consistent_while_others_write(store: Store, tmp_path: Path) -> None:
    acknowledged: list[list[str]] = [[] for _ in range(TASKS)]
    for task in range(TASKS):
        await store.create_session(f"sess_{task}")
    started, stop = asyncio.Barrier(TASKS + 1), asyncio.Event()
    tasks = [
        asyncio.create_task(write(store, task, acknowledged[task], started, stop))
        for task in range(TASKS)
    ]
    await started.wait()
    before = [len(item) for item in acknowledged]
    await store.backup(tmp_path / "copy.db")
    stop.set()
    await asyncio.gather(*tasks)
    async with open_store(f"sqlite:///{tmp_path / 'copy.db'}") as copy:
        assert await copy.check() == []
        for task, least in enumerate(before):
            result = [item.id for item in await copy.messages(f"sess_{task}")]
            assert result == acknowledged[task][: len(result)]
            assert len(result) >= least
        await copy.append(message_entry(0))


async def test_backup_has_every_table(store: Store, tmp_path: Path) -> None:
    await store.create_session("sess_42", workspace_path="/w", routing_policy={"a": [1]})
    await store.append(user("hi", id=ulid(1)))
    await store.append(assistant(call("a", tool_id(1)), id=ulid(2)))
    await store.append(tool("1", answers=tool_id(1), id=ulid(3)))
    at = (await store.session("sess_42")).created_at
    head: dict[str, Any] = {"session_id": "sess_42", "created_at": at}
    await store.record(BookmarkEntry(id=ulid(4), **head, name="here", message_id=ulid(3)))
    await store.record(SwapEntry(id=ulid(5), **head, to_model="a:b"))
    await store.save_prices("2026-05-08", {"a:b": 1})
    event = EventRecord(
        id="e1",
        timestamp_us=1,
        session_id="sess_42",
        type="turn.started",
        actor="user",
        sensitivity="internal",
        payload_json="{}",
    )
    await store.add_events([event])
    target = tmp_path / "copy.db"
    await store.backup(target)
    async with open_store(f"sqlite:///{target}") as copy:
        assert await copy.export("sess_42") == await store.export("sess_42")
        assert await copy.tool_calls("sess_42") == await store.tool_calls("sess_42")
        assert await copy.bookmarks("sess_42") == {"here": ulid(3)}
        assert await copy.prices() == {"2026-05-08": {"a:b": 1}}
        assert await copy.events("sess_42") == [event]
        assert [hit.message_id for hit in await copy.search("hi")] == [ulid(1)]
        assert await copy.check() == []
    with pytest.raises(StoreUnavailableError) as result:
        await store.backup(target)
    assert result.value.hint == "choose a new file name"


async def test_failed_backup_leaves_no_file(store: Store, tmp_path: Path) -> None:
    await store.create_session("sess_42")
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError):
        await store.backup(tmp_path / "file" / "copy.db")
    assert (tmp_path / "file").read_text() == ""


def test_backup_on_full_disk_leaves_no_file(url: str, tmp_path: Path) -> None:
    script = f"""
import asyncio, resource, signal
from metis.store import open as open_store
from metis.canonical.errors import StoreError
from build import ulid, user

async def main():
    async with open_store({url!r}) as store:
        await store.create_session("sess_42")
        for number in range(60):
            await store.append(user("hi " * 4000, id=ulid(number)))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
        try:
            await store.backup({str(tmp_path / "copy.db")!r})
        except StoreError as error:
            print(type(error).__name__, error.hint)

asyncio.run(main())
"""
    done = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", script],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert "free space" in done.stdout, done.stderr
    assert sorted(tmp_path.glob("copy.db*")) == []
