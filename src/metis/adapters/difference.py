"""Differences between two JSON values, each with its place."""

from collections.abc import Iterator
from typing import Any, cast

from metis.canonical.place import join
from metis.canonical.tool_schema import describe

_Object = dict[str, Any]


def differences(before: Any, after: Any, path: str = "$") -> Iterator[str]:
    """What is not the same after as before; `1`, `1.0` and `true` are three different values."""
    if type(before) is not type(after):
        yield f"{path}: was {describe(before)}, is {describe(after)}"
    elif isinstance(before, dict):
        yield from _of_objects(cast("_Object", before), cast("_Object", after), path)
    elif isinstance(before, list):
        yield from _of_arrays(cast("list[Any]", before), cast("list[Any]", after), path)
    elif before != after:
        yield f"{path}: was {describe(before)}, is {describe(after)}"


def _of_objects(before: _Object, after: _Object, path: str) -> Iterator[str]:
    for key, value in before.items():
        if key in after:
            yield from differences(value, after[key], join(path, key))
        else:
            yield f"{join(path, key)}: is gone"
    yield from (f"{join(path, key)}: is new" for key in after if key not in before)


def _of_arrays(before: list[Any], after: list[Any], path: str) -> Iterator[str]:
    for index, (one, other) in enumerate(zip(before, after, strict=False)):
        yield from differences(one, other, join(path, index))
    if len(before) != len(after):
        yield f"{path}: was {describe(before)}, is {describe(after)}"
