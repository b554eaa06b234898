"""Damage on disk is detected, reported, and limited to the damaged parts."""

import asyncio
import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from build import NOW, assistant, call, tool, tool_id, ulid, user
from metis.canonical import Extra, MessageStatus, UnknownBlock
from metis.canonical.errors import (
    InvalidMessageError,
    StoreCorruptError,
    StoreError,
    StoreUnavailableError,
)
from metis.store import Policy, Store, repair
from metis.store import open as open_store
from metis.store.entries import CompactionEntry, SwapEntry
from metis.store.records import BLOCK, damage_of_bytes, read_digests
from metis.store.salvage import DamagedFile
from metis.store.sqlite import SqliteTransaction

SESSION = "sess_42"


async def fill(store: Store, count: int) -> None:
    """Write a session of prompts, calls, results and other entries."""
    await store.create_session(SESSION, workspace_path="/w", active_model="a:b")
    number = 0
    for turn in range(count):
        number += 1
        await store.append(user(f"prompt {turn} " + "é" * (turn % 7) * 300, id=ulid(number)))
        number += 1
        await store.append(assistant(call("a", tool_id(turn)), id=ulid(number)))
        number += 1
        await store.append(tool(f"result {turn}", answers=tool_id(turn), id=ulid(number)))
        if turn % 10 == 0:
            number += 1
            head: dict[str, Any] = {"session_id": SESSION, "created_at": NOW}
            await store.record(SwapEntry(id=ulid(number), **head, to_model=f"a:{turn}"))


def make(url: str, count: int = 100) -> None:
    async def write() -> None:
        async with open_store(url) as store:
            await fill(store, count)

    asyncio.run(write())


def change_bytes(path: Path, old: bytes, new: bytes) -> None:
    data = path.read_bytes()
    assert data.count(old) == 1, data.count(old)
    assert len(old) == len(new)
    path.write_bytes(data.replace(old, new))


async def problems_of(url: str) -> list[str]:
    async with open_store(url) as store:
        return await store.check()


def test_changed_byte_of_message_is_reported(tmp_path: Path, sqlite_url: str) -> None:
    make(sqlite_url)
    change_bytes(tmp_path / "metis.db", b"prompt 57 ", b"prompt 67 ")

    async def use() -> None:
        async with open_store(sqlite_url) as store:
            with pytest.raises(StoreCorruptError, match="digest differs") as result:
                await store.messages(SESSION)
            assert SESSION in str(result.value)
            assert "metis store repair" in result.value.hint
            with pytest.raises(StoreCorruptError):
                await store.export(SESSION)
            damaged = result.value.text.split("message ")[1].split()[0]
            problems = await store.check()
            assert len(problems) == 1
            assert problems[0].startswith(f"session {SESSION}: message {damaged}: the digest of")

    asyncio.run(use())


def test_an_entry_and_the_newest_messages_are_checked_as_well(
    tmp_path: Path, sqlite_url: str
) -> None:
    async def write() -> None:
        async with open_store(sqlite_url) as store:
            await fill(store, 80)
            head: dict[str, Any] = {"session_id": SESSION, "created_at": NOW}
            await store.record(CompactionEntry(id=ulid(900), **head, summary="the owls flew"))
            await store.append(user("the last words", id=ulid(901)))

    async def read() -> None:
        async with open_store(sqlite_url) as store:
            with pytest.raises(StoreCorruptError, match=ulid(901)):
                await store.messages(SESSION, newest=2)
            assert len(await store.check()) == 2

    async def read_entry() -> None:
        async with open_store(sqlite_url) as store:
            with pytest.raises(StoreCorruptError, match="entry 249"):
                await store.history(SESSION)

    asyncio.run(write())
    change_bytes(tmp_path / "metis.db", b"the owls flew", b"the owls fled")
    asyncio.run(read_entry())
    change_bytes(tmp_path / "metis.db", b"the last words", b"the lost words")
    asyncio.run(read())


@pytest.mark.parametrize(
    ("column", "value", "cause"),
    [
        ("content_json", b'[{"text":"\xff","type":"text"}]', "byte 10 of 28 is not UTF-8 (0xff)"),
        ("content_json", b'[{"text":"a"', "content: Input data was truncated"),
        ("metadata_json", b"{nothing}", "metadata: JSON is malformed"),
        ("created_at", 5, "digest of its"),
        ("role", "assistant", "digest of its"),
    ],
)
def test_damage_report_names_the_cause(
    tmp_path: Path, sqlite_url: str, column: str, value: object, cause: str
) -> None:
    make(sqlite_url, 3)
    with closing(sqlite3.connect(tmp_path / "metis.db")) as database:
        cast = "CAST(? AS TEXT)" if isinstance(value, bytes) else "?"
        sql = f"UPDATE messages SET {column} = {cast} WHERE id = ?"  # noqa: S608 - a list of ours
        database.execute(sql, (value, ulid(1)))
        database.commit()
    problems = asyncio.run(problems_of(sqlite_url))
    assert any(ulid(1) in line and cause in line for line in problems), problems

    async def read() -> None:
        async with open_store(sqlite_url) as store:
            with pytest.raises(StoreCorruptError, match=ulid(1)):
                await store.messages(SESSION)

    asyncio.run(read())


def test_missing_message_is_reported(tmp_path: Path, sqlite_url: str) -> None:
    make(sqlite_url, 3)
    with closing(sqlite3.connect(tmp_path / "metis.db")) as database:
        database.execute("DELETE FROM messages WHERE id = ?", (ulid(1),))
        database.commit()
    problems = asyncio.run(problems_of(sqlite_url))
    assert f"session {SESSION}: message {ulid(1)} is missing" in problems


def digests_of(path: Path) -> dict[str, int]:
    with closing(sqlite3.connect(path)) as database:
        return read_digests(SqliteTransaction(database), SESSION)


def test_check_adds_digests_to_messages_of_older_version(tmp_path: Path, sqlite_url: str) -> None:
    make(sqlite_url, BLOCK)
    before = digests_of(tmp_path / "metis.db")
    assert len(before) == 3 * BLOCK + 8 - 1  # seven entries beside the messages
    with closing(sqlite3.connect(tmp_path / "metis.db")) as database:
        database.execute("DELETE FROM digests")
        database.commit()
    assert asyncio.run(problems_of(sqlite_url)) == []
    assert digests_of(tmp_path / "metis.db") == before
    change_bytes(tmp_path / "metis.db", b"prompt 57 ", b"prompt 67 ")
    assert len(asyncio.run(problems_of(sqlite_url))) == 1


@pytest.mark.anyio
async def test_rewritten_messages_get_new_digest(store: Store) -> None:
    await store.create_session(SESSION)
    raw = {"raw": "x" * 1000}
    whole = assistant("whole", id=ulid(1))
    await store.append(replace(whole, metadata=replace(whole.metadata, provider_raw=raw)))
    part = assistant("par", id=ulid(2))
    await store.append(replace(part, metadata=replace(part.metadata, status=MessageStatus.PARTIAL)))
    await store.save(assistant("partly", id=ulid(2)))
    await store.sweep(Policy(raw_bytes=100), is_dry_run=False)
    assert await store.check() == []
    assert [message.id for message in await store.messages(SESSION)] == [ulid(1), ulid(2)]


@pytest.mark.anyio
async def test_deleted_session_leaves_no_digests(store: Store) -> None:
    await fill(store, 3)
    lines = await store.export(SESSION)
    await store.delete(SESSION)
    await store.import_lines(lines[:4])
    await store.close()


def test_a_failed_append_has_no_digest(tmp_path: Path, sqlite_url: str) -> None:
    async def write() -> None:
        async with open_store(sqlite_url) as store:
            await fill(store, 2)
            with pytest.raises(InvalidMessageError):
                await store.append(tool("1", answers=tool_id(99), id=ulid(500)))
            await store.append(user("next", id=ulid(501)))

    asyncio.run(write())
    digests = digests_of(tmp_path / "metis.db")
    assert ulid(501) in digests
    assert ulid(500) not in digests
    assert asyncio.run(problems_of(sqlite_url)) == []


# Repair


async def saved(path: Path) -> dict[str, bytes]:
    async with open_store(f"sqlite:///{path}") as store:
        assert await store.check() == []
        lines: dict[str, bytes] = {}
        for record in await store.sessions():
            for entry in await store.history(record.id):
                lines[entry.id] = repr(replace(entry, seq=0)).encode()
        return lines


def test_repair_of_undamaged_store_keeps_everything(tmp_path: Path, sqlite_url: str) -> None:
    make(sqlite_url, 30)
    report = asyncio.run(repair(sqlite_url, tmp_path / "new.db"))
    assert report.lost == ()
    assert (report.session_count, report.message_count) == (1, 90)

    async def export(url: str) -> list[bytes]:
        async with open_store(url) as store:
            return await store.export(SESSION)

    new = f"sqlite:///{tmp_path / 'new.db'}"
    assert asyncio.run(export(new)) == asyncio.run(export(sqlite_url))
    with pytest.raises(StoreUnavailableError, match="exists already"):
        asyncio.run(repair(sqlite_url, tmp_path / "new.db"))
    assert tmp_path.joinpath("new.db").stat().st_mode & 0o077 == 0


def test_deleted_sessions_stay_deleted(tmp_path: Path, sqlite_url: str) -> None:
    async def write() -> None:
        async with open_store(sqlite_url) as store:
            await fill(store, 100)
            await store.create_session("sess_43")
            await store.append(replace(user("stays", id=ulid(9999)), session_id="sess_43"))
            await store.delete(SESSION)

    asyncio.run(write())
    report = asyncio.run(repair(sqlite_url, tmp_path / "new.db"))
    assert (report.session_count, report.message_count) == (1, 1)


@pytest.mark.parametrize(
    "seed", [0, 5, *(pytest.param(seed, marks=pytest.mark.fuzz) for seed in range(1, 40))]
)
def test_random_damage_loses_only_damaged_parts(tmp_path: Path, sqlite_url: str, seed: int) -> None:
    make(sqlite_url, 60)
    whole = asyncio.run(saved(tmp_path / "metis.db"))
    path = tmp_path / "metis.db"
    data = bytearray(path.read_bytes())
    chance = random.Random(seed)  # noqa: S311 - a test
    pages: set[int] = set()
    for _ in range(1 + seed):
        place = chance.randrange(len(data))
        pages.add(place // 4096)
        # Single bytes and ranges, in headers, pointers and texts.
        for offset in range(chance.choice((1, 1, 8, 300))):
            if place + offset < len(data):
                data[place + offset] ^= chance.randrange(1, 256)
                pages.add((place + offset) // 4096)
    path.write_bytes(data)
    report = asyncio.run(repair(sqlite_url, tmp_path / "new.db"))
    assert path.read_bytes() == data, "the damaged file is only read"
    rest = asyncio.run(saved(tmp_path / "new.db"))
    # Every remaining message equals the written one. A crash notice may be added for calls whose
    # result was lost.
    # A message without digest cannot be verified; the report states that.
    reported = "\n".join(line for line in report.lost if "digest is lost" in line)
    changed = [name for name in rest if rest[name] != whole.get(name) and name in whole]
    changed = [name for name in changed if name not in reported]
    assert not changed
    lost = whole.keys() - rest.keys()
    for name in lost:
        assert any(name in line or "entry" in line or "page" in line for line in report.lost), name
    # A page has at most some dozens of rows; a lost call also loses its result.
    assert len(lost) <= 60 * len(pages)


def test_file_without_first_page_is_repaired(tmp_path: Path, sqlite_url: str) -> None:
    make(sqlite_url, 60)
    whole = asyncio.run(saved(tmp_path / "metis.db"))
    path = tmp_path / "metis.db"
    path.write_bytes(b"\xff" * 4096 + path.read_bytes()[4096:])
    with pytest.raises(StoreError):
        open_store(sqlite_url)
    asyncio.run(repair(sqlite_url, tmp_path / "new.db"))
    assert asyncio.run(saved(tmp_path / "new.db")) == whole


def test_entries_only_in_write_ahead_log_are_repaired(tmp_path: Path, sqlite_url: str) -> None:
    copy = tmp_path / "copy.db"

    async def crash() -> None:
        async with open_store(sqlite_url) as store:
            await fill(store, 5)
            for suffix in ("", "-wal"):
                shutil.copyfile(f"{tmp_path / 'metis.db'}{suffix}", f"{copy}{suffix}")

    asyncio.run(crash())
    report = asyncio.run(repair(f"sqlite:///{copy}", tmp_path / "new.db"))
    assert report.message_count == 15


@pytest.mark.parametrize("size", [0, 1, 100, 4096, 5000])
def test_any_bytes_are_scanned_without_error(size: int) -> None:
    chance = random.Random(size)  # noqa: S311 - a test
    for _ in range(300):
        head = chance.choice((b"", b"SQLite format 3\x00"))
        kind = bytes([chance.choice((2, 10, 13, 0))])
        data = (head + kind + chance.randbytes(size))[:size]
        list(DamagedFile(data).rows())


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b'{"a":1}', None),
        (b'{"a":"\xff"}', "body: byte 6 of 9 is not UTF-8 (0xff)"),
        (b"{", "body: Input data was truncated, of 1 bytes"),
    ],
)
def test_damage_report_names_byte_position(data: bytes, text: str | None) -> None:
    damage = damage_of_bytes("body", data)
    assert damage == text


def test_only_a_file_is_repaired(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError, match="only a SQLite file can be repaired"):
        asyncio.run(repair("postgresql://localhost/metis", tmp_path / "new.db"))


def change_rows(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as database:
        for statement in statements:
            database.execute(statement)
        database.commit()
        # Without the old pages, from which deleted rows could be read.
        database.execute("VACUUM")


def test_lost_row_of_session_is_reported(tmp_path: Path, sqlite_url: str) -> None:
    make(sqlite_url, 3)
    change_rows(tmp_path / "metis.db", "DELETE FROM sessions")
    report = asyncio.run(repair(sqlite_url, tmp_path / "new.db"))
    assert report.message_count == 9
    assert report.lost == (
        f"session {SESSION}: its row; workspace and model are not known any more",
    )


def test_lost_digests_are_reported(tmp_path: Path, sqlite_url: str) -> None:
    make(sqlite_url, BLOCK)
    path = tmp_path / "metis.db"
    before = digests_of(path)
    change_rows(path, "DELETE FROM digests WHERE number = (SELECT max(number) FROM digests)")
    without = sorted(before.keys() - digests_of(path).keys())
    assert 0 < len(without) < len(before)
    report = asyncio.run(repair(sqlite_url, tmp_path / "new.db"))
    names = [f"entry {key[1:]}" if key[0] == "#" else f"message {key}" for key in without]
    text = "it is saved, but its digest is lost: whether it changed is unknown"
    assert sorted(report.lost) == sorted(f"session {SESSION}: {name}: {text}" for name in names)
    assert asyncio.run(saved(tmp_path / "new.db")) == asyncio.run(saved(path))


def test_unreadable_page_is_reported(tmp_path: Path, sqlite_url: str) -> None:
    make(sqlite_url, 60)
    path = tmp_path / "metis.db"
    data = bytearray(path.read_bytes())
    # A leaf of a table (13) with more cells than a page can have.
    start = next(at for at in range(4096, len(data), 4096) if data[at] == 13)
    data[start + 3 : start + 5] = b"\xff\xff"
    path.write_bytes(data)
    report = asyncio.run(repair(sqlite_url, tmp_path / "new.db"))
    assert f"page {start // 4096 + 1}: its header counts 65535 cells" in report.lost


def test_unknown_parts_of_messages_are_repaired(tmp_path: Path, sqlite_url: str) -> None:
    newer = user("hi", UnknownBlock(b'{"type":"hologram", "n": 1.50}'), id=ulid(1))

    async def write() -> None:
        async with open_store(sqlite_url) as store:
            await store.create_session(SESSION)
            await store.append(replace(newer, extra=Extra({"mood": Raw(b'[1, "calm"]')})))

    asyncio.run(write())
    report = asyncio.run(repair(sqlite_url, tmp_path / "new.db"))
    assert (report.lost, report.message_count) == ((), 1)
    assert asyncio.run(saved(tmp_path / "new.db")) == asyncio.run(saved(tmp_path / "metis.db"))
