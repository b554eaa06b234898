"""Recorder: every exchange of the gateway becomes messages of one conversation in the store.

Recording never delays an answer: `record` puts an exchange into a bounded queue, and one task
stores what is queued, many exchanges in one transaction. While the gateway is busy the task uses a
small part of the time, and exchanges wait in the files of a backlog, where they are durable. An
overload beyond that sheds detail first, the messages of an exchange, and only then its record; both
are counted.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

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
from metis.events import Actor, Bus, SqliteTrace, subscribe_hooks
from metis.gateway.client_sessions import (
    MAIN,
    Join,
    Joiner,
    client_session,
    scope_of,
    tenant_key,
)
from metis.gateway.exchange import Exchange, Tenant
from metis.gateway.exchange_plans import Draft, ExchangePlans
from metis.gateway.exchange_queue import (
    SAVE_AFTER_S,
    Accepted,
    RecentExchanges,
    Waiting,
    WaitingExchanges,
)
from metis.gateway.placement import PlannedExchange, name_session, resolve, spooled_entries
from metis.gateway.stored_exchange import Priced, call_event, exchange_record, wire_body
from metis.session.events import Trace
from metis.session.models import Models
from metis.store import Store
from metis.transport.response import LARGE_BYTES, run_outside
from metis.wire.call import CanonicalRequest

log = logging.getLogger("metis.gateway")

_COLLECT_S = 0.05
_RETRY_S = 0.5
_SEARCH_S = 2.0
_MAX_BATCH, _MAX_BATCH_BYTES = 24, 64 * 1024
"""How many planned exchanges, and bytes of them, are stored in one transaction: so few that it
takes two milliseconds, and is not handed to another thread that would compete with the answers."""
_PLANNED_TOGETHER, _PLANNED_BYTES = 24, 256 * 1024
"""How many exchanges, and bytes of them, go through each step of the plan together."""
_MAX_PLANNED_S = 0.2
"""How long planned exchanges wait for others that share their commit."""
_BUSY_S = 0.0003
"""A turn of the event loop that takes longer had answers to write."""
_QUIET_S = 0.01
"""So long after the last call began or ended there is time to store exchanges."""
_BUSY_PAUSE = 9
"""How many times as long as its own work the task waits while the gateway is busy; the threads of
the store and the trace work half as long again."""
_LOOK_S = 0.02
"""How often the task looks whether the gateway is still busy."""
_MAX_HELD_S = 5.0
"""How long exchanges wait for a quiet moment; then they get their part of a busy gateway."""
_CLOSE_S = 10.0
"""How long exchanges are stored after a request to stop; the others stay in the backlog."""
_SEARCHED_FIRST = 64
_MAX_SEARCHED = 2000
_MAX_ATTEMPT = 2
_AWAY = (StoreUnavailableError, StoreFullError, StoreLockedError)
_CONFLICTS = (InvalidMessageError, UnknownSessionError, UnknownMessageError)


class Recorder:
    """Stores the exchanges of one gateway process; without a store it holds the newest ones."""

    def __init__(  # noqa: PLR0913 - all but two by name
        self,
        store: Store | None,
        models: Models,
        *,
        reader: RequestReader | None = None,
        trace: Path | None = None,
        waiting: WaitingExchanges | None = None,
        record_bytes: bool = True,
    ) -> None:
        self._store = store
        self._record_bytes = record_bytes and store is not None
        self._trace_path = trace
        self._trace: SqliteTrace | None = None
        self.bus: Bus | None = None
        """Gets one event for each model call, once started with a trace."""
        self.provider_keys: Callable[[str], Sequence[str]] | None = None
        """Returns the keys of a provider: they are taken out of the bytes that are stored."""
        self._joiner = Joiner()
        self._plans = ExchangePlans(models, reader or RequestReader(), self._joiner)
        self._planner = self._plans.planner
        self._waiting = WaitingExchanges() if waiting is None else waiting
        self._planned: deque[tuple[Waiting, PlannedExchange]] = deque()
        self._planned_bytes = 0
        self._planned_since = 0.0
        self._planning: asyncio.Future[None] | None = None
        """Ends with the planning of a large exchange in a thread."""
        self._recent = RecentExchanges()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_closing = False
        self._last_call_s = 0.0
        """When the last call began or ended."""
        self._save_timer: asyncio.TimerHandle | None = None
        self._counts = dict.fromkeys(
            (
                *("recorded", "stored", "shed_messages", "dropped", "spooled"),
                *("conflicts", "unsearched"),
            ),
            0,
        )

    def _keys_of(self, exchange: Exchange) -> Sequence[str]:
        return () if self.provider_keys is None else self.provider_keys(exchange.provider)

    async def start(self) -> None:
        """Start the task that stores exchanges, and the trace."""
        if self._store is not None and self._task is None:
            if self._trace_path is not None:
                self._trace, self.bus = _open_trace(self._trace_path)
            self._waiting.adopt()
            self._wake.set()
            self._task = asyncio.create_task(self._run(), name="metis-gateway-recorder")

    async def close(self) -> None:
        """Store what is queued; what the store does not accept now stays in local files."""
        self._is_closing = True
        self._wake.set()
        if self._task is not None:
            await self._task
            self._task = None
        if self._save_timer is not None:
            self._save_timer.cancel()
        self._waiting.close()
        if self.bus is not None:
            await self.bus.close()
        if self._trace is not None:
            self._trace.close()

    def metrics(self) -> dict[str, int]:
        """Return the counters of the recorder, and how much waits."""
        waiting = self._waiting
        return {
            **self._counts,
            "undecoded": self._plans.undecoded,
            "queued": len(waiting) + len(self._planned),
            "queued_bytes": waiting.bytes_in_memory,
            "backlog_bytes": waiting.bytes_in_files,
        }

    # In a thread, if they are large

    def prepare(self, exchange: Exchange) -> None:
        """Read the request of an exchange, and the digests of its history."""
        if self._store is not None:
            self._plans.prepare(exchange)

    def prepare_response(self, exchange: Exchange) -> None:
        """Read and price the response of an exchange."""
        if self._store is not None:
            self._plans.prepare_response(exchange)

    def priced(self, exchange: Exchange) -> Priced:
        """Return the response of an exchange with its cost."""
        return self._plans.priced(exchange)

    # Before the answer

    def begin(self, exchange: Exchange) -> bool:
        """Set the session of an exchange; False if `search` has to be awaited for that.

        The request is read here, unless it was read before: only its new messages are decoded.
        """
        self._last_call_s = time.monotonic()
        exchange.records_bytes = self._record_bytes and exchange.kind == "chat"
        if self._store is None or exchange.kind == "other":
            name_session(exchange)
            return True
        if exchange.request is None and exchange.request_body:
            exchange.request = self._plans.read_request(exchange)
        request = exchange.request
        if request is None:
            name_session(exchange)
            return True
        now_s = self._last_call_s
        resolution = resolve(exchange, request, self._joiner, now_s=now_s, is_final=False)
        if resolution != "known" and self._plan_parents(exchange, request):
            resolution = resolve(exchange, request, self._joiner, now_s=now_s, is_final=False)
        return resolution != "search"

    def _plan_parents(self, exchange: Exchange, request: CanonicalRequest) -> bool:
        """Plan what a request may continue: it was answered a moment ago and may still wait."""
        scope = scope_of(exchange, client_session(exchange.headers, request))
        digests = self._joiner.chain(request.messages).digests
        before = len(self._planned)
        parents = self._waiting.take_parents(scope, digests)
        self._plan_together([Draft(waiting, parent) for waiting, parent in parents])
        return len(self._planned) > before

    async def search(self, exchange: Exchange) -> None:
        """Set the session of an exchange whose history another process may have stored."""
        request, store = exchange.request, self._store
        if request is None or store is None:
            name_session(exchange)
            return
        if self._planning is not None:
            await asyncio.wait([self._planning], timeout=_SEARCH_S)
            now_s = time.monotonic()
            if resolve(exchange, request, self._joiner, now_s=now_s, is_final=False) != "search":
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
        self._planner.remember_ends(scope, ends)
        resolve(exchange, request, self._joiner, now_s=time.monotonic(), is_final=True)

    # After the answer

    def record(self, exchange: Exchange) -> None:
        """Take over an exchange that has ended; it is stored beside the answers that follow."""
        self._counts["recorded"] += 1
        if self._store is None:
            self._recent.add(exchange)
            return
        self._last_call_s = time.monotonic()
        accepted = self._waiting.add(exchange)
        if accepted is Accepted.DROPPED:
            self._counts["dropped"] += 1
            return
        if accepted is Accepted.BRIEF:
            self._counts["shed_messages"] += 1
        self._wake.set()
        if self._save_timer is None and self._task is not None:
            self._save_later()

    def _save_later(self) -> None:
        """Save what is only in memory after a while, also while the task waits for the store."""
        loop = asyncio.get_running_loop()
        self._save_timer = loop.call_later(SAVE_AFTER_S, self._save)

    def _save(self) -> None:
        self._save_timer = None
        self._waiting.save()
        if self._waiting.has_unsaved:
            self._save_later()

    async def lookup(self, request_id: str, tenant: Tenant) -> dict[str, Any] | None:
        """Return the record of an exchange as JSON values; None if the tenant has none."""
        exchanges = self._recent if self._store is None else self._waiting
        exchange = exchanges.find(request_id)
        if exchange is not None:
            if exchange.tenant != tenant:
                return None
            record = exchange.facts.get("record")
            if record is None:
                record = exchange_record(exchange, self.priced(exchange).usage)
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
                await self._store_waiting()
            except Exception:  # the task must survive: it stores everything that follows
                log.exception("exchanges could not be stored")
                await asyncio.sleep(_RETRY_S)
            if self._is_closing:
                await self._finish()
                return

    async def _store_waiting(self) -> None:
        """Plan and store what waits, in short slices: answers come first."""
        is_busy = False
        while len(self._waiting) and not self._is_closing:
            start = time.perf_counter()
            is_held = is_busy and self._waiting.can_wait(_MAX_HELD_S)
            if not is_held:
                await self._plan_next()
            is_due = time.monotonic() - self._planned_since > _MAX_PLANNED_S
            if is_due or self._is_batch_full:
                await self._store_planned()
            used = time.perf_counter() - start
            await asyncio.sleep(0)
            # What a whole turn of the loop took beside this task is what it does for answers.
            turn = time.perf_counter() - start - used
            is_loaded = turn > _BUSY_S
            is_busy = is_loaded or time.monotonic() - self._last_call_s < _QUIET_S
            if is_held:
                await asyncio.sleep(_LOOK_S)
            elif is_loaded:  # not at every call: many light ones leave time enough
                await asyncio.sleep(max(0.0, _BUSY_PAUSE * used - turn))
        await self._store_planned()

    async def _plan_next(self) -> None:
        """Plan the exchanges that have waited longest, a few together."""
        batch: list[Draft] = []
        size = 0
        while len(batch) < _PLANNED_TOGETHER and size < _PLANNED_BYTES:
            next_one = self._waiting.take()
            if next_one is None:
                break
            waiting, exchange = next_one
            if waiting.is_adopted and await self._is_stored(exchange):
                self._waiting.release(waiting)
                continue
            draft = Draft(waiting, exchange)
            if exchange.size > LARGE_BYTES:
                self._plan_together(batch)
                await self._plan_large(draft)
                return
            batch.append(draft)
            size += waiting.size
        self._plan_together(batch)

    @property
    def _is_batch_full(self) -> bool:
        return len(self._planned) >= _MAX_BATCH or self._planned_bytes >= _MAX_BATCH_BYTES

    async def _is_stored(self, exchange: Exchange) -> bool:
        """Whether the process that saved an exchange has stored it before it died."""
        assert self._store is not None  # noqa: S101 - the task runs with a store only
        try:
            return await self._store.exchange(exchange.id) is not None
        except StoreError:
            return False

    def _plan_together(self, batch: Sequence[Draft]) -> None:
        self._plans.make(batch)
        self._add_plans(batch)

    async def _plan_large(self, draft: Draft) -> None:
        """Plan an exchange in a thread; a request that may continue it waits in `search`."""
        self._planning = asyncio.get_running_loop().create_future()
        try:
            await run_outside(self._plans.make, [draft])
            self._add_plans([draft])
        finally:
            self._planning.set_result(None)
            self._planning = None

    def _add_plans(self, batch: Sequence[Draft]) -> None:
        if not self._planned:
            self._planned_since = time.monotonic()
        for draft in batch:
            if draft.planned is None:
                self._counts["dropped"] += 1
                self._waiting.release(draft.waiting)
            else:
                self._planned.append((draft.waiting, draft.planned))
                self._planned_bytes += draft.planned.job.size

    def _emit(self, batch: Sequence[PlannedExchange]) -> None:
        """Emit the events of exchanges, many at once: the trace commits what came together."""
        if self.bus is None:
            return
        for planned in batch:
            exchange = planned.exchange
            if exchange.kind == "chat" and not planned.is_emitted:
                planned.is_emitted = True
                join: Join | None = exchange.facts.get("join")
                parent = None if join is None else join.parent_session_id
                event = call_event(exchange, planned.priced, parent)
                Trace(self.bus, exchange.session_id).emit(event, actor=Actor.AGENT)

    async def _store_planned(self) -> None:
        store = self._store
        assert store is not None  # noqa: S101 - the task runs with a store only
        while self._planned:
            count = min(_MAX_BATCH, len(self._planned))
            batch = [self._planned[index][1] for index in range(count)]
            self._emit(batch)
            try:
                await store.add_exchanges([planned.job for planned in batch])
            except _AWAY as error:
                await self._spool(batch, error)
                if self._is_closing:
                    return
                await asyncio.sleep(_RETRY_S)
                continue
            except MetisError:
                await self._store_one_by_one(store, batch)
            bodies = [
                wire_body(planned.exchange, planned.priced, self._keys_of(planned.exchange))
                for planned in batch
                if planned.exchange.records_bytes
            ]
            if bodies:
                store.add_wire_bodies(bodies)
            for _ in batch:
                waiting, planned = self._planned.popleft()
                self._planned_bytes -= planned.job.size
                self._waiting.release(waiting)
            self._counts["stored"] += len(batch)
            if self._counts["spooled"]:
                with suppress(StoreError):
                    await store.restore_spooled()

    async def _store_one_by_one(self, store: Store, batch: Sequence[PlannedExchange]) -> None:
        for planned in batch:
            current = planned
            while True:
                try:
                    await store.add_exchanges([current.job])
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

    async def _spool(self, batch: Sequence[PlannedExchange], error: StoreError) -> None:
        """Save exchanges in a local file while the database is away; they are stored later."""
        assert self._store is not None  # noqa: S101 - the task runs with a store only
        new = [planned for planned in batch if not planned.is_spooled]
        for planned in new:
            await self._store.spool(spooled_entries(planned), error)
            planned.is_spooled = True
            self._counts["spooled"] += 1

    async def _finish(self) -> None:
        end = time.monotonic() + _CLOSE_S
        with suppress(MetisError):
            while len(self._waiting) and time.monotonic() < end:
                await self._plan_next()
                if self._is_batch_full:
                    await self._store_planned()
            await self._store_planned()


def _open_trace(path: Path) -> tuple[SqliteTrace | None, Bus | None]:
    """Return the trace of a gateway and its bus; without a place to write there is none."""
    try:
        trace = SqliteTrace(path)
    # A full disk or a read-only home must not prevent an answer.
    except (EventError, OSError) as error:
        log.warning("events are not traced: %s", error)
        return None, None
    bus = Bus(strict=False)
    bus.subscribe_batches(trace.append, name="trace")
    subscribe_hooks(bus)
    return trace, bus
