"""Residue: what a foreign record contains beyond what its entries alone would write.

A record that was read is written again from its entries alone; the difference is stored beside the
first entry. So writing it back is exact by construction, and the same difference is the list of
what the canonical form cannot represent. A residue applies only to entries that have not changed
since: it carries a digest of what they alone would write. Exports are checked in the same way: what
is written is read back, and every difference is a loss.
"""

import hashlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import msgspec
from msgspec import UNSET

from metis.canonical.json_value import join_path
from metis.canonical.value import canonical_bytes
from metis.interchange.conversion import make_loss
from metis.projection.loss import Change, Loss
from metis.store.entries import KnownEntry, MessageEntry

Steps = tuple[str | int, ...]
"""Keys and indexes from the top of a record to a value."""

_write_sorted = msgspec.json.Encoder(order="sorted").encode
_read_json = msgspec.json.Decoder().decode
_NOT_COMPARED = frozenset({"id", "session_id", "schema_version", "seq", "external"})
# Hints steer caches and carry no content; raw parts are for one adapter only.
_METADATA_NOT_COMPARED = frozenset(
    {"external", "hints", "origin", "parent_tool_use_id", "parents", "provider_raw"}
)
_ID_FIELDS = {"tool_use": "id", "tool_result": "tool_use_id"}
_MESSAGE_ID_FIELDS = frozenset({"message_id", "first_kept_id", "head_id", "to_id"})


_encode = msgspec.json.Encoder(order="deterministic").encode


class Difference(NamedTuple):
    """One path at which two JSON values differ; UNSET stands for an absent value."""

    steps: Steps
    expected: Any
    actual: Any

    @property
    def key(self) -> str:
        """The last key or index of the path; empty at the top."""
        return str(self.steps[-1]) if self.steps else ""


def differences(expected: Any, actual: Any) -> list[Difference]:
    """Return every difference of two JSON values; `1` is not `1.0`."""
    collected: list[Difference] = []
    _collect(expected, actual, (), collected)
    return collected


def _collect(expected: Any, actual: Any, steps: Steps, collected: list[Difference]) -> None:
    kind = cast("type[object]", type(actual))
    # `True == 1` in Python, but they are different JSON.
    if type(expected) is not kind:
        collected.append(Difference(steps, expected, actual))
    elif kind is dict:
        first, second = cast("dict[str, Any]", expected), cast("dict[str, Any]", actual)
        for key in first:
            if key not in second:
                collected.append(Difference((*steps, key), first[key], UNSET))  # noqa: PERF401 - hot
        for key, value in second.items():
            _collect(first.get(key, UNSET), value, (*steps, key), collected)
    # Lists are not aligned: a guess which item moved where would be wrong sometimes.
    elif kind is list and len(cast("list[Any]", expected)) == len(cast("list[Any]", actual)):
        items, others = cast("list[Any]", expected), cast("list[Any]", actual)
        for index, (item, other) in enumerate(zip(items, others, strict=True)):
            _collect(item, other, (*steps, index), collected)
    elif kind is list or expected != actual:
        collected.append(Difference(steps, expected, actual))


def is_same(first: object, second: object) -> bool:
    """Return whether two values have the same type and are equal."""
    return type(first) is type(second) and first == second


def make_residue(expected: Any, actual: Any, changes: Sequence[Difference]) -> dict[str, Any]:
    """Return what turns `expected` into `actual`, key order included; empty if they are equal."""
    residue: dict[str, Any] = {}
    if values := [[list(d.steps), d.actual] for d in changes if d.actual is not UNSET]:
        residue["set"] = values
    if dropped := [list(d.steps) for d in changes if d.actual is UNSET]:
        residue["drop"] = dropped
    orders: list[tuple[Steps, list[str]]] = []
    _collect_orders(expected, actual, (), orders)
    if orders:
        residue["order"] = [[list(steps), keys] for steps, keys in orders]
    return residue | {"of": _digest(expected)} if residue else {}


def apply_residue(expected: Any, residue: dict[str, Any]) -> Any | None:
    """Return the record that a residue was made from; None if its entries have changed since."""
    if residue.get("of") != _digest(expected):
        return None
    record = _patched(expected, residue)
    for steps, keys in residue.get("order", ()):
        target = _at(record, steps)
        ordered = {key: target[key] for key in keys}
        target.clear()
        target.update(ordered)
    return record


def _digest(expected: Any) -> str:
    # Half of the digest is enough to notice an edit, and keeps stored messages small.
    return hashlib.sha256(_write_sorted(expected)).hexdigest()[:32]


def _patched(expected: Any, residue: dict[str, Any]) -> Any:
    # The wrapper lets a patch replace the top-level value as well.
    record = {"": _copy(expected)}
    for steps, value in residue.get("set", ()):
        *parents, last = ["", *steps]
        _at(record, parents)[last] = _copy(value)
    for steps in residue.get("drop", ()):
        *parents, last = ["", *steps]
        del _at(record, parents)[last]
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


def _collect_orders(
    expected: Any, actual: Any, steps: Steps, orders: list[tuple[Steps, list[str]]]
) -> None:
    """Collect the objects whose keys `_patched` would leave in another order than `actual`."""
    if type(actual) is dict:
        second = cast("dict[str, Any]", actual)
        keys = list(second)
        if type(expected) is dict:
            first = cast("dict[str, Any]", expected)
            patched = [key for key in first if key in second]
            patched += [key for key in keys if key not in first]
        else:
            # A store sorts the keys of free values, such as those that a residue sets.
            first, patched = {}, sorted(keys)
        if patched != keys:
            orders.append((steps, keys))
        for key, value in second.items():
            if type(value) is dict or type(value) is list:
                _collect_orders(first.get(key), value, (*steps, key), orders)
    elif type(actual) is list:
        second_items = cast("list[Any]", actual)
        items: list[Any] = cast("list[Any]", expected) if type(expected) is list else []
        is_set = len(items) != len(second_items)
        for index, value in enumerate(second_items):
            if type(value) is dict or type(value) is list:
                _collect_orders(None if is_set else items[index], value, (*steps, index), orders)


class Comparison:
    """Compares written entries with what is read back; knows the positions of all so far."""

    def __init__(self, adapter: str, system: str) -> None:
        self._adapter = adapter
        self._system = system
        self._written_positions: dict[str, int] = {}
        self._read_positions: dict[str, int] = {}

    def losses(
        self, written: Sequence[KnownEntry], read_back: Sequence[KnownEntry]
    ) -> Iterator[Loss]:
        """Yield a loss for each difference between entries and their record as it is read."""
        if len(written) != len(read_back):
            for entry in written:
                reason = f"{len(written)} entries are read back as {len(read_back)}"
                yield _loss(entry, self._adapter, reason, Change.ALTERED)
            return
        for entry, again in zip(written, read_back, strict=True):
            position = len(self._written_positions)
            self._written_positions[entry.id] = self._read_positions[again.id] = position
            facts = _facts(entry, self._written_positions)
            for difference in _entry_differences(_facts(again, self._read_positions), facts):
                # Entries of a document without times have the time of the import, which is no loss.
                if difference.steps != ("created_at",) or not self._is_imported(entry):
                    yield _difference_loss(entry, difference, self._adapter)

    def _is_imported(self, entry: KnownEntry) -> bool:
        if isinstance(entry, MessageEntry):
            return entry.message.metadata.origin == f"import:{self._system}"
        return entry.external is not None and self._system in entry.external


def _facts(entry: KnownEntry, positions: Mapping[str, int]) -> dict[str, Any]:
    """Return the comparable content of an entry.

    Every system gives its own ids, so a reference to a message is compared by its position.
    """
    if isinstance(entry, MessageEntry):
        tree = _read_json(canonical_bytes(entry.message))
        metadata = tree.get("metadata", {})
        tree["metadata"] = {
            key: value for key, value in metadata.items() if key not in _METADATA_NOT_COMPARED
        }
        if "parents" in metadata:
            tree["metadata"]["parents"] = [positions.get(parent) for parent in metadata["parents"]]
        for block in tree["content"]:
            # Tool ids are renamed by every import, so they cannot be compared.
            block.pop(_ID_FIELDS.get(block.get("type")), None)
    else:
        tree = _read_json(canonical_bytes(entry))
        for key in _MESSAGE_ID_FIELDS & tree.keys():
            tree[key] = positions.get(tree[key])
    return {key: value for key, value in tree.items() if key not in _NOT_COMPARED}


def _entry_differences(read_back: Any, written: Any) -> Iterator[Difference]:
    for difference in differences(read_back, written):
        if difference.steps[-1:] == ("content",) and isinstance(difference.actual, list):
            yield from _block_differences(difference)
        else:
            yield difference


def _block_differences(difference: Difference) -> Iterator[Difference]:
    """Yield the blocks that are on one side only, for content lists of different lengths."""
    expected = cast("list[Any]", difference.expected or [])
    # By their JSON: comparing each block with all others would take quadratic time.
    positions: dict[bytes, deque[int]] = {}
    for index, block in enumerate(expected):
        positions.setdefault(_encode(block), deque()).append(index)
    matched: set[int] = set()
    for index, block in enumerate(cast("list[Any]", difference.actual)):
        same = positions.get(_encode(block))
        if same:
            matched.add(same.popleft())
        else:
            yield Difference((*difference.steps, index), UNSET, block)
    if len(matched) < len(expected):
        unmatched = [block for index, block in enumerate(expected) if index not in matched]
        yield Difference(difference.steps, unmatched, UNSET)


def _difference_loss(entry: KnownEntry, difference: Difference, adapter: str) -> Loss:
    steps, read_back, written = difference
    if read_back is UNSET:
        reason, change = f"{adapter} cannot represent it", Change.DROPPED
    elif written is UNSET:
        reason, change = f"{adapter} adds it", Change.SYNTHESISED
    else:
        reason, change = f"{adapter} changes it", Change.ALTERED
    return _loss(entry, adapter, reason, change, steps)


def _type_at(entry: KnownEntry, steps: Steps) -> str:
    if isinstance(entry, MessageEntry) and steps[:1] == ("content",) and len(steps) > 1:
        index = steps[1]
        if isinstance(index, int) and index < len(entry.message.content):
            return entry.message.content[index].type
    keys = [step for step in steps if isinstance(step, str)]
    return keys[-1] if keys else str(entry.__struct_config__.tag)


def _loss(entry: KnownEntry, adapter: str, reason: str, change: Change, steps: Steps = ()) -> Loss:
    path = json_path("$", steps)
    return make_loss(entry, adapter, _type_at(entry, steps), path, reason, change=change)


def json_path(path: str, steps: Steps) -> str:
    """Return a path extended by steps."""
    for step in steps:
        path = join_path(path, step)
    return path
