"""Fixtures: a SQLite file store, and a PostgreSQL server that is started for the tests."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from metis.store import Store
from metis.store import open as open_store
from postgres import Server, start_server

BOTH = ("sqlite", "postgres")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = start_server()
    yield server
    server.stop()


@pytest.fixture(params=BOTH)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the address of a new store."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'metis.db'}"
    server: Server = request.getfixturevalue("postgres")
    return server.new_database()


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    """Yield an open store of each kind."""
    async with open_store(url) as opened:
        yield opened


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'metis.db'}"


Opened = Callable[[], Store]
