"""Derive almost valid JSON bodies from valid exchanges.

A part is removed, duplicated, moved, or replaced by a value of the same key elsewhere or by an
unrelated value. Such a body must be refused or must pass through unchanged.
"""

import copy
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, cast

_ODD: tuple[Any, ...] = (
    None,
    "",
    "  ",
    "x",
    0,
    -1,
    1.5,
    1 << 40,
    True,
    False,
    [],
    [None],
    [{}],
    ["x", 1],
    {},
    {"a": 1},
)
_KEYS = ("id", "index", "metadata", "name", "type", "unheard_of")
_MOST = 300
_MOST_CHANGES = 3
Path = tuple[str | int, ...]


class Mutation:
    """Changes bodies, using parts of other bodies as replacements."""

    def __init__(self, bodies: Iterable[Any], seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - a test that can be run again
        self._parts: dict[Any, list[Any]] = defaultdict(list)
        for body in bodies:
            for path in _paths(body):
                found = self._parts[_kind(path)]
                if len(found) < _MOST:
                    found.append(_at(body, path))

    def of(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return a changed copy of a body."""
        changed = copy.deepcopy(body)
        for _ in range(self._random.randint(1, _MOST_CHANGES)):
            paths = [path for path in _paths(changed) if path]
            if paths:
                path = self._random.choice(paths)
                self._change(_at(changed, path[:-1]), path)
        return changed

    def _change(self, parent: Any, path: Path) -> None:
        key, chance = path[-1], self._random.random()
        if chance < 0.5:
            parent[key] = self._copy(self._parts.get(_kind(path)) or _ODD)
        elif chance < 0.7:
            del parent[key]
        elif chance < 0.85:
            parent[key] = self._copy(_ODD)
        elif isinstance(parent, dict):
            parent[self._random.choice(_KEYS)] = self._copy(_ODD)
        elif self._random.random() < 0.5:
            self._random.shuffle(parent)
        else:
            parent.insert(key, copy.deepcopy(parent[key]))

    def _copy(self, values: Any) -> Any:
        return copy.deepcopy(self._random.choice(values))


def _paths(value: Any, path: Path = ()) -> Iterator[Path]:
    yield path
    for key, part in _children(value):
        yield from _paths(part, (*path, key))


def _children(value: Any) -> Iterable[tuple[str | int, Any]]:
    if isinstance(value, dict):
        return cast("dict[str | int, Any]", value).items()
    return enumerate(cast("list[Any]", value)) if isinstance(value, list) else ()


def _at(value: Any, path: Path) -> Any:
    for key in path:
        value = value[key]
    return value


def _kind(path: Path) -> tuple[str, bool]:
    """Return the kind of a place: the nearest key, and whether the place is inside a list there."""
    named = next((key for key in reversed(path) if isinstance(key, str)), "")
    return named, bool(path) and not isinstance(path[-1], str)
