"""Database tables of both stores follow the base specification; versions share them."""

import asyncio
import logging
import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from msgspec.structs import replace

from build import NOW, assistant, call, tool, tool_id, ulid, user
from metis.canonical import UnknownBlock
from metis.canonical.codec import encode
from metis.store import open as open_store
from metis.store.database import schema_statements, schema_steps
from metis.store.queries import read_sessions
from metis.store.records import to_microseconds
from metis.store.sqlite import SqliteTransaction
from postgres import Server

COLUMNS = {
    "sessions": [
        ("id", "TEXT", False, True),
        ("workspace_path", "TEXT", True, False),
        ("active_model", "TEXT", False, False),
        ("routing_policy_json", "TEXT", False, False),
        ("schema_version", "INTEGER", True, False),
        ("created_at", "INTEGER", True, False),
        ("updated_at", "INTEGER", True, False),
    ],
    "messages": [
        ("id", "TEXT", False, True),
        ("session_id", "TEXT", True, False),
        ("role", "TEXT", True, False),
        ("content_json", "TEXT", True, False),
        ("metadata_json", "TEXT", True, False),
        ("created_at", "INTEGER", True, False),
        ("schema_version", "INTEGER", True, False),
    ],
    "tool_calls": [
        ("id", "TEXT", False, True),
        ("session_id", "TEXT", True, False),
        ("message_id", "TEXT", True, False),
        ("result_message_id", "TEXT", False, False),
        ("name", "TEXT", True, False),
        ("status", "TEXT", True, False),
        ("provider_id", "TEXT", False, False),
        ("provider", "TEXT", False, False),
        ("created_at", "INTEGER", True, False),
        ("completed_at", "INTEGER", False, False),
    ],
}
KEYS = {
    "sessions": set[tuple[str, str]](),
    "messages": {("session_id", "sessions")},
    "tool_calls": {
        ("session_id", "sessions"),
        ("message_id", "messages"),
        ("result_message_id", "messages"),
    },
}
INDEXES = {
    "idx_messages_session_created": ["session_id", "created_at"],
    "idx_tool_calls_session_status": ["session_id", "status"],
}


@pytest.fixture
def file(tmp_path: Path, sqlite_url: str) -> Path:
    """Return a file with a session, a call and its result."""

    async def fill() -> None:
        async with open_store(sqlite_url) as store:
            await store.create_session("sess_42", workspace_path="/w")
            await store.append(user("hi", id=ulid(1)))
            await store.append(assistant(call("a", tool_id(1)), call("b", tool_id(2)), id=ulid(2)))
            await store.append(tool("1", answers=tool_id(1), id=ulid(3)))

    asyncio.run(fill())
    return tmp_path / "metis.db"


@pytest.mark.row(*(f"M-{number}" for number in range(248, 272)))
@pytest.mark.parametrize("table", COLUMNS)
def test_sqlite_tables_follow_base_specification(file: Path, table: str) -> None:
    with closing(sqlite3.connect(file)) as database:
        result = database.execute(f"PRAGMA table_info({table})").fetchall()
        assert [(r[1], r[2], bool(r[3]), bool(r[5])) for r in result] == COLUMNS[table]
        keys = database.execute(f"PRAGMA foreign_key_list({table})").fetchall()
        assert {(row[3], row[2]) for row in keys} == KEYS[table]
        assert {row[4] for row in keys} <= {"id"}
        for name, columns in INDEXES.items():
            rows = database.execute(f"PRAGMA index_info({name})").fetchall()
            assert [row[2] for row in rows] == columns


@pytest.mark.row("M-255", "M-263", "M-264", "M-265")
def test_postgres_has_the_same_tables(postgres: Server) -> None:
    url = postgres.new_database()
    asyncio.run(open_store(url).close())
    with psycopg.connect(url) as database:
        for table, columns in COLUMNS.items():
            result = database.execute(
                "SELECT column_name, data_type, is_nullable FROM information_schema.columns "
                "WHERE table_name = %s ORDER BY ordinal_position",
                (table,),
            ).fetchall()
            kinds = {"text": "TEXT", "integer": "INTEGER", "bigint": "INTEGER"}
            actual = [(name, kinds[kind], nullable == "NO") for name, kind, nullable in result]
            assert actual == [(c[0], c[1], c[2] or c[3]) for c in columns]


@pytest.mark.row("M-261", "M-271", "M-272", "M-273", "M-305")
def test_queries_of_base_specification_use_indexes(file: Path) -> None:
    questions = {
        "SELECT * FROM messages WHERE session_id = 's' ORDER BY created_at": "idx_messages_session",
        "SELECT * FROM tool_calls WHERE session_id = 's' AND status = 'pending'": "idx_tool_calls",
    }
    with closing(sqlite3.connect(file)) as database:
        for question, index in questions.items():
            plan = database.execute(f"EXPLAIN QUERY PLAN {question}").fetchall()
            assert index in plan[0][3]
        pending = database.execute("SELECT id FROM tool_calls WHERE status = 'pending'").fetchall()
        assert pending == [(tool_id(2),)]


@pytest.mark.parametrize(
    ("folder", "index"), [(None, "idx_sessions_updated"), ("/w", "idx_sessions_workspace")]
)
def test_newest_sessions_are_listed_without_full_scan(
    file: Path, folder: str | None, index: str
) -> None:
    with closing(sqlite3.connect(file)) as database:
        statements: list[str] = []
        database.set_trace_callback(statements.append)
        (record,) = read_sessions(SqliteTransaction(database), 9, folder)
        database.set_trace_callback(None)
        plan = database.execute(f"EXPLAIN QUERY PLAN {statements[0]}").fetchall()
    assert record.id == "sess_42"
    assert [index in row[3] for row in plan] == [True]


@pytest.mark.row("M-257", "M-258", "M-259", "M-253", "M-010", "M-305")
def test_columns_have_parts_of_the_canonical_json(file: Path) -> None:
    message = tool("1", answers=tool_id(1), id=ulid(3))
    with closing(sqlite3.connect(file)) as database:
        row = database.execute("SELECT * FROM messages WHERE id = ?", (ulid(3),)).fetchone()
        kinds = database.execute("SELECT DISTINCT typeof(content_json) FROM messages").fetchall()
    full = encode(message).decode()
    assert row[3] in full
    assert row[4] in full
    assert (row[2], row[5], row[6]) == ("tool", to_microseconds(NOW), 1)
    assert kinds == [("text",)]


@pytest.mark.row("M-274")
def test_main_database_has_no_search_table(file: Path) -> None:
    with closing(sqlite3.connect(file)) as database:
        result = database.execute("SELECT sql FROM sqlite_master WHERE sql LIKE '%VIRTUAL%'")
        assert result.fetchall() == []


def test_migration_numbers_have_no_gap() -> None:
    for dialect in ("sqlite", "postgres"):
        numbers = [number for number, _ in schema_steps(dialect)]
        assert numbers == list(range(1, len(numbers) + 1))
        assert all(schema_statements(text) for _, text in schema_steps(dialect))


@pytest.mark.row("M-276", "M-279", "M-280", "M-281")
def test_old_and_new_readers_share_a_database(
    file: Path, sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A newer metis has added a column, a table, a block, a field and a version."""
    block = b'[{"type":"hologram","n":1.50}]'
    with closing(sqlite3.connect(file)) as newer:
        newer.execute("ALTER TABLE sessions ADD COLUMN mood TEXT")
        newer.execute("CREATE TABLE moods (id TEXT PRIMARY KEY)")
        insert = "INSERT INTO messages VALUES (?, 'sess_42', 'user', ?, ?, ?, ?)"
        newer.execute(
            insert, (ulid(4), block.decode(), '{"later":[1, 2]}', to_microseconds(NOW), 1)
        )
        newer.execute(
            insert, (ulid(5), '[{"text":"v2","type":"text"}]', "{}", to_microseconds(NOW), 2)
        )
        newer.execute(
            "INSERT INTO journal VALUES ('sess_42', 4, ?, NULL, ?)", (ulid(4), to_microseconds(NOW))
        )
        newer.execute(
            "INSERT INTO journal VALUES ('sess_42', 5, ?, NULL, ?)", (ulid(5), to_microseconds(NOW))
        )
        entry = (
            '{"created_at":"2026-05-08T12:00:00Z","id":"x","seq":6,"session_id":"sess_42",'
            '"type":"weather"}'
        )
        newer.execute(
            "INSERT INTO journal VALUES ('sess_42', 6, NULL, ?, ?)", (entry, to_microseconds(NOW))
        )
        newer.commit()

    async def read() -> None:
        async with open_store(sqlite_url, recover=False) as old:
            messages = await old.messages("sess_42")
            assert len(messages) == 5
            strange, later = messages[3], messages[4]
            assert isinstance(strange.content[0], UnknownBlock)
            assert strange.content[0].raw == block[1:-1]
            assert later.schema_version == 2
            assert b'"schema_version":2' in encode(later)
            history = await old.history("sess_42")
            assert history[5].seq == 6
            await old.append(user("on", id=ulid(6)))
            await old.save(strange)
            assert (await old.messages("sess_42"))[3:5] == [strange, later]
            reread = await old.fork("sess_42", at=ulid(4))
            assert (await old.messages(reread.id))[3].content == strange.content
        async with open_store(sqlite_url, recover=False) as another:
            assert len(await another.messages("sess_42")) == 6

    with caplog.at_level(logging.WARNING, logger="metis.canonical"):
        asyncio.run(read())
    assert "unknown parts are" in caplog.text
    with closing(sqlite3.connect(file)) as newer:
        row = newer.execute(
            "SELECT content_json, metadata_json FROM messages WHERE id = ?", (ulid(4),)
        )
        assert row.fetchone() == (block.decode(), '{"later":[1, 2]}')
        row = newer.execute("SELECT schema_version FROM messages WHERE id = ?", (ulid(5),))
        assert row.fetchone() == (2,)


@pytest.mark.row("M-278")
def test_reading_writes_nothing_back(file: Path, sqlite_url: str) -> None:
    async def read() -> None:
        async with open_store(sqlite_url, recover=False) as store:
            await store.messages("sess_42")

    with closing(sqlite3.connect(file)) as database:
        before = database.execute("SELECT * FROM messages").fetchall()
        asyncio.run(read())
        assert database.execute("SELECT * FROM messages").fetchall() == before


def test_changed_copy_does_not_change_stored_message(sqlite_url: str) -> None:
    async def write() -> None:
        async with open_store(sqlite_url) as store:
            await store.create_session("sess_42")
            first = user("hi", id=ulid(1))
            await store.append(first)
            await store.save(replace(first))

    asyncio.run(write())


def test_files_are_for_their_owner_only(sqlite_url: str, tmp_path: Path) -> None:
    async def use() -> None:
        async with open_store(sqlite_url) as store:
            await store.create_session("sess_42")
            await store.append(user("an owl", id=ulid(1)))
            await store.search("owl")
            await store.backup(tmp_path / "copy.db")
            names = await asyncio.to_thread(shared_files)
            assert names == []

    def shared_files() -> list[str]:
        return [file.name for file in tmp_path.iterdir() if file.stat().st_mode & 0o077]

    asyncio.run(use())
