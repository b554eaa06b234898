"""The viewer's index: one row per conversation, model call and tool call, in a file of its own.

Lists with filters, sums and distributions over a large store need columns that the store does not
have. The index is derived: it can be deleted at any time, and only what changed is read again.
Amounts are integers of 10^-12 US dollars, so that sums in SQL are exact.
"""

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from metis.canonical.blocks import ToolResultBlock, ToolUseBlock
from metis.canonical.errors import InvalidValueError, MetisError, StoreError
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageStatus, Usage
from metis.session.conversation import USAGE_KIND, recorded_usage
from metis.session.delegate import PARENT_KIND
from metis.session.stored_calls import copied_entry_ids
from metis.store import Store
from metis.store.database import Transaction
from metis.store.entries import (
    AnyEntry,
    CompactionEntry,
    ErrorEntry,
    ForkEntry,
    MessageEntry,
    SidecarEntry,
)
from metis.store.private_files import make_private_file
from metis.store.queries import title_of
from metis.store.records import SESSION_COLUMNS, SessionRecord, session_record, to_microseconds

T = TypeVar("T")
PICO = 10**12
"""Units of an amount in one US dollar."""
_VERSION = 3
_BATCH = 200
_SQL_STEPS = 20_000
"""Virtual machine steps between two looks at whether a query has taken too long."""
_MAX_SQL_LOOKS = 2_000
_MAX_SQL_ROWS = 1_000
_SCHEMA = """
CREATE TABLE conversations (
  id TEXT PRIMARY KEY, updated_us INTEGER NOT NULL, created_us INTEGER NOT NULL,
  title TEXT NOT NULL, project TEXT NOT NULL, program TEXT NOT NULL, key TEXT NOT NULL,
  tenant TEXT NOT NULL, model TEXT NOT NULL, models TEXT NOT NULL, messages INTEGER NOT NULL,
  errors INTEGER NOT NULL, losses INTEGER NOT NULL, pico_usd INTEGER NOT NULL,
  tail_seq INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX by_update ON conversations (updated_us DESC, id DESC);
CREATE INDEX by_cost ON conversations (pico_usd DESC, id DESC);
CREATE INDEX by_tenant ON conversations (tenant, updated_us DESC, id DESC);
CREATE TABLE calls (
  conversation TEXT NOT NULL, id TEXT NOT NULL, at_us INTEGER NOT NULL, model TEXT NOT NULL,
  project TEXT NOT NULL, key TEXT NOT NULL, tenant TEXT NOT NULL,
  input INTEGER NOT NULL, cached INTEGER NOT NULL, written INTEGER NOT NULL,
  output INTEGER NOT NULL, pico_usd INTEGER NOT NULL,
  latency_ms INTEGER NOT NULL, first_ms INTEGER, PRIMARY KEY (conversation, id)
) WITHOUT ROWID;
CREATE INDEX calls_by_time ON calls (at_us);
CREATE TABLE tools (
  conversation TEXT NOT NULL, id TEXT NOT NULL, name TEXT NOT NULL, at_us INTEGER NOT NULL,
  tenant TEXT NOT NULL, is_done INTEGER NOT NULL, is_error INTEGER NOT NULL, took_ms INTEGER,
  PRIMARY KEY (conversation, id)
) WITHOUT ROWID;
CREATE TABLE errors (
  conversation TEXT NOT NULL, id TEXT NOT NULL, at_us INTEGER NOT NULL, tenant TEXT NOT NULL,
  cause TEXT NOT NULL, text TEXT NOT NULL, PRIMARY KEY (conversation, id)
) WITHOUT ROWID;
CREATE TABLE links (
  parent TEXT NOT NULL, child TEXT NOT NULL, kind TEXT NOT NULL, PRIMARY KEY (parent, child)
) WITHOUT ROWID;
CREATE TABLE progress (updated_us INTEGER NOT NULL, id TEXT NOT NULL);
"""
VIEWS = {
    "conversations": "one row for each conversation",
    "calls": "one row for each model call that used tokens",
    "tools": "one row for each tool call",
    "errors": "one row for each recorded failure",
}
"""The tables that the SQL page documents."""
_CHANGED = (
    f"SELECT {SESSION_COLUMNS} FROM sessions WHERE updated_at > ? OR (updated_at = ? AND id > ?) "  # noqa: S608 - no input
    "ORDER BY updated_at, id LIMIT ?"
)
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


class _Exchange(Struct):
    """What the record of a gateway exchange says that messages do not."""

    losses: list[msgspec.Raw] = []
    timings: dict[str, float | None] = {}
    id: str = ""


class _Draft:
    """A conversation's row while its entries are read."""

    def __init__(self, record: SessionRecord, old: sqlite3.Row | None) -> None:
        self.record = record
        self.title = str(old["title"]) if old else ""
        self.program = str(old["program"]) if old else ""
        self.key = str(old["key"]) if old else ""
        self.model = str(old["model"]) if old else ""
        self.models = set(str(old["models"]).split("\n")) - {""} if old else set[str]()
        self.messages = int(old["messages"]) if old else 0
        self.tail_seq = int(old["tail_seq"]) if old else 0
        self.calls: list[tuple[Any, ...]] = []
        self.tools: dict[str, list[Any]] = {}
        self.results: list[tuple[int, int, str]] = []
        self.errors: list[tuple[Any, ...]] = []
        self.copied: set[str] = set()
        self.links: list[tuple[str, str]] = []

    def add(self, entries: Iterable[AnyEntry]) -> None:
        is_tail_open = False
        entries = list(entries)
        self.copied = copied_entry_ids(entries)
        for entry in entries:
            # A message that is still being written is read again the next time.
            is_partial = (
                isinstance(entry, MessageEntry)
                and entry.message.metadata.status is MessageStatus.PARTIAL
            )
            is_tail_open = is_tail_open or is_partial
            if is_tail_open:
                continue
            self.tail_seq = max(self.tail_seq, entry.seq)
            match entry:
                case MessageEntry():
                    self._add_message(entry.message)
                case SidecarEntry() if entry.kind == USAGE_KIND:
                    self._add_call(entry.id, entry.created_at, *recorded_usage(entry.data)[:2])
                case CompactionEntry() if entry.details and "usage" in entry.details:
                    self._add_call(entry.id, entry.created_at, *recorded_usage(entry.details)[:2])
                case SidecarEntry() if entry.kind == PARENT_KIND:
                    self.links.append((str(entry.data.get("session_id")), "sub-agent"))
                case ForkEntry():
                    self.links.append((entry.source_session_id, "fork"))
                case ErrorEntry():
                    cause = entry.kind or entry.code or "error"
                    self._add_error(entry.id, entry.created_at, cause, entry.text)
                case _:
                    pass

    def _add_message(self, message: Message) -> None:
        metadata = message.metadata
        at_us = to_microseconds(message.created_at)
        if message.role not in (Role.SYSTEM, Role.DEVELOPER):
            self.messages += 1
        if not self.title and message.role is Role.USER:
            self.title = title_of(message.content)
        self.program = self.program or (metadata.origin or "")
        if metadata.user_id or metadata.team_id:
            self.key = "/".join(filter(None, (metadata.team_id, metadata.user_id)))
        if message.role is Role.ASSISTANT and metadata.model:
            self.model = metadata.model
            self.models.add(metadata.model)
        if metadata.usage is not None:
            self._add_call(message.id, message.created_at, metadata.model or "", metadata.usage)
        if metadata.status is MessageStatus.ERROR:
            self._add_error(message.id, message.created_at, "incomplete response", "")
        for block in message.content:
            if isinstance(block, ToolUseBlock):
                self.tools[block.id] = [block.name, at_us, 0, 0, None]
            elif isinstance(block, ToolResultBlock):
                self.results.append((int(block.is_error), at_us, block.tool_use_id))

    def _add_call(self, id_: str, at: Any, model: str, usage: Usage) -> None:
        if id_ in self.copied:
            return
        self.calls.append(
            (
                *(id_, to_microseconds(at), model or "unknown"),
                *(usage.input_tokens, usage.cached_input_tokens),
                *(usage.cache_creation_input_tokens, usage.output_tokens),
                *(int(usage.cost_usd * PICO), usage.latency_ms),
            )
        )

    def _add_error(self, id_: str, at: Any, cause: str, text: str) -> None:
        self.errors.append((id_, to_microseconds(at), cause, text[:500]))


class ViewerIndex:
    """Rows of a store for lists, sums and SQL; `refresh` reads what changed."""

    def __init__(self, store: Store, path: Path | None = None) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._refreshing = asyncio.Lock()
        self._path = path
        try:
            self._database = self._open(path)
        except sqlite3.Error:
            # A file of another program, or damaged: it holds nothing that the store does not.
            self._database = self._open(None)

    def _open(self, path: Path | None) -> sqlite3.Connection:
        if path is not None:
            make_private_file(path)
        database = sqlite3.connect(path or ":memory:", check_same_thread=False)
        database.row_factory = sqlite3.Row
        (version,) = database.execute("PRAGMA user_version").fetchone()
        source = ""
        if version == _VERSION:
            (source,) = database.execute("SELECT name FROM source").fetchone()
        if version != _VERSION or source != self._store.name:
            names = database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
            for (name,) in names.fetchall():
                database.execute(f'DROP TABLE "{name}"')
            database.executescript(_SCHEMA)
            database.execute("CREATE TABLE source (name TEXT NOT NULL)")
            database.execute("INSERT INTO source VALUES (?)", (self._store.name,))
            database.execute(f"PRAGMA user_version = {_VERSION}")
        database.commit()
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = OFF")  # it can be built again
        return database

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._database.close()

    async def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        def run() -> T:
            with self._lock, self._database:
                return work(self._database)

        return await asyncio.to_thread(run)

    # Reading the store

    async def refresh(self, limit: int | None = None) -> int:
        """Read conversations that changed, at most `limit`; return how many were read."""
        count = 0
        async with self._refreshing:
            while limit is None or count < limit:
                records = await self._changed(min(_BATCH, limit - count if limit else _BATCH))
                if not records:
                    break
                for record in records:
                    await self._read_session(record)
                count += len(records)
            await self._remove_deleted()
        return count

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
                database.executemany(f"DELETE FROM {table} WHERE conversation = ?", deleted)  # noqa: S608 - names of ours
            database.executemany("DELETE FROM conversations WHERE id = ?", deleted)

        await self._run(remove)

    async def _changed(self, limit: int) -> list[SessionRecord]:
        def position(database: sqlite3.Connection) -> tuple[int, str]:
            row = database.execute("SELECT updated_us, id FROM progress").fetchone()
            return (row[0], row[1]) if row else (-(1 << 62), "")

        updated_us, id_ = await self._run(position)

        def changed(transaction: Transaction) -> list[SessionRecord]:
            rows = transaction.run(_CHANGED, (updated_us, updated_us, id_, limit))
            return [session_record(row) for row in rows]

        return await self._store.read(changed)

    async def _read_session(self, record: SessionRecord) -> None:
        sql = "SELECT * FROM conversations WHERE id = ?"
        old = await self._run(lambda database: database.execute(sql, (record.id,)).fetchone())
        draft = _Draft(record, old)
        try:
            draft.add(await self._store.history(record.id, after=draft.tail_seq))
        except StoreError as error:
            draft.errors.append(
                (record.id, to_microseconds(record.updated_at), "store", str(error))
            )
        except MetisError:
            return  # it was deleted meanwhile
        rows = await self._store.read(lambda t: t.run(_EXCHANGES, (record.id,)))
        await self._run(lambda database: _write_draft(database, draft, rows))

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
            f"SELECT {', '.join(Row._fields)} FROM conversations {where} "  # noqa: S608 - names of ours
            f"ORDER BY {column} DESC, id DESC LIMIT {count + 1}"
        )
        rows = await self._run(lambda database: database.execute(sql, values).fetchall())
        shown = [Row(*row) for row in rows[:count]]
        if len(rows) <= count:
            return ListPage(shown, "")
        return ListPage(shown, f"{getattr(shown[-1], column)}.{shown[-1].id}")

    async def choices(self, tenant: str | None = None) -> dict[str, list[str]]:
        """Return the values that filters can have."""

        def read(database: sqlite3.Connection) -> dict[str, list[str]]:
            result: dict[str, list[str]] = {}
            for column in ("program", "model", "project", "key"):
                sql = (
                    f"SELECT DISTINCT {column} FROM conversations "  # noqa: S608 - names of ours
                    "WHERE ? IS NULL OR tenant = ? LIMIT 500"
                )
                result[column] = sorted(
                    row[0] for row in database.execute(sql, (tenant, tenant)) if row[0]
                )
            return result

        return await self._run(read)

    async def tenants_of(self, ids: Sequence[str]) -> dict[str, str]:
        """Return the tenant of each conversation that is in the index."""
        marks = ", ".join("?" * len(ids))
        sql = f"SELECT id, tenant FROM conversations WHERE id IN ({marks})"  # noqa: S608 - marks only
        rows = await self._run(lambda database: database.execute(sql, list(ids)).fetchall())
        return {row[0]: row[1] for row in rows}

    async def titles_of(self, ids: Sequence[str]) -> dict[str, str]:
        """Return the title of each conversation that is in the index."""
        marks = ", ".join("?" * len(ids))
        sql = f"SELECT id, title FROM conversations WHERE id IN ({marks})"  # noqa: S608 - marks only
        rows = await self._run(lambda database: database.execute(sql, list(ids)).fetchall())
        return {row[0]: row[1] for row in rows}

    # Sums

    async def select(self, sql: str, values: Sequence[Any] = ()) -> list[sqlite3.Row]:
        """Run a query of ours."""
        return await self._run(lambda database: database.execute(sql, values).fetchall())

    async def query(self, sql: str) -> tuple[list[str], list[tuple[Any, ...]], bool]:
        """Run a query of the user, which can only read and not run for long.

        Returns the column names, the first rows, and whether there are more.

        Raises:
            InvalidValueError: the query is wrong, writes, or takes too long.
        """
        return await self._run(lambda database: _run_query(database, sql))


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidValueError(f"{text[:40]!r} is no cursor of this list") from None


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


def _write_draft(
    database: sqlite3.Connection, draft: _Draft, exchanges: Sequence[Sequence[Any]]
) -> None:
    record, id_ = draft.record, draft.record.id
    losses, first_ms = 0, dict[str, float]()
    # A conversation of several tenants would be seen by neither; the gateway stores none.
    tenants = {str(row[0]) for row in exchanges}
    tenant = tenants.pop() if len(tenants) == 1 else ""
    for _, text in exchanges:
        try:
            exchange = msgspec.json.decode(text, type=_Exchange)
        except msgspec.MsgspecError:
            continue
        losses += len(exchange.losses)
        if (first := exchange.timings.get("first_byte_ms")) is not None:
            first_ms[exchange.id] = first
    key = draft.key or tenant.strip("/")
    program = draft.program or ("gateway" if exchanges else "metis")
    run, run_many = database.execute, database.executemany
    run_many(
        "INSERT OR REPLACE INTO calls VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (id_, *call[:3], record.workspace_path, key, tenant, *call[3:], first_ms.get(call[0]))
            for call in draft.calls
        ],
    )
    run_many(
        "INSERT OR REPLACE INTO tools VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (id_, call_id, tool[0], tool[1], tenant, *tool[2:])
            for call_id, tool in draft.tools.items()
        ],
    )
    run_many(
        "UPDATE tools SET is_done = 1, is_error = ?, took_ms = max(0, (? - at_us) / 1000) "
        "WHERE conversation = ? AND id = ?",
        [(is_error, at_us, id_, call_id) for is_error, at_us, call_id in draft.results],
    )
    run_many(
        "INSERT OR REPLACE INTO errors VALUES (?, ?, ?, ?, ?, ?)",
        [(id_, one[0], one[1], tenant, *one[2:]) for one in draft.errors],
    )
    (cost,) = run(
        "SELECT coalesce(sum(pico_usd), 0) FROM calls WHERE conversation = ?", (id_,)
    ).fetchone()
    (errors,) = run("SELECT count(*) FROM errors WHERE conversation = ?", (id_,)).fetchone()
    updated_us = to_microseconds(record.updated_at)
    run(
        "INSERT OR REPLACE INTO conversations VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *(id_, updated_us, to_microseconds(record.created_at), draft.title),
            *(record.workspace_path, program, key, tenant, record.active_model or draft.model),
            *(
                "\n".join(sorted(draft.models)),
                draft.messages,
                errors,
                losses,
                cost,
                draft.tail_seq,
            ),
        ),
    )
    run("DELETE FROM progress")
    run("INSERT INTO progress VALUES (?, ?)", (updated_us, id_))


_ALLOWED = frozenset(
    (
        sqlite3.SQLITE_SELECT,
        sqlite3.SQLITE_READ,
        sqlite3.SQLITE_FUNCTION,
        sqlite3.SQLITE_RECURSIVE,
    )
)
_FORBIDDEN_FUNCTIONS = frozenset(
    {"load_extension", "readfile", "writefile", "edit", "fts3_tokenizer"}
)


def _authorize(action: int, first: str | None, second: str | None, *_: object) -> int:
    if action not in _ALLOWED:
        return sqlite3.SQLITE_DENY
    if action == sqlite3.SQLITE_FUNCTION and (second or first or "") in _FORBIDDEN_FUNCTIONS:
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK


def _run_query(
    database: sqlite3.Connection, sql: str
) -> tuple[list[str], list[tuple[Any, ...]], bool]:
    looks = 0

    def is_too_long() -> bool:
        nonlocal looks
        looks += 1
        return looks > _MAX_SQL_LOOKS

    database.set_authorizer(_authorize)
    database.set_progress_handler(is_too_long, _SQL_STEPS)
    # A value of a gigabyte can be made in one step.
    limit = database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 1_000_000)
    try:
        cursor = database.execute(sql)
        rows = cursor.fetchmany(_MAX_SQL_ROWS + 1)
        names = [column[0] for column in cursor.description or ()]
        cursor.close()
    except sqlite3.OperationalError as error:
        reason = "the query takes too long" if str(error) == "interrupted" else str(error)
        raise InvalidValueError(reason) from None
    except (sqlite3.Error, sqlite3.Warning) as error:
        raise InvalidValueError(f"only one query that reads is run: {error}") from None
    finally:
        database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, limit)
        database.set_progress_handler(None, 0)
        database.set_authorizer(None)
    return names, [tuple(row) for row in rows[:_MAX_SQL_ROWS]], len(rows) > _MAX_SQL_ROWS


def usd(pico: int) -> Decimal:
    """Return an amount in US dollars."""
    return Decimal(pico) / PICO
