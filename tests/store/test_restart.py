"""A database server that restarts or is away loses no response that was paid for."""

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from build import assistant, call, tool, tool_id, ulid, user
from metis.canonical.errors import StoreSpooledError, StoreUnavailableError
from metis.session.conversation import Conversation
from metis.store import Store
from metis.store import open as open_store
from metis.store.postgres import PostgresDatabase
from postgres import Server, start_server

SESSION = "sess_42"
pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Return a server that no other test uses."""
    started = start_server(durable=True)
    yield started
    started.stop()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("METIS_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def spooled(home: Path) -> list[Path]:
    return sorted((home / "spool").glob("*")) if (home / "spool").exists() else []


async def ids(store: Store) -> list[str]:
    return [message.id for message in await store.messages(SESSION)]


async def test_reads_and_writes_succeed_after_restart(server: Server) -> None:
    async with open_store(server.new_database()) as store:
        await store.create_session(SESSION)
        await store.append(user("one", id=ulid(1)))
        # Several idle connections, all closed by the restart.
        await asyncio.gather(*(store.messages(SESSION) for _ in range(8)))
        await asyncio.to_thread(server.halt)
        await asyncio.to_thread(server.resume)
        assert await asyncio.gather(*(ids(store) for _ in range(8))) == [[ulid(1)]] * 8
        await store.append(user("two", id=ulid(2)))
        assert await ids(store) == [ulid(1), ulid(2)]


async def test_a_read_waits_for_a_server_that_restarts(server: Server) -> None:
    async with open_store(server.new_database()) as store:
        await store.create_session(SESSION)
        await store.append(user("one", id=ulid(1)))
        await asyncio.to_thread(server.halt)
        thread = threading.Thread(target=lambda: (time.sleep(0.3), server.resume()))
        thread.start()
        try:
            assert await ids(store) == [ulid(1)]
        finally:
            await asyncio.to_thread(thread.join)


async def test_response_is_stored_when_database_is_back(server: Server, home: Path) -> None:
    url = server.new_database()
    async with open_store(url, wait_s=0.1) as store:
        await store.create_session(SESSION)
        conversation = Conversation(store, SESSION)
        await conversation.append(user("why?", id=ulid(1)))
        await asyncio.to_thread(server.halt)
        try:
            with pytest.raises(StoreSpooledError) as result:
                await conversation.append(assistant("because", id=ulid(2)))
            assert [str(path) for path in spooled(home)] == [result.value.file]
            assert spooled(home)[0].stat().st_mode & 0o777 == 0o600
            assert (home / "spool").stat().st_mode & 0o777 == 0o700
            # A prompt has no cost yet: it is refused, and nothing is sent.
            with pytest.raises(StoreUnavailableError) as refused:
                await conversation.append(user("and?", id=ulid(3)))
            assert not isinstance(refused.value, StoreSpooledError)
            assert len(spooled(home)) == 1
        finally:
            await asyncio.to_thread(server.resume)
        await conversation.append(user("and?", id=ulid(4)))
        assert await ids(store) == [ulid(1), ulid(2), ulid(4)]
        assert [message.id for message in conversation.messages] == [ulid(1), ulid(2), ulid(4)]
        assert spooled(home) == []
        assert await store.check() == []


async def test_calls_and_results_are_stored_in_order_by_the_next_process(
    server: Server, home: Path
) -> None:
    url = server.new_database()
    async with open_store(url, wait_s=0.1) as store:
        await store.create_session(SESSION)
        conversation = Conversation(store, SESSION)
        await conversation.append(user("why?", id=ulid(1)))
        await asyncio.to_thread(server.halt)
        try:
            for message in (
                assistant(call("a", tool_id(1)), id=ulid(2)),
                tool("1", answers=tool_id(1), id=ulid(3)),
            ):
                # The second append first retries the first one, which still fails.
                with pytest.raises(StoreSpooledError):
                    await conversation.append(message)
        finally:
            await store.close()
            await asyncio.to_thread(server.resume)
    assert len(spooled(home)) == 2
    async with open_store(url) as store:
        assert await ids(store) == [ulid(1), ulid(2), ulid(3)]
        assert await store.check() == []
    assert spooled(home) == []


async def test_write_with_lost_acknowledgement_is_not_repeated(
    server: Server, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = server.new_database()
    async with open_store(url) as store:
        await store.create_session(SESSION)
        conversation = Conversation(store, SESSION)
        await conversation.append(user("why?", id=ulid(1)))
        write = PostgresDatabase.write

        def lose_answer(self: PostgresDatabase, work: object) -> object:
            write(self, work)  # pyright: ignore[reportArgumentType] - passed on as it is
            raise StoreUnavailableError("the connection was lost during the commit")

        monkeypatch.setattr(PostgresDatabase, "write", lose_answer)
        with pytest.raises(StoreSpooledError):
            await conversation.append(assistant("because", id=ulid(2)))
        monkeypatch.setattr(PostgresDatabase, "write", write)
        await conversation.append(user("and?", id=ulid(4)))
        assert await ids(store) == [ulid(1), ulid(2), ulid(4)]
        assert len(conversation.messages) == 3
    assert spooled(home) == []


async def test_an_uncommitted_write_is_repeated_after_its_connection_was_ended(
    server: Server,
) -> None:
    url = server.new_database()
    async with open_store(url) as store:
        await store.create_session(SESSION)
        await store.append(user("one", id=ulid(1)))

        def end_connections() -> None:
            with psycopg.connect(server.url, autocommit=True) as connection:
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s",
                    (url.rpartition("/")[2],),
                )

        await asyncio.to_thread(end_connections)
        await store.append(user("two", id=ulid(2)))
        assert await ids(store) == [ulid(1), ulid(2)]


async def test_spooled_entries_that_no_longer_apply_are_set_aside(
    server: Server, home: Path
) -> None:
    url = server.new_database()
    async with open_store(url, wait_s=0.1) as store:
        await store.create_session(SESSION)
        await asyncio.to_thread(server.halt)
        try:
            with pytest.raises(StoreSpooledError):
                await store.append_all([tool("1", answers=tool_id(7), id=ulid(3))], spool=True)
        finally:
            await asyncio.to_thread(server.resume)
    async with open_store(url) as store:
        assert await ids(store) == []
    assert [path.suffix for path in spooled(home)] == [".refused"]
