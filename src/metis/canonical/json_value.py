"""JSON values: what may stand in a tool's input, in options and in other free fields."""

import json
import math
from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Any, cast

from metis.canonical.place import join

_MAX_DIGITS = 4300
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


def json_text_fault(raw: bytes) -> str | None:
    """What keeps a text from being JSON: bad syntax, two keys of one name, NaN; None if nothing."""
    try:
        json.loads(
            raw.decode(),
            object_pairs_hook=_no_duplicates,
            parse_constant=_no_constant,
            parse_int=_raise_if_out_of_range,
            parse_float=_raise_if_out_of_range,
        )
    except (ValueError, RecursionError) as error:
        return f"not JSON: {error}"
    return None


def number_fault(digits: str) -> str | None:
    """What keeps the text of a number from being one that we can hold; None if nothing."""
    if digits.lstrip("-").isdigit():
        too_long = len(digits) > _MAX_DIGITS
        return f"an integer of {len(digits)} digits" if too_long else None
    return "a number out of range" if math.isinf(float(digits)) else None


def _raise_if_out_of_range(digits: str) -> None:
    fault = number_fault(digits)
    if fault:
        raise ValueError(fault)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> None:
    if len({key for key, _ in pairs}) != len(pairs):
        raise ValueError("an object holds two keys of one name")


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


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
