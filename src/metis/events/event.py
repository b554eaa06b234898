"""Event: the envelope of a payload, with its encoding, decoding and validation."""

import logging
from collections.abc import Iterable
from datetime import datetime

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import asdict

from metis.canonical.errors import InvalidEventError
from metis.events import system_events, turn_events
from metis.events.registry import (
    CATALOGUE,
    Actor,
    EventType,
    Payload,
    Sensitivity,
    event_type_of,
)

log = logging.getLogger("metis.events")

SYSTEM_SESSION = "system"
"""The session id of events that belong to no session."""

PAYLOAD_MODULES = (turn_events, system_events)
"""The modules whose payload classes fill the catalogue."""


class Event(Struct, frozen=True, kw_only=True):
    """One event; ids increase with time, and `parent_event_id` is the event that caused it."""

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
        """The row of the catalogue for this event."""
        return CATALOGUE[self.type]


class _Envelope(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An event whose payload is not decoded yet."""

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
"""Encodes an event or a payload; equal values always give equal bytes."""

_read_envelope = msgspec.json.Decoder(_Envelope).decode


def read_event(data: bytes | str) -> Event | None:
    """Decode an event; None with a warning if its type is unknown.

    Raises:
        InvalidEventError: the bytes are not an event.
    """
    try:
        envelope = _read_envelope(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidEventError(str(error)) from None
    payload = read_payload(envelope.type, bytes(envelope.payload))
    if payload is None:
        return None
    fields = asdict(envelope)
    fields["payload"] = payload
    return Event(**fields)


def read_payload(event_type: str, data: bytes) -> Payload | None:
    """Decode a payload; None with a warning if its type is unknown or its data invalid."""
    row = CATALOGUE.get(event_type)
    if row is None:
        # A newer version may have written it; an older one must still read the trace.
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
    """Return the catalogue row of a payload, and the payload as it is read from a trace.

    Raises:
        InvalidEventError: the payload is not in the catalogue or cannot be stored, or the given
            sensitivity is more private than that of its type.
    """
    row = event_type_of(payload)
    if row is None:
        name = type(payload).__name__
        raise InvalidEventError(f"{name} is not in the catalogue of events")
    try:
        # The round trip checks the types, which constructors do not, and ensures that a live event
        # equals the stored one.
        stored = row.decode(encode_json(payload))
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise InvalidEventError(str(error), path=f"$.{row.type}") from None
    if sensitivity is not None and sensitivity.openness < row.sensitivity.openness:
        text = f"{row.type} is {row.sensitivity}; an emitter can only be more open"
        raise InvalidEventError(text, path="$.sensitivity")
    return row, stored


def unfinished_events(events: Iterable[Event]) -> tuple[Event, ...]:
    """Return the start events without an end event, such as after a crash."""
    all_events = list(events)
    # An end event has its start event as the parent.
    ended = {(event.parent_event_id, event.type) for event in all_events}
    return tuple(
        event
        for event in all_events
        if event.event_type.ends
        and not any((event.id, end) in ended for end in event.event_type.ends)
    )
