"""JSON values: paths that name a part of a document, and what a JSON value may hold."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Any, cast

_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[{}\[\],:]|[^\s{}\[\],:"]++', re.DOTALL)
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def join_path(path: str, step: str | int) -> str:
    """The path one step further: a key of an object, or an index of an array."""
    if isinstance(step, int):
        return f"{path}[{step}]"
    if _PLAIN_KEY.fullmatch(step):
        return f"{path}.{step}"
    return f"{path}[{json.dumps(step, ensure_ascii=False)}]"


def path_at(data: bytes, offset: int) -> str:
    """The path of the innermost value that holds the byte at `offset`, as far as the text goes."""
    walk = _Walk()
    for match in _TOKEN.finditer(data):
        if match.start() > offset:
            break
        walk.take(match.group())
    return walk.path()


def path_deeper_than(data: bytes, depth: int) -> str | None:
    """The path of the first value that is nested deeper than `depth`."""
    walk = _Walk()
    for match in _TOKEN.finditer(data):
        walk.take(match.group())
        if len(walk.levels) > depth:
            return walk.path()
    return None


def line_of(data: bytes, path: str) -> int:
    """The line, counted from one, where the value at `path`, or what is left of it, begins."""
    walk = _Walk()
    best, best_length = 0, -1
    for match in _TOKEN.finditer(data):
        if not walk.take(match.group()):
            continue
        found = walk.path()
        if len(found) > best_length and (found == path or _leads_to(found, path)):
            best, best_length = match.start(), len(found)
            if found == path:
                break
    return data.count(b"\n", 0, best) + 1


def _leads_to(found: str, path: str) -> bool:
    return path.startswith(found) and path[len(found) : len(found) + 1] in (".", "[")


class _Level:
    """One open object or array: the step into the value that is being read, and its number."""

    __slots__ = ("count", "is_object", "step", "wants_key")

    def __init__(self, *, is_object: bool) -> None:
        self.is_object = is_object
        self.wants_key = is_object
        self.step: str | int | None = None
        self.count = 0


class _Walk:
    """A walk over the tokens of JSON text, right or wrong, that knows where it is."""

    def __init__(self) -> None:
        self.levels: list[_Level] = []

    def path(self) -> str:
        """The path of the value where the walk is now."""
        found = "$"
        for level in self.levels:
            if level.step is not None:
                found = join_path(found, level.step)
        return found

    def take(self, token: bytes) -> bool:
        """Go one token further; whether it begins a value."""
        level = self.levels[-1] if self.levels else None
        if token in (b"}", b"]"):
            if level is not None:
                self.levels.pop()
            return False
        if token == b",":
            if level is not None:
                level.wants_key = level.is_object
            return False
        if token == b":":
            return False
        if level is not None and level.wants_key:
            level.step = _text(token)
            level.wants_key = False
            return False
        if level is not None and not level.is_object:
            level.step = level.count
            level.count += 1
        if token in (b"{", b"["):
            self.levels.append(_Level(is_object=token == b"{"))
        return True


def _text(token: bytes) -> str:
    try:
        text = json.loads(token)
    except ValueError:
        text = token.decode(errors="replace")
    return text if isinstance(text, str) else str(text)


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
            faults = (_fault(item, join_path(path, index)) for index, item in enumerate(items))
            return next((fault for fault in faults if fault), None)
        case _:
            return path, f"{type(value).__name__} is not a JSON value"


def _fault_in_object(value: Mapping[Any, Any], path: str) -> tuple[str, str] | None:
    for key, item in value.items():
        if not isinstance(key, str):
            return path, f"the key {key!r} is not a string"
        fault = _surrogate(key, path) or _fault(item, join_path(path, key))
        if fault:
            return fault
    return None


def _surrogate(text: str, path: str) -> tuple[str, str] | None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return path, f"lone surrogate at character {error.start}"
    return None
