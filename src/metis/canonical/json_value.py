"""JSON values: paths of parts of a document, and checks of what JSON allows.

A path has the form `$.content[2].input["odd key"]`; `$` is the whole document. Paths are computed
only for errors, so that the code prefers clarity to speed; time and memory are linear in the text.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from types import NoneType
from typing import Any, cast

# Possessive quantifiers: the scan never backtracks, so hostile text takes linear time.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[{}\[\],:]|[^\s{}\[\],:"]++', re.DOTALL)
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_STEP = re.compile(r'\.([A-Za-z_][A-Za-z0-9_]*)|\[(\d{1,18})\]|\[("(?:[^"\\]|\\.)*+")\]')
_MAX_LEVELS = 1_000
"""The depth up to which paths are tracked; documents may have a tenth of it."""


def join_path(path: str, step: str | int) -> str:
    """Extend a path by a step: a key of an object, or an index of an array."""
    if isinstance(step, int):
        return f"{path}[{step}]"
    if _PLAIN_KEY.fullmatch(step):
        return f"{path}.{step}"
    return f"{path}[{json.dumps(step, ensure_ascii=False)}]"


def path_at(data: bytes, offset: int) -> str:
    """Return the path of the innermost value at an offset; the text may be invalid JSON."""
    scan = _TokenScan()
    for match in _TOKEN.finditer(data):
        if match.start() > offset:
            break
        scan.read(match.group())
    return scan.path()


def path_deeper_than(data: bytes, depth: int) -> str | None:
    """Return the path of the first value that is nested deeper than `depth`; None if none is."""
    scan = _TokenScan()
    for match in _TOKEN.finditer(data):
        scan.read(match.group())
        if len(scan.levels) > depth:
            return scan.path()
    return None


def line_of(data: bytes, path: str) -> int:
    """Return the line, starting at 1, where the value at a path or its nearest ancestor begins."""
    return lines_of(data, [path])[path]


def lines_of(data: bytes, paths: Iterable[str]) -> dict[str, int]:
    """Return, by path, the line where its value or the nearest ancestor of it begins.

    The text is scanned once for all paths, and only values on one of the paths are tracked.
    """
    # The paths form a tree: `nodes` maps a parent node and a step to a node; 0 is the document.
    nodes: dict[tuple[int, str | int], int] = {}
    path_nodes = {path: _add_path(nodes, path) for path in paths}
    offsets: dict[int, int] = {}
    scan = _TokenScan()
    # The nodes of the open objects and arrays; None for those that are not on a path.
    node_at: list[int | None] = []
    for match in _TOKEN.finditer(data):
        begins_value = scan.read(match.group())
        del node_at[len(scan.levels) :]
        if not begins_value:
            continue
        node: int | None = 0
        is_container = match.group() in (b"{", b"[")
        if node_at:
            parent_level = len(scan.levels) - 1 - is_container
            step, parent = scan.levels[parent_level].step, node_at[parent_level]
            node = None if step is None or parent is None else nodes.get((parent, step))
        if is_container and len(node_at) < len(scan.levels):
            node_at.append(node)
        if node is not None:
            offsets.setdefault(node, match.start())
            if len(offsets) > len(nodes):
                break
    starts = {path: max(offsets.get(node, 0) for node in way) for path, way in path_nodes.items()}
    lines: dict[int, int] = {}
    position, line = 0, 1
    for offset in sorted(set(starts.values())):
        line += data.count(b"\n", position, offset)
        position = offset
        lines[offset] = line
    return {path: lines[offset] for path, offset in starts.items()}


def _add_path(nodes: dict[tuple[int, str | int], int], path: str) -> list[int]:
    """Add the steps of a path to the tree; return the nodes from the document to its value."""
    node, path_nodes = 0, [0]
    for match in _STEP.finditer(path, 1):
        name, number, quoted = match.groups()
        step = name or (int(number) if number else _text(quoted.encode()))
        node = nodes.setdefault((node, step), len(nodes) + 1)
        path_nodes.append(node)
    return path_nodes


class _Level:
    """One open object or array, with the step to the current value and the count of values."""

    __slots__ = ("count", "expects_key", "is_object", "keys", "step")

    def __init__(self, *, is_object: bool) -> None:
        self.is_object = is_object
        self.expects_key = is_object
        self.keys: set[str] | None = set() if is_object else None
        self.step: str | int | None = None
        self.count = 0


class _TokenScan:
    """Reads the tokens of JSON text, valid or not, and tracks the path of the current value.

    Values nested deeper than `_MAX_LEVELS` count as part of the value at that depth, because a
    level takes a hundred times the memory of its bracket.
    """

    def __init__(self) -> None:
        self.levels: list[_Level] = []
        self.key_fault: str | None = None
        self._deeper_levels = 0

    def path(self) -> str:
        """Return the path of the current value."""
        path = "$"
        for level in self.levels:
            if level.step is not None:
                path = join_path(path, level.step)
        return path

    def read(self, token: bytes) -> bool:
        """Read the next token; return whether it is the start of a value."""
        level = self.levels[-1] if self.levels else None
        if len(self.levels) >= _MAX_LEVELS and self._is_deeper(token):
            return False
        if token in (b"}", b"]"):
            if level is not None:
                self.levels.pop()
            return False
        if token == b",":
            if level is not None:
                level.expects_key = level.is_object
            return False
        if token == b":":
            return False
        if level is not None and level.expects_key:
            self._read_key(level, _text(token))
            return False
        if level is not None and not level.is_object:
            level.step = level.count
            level.count += 1
        if token in (b"{", b"["):
            self.levels.append(_Level(is_object=token == b"{"))
        return True

    def _is_deeper(self, token: bytes) -> bool:
        if token in (b"{", b"["):
            self._deeper_levels += 1
            return True
        if self._deeper_levels and token in (b"}", b"]"):
            self._deeper_levels -= 1
            return True
        return self._deeper_levels > 0

    def _read_key(self, level: _Level, key: str) -> None:
        level.expects_key = False
        if not _is_unicode(key):
            # A path cannot contain such a key, so that the path is that of the object.
            level.step, self.key_fault = None, "a key contains a lone surrogate"
            return
        keys = level.keys
        if keys is not None:
            if key in keys:
                self.key_fault = "the key appears twice"
            keys.add(key)
        level.step = key


def _text(token: bytes) -> str:
    try:
        text = json.loads(token)
    except ValueError:
        text = token.decode(errors="replace")
    return text if isinstance(text, str) else str(text)


# The limit of int(), which raises an error beyond it.
MAX_DIGITS = 4300
_SCALARS = frozenset({str, int, bool, NoneType})


def is_json(value: object) -> bool:
    """Return whether a value consists of plain JSON types; a fast check for decoded values.

    False does not mean a fault: `json_fault` decides.
    """
    try:
        return _is_json(value)
    # Nested too deeply; `json_fault` returns the path.
    except RecursionError:
        return False


def _is_json(value: object) -> bool:
    # Exact types: a subclass of str or int may encode differently.
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
    """Return why a text is not JSON: bad syntax, duplicate keys, NaN; None if it is JSON."""
    try:
        parse_strictly(raw.decode())
    except (ValueError, RecursionError) as error:
        return f"not JSON: {error}"
    return None


def parse_strictly(text: str) -> None:
    """Parse JSON only for its errors; also raise ValueError for what only Python accepts."""
    json.loads(
        text,
        object_pairs_hook=_no_duplicates,
        parse_constant=_no_constant,
        # Numbers are not converted: a huge integer would take quadratic time.
        parse_int=_raise_if_out_of_range,
        parse_float=_raise_if_out_of_range,
    )


def json_text_fault_at(data: bytes) -> tuple[str, str] | None:
    """Return the path and the reason of the first fault in a text with the syntax of JSON, or None.

    Faults are duplicate keys, lone surrogates, and numbers that are out of range.
    """
    scan = _TokenScan()
    for match in _TOKEN.finditer(data):
        token = match.group()
        begins_value = scan.read(token)
        fault = scan.key_fault or (_scalar_fault(token) if begins_value else None)
        if fault:
            return scan.path(), fault
    return None


def _scalar_fault(token: bytes) -> str | None:
    if token[:1] == b'"':
        is_text = _is_unicode(_text(token))
        return None if is_text else "a lone surrogate is not valid text"
    if token in (b"NaN", b"Infinity", b"-Infinity"):
        return f"{token.decode()} is not a JSON number"
    return number_fault(token.decode()) if token[:1] in b"-0123456789" else None


def _is_unicode(text: str) -> bool:
    return text.isascii() or _surrogate(text, "$") is None


def number_fault(digits: str) -> str | None:
    """Return why the text of a number is out of range; None if it is not."""
    if digits.lstrip("-").isdigit():
        # msgspec, the second parser, counts the sign like a digit.
        too_long = len(digits) > MAX_DIGITS
        return f"an integer of {len(digits)} digits" if too_long else None
    try:
        return "a number out of range" if math.isinf(float(digits)) else None
    except ValueError:
        # Damaged text may begin like a number: `1e999Z`.
        return f"{digits[:40]!r} is not a JSON number"


def _raise_if_out_of_range(digits: str) -> None:
    fault = number_fault(digits)
    if fault:
        raise ValueError(fault)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> None:
    if len({key for key, _ in pairs}) != len(pairs):
        raise ValueError("an object has two keys of one name")


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def plain_json(value: Any) -> Any:
    """Return a JSON value with other mappings and sequences converted to dicts and lists."""
    if isinstance(value, Mapping):
        entries = cast("Mapping[str, Any]", value)
        return {key: plain_json(item) for key, item in entries.items()}
    if isinstance(value, list | tuple):
        return [plain_json(item) for item in cast("Sequence[Any]", value)]
    return value


def json_fault(value: object, path: str = "$") -> tuple[str, str] | None:
    """Return the path and the fault of the first part that is not JSON; None if all is JSON."""
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
