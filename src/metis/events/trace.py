"""Trace: events that are kept; the protocol of every store of them, and one in memory."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime
from typing import Protocol

from msgspec import Struct

from metis.events.bus import Bus
from metis.events.causes import unfinished
from metis.events.event import Event
from metis.events.house import BusGapDetected, TraceSwept
from metis.events.kinds import CATALOGUE


class EventQuery(Struct, frozen=True, kw_only=True):
    """Which events are asked for, in the order of their ids; None stands for all."""

    session_id: str | None = None
    turn_id: str | None = None
    types: AbstractSet[str] | None = None
    after: str | None = None
    """Only ids greater than this one."""
    since: datetime | None = None
    until: datetime | None = None
    """Only times before this one."""
    limit: int | None = None

    def wants(self, event: Event) -> bool:
        """Whether an event is asked for, but for the limit."""
        return (
            (self.session_id is None or event.session_id == self.session_id)
            and (self.turn_id is None or event.turn_id == self.turn_id)
            and (self.types is None or event.type in self.types)
            and (self.after is None or event.id > self.after)
            and (self.since is None or event.timestamp >= self.since)
            and (self.until is None or event.timestamp < self.until)
        )


class Sweep(Struct, frozen=True, kw_only=True):
    """What a retention sweep deleted, or would delete."""

    deleted: Mapping[str, int]
    """How many events of each type."""
    spared_count: int
    """Old events that are kept because they are part of the audit."""
    is_dry_run: bool

    @property
    def deleted_count(self) -> int:
        """How many events of all types."""
        return sum(self.deleted.values())


class TraceStore(Protocol):
    """What keeps events: append-only, but for the sweep."""

    async def append(self, events: Sequence[Event], /) -> None:
        """Keep events; one whose id is there already is kept once."""
        ...

    async def select(self, query: EventQuery, /) -> list[Event]:
        """The events that are asked for."""
        ...

    async def sweep(self, *, before: datetime, dry_run: bool = True) -> Sweep:
        """Delete what is older, but for the types of the audit."""
        ...


def audit_types() -> frozenset[str]:
    """The types that a sweep spares."""
    return frozenset(name for name, row in CATALOGUE.items() if row.is_audit)


class MemoryTrace:
    """Events in a list."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self._events = {event.id: event for event in events}

    async def append(self, events: Sequence[Event], /) -> None:
        """Keep events; one whose id is there already is kept once."""
        for event in events:
            self._events.setdefault(event.id, event)

    async def select(self, query: EventQuery, /) -> list[Event]:
        """The events that are asked for."""
        found = [event for _, event in sorted(self._events.items()) if query.wants(event)]
        return found if query.limit is None else found[: query.limit]

    async def sweep(self, *, before: datetime, dry_run: bool = True) -> Sweep:
        """Delete what is older, but for the types of the audit."""
        old = [event for event in self._events.values() if event.timestamp < before]
        swept = [event for event in old if not event.kind.is_audit]
        if not dry_run:
            for event in swept:
                del self._events[event.id]
        return Sweep(
            deleted=dict(sorted(Counter(event.type for event in swept).items())),
            spared_count=len(old) - len(swept),
            is_dry_run=dry_run,
        )


async def report_gaps(store: TraceStore, bus: Bus) -> tuple[Event, ...]:
    """Tell on the bus, once each, what an earlier run began and never ended; for start-up."""
    wanted = {"bus.gap_detected"}
    for row in CATALOGUE.values():
        wanted |= {row.type, *row.ends} if row.ends else set()
    events = await store.select(EventQuery(types=wanted))
    told = {e.payload.unfinished_event_id for e in events if isinstance(e.payload, BusGapDetected)}
    gaps = tuple(event for event in unfinished(events) if event.id not in told)
    for event in gaps:
        bus.emit(
            BusGapDetected(unfinished_event_id=event.id, unfinished_type=event.type),
            session_id=event.session_id,
            turn_id=event.turn_id,
            parent=event,
        )
    return gaps


async def sweep_trace(
    store: TraceStore, *, before: datetime, dry_run: bool = True, bus: Bus | None = None
) -> Sweep:
    """Delete old events, and tell on the bus that it was done."""
    swept = await store.sweep(before=before, dry_run=dry_run)
    if bus is not None and not dry_run:
        bus.emit(
            TraceSwept(
                cutoff=before.isoformat(),
                deleted_count=swept.deleted_count,
                spared_count=swept.spared_count,
            )
        )
    return swept
