"""Unusable files and servers give a typed error with advice, and are not changed."""

import asyncio
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from build import assistant, call, tool_id, ulid, user
from metis.canonical.errors import (
    ForeignStoreError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreLockedError,
    StoreReadOnlyError,
    StoreUnavailableError,
    StoreVersionError,
)
from metis.store import Match
from metis.store import open as open_store
from metis.store.connection import default_url, sqlite_path
from metis.store.sqlite_file import APPLICATION_ID, store_error
from postgres import Server

SESSION = "sess_42"


def make(url: str, count: int = 1) -> None:
    async def fill() -> None:
        async with open_store(url) as store:
            await store.create_session(SESSION)
            for number in range(count):
                await store.append(user("hi " * 200, id=ulid(number)))

    asyncio.run(fill())


def foreign(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE songs (id)")


def foreign_by_number(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA application_id = 7")
        database.execute("CREATE TABLE songs (id)")


def future(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        database.execute("CREATE TABLE sessions (id)")
        database.execute("PRAGMA user_version = 99")


def no_database(path: Path) -> None:
    path.write_bytes(b"once upon a time" * 1000)


@pytest.mark.parametrize(
    ("spoil", "error", "word"),
    [
        (foreign, ForeignStoreError, "another program"),
        (foreign_by_number, ForeignStoreError, "another program"),
        (future, StoreVersionError, "update metis"),
        (no_database, ForeignStoreError, "not a SQLite database"),
    ],
)
def test_foreign_file_is_not_changed(
    tmp_path: Path,
    sqlite_url: str,
    spoil: Callable[[Path], None],
    error: type[StoreError],
    word: str,
) -> None:
    path = tmp_path / "metis.db"
    spoil(path)
    before = path.read_bytes()
    with pytest.raises(error, match=word) as result:
        open_store(sqlite_url)
    assert result.value.hint
    assert path.read_bytes() == before
    assert [item.name for item in tmp_path.iterdir()] == ["metis.db"]


def test_broken_pages_are_reported_and_not_changed(tmp_path: Path, sqlite_url: str) -> None:
    make(sqlite_url, 200)
    path = tmp_path / "metis.db"
    data = bytearray(path.read_bytes())
    starts = range(4096, len(data), 4096)
    broken = [start for start in starts if b"hi hi" in data[start : start + 4096]]
    for start in broken:
        data[start : start + 64] = b"\xff" * 64
    path.write_bytes(data)

    async def read() -> None:
        async with open_store(sqlite_url) as store:
            assert await store.check() != []
            with pytest.raises(StoreCorruptError) as result:
                await store.messages(SESSION)
            assert "restore a backup" in str(result.value.hint)

    async def write() -> None:
        async with open_store(sqlite_url) as store:
            with pytest.raises(StoreCorruptError) as result:
                await store.append(user("hi", id=ulid(999)))
            assert "restore a backup" in str(result.value.hint)

    asyncio.run(read())
    assert path.read_bytes() == data
    asyncio.run(write())
    after = path.read_bytes()
    assert [after[item : item + 4096] for item in broken] == [
        data[item : item + 4096] for item in broken
    ]


def test_file_with_broken_tables_is_not_changed(tmp_path: Path, sqlite_url: str) -> None:
    make(sqlite_url, 3)
    path = tmp_path / "metis.db"
    data = bytearray(path.read_bytes())
    data[100:400] = b"\xff" * 300
    path.write_bytes(data)
    with pytest.raises(StoreCorruptError) as result:
        open_store(sqlite_url)
    assert "restore a backup" in str(result.value.hint)
    assert path.read_bytes() == data


def test_long_file_lock_is_a_typed_error(tmp_path: Path, sqlite_url: str) -> None:
    make(sqlite_url)
    path, log = tmp_path / "metis.db", tmp_path / "metis.db-wal"

    async def use() -> None:
        async with open_store(sqlite_url, wait_s=0.05) as store:
            await store.append(user("hi", id=ulid(8)))
            before = path.read_bytes(), log.read_bytes()
            with closing(sqlite3.connect(path, isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
                with pytest.raises(StoreLockedError, match="another program") as result:
                    await store.append(user("hi", id=ulid(9)))
                assert "stop the other program" in str(result.value.hint)
                assert len(await store.messages(SESSION)) == 2
                assert (path.read_bytes(), log.read_bytes()) == before
                other.execute("ROLLBACK")
            await store.append(user("hi", id=ulid(9)))

    asyncio.run(use())


ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def run_script(script: str, *before: str) -> str:
    """Return the output of a script in a new interpreter."""
    done = subprocess.run(  # noqa: S603 - our own interpreter
        [*before, sys.executable, "-c", script],
        check=False,
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


UNTIL_FULL = """
import asyncio, pathlib, resource, signal, sys
from metis.store import open as open_store
from metis.canonical.errors import StoreError
from build import ulid, user

async def main():
    acknowledged = []
    async with open_store(URL) as store:
        LIMIT
        try:
            for number in range(10, 1000):
                entry = await store.append(user("hi " * 2000, id=ulid(number)))
                acknowledged.append(entry.id)
        except StoreError as error:
            print(type(error).__name__, len(acknowledged), error.hint)
        seen = await store.messages("sess_42")
        assert [each.id for each in seen[3:]] == acknowledged, "what was acknowledged is there"
    AGAIN

asyncio.run(main())
"""


def test_file_size_limit_loses_no_earlier_entries(sqlite_url: str) -> None:
    make(sqlite_url, 3)
    limit = (
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))"
    )
    script = UNTIL_FULL.replace("URL", repr(sqlite_url)).replace("LIMIT", limit)
    kind, count, hint = run_script(script.replace("AGAIN", "")).split(maxsplit=2)
    assert kind in ("StoreFullError", "StoreUnavailableError")
    assert "free space" in hint
    assert int(count) > 0

    async def look() -> None:
        async with open_store(sqlite_url) as store:
            assert len(await store.messages(SESSION)) == 3 + int(count)
            assert await store.check() == []

    asyncio.run(look())


AFTER_ROOM = """
    pathlib.Path("FOLDER/filler").unlink()
    async with open_store(URL) as store:
        assert len(await store.messages("sess_42")) == 3 + len(acknowledged)
        assert await store.check() == []
        await store.append(user("again", id=ulid(5000)))
        print("again")
"""


def test_full_disk_loses_no_earlier_entries(tmp_path: Path) -> None:
    """Uses a real file system of two megabytes in a separate mount namespace."""
    url = f"sqlite:///{tmp_path / 'metis.db'}"
    inside = "mount -t tmpfs -o size=2m tmpfs $0 && head -c 1000000 /dev/zero > $0/filler && "
    inside += 'shift 0 && exec "$@"'
    before = ("unshare", "-rm", "sh", "-c", inside, str(tmp_path))
    try:
        run_script("", *before)
    except (AssertionError, FileNotFoundError) as error:
        pytest.skip(f"no disk can be mounted here: {str(error)[:80]}")
    make_it = f"from test_bad_files import make; make({url!r}, 3)"
    script = UNTIL_FULL.replace("AGAIN", AFTER_ROOM).replace("LIMIT", "pass")
    script = script.replace("URL", repr(url)).replace("FOLDER", str(tmp_path))
    texts = run_script(f"{make_it}\n{script}", *before).split("\n")
    kind, count, hint = texts[0].split(maxsplit=2)
    assert kind == "StoreFullError"
    assert hint == "free some space and try again; nothing stored is lost"
    assert int(count) > 0
    assert texts[1] == "again"


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (sqlite3.SQLITE_FULL, "StoreFullError"),
        (sqlite3.SQLITE_READONLY, "StoreReadOnlyError"),
        (sqlite3.SQLITE_BUSY, "StoreLockedError"),
        (sqlite3.SQLITE_CORRUPT, "StoreCorruptError"),
        (sqlite3.SQLITE_CANTOPEN, "StoreUnavailableError"),
        (sqlite3.SQLITE_ERROR, "StoreError"),
    ],
)
def test_every_sqlite_error_has_its_class(code: int, error: str) -> None:
    fault = sqlite3.OperationalError("no")
    fault.sqlite_errorcode = code
    result = store_error(fault, "a.db")
    assert type(result).__name__ == error
    assert result.hint


def contents(url: str, *, is_open: bool = False) -> dict[str, list[tuple[object, ...]]]:
    """Return every table of a database with its columns and rows.

    An open store writes the digests of earlier entries when it is idle, so they are left out.
    """
    result: dict[str, list[tuple[object, ...]]] = {}
    with psycopg.connect(url) as database:
        columns = (
            "SELECT table_name::text, column_name::text, data_type::text "
            "FROM information_schema.columns WHERE table_schema = 'public' ORDER BY 1, 2"
        )
        result["columns"] = database.execute(columns).fetchall()
        for table in sorted({str(row[0]) for row in result["columns"]}):
            if is_open and table == "digests":
                continue
            statement = sql.SQL("SELECT * FROM {} ORDER BY 1").format(sql.Identifier(table))
            result[table] = database.execute(statement).fetchall()
    return result


@pytest.mark.parametrize(
    ("spoil", "error", "word"),
    [
        ("CREATE TABLE messages (id TEXT)", ForeignStoreError, "choose another database"),
        ("INSERT INTO metis_schema VALUES (99)", StoreVersionError, "update metis"),
    ],
)
def test_foreign_or_newer_database_is_not_changed(
    postgres: Server, spoil: str, error: type[StoreError], word: str
) -> None:
    url = postgres.new_database()
    if error is StoreVersionError:
        make(url)
    with psycopg.connect(url, autocommit=True) as database:
        database.execute(spoil.encode())
    before = contents(url)
    with pytest.raises(error) as result:
        open_store(url)
    assert word in str(result.value.hint)
    assert contents(url) == before


def test_read_only_server(postgres: Server) -> None:
    url = postgres.new_database()
    make(url)
    before = contents(url)
    read_only = f"{url}?options=-cdefault_transaction_read_only%3Don"

    async def use() -> None:
        async with open_store(read_only) as store:
            with pytest.raises(StoreReadOnlyError) as result:
                await store.append(user("hi", id=ulid(9)))
            assert "writable" in str(result.value.hint)
            assert len(await store.messages(SESSION)) == 1

    asyncio.run(use())
    assert contents(url) == before


def test_long_session_lock_is_a_typed_error(postgres: Server) -> None:
    url = postgres.new_database()
    make(url)

    async def use() -> None:
        async with open_store(url, wait_s=0.1) as store:
            await store.append(user("hi", id=ulid(8)))
            before = contents(url, is_open=True)
            with psycopg.connect(url) as other:
                other.execute("SELECT id FROM sessions FOR UPDATE")
                with pytest.raises(StoreLockedError) as result:
                    await store.append(user("hi", id=ulid(9)))
                assert "stop the other program" in str(result.value.hint)
                assert len(await store.messages(SESSION)) == 2
            assert contents(url, is_open=True) == before
            await store.append(user("hi", id=ulid(9)))

    asyncio.run(use())


def test_full_disk_of_server_loses_no_earlier_entries(postgres: Server) -> None:
    """The server reports a full disk in the middle of an append."""
    url = postgres.new_database()
    make(url, 3)
    with psycopg.connect(url) as database:
        database.execute(
            "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS "
            "'BEGIN RAISE ''could not extend file'' USING ERRCODE = ''53100''; END'"
        )
        database.execute(
            "CREATE TRIGGER full_disk AFTER INSERT ON tool_calls "
            "FOR EACH ROW EXECUTE FUNCTION full_disk()"
        )

    async def use() -> None:
        async with open_store(url) as store:
            await store.append(user("hi", id=ulid(8)))
            before = contents(url, is_open=True)
            with pytest.raises(StoreFullError) as result:
                await store.append(assistant(call("a", tool_id(1)), id=ulid(9)))
            assert "free disk space" in str(result.value.hint)
            assert contents(url, is_open=True) == before
            await store.append(user("hi", id=ulid(10)))
            assert len(await store.messages(SESSION)) == 5
            assert await store.check() == []

    asyncio.run(use())


def test_broken_server_page_is_reported_and_not_changed(postgres: Server) -> None:
    url = postgres.new_database()
    make(url, 50)
    copy = postgres.copy_of(url)
    path = postgres.path_of(copy, "messages")
    data = bytearray(path.read_bytes())
    data[:64] = b"\xff" * 64
    path.write_bytes(data)

    async def use() -> None:
        async with open_store(copy) as store:
            assert await store.check() != []
            with pytest.raises(StoreCorruptError) as result:
                await store.messages(SESSION)
            assert "restore a backup" in str(result.value.hint)

    asyncio.run(use())
    assert path.read_bytes() == data


def test_unreachable_server_error_has_no_password() -> None:
    with pytest.raises(StoreUnavailableError) as result:
        open_store("postgresql://me:hunter2@127.0.0.1:1/nothing")
    assert "hunter2" not in str(result.value)


@pytest.mark.parametrize("url", ["mysql://x/y", "metis.db", "sqlite://", "sqlite:///"])
def test_invalid_store_address_is_refused(url: str) -> None:
    with pytest.raises(StoreUnavailableError):
        open_store(url)


def test_directory_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailableError):
        open_store(f"sqlite:///{tmp_path / 'file' / 'metis.db'}")


def test_default_store_is_in_metis_home(tmp_path: Path) -> None:
    assert sqlite_path(default_url({"METIS_HOME": str(tmp_path)})) == tmp_path / "metis.db"
    other = default_url({"XDG_DATA_HOME": str(tmp_path)})
    assert sqlite_path(other) == tmp_path / "metis" / "metis.db"
    assert sqlite_path(default_url({})).name == "metis.db"


def test_concurrent_first_opens_create_tables_once(url: str) -> None:
    script = f"import asyncio; from metis import store; asyncio.run(store.open({url!r}).close())"
    programs = [
        subprocess.Popen(  # noqa: S603 - our own interpreter
            [sys.executable, "-c", script],
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        for _ in range(4)
    ]
    for program in programs:
        _, complaint = program.communicate()
        assert program.returncode == 0, complaint.decode()


def test_outdated_search_index_is_rebuilt(tmp_path: Path, sqlite_url: str) -> None:
    with closing(sqlite3.connect(tmp_path / "metis.db-search")) as old:
        old.execute("CREATE VIRTUAL TABLE words USING fts5(body)")
        old.execute("CREATE TABLE progress (last INTEGER NOT NULL)")
        old.execute("INSERT INTO progress VALUES (1000)")
        old.commit()

    async def search() -> list[Match]:
        async with open_store(sqlite_url) as store:
            await store.create_session("sess_42")
            await store.append(user("an owl", id=ulid(1)))
            return await store.search("owl")

    assert [hit.message_id for hit in asyncio.run(search())] == [ulid(1)]
