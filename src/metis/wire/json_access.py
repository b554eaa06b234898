"""Typed access to provider JSON, with errors that name the path."""

from typing import Any, cast

import msgspec

from metis.canonical.errors import DecodeError
from metis.canonical.schema.subset import describe

Wire = dict[str, Any]
"""A JSON object of a protocol."""

_MAX_COUNT = 2**63 - 1  # the largest integer that a database column holds
read_value = msgspec.json.Decoder().decode
"""Reads any JSON."""


def read_object(body: bytes, kind: str) -> Wire:
    """Read the JSON object of a body; `kind`, such as `request`, names it in a DecodeError."""
    try:
        value = read_value(body)
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise DecodeError(f"a {kind} is a JSON object")
    return cast("Wire", value)


def object_at(value: Any, path: str) -> Wire:
    """Return a value that must be an object; a DecodeError names `path` otherwise."""
    if not isinstance(value, dict):
        raise DecodeError(f"expected an object, got {describe(value)}", path=path)
    return cast("Wire", value)


def list_at(value: Any, path: str) -> list[Any]:
    """Return a value that must be a list; a DecodeError names `path` otherwise."""
    if not isinstance(value, list):
        raise DecodeError(f"expected an array, got {describe(value)}", path=path)
    return cast("list[Any]", value)


def unknown_role(role: Any, path: str) -> DecodeError:
    """Return the error for a message at `path` whose role is unknown or missing."""
    fault = f"unknown role {role!r}" if isinstance(role, str) else f"the role is {describe(role)}"
    return DecodeError("a message has a role" if role is None else fault, path=f"{path}.role")


def maybe_object(value: Any) -> Wire:
    """Return the value if it is an object, else an empty object."""
    return value if isinstance(value, dict) else {}  # pyright: ignore[reportUnknownVariableType] - JSON has string keys, and a cast costs time


def maybe_list(value: Any) -> list[Any]:
    """Return the value if it is a list, else an empty list."""
    return value if isinstance(value, list) else []  # pyright: ignore[reportUnknownVariableType] - of anything, and a cast costs time


def maybe_text(value: Any) -> str | None:
    """Return the value if it is a string, else None."""
    return value if isinstance(value, str) else None


def maybe_count(value: Any) -> int | None:
    """Return the value if it is a non-negative integer of 63 bits, else None."""
    # `type` and not `isinstance`: `true` and `false` are instances of int in Python.
    return value if type(value) is int and 0 <= value <= _MAX_COUNT else None


def set_or_remove(wire: Wire, key: str, value: Any) -> None:
    """Set a key, or remove it if the value is None."""
    if value is None:
        wire.pop(key, None)
    else:
        wire[key] = value
