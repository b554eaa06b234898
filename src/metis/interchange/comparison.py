"""Comparison of what was written with what is read back: the losses of an export."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec import UNSET

from metis.canonical.place import join
from metis.canonical.value import write
from metis.interchange.aside import Difference, Steps, differences
from metis.projection.loss import Change, Loss
from metis.store.entries import KnownEntry, MessageEntry

_read = msgspec.json.Decoder().decode
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
        tree = _read(write(entry.message))
        about = tree.get("metadata", {})
        tree["metadata"] = {
            key: value for key, value in about.items() if key not in _METADATA_NOT_COMPARED
        }
        if "parents" in about:
            tree["metadata"]["parents"] = [places.get(parent) for parent in about["parents"]]
        for block in tree["content"]:
            block.pop(_IDS.get(block.get("type")), None)
    else:
        tree = _read(write(entry))
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
        path = join(path, step)
    return Loss(
        session_id=entry.session_id,
        message_id=entry.id,
        block_type=_type_of(entry, steps),
        adapter=adapter,
        reason=reason,
        change=change,
        path=path,
    )
