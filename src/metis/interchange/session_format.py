"""SessionFormat: the contract of every session file of another program.

A format turns a file into sessions (`read`) and, where the program can resume what others wrote, a
session into a file (`write`). While a file is read, each unit of it (some records that are some
entries) is written again from the entries alone; the difference is stored beside the first entry.
So a session is written back record by record, and records that are not understood are written back
byte for byte. What is written is read again, and every block that is missing then is a loss.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, ClassVar, cast

import msgspec
from msgspec import Struct

from metis.canonical.errors import EncodeError
from metis.canonical.message import Role
from metis.interchange.format import as_stored, residue_of, with_residue
from metis.interchange.residue import apply_residue, differences, make_residue
from metis.interchange.session_draft import (
    RECORD_KIND,
    ForeignSession,
    NamedFormat,
    SessionDraft,
    call_wire_ids,
    entry_key,
    foreign_data,
    source_position,
    with_foreign_data,
)
from metis.interchange.source import ForeignRecord, Source
from metis.interchange.written_blocks import missing_blocks
from metis.projection.loss import Change, Loss
from metis.store.entries import (
    AnyEntry,
    KnownEntry,
    MessageEntry,
    RewindEntry,
    SidecarEntry,
    UnknownEntry,
)
from metis.wire.json_access import Wire, maybe_count, maybe_list, maybe_object
from metis.wire.tool_ids import derived_id

ToolNames = Mapping[str, str]
"""Names of tools in one program by their names in others."""


class WriteOptions(Struct, frozen=True, kw_only=True):
    """How a session is written for another program."""

    foreign_id: str | None = None
    """The id that it gets there; None writes the id that it came with, or a new one."""
    cwd: str = ""
    now: datetime = msgspec.field(default_factory=lambda: datetime.now(UTC))
    model: str | None = None
    """The model to name in messages that have none."""
    map_tools: bool = False
    """Whether calls are renamed to the tools of the program."""


# A reader encodes units only to compare them; nothing of it is written.
_READ_OPTIONS = WriteOptions()


class WrittenSession(Struct, frozen=True):
    """A session as a file of another program."""

    data: bytes
    losses: list[Loss]
    foreign_id: str
    keys: dict[str, str]
    """The ids of our messages by their keys in the file."""
    record_count: int = 0
    """How many records the file has."""


class SessionFormat(NamedFormat, ABC):
    """One program's session files: how they are recognised, read and written."""

    is_writable: ClassVar[bool] = False

    @abstractmethod
    def fits(self, source: Source) -> bool:
        """Return whether a file looks like one of this format, by its sample and its name."""

    @abstractmethod
    def read(self, source: Source) -> Iterator[ForeignSession]:
        """Yield the sessions of a file; nothing in it is an error unless the file is unreadable."""

    def write(self, entries: Sequence[AnyEntry], options: WriteOptions) -> WrittenSession:
        """Return a session as a file.

        Raises:
            EncodeError: the program cannot resume files that others wrote.
        """
        _ = entries, options
        raise EncodeError(f"{self.name} sessions can be read, but not written")


class RecordFormat(SessionFormat):
    """A format whose file is a list of records, such as one JSON object per line.

    A subclass reads records into units with `SessionDraft.add_unit`, and writes a unit's entries
    with `encode_unit`; the base class stores and applies the differences.
    """

    is_writable = True

    @abstractmethod
    def encode_unit(self, entries: Sequence[KnownEntry], writer: "RecordWriter") -> list[Wire]:
        """Return the records of entries that were read together, as far as the entries say.

        The number of records must be that of the unit, which `writer.shape(entries)` gives.
        """

    @abstractmethod
    def new_records(self, entry: KnownEntry, writer: "RecordWriter") -> list[Wire]:
        """Return complete records for an entry that did not come from this program.

        What the format cannot represent is reported with `writer.add_loss`.
        """

    def first_records(self, writer: "RecordWriter") -> list[Wire]:
        """Return the records before the first message of a file that starts anew."""
        _ = writer
        return []

    def note_record(self, record: Wire, writer: "RecordWriter") -> None:
        """Note what later records refer to, such as the id of the record before them."""

    def with_foreign_id(self, record: Wire, foreign_id: str) -> Wire:
        """Return a record of another session with the id of this one."""
        _ = foreign_id
        return record

    def join(self, records: Iterable[bytes]) -> bytes:
        """Return the file of records; here one per line."""
        return b"".join(record + b"\n" for record in records)

    def record_key(self, record: ForeignRecord) -> str:
        """Return what identifies a record in its session, also after the file has grown."""
        return record_key(record)

    # Reading

    def store_unit(
        self, draft: SessionDraft, entries: list[KnownEntry], records: Sequence[ForeignRecord]
    ) -> list[KnownEntry]:
        """Return the entries of a unit with what is needed to write its records again."""
        # A rewind record may have the id of the message that it replaces.
        is_rewind = isinstance(entries[0], RewindEntry)
        key = record_key(records[0]) if is_rewind else self.record_key(records[0])
        parts: list[Wire] = [{"part": part, "of": key} for part in range(len(entries))]
        parts[0] = {"at": [record.at for record in records], "key": key}
        shaped = [
            as_stored(with_foreign_data(entry, self.system, part))
            for entry, part in zip(entries, parts, strict=True)
        ]
        expected = self.encode_unit(shaped, RecordWriter(self, _READ_OPTIONS, draft.wire_ids))
        actual = [record.value for record in records]
        residue = make_residue(expected, actual, differences(expected, actual))
        if residue:
            shaped[0] = with_residue(shaped[0], self.system, residue)
        return shaped

    # Writing

    def write(self, entries: Sequence[AnyEntry], options: WriteOptions) -> WrittenSession:
        """Write a session: its records as they came, and new records for all else."""
        writer = RecordWriter(self, options)
        for group in _units(entries, self.system):
            writer.write_unit(group)
        data = self.join(writer.lines())
        written = [entry.message for entry in entries if isinstance(entry, MessageEntry)]
        keys: dict[str, str] = {}
        for session in self.read(Source(None, data)):
            keys = self._owner_by_key(session.entries, writer.owners)
            unexplained = missing_blocks(written, session.messages(), self.name, writer.losses)
            writer.losses += unexplained
            break
        count = len(writer.owners)
        return WrittenSession(data, writer.losses, writer.foreign_id, keys, count)

    def _owner_by_key(
        self, entries: Sequence[KnownEntry], owners: Sequence[tuple[str, ...]]
    ) -> dict[str, str]:
        """Return which of our entries the entries of the written file are, by their keys."""
        keys: dict[str, str] = {}
        ids: tuple[str, ...] = ()
        for entry in entries:
            data = foreign_data(entry, self.system)
            at: list[int] = maybe_list(data.get("at"))
            part = maybe_count(data.get("part")) or 0
            if at:
                # Several of our messages may share a record; later records follow the last one.
                ids = owners[at[-1] - 1] if 0 < at[-1] <= len(owners) else ()
            key = entry_key(entry, self.system)
            if ids and key is not None and (at or part):
                keys[key] = ids[min(part, len(ids) - 1)]
        return keys


class RecordWriter:
    """The state of a file while it is written."""

    def __init__(
        self,
        file_format: RecordFormat,
        options: WriteOptions,
        wire_ids: dict[str, str] | None = None,
    ) -> None:
        self.file_format = file_format
        self.options = options
        self.foreign_id = options.foreign_id or ""
        self.losses: list[Loss] = []
        self.state: dict[str, Any] = {}
        """Facts about earlier records that later ones need."""
        # Not a copy: a reader makes a writer for each unit, and a long session has many calls.
        self.wire_ids: dict[str, str] = {} if wire_ids is None else wire_ids
        """The ids of calls in the file, by ours."""
        self.owners: list[tuple[str, ...]] = []
        """For each record of the file, the ids of the entries that it was written for."""
        self._records: list[tuple[int, int, bytes, tuple[str, ...]]] = []
        self._owner: tuple[str, ...] = ()
        self._position = 0
        self._is_extended = False
        self._dropped: dict[str, tuple[int, KnownEntry | UnknownEntry]] = {}

    def shape(self, entries: Sequence[KnownEntry]) -> list[int]:
        """Return the positions of the records of a unit, one for each record."""
        return list(foreign_data(entries[0], self.file_format.system).get("at") or ())

    def add_loss(
        self,
        entry: KnownEntry | UnknownEntry,
        block_type: str,
        reason: str,
        *,
        path: str = "$",
        change: Change = Change.DROPPED,
    ) -> None:
        """Report what the file cannot hold, with its place in the file that it came from."""
        if not isinstance(entry, UnknownEntry):
            reason += source_position(entry)
        self.losses.append(
            Loss(
                session_id=entry.session_id,
                message_id=entry.id,
                block_type=block_type,
                adapter=self.file_format.name,
                reason=reason,
                change=change,
                path=path,
            )
        )

    def wire_id(self, tool_use_id: str) -> str:
        """Return the id of a call in the file: as the call came, or one derived from ours."""
        return self.wire_ids.get(tool_use_id) or derived_id(tool_use_id, "call_")

    def _note_calls(self, entry: AnyEntry) -> None:
        if not isinstance(entry, MessageEntry) or entry.message.role is not Role.ASSISTANT:
            return
        self.wire_ids.update(call_wire_ids(entry.message))

    def write_unit(self, group: Sequence[AnyEntry]) -> None:
        """Write entries that were read together, or one that was not."""
        first = group[0]
        for entry in group:
            self._note_calls(entry)
        self._owner = tuple(entry.id for entry in group)
        if isinstance(first, UnknownEntry):
            self._drop(first, first.type)
        elif isinstance(first, SidecarEntry):
            self._write_sidecar(first)
        else:
            self._write_known(cast("Sequence[KnownEntry]", group))

    def _write_sidecar(self, entry: SidecarEntry) -> None:
        if entry.kind != RECORD_KIND:
            return  # notes of metis about itself, such as where a session was handed over
        if entry.data.get("system") != self.file_format.system:
            self._drop(entry, f"{entry.data.get('system')} {entry.data.get('type')}")
            return
        raw = str(entry.data.get("raw", "")).encode("utf-8", "surrogateescape")
        at = entry.data.get("at")
        value = _maybe_json(raw)
        if isinstance(value, dict):
            record = cast("Wire", value)
            self.file_format.note_record(record, self)
            if self.options.foreign_id is not None:
                changed = self.file_format.with_foreign_id(record, self.options.foreign_id)
                raw = raw if changed == record else write_json(changed)
        self._put(raw, at if isinstance(at, int) else None)

    def _write_known(self, group: Sequence[KnownEntry]) -> None:
        residue = residue_of(group[0], self.file_format.system)
        positions = self.shape(group)
        if positions:
            expected = self.file_format.encode_unit(group, self)
            records = apply_residue(expected, residue) if residue else expected
            if records is not None:
                for at, record in zip(positions, records, strict=True):
                    self._put_record(record, at)
                return
            reason = "changed since it was read; what only the program uses is left out"
            self.add_loss(group[0], "record", reason, change=Change.ALTERED)
        for entry in group:
            self._start()
            self._owner = (entry.id,)
            before = len(self.losses)
            self._is_extended = False
            new = self.file_format.new_records(entry, self)
            # A reason that the format has reported is more specific than the general one.
            if not new and not self._is_extended and len(self.losses) == before:
                self._drop(entry, str(entry.__struct_config__.tag))
            for record in new:
                self._put_record(record, None)

    def _start(self) -> None:
        if not self._records and "started" not in self.state:
            self.state["started"] = True
            self._owner = ()
            for record in self.file_format.first_records(self):
                self._put_record(record, None)

    def _put_record(self, record: Wire, at: int | None) -> None:
        if self.options.foreign_id is not None:
            record = self.file_format.with_foreign_id(record, self.options.foreign_id)
        self.file_format.note_record(record, self)
        self._put(write_json(record), at)

    def extend_last(self, key: str, parts: Sequence[Any]) -> bool:
        """Add parts to the record before if its parts are of the same kind, and say whether."""
        if not self._records or self._records[-1][1] == 0:
            return False
        position, order, raw, owner = self._records[-1]
        record = maybe_object(_maybe_json(raw))
        content = maybe_list(record.get("content"))
        if not content or not all(key in maybe_object(part) for part in content):
            return False
        extended = write_json({**record, "content": [*content, *parts]})
        self._records[-1] = position, order, extended, (*owner, *self._owner)
        self._is_extended = True
        return True

    def add_result(
        self,
        add: Callable[[Wire, MessageEntry, "RecordWriter"], Wire | None],
        entry: MessageEntry,
    ) -> None:
        """Write a result into the record of its call, for programs that store it there."""
        for index in range(len(self._records) - 1, -1, -1):
            position, order, raw, owner = self._records[index]
            changed = add(maybe_object(_maybe_json(raw)), entry, self)
            if changed is not None:
                self._records[index] = position, order, write_json(changed), (*owner, entry.id)
                self._is_extended = True
                return
        self.add_loss(entry, "tool_result", "its call is not in the file")

    def _put(self, raw: bytes, at: int | None) -> None:
        if at is not None:
            self._position = max(self._position, at)
        position = self._position if at is None else at
        order = 0 if at is not None else len(self._records) + 1
        self._records.append((position, order, raw, self._owner))

    def _drop(self, entry: KnownEntry | UnknownEntry, kind: str) -> None:
        number, first = self._dropped.get(kind, (0, entry))
        self._dropped[kind] = (number + 1, first)

    def lines(self) -> list[bytes]:
        """Return the records in the order of the file; of two at one position the later."""
        for kind, (number, entry) in self._dropped.items():
            reason = f"{self.file_format.name} has no record for it ({number} in the session)"
            self.add_loss(entry, kind, reason)
        lines: dict[tuple[int, int], tuple[bytes, tuple[str, ...]]] = {}
        for position, order, raw, owner in self._records:
            lines[position, order] = raw, owner
        ordered = [lines[position] for position in sorted(lines)]
        self.owners = [owner for _, owner in ordered]
        return [raw for raw, _ in ordered]


def _units(entries: Sequence[AnyEntry], system: str) -> Iterator[list[AnyEntry]]:
    """Yield entries that were read together as one list, and all others alone."""
    group: list[AnyEntry] = []
    for entry in entries:
        part = 0 if isinstance(entry, UnknownEntry) else foreign_data(entry, system).get("part", 0)
        if group and part and part == len(group):
            group.append(entry)
            continue
        if group:
            yield group
        group = [entry]
    if group:
        yield group


def record_key(record: ForeignRecord) -> str:
    """Return the key of a record without an id: its position and a checksum of its bytes."""
    return f"{record.at}-{sha256(record.raw).hexdigest()[:16]}"


def write_json(value: Any) -> bytes:
    """Return JSON as programs in JavaScript and Rust write it: compact, and not escaped."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(
        "utf-8", "surrogatepass"
    )


def _maybe_json(raw: bytes) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def joined_document(lines: Sequence[bytes], *names: str) -> Wire | None:
    """Return the document whose first line has one of some lists, with the other lines in it.

    None if the lines are not those of such a document, or one of them is not JSON.
    """
    head = maybe_object(_maybe_json(lines[0])) if lines else {}
    # Readers of documents put the list first; a line of another file may have an empty one.
    name = next((name for name in [*head][:1] if name in names and head[name] == []), None)
    values = [_maybe_json(line) for line in lines[1:]]
    is_broken = any(
        value is None and line != b"null" for value, line in zip(values, lines[1:], strict=True)
    )
    return None if name is None or is_broken else {**head, name: values}
