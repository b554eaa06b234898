"""Asides: what a foreign record says that our messages alone would not make us write.

A record that was read is written again from its messages alone; the difference to what stood there
is kept beside the first message. So the way back is exact by construction, and the same difference
is the list of what has no place in the canonical form. An aside belongs to messages that have not
changed since: a digest of what they alone would write tells.
"""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import msgspec
from msgspec import UNSET

Steps = tuple[str | int, ...]
"""Keys and indexes from the top of a record to a value."""

_sorted = msgspec.json.Encoder(order="sorted").encode
_read = msgspec.json.Decoder().decode


class Difference(NamedTuple):
    """One place where two JSON values differ; UNSET stands for nothing."""

    steps: Steps
    plain: Any
    actual: Any


def differences(plain: Any, actual: Any, steps: Steps = ()) -> Iterator[Difference]:
    """Every place where `actual` says something else than `plain`; `1` is not `1.0`."""
    if isinstance(plain, dict) and isinstance(actual, dict):
        ours, theirs = cast("dict[str, Any]", plain), cast("dict[str, Any]", actual)
        for key in ours.keys() - theirs.keys():
            yield Difference((*steps, key), ours[key], UNSET)
        for key, value in theirs.items():
            yield from differences(ours.get(key, UNSET), value, (*steps, key))
    elif isinstance(plain, list) and isinstance(actual, list):
        mine, other = cast("list[Any]", plain), cast("list[Any]", actual)
        if len(mine) != len(other):
            yield Difference(steps, mine, other)
            return
        for index, (one, two) in enumerate(zip(mine, other, strict=True)):
            yield from differences(one, two, (*steps, index))
    elif not is_same(cast("object", plain), cast("object", actual)):
        yield Difference(steps, plain, actual)


def is_same(one: object, two: object) -> bool:
    """Whether two values of one type are equal; no other kind of equality counts."""
    return type(one) is type(two) and one == two


def make_aside(plain: Any, actual: Any, found: Sequence[Difference]) -> dict[str, Any]:
    """What turns `plain` into `actual`, the order of keys included; empty if nothing is needed."""
    aside: dict[str, Any] = {
        "set": [[list(d.steps), d.actual] for d in found if d.actual is not UNSET],
        "drop": [list(d.steps) for d in found if d.actual is UNSET],
    }
    # A store keeps the keys of free values sorted, so the order is taken after that.
    aside = _read(_sorted(aside))
    aside["order"] = [
        [list(steps), keys] for steps, keys in _orders(_patched(plain, aside), actual)
    ]
    aside = {name: value for name, value in aside.items() if value}
    return aside | {"of": _digest(plain)} if aside else {}


def apply_aside(plain: Any, aside: dict[str, Any]) -> Any | None:
    """The record that an aside was made from; None if `plain` is not what it was then."""
    if aside.get("of") != _digest(plain):
        return None
    record = _patched(plain, aside)
    for steps, keys in aside.get("order", ()):
        target = _at(record, steps)
        ordered = {key: target[key] for key in keys}
        target.clear()
        target.update(ordered)
    return record


def _digest(plain: Any) -> str:
    return hashlib.sha256(_sorted(plain)).hexdigest()[:32]


def _patched(plain: Any, aside: dict[str, Any]) -> Any:
    record = {"": _copy(plain)}
    for steps, value in aside.get("set", ()):
        *way, last = ["", *steps]
        _at(record, way)[last] = _copy(value)
    for steps in aside.get("drop", ()):
        *way, last = ["", *steps]
        del _at(record, way)[last]
    return record[""]


def _at(value: Any, steps: Sequence[str | int]) -> Any:
    for step in steps:
        value = value[step]
    return value


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_copy(item) for item in cast("list[Any]", value)]
    return value


def _orders(patched: Any, actual: Any, steps: Steps = ()) -> Iterator[tuple[Steps, list[str]]]:
    if isinstance(patched, dict):
        ours, theirs = cast("dict[str, Any]", patched), cast("dict[str, Any]", actual)
        if list(ours) != list(theirs):
            yield steps, list(theirs)
        for key, value in theirs.items():
            yield from _orders(ours[key], value, (*steps, key))
    elif isinstance(patched, list):
        for index, value in enumerate(cast("list[Any]", patched)):
            yield from _orders(value, actual[index], (*steps, index))
