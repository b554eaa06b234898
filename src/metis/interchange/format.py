"""Format: the base of every foreign document format, which reads and writes with complete losses.

Both directions check themselves. What is read is written again, and every difference is stored as
a residue, to write the record back, and, unless it is equivalent, reported. What is written is
read again, and every difference is reported. So no loss can be forgotten.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, cast

from msgspec import UNSET
from msgspec.structs import replace

from metis.canonical.errors import DecodeError
from metis.canonical.message import Message
from metis.interchange.conversion import (
    ConversionContext,
    foreign_fields,
    make_loss,
    with_foreign_fields,
)
from metis.interchange.document import (
    Record,
    array_records,
    as_bytes,
    foreign_error,
    line_records,
    read_json,
)
from metis.interchange.residue import (
    Comparison,
    Difference,
    Steps,
    apply_residue,
    differences,
    is_same,
    json_path,
    make_residue,
)
from metis.projection.loss import Change, Loss
from metis.store.entries import (
    AnyEntry,
    KnownEntry,
    MessageEntry,
    UnknownEntry,
    decode_trusted_entry,
    encode_entry,
)
from metis.wire.call import RequestContext
from metis.wire.json_access import Wire, maybe_list, maybe_object


class LoadedDocument(NamedTuple):
    """The entries of a document in order, and what the canonical form cannot represent."""

    entries: tuple[KnownEntry, ...]
    losses: list[Loss]

    @property
    def messages(self) -> list[Message]:
        """The messages among the entries."""
        return [entry.message for entry in self.entries if isinstance(entry, MessageEntry)]


class WrittenDocument(NamedTuple):
    """A document, and what it could not hold."""

    data: bytes
    losses: list[Loss]


class Format(ABC):
    """One document format; each of its records stands for one or several entries."""

    name: ClassVar[str]
    system: ClassVar[str]
    """The program that writes it; several formats may share one."""
    default_values: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    """Values of keys that mean the same as an absent key."""

    @abstractmethod
    def fits(self, data: bytes) -> bool:
        """Return whether a document looks like one of this format."""

    def split(self, data: bytes) -> Iterable[Record]:
        """Return the records of a document; here one per line."""
        return line_records(data, self.name)

    def join(self, records: list[Wire], entries: Sequence[KnownEntry]) -> bytes:  # noqa: ARG002 - for subclasses
        """Return the document of records; here one per line, with the spacing of Python."""
        lines = [json.dumps(record, ensure_ascii=False) + "\n" for record in records]
        return "".join(lines).encode()

    @abstractmethod
    def decode(self, record: Wire, conversion: ConversionContext) -> list[KnownEntry]:
        """Return the entries of a record; at least one."""

    @abstractmethod
    def encode(self, entries: Sequence[KnownEntry], conversion: ConversionContext) -> Wire | None:
        """Return the record of entries that belong together; None if the format has none."""

    def is_equivalent(self, difference: Difference) -> bool:
        """Return whether both values mean the same; such a difference is not a loss."""
        defaults = (UNSET, *self.default_values.get(difference.key, ()))
        return _is_among(difference.expected, defaults) and _is_among(difference.actual, defaults)

    def load(self, data: bytes | str, context: RequestContext | None = None) -> LoadedDocument:
        """Read a document.

        Raises:
            ForeignDocumentError: it is not of this format; line and path say where.
        """
        conversion = ConversionContext(self.name, self.system, context or RequestContext())
        entries: list[KnownEntry] = []
        for record in self.split(as_bytes(data)):
            entries += self._load_record(record, conversion)
        return LoadedDocument(tuple(entries), conversion.losses)

    def dump(self, entries: Iterable[AnyEntry | Message]) -> WrittenDocument:
        """Write a document; what it cannot hold is in the losses."""
        items = list(entries)
        known_entries = [entry_of(item) for item in items if not isinstance(item, UnknownEntry)]
        context = RequestContext()
        if known_entries:
            context = RequestContext(session_id=known_entries[0].session_id)
        writer = ConversionContext(self.name, self.system, context)
        for item in items:
            if isinstance(item, UnknownEntry):
                reason = "an entry of a kind that this version does not know"
                writer.add_loss(item, item.type, "$", reason, Change.DROPPED)
        # A second context reads the output back: it must not use the state of the writer.
        reader = ConversionContext(self.name, self.system, context)
        comparison = Comparison(self.name, self.system)
        known_entries = self.prepare(known_entries, writer)
        records: list[Wire] = []
        for group in group_by_record(known_entries, self.system):
            record = self._dump_group(group, writer)
            read_back = None if record is None else self._read_back(record, reader)
            if record is None or read_back is None:
                reason = f"{self.name} has no record for it"
                writer.losses += [self._loss(entry, reason, Change.DROPPED) for entry in group]
                continue
            writer.losses += comparison.losses(group, read_back)
            records.append(record)
        return WrittenDocument(self.join(records, known_entries), writer.losses)

    def prepare(self, entries: list[KnownEntry], conversion: ConversionContext) -> list[KnownEntry]:  # noqa: ARG002 - for subclasses
        """Return the entries in the order in which they are written, before the first is."""
        return entries

    def _load_record(self, record: Record, conversion: ConversionContext) -> list[KnownEntry]:
        before = len(conversion.losses)
        try:
            # Encoded and decoded once, so that the residue also matches entries that were stored.
            entries = [as_stored(entry) for entry in self.decode(record.value, conversion)]
        except DecodeError as error:
            path = record.path + error.path.removeprefix("$")
            raise foreign_error(error, self.name, path, record.line_of(path)) from None
        # Decoders report paths inside of their record; readers need them inside of the document.
        conversion.losses[before:] = [
            replace(loss, path=record.path + loss.path.removeprefix("$"))
            for loss in conversion.losses[before:]
        ]
        # What the entries alone would write; everything else in the record is residue.
        encoded = self.encode(entries, conversion)
        changes = [] if encoded is None else differences(encoded, record.value)
        reported = [loss.path for loss in conversion.losses[before:]]
        for difference in changes:
            path = json_path(record.path, difference.steps)
            if not self.is_equivalent(difference) and not _is_below(path, reported):
                loss = self._residue_loss(difference, path, record.value, entries[0])
                conversion.losses.append(loss)
        residue = {} if encoded is None else make_residue(encoded, record.value, changes)
        if residue:
            entries[0] = with_residue(entries[0], self.system, residue)
        return entries

    def _residue_loss(
        self, difference: Difference, path: str, record: Wire, entry: KnownEntry
    ) -> Loss:
        block_type = _type_at(record, difference.steps)
        if difference.actual is UNSET:
            reason, change = "it is not in the document; a default was added", Change.SYNTHESISED
        else:
            reason = f"not in the canonical form; stored to write it back to {self.system}"
            change = Change.ALTERED
        return make_loss(entry, self.name, block_type, path, reason, change=change)

    def _read_back(self, record: Wire, conversion: ConversionContext) -> list[KnownEntry] | None:
        """Return what a reader would get; None if it could not read the record."""
        try:
            return self.decode(record, conversion)
        except DecodeError:
            return None

    def _dump_group(
        self, group: Sequence[KnownEntry], conversion: ConversionContext
    ) -> Wire | None:
        encoded = self.encode(group, conversion)
        first = group[0]
        if encoded is None:
            return None
        residue = residue_of(first, self.system)
        if not residue:
            return encoded
        record = apply_residue(encoded, residue)
        # The digest does not match: someone edited the message, and old data would contradict it.
        if record is None:
            reason = f"changed since it was read; data that only {self.system} uses is left out"
            conversion.losses.append(self._loss(first, reason, Change.ALTERED))
            return encoded
        return cast("Wire", record)

    def _loss(self, entry: KnownEntry, reason: str, change: Change) -> Loss:
        return make_loss(
            entry, self.name, str(entry.__struct_config__.tag), "$", reason, change=change
        )


class ArrayFormat(Format):
    """A format whose document is a JSON array of records."""

    def split(self, data: bytes) -> Iterable[Record]:
        """Return the items of the array."""
        return array_records(data, read_json(data, self.name), "$", self.name)

    def join(self, records: list[Wire], entries: Sequence[KnownEntry]) -> bytes:  # noqa: ARG002 - of the contract
        """Return the array, indented."""
        return json.dumps(records, ensure_ascii=False, indent=2).encode() + b"\n"


def entry_of(item: KnownEntry | Message) -> KnownEntry:
    """Return an entry as it is; a message as its entry."""
    if not isinstance(item, Message):
        return item
    return MessageEntry(
        id=item.id, session_id=item.session_id, created_at=item.created_at, message=item
    )


def group_by_record(entries: Sequence[KnownEntry], system: str) -> Iterator[list[KnownEntry]]:
    """Yield the entries that came from one record together; all others alone."""
    group: list[KnownEntry] = []
    for entry in entries:
        part = _part(entry, system)
        # Entries that were inserted or removed since break the numbering, and are written alone.
        if group and part and part == _part(group[-1], system) + 1:
            group.append(entry)
            continue
        if group:
            yield group
        group = [entry]
    if group:
        yield group


def _part(entry: KnownEntry, system: str) -> int:
    part = _foreign(entry, system).get("part", 0)
    return part if isinstance(part, int) else 0


def as_stored(entry: KnownEntry) -> KnownEntry:
    """Return an entry as a store would give it back.

    Raises:
        EncodeError, DecodeError: a store could not hold it.
    """
    return decode_trusted_entry(encode_entry(entry))


def residue_of(entry: KnownEntry, system: str) -> dict[str, Any]:
    """Return the stored residue of an entry; empty if there is none."""
    return maybe_object(_foreign(entry, system).get("aside"))


def with_residue(entry: KnownEntry, system: str, residue: Mapping[str, Any]) -> KnownEntry:
    """Return an entry with a residue; `aside` is its name in stored data."""
    foreign = {**_foreign(entry, system), "aside": residue}
    if not isinstance(entry, MessageEntry):
        return replace(entry, external={**(entry.external or {}), system: foreign})
    return replace(entry, message=with_foreign_fields(entry.message, system, foreign))


def _foreign(entry: KnownEntry, system: str) -> Mapping[str, Any]:
    if isinstance(entry, MessageEntry):
        return foreign_fields(entry.message, system)
    return maybe_object(None if entry.external is None else entry.external.get(system))


def _is_among(value: Any, values: tuple[Any, ...]) -> bool:
    return any(is_same(value, other) for other in values)


def _is_below(path: str, reported: Sequence[str]) -> bool:
    # A decoder has already reported the parent, with a more specific reason.
    return any(path == top or path.startswith((f"{top}.", f"{top}[")) for top in reported)


def _type_at(record: Wire, steps: Steps) -> str:
    """Return the `type` of the innermost object on a path that has one; else the last key."""
    block_type = next((step for step in reversed(steps) if isinstance(step, str)), "document")
    value: Any = record
    for step in steps:
        kind = maybe_object(value).get("type")
        block_type = kind if isinstance(kind, str) else block_type
        value = _child(value, step)
    kind = maybe_object(value).get("type")
    return kind if isinstance(kind, str) else block_type


def _child(value: Any, step: str | int) -> Any:
    items = maybe_list(value)
    if isinstance(step, int):
        return items[step] if step < len(items) else None
    return maybe_object(value).get(step)
