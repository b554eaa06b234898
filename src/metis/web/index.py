"""The viewer's index: one row per conversation, model call and tool call, in a separate file.

Lists with filters, sums and distributions over a large store need columns that the store does not
have. The index is derived: it can be deleted at any time, and only what changed is read again.
"""

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from msgspec import Struct

from metis.canonical.errors import InvalidValueError, MetisError, StoreError
from metis.store import Store
from metis.store.database import Transaction
from metis.store.private_files import make_private_file
from metis.store.records import SESSION_COLUMNS, SessionRecord, session_record, to_microseconds
from metis.store.tables import TOUCH_INTERVAL_US
from metis.web.index_rows import PICO, SCHEMA, Draft, rebuild_choices, write_draft
from metis.web.user_query import replace_patterns, run_query

T = TypeVar("T")
_VERSION = 6
_BATCH = 200
_REFRESH_S = 2.0
_REFRESHED_AT_ONCE = 20
"""How many changed conversations are indexed before a page is shown."""
VIEWS = {
    "conversations": "one row for each conversation",
    "calls": "one row for each model call that used tokens",
    "tools": "one row for each tool call",
    "errors": "one row for each recorded failure",
}
"""The tables that the SQL page documents."""
_CHANGED = (
    f"SELECT {SESSION_COLUMNS} FROM sessions WHERE (updated_at, id) > (?, ?) "  # noqa: S608 - no input
    "ORDER BY updated_at, id LIMIT ?"
)
_OVERLAP_US = 60_000_000
"""Changes are searched from this long before the newest: a commit may be later than its date."""
_TOUCH_US = 2 * TOUCH_INTERVAL_US
"""A conversation indexed within this time of its date may have changed without a new date."""
_EXCHANGES = "SELECT tenant, record_json FROM exchanges WHERE session_id = ?"
_SORTS = {"changed": "updated_us", "cost": "pico_usd"}


class Filters(Struct, frozen=True, kw_only=True):
    """Which conversations a list shows; an empty value selects all."""

    program: str = ""
    model: str = ""
    provider: str = ""
    project: str = ""
    key: str = ""
    tenant: str | None = None
    """Whose exchanges of the gateway, as it stores them; None for everything."""
    min_cost: Decimal = Decimal(0)
    only_errors: bool = False
    only_losses: bool = False
    since_us: int = 0
    until_us: int = 0
    sort: str = "changed"
    cursor: str = ""
    """Where the page before ended: the value that it is sorted by, and the id."""


class Row(NamedTuple):
    """A conversation in a list."""

    id: str
    updated_us: int
    title: str
    project: str
    program: str
    key: str
    model: str
    messages: int
    errors: int
    losses: int
    pico_usd: int


class ListPage(NamedTuple):
    """One page of a list, and the cursor of the next one if there is more."""

    rows: list[Row]
    cursor: str


class ViewerIndex:
    """Rows of a store for lists, sums and SQL; `refresh` reads what changed."""

    def __init__(self, store: Store, path: Path | None = None) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._refreshing = asyncio.Lock()
        self._refreshed_at = -_REFRESH_S
        self._background_refresh: asyncio.Task[int] | None = None
        self._path = path
        try:
            self._database = self._open(path)
        except sqlite3.Error:
            # The file is damaged or not an index: it has nothing that the store does not have.
            self._database = self._open(None)

    def _open(self, path: Path | None) -> sqlite3.Connection:
        if path is not None:
            make_private_file(path)
        database = sqlite3.connect(path or ":memory:", check_same_thread=False)
        database.row_factory = sqlite3.Row
        replace_patterns(database)
        (version,) = database.execute("PRAGMA user_version").fetchone()
        source = ""
        if version == _VERSION:
            (source,) = database.execute("SELECT name FROM source").fetchone()
        if version != _VERSION or source != self._store.name:
            names = database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
            for (name,) in names.fetchall():
                database.execute(f'DROP TABLE "{name}"')
            database.executescript(SCHEMA)
            database.execute("CREATE TABLE source (name TEXT NOT NULL)")
            database.execute("INSERT INTO source VALUES (?)", (self._store.name,))
            database.execute(f"PRAGMA user_version = {_VERSION}")
        database.commit()
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = OFF")  # a lost index is built again
        return database

    def close(self) -> None:
        """Close the file."""
        if self._background_refresh is not None:
            self._background_refresh.cancel()
        with self._lock:
            self._database.close()

    async def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        def run() -> T:
            with self._lock, self._database:
                return work(self._database)

        return await asyncio.to_thread(run)

    # Reading the store

    async def refresh_if_due(self) -> None:
        """Read what changed before a page is shown, at most every other second.

        If much has changed, the page shows before everything is read.
        """
        if self._refreshing.locked() or time.monotonic() - self._refreshed_at < _REFRESH_S:
            return
        self._refreshed_at = time.monotonic()
        if await self.refresh(_REFRESHED_AT_ONCE) == _REFRESHED_AT_ONCE:
            self._background_refresh = asyncio.create_task(self.refresh())

    async def refresh(self, limit: int | None = None) -> int:
        """Read conversations that changed, at most `limit`; return how many were read."""
        count = 0
        async with self._refreshing:
            newest = (await self.select("SELECT max(updated_us) FROM conversations"))[0][0]
            position = (-(1 << 62) if newest is None else newest - _OVERLAP_US, "")
            while limit is None or count < limit:
                records = await self._store.read(partial(_read_changed, position=position))
                if not records:
                    break
                position = (to_microseconds(records[-1].updated_at), records[-1].id)
                unread = await self._unread(records)
                for record in unread[: None if limit is None else limit - count]:
                    await self._read_session(record)
                    count += 1
            await self._remove_deleted()
        return count

    async def _unread(self, records: Sequence[SessionRecord]) -> list[SessionRecord]:
        """Return the conversations that changed since they were read, or may have."""
        ids = [record.id for record in records]
        updated = await self.column("updated_us", ids)
        read = await self.column("read_us", ids)
        return [
            record
            for record in records
            if updated.get(record.id) != (at := to_microseconds(record.updated_at))
            or read[record.id] < at + _TOUCH_US
        ]

    async def _remove_deleted(self) -> None:
        stored = await self._store.read(lambda t: t.run("SELECT count(*) FROM sessions")[0][0])
        sql = "SELECT count(*) FROM conversations"
        if (await self.select(sql))[0][0] <= stored:
            return
        present = set(await self._store.read(lambda t: t.run("SELECT id FROM sessions")))
        indexed = await self.select("SELECT id FROM conversations")
        deleted = [(row[0],) for row in indexed if (row[0],) not in present]

        def remove(database: sqlite3.Connection) -> None:
            for table in ("calls", "tools", "errors"):
                database.executemany(f"DELETE FROM {table} WHERE conversation = ?", deleted)  # noqa: S608 - fixed names
            database.executemany("DELETE FROM links WHERE child = ?", deleted)
            database.executemany("DELETE FROM conversations WHERE id = ?", deleted)
            rebuild_choices(database)

        await self._run(remove)

    async def _read_session(self, record: SessionRecord) -> None:
        sql = "SELECT * FROM conversations WHERE id = ?"
        old = await self._run(lambda database: database.execute(sql, (record.id,)).fetchone())
        draft = Draft(record, old)
        read_us = time.time_ns() // 1000
        try:
            draft.add(await self._store.history(record.id, after=draft.tail_seq))
        except StoreError as error:
            draft.errors.append(
                (record.id, to_microseconds(record.updated_at), "store", str(error))
            )
        except MetisError:
            return  # it was deleted meanwhile
        rows = await self._store.read(lambda t: t.run(_EXCHANGES, (record.id,)))
        await self._run(lambda database: write_draft(database, draft, rows, read_us))

    # Lists

    async def page(self, filters: Filters, count: int) -> ListPage:
        """Return one page of conversations."""
        column = _SORTS.get(filters.sort, "updated_us")
        conditions, values = _conditions(filters)
        if filters.cursor:
            value, _, id_ = filters.cursor.partition(".")
            conditions.append(f"({column}, id) < (?, ?)")
            values += [_integer(value), id_]
        where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
        sql = (
            f"SELECT {', '.join(Row._fields)} FROM conversations {where} "  # noqa: S608 - fixed names
            f"ORDER BY {column} DESC, id DESC LIMIT {count + 1}"
        )
        rows = await self._run(lambda database: database.execute(sql, values).fetchall())
        shown = [Row(*row) for row in rows[:count]]
        if len(rows) <= count:
            return ListPage(shown, "")
        return ListPage(shown, f"{getattr(shown[-1], column)}.{shown[-1].id}")

    async def choices(self, tenant: str | None = None) -> dict[str, list[str]]:
        """Return the values that filters can have."""
        rows = await self.select(
            "SELECT DISTINCT name, value FROM choices WHERE ? IS NULL OR tenant = ? "
            "ORDER BY value LIMIT 2000",
            (tenant, tenant),
        )
        names = ("program", "model", "project", "key")
        return {name: [row[1] for row in rows if row[0] == name] for name in names}

    async def column(
        self, column: Literal["tenant", "title", "updated_us", "read_us"], ids: Sequence[str]
    ) -> dict[str, Any]:
        """Return one value of each of these conversations that is in the index."""
        marks = ", ".join("?" * len(ids))
        sql = f"SELECT id, {column} FROM conversations WHERE id IN ({marks})"  # noqa: S608 - marks only
        return {row[0]: row[1] for row in await self.select(sql, ids)}

    # Sums

    async def select(self, sql: str, values: Sequence[Any] = ()) -> list[sqlite3.Row]:
        """Run a query of the viewer itself."""
        return await self._run(lambda database: database.execute(sql, values).fetchall())

    async def query(self, sql: str) -> tuple[list[str], list[tuple[Any, ...]], bool]:
        """Run a query of the user, which can only read and not run for long.

        Returns the column names, the first rows, and whether there are more.

        Raises:
            InvalidValueError: the query is wrong, writes, or takes too long.
        """
        return await self._run(lambda database: run_query(database, sql))


def _read_changed(transaction: Transaction, position: tuple[int, str]) -> list[SessionRecord]:
    return [session_record(row) for row in transaction.run(_CHANGED, (*position, _BATCH))]


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidValueError(f"{text[:40]!r} is not a cursor of this list") from None


def _conditions(filters: Filters) -> tuple[list[str], list[Any]]:
    conditions: list[str] = []
    values: list[Any] = []

    def add(condition: str, *parameters: Any) -> None:
        conditions.append(condition)
        values.extend(parameters)

    if filters.tenant is not None:
        add("tenant = ?", filters.tenant)
    for column in ("program", "project", "key"):
        if value := getattr(filters, column):
            add(f"{column} = ?", value)
    # `models` has one model a line.
    a_line = "instr(char(10) || models || char(10), char(10) || ? || char(10))"
    start_of_a_line = "instr(char(10) || models, char(10) || ? || ':')"
    for condition, value in (
        (a_line, filters.model),
        (start_of_a_line, filters.provider),
        ("pico_usd >= ?", int(filters.min_cost * PICO)),
        ("updated_us >= ?", filters.since_us),
        ("updated_us < ?", filters.until_us),
    ):
        if value:
            add(condition, value)
    if filters.only_errors:
        add("errors > 0")
    if filters.only_losses:
        add("losses > 0")
    return conditions, values


def usd(pico: int) -> Decimal:
    """Return an amount in US dollars."""
    return Decimal(pico) / PICO


def index_path(store_name: str, home: Path) -> Path | None:
    """Return the path of the index of a store; None if the directory is not writable."""
    if not os.access(home, os.W_OK):
        return None
    return home / f"viewer-{sha256(store_name.encode()).hexdigest()[:32]}.db"
