"""Helpers that the request checks of all protocols share."""

import base64
import binascii
import re
from collections.abc import Container, Mapping
from typing import Any, Never

from msgspec import Struct

from metis.canonical.errors import InvalidRequestError
from metis.sim.signing import ThinkingSigner
from metis.wire.json_access import Wire, maybe_list, maybe_object

IMAGE_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")
"""The pictures that every provider takes."""


class CheckContext(Struct, frozen=True, kw_only=True):
    """What a check must know beside the body."""

    signer: ThinkingSigner
    headers: Mapping[str, str] = {}
    model: str = ""


def refuse(text: str, *, status: int = 400, code: str | None = None) -> Never:
    """Refuse a request with the words of a provider."""
    raise InvalidRequestError(text, status=status, code=code)


def require(condition: object, text: str, *, code: str | None = None) -> None:
    """Refuse unless something holds."""
    if not condition:
        refuse(text, code=code)


def is_count(value: Any, least: int = 1) -> bool:
    """Whether a value is a whole number that is not too small."""
    return type(value) is int and value >= least


def is_between(value: Any, least: float, most: float) -> bool:
    """Whether a value is a number within bounds; what is not stated is."""
    if value is None:
        return True
    return isinstance(value, int | float) and type(value) is not bool and least <= value <= most


def matches(pattern: str, value: Any) -> bool:
    """Whether a value is a text of some form."""
    return isinstance(value, str) and re.fullmatch(pattern, value) is not None


def is_one_of(value: Any, allowed: Container[str]) -> bool:
    """Whether a value is one of some words."""
    return isinstance(value, str) and value in allowed


def is_base64(value: Any) -> bool:
    """Whether a value is a text in base64, and not an empty one."""
    if not isinstance(value, str) or not value:
        return False
    try:
        base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return False
    return True


def unknown_keys(wire: Wire, known: Container[str]) -> list[str]:
    """The keys that an object should not have."""
    return [key for key in wire if key not in known]


def objects(value: Any) -> list[Wire]:
    """The items of a list as objects; what is none is an empty one."""
    return [maybe_object(item) for item in maybe_list(value)] if value else []


def strict_schema_problem(schema: Wire, path: str = "") -> str | None:
    """Where a schema breaks the rules of strict output: closed objects, everything required."""
    parts = maybe_object(schema.get("properties"))
    if schema.get("type") == "object" or parts:
        if schema.get("additionalProperties") is not False:
            return f"In context=({path}), 'additionalProperties' is required to be false"
        required: Any = schema.get("required")
        missing = [key for key in parts if key not in (required or [])]
        if missing:
            return f"In context=({path}), 'required' has to name every property: {missing[0]!r}"
    inner = {**parts, **({"items": schema["items"]} if "items" in schema else {})}
    faults = (strict_schema_problem(maybe_object(inner[key]), f"{path}.{key}") for key in inner)
    return next((fault for fault in faults if fault), None)
