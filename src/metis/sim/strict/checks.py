"""Functions that the request checks of all protocols share."""

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
"""The image types that every provider accepts."""


class CheckContext(Struct, frozen=True, kw_only=True):
    """The values that a check needs beside the body."""

    signer: ThinkingSigner
    headers: Mapping[str, str] = {}
    model: str = ""


def refuse(text: str, *, status: int = 400, code: str | None = None) -> Never:
    """Raise the error with which the provider refuses a request."""
    raise InvalidRequestError(text, status=status, code=code)


def require(condition: object, text: str, *, code: str | None = None) -> None:
    """Refuse a request unless a condition holds."""
    if not condition:
        refuse(text, code=code)


def is_count(value: Any, minimum: int = 1) -> bool:
    """Return whether a value is an integer that is large enough."""
    # The type is compared, because a bool is an instance of int.
    return type(value) is int and value >= minimum


def is_between(value: Any, minimum: float, maximum: float) -> bool:
    """Return whether a value is absent, or a number within bounds."""
    if value is None:
        return True
    is_number = isinstance(value, int | float) and type(value) is not bool
    return is_number and minimum <= value <= maximum


def matches(pattern: str, value: Any) -> bool:
    """Return whether a value is a string that matches a pattern."""
    return isinstance(value, str) and re.fullmatch(pattern, value) is not None


def is_one_of(value: Any, allowed: Container[str]) -> bool:
    """Return whether a value is one of some strings; other types may not be hashable."""
    return isinstance(value, str) and value in allowed


def is_base64(value: Any) -> bool:
    """Return whether a value is a base64 string that is not empty."""
    if not isinstance(value, str) or not value:
        return False
    try:
        base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return False
    return True


def unknown_keys(body: Wire, allowed: Container[str]) -> list[str]:
    """Return the keys that an object must not have."""
    return [key for key in body if key not in allowed]


def objects(value: Any) -> list[Wire]:
    """Return the items of a list as objects; any other item becomes an empty object."""
    return [maybe_object(item) for item in maybe_list(value)] if value else []


def strict_schema_problem(schema: Wire, path: str = "") -> str | None:
    """Return the first fault of a schema in OpenAI's strict mode; None if there is none.

    Strict mode needs closed objects with all properties required.
    """
    properties = maybe_object(schema.get("properties"))
    if schema.get("type") == "object" or properties:
        if schema.get("additionalProperties") is not False:
            return f"In context=({path}), 'additionalProperties' is required to be false"
        required: Any = schema.get("required")
        missing = [key for key in properties if key not in (required or [])]
        if missing:
            return f"In context=({path}), 'required' has to name every property: {missing[0]!r}"
    inner = {**properties, **({"items": schema["items"]} if "items" in schema else {})}
    problems = (strict_schema_problem(maybe_object(inner[key]), f"{path}.{key}") for key in inner)
    return next((problem for problem in problems if problem), None)
