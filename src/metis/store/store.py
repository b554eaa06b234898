"""Store: sessions with their messages and journal entries, opened by a URL.

A write is durable when the awaited call returns. A read sees one point in time.
"""

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from metis.canonical.errors import (
    DuplicateSessionError,
    InvalidValueError,
    StoreError,
    StoreFullError,
    StoreLockedError,
    StoreReadOnlyError,
    StoreUnavailableError,
    UnknownSessionError,
)
from metis.canonical.ids import new_session_id
from metis.canonical.message import SCHEMA_VERSION, Message
from metis.deprecation import renamed_parameters
from metis.store import maintenance, queries, transfer
from metis.store.append import AppendJob, RecordJob, SaveJob, prepare_message
from metis.store.connection import (
    CACHE_BYTES,
    WAIT_S,
    Durability,
    StoreConnection,
    default_url,
    open_database,
    utc_now,
)
from metis.store.entries import AnyEntry, MessageEntry, entry_of
from metis.store.exchanges import (
    ExchangeJob,
    ExchangeRow,
    ExchangesJob,
    HistoryEnd,
    ResponseItems,
    read_costs,
    read_exchange,
    read_history_ends,
    read_response_items,
    write_response_items,
)
from metis.store.private_files import home_directory
from metis.store.queries import Overview
from metis.store.records import (
    EVENT_COLUMNS,
    SESSION_COLUMNS,
    EventRecord,
    Match,
    SessionRecord,
    ToolCallRecord,
    session_row,
    to_microseconds,
)
from metis.store.search import text_of_row
from metis.store.spool import Spool
from metis.store.tables import Tables
from metis.store.wire_bodies import BodiesJob, StoredBody, WireBody, read_wire_body
from metis.store.writer import FunctionJob

T = TypeVar("T")
log = logging.getLogger("metis.store")

_write_json = msgspec.json.Encoder(order="sorted").encode
_AWAY = (StoreUnavailableError, StoreFullError, StoreLockedError)


class Store(StoreConnection):
    """Sessions in a database; opened by `metis.store.open`."""

    # Sessions

    async def create_session(
        self,
        session_id: str | None = None,
        *,
        workspace_path: str | Path = "",
        active_model: str | None = None,
        routing_policy: Any = None,
    ) -> SessionRecord:
        """Create a session."""
        now = self._now()
        record = SessionRecord(
            id=session_id or new_session_id(),
            workspace_path=str(workspace_path),
            active_model=active_model,
            routing_policy=routing_policy,
            schema_version=SCHEMA_VERSION,
            created_at=now,
            updated_at=now,
        )

        def write(tables: Tables) -> SessionRecord:
            if tables.run("SELECT 1 FROM sessions WHERE id = ?", (record.id,)):
                raise DuplicateSessionError(record.id)
            tables.change(transfer.INSERT_SESSION, session_row(record))
            return record

        return await self._write(FunctionJob(write))

    async def restore_session(self, record: SessionRecord) -> None:
        """Write the row of a session, and replace an existing one; for repairs."""
        columns = [name.strip() for name in SESSION_COLUMNS.split(",")][1:]
        changes = ", ".join(f"{name} = excluded.{name}" for name in columns)
        sql = f"{transfer.INSERT_SESSION} ON CONFLICT (id) DO UPDATE SET {changes}"
        await self._write(FunctionJob(lambda tables: tables.change(sql, session_row(record))))

    async def set_routing_policy(self, session_id: str, policy: Any) -> None:
        """Store a snapshot of the routing policy of a session."""
        text = None if policy is None else _write_json(policy).decode()
        sql = "UPDATE sessions SET routing_policy_json = ? WHERE id = ?"

        def write(tables: Tables) -> None:
            if tables.change(sql, (text, session_id)) != 1:
                raise UnknownSessionError(session_id)

        await self._write(FunctionJob(write))

    async def session(self, session_id: str) -> SessionRecord:
        """Return a session by its id."""
        return await self.read(lambda t: queries.read_session(t, session_id))

    async def sessions(self, limit: int = 100) -> list[SessionRecord]:
        """Return the sessions that changed last, newest first."""
        return await self.read(lambda t: queries.read_sessions(t, limit))

    async def overviews(
        self, limit: int = 100, *, workspace_path: str | None = None
    ) -> list[Overview]:
        """Return the sessions that changed last, each with title, model, size and cost."""
        return await self.read(lambda t: queries.read_overviews(t, limit, workspace_path))

    # Messages and entries

    async def append(self, message: Message, *, renew_ids: bool = False) -> MessageEntry:
        """Append a message to its session; it is durable when this returns.

        With `renew_ids` the message gets a new id if another writer has stored a greater one, so
        that the ids of a session always increase; the returned entry has the stored message.

        Raises:
            InvalidMessageError: the message breaks rules, or conflicts with the session.
            UnknownSessionError: there is no such session.
        """
        job = AppendJob((prepare_message(message),), renew_ids=renew_ids)
        if not self._has_written:
            await self._register_writer()
        # The common case costs one set lookup, not a call.
        if message.session_id not in self._written_sessions:
            self._track(message.session_id)
        return (await self._writer.submit(job))[0]

    async def append_all(
        self, messages: Iterable[Message], *, renew_ids: bool = False, spool: bool = False
    ) -> list[MessageEntry]:
        """Append several messages to their sessions, all or none.

        With `spool`, messages are saved in a local file if the database is unreachable. They are
        stored by the next `restore_spooled`, or when the store is opened again.

        Raises:
            StoreSpooledError: the messages are in a local file.
        """
        prepared = [prepare_message(message) for message in messages]
        try:
            return await self._write(AppendJob(prepared, renew_ids=renew_ids))
        except _AWAY as error:
            if not spool:
                raise
            raise await self.spool([entry_of(one.message) for one in prepared], error) from error

    async def save(self, message: Message) -> Message:
        """Write a stored message again: a partial one with more content, or any in a newer form."""
        return await self._write(SaveJob(prepare_message(message)))

    async def record(self, entry: AnyEntry, *, spool: bool = False) -> AnyEntry:
        """Append a journal entry that is not a message; `append_all` describes `spool`."""
        try:
            return await self._write(RecordJob(entry))
        except _AWAY as error:
            if not spool:
                raise
            raise await self.spool([entry], error) from error

    async def message(self, session_id: str, message_id: str) -> Message:
        """Return one message of a session."""
        return await self.read(lambda t: queries.read_message(t, session_id, message_id))

    async def messages(self, session_id: str, *, newest: int | None = None) -> list[Message]:
        """Return the messages of a session in order; all, or only the newest."""
        return await self.read(lambda t: queries.read_messages(t, session_id, newest))

    async def has_dialogue(self, session_id: str) -> bool:
        """Return whether any branch of a session has a message that is not an instruction."""
        sql = (
            "SELECT 1 FROM messages WHERE session_id = ? "
            "AND role NOT IN ('system', 'developer') LIMIT 1"
        )
        return bool(await self.read(lambda t: t.run(sql, (session_id,))))

    async def history(
        self, session_id: str, *, newest: int | None = None, after: int = 0
    ) -> list[AnyEntry]:
        """Return the entries of a session in order; all, the newest, or those after a number."""
        return await self.read(lambda t: queries.read_history(t, session_id, newest, after))

    # Calls, ids, bookmarks

    async def tool_calls(
        self, session_id: str, *, status: str | None = None
    ) -> list[ToolCallRecord]:
        """Return the tool calls of a session; `pending` are those without a result."""
        return await self.read(lambda t: queries.read_tool_calls(t, session_id, status))

    async def provider_ids(self, session_id: str, provider: str) -> dict[str, str]:
        """Return the provider's ids of the calls of a session, by our ids."""
        sql = (
            "SELECT tool_use_id, provider_id FROM tool_id_map WHERE session_id = ? AND provider = ?"
        )
        rows = await self.read(lambda t: t.run(sql, (session_id, provider)))
        return {row[0]: row[1] for row in rows}

    async def tool_use_id(self, session_id: str, provider: str, provider_id: str) -> str | None:
        """Return our id of the newest call with a provider's id; None if there is none."""
        sql = (
            "SELECT max(tool_use_id) FROM tool_id_map "
            "WHERE session_id = ? AND provider = ? AND provider_id = ?"
        )
        rows = await self.read(lambda t: t.run(sql, (session_id, provider, provider_id)))
        return rows[0][0]

    async def bookmarks(self, session_id: str) -> dict[str, str]:
        """Return message ids by bookmark name."""
        sql = "SELECT name, message_id FROM bookmarks WHERE session_id = ? ORDER BY name"
        rows = await self.read(lambda t: t.run(sql, (session_id,)))
        return {row[0]: row[1] for row in rows}

    # Copies

    async def fork(self, session_id: str, *, at: str | None = None) -> SessionRecord:
        """Create a session that starts as a copy, up to a message or to the end, under new ids."""
        copy = await self.read(lambda t: transfer.fork_transcript(t, session_id, at, self._now()))
        return await self._import(copy)

    async def export(self, session_id: str) -> list[bytes]:
        """Return a session as lines of JSON, from which `import_lines` restores it."""
        return await self.read(lambda t: list(transfer.export_lines(t, session_id)))

    async def import_lines(self, lines: Iterable[bytes], *, new_ids: bool = False) -> SessionRecord:
        """Store a session from the lines of an export.

        Raises:
            DecodeError: a line is not part of an export.
            DuplicateSessionError: the session exists already, and `new_ids` is off.
        """
        # Decoding a long export would block the event loop.
        transcript = await self._in_thread(lambda: transfer.read_transcript(lines))
        return await self._import(transfer.with_new_ids(transcript) if new_ids else transcript)

    async def import_entries(
        self, entries: Sequence[AnyEntry], *, workspace_path: str | Path | None = None
    ) -> SessionRecord:
        """Store the entries of one session, such as those that `metis.interchange` loads.

        Raises:
            InvalidValueError: there are no entries.
            InvalidMessageError: a message breaks rules, or conflicts with another one.
            DuplicateSessionError: the session exists already.
        """
        if not entries:
            raise InvalidValueError("there is nothing to import")
        times = [entry.created_at for entry in entries]
        session = SessionRecord(
            id=entries[0].session_id,
            workspace_path=str(workspace_path or ""),
            schema_version=SCHEMA_VERSION,
            created_at=min(times),
            updated_at=max(times),
        )
        return await self._import(transfer.Transcript(session, tuple(entries)))

    async def append_entries(self, entries: Sequence[AnyEntry]) -> None:
        """Append messages and other entries to their sessions, all or none, in their order.

        Raises:
            InvalidMessageError: a message breaks rules, or conflicts with another one.
            UnknownSessionError: there is no such session.
        """
        await self._write(await self._in_thread(lambda: transfer.ExtendJob(entries)))

    async def _import(self, transcript: transfer.Transcript) -> SessionRecord:
        job = await self._in_thread(lambda: transfer.ImportJob(transcript))
        self._track(transcript.session.id)
        return await self._write(job)

    # Deletion

    async def delete(self, session_id: str) -> None:
        """Delete a session with everything in it."""
        # Raises for an unknown session; deleting nothing would look like success.
        await self.session(session_id)
        await self._erase([session_id])

    async def _erase(self, session_ids: Sequence[str]) -> None:
        # A session with the same id may be imported later and must not get the old digests.
        if self._has_written:
            await self._write(FunctionJob(lambda tables: tables.forget_digests(session_ids)))
        await self._in_thread(lambda: self._database.erase(session_ids))

    async def purge(self) -> None:
        """Free the space of deleted rows, so that no data of them is left on the disk."""
        await self._in_thread(self._database.purge)

    async def sweep(
        self, policy: maintenance.Policy, *, is_dry_run: bool = True
    ) -> maintenance.Sweep:
        """Delete expired data by a policy; a dry run only returns what would be deleted."""
        plan = await self.read(lambda t: maintenance.plan_sweep(t, policy, is_dry_run=is_dry_run))
        if not is_dry_run:
            await self._erase(plan.sessions)
            await self._write(
                FunctionJob(lambda tables: maintenance.delete_expired(tables, policy, plan))
            )
        return plan

    # Upkeep

    async def version(self) -> int:
        """Return the version of the tables."""
        return await self._in_thread(self._database.version)

    async def backup(self, target: str | Path) -> None:
        """Copy all tables to a new file, while other processes read and write."""
        await self._in_thread(lambda: self._database.backup(Path(target)))

    async def check(self) -> list[str]:
        """Return the faults of the database; if there are none, missing digests are added."""
        problems = await self._in_thread(self._database.check)
        try:
            result = await self.read(maintenance.find_problems)
        except StoreError as error:
            return problems or [str(error)]
        problems += result.problems
        if not problems:
            with suppress(StoreReadOnlyError):
                for session_id in result.without_digests:
                    job = FunctionJob(partial(maintenance.add_digests, session_id=session_id))
                    await self._write(job)
        return problems

    @renamed_parameters(words="query")
    async def search(
        self, query: str, *, session_id: str | None = None, limit: int = 20
    ) -> list[Match]:
        """Return the messages that contain all words of a query, best first.

        If there are many matches, only the newest are ranked.
        """
        if not query.split():
            return []

        def find() -> list[Match]:
            index = self._database.index()
            index.catch_up(text_of_row)
            rows = index.find(query, session_id, limit)
            return [Match(session_id=row[0], message_id=row[1], snippet=row[2]) for row in rows]

        return await self._in_thread(find)

    async def rebuild_search(self) -> int:
        """Rebuild the search index and return the number of messages in it."""

        def rebuild() -> int:
            index = self._database.index()
            index.clear()
            return index.catch_up(text_of_row)

        return await self._in_thread(rebuild)

    # Prices and events

    async def save_prices(self, pricing_version: str, table: Any) -> None:
        """Store a price table under its version, so that old costs can be traced."""
        sql = (
            "INSERT INTO price_versions (pricing_version, table_json, created_at) "
            "VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
        )
        values = (pricing_version, _write_json(table).decode(), to_microseconds(self._now()))
        await self._write(FunctionJob(lambda tables: tables.change(sql, values)))

    async def prices(self) -> Mapping[str, Any]:
        """Return every stored price table by version."""
        sql = "SELECT pricing_version, table_json FROM price_versions ORDER BY pricing_version"
        rows = await self.read(lambda t: t.run(sql))
        return {row[0]: msgspec.json.decode(row[1]) for row in rows}

    async def add_events(self, events: Sequence[EventRecord]) -> None:
        """Store events of the trace."""
        sql = f"INSERT INTO events ({EVENT_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608 - no input
        rows = [msgspec.structs.astuple(event) for event in events]
        await self._write(FunctionJob(lambda tables: tables.change_many(sql, rows)))

    async def events(self, session_id: str, *, after: str = "") -> list[EventRecord]:
        """Return the events of a session in order, after an event or from the first."""
        sql = f"SELECT {EVENT_COLUMNS} FROM events WHERE session_id = ? AND id > ? ORDER BY id"  # noqa: S608 - no input
        rows = await self.read(lambda t: t.run(sql, (session_id, after)))
        names = EventRecord.__struct_fields__
        return [EventRecord(**dict(zip(names, row, strict=True))) for row in rows]

    # Exchanges of the gateway

    async def add_exchanges(self, jobs: Sequence[ExchangeJob]) -> None:
        """Store exchanges with the messages that they added to their sessions, all or none.

        Raises:
            InvalidMessageError: a message breaks rules, or conflicts with its session.
        """
        await self._write(ExchangesJob(jobs))
        for job in jobs:
            job.settle()

    async def exchange(self, exchange_id: str) -> ExchangeRow | None:
        """Return the row of an exchange; None if there is none."""
        return await self.read(lambda t: read_exchange(t, exchange_id))

    async def exchange_costs(self, tenant: str, first_id: str) -> dict[str, Decimal]:
        """Return the costs of a tenant's exchanges in US dollars, by id, from `first_id` on."""
        return await self.read(lambda t: read_costs(t, tenant, first_id))

    async def history_ends(self, scope: str, digests: Sequence[str]) -> dict[str, HistoryEnd]:
        """Return the stored ends of histories with these digests, by digest; see `exchanges`."""
        return await self.read(lambda t: read_history_ends(t, scope, digests))

    async def add_response_items(self, row: ResponseItems) -> None:
        """Store the items of a response, which a client of Responses may continue by id."""
        await self._write(FunctionJob(lambda tables: write_response_items(tables, row)))

    async def response_items(self, tenant: str, response_id: str) -> ResponseItems | None:
        """Return the items of a response by its id; None if there are none."""
        return await self.read(lambda t: read_response_items(t, tenant, response_id))

    # Bytes of model calls

    def add_wire_bodies(self, bodies: Sequence[WireBody]) -> None:
        """Store the bytes of model calls in the background, within two seconds.

        Their messages or exchanges must be stored before. A failure is logged.
        """
        self._writer.defer(BodiesJob(bodies, self._body_packer))

    async def wire_body(self, session_id: str, body_id: str) -> StoredBody | None:
        """Return the bytes of a call by the id of its response, or of its exchange."""
        return await self.read(lambda t: read_wire_body(t, session_id, body_id))


def open_store(  # noqa: PLR0913 - all by name
    url: str | None = None,
    *,
    durability: Durability = "process",
    wait_s: float = WAIT_S,
    recover: bool = True,
    cache_bytes: int = CACHE_BYTES,
    now: Callable[[], datetime] = utc_now,
) -> Store:
    """Open a store; create it if it does not exist, and recover it after a crash.

    Args:
        url: `sqlite:///path` or `postgresql://…`; by default `metis.db` under `$METIS_HOME`.
        durability: what an acknowledged write survives.
        wait_s: how long to wait for another process that is writing.
        recover: whether to close messages and calls that a crash left open.
        cache_bytes: the size of the page cache of each SQLite connection.
        now: the clock.

    Raises:
        StoreError: the store cannot be opened; the subclass and the hint have the reason.
    """
    url = url or default_url(os.environ)
    database = open_database(url, durability=durability, wait_s=wait_s, cache_bytes=cache_bytes)
    try:
        spool = Spool(home_directory(os.environ) / "spool", url)
        store = Store(database, spool=spool, now=now)
        store.start(recover=recover)
    except BaseException:
        database.close()
        raise
    return store
