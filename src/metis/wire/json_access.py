"""Typed access to provider JSON, with errors that name the path."""

from typing import Any, cast

import msgspec

from metis.canonical.errors import DecodeError
from metis.canonical.schema.subset import describe

Wire = dict[str, Any]
"""A JSON object of a protocol."""

_LARGEST = 2**63 - 1
_read = msgspec.json.Decoder().decode


def read_object(body: bytes, what: str) -> Wire:
    """The JSON object that a body holds."""
    try:
        value = _read(body)
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise DecodeError(f"a {what} is a JSON object")
    return cast("Wire", value)


def object_at(value: Any, path: str) -> Wire:
    """The object that has to stand at a path."""
    if not isinstance(value, dict):
        raise DecodeError(f"expected an object, got {describe(value)}", path=path)
    return cast("Wire", value)


def list_at(value: Any, path: str) -> list[Any]:
    """The list that has to stand at a path."""
    if not isinstance(value, list):
        raise DecodeError(f"expected an array, got {describe(value)}", path=path)
    return cast("list[Any]", value)


def unknown_role(role: Any, path: str) -> DecodeError:
    """The error for a message whose role is none that a protocol knows, or no role at all."""
    fault = f"unknown role {role!r}" if isinstance(role, str) else f"the role is {describe(role)}"
    return DecodeError("a message has a role" if role is None else fault, path=f"{path}.role")


def maybe_object(value: Any) -> Wire:
    """The object, if it is one; else an empty one."""
    return value if isinstance(value, dict) else {}  # pyright: ignore[reportUnknownVariableType] - JSON has string keys, and a cast costs time


def maybe_list(value: Any) -> list[Any]:
    """The list, if it is one; else an empty one."""
    return value if isinstance(value, list) else []  # pyright: ignore[reportUnknownVariableType] - of anything, and a cast costs time


def maybe_text(value: Any) -> str | None:
    """The string, if it is one."""
    return value if isinstance(value, str) else None


def maybe_count(value: Any) -> int | None:
    """The whole number, if it is one that is not negative and that every store can hold."""
    return value if type(value) is int and 0 <= value <= _LARGEST else None


def set_or_remove(wire: Wire, key: str, value: Any) -> None:
    """Set a key, or remove it if the value is None."""
    if value is None:
        wire.pop(key, None)
    else:
        wire[key] = value
