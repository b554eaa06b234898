"""Registry of event types: the closed catalogue, with the sensitivity of each type and field.

A payload class is added to the catalogue by `@event_type(...)`. Its fields are aggregatable unless
they have another type: a reference to a user or thing (`UserRef`), which a pseudonym can replace,
or `Private` text, which can only be redacted. No event has a field for the text of a conversation.
"""

from collections.abc import Callable, Mapping
from decimal import Decimal
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Meta, Struct

from metis.canonical.errors import InvalidEventError


class Sensitivity(StrEnum):
    """How private an event or a field is, from the most to the least private."""

    PRIVATE = "private"
    USER_CONTROLLED = "user_controlled"
    PSEUDONYMOUS = "pseudonymous"
    AGGREGATABLE = "aggregatable"

    @property
    def openness(self) -> int:
        """The position in the order, from 0 for private."""
        return list(Sensitivity).index(self)


class Actor(StrEnum):
    """Who caused an event."""

    USER = "user"
    AGENT = "agent"
    SYSTEM = "system"
    TOOL = "tool"
    WORKER = "worker"


Private = Annotated[str, Meta(extra={"sensitivity": "private"})]
"""Text that may reveal what a user works on: paths, commands, error messages."""
UserNamed = Annotated[str, Meta(extra={"sensitivity": "user_controlled"})]
"""A name that the user chose: of a rule, a tool, a skill."""
SessionRef = Annotated[str, Meta(extra={"sensitivity": "pseudonymous", "tag": "session"})]
UserRef = Annotated[str, Meta(extra={"sensitivity": "pseudonymous", "tag": "user"})]
TeamRef = Annotated[str, Meta(extra={"sensitivity": "pseudonymous", "tag": "team"})]
KeyRef = Annotated[str, Meta(extra={"sensitivity": "pseudonymous", "tag": "key"})]
WorkspaceRef = Annotated[str, Meta(extra={"sensitivity": "pseudonymous", "tag": "workspace"})]
RequestRef = Annotated[str, Meta(extra={"sensitivity": "pseudonymous", "tag": "request"})]


# Unknown fields are forbidden: a field without a sensitivity could leak private text.
class Payload(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The data of one event; each event type has a subclass."""

    def __post_init__(self) -> None:
        """Refuse amounts of money that are not finite, also when decoding."""
        for name in _money_fields(type(self)):
            value = getattr(self, name)
            # NaN would make every later sum NaN, and JSON cannot express it.
            if type(value) is Decimal and not value.is_finite():
                raise InvalidEventError(f"{value} is not an amount of money", path=f"$.{name}")


@cache
def _money_fields(payload: type[Payload]) -> tuple[str, ...]:
    """Return the fields with amounts of money; cached, because every event checks them."""
    hints = get_type_hints(payload)
    return tuple(name for name in payload.__struct_fields__ if "Decimal" in str(hints[name]))


class EventType(Struct, frozen=True, kw_only=True):
    """One row of the catalogue."""

    payload: type[Payload]
    type: str
    sensitivity: Sensitivity
    """The sensitivity of the type; an emitter may only choose a more open one."""
    parents: tuple[str, ...] = ()
    """The types that can cause an event of this type; empty if it starts a chain."""
    ends: tuple[str, ...] = ()
    """The types of the end events, if this type starts something."""
    is_audit: bool = False
    """Whether a retention sweep leaves events of this type."""
    fields: Mapping[str, "Field"]
    decode: Callable[[bytes], Payload]


class Field(Struct, frozen=True):
    """The sensitivity of a field; `tag` is its kind of pseudonym, `inner` its nested fields."""

    sensitivity: Sensitivity
    tag: str | None = None
    inner: Mapping[str, "Field"] | None = None


CATALOGUE: dict[str, EventType] = {}
"""Every event type by name."""

_BY_PAYLOAD: dict[type[Payload], EventType] = {}
P = TypeVar("P", bound=Payload)


def event_type(
    name: str,
    sensitivity: Sensitivity,
    *,
    parents: tuple[str, ...] = (),
    ends: tuple[str, ...] = (),
    is_audit: bool = False,
) -> Callable[[type[P]], type[P]]:
    """Register a payload class in the catalogue under a name."""

    def register(payload: type[P]) -> type[P]:
        row = EventType(
            type=name,
            payload=payload,
            sensitivity=sensitivity,
            parents=parents,
            ends=ends,
            is_audit=is_audit,
            fields=_fields(payload),
            decode=msgspec.json.Decoder(payload).decode,
        )
        # Payload classes are registered when their modules are imported, as `event` does.
        CATALOGUE[name] = _BY_PAYLOAD[payload] = row
        return payload

    return register


def event_type_of(payload: Payload) -> EventType | None:
    """Return the row of the catalogue for a payload, if there is one."""
    return _BY_PAYLOAD.get(type(payload))


def _fields(struct: type[Struct]) -> Mapping[str, Field]:
    hints = get_type_hints(struct, include_extras=True)
    return {name: _field(hints[name]) for name in struct.__struct_fields__}


def _field(hint: Any) -> Field:
    """Return the sensitivity of the most private part of a type hint, at any depth."""
    parts = [Field(Sensitivity.AGGREGATABLE)]
    # A nested struct is as private as its most private field.
    if isinstance(hint, type) and issubclass(hint, Struct):
        inner = _fields(hint)
        parts += [Field(field.sensitivity, inner=inner) for field in inner.values()]
    for part in get_args(hint):
        if isinstance(part, Meta) and part.extra:
            parts.append(Field(Sensitivity(part.extra["sensitivity"]), part.extra.get("tag")))
        elif part is not ...:
            parts.append(_field(part))
    return min(parts, key=lambda field: field.sensitivity.openness)
