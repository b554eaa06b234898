"""JSON documents from outside: what is checked before anything is read from them.

msgspec takes the last of two equal keys and stops at the interpreter's stack; here both are errors
that name the place. Only documents that are not canonical already come this way.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, cast

import msgspec
from msgspec import Struct

from metis.canonical.errors import DecodeError, LimitError
from metis.canonical.json_value import number_fault
from metis.canonical.place import join, path_at, path_deeper_than
from metis.canonical.reader import split_reason

_PATH_SHOWN = 80
_STACK = 900
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_read_any = msgspec.json.Decoder().decode


class Limits(Struct, frozen=True):
    """How large and how deeply nested a document may be.

    Canonical bytes are bounded in depth by the interpreter alone (about a thousand levels); all
    other documents, and so all that was made by hand, by `max_depth`.
    """

    max_bytes: int = 64 * 1024 * 1024
    max_depth: int = 100


LIMITS = Limits()
"""The limits that hold unless others are given."""


class _Fault:
    """Stands in the tree where the text holds something that JSON does not allow."""

    def __init__(self, reason: str, key: str | None = None) -> None:
        self.reason = reason
        self.key = key


class _Parser:
    """Reads JSON text into a tree, with a mark at every fault."""

    def __init__(self) -> None:
        self.has_faults = False

    def parse(self, text: str) -> Any:
        """The tree of a text; numbers are left as they are written."""
        return json.loads(
            text,
            object_pairs_hook=self._object,
            parse_constant=lambda name: self._fault(f"{name} is not a JSON number"),
            parse_int=self._number,
            parse_float=self._number,
        )

    def _fault(self, reason: str, key: str | None = None) -> _Fault:
        self.has_faults = True
        return _Fault(reason, key)

    def _object(self, pairs: list[tuple[str, Any]]) -> Any:
        found = dict(pairs)
        if len(found) == len(pairs):
            return found
        seen: set[str] = set()
        doubled = next(key for key, _ in pairs if key in seen or seen.add(key))
        return self._fault("the key stands here twice", doubled)

    def _number(self, digits: str) -> Any:
        fault = number_fault(digits)
        return digits if fault is None else self._fault(fault)


def to_bytes(data: bytes | bytearray | memoryview | str) -> bytes:
    """The bytes of a document that may have come as text."""
    try:
        return data.encode() if isinstance(data, str) else bytes(data)
    except UnicodeEncodeError as error:
        raise DecodeError(f"lone surrogate at character {error.start}") from None


def check_json(data: bytes, limits: Limits = LIMITS) -> None:
    """Refuse what is not JSON, what exceeds the limits, and objects with two keys of one name."""
    if len(data) > limits.max_bytes:
        raise LimitError(f"{len(data)} bytes; at most {limits.max_bytes} are read")
    if data.count(b"{") + data.count(b"[") > limits.max_depth:
        _check_depth(data, limits)
    parser = _Parser()
    tree = _parse(data, parser, limits)
    if parser.has_faults or _SURROGATE.search(data):
        for steps, reason in _faults(tree, []):
            raise DecodeError(reason, path=_path(steps))
    try:
        _read_any(data)
    except msgspec.DecodeError as error:
        reason, path = split_reason(error)
        raise DecodeError(reason, path=path) from None


def _check_depth(data: bytes, limits: Limits) -> None:
    path = path_deeper_than(data, limits.max_depth)
    if path is not None:
        shown = path if len(path) <= _PATH_SHOWN else f"{path[:_PATH_SHOWN]}..."
        raise LimitError(f"nested deeper than {limits.max_depth} levels", path=shown)


def _parse(data: bytes, parser: _Parser, limits: Limits) -> Any:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        reason = f"not UTF-8 at byte {error.start}"
        raise DecodeError(reason, path=path_at(data, error.start)) from None
    try:
        return parser.parse(text)
    except json.JSONDecodeError as error:
        offset = len(text[: error.pos].encode())
        reason = f"not JSON: {error.msg[:1].lower()}{error.msg[1:]} at byte {offset}"
        raise DecodeError(reason, path=path_at(data, offset)) from None
    except RecursionError:
        _check_depth(data, Limits(max_depth=_STACK))
        raise LimitError(f"nested deeper than {limits.max_depth} levels") from None


def _faults(tree: Any, steps: list[str | int]) -> Iterator[tuple[list[str | int], str]]:
    """The steps to every fault, and what it is; the list of steps is the caller's to read only."""
    match tree:
        case _Fault():
            yield steps if tree.key is None else [*steps, tree.key], tree.reason
        case str():
            if not _is_unicode(tree):
                yield steps, "a lone surrogate is not text"
        case dict():
            for key, value in cast("dict[str, Any]", tree).items():
                if not _is_unicode(key):
                    yield steps, "a key holds a lone surrogate"
                yield from _inside(value, key, steps)
        case list():
            for index, value in enumerate(cast("list[Any]", tree)):
                yield from _inside(value, index, steps)
        case _:
            return


def _inside(
    value: Any, step: str | int, steps: list[str | int]
) -> Iterator[tuple[list[str | int], str]]:
    steps.append(step)
    yield from _faults(value, steps)
    steps.pop()


def _path(steps: list[str | int]) -> str:
    path = "$"
    for step in steps:
        path = join(path, step)
    return path


def _is_unicode(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
