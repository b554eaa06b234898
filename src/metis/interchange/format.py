"""Format: how one kind of another system's files is read and written, with every loss named.

Both directions check themselves. What is read is written again, and what came out different is
kept aside for the way back and, unless it says the same, reported. What is written is read again,
and what came back different is reported. So no loss can be forgotten.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, cast

from msgspec import UNSET
from msgspec.structs import replace

from metis.canonical.errors import DecodeError
from metis.canonical.json_value import join_path
from metis.canonical.message import Message
from metis.interchange.conversion import ConversionContext, foreign_fields
from metis.interchange.document import Record, as_bytes, foreign_error
from metis.interchange.residue import (
    Comparison,
    Difference,
    Steps,
    apply_residue,
    differences,
    is_same,
    make_residue,
)
from metis.projection.loss import Change, Loss
from metis.store.entries import (
    AnyEntry,
    KnownEntry,
    MessageEntry,
    UnknownEntry,
    decode_entry,
    encode_entry,
)
from metis.wire.call import RequestContext
from metis.wire.json_access import Wire, maybe_list, maybe_object


class LoadedDocument(NamedTuple):
    """What a document holds, in order, and what of it has no place in the canonical form."""

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
    """One kind of document; its records stand for one or several entries each."""

    name: ClassVar[str]
    system: ClassVar[str]
    """The system that writes it; several formats may share one."""
    default_values: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    """Values of keys that say the same as leaving the key out."""

    @abstractmethod
    def fits(self, data: bytes) -> bool:
        """Whether a document looks like one of this format."""

    @abstractmethod
    def split(self, data: bytes) -> Iterable[Record]:
        """The records of a document."""

    @abstractmethod
    def join(self, records: list[Wire], entries: Sequence[KnownEntry]) -> bytes:
        """A document from its records."""

    @abstractmethod
    def decode(self, record: Wire, desk: ConversionContext) -> list[KnownEntry]:
        """The entries that a record stands for; never none."""

    @abstractmethod
    def encode(self, entries: Sequence[KnownEntry], desk: ConversionContext) -> Wire | None:
        """The record of entries that belong together; None if the format has none for them."""

    def is_equivalent(self, difference: Difference) -> bool:
        """Whether two spellings at one place mean the same; such a difference is no loss."""
        key = difference.steps[-1] if difference.steps else ""
        silent = (UNSET, *self.default_values.get(str(key), ()))
        return _is_among(difference.plain, silent) and _is_among(difference.actual, silent)

    def load(self, data: bytes | str, context: RequestContext | None = None) -> LoadedDocument:
        """Read a document.

        Raises:
            ForeignDocumentError: it is not of this format; line and path name the place.
        """
        desk = ConversionContext(self.name, self.system, context or RequestContext())
        entries: list[KnownEntry] = []
        for record in self.split(as_bytes(data)):
            entries += self._load_record(record, desk)
        return LoadedDocument(tuple(entries), desk.losses)

    def dump(self, entries: Iterable[AnyEntry | Message]) -> WrittenDocument:
        """Write a document; what it cannot hold is on the list of losses."""
        everything = list(entries)
        given = [entry_of(item) for item in everything if not isinstance(item, UnknownEntry)]
        context = RequestContext() if not given else RequestContext(session_id=given[0].session_id)
        writer = ConversionContext(self.name, self.system, context)
        for item in everything:
            if isinstance(item, UnknownEntry):
                reason = "an entry of a kind that this version does not know"
                writer.add_loss(item, item.type, "$", reason, Change.DROPPED)
        reader = ConversionContext(self.name, self.system, context)
        comparison = Comparison(self.name, self.system)
        given = self.prepare(given, writer)
        records: list[Wire] = []
        for group in group_by_record(given, self.system):
            record = self._dump_group(group, writer)
            back = None if record is None else self._read_back(record, reader)
            if record is None or back is None:
                reason = f"{self.name} has no record for it"
                writer.losses += [self._loss(entry, reason, Change.DROPPED) for entry in group]
                continue
            writer.losses += comparison.losses(group, back)
            records.append(record)
        return WrittenDocument(self.join(records, given), writer.losses)

    def prepare(self, entries: list[KnownEntry], desk: ConversionContext) -> list[KnownEntry]:  # noqa: ARG002 - for those that need it
        """The entries in the order in which they are written; a look over all before the first."""
        return entries

    def _load_record(self, record: Record, desk: ConversionContext) -> list[KnownEntry]:
        before = len(desk.losses)
        try:
            entries = [as_stored(entry) for entry in self.decode(record.value, desk)]
        except DecodeError as error:
            path = record.path + error.path.removeprefix("$")
            raise foreign_error(error, self.name, path, record.line_of(path)) from None
        desk.losses[before:] = [
            replace(loss, path=record.path + loss.path.removeprefix("$"))
            for loss in desk.losses[before:]
        ]
        plain = self.encode(entries, desk)
        found = [] if plain is None else list(differences(plain, record.value))
        known = [loss.path for loss in desk.losses[before:]]
        for difference in found:
            path = _path(record.path, difference.steps)
            if not self.is_equivalent(difference) and not _is_below(path, known):
                desk.losses.append(self._kept_aside(difference, path, record.value, entries[0]))
        aside = make_residue(plain, record.value, found)
        if aside:
            entries[0] = with_residue(entries[0], self.system, aside)
        return entries

    def _kept_aside(
        self, difference: Difference, path: str, record: Wire, entry: KnownEntry
    ) -> Loss:
        absent = difference.actual is UNSET
        reason = (
            "it is not in the document; made up here"
            if absent
            else f"no place in the canonical form; kept for the way back to {self.system}"
        )
        return Loss(
            session_id=entry.session_id,
            message_id=entry.id,
            block_type=_type_at(record, difference.steps),
            adapter=self.name,
            reason=reason,
            change=Change.SYNTHESISED if absent else Change.ALTERED,
            path=path,
        )

    def _read_back(self, record: Wire, desk: ConversionContext) -> list[KnownEntry] | None:
        """What a reader would see; None if it could not read it."""
        try:
            return self.decode(record, desk)
        except DecodeError:
            return None

    def _dump_group(self, group: Sequence[KnownEntry], desk: ConversionContext) -> Wire | None:
        plain = self.encode(group, desk)
        first = group[0]
        if plain is None:
            return None
        aside = residue_of(first, self.system)
        if not aside:
            return plain
        record = apply_residue(plain, aside)
        if record is None:
            reason = f"changed since it was read; what only {self.system} knew is left out"
            desk.losses.append(self._loss(first, reason, Change.ALTERED))
            return plain
        return cast("Wire", record)

    def _loss(self, entry: KnownEntry, reason: str, change: Change) -> Loss:
        return Loss(
            session_id=entry.session_id,
            message_id=entry.id,
            block_type=str(entry.__struct_config__.tag),
            adapter=self.name,
            reason=reason,
            change=change,
        )


def entry_of(item: KnownEntry | Message) -> KnownEntry:
    """An entry as it is; a message as the entry of it."""
    if not isinstance(item, Message):
        return item
    return MessageEntry(
        id=item.id, session_id=item.session_id, created_at=item.created_at, message=item
    )


def group_by_record(entries: Sequence[KnownEntry], system: str) -> Iterator[list[KnownEntry]]:
    """The entries that came from one record each, together; all others alone."""
    group: list[KnownEntry] = []
    for entry in entries:
        part = _part(entry, system)
        if group and part and part == _part(group[-1], system) + 1:
            group.append(entry)
            continue
        if group:
            yield group
        group = [entry]
    if group:
        yield group


def _part(entry: KnownEntry, system: str) -> int:
    found = _foreign(entry, system).get("part", 0)
    return found if isinstance(found, int) else 0


def as_stored(entry: KnownEntry) -> KnownEntry:
    """The entry as a store would give it back."""
    return cast("KnownEntry", decode_entry(encode_entry(entry)))


def residue_of(entry: KnownEntry, system: str) -> dict[str, Any]:
    """What a system's files said of an entry beyond what the entry says."""
    return maybe_object(_foreign(entry, system).get("aside"))


def with_residue(entry: KnownEntry, system: str, aside: Mapping[str, Any]) -> KnownEntry:
    """The same entry with an aside."""
    foreign = {**_foreign(entry, system), "aside": aside}
    if not isinstance(entry, MessageEntry):
        return replace(entry, external={**(entry.external or {}), system: foreign})
    metadata = entry.message.metadata
    external = {**(metadata.external or {}), system: foreign}
    message = replace(entry.message, metadata=replace(metadata, external=external))
    return replace(entry, message=message)


def _foreign(entry: KnownEntry, system: str) -> Mapping[str, Any]:
    if isinstance(entry, MessageEntry):
        return foreign_fields(entry.message, system)
    return maybe_object(None if entry.external is None else entry.external.get(system))


def _is_among(value: Any, values: tuple[Any, ...]) -> bool:
    return any(is_same(value, other) for other in values)


def _path(path: str, steps: Steps) -> str:
    for step in steps:
        path = join_path(path, step)
    return path


def _is_below(path: str, known: Sequence[str]) -> bool:
    return any(path == each or path.startswith((f"{each}.", f"{each}[")) for each in known)


def _type_at(record: Wire, steps: Steps) -> str:
    """The type of the innermost part that says one; else the last key on the way."""
    found = next((str(step) for step in reversed(steps) if isinstance(step, str)), "document")
    value: Any = record
    for step in steps:
        kind = maybe_object(value).get("type")
        found = kind if isinstance(kind, str) else found
        value = _below(value, step)
    kind = maybe_object(value).get("type")
    return kind if isinstance(kind, str) else found


def _below(value: Any, step: str | int) -> Any:
    items = maybe_list(value)
    if isinstance(step, int):
        return items[step] if step < len(items) else None
    return maybe_object(value).get(step)
