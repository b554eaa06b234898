"""Residue: what a foreign record holds beyond what our messages alone would write.

A record that was read is written again from its messages alone; the difference is stored beside the
first message. So the way back is exact by construction, and the same difference is the list of
what has no place in the canonical form. A residue applies only to messages that have not changed
since: it carries a digest of what they alone would write. Exports are compared the same way: what
is written is read back, and every difference is a loss.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import msgspec
from msgspec import UNSET

from metis.canonical.json_value import join_path
from metis.canonical.value import canonical_bytes
from metis.projection.loss import Change, Loss
from metis.store.entries import KnownEntry, MessageEntry

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


def make_residue(plain: Any, actual: Any, found: Sequence[Difference]) -> dict[str, Any]:
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


def apply_residue(plain: Any, aside: dict[str, Any]) -> Any | None:
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


_NOT_COMPARED = frozenset({"id", "session_id", "schema_version", "seq", "external"})
# Hints steer caches and say nothing; raw parts are for one adapter only.
_METADATA_NOT_COMPARED = frozenset(
    {"external", "hints", "origin", "parent_tool_use_id", "parents", "provider_raw"}
)
_IDS = {"tool_use": "id", "tool_result": "tool_use_id"}
_LINKS = frozenset({"message_id", "first_kept_id", "head_id", "to_id"})


class Comparison:
    """Compares entries with what comes back; knows the places of all entries so far."""

    def __init__(self, adapter: str, system: str) -> None:
        self._adapter = adapter
        self._system = system
        self._given: dict[str, int] = {}
        self._back: dict[str, int] = {}

    def losses(self, given: Sequence[KnownEntry], back: Sequence[KnownEntry]) -> Iterator[Loss]:
        """What differs between entries and what their record says, one loss for each part."""
        if len(given) != len(back):
            for entry in given:
                reason = f"{len(given)} entries come back as {len(back)}"
                yield _loss(entry, self._adapter, reason, Change.ALTERED)
            return
        for entry, again in zip(given, back, strict=True):
            self._given[entry.id] = self._back[again.id] = len(self._given)
            for difference in _differences(_facts(again, self._back), _facts(entry, self._given)):
                # A document without times got that of its import, which nobody misses.
                if difference.steps != ("created_at",) or not self._came_from_there(entry):
                    yield _loss_of(entry, difference, self._adapter)

    def _came_from_there(self, entry: KnownEntry) -> bool:
        if isinstance(entry, MessageEntry):
            return entry.message.metadata.origin == f"import:{self._system}"
        return entry.external is not None and self._system in entry.external


def _facts(entry: KnownEntry, places: Mapping[str, int]) -> dict[str, Any]:
    """What an entry says; ids, which every system gives anew, are the places of what they name."""
    if isinstance(entry, MessageEntry):
        tree = _read(canonical_bytes(entry.message))
        about = tree.get("metadata", {})
        tree["metadata"] = {
            key: value for key, value in about.items() if key not in _METADATA_NOT_COMPARED
        }
        if "parents" in about:
            tree["metadata"]["parents"] = [places.get(parent) for parent in about["parents"]]
        for block in tree["content"]:
            block.pop(_IDS.get(block.get("type")), None)
    else:
        tree = _read(canonical_bytes(entry))
        for key in _LINKS & tree.keys():
            tree[key] = places.get(tree[key])
    return {key: value for key, value in tree.items() if key not in _NOT_COMPARED}


def _differences(back: Any, given: Any) -> Iterator[Difference]:
    for difference in differences(back, given):
        if difference.steps[-1:] == ("content",) and isinstance(difference.actual, list):
            yield from _missing(difference)
        else:
            yield difference


def _missing(difference: Difference) -> Iterator[Difference]:
    """The blocks of a list that are not among those that came back."""
    left = [*cast("list[Any]", difference.plain or [])]
    for index, block in enumerate(cast("list[Any]", difference.actual)):
        if block in left:
            left.remove(block)
        else:
            yield Difference((*difference.steps, index), UNSET, block)
    if left:
        yield Difference(difference.steps, left, UNSET)


def _loss_of(entry: KnownEntry, difference: Difference, adapter: str) -> Loss:
    steps, back, given = difference
    if back is UNSET:
        reason, change = f"{adapter} has no place for it", Change.DROPPED
    elif given is UNSET:
        reason, change = f"{adapter} says it though nobody did", Change.SYNTHESISED
    else:
        reason, change = f"{adapter} says it in another way", Change.ALTERED
    return _loss(entry, adapter, reason, change, steps)


def _type_of(entry: KnownEntry, steps: Steps) -> str:
    if isinstance(entry, MessageEntry) and steps[:1] == ("content",) and len(steps) > 1:
        index = steps[1]
        if isinstance(index, int) and index < len(entry.message.content):
            return entry.message.content[index].type
    named = [step for step in steps if isinstance(step, str)]
    return named[-1] if named else str(entry.__struct_config__.tag)


def _loss(entry: KnownEntry, adapter: str, reason: str, change: Change, steps: Steps = ()) -> Loss:
    path = "$"
    for step in steps:
        path = join_path(path, step)
    return Loss(
        session_id=entry.session_id,
        message_id=entry.id,
        block_type=_type_of(entry, steps),
        adapter=adapter,
        reason=reason,
        change=change,
        path=path,
    )
