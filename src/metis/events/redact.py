"""Redaction: removes private data from events.

`pseudonymize` replaces the names of users, teams, workspaces and sessions by pseudonyms;
`redact_private` also removes private text. The same salt gives the same result, and a second
application changes nothing. Event ids, parents, times, actors and types are not changed.
`aggregate_only` returns no events, only sums.
"""

import hashlib
import hmac
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC
from decimal import Decimal, localcontext
from enum import StrEnum
from typing import Any, TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from metis.events.event import SYSTEM_SESSION, Event
from metis.events.registry import Field, Sensitivity

REDACTED = "[REDACTED]"
"""The text in place of private text."""
_PSEUDONYM = re.compile(r"ps:[a-z]+:[0-9a-f]{16}")
S = TypeVar("S", bound=Struct)


class Redaction(StrEnum):
    """How much of events is shown."""

    PASSTHROUGH = "passthrough"
    PSEUDONYMIZE = "pseudonymize"
    REDACT_PRIVATE = "redact_private"
    AGGREGATE_ONLY = "aggregate_only"


class Total(Struct, frozen=True, kw_only=True):
    """The events of one type on one UTC day: how many, and the sums of their numbers."""

    day: str
    type: str
    count: int
    sums: Mapping[str, Decimal]


def pseudonym(text: str, tag: str, salt: str = "") -> str:
    """Return the pseudonym of a name; the same name and salt always give the same."""
    # A pseudonym is not hashed again, so that a second application changes nothing.
    if _PSEUDONYM.fullmatch(text):
        return text
    # The salt prevents guessing a name by hashing candidates.
    digest = hmac.new(salt.encode(), f"{tag}:{text}".encode(), hashlib.sha256)
    return f"ps:{tag}:{digest.hexdigest()[:16]}"


def redact(events: Iterable[Event], mode: Redaction, *, salt: str = "") -> Iterator[Event]:
    """Yield events without the data that the mode removes; none for `aggregate_only`."""
    if mode is Redaction.AGGREGATE_ONLY:
        # Even the times of single events would show when a user worked.
        return iter(())
    if mode is Redaction.PASSTHROUGH:
        return iter(events)
    return (_redact(event, salt, hide_private=mode is Redaction.REDACT_PRIVATE) for event in events)


def _redact(event: Event, salt: str, *, hide_private: bool) -> Event:
    session, turn = event.session_id, event.turn_id
    return replace(
        event,
        # `system` is not a user's session, and readers filter by it.
        session_id=session if session == SYSTEM_SESSION else pseudonym(session, "session", salt),
        turn_id=None if turn is None else pseudonym(turn, "turn", salt),
        payload=_redact_fields(
            event.payload, event.event_type.fields, salt, hide_private=hide_private
        ),
    )


def _redact_fields(value: S, fields: Mapping[str, Field], salt: str, *, hide_private: bool) -> S:
    changed = {
        name: _redact_value(getattr(value, name), field, salt, hide_private=hide_private)
        for name, field in fields.items()
        # Names that users chose, as of rules and tools, are not personal and stay readable.
        if field.sensitivity in (Sensitivity.PRIVATE, Sensitivity.PSEUDONYMOUS)
    }
    return replace(value, **changed) if changed else value


def _redact_value(value: Any, field: Field, salt: str, *, hide_private: bool) -> Any:
    if isinstance(value, tuple):
        items = cast("tuple[Any, ...]", value)
        return tuple(_redact_value(item, field, salt, hide_private=hide_private) for item in items)
    if isinstance(value, Struct):
        return _redact_fields(value, field.inner or {}, salt, hide_private=hide_private)
    if not isinstance(value, str):
        return value
    if field.tag is not None:
        return pseudonym(value, field.tag, salt)
    return REDACTED if hide_private and field.sensitivity is Sensitivity.PRIVATE else value


def aggregate(events: Iterable[Event]) -> tuple[Total, ...]:
    """Return counts and sums by day and type, sorted, without data of single events."""
    counts: dict[tuple[str, str], int] = {}
    sums: dict[tuple[str, str], dict[str, Decimal]] = {}
    # Sums of exact decimals stay exact, whatever the context of the caller.
    with localcontext(prec=100):
        for event in events:
            key = (event.timestamp.astimezone(UTC).date().isoformat(), event.type)
            counts[key] = counts.get(key, 0) + 1
            totals = sums.setdefault(key, {})
            for name, number in _numbers(event):
                totals[name] = totals.get(name, Decimal(0)) + number
    return tuple(
        Total(day=day, type=name, count=count, sums=dict(sorted(sums[day, name].items())))
        for (day, name), count in sorted(counts.items())
    )


def _numbers(event: Event) -> Iterator[tuple[str, Decimal]]:
    for name, field in event.event_type.fields.items():
        value = getattr(event.payload, name)
        if field.sensitivity is Sensitivity.AGGREGATABLE and not isinstance(value, bool):
            if isinstance(value, int | Decimal):
                yield name, Decimal(value)
            elif isinstance(value, float):
                # `repr` gives the shortest decimal of a float; `Decimal(value)` has 50 digits.
                yield name, Decimal(repr(value))
