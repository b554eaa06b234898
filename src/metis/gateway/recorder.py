"""Recorder: every exchange of the gateway becomes messages of one conversation in the store.

Recording never delays an answer: `record` puts an exchange into a bounded queue, and one task
stores what is queued, many exchanges in one transaction. An overload sheds detail first, the
messages of an exchange, and only then its record; both are counted.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from metis import adapters
from metis.adapters.adapter import Adapter
from metis.adapters.request_reader import RequestReader
from metis.canonical.errors import (
    EventError,
    InvalidMessageError,
    MetisError,
    StoreError,
    StoreFullError,
    StoreLockedError,
    StoreUnavailableError,
    UnknownMessageError,
    UnknownSessionError,
)
from metis.canonical.ids import new_session_id
from metis.events import Actor, Bus, SqliteTrace, subscribe_hooks
from metis.gateway.client_sessions import (
    MAIN,
    Join,
    Joiner,
    Thread,
    client_session,
    derived_session_id,
    scope_of,
    tenant_key,
)
from metis.gateway.exchange import Exchange, Tenant
from metis.gateway.placement import PlannedExchange, Planner, resolve
from metis.gateway.stored_exchange import (
    Priced,
    call_event,
    exchange_record,
    note,
    priced_response,
    resolved_model,
)
from metis.session.events import Trace
from metis.session.models import Models
from metis.store import Store
from metis.store.append import PreparedMessage
from metis.store.entries import AnyEntry, entry_of
from metis.store.exchanges import HistoryEnd
from metis.store.spool import EXCHANGE_KIND, SESSION_KIND
from metis.wire.call import RequestContext

log = logging.getLogger("metis.gateway")

READ_SESSION = "sess_gateway"
"""The session id under which requests are read: ids of calls must not depend on the session,
so that equal histories have equal upstream bytes. Stored messages have the ids of their session."""
MAX_QUEUED = 4096
MAX_QUEUED_BYTES = 64 * 1024 * 1024
"""How many exchanges, and bytes of them, wait for the store before detail is shed."""
RECENT = 1024
RECENT_BYTES = 16 * 1024 * 1024
"""How many exchanges, and bytes of them, are held for look-ups without a store."""
_COLLECT_S = 0.05
_RETRY_S = 0.5
_SEARCH_S = 2.0
_MAX_BATCH = 256
_PLANNED_AT_ONCE = 16
_SEARCHED_FIRST = 64
_MAX_SEARCHED = 2000
_MAX_ATTEMPT = 2
_AWAY = (StoreUnavailableError, StoreFullError, StoreLockedError)
_CONFLICTS = (InvalidMessageError, UnknownSessionError, UnknownMessageError)


class Recorder:
    """Stores the exchanges of one gateway process; without a store it holds the newest ones."""

    def __init__(  # noqa: PLR0913 - settings, all by name
        self,
        store: Store | None,
        models: Models,
        *,
        reader: RequestReader | None = None,
        trace: Path | None = None,
        max_queued: int = MAX_QUEUED,
        max_queued_bytes: int = MAX_QUEUED_BYTES,
    ) -> None:
        self._store = store
        self._models = models
        self._reader = reader or RequestReader()
        self._trace_path = trace
        self._trace: SqliteTrace | None = None
        self.bus: Bus | None = None
        """Gets one event for each model call, once started with a trace."""
        self._max_queued = max_queued
        self._max_queued_bytes = max_queued_bytes
        self._joiner = Joiner()
        self._planner = Planner(self._joiner)
        self._queue: deque[Exchange] = deque()
        self._queued_bytes = 0
        self._planned: deque[PlannedExchange] = deque()
        self._pending: dict[str, Exchange] = {}
        self._recent: deque[Exchange] = deque(maxlen=RECENT)
        self._recent_bytes = 0
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_closing = False
        self._counts = dict.fromkeys(
            (
                *("recorded", "stored", "shed_messages", "dropped", "spooled"),
                *("undecoded", "conflicts", "unsearched"),
            ),
            0,
        )

    async def start(self) -> None:
        """Start the task that stores exchanges, and the trace."""
        if self._store is not None and self._task is None:
            self._open_trace()
            self._task = asyncio.create_task(self._run(), name="metis-gateway-recorder")

    async def close(self) -> None:
        """Store everything that is queued; what the store does not accept now is spooled."""
        self._is_closing = True
        self._wake.set()
        if self._task is not None:
            await self._task
            self._task = None
        if self.bus is not None:
            await self.bus.close()
        if self._trace is not None:
            self._trace.close()

    def _open_trace(self) -> None:
        if self._trace_path is None:
            return
        try:
            self._trace = SqliteTrace(self._trace_path)
        # A full disk or a read-only home must not prevent an answer.
        except (EventError, OSError) as error:
            log.warning("events are not traced: %s", error)
            return
        self.bus = Bus(strict=False)
        self.bus.subscribe_batches(self._trace.append, name="trace")
        subscribe_hooks(self.bus)

    def metrics(self) -> dict[str, int]:
        """Return the counters of the recorder, and how much waits."""
        waiting = len(self._queue) + len(self._planned)
        return {**self._counts, "queued": waiting, "queued_bytes": self._queued_bytes}

    # Before the answer

    def begin(self, exchange: Exchange) -> bool:
        """Set the session of an exchange; False if `search` has to be awaited for that.

        The request is read here, unless it was read before: only its new messages are decoded.
        """
        if self._store is None or exchange.kind == "other":
            self._name_session(exchange)
            return True
        if exchange.request is None and exchange.request_body:
            exchange.request = self._read(exchange)
        request = exchange.request
        if request is None:
            self._name_session(exchange)
            return True
        now_s = time.monotonic()
        resolution = resolve(exchange, request, self._joiner, now_s=now_s, is_final=False)
        if resolution != "known" and self._queue:
            # What was answered a moment ago may still be in the queue.
            self._plan_queued()
            resolution = resolve(exchange, request, self._joiner, now_s=now_s, is_final=False)
        return resolution != "search"

    async def search(self, exchange: Exchange) -> None:
        """Set the session of an exchange whose history another process may have stored."""
        request, store = exchange.request, self._store
        if request is None or store is None:
            self._name_session(exchange)
            return
        scope = scope_of(exchange, client_session(exchange.headers, request))
        digests = [digest for digest in self._joiner.chain(request.messages).digests if digest]
        try:
            async with asyncio.timeout(_SEARCH_S):
                ends = await store.history_ends(scope, [*digests[-_SEARCHED_FIRST:], MAIN])
                if not ends.keys() - {MAIN} and len(digests) > _SEARCHED_FIRST:
                    older = digests[-_MAX_SEARCHED:-_SEARCHED_FIRST]
                    ends |= await store.history_ends(scope, older)
        except (StoreError, TimeoutError) as error:
            # An answer must not wait for the store; the exchange becomes a conversation of its own.
            self._counts["unsearched"] += 1
            log.warning("a conversation could not be searched: %s", error)
            ends = {}
        self._remember(scope, ends)
        resolve(exchange, request, self._joiner, now_s=time.monotonic(), is_final=True)

    def _remember(self, scope: str, ends: dict[str, HistoryEnd]) -> None:
        for digest, end in ends.items():
            self._planner.remember_session(end.session_id)
            if digest == MAIN:
                self._joiner.set_thread(scope, Thread.from_end(end))
            elif self._joiner.end(scope, digest) is None:
                self._joiner.add(scope, digest, end)

    def _name_session(self, exchange: Exchange) -> None:
        client = client_session(exchange.headers, exchange.request)
        if client is None:
            exchange.session_id = exchange.session_id or new_session_id()
        else:
            key = tenant_key(exchange.tenant)
            exchange.session_id = derived_session_id("session", key, client.key)

    def _read(self, exchange: Exchange) -> Any:
        adapter = self._adapter(exchange.client_adapter)
        context = RequestContext(session_id=READ_SESSION, path=exchange.path)
        try:
            tenant = tenant_key(exchange.tenant)
            return self._reader.read(adapter, tenant, exchange.request_body, context)
        except MetisError:
            return None  # the provider says what is wrong with it

    def _adapter(self, name: str) -> Adapter:
        return adapters.get(name)

    # After the answer

    def record(self, exchange: Exchange) -> None:
        """Take over an exchange that has ended; it is stored beside the answers that follow."""
        self._counts["recorded"] += 1
        if self._store is None:
            self._hold(exchange)
            return
        waiting = len(self._queue) + len(self._planned)
        if waiting >= 2 * self._max_queued:
            self._counts["dropped"] += 1
            return
        if waiting >= self._max_queued or self._queued_bytes >= self._max_queued_bytes:
            self._counts["shed_messages"] += 1
            exchange.request, exchange.request_body = None, b""
        self._queue.append(exchange)
        self._pending[exchange.id] = exchange
        self._queued_bytes += _size(exchange)
        self._wake.set()

    def _hold(self, exchange: Exchange) -> None:
        """Hold an exchange for look-ups; those beyond the limits are forgotten."""
        exchange.request, exchange.request_body = None, b""  # a record does not show it
        recent = self._recent
        if len(recent) == RECENT:
            self._recent_bytes -= _size(recent[0])
        recent.append(exchange)
        self._recent_bytes += _size(exchange)
        while self._recent_bytes > RECENT_BYTES and len(recent) > 1:
            self._recent_bytes -= _size(recent.popleft())

    async def lookup(self, request_id: str, tenant: Tenant) -> dict[str, Any] | None:
        """Return the record of an exchange as JSON values; None if the tenant has none."""
        exchange = self._pending.get(request_id)
        if exchange is None and self._store is None:
            exchange = next((one for one in self._recent if one.id == request_id), None)
        if exchange is not None:
            if exchange.tenant != tenant:
                return None
            record = exchange.facts.get("record")
            if record is None:
                record = exchange_record(exchange, self._price(exchange).usage)
            return msgspec.json.decode(record)
        if self._store is None:
            return None
        row = await self._store.exchange(request_id)
        if row is None or row.tenant != tenant_key(tenant):
            return None
        return msgspec.json.decode(row.record_json)

    # Storing

    async def _run(self) -> None:
        """Store what is queued until `close`; the body of the task."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if not self._is_closing:
                await asyncio.sleep(_COLLECT_S)  # exchanges that end meanwhile share the commit
            try:
                while self._queue:
                    self._plan_queued(_PLANNED_AT_ONCE)
                    await asyncio.sleep(0)  # answers come first
                await self._store_planned()
            except Exception:  # the task must survive: it stores everything that follows
                log.exception("exchanges could not be stored")
                await asyncio.sleep(_RETRY_S)
            if self._is_closing and not self._queue:
                await self._finish()
                return

    def _plan_queued(self, limit: int = MAX_QUEUED) -> None:
        """Turn queued exchanges into jobs, in order."""
        for _ in range(min(limit, len(self._queue))):
            exchange = self._queue.popleft()
            try:
                self._planned.append(self._plan(exchange))
            except Exception:  # one exchange must not lose those behind it
                log.exception("exchange %s could not be recorded", exchange.id)
                self._counts["dropped"] += 1
                self._forget(exchange)

    def _forget(self, exchange: Exchange) -> None:
        self._pending.pop(exchange.id, None)
        self._queued_bytes -= _size(exchange)

    def _plan(self, exchange: Exchange) -> PlannedExchange:
        if exchange.kind == "chat" and exchange.request is None and exchange.request_body:
            exchange.request = self._read(exchange)
        if exchange.request is not None and "join" not in exchange.facts:
            resolve(exchange, exchange.request, self._joiner, now_s=time.monotonic(), is_final=True)
        priced = self._price(exchange)
        record = exchange_record(exchange, priced.usage)
        exchange.facts = {**exchange.facts, "record": record}
        if self.bus is not None and exchange.kind == "chat":
            join: Join | None = exchange.facts.get("join")
            parent = None if join is None else join.parent_session_id
            event = call_event(exchange, priced, parent)
            Trace(self.bus, exchange.session_id).emit(event, actor=Actor.AGENT)
        return self._planner.plan(exchange, priced, record)

    def priced(self, exchange: Exchange) -> Priced:
        """Return the response of an exchange with its cost."""
        return self._price(exchange)

    def _price(self, exchange: Exchange) -> Priced:
        if exchange.kind == "other":
            return Priced(None, exchange.usage)  # what passed calls used is read beside them
        model = resolved_model(exchange, self._models)
        if model is None:
            return Priced(None, exchange.usage)
        try:
            return priced_response(exchange, self._models, model)
        except MetisError as error:
            self._counts["undecoded"] += 1
            log.warning("the response of %s could not be read: %s", exchange.id, error)
            return Priced(None, exchange.usage)

    async def _store_planned(self) -> None:
        store = self._store
        assert store is not None  # noqa: S101 - the task runs with a store only
        while self._planned:
            batch = [self._planned[i] for i in range(min(_MAX_BATCH, len(self._planned)))]
            try:
                await store.add_exchanges([planned.job for planned in batch])
            except _AWAY as error:
                await self._spool(batch, error)
                if self._is_closing:
                    return
                await asyncio.sleep(_RETRY_S)
                continue
            except MetisError:
                await self._store_one_by_one(batch)
            for planned in batch:
                self._planned.popleft()
                self._forget(planned.exchange)
            self._counts["stored"] += len(batch)
            if self._counts["spooled"]:
                with suppress(StoreError):
                    await store.restore_spooled()

    async def _store_one_by_one(self, batch: Sequence[PlannedExchange]) -> None:
        for planned in batch:
            current = planned
            while True:
                try:
                    await self._add(current)
                    break
                except _CONFLICTS as error:
                    current = self._next_attempt(current, error)

    def _next_attempt(self, planned: PlannedExchange, error: MetisError) -> PlannedExchange:
        """Plan an exchange again, after what is stored did not fit to it."""
        self._counts["conflicts"] += 1
        self._planner.forget(planned)
        is_brief = planned.attempt >= _MAX_ATTEMPT
        if is_brief:
            log.warning("messages of exchange %s are not stored: %s", planned.exchange.id, error)
            self._counts["shed_messages"] += 1
        return self._planner.plan(
            planned.exchange,
            planned.priced,
            planned.record,
            is_brief=is_brief,
            attempt=planned.attempt + 1,
        )

    async def _add(self, planned: PlannedExchange) -> None:
        assert self._store is not None  # noqa: S101 - the task runs with a store only
        await self._store.add_exchanges([planned.job])

    async def _spool(self, batch: Sequence[PlannedExchange], error: StoreError) -> None:
        """Save exchanges in a local file while the database is away; they are stored later."""
        assert self._store is not None  # noqa: S101 - the task runs with a store only
        new = [planned for planned in batch if not planned.is_spooled]
        for planned in new:
            await self._store.spool(_spooled_entries(planned), error)
            planned.is_spooled = True
            self._counts["spooled"] += 1

    async def _finish(self) -> None:
        self._plan_queued()
        with suppress(MetisError):
            await self._store_planned()


def _size(exchange: Exchange) -> int:
    return len(exchange.request_body) + sum(map(len, exchange.response_parts))


def _spooled_entries(planned: PlannedExchange) -> list[AnyEntry]:
    """Return the entries with which a later process stores an exchange."""
    exchange, entries = planned.exchange, list[AnyEntry]()
    items = planned.job.items
    if planned.job.session is not None and not any(
        getattr(item, "kind", "") == SESSION_KIND for item in items
    ):
        entries.append(note(exchange, SESSION_KIND, {}))
    if planned.job.rewind is not None and planned.job.session is None:
        entries.append(planned.job.rewind)
    entries += [entry_of(i.message) if isinstance(i, PreparedMessage) else i for i in items]
    data = {"tenant": tenant_key(exchange.tenant), "record": planned.record.decode()}
    record = note(exchange, EXCHANGE_KIND, data)
    return [*entries, msgspec.structs.replace(record, id=exchange.id)]
