"""Store: sessions, their messages and everything else that happened in them.

What is awaited here is durable when the answer comes. Reading sees one point in time.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec

from metis.canonical.errors import DuplicateSessionError, StoreError, UnknownSessionError
from metis.canonical.ids import new_session_id, new_ulid
from metis.canonical.message import SCHEMA_VERSION, Message
from metis.store import reading, retention, transfer
from metis.store.appending import Append, prepare
from metis.store.checking import problems_of
from metis.store.database import Database, Transaction
from metis.store.entries import AnyEntry, MessageEntry, RecoveryEntry
from metis.store.overview import Overview, read_overviews
from metis.store.recording import Record
from metis.store.records import (
    EVENT_COLUMNS,
    EventRecord,
    Match,
    SessionRecord,
    ToolCallRecord,
    session_row,
)
from metis.store.recovery import Recovery
from metis.store.rows import to_micros
from metis.store.saving import Save
from metis.store.tables import Tables
from metis.store.words import words_of_row
from metis.store.work import Plain, Work
from metis.store.writer import Writer

T = TypeVar("T")
log = logging.getLogger("metis.store")
_READERS = 4
_write_json = msgspec.json.Encoder(order="sorted").encode


MOST_TOUCHED = 10_000
"""How many written sessions are remembered, to see at the end whether all their calls are done."""


def _now() -> datetime:
    return datetime.now(UTC)


class Store:
    """Keeps sessions; made by `metis.store.open`."""

    def __init__(self, database: Database, *, now: Callable[[], datetime] = _now) -> None:
        self._database = database
        self._writer = Writer(database)
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="metis-store-read")
        self._now = now
        self._id = new_ulid()
        self._has_written = False
        self._is_closed = False
        self._touched: set[str] = set()
        self.recovered: list[RecoveryEntry] = []
        """What was closed at the start because a crash had left it open."""

    @property
    def name(self) -> str:
        """Where the store is, for people."""
        return self._database.name

    def start(self, *, recover: bool) -> None:
        """Bring the tables up to date, and close what a crash left open if nobody else is here."""
        is_alone = self._database.claim(patiently=recover)
        try:
            self._database.migrate()
            if recover and is_alone and self._was_left_open():
                self.recovered = self._writer.run(
                    Plain(lambda tables: Recovery(tables, self._now).run())
                )
        finally:
            self._database.share(was_alone=is_alone)

    def _was_left_open(self) -> bool:
        with self._database.read() as transaction:
            return bool(transaction.run("SELECT 1 FROM writers LIMIT 1"))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Write what waits and let go of everything; a second call does nothing."""
        if not self._is_closed:
            self._is_closed = True
            await asyncio.get_running_loop().run_in_executor(self._readers, self._close)
            self._readers.shutdown()

    def _close(self) -> None:
        try:
            self._writer.close()
            if self._has_written and not self._has_open_work():
                sql = "DELETE FROM writers WHERE id = ?"
                self._writer.run(Plain(lambda tables: tables.change(sql, (self._id,))))
        except StoreError as error:
            # Everything acknowledged is there; whoever opens the store next looks after the rest.
            log.warning("%s was not closed in order: %s", self.name, error)
        finally:
            self._database.close()

    def _touch(self, *session_ids: str) -> None:
        if len(self._touched) <= MOST_TOUCHED:
            self._touched.update(session_ids)

    def _has_open_work(self) -> bool:
        if len(self._touched) > MOST_TOUCHED:
            return True  # too much to look through now; whoever opens the store next does
        calls = "SELECT 1 FROM tool_calls WHERE session_id = ? AND status = 'pending' LIMIT 1"
        with self._database.read() as transaction:
            return bool(transaction.run("SELECT 1 FROM open_messages LIMIT 1")) or any(
                transaction.run(calls, (session_id,)) for session_id in self._touched
            )

    # Sessions

    async def create_session(
        self,
        session_id: str | None = None,
        *,
        workspace_path: str | Path = "",
        active_model: str | None = None,
        routing_policy: Any = None,
    ) -> SessionRecord:
        """A new session."""
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

        return await self._write(Plain(write))

    async def set_routing_policy(self, session_id: str, policy: Any) -> None:
        """Keep a snapshot of the policy under which models are picked from now on."""
        text = None if policy is None else _write_json(policy).decode()
        sql = "UPDATE sessions SET routing_policy_json = ? WHERE id = ?"

        def write(tables: Tables) -> None:
            if tables.change(sql, (text, session_id)) != 1:
                raise UnknownSessionError(session_id)

        await self._write(Plain(write))

    async def session(self, session_id: str) -> SessionRecord:
        """A session by its id."""
        return await self._read(lambda t: reading.read_session(t, session_id))

    async def sessions(self, limit: int = 100) -> list[SessionRecord]:
        """The sessions that changed last, newest first."""
        return await self._read(lambda t: reading.read_sessions(t, limit))

    async def overviews(
        self, limit: int = 100, *, workspace_path: str | None = None
    ) -> list[Overview]:
        """The same with what was asked first, who answered, how much and for how much."""
        return await self._read(lambda t: read_overviews(t, limit, workspace_path))

    # Messages and entries

    async def append(self, message: Message, *, renew_ids: bool = False) -> MessageEntry:
        """Put a message at the end of its session; the answer means that it is durable.

        With `renew_ids` a message that another writer overtook gets a new id, so that the ids of
        the session go on increasing; the answer holds the message as it was stored.

        Raises:
            InvalidMessageError: the message breaks rules, or does not fit to the session.
            UnknownSessionError: there is no such session.
        """
        work = Append((prepare(message),), renew_ids=renew_ids)
        if not self._has_written:
            await self._sign()
        if message.session_id not in self._touched:
            self._touch(message.session_id)
        return (await self._writer.submit(work))[0]

    async def append_all(
        self, messages: Iterable[Message], *, renew_ids: bool = False
    ) -> list[MessageEntry]:
        """Put several messages at the ends of their sessions, all or none."""
        work = Append([prepare(message) for message in messages], renew_ids=renew_ids)
        return await self._write(work)

    async def save(self, message: Message) -> Message:
        """Write a message that is in the store again: with its end, or in a newer form."""
        return await self._write(Save(prepare(message)))

    async def record(self, entry: AnyEntry) -> AnyEntry:
        """Put an entry that is no message at the end of its session."""
        return await self._write(Record(entry))

    async def message(self, session_id: str, message_id: str) -> Message:
        """One message of a session."""
        return await self._read(lambda t: reading.read_message(t, session_id, message_id))

    async def messages(self, session_id: str, *, newest: int | None = None) -> list[Message]:
        """The messages of a session in order; all, or only the newest."""
        return await self._read(lambda t: reading.read_messages(t, session_id, newest))

    async def history(
        self, session_id: str, *, newest: int | None = None, after: int = 0
    ) -> list[AnyEntry]:
        """Everything that happened in a session, in order; all, the newest, or what is new."""
        return await self._read(lambda t: reading.read_history(t, session_id, newest, after))

    # Calls, ids, bookmarks

    async def tool_calls(
        self, session_id: str, *, status: str | None = None
    ) -> list[ToolCallRecord]:
        """The calls of a session; `pending` are those that nobody answered."""
        return await self._read(lambda t: reading.read_calls(t, session_id, status))

    async def provider_ids(self, session_id: str, provider: str) -> dict[str, str]:
        """The ids that a provider gave to the calls of a session, by ours."""
        sql = (
            "SELECT tool_use_id, provider_id FROM tool_id_map WHERE session_id = ? AND provider = ?"
        )
        rows = await self._read(lambda t: t.run(sql, (session_id, provider)))
        return {row[0]: row[1] for row in rows}

    async def tool_use_id(self, session_id: str, provider: str, provider_id: str) -> str | None:
        """Our id for the newest call that a provider named so; None if there is none."""
        sql = (
            "SELECT max(tool_use_id) FROM tool_id_map "
            "WHERE session_id = ? AND provider = ? AND provider_id = ?"
        )
        rows = await self._read(lambda t: t.run(sql, (session_id, provider, provider_id)))
        return rows[0][0]

    async def bookmarks(self, session_id: str) -> dict[str, str]:
        """The message of each bookmark of a session."""
        sql = "SELECT name, message_id FROM bookmarks WHERE session_id = ? ORDER BY name"
        rows = await self._read(lambda t: t.run(sql, (session_id,)))
        return {row[0]: row[1] for row in rows}

    # Copies

    async def fork(self, session_id: str, *, at: str | None = None) -> SessionRecord:
        """A new session that starts as a copy, up to a message or to the end, under new ids."""
        copy = await self._read(lambda t: transfer.fork(t, session_id, at, self._now()))
        return await self._import(copy)

    async def export(self, session_id: str) -> list[bytes]:
        """A session as lines of JSON: all that is needed to have it again."""
        return await self._read(lambda t: list(transfer.export_lines(t, session_id)))

    async def import_lines(self, lines: Iterable[bytes], *, new_ids: bool = False) -> SessionRecord:
        """A session from the lines of an export.

        Raises:
            DecodeError: a line is no part of an export.
            DuplicateSessionError: it is there already, and `new_ids` was not asked for.
        """
        transcript = await self._in_thread(lambda: transfer.read_transcript(lines))
        return await self._import(transfer.renamed(transcript) if new_ids else transcript)

    async def _import(self, transcript: transfer.Transcript) -> SessionRecord:
        work = await self._in_thread(lambda: transfer.Import(transcript))
        self._touch(transcript.session.id)
        return await self._write(work)

    # Letting go

    async def delete(self, session_id: str) -> None:
        """Take a session away with everything in it."""
        await self.session(session_id)
        await self._in_thread(lambda: self._database.erase([session_id]))

    async def purge(self) -> None:
        """Give back the room of what was deleted, so that none of it is left on the disk."""
        await self._in_thread(self._database.purge)

    async def sweep(self, policy: retention.Policy, *, is_dry_run: bool = True) -> retention.Sweep:
        """Let go of what a policy no longer keeps; a dry run only says what that would be."""

        def plan(transaction: Transaction) -> retention.Sweep:
            leaving = retention.old_sessions(transaction, policy)
            return retention.Sweep(
                sessions=leaving,
                evictions=retention.raw_parts(transaction, policy, leaving),
                event_count=retention.event_count(transaction, policy),
                is_dry_run=is_dry_run,
            )

        found = await self._read(plan)
        if not is_dry_run:
            await self._in_thread(lambda: self._database.erase(found.sessions))
            await self._write(Plain(lambda tables: retention.let_go(tables, policy, found)))
        return found

    # Upkeep

    async def version(self) -> int:
        """The version of the tables."""
        return await self._in_thread(self._database.version)

    async def backup(self, target: str | Path) -> None:
        """Copy everything to a new file, while others go on."""
        await self._in_thread(lambda: self._database.backup(Path(target)))

    async def check(self) -> list[str]:
        """What is wrong with the store: the database, the messages, the calls; empty if nothing."""
        found = await self._in_thread(self._database.check)
        return found or await self._read(problems_of)

    async def search(
        self, words: str, *, session_id: str | None = None, limit: int = 20
    ) -> list[Match]:
        """The messages that hold all these words, best first; of very many only the newest."""
        if not words.split():
            return []

        def find() -> list[Match]:
            index = self._database.index()
            index.catch_up(words_of_row)
            rows = index.find(words, session_id, limit)
            return [Match(session_id=row[0], message_id=row[1], snippet=row[2]) for row in rows]

        return await self._in_thread(find)

    async def rebuild_search(self) -> int:
        """Make the search index anew and give the number of messages in it."""

        def rebuild() -> int:
            index = self._database.index()
            index.clear()
            return index.catch_up(words_of_row)

        return await self._in_thread(rebuild)

    # Prices and events

    async def keep_prices(self, pricing_version: str, table: Any) -> None:
        """Keep a price table under its version, so that old costs can be traced."""
        sql = (
            "INSERT INTO price_versions (pricing_version, table_json, created_at) "
            "VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
        )
        values = (pricing_version, _write_json(table).decode(), to_micros(self._now()))
        await self._write(Plain(lambda tables: tables.change(sql, values)))

    async def prices(self) -> Mapping[str, Any]:
        """Every price table that was kept, by version."""
        sql = "SELECT pricing_version, table_json FROM price_versions ORDER BY pricing_version"
        rows = await self._read(lambda t: t.run(sql))
        return {row[0]: msgspec.json.decode(row[1]) for row in rows}

    async def add_events(self, events: Sequence[EventRecord]) -> None:
        """Keep facts of the trace."""
        sql = f"INSERT INTO events ({EVENT_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608 - no input
        rows = [msgspec.structs.astuple(event) for event in events]
        await self._write(Plain(lambda tables: tables.change_many(sql, rows)))

    async def events(self, session_id: str, *, after: str = "") -> list[EventRecord]:
        """The facts of a session in order, behind an event or from the first."""
        sql = f"SELECT {EVENT_COLUMNS} FROM events WHERE session_id = ? AND id > ? ORDER BY id"  # noqa: S608 - no input
        rows = await self._read(lambda t: t.run(sql, (session_id, after)))
        names = EventRecord.__struct_fields__
        return [EventRecord(**dict(zip(names, row, strict=True))) for row in rows]

    # How it is done

    async def _write(self, work: Work) -> Any:
        if not self._has_written:
            await self._sign()
        self._touch(*work.session_ids)
        return await self._writer.submit(work)

    async def _sign(self) -> None:
        """Leave our name, so that the next one knows if we die."""
        sql = "INSERT INTO writers (id, created_at) VALUES (?, ?) ON CONFLICT DO NOTHING"
        values = (self._id, to_micros(self._now()))
        work = Plain(lambda tables: tables.change(sql, values))
        await self._writer.submit(work)
        self._has_written = True

    async def _read(self, work: Callable[[Transaction], T]) -> T:
        def run() -> T:
            with self._database.read() as transaction:
                return work(transaction)

        return await self._in_thread(run)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        if self._is_closed:
            raise StoreError("the store was closed")
        return await asyncio.get_running_loop().run_in_executor(self._readers, work)
