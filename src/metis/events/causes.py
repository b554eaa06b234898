"""Causes: from an event back to where it began, and what is missing on the way."""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from metis.events.event import Event


class CauseFault(Struct, frozen=True):
    """An event whose cause is missing or cannot be its cause."""

    event_id: str
    text: str


def causes(events: Iterable[Event], event_id: str) -> tuple[Event, ...]:
    """An event and its causes, from the event back to the first one that is known."""
    known = {event.id: event for event in events}
    chain: list[Event] = []
    at = known.get(event_id)
    while at is not None and at not in chain:
        chain.append(at)
        at = known.get(at.parent_event_id or "")
    return tuple(chain)


def cause_faults(events: Iterable[Event]) -> tuple[CauseFault, ...]:
    """Every cause that is not there, comes later than its effect, or is of a type it cannot be."""
    known = {event.id: event for event in events}
    faults = ((event.id, _fault(event, known)) for event in known.values())
    return tuple(CauseFault(event_id, fault) for event_id, fault in faults if fault is not None)


def _fault(event: Event, known: Mapping[str, Event]) -> str | None:
    parents = event.kind.parents
    if event.parent_event_id is None:
        return f"{event.type} has no cause" if parents else None
    parent = known.get(event.parent_event_id)
    if parent is None:
        return f"the cause {event.parent_event_id} is not there"
    if parent.id >= event.id:
        return "the cause comes after the effect"
    if parents and parent.type not in parents:
        return f"{parent.type} cannot be the cause of {event.type}"
    return None


def unfinished(events: Iterable[Event]) -> tuple[Event, ...]:
    """What was begun and never ended, as a crash leaves it."""
    kept = list(events)
    ended = {(event.parent_event_id, event.type) for event in kept}
    return tuple(
        event
        for event in kept
        if event.kind.ends and not any((event.id, end) in ended for end in event.kind.ends)
    )
