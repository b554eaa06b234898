"""JSON documents from outside: what is checked before anything is read from them.

msgspec takes the last of two equal keys and stops at the interpreter's stack; here both are errors
that name the place. Only documents that are not canonical already come this way.
"""

import json
from collections.abc import Iterator
from typing import Any, cast

import msgspec
from msgspec import Struct

from metis.canonical.errors import DecodeError, LimitError
from metis.canonical.place import join, path_at, path_deeper_than
from metis.canonical.reader import split_reason

_PATH_SHOWN = 80
_read_any = msgspec.json.Decoder().decode


class Limits(Struct, frozen=True):
    """How large and how deeply nested a document may be.

    Canonical bytes are bounded in depth by the interpreter alone (about a thousand levels); all
    other documents, and so all that was made by hand, by `max_depth`.
    """

    max_bytes: int = 256 * 1024 * 1024
    max_depth: int = 100


LIMITS = Limits()
"""The limits that hold unless others are given."""


class _Fault:
    """Stands in the tree where the text holds something that JSON does not allow."""

    def __init__(self, reason: str, key: str | None = None) -> None:
        self.reason = reason
        self.key = key


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
    tree = _parse(data)
    for path, reason in _faults(tree, "$"):
        raise DecodeError(reason, path=path)
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


def _parse(data: bytes) -> Any:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        reason = f"not UTF-8 at byte {error.start}"
        raise DecodeError(reason, path=path_at(data, error.start)) from None
    try:
        return json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=lambda name: _Fault(f"{name} is not a JSON number"),
            parse_int=str,
            parse_float=str,
        )
    except json.JSONDecodeError as error:
        offset = len(text[: error.pos].encode())
        reason = f"not JSON: {error.msg[:1].lower()}{error.msg[1:]} at byte {offset}"
        raise DecodeError(reason, path=path_at(data, offset)) from None


def _object(pairs: list[tuple[str, Any]]) -> Any:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    seen: set[str] = set()
    doubled = next(key for key, _ in pairs if key in seen or seen.add(key))
    return _Fault("the key stands here twice", doubled)


def _faults(tree: Any, path: str) -> Iterator[tuple[str, str]]:
    match tree:
        case _Fault():
            yield path if tree.key is None else join(path, tree.key), tree.reason
        case str():
            if not _is_unicode(tree):
                yield path, "a lone surrogate is not text"
        case dict():
            for key, value in cast("dict[str, Any]", tree).items():
                if not _is_unicode(key):
                    yield path, "a key holds a lone surrogate"
                yield from _faults(value, join(path, key))
        case list():
            for index, value in enumerate(cast("list[Any]", tree)):
                yield from _faults(value, join(path, index))
        case _:
            return


def _is_unicode(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
