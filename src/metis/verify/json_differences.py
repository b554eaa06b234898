"""Differences of JSON values, with the path of each."""

from collections.abc import Iterator
from typing import Any, cast

from metis.canonical.json_value import join_path
from metis.canonical.schema.subset import describe

_Object = dict[str, Any]


def differences(before: Any, after: Any, path: str = "$") -> Iterator[str]:
    """Yield the paths at which JSON values differ; `1`, `1.0` and `true` are different."""
    if type(before) is not type(after):
        yield f"{path}: was {describe(before)}, is {describe(after)}"
    elif isinstance(before, dict):
        yield from _object_differences(cast("_Object", before), cast("_Object", after), path)
    elif isinstance(before, list):
        yield from _array_differences(cast("list[Any]", before), cast("list[Any]", after), path)
    elif before != after:
        yield f"{path}: was {describe(before)}, is {describe(after)}"


def _object_differences(before: _Object, after: _Object, path: str) -> Iterator[str]:
    for key, value in before.items():
        if key in after:
            yield from differences(value, after[key], join_path(path, key))
        else:
            yield f"{join_path(path, key)}: is missing"
    yield from (f"{join_path(path, key)}: is new" for key in after if key not in before)


def _array_differences(before: list[Any], after: list[Any], path: str) -> Iterator[str]:
    for index, (first, second) in enumerate(zip(before, after, strict=False)):
        yield from differences(first, second, join_path(path, index))
    if len(before) != len(after):
        yield f"{path}: was {describe(before)}, is {describe(after)}"
