"""Opening a store by its address."""

import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

from metis.canonical.errors import StoreUnavailableError
from metis.store.database import Database
from metis.store.sqlite import SqliteDatabase
from metis.store.store import Store

Durability = Literal["process", "power"]
"""What an acknowledged append survives: the death of the process, or the loss of power."""

WAIT_S = 30.0
"""How long we wait for somebody else who is writing."""


def _now() -> datetime:
    return datetime.now(UTC)


def open_store(
    url: str | None = None,
    *,
    durability: Durability = "process",
    wait_s: float = WAIT_S,
    recover: bool = True,
    now: Callable[[], datetime] = _now,
) -> Store:
    """Open a store, make it if it is not there, and close what a crash left open in it.

    Args:
        url: `sqlite:///path` or `postgresql://…`; `metis.db` under `$METIS_HOME` if none is given.
        durability: what an acknowledged append survives.
        wait_s: how long to wait for somebody else who is writing.
        recover: whether to close what a crash left open.
        now: the clock.

    Raises:
        StoreError: it cannot be opened; each kind of reason has a class, and a hint what to do.
    """
    database = database_at(url or default_url(os.environ), durability=durability, wait_s=wait_s)
    try:
        store = Store(database, now=now)
        store.start(recover=recover)
    except BaseException:
        database.close()
        raise
    return store


def database_at(url: str, *, durability: Durability, wait_s: float) -> Database:
    """The database at an address."""
    scheme = urlsplit(url).scheme
    if scheme == "sqlite":
        return SqliteDatabase(path_of(url), durability=durability, wait_s=wait_s)
    if scheme in ("postgresql", "postgres"):
        from metis.store.postgres import PostgresDatabase  # noqa: PLC0415 - an optional driver

        return PostgresDatabase(url, durability=durability, wait_s=wait_s)
    hint = "sqlite:///path/to/file.db or postgresql://host/name"
    raise StoreUnavailableError(f"{scheme or url!r} is no kind of store", hint=hint)


def path_of(url: str) -> Path:
    """The file of a SQLite address: three slashes before a relative path, four before `/`."""
    path = unquote(urlsplit(url).path)[1:]
    if not path.strip("/") or urlsplit(url).netloc:
        raise StoreUnavailableError(f"{url!r} names no file", hint="sqlite:///path/to/file.db")
    return Path(path)


def default_url(environment: Mapping[str, str]) -> str:
    """The store of this user: `metis.db` under `$METIS_HOME`."""
    home = environment.get("METIS_HOME")
    if not home:
        data = environment.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
        home = str(Path(data) / "metis")
    return f"sqlite:///{Path(home) / 'metis.db'}"
