"""Event: one thing that happened, as a value and as bytes, and the chain of its causes."""

import logging
from collections.abc import Iterable, Mapping
from datetime import datetime

import msgspec
from msgspec import Raw, Struct

from metis.canonical.errors import InvalidEventError
from metis.events import system_events, turn_events
from metis.events.registry import CATALOGUE, Actor, EventType, Payload, Sensitivity, event_type_of

log = logging.getLogger("metis.events")

SYSTEM_SESSION = "system"
"""The session of events that belong to none."""

TYPE_MODULES = (turn_events, system_events)
"""The modules whose payloads fill the catalogue."""


class Event(Struct, frozen=True, kw_only=True):
    """One thing that happened; ids increase, and `parent_event_id` names the cause."""

    id: str
    timestamp: datetime
    session_id: str
    turn_id: str | None = None
    parent_event_id: str | None = None
    type: str
    actor: Actor
    sensitivity: Sensitivity
    payload: Payload

    @property
    def event_type(self) -> EventType:
        """The row of the catalogue that the event belongs to."""
        return CATALOGUE[self.type]


class _Envelope(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An event whose payload is not read yet."""

    id: str
    timestamp: datetime
    session_id: str
    turn_id: str | None
    parent_event_id: str | None
    type: str
    actor: Actor
    sensitivity: Sensitivity
    payload: Raw


encode_json = msgspec.json.Encoder(order="sorted").encode
"""The bytes of an event or a payload; the same value always gives the same bytes."""

_read_envelope = msgspec.json.Decoder(_Envelope).decode


def read_event(data: bytes | str) -> Event | None:
    """The event that bytes spell; one of a type that we do not know is skipped with a warning."""
    try:
        envelope = _read_envelope(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidEventError(str(error)) from None
    payload = read_payload(envelope.type, bytes(envelope.payload))
    if payload is None:
        return None
    return Event(
        id=envelope.id,
        timestamp=envelope.timestamp,
        session_id=envelope.session_id,
        turn_id=envelope.turn_id,
        parent_event_id=envelope.parent_event_id,
        type=envelope.type,
        actor=envelope.actor,
        sensitivity=envelope.sensitivity,
        payload=payload,
    )


def read_payload(event_type: str, data: bytes) -> Payload | None:
    """The payload that bytes spell, or None with a warning if this version does not know it."""
    row = CATALOGUE.get(event_type)
    if row is None:
        log.warning("skipped an event of the unknown type %.80r", event_type)
        return None
    try:
        return row.decode(data)
    except msgspec.ValidationError as error:
        log.warning("skipped an event of type %s: %s", event_type, error)
        return None


def validate_payload(
    payload: Payload, sensitivity: Sensitivity | None = None
) -> tuple[EventType, Payload]:
    """The row of a payload, and the payload as it will be read back from a trace."""
    row = event_type_of(payload)
    if row is None:
        name = type(payload).__name__
        raise InvalidEventError(f"{name} is not in the catalogue of events")
    try:
        read_back = row.decode(encode_json(payload))
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise InvalidEventError(str(error), path=f"$.{row.type}") from None
    if sensitivity is not None and sensitivity.openness < row.sensitivity.openness:
        text = f"{row.type} is {row.sensitivity}; an emitter can only be more open"
        raise InvalidEventError(text, path="$.sensitivity")
    return row, read_back


class CauseFault(Struct, frozen=True):
    """An event whose cause is missing or cannot be its cause."""

    event_id: str
    text: str


def cause_chain(events: Iterable[Event], event_id: str) -> tuple[Event, ...]:
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
    parents = event.event_type.parents
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


def unfinished_events(events: Iterable[Event]) -> tuple[Event, ...]:
    """What was begun and never ended, as a crash leaves it."""
    kept = list(events)
    ended = {(event.parent_event_id, event.type) for event in kept}
    return tuple(
        event
        for event in kept
        if event.event_type.ends
        and not any((event.id, end) in ended for end in event.event_type.ends)
    )
