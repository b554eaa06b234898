"""Bus: delivers events to all subscribers, in order, without waiting for any of them.

Each subscriber has its own queue and task, so that a slow or failing one does not delay the others.
A full queue is an error for the emitter, and then no subscriber gets the event; no event is dropped
silently. An exception of a subscriber is logged and never becomes an event, which could recurse. A
bus belongs to one event loop.
"""

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar, cast

from msgspec import Struct

from metis.canonical.errors import BusOverflowError, EventError, InvalidEventError
from metis.canonical.ids import UlidSource
from metis.events.event import SYSTEM_SESSION, Event, validate_payload
from metis.events.registry import CATALOGUE, Actor, Payload, Sensitivity
from metis.plugins import HOOKS, Plugin, load_plugins

log = logging.getLogger("metis.events")

CAPACITY = 10_000
"""How many events may wait for one subscriber."""
CLOSING_S = 30.0
"""How long a subscriber may take to empty its queue when the bus is closed."""

Handler = Callable[[Event], Awaitable[None]]
BatchHandler = Callable[[Sequence[Event]], Awaitable[None]]
FastHandler = Callable[[Event], None]
F = TypeVar("F", bound=Callable[..., object])


class Filter(Struct, frozen=True, kw_only=True):
    """Which events a subscriber gets; None is all."""

    session_ids: AbstractSet[str] | None = None
    types: AbstractSet[str] | None = None
    actors: AbstractSet[Actor] | None = None

    def __post_init__(self) -> None:
        """Refuse unknown event types."""
        unknown = sorted((self.types or frozenset()) - CATALOGUE.keys())
        if unknown:
            raise InvalidEventError(f"unknown event type {unknown[0]!r}", path="$.types")

    def matches(self, event: Event) -> bool:
        """Return whether an event passes."""
        return (
            (self.session_ids is None or event.session_id in self.session_ids)
            and (self.types is None or event.type in self.types)
            and (self.actors is None or event.actor in self.actors)
        )


EVERYTHING = Filter()


def slow(handler: F) -> F:
    """Mark a slow function, so that `subscribe_fast` refuses it."""
    handler.__dict__["is_slow"] = True
    return handler


class Subscription:
    """One subscriber with its queue; `close` ends it."""

    def __init__(self, bus: "Bus", name: str, event_filter: Filter, deliver: BatchHandler) -> None:
        self.name = name
        self.event_filter = event_filter
        self.queue: deque[Event] = deque()
        self._bus = bus
        self._deliver = deliver
        self._has_more = asyncio.Event()
        # `drain` waits for this. It is set after the handler has returned, since an empty queue
        # does not mean that the last event was handled.
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"bus:{name}")

    def put(self, event: Event) -> None:
        """Add an event to the queue."""
        self.queue.append(event)
        self._is_idle.clear()
        self._has_more.set()

    async def drain(self) -> None:
        """Wait until every queued event was delivered."""
        await self._is_idle.wait()

    async def close(self, *, within_s: float = CLOSING_S) -> None:
        """Deliver the queue, then stop; log how many events were not delivered in time."""
        self._bus.unsubscribe(self)
        try:
            await asyncio.wait_for(self.drain(), within_s)
        except TimeoutError:
            log.error("subscriber %s left %d events undelivered", self.name, len(self.queue))  # noqa: TRY400 - no trace needed
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await self._has_more.wait()
            self._has_more.clear()
            while self.queue:
                # A copy, because the emitter may append while the handler runs.
                batch = tuple(self.queue)
                await self._deliver_safely(batch)
                for _ in batch:  # a batch counts against the capacity until it is delivered
                    self.queue.popleft()
            self._is_idle.set()

    async def _deliver_safely(self, batch: Sequence[Event]) -> None:
        try:
            await self._deliver(batch)
        except asyncio.CancelledError as error:
            # A task inside the handler may be cancelled; only a cancellation of the subscription's
            # task ends it.
            if self._task.cancelling():
                raise
            _warn(self.name, error)
        except Exception as error:  # noqa: BLE001 - a failing subscriber affects no other
            _warn(self.name, error)


class Bus:
    """Creates events with an id and a time, and delivers them to matching subscribers.

    A strict bus raises on an invalid event; any other logs and drops it.
    """

    def __init__(
        self,
        *,
        ids: UlidSource | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        capacity: int = CAPACITY,
        strict: bool = True,
    ) -> None:
        self._ids = ids or UlidSource()
        self._clock = clock
        self._capacity = capacity
        self._strict = strict
        self._subscriptions: list[Subscription] = []
        self._fast: list[tuple[str, Filter, FastHandler]] = []
        self._is_in_fast_path = False
        self._is_closed = False

    def emit(  # noqa: PLR0913 - fields of the envelope, all by name
        self,
        payload: Payload,
        *,
        session_id: str = SYSTEM_SESSION,
        turn_id: str | None = None,
        parent: Event | str | None = None,
        actor: Actor = Actor.SYSTEM,
        sensitivity: Sensitivity | None = None,
    ) -> Event | None:
        """Emit an event; return None if it is invalid and the bus is not strict."""
        try:
            row, stored_payload = validate_payload(payload, sensitivity)
        except InvalidEventError as error:
            if self._strict:
                raise
            log.error("dropped an invalid event: %s", error)  # noqa: TRY400 - no trace needed
            return None
        # After validation, so that a strict bus reports the invalid event first.
        self._refuse_misuse()
        event = Event(
            id=self._ids.mint(),
            timestamp=self._clock(),
            session_id=session_id,
            turn_id=turn_id,
            parent_event_id=parent.id if isinstance(parent, Event) else parent,
            type=row.type,
            actor=actor,
            sensitivity=sensitivity or row.sensitivity,
            payload=stored_payload,
        )
        self._deliver(event)
        return event

    def subscribe(
        self, handler: Handler, *, name: str, event_filter: Filter = EVERYTHING
    ) -> Subscription:
        """Call an async function with each matching event, one after the other."""

        async def one_by_one(events: Sequence[Event]) -> None:
            for event in events:
                try:
                    await handler(event)
                except Exception as error:  # noqa: BLE001 - the next event is delivered all the same
                    _warn(name, error)

        return self.subscribe_batches(one_by_one, name=name, event_filter=event_filter)

    def subscribe_batches(
        self, handler: BatchHandler, *, name: str, event_filter: Filter = EVERYTHING
    ) -> Subscription:
        """Call an async function with all queued events, for example to write them together."""
        subscription = Subscription(self, name, event_filter, handler)
        self._subscriptions.append(subscription)
        return subscription

    def subscribe_fast(
        self, handler: FastHandler, *, name: str, event_filter: Filter = EVERYTHING
    ) -> Callable[[], None]:
        """Call a plain function inside `emit`; the returned function ends the subscription.

        The function must return at once and must not emit.

        Raises:
            EventError: the function is async, or marked with `slow`.
        """
        # A slow function inside `emit` would delay the turn that emits.
        if inspect.iscoroutinefunction(handler) or getattr(handler, "is_slow", False):
            raise EventError(f"subscriber {name!r} is slow or async; use Bus.subscribe instead")
        entry = (name, event_filter, handler)
        self._fast.append(entry)
        return lambda: self._fast.remove(entry)

    def unsubscribe(self, subscription: Subscription) -> None:
        """Deliver no more events to a subscription."""
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)

    async def drain(self) -> None:
        """Wait until every queued event was delivered."""
        for subscription in tuple(self._subscriptions):
            await subscription.drain()

    async def close(self, *, within_s: float = CLOSING_S) -> None:
        """Refuse new events, deliver the queued ones, and stop."""
        self._is_closed = True
        closing = [subscription.close(within_s=within_s) for subscription in self._subscriptions]
        await asyncio.gather(*closing)

    def _refuse_misuse(self) -> None:
        if self._is_closed:
            raise EventError("the bus is closed")
        if self._is_in_fast_path:
            raise EventError("a subscriber on the fast path cannot emit")

    def _deliver(self, event: Event) -> None:
        # All queues are checked first, so that either all subscribers get an event or none.
        matching = [
            subscription
            for subscription in self._subscriptions
            if subscription.event_filter.matches(event)
        ]
        for subscription in matching:
            if len(subscription.queue) >= self._capacity:
                error = BusOverflowError(subscription.name, self._capacity)
                log.error("%s", error)
                raise error
        for subscription in matching:
            subscription.put(event)
        for name, event_filter, handler in tuple(self._fast):
            if event_filter.matches(event):
                self._call_fast(name, handler, event)

    def _call_fast(self, name: str, handler: FastHandler, event: Event) -> None:
        # An emit inside of the handler would deliver the inner event before the outer one.
        self._is_in_fast_path = True
        try:
            handler(event)
        except Exception as error:  # noqa: BLE001 - a failing subscriber affects no other
            _warn(name, error)
        finally:
            self._is_in_fast_path = False


def subscribe_hooks(bus: Bus) -> None:
    """Subscribe the hooks of plugins to a bus; chats and the gateway call this.

    A hook is a function, async or not, with an `Event` as its argument; its package names it under
    the entry point group `metis.hooks`. Events contain no text of a conversation.
    """
    for name, handler in plugin_hooks().items():
        bus.subscribe(handler, name=f"hook {name}")


def plugin_hooks() -> Mapping[str, Handler]:
    """Return the hooks of plugins by name."""
    return load_plugins(HOOKS, _read_hook)


def _read_hook(_plugin: Plugin, value: object) -> Handler:
    if not callable(value):
        raise TypeError(f"expected a function of an event, got {value!r:.80}")
    if inspect.iscoroutinefunction(value):
        return cast("Handler", value)
    # In a thread: a blocking function must not delay the turn or the gateway.
    return partial(asyncio.to_thread, cast("FastHandler", value))


def _warn(name: str, error: BaseException) -> None:
    # Only the class of the error: its message could quote the conversation.
    log.warning("subscriber %s raised %s", name, type(error).__name__)
