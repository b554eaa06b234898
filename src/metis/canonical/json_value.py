"""JSON values: what may stand in a tool's input, in options and in other free fields."""

import math
from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Any, cast

from metis.canonical.place import join

_SCALARS = frozenset({str, int, bool, NoneType})


def is_json(value: object) -> bool:
    """Whether a value is surely plain JSON; a quick yes for what decoders give."""
    try:
        return _is_json(value)
    except RecursionError:
        return False


def _is_json(value: object) -> bool:
    kind = type(value)
    if kind in _SCALARS:
        return True
    if kind is dict:
        return _is_json_object(cast("dict[Any, Any]", value))
    if kind is list:
        return all(_is_json(item) for item in cast("list[Any]", value))
    return kind is float and math.isfinite(cast("float", value))


def _is_json_object(value: dict[Any, Any]) -> bool:
    for key, item in value.items():
        if type(key) is not str or (type(item) not in _SCALARS and not _is_json(item)):
            return False
    return True


def plain_json(value: Any) -> Any:
    """The same JSON in dicts and lists, for values that came in other mappings and sequences."""
    if isinstance(value, Mapping):
        entries = cast("Mapping[str, Any]", value)
        return {key: plain_json(item) for key, item in entries.items()}
    if isinstance(value, list | tuple):
        return [plain_json(item) for item in cast("Sequence[Any]", value)]
    return value


def json_fault(value: object, path: str = "$") -> tuple[str, str] | None:
    """The path and the nature of the first thing that JSON has no place for, if there is one."""
    try:
        return _fault(value, path)
    except RecursionError:
        return path, "nested too deeply, or it contains itself"


def _fault(value: object, path: str) -> tuple[str, str] | None:
    match value:
        case str():
            return _surrogate(value, path)
        case None | int():
            return None
        case float():
            return None if math.isfinite(value) else (path, f"{value} is not a JSON number")
        case Mapping():
            return _fault_in_object(cast("Mapping[Any, Any]", value), path)
        case list() | tuple():
            items = cast("Sequence[Any]", value)
            faults = (_fault(item, join(path, index)) for index, item in enumerate(items))
            return next((fault for fault in faults if fault), None)
        case _:
            return path, f"{type(value).__name__} is not a JSON value"


def _fault_in_object(value: Mapping[Any, Any], path: str) -> tuple[str, str] | None:
    for key, item in value.items():
        if not isinstance(key, str):
            return path, f"the key {key!r} is not a string"
        fault = _surrogate(key, path) or _fault(item, join(path, key))
        if fault:
            return fault
    return None


def _surrogate(text: str, path: str) -> tuple[str, str] | None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return path, f"lone surrogate at character {error.start}"
    return None
