"""Event: one thing that happened, with its cause, as a value and as bytes."""

import logging
from datetime import datetime

import msgspec
from msgspec import Raw, Struct

from metis.canonical.errors import InvalidEventError
from metis.events import house, work
from metis.events.kinds import CATALOGUE, Actor, Kind, Payload, Sensitivity, kind_of

log = logging.getLogger("metis.events")

SYSTEM_SESSION = "system"
"""The session of events that belong to none."""

TYPE_MODULES = (work, house)
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
    def kind(self) -> Kind:
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


write = msgspec.json.Encoder(order="sorted").encode
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


def checked(payload: Payload, sensitivity: Sensitivity | None = None) -> tuple[Kind, Payload]:
    """The row of a payload, and the payload as it will be read back from a trace."""
    row = kind_of(payload)
    if row is None:
        name = type(payload).__name__
        raise InvalidEventError(f"{name} is not in the catalogue of events")
    try:
        read_back = row.decode(write(payload))
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise InvalidEventError(str(error), path=f"$.{row.type}") from None
    if sensitivity is not None and sensitivity.openness < row.sensitivity.openness:
        text = f"{row.type} is {row.sensitivity}; an emitter can only be more open"
        raise InvalidEventError(text, path="$.sensitivity")
    return row, read_back
