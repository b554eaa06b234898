"""Sequence numbers follow from message ids and the few journal rows."""

import asyncio
import random
import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from msgspec.structs import replace

from build import NOW, assistant, call, provenance, tool, tool_id, ulid, user
from metis.canonical import Message, MessageStatus, Role
from metis.store import Store
from metis.store import open as open_store
from metis.store.database import newest_schema, schema_statements, schema_steps
from metis.store.entries import AnyEntry, ErrorEntry, MessageEntry, encode_entry
from metis.store.queries import read_history_before
from metis.store.records import to_microseconds
from postgres import Server

S = "sess_42"
PARTIAL = provenance(status=MessageStatus.PARTIAL, stop_reason=None)


def message_entry(number: int, seconds: float) -> Message:
    """Return a message with a given time."""
    message = user(f"word {number}", id=ulid(number))
    return replace(message, created_at=NOW + timedelta(seconds=seconds))


async def visible(store: Store) -> list[tuple[int, str]]:
    return [(entry.seq, entry.id) for entry in await store.history(S)]


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.parametrize("seed", range(4))
async def test_sequence_numbers_equal_acknowledged_numbers(store: Store, seed: int) -> None:
    """Times stay, decrease and jump; other entries intervene; some messages end later."""
    chance = random.Random(seed)  # noqa: S311 - the same draw in every run
    await store.create_session(S)
    stored: list[tuple[int, str]] = []
    messages: list[Message] = []
    unfinished: list[Message] = []
    clock = 0.0
    for number in range(1, 260):
        if chance.random() < 0.8:
            clock += chance.choice([1, 1, 1, 1, 1, 1, 0, -50, 300])
        draw = chance.random()
        if draw < 0.1:
            error = ErrorEntry(id=ulid(number), session_id=S, created_at=NOW, text=str(number))
            placed: AnyEntry = await store.record(error)
        elif draw < 0.15:
            message = replace(message_entry(number, clock), role=Role.ASSISTANT, metadata=PARTIAL)
            placed = await store.append(message)
            unfinished.append(message)
            messages.append(message)
        else:
            placed = await store.append(message_entry(number, clock))
            messages.append(message_entry(number, clock))
        stored.append((placed.seq, placed.id))
        if unfinished and chance.random() < 0.1:
            open_one = unfinished.pop()
            ended = replace(message_entry(1, clock), id=open_one.id)
            await store.save(ended)
            messages[messages.index(open_one)] = ended
    assert [seq for seq, _ in stored] == list(range(1, 260))
    assert await visible(store) == stored
    assert await store.messages(S) == messages
    for count in (0, 1, 3, 50, 64, 200, 1000):
        newest = await store.history(S, newest=count)
        assert [(e.seq, e.id) for e in newest] == stored[max(0, len(stored) - count) :]
        assert await store.messages(S, newest=count) == messages[max(0, len(messages) - count) :]
    for after in (0, 1, 63, 64, 65, 200, 258, 259, 400):
        behind = await store.history(S, after=after)
        assert [(e.seq, e.id) for e in behind] == stored[after:]
        both = await store.history(S, after=after, newest=10)
        assert both == behind[-10:]
    for before in (0, 1, 2, 63, 64, 65, 130, 258, 259, 260, 400):
        for count in (1, 10, 64, 100):
            page = await store.read(
                lambda t, before=before, count=count: read_history_before(t, S, before, count)
            )
            expected = stored[: max(0, before - 1)]
            assert [(e.seq, e.id) for e in page] == expected[max(0, len(expected) - count) :]
    assert await store.check() == []


@pytest.mark.anyio
async def test_most_messages_need_no_journal_row(sqlite_url: str, tmp_path: Path) -> None:
    async with open_store(sqlite_url) as store:
        await store.create_session(S)
        for number in range(1, 201):
            await store.append(message_entry(number, number))
        assert (await store.append(message_entry(201, 0))).seq == 201
    with closing(sqlite3.connect(tmp_path / "metis.db")) as database:
        result = database.execute("SELECT seq FROM journal ORDER BY seq").fetchall()
    assert result == [(64,), (128,), (192,), (201,)]


@pytest.mark.anyio
async def test_next_writer_continues_the_sequence(url: str) -> None:
    async with open_store(url) as store, open_store(url) as other:
        await store.create_session(S)
        for number in range(1, 141):
            entry = await (store if number % 3 else other).append(message_entry(number, number % 7))
            assert entry.seq == number
        assert len(await other.messages(S)) == 140


V1_JOURNAL = "INSERT INTO journal (session_id, seq, message_id, entry_json) VALUES (%s, %s, %s, %s)"
V1_SESSION = "INSERT INTO sessions VALUES (%s, '', NULL, NULL, 1, 0, 0)"
V1_MESSAGE = "INSERT INTO messages VALUES (%s, %s, 'user', %s, '{}', %s, 1)"


def v1_statements() -> list[tuple[str, tuple[object, ...]]]:
    """Return the rows of the first version: one journal row per message."""
    entry = ErrorEntry(id="e", session_id=S, created_at=NOW, text="oh", seq=3)
    result: list[tuple[str, tuple[object, ...]]] = [
        (V1_SESSION, (S,)),
        (V1_SESSION, ("empty",)),
        (V1_JOURNAL, (S, 3, None, encode_entry(entry).decode())),
    ]
    for seq, seconds in ((1, 10), (2, 5), (4, 5), (5, 20)):
        text = f'[{{"text":"{seq}","type":"text"}}]'
        at = to_microseconds(NOW + timedelta(seconds=seconds))
        result.append((V1_MESSAGE, (ulid(seq), S, text, at)))
        result.append((V1_JOURNAL, (S, seq, ulid(seq), None)))
    return result


async def goes_on_from_v1(url: str) -> None:
    async with open_store(url) as store:
        history = await store.history(S)
        assert [entry.seq for entry in history] == [1, 2, 3, 4, 5]
        assert [type(e) is MessageEntry for e in history] == [True, True, False, True, True]
        assert [entry.id for entry in await store.history(S, after=3)] == [ulid(4), ulid(5)]
        assert (await store.append(message_entry(6, 7))).seq == 6
        assert (await store.append(message_entry(7, 30))).seq == 7
        assert [m.id for m in await store.messages(S, newest=3)] == [ulid(5), ulid(6), ulid(7)]
        assert await store.history("empty") == []
        assert await store.check() == []
        assert await store.version() == newest_schema("sqlite")


def test_sqlite_store_of_first_version_continues(sqlite_url: str, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "metis.db")) as database:
        database.executescript(schema_steps("sqlite")[0][1])
        for sql, values in v1_statements():
            database.execute(sql.replace("%s", "?"), values)
        database.execute("PRAGMA user_version = 1")
        database.execute("PRAGMA application_id = 1835365481")
        database.commit()
    asyncio.run(goes_on_from_v1(sqlite_url))


def test_postgres_store_of_first_version_continues(postgres: Server) -> None:
    url = postgres.new_database()
    with psycopg.connect(url) as database:
        for statement in schema_statements(schema_steps("postgres")[0][1]):
            database.execute(statement.encode())
        for sql, values in v1_statements():
            database.execute(sql.encode(), values)
        database.execute("CREATE TABLE metis_schema (version INTEGER PRIMARY KEY)")
        database.execute("INSERT INTO metis_schema VALUES (1)")
    asyncio.run(goes_on_from_v1(url))


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM messages WHERE id = (SELECT id FROM messages ORDER BY id LIMIT 1 OFFSET 40)",
        "UPDATE journal SET latest_at = latest_at + 1 WHERE seq = 64",
        "DELETE FROM journal WHERE seq = 70",
    ],
)
def test_check_reports_inconsistent_rows(sqlite_url: str, tmp_path: Path, damage: str) -> None:
    async def fill() -> None:
        async with open_store(sqlite_url) as store:
            await store.create_session(S)
            for number in range(1, 70):
                await store.append(message_entry(number, number))
            error = ErrorEntry(id=ulid(70), session_id=S, created_at=NOW, text="oh")
            await store.record(error)
            await store.append(assistant(call("a", tool_id(1)), id=ulid(71)))
            await store.append(tool("1", answers=tool_id(1), id=ulid(72)))
            assert await store.check() == []

    async def check() -> list[str]:
        async with open_store(sqlite_url) as store:
            return await store.check()

    asyncio.run(fill())
    with closing(sqlite3.connect(tmp_path / "metis.db")) as database:
        database.execute(damage)
        database.commit()
    assert asyncio.run(check())
