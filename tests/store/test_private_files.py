"""Files of a store are for their owner only, and can be read where nothing can be written."""

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from build import ulid, user
from metis.canonical.errors import StoreReadOnlyError
from metis.events.trace import EventQuery, SqliteTrace
from metis.store import open as open_store
from metis.store.private_files import ReadOnlyFile
from metis.store.sqlite import SqliteDatabase

SESSION = "sess_42"
NOBODY = 65534


@pytest.fixture
def no_umask() -> Iterator[None]:
    """Others may read every file that is created without a mode."""
    before = os.umask(0)
    yield
    os.umask(before)


def shared_files(directory: Path) -> list[str]:
    """The files and directories that somebody else may use."""
    return [str(file) for file in (directory, *directory.rglob("*")) if file.stat().st_mode & 0o077]


@pytest.mark.usefixtures("no_umask")
def test_every_file_of_a_home_is_for_its_owner_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "data" / "metis"
    monkeypatch.setenv("METIS_HOME", str(home))

    async def use() -> list[str]:
        async with open_store() as store:
            await store.create_session(SESSION)
            await store.append(user("an owl", id=ulid(1)))
            await store.search("owl")
            await store.backup(home / "copy.db")
            with closing(SqliteTrace(home / "trace.db")) as trace:
                await trace.append([])
                await trace.select(EventQuery())
                assert {file.name for file in home.iterdir()} >= {
                    *("metis.db", "metis.db-wal", "metis.db-shm", "metis.db-lock"),
                    *("metis.db-search", "metis.db-search-wal", "trace.db", "trace.db-wal"),
                    "copy.db",
                }
                return shared_files(home)

    assert asyncio.run(use()) == []
    assert shared_files(home.parent) == []


def test_what_an_older_version_left_open_is_restricted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METIS_HOME", str(tmp_path))
    tmp_path.chmod(0o755)
    (tmp_path / "trace.db").touch(0o644)
    (tmp_path / "metis.db-search").touch(0o644)

    async def use() -> None:
        async with open_store() as store:
            await store.create_session(SESSION)
            await store.append(user("an owl", id=ulid(1)))
            assert await store.search("owl")

    asyncio.run(use())
    SqliteTrace(tmp_path / "trace.db").close()
    assert shared_files(tmp_path) == []


def test_a_directory_that_is_not_our_home_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    asyncio.run(open_store(f"sqlite:///{tmp_path / 'team.db'}").close())
    assert tmp_path.stat().st_mode & 0o777 == 0o755


READ = """
import asyncio, os, sys
from metis.store import open as open_store
from metis.canonical.errors import StoreReadOnlyError
from build import ulid, user
os.setuid(65534)

async def main():
    async with open_store(sys.argv[1]) as store:
        print(*[record.id for record in await store.sessions()])
        print(len(await store.messages("sess_42")), len(await store.history("sess_42", newest=2)))
        print(len(await store.export("sess_42")), len(await store.overviews()))
        print(*[match.message_id[-1] for match in await store.search("owl")])
        print(await store.check())
        try:
            await store.append(user("no", id=ulid(99)))
        except StoreReadOnlyError as error:
            print(error.hint)

asyncio.run(main())
"""


def read_as_nobody(path: Path) -> list[str]:
    """What somebody sees in a store who may write neither the file nor its directory."""
    done = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", READ, f"sqlite:///{path}"],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory into which everybody may look, unlike those of pytest."""
    directory = Path(tempfile.mkdtemp(prefix="metis-test-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


def fill(path: Path) -> None:
    async def write() -> None:
        async with open_store(f"sqlite:///{path}") as store:
            await store.create_session(SESSION)
            for number in range(1, 4):
                await store.append(user("an owl", id=ulid(number)))

    asyncio.run(write())


def files_of(directory: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in directory.iterdir()}


EXPECTED = [
    "sess_42",
    "3 2",
    "4 1",
    "3 2 1",
    "[]",
    "make the file and its directory writable, or choose another file with --store",
]


@pytest.mark.skipif(os.getuid() != 0, reason="needs to become somebody who may not write")
def test_a_store_that_may_only_be_read_is_read(open_directory: Path) -> None:
    path = open_directory / "metis.db"
    fill(path)
    path.chmod(0o444)
    before = files_of(open_directory)
    assert read_as_nobody(path) == EXPECTED
    assert files_of(open_directory) == before


@pytest.mark.skipif(os.getuid() != 0, reason="needs to become somebody who may not write")
def test_what_only_the_log_holds_is_read_from_a_read_only_disk(open_directory: Path) -> None:
    path, copy = open_directory / "metis.db", open_directory / "copy"
    copy.mkdir()
    database = SqliteDatabase(path, durability="process", wait_s=0)
    database.migrate()
    database.close()

    async def crash() -> None:
        async with open_store(f"sqlite:///{path}") as store:
            await store.create_session(SESSION)
            for number in range(1, 4):
                await store.append(user("an owl", id=ulid(number)))
            # As after a power failure: the log was never moved into the file.
            for suffix in ("", "-wal"):
                shutil.copyfile(f"{path}{suffix}", f"{copy / 'metis.db'}{suffix}")

    asyncio.run(crash())
    for file in copy.iterdir():
        file.chmod(0o444)
    before = files_of(copy)
    assert before["metis.db-wal"]
    assert read_as_nobody(copy / "metis.db") == EXPECTED
    assert files_of(copy) == before


@pytest.mark.skipif(os.getuid() != 0, reason="needs to become somebody who may not write")
def test_a_read_only_store_of_an_older_version_is_read(open_directory: Path) -> None:
    path = open_directory / "metis.db"
    fill(path)
    with closing(sqlite3.connect(path)) as database:
        for table in ("digests", "exchanges", "history_ends", "wire_bodies", "response_items"):
            database.execute(f"DROP TABLE {table}")
        database.execute("DROP INDEX idx_sessions_updated")
        database.execute("DROP INDEX idx_sessions_workspace")
        database.execute("PRAGMA user_version = 2")
    path.chmod(0o444)
    assert read_as_nobody(path) == EXPECTED


def test_a_copy_of_a_read_only_store_disappears(tmp_path: Path) -> None:
    path = tmp_path / "metis.db"
    fill(path)
    file = ReadOnlyFile(path, newest_version=10_000)
    assert file.is_copy
    assert not shared_files(file.path.parent)
    file.close()
    assert not file.path.exists()


def test_writing_into_a_read_only_store_is_a_typed_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "metis.db"
    fill(path)

    def never_writable(_: Path) -> bool:
        return True

    monkeypatch.setattr("metis.store.sqlite.is_read_only", never_writable)

    async def write() -> None:
        async with open_store(f"sqlite:///{path}") as store:
            with pytest.raises(StoreReadOnlyError):
                await store.create_session("sess_43")

    asyncio.run(write())


@pytest.mark.anyio
async def test_the_search_index_is_read_while_it_is_written(tmp_path: Path) -> None:
    """Without a write-ahead log a search of one process would wait for another one's writing."""
    async with open_store(f"sqlite:///{tmp_path / 'metis.db'}") as store:
        await store.search("owl")
        with closing(sqlite3.connect(tmp_path / "metis.db-search")) as database:
            assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
