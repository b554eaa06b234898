"""Files and servers that cannot be used: a typed error that says what to do, nothing touched."""

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

from build import ulid, user
from metis import store
from metis.canonical.errors import (
    ForeignStoreError,
    StoreCorruptError,
    StoreError,
    StoreLockedError,
    StoreReadOnlyError,
    StoreUnavailableError,
    StoreVersionError,
)
from metis.store.opening import default_url, path_of
from metis.store.sqlite_file import APPLICATION_ID, store_error
from postgres import Server

SESSION = "sess_42"


def make(url: str, count: int = 1) -> None:
    async def fill() -> None:
        async with store.open(url) as keep:
            await keep.create_session(SESSION)
            for number in range(count):
                await keep.append(user("hi " * 200, id=ulid(number)))

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
        (no_database, ForeignStoreError, "no database"),
    ],
)
def test_a_file_that_is_not_ours_is_not_touched(
    tmp_path: Path,
    sqlite_url: str,
    spoil: Callable[[Path], None],
    error: type[StoreError],
    word: str,
) -> None:
    path = tmp_path / "metis.db"
    spoil(path)
    before = path.read_bytes()
    with pytest.raises(error, match=word) as found:
        store.open(sqlite_url)
    assert found.value.hint
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["metis.db"]


def test_a_broken_page_is_found(tmp_path: Path, sqlite_url: str) -> None:
    make(sqlite_url, 200)
    path = tmp_path / "metis.db"
    data = bytearray(path.read_bytes())
    for page in range(20, len(data) // 4096):
        data[page * 4096 : page * 4096 + 64] = b"\xff" * 64
    path.write_bytes(data)

    async def use() -> None:
        async with store.open(sqlite_url) as keep:
            assert await keep.check() != []
            await keep.messages(SESSION)

    with pytest.raises(StoreCorruptError, match="backup"):
        asyncio.run(use())


def test_somebody_who_holds_the_file_too_long_is_named(tmp_path: Path, sqlite_url: str) -> None:
    make(sqlite_url)

    async def use() -> None:
        async with store.open(sqlite_url, wait_s=0.05) as keep:
            with closing(sqlite3.connect(tmp_path / "metis.db", isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
                with pytest.raises(StoreLockedError, match="another program"):
                    await keep.append(user("hi", id=ulid(9)))
                assert len(await keep.messages(SESSION)) == 1
                other.execute("ROLLBACK")
            await keep.append(user("hi", id=ulid(9)))

    asyncio.run(use())


@pytest.mark.skipif(os.getuid() != 0, reason="needs to become somebody who may not write")
def test_a_file_that_may_only_be_read(tmp_path: Path, sqlite_url: str) -> None:
    make(sqlite_url)
    path = tmp_path / "metis.db"
    before = path.read_bytes()
    os.chmod(tmp_path, 0o755)  # noqa: PTH101, S103 - everybody may look
    for folder in tmp_path.parents:
        if folder.stat().st_mode & 0o001 == 0 and str(folder).startswith("/tmp"):  # noqa: S108 - only ours
            folder.chmod(0o755)
    path.chmod(0o444)
    script = (
        "import os, random\nfrom metis import store\n"
        "from metis.canonical.errors import StoreError\nos.setuid(65534)\n"
        f"try: store.open({sqlite_url!r})\n"
        "except StoreError as error: print(type(error).__name__)"
    )
    done = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", script],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.stdout.strip() == "StoreReadOnlyError", done.stderr
    assert path.read_bytes() == before


def test_a_full_disk_loses_nothing_older(sqlite_url: str) -> None:
    make(sqlite_url, 3)
    script = f"""
import asyncio, resource, signal, sys
from metis import store
from metis.canonical.errors import StoreError
from build import ulid, user

async def main():
    async with store.open({sqlite_url!r}) as keep:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
        acknowledged = []
        try:
            for number in range(10, 1000):
                entry = await keep.append(user("hi " * 2000, id=ulid(number)))
                acknowledged.append(entry.id)
        except StoreError as error:
            print(type(error).__name__, len(acknowledged))

asyncio.run(main())
"""
    done = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", script],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    kind, count = done.stdout.split() or ("", "0")
    assert kind in ("StoreFullError", "StoreUnavailableError"), done.stderr

    async def look() -> None:
        async with store.open(sqlite_url) as keep:
            assert len(await keep.messages(SESSION)) == 3 + int(count)
            assert await keep.check() == []

    asyncio.run(look())


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
def test_every_fault_of_sqlite_has_its_class(code: int, error: str) -> None:
    fault = sqlite3.OperationalError("no")
    fault.sqlite_errorcode = code
    found = store_error(fault, "a.db")
    assert type(found).__name__ == error
    assert found.hint


def test_a_server_of_another_program_or_of_the_future(postgres: Server) -> None:
    url = postgres.new_database()
    with psycopg.connect(url, autocommit=True) as database:
        database.execute("CREATE TABLE messages (id TEXT)")
    with pytest.raises(ForeignStoreError):
        store.open(url)
    url = postgres.new_database()
    asyncio.run(store.open(url).close())
    with psycopg.connect(url, autocommit=True) as database:
        database.execute("INSERT INTO metis_schema VALUES (99)")
    with pytest.raises(StoreVersionError):
        store.open(url)


def test_a_server_that_may_only_be_read(postgres: Server) -> None:
    url = postgres.new_database()
    asyncio.run(store.open(url).close())
    read_only = f"{url}?options=-cdefault_transaction_read_only%3Don"

    async def use() -> None:
        async with store.open(read_only) as keep:
            with pytest.raises(StoreReadOnlyError):
                await keep.create_session(SESSION)

    asyncio.run(use())


def test_a_server_that_is_not_there_and_no_password_in_the_error() -> None:
    with pytest.raises(StoreUnavailableError) as found:
        store.open("postgresql://me:hunter2@127.0.0.1:1/nothing")
    assert "hunter2" not in str(found.value)


@pytest.mark.parametrize("url", ["mysql://x/y", "metis.db", "sqlite://", "sqlite:///"])
def test_an_address_of_no_store(url: str) -> None:
    with pytest.raises(StoreUnavailableError):
        store.open(url)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailableError):
        store.open(f"sqlite:///{tmp_path / 'file' / 'metis.db'}")


def test_the_default_is_under_the_home_of_metis(tmp_path: Path) -> None:
    assert path_of(default_url({"METIS_HOME": str(tmp_path)})) == tmp_path / "metis.db"
    other = default_url({"XDG_DATA_HOME": str(tmp_path)})
    assert path_of(other) == tmp_path / "metis" / "metis.db"
    assert path_of(default_url({})).name == "metis.db"


def test_two_who_start_at_once_make_the_tables_once(url: str) -> None:
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


def test_a_search_index_of_an_older_form_is_made_anew(tmp_path: Path, sqlite_url: str) -> None:
    with closing(sqlite3.connect(tmp_path / "metis.db-search")) as old:
        old.execute("CREATE VIRTUAL TABLE words USING fts5(body)")
        old.execute("CREATE TABLE progress (last INTEGER NOT NULL)")
        old.execute("INSERT INTO progress VALUES (1000)")
        old.commit()

    async def search() -> list[store.Match]:
        async with store.open(sqlite_url) as keep:
            await keep.create_session("sess_42")
            await keep.append(user("an owl", id=ulid(1)))
            return await keep.search("owl")

    assert [hit.message_id for hit in asyncio.run(search())] == [ulid(1)]
