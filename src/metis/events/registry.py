"""Registry of event types: the closed catalogue, and how private each type and each field is.

A payload class enters the catalogue by `@event_type(...)`. Its fields are aggregatable unless their
type says otherwise: a reference to a person or thing (`UserRef`), which a pseudonym can replace, or
`Private` text, which can only be redacted. No event has a field for the text of a conversation.
"""

from collections.abc import Callable, Mapping
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Meta, Struct

from metis.canonical.errors import InvalidEventError


class Sensitivity(StrEnum):
    """Who may see an event, from the fewest to the most."""

    PRIVATE = "private"
    USER_CONTROLLED = "user_controlled"
    PSEUDONYMOUS = "pseudonymous"
    AGGREGATABLE = "aggregatable"

    @property
    def openness(self) -> int:
        """The place in the order, from 0 for private."""
        return list(Sensitivity).index(self)


class Actor(StrEnum):
    """Who made something happen."""

    USER = "user"
    AGENT = "agent"
    SYSTEM = "system"
    TOOL = "tool"
    WORKER = "worker"


Private = Annotated[str, Meta(extra={"sensitivity": "private"})]
"""Words that may tell what somebody works on: paths, commands, texts of errors."""
UserNamed = Annotated[str, Meta(extra={"sensitivity": "user_controlled"})]
"""A name that the user gave to something: a rule, a tool, a skill."""
SessionRef = Annotated[str, Meta(extra={"sensitivity": "pseudonymous", "tag": "session"})]
UserRef = Annotated[str, Meta(extra={"sensitivity": "pseudonymous", "tag": "user"})]
TeamRef = Annotated[str, Meta(extra={"sensitivity": "pseudonymous", "tag": "team"})]
KeyRef = Annotated[str, Meta(extra={"sensitivity": "pseudonymous", "tag": "key"})]
WorkspaceRef = Annotated[str, Meta(extra={"sensitivity": "pseudonymous", "tag": "workspace"})]
RequestRef = Annotated[str, Meta(extra={"sensitivity": "pseudonymous", "tag": "request"})]


class Payload(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is told by one type of event."""

    def __post_init__(self) -> None:
        """Refuse money that is no number, also when it was read."""
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if type(value) is Decimal and not value.is_finite():
                raise InvalidEventError(f"{value} is not an amount of money", path=f"$.{name}")


class EventType(Struct, frozen=True, kw_only=True):
    """One row of the catalogue."""

    payload: type[Payload]
    type: str
    sensitivity: Sensitivity
    """The most private case; an emitter may only be more open than this."""
    parents: tuple[str, ...] = ()
    """The types that can be the cause; none if it begins something."""
    ends: tuple[str, ...] = ()
    """The types that end what this one begins."""
    is_audit: bool = False
    """Whether the retention sweep spares it."""
    fields: Mapping[str, "Field"]
    decode: Callable[[bytes], Payload]


class Field(Struct, frozen=True):
    """How private a field is; `tag` names what a pseudonym stands for, `inner` parts of it."""

    sensitivity: Sensitivity
    tag: str | None = None
    inner: Mapping[str, "Field"] | None = None


CATALOGUE: dict[str, EventType] = {}
"""Every type of event there is, by name."""

_KIND_OF: dict[type[Payload], EventType] = {}
P = TypeVar("P", bound=Payload)


def event_type(
    name: str,
    sensitivity: Sensitivity,
    *,
    parents: tuple[str, ...] = (),
    ends: tuple[str, ...] = (),
    is_audit: bool = False,
) -> Callable[[type[P]], type[P]]:
    """Put a payload type into the catalogue under a name."""

    def enter(payload: type[P]) -> type[P]:
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
        CATALOGUE[name] = _KIND_OF[payload] = row
        return payload

    return enter


def event_type_of(payload: Payload) -> EventType | None:
    """The row of the catalogue that a payload belongs to, if there is one."""
    return _KIND_OF.get(type(payload))


def _fields(struct: type[Struct]) -> Mapping[str, Field]:
    hints = get_type_hints(struct, include_extras=True)
    return {name: _field(hints[name]) for name in struct.__struct_fields__}


def _field(hint: Any) -> Field:
    """The most private thing that a type mentions, however deep."""
    found = [Field(Sensitivity.AGGREGATABLE)]
    if isinstance(hint, type) and issubclass(hint, Struct):
        inner = _fields(hint)
        found += [Field(field.sensitivity, inner=inner) for field in inner.values()]
    for part in get_args(hint):
        if isinstance(part, Meta) and part.extra:
            found.append(Field(Sensitivity(part.extra["sensitivity"]), part.extra.get("tag")))
        elif part is not ...:
            found.append(_field(part))
    return min(found, key=lambda field: field.sensitivity.openness)
