"""SessionDraft: the entries of one session of another program while its file is read.

Ids follow from the session and the position in its file, so that reading a file again gives the
same ids. Nothing in a file is an error: records that are not understood are stored unchanged and
reported.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar

from msgspec import Struct
from msgspec.structs import replace

from metis.canonical.blocks import ContentBlock, TextBlock, ToolUseBlock
from metis.canonical.errors import MetisError
from metis.canonical.fast import is_surely_valid
from metis.canonical.ids import int_to_ulid
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageMetadata, Usage
from metis.canonical.rules import validate
from metis.catalog.cost import price
from metis.interchange.conversion import ConversionContext, orphan_result_content
from metis.interchange.entry_list import EntryList
from metis.interchange.source import ForeignRecord
from metis.projection.loss import Change, Loss
from metis.store.entries import (
    PARENT_KIND,
    KnownEntry,
    MessageEntry,
    SidecarEntry,
    encode_entry,
    entry_of,
)
from metis.wire.call import RequestContext
from metis.wire.json_access import Wire, maybe_object
from metis.wire.original_form import provider_tool_ids
from metis.wire.tool_ids import canonical_tool_id

RECORD_KIND = "foreign_record"
"""The kind of a sidecar entry that is a record of another program, as it was read."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_ORDINAL_BITS, _HASH_BITS = 32, 48
_MAX_LISTED = 200


class NamedFormat:
    """The names of a format, which its drafts and losses carry."""

    name: ClassVar[str]
    """The name for `--format`."""
    system: ClassVar[str]
    """The name under which messages store what only this program needs."""


class ForeignSession(Struct):
    """A session of another program, ready to be stored."""

    session_id: str
    foreign_id: str
    format: str
    system: str
    entries: EntryList
    losses: list[Loss]
    created_at: datetime = EPOCH
    updated_at: datetime = EPOCH
    model: str | None = None
    """The model of the last response."""
    message_count: int = 0
    cwd: str = ""
    title: str = ""
    version: str = ""
    """The version of the program that wrote it last."""
    tip: str | None = None
    """The message that the conversation ends with, if that is not the last one."""

    def messages(self) -> list[Message]:
        """Return its messages in order."""
        return [entry.message for entry in self.entries if isinstance(entry, MessageEntry)]


class SessionDraft:
    """Collects the entries and losses of one session."""

    def __init__(self, file_format: NamedFormat, foreign_id: str) -> None:
        self.file_format = file_format
        self.foreign_id = foreign_id
        self.session_id = imported_session_id(file_format.system, foreign_id)
        self.entries = EntryList()
        self._created_at: datetime | None = None
        self._updated_at = EPOCH
        self._model: str | None = None
        self._message_count = 0
        self.losses: list[Loss] = []
        self.cwd = self.title = self.version = ""
        self.wire_ids: dict[str, str] = {}
        """The ids of calls in the file, by ours."""
        self._calls = ConversionContext(
            file_format.name, file_format.system, RequestContext(session_id=self.session_id)
        )
        self._open_calls: dict[str, tuple[str, int]] = {}
        self._base_ms: int | None = None
        self._ordinal = 0
        self._last_time = EPOCH
        self._unknown: dict[str, tuple[int, int]] = {}
        self._counted: set[str] = set()

    # Ids and times

    def next_id(self) -> str:
        """Return the id of the next entry: increasing, and the same for the same file."""
        if self._base_ms is None:
            self._base_ms = max(0, int((self._last_time - EPOCH).total_seconds() * 1000))
        self._ordinal += 1
        text = f"{self.session_id}\0{self._ordinal}"
        digest = int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")
        return int_to_ulid(
            (self._base_ms << (_ORDINAL_BITS + _HASH_BITS)) | (self._ordinal << _HASH_BITS) | digest
        )

    def time(self, moment: datetime | None) -> datetime:
        """Return the time of a record; that of the record before it if it has none."""
        if moment is not None:
            self._last_time = moment
        return self._last_time

    # Messages

    def message(
        self,
        role: Role,
        content: Sequence[ContentBlock],
        *,
        created_at: datetime | None = None,
        parents: Sequence[str] = (),
        foreign: Mapping[str, Any] | None = None,
        **metadata: Any,
    ) -> Message:
        """Return the next message; `foreign` is data that only the other program needs."""
        moment = self.time(created_at)
        fields = dict(foreign or {})
        calls = {
            block.id: self.wire_ids[block.id]
            for block in content
            if isinstance(block, ToolUseBlock) and block.id in self.wire_ids
        }
        if calls:
            fields["calls"] = calls
        return Message(
            id=self.next_id(),
            session_id=self.session_id,
            role=role,
            content=tuple(content) or (TextBlock(""),),
            created_at=moment,
            metadata=MessageMetadata(
                origin=f"import:{self.file_format.system}",
                external={self.file_format.system: fields} if fields else None,
                parents=tuple(parents),
                **metadata,
            ),
        )

    def usage_once(self, response_id: str | None, usage: Usage | None) -> Usage | None:
        """Return the usage of a response the first time that it is named; None after that."""
        if usage is None or response_id is None:
            return usage
        if response_id in self._counted:
            return None
        self._counted.add(response_id)
        return usage

    def open_call(self, foreign_id: str | None, name: str, at: int = 0) -> str:
        """Return our id for a call that waits for its result from now on."""
        tool_use_id = self._calls.open_tool_call(foreign_id, name)
        if foreign_id is not None:
            self.wire_ids[tool_use_id] = foreign_id
        self._open_calls[tool_use_id] = (name, at)
        return tool_use_id

    def match_result(self, foreign_id: str | None, name: str = "") -> str | None:
        """Return our id of the call that a result belongs to; None if no call waits for it."""
        tool_use_id = self._calls.match_tool_result(foreign_id, name)
        if tool_use_id is not None:
            self._open_calls.pop(tool_use_id, None)
        return tool_use_id

    def tool_name(self, tool_use_id: str) -> str:
        """Return the tool of a call."""
        return self._calls.tool_name(tool_use_id)

    def orphan_result(
        self, content: Sequence[ContentBlock], at: int, path: str, **fields: Any
    ) -> Message:
        """Return the user message for a result without a call, and report it."""
        message = self.message(Role.USER, orphan_result_content(content), **fields)
        reason = "no open call of this session matches it; it became a user message"
        self.add_loss("tool_result", reason, at=at, path=path, message_id=message.id)
        return message

    # Entries

    def set_parent(self, foreign_id: str, call_id: str | None = None) -> None:
        """Note the session that this one is a sub-agent of, and the call that started it."""
        parent_id = imported_session_id(self.file_format.system, foreign_id)
        data = {"session_id": parent_id}
        if call_id is not None:
            # The same id that the import of the parent session derives for the call.
            data["tool_use_id"] = canonical_tool_id(parent_id, call_id)
        self._store(
            [
                SidecarEntry(
                    id=self.next_id(),
                    session_id=self.session_id,
                    created_at=self._last_time,
                    kind=PARENT_KIND,
                    data=data,
                )
            ]
        )

    def add(self, entry: KnownEntry | Message) -> None:
        """Add an entry that does not have to be written back as records."""
        added = entry_of(entry) if isinstance(entry, Message) else entry
        if isinstance(added, MessageEntry) and (problems := validate(added.message)):
            reason = f"not a valid message ({problems[0].text}); left out"
            self.add_loss("message", reason, message_id=added.id, path=problems[0].path)
            return
        self._store([added])

    def add_unit(
        self,
        entries: Sequence[KnownEntry | Message],
        records: Sequence[ForeignRecord],
        store_unit: Callable[..., list[KnownEntry]],
    ) -> bool:
        """Add the entries of some records; records that break a rule are stored as they are."""
        unit = [entry_of(item) if isinstance(item, Message) else item for item in entries]
        try:
            stored = store_unit(self, unit, records)
            encoded = [encode_entry(entry) for entry in stored]
            fault = next((fault for fault in map(_fault_of, stored) if fault), "")
        except MetisError as error:
            stored, encoded, fault = [], [], str(error)
        if fault or not stored:
            for record in records:
                self.add_record(record, reason=f"not a valid message: {fault}")
            return False
        self._store(stored, encoded)
        return True

    def add_stored(self, entry: KnownEntry) -> None:
        """Add an entry that another reader has checked."""
        self._store([entry])

    def _store(self, entries: Sequence[KnownEntry], encoded: Iterable[bytes] = ()) -> None:
        for entry in entries:
            moment = entry.created_at
            if moment != EPOCH:  # no record has named a time yet
                self._created_at = min(self._created_at or moment, moment)
            self._updated_at = max(self._updated_at, moment)
            if isinstance(entry, MessageEntry):
                self._message_count += 1
                self._model = entry.message.metadata.model or self._model
        self.entries.extend(encoded or map(encode_entry, entries))

    def add_record(self, record: ForeignRecord, kind: str = "", reason: str = "") -> None:
        """Store a record as it is; with a reason it is also reported."""
        kind = kind or _record_type(record)
        if record.raw:
            entry = SidecarEntry(
                id=self.next_id(),
                session_id=self.session_id,
                created_at=self._last_time,
                kind=RECORD_KIND,
                data={
                    "system": self.file_format.system,
                    "at": record.at,
                    "type": kind,
                    "raw": record.raw.decode("utf-8", "backslashreplace"),
                },
            )
            self._store([entry])
        if reason:
            self.add_loss(kind, reason, at=record.at)

    def add_unknown_record(self, record: ForeignRecord) -> None:
        """Store a record of an unknown type; each type is reported once, with its number."""
        kind = _record_type(record)
        if record.value is None:
            torn = "incomplete; the program may still be writing it" if record.is_torn else ""
            result = "stored unchanged" if record.raw else "left out"
            self.add_record(record, "line", f"{torn or record.fault}; {result}")
            return
        self.add_record(record, kind)
        number, first = self._unknown.get(kind, (0, record.at))
        self._unknown[kind] = (number + 1, first)

    def add_loss(  # noqa: PLR0913 - the fields of a loss
        self,
        block_type: str,
        reason: str,
        *,
        at: int = 0,
        path: str = "$",
        change: Change = Change.ALTERED,
        message_id: str = "",
    ) -> None:
        """Report something that is not as it was in the file; `at` is the record's position."""
        self.losses.append(
            Loss(
                session_id=self.session_id,
                message_id=message_id,
                block_type=block_type,
                adapter=self.file_format.name,
                reason=reason,
                change=change,
                path=f"line {at}: {path}" if at else path,
            )
        )

    def session(self) -> ForeignSession:
        """Return the finished session, with what is to be reported at the end."""
        for kind, (number, at) in sorted(self._unknown.items()):
            reason = f"unknown type of record, {number} in the file; stored unchanged"
            self.add_loss(kind, reason, at=at)
        for number, (_, (name, at)) in enumerate(self._open_calls.items()):
            if number >= _MAX_LISTED:
                more = f"{len(self._open_calls) - number} more calls have no result in the file"
                self.add_loss("tool_use", more)
                break
            self.add_loss("tool_use", f"the call of {name} has no result in the file", at=at)
        return ForeignSession(
            session_id=self.session_id,
            foreign_id=self.foreign_id,
            format=self.file_format.name,
            system=self.file_format.system,
            entries=self.entries,
            losses=self.losses,
            created_at=self._created_at or self._last_time,
            updated_at=max(self._updated_at, self._created_at or self._last_time),
            model=self._model,
            message_count=self._message_count,
            cwd=self.cwd,
            title=self.title,
            version=self.version,
        )


def _fault_of(entry: KnownEntry) -> str:
    """Return which rule an entry breaks that was decoded from JSON; else an empty text."""
    # Decoding has proved that the message can be stored, so the fast check is enough for most.
    if not isinstance(entry, MessageEntry) or is_surely_valid(entry.message):
        return ""
    problems = validate(entry.message)
    return f"{problems[0].path} {problems[0].text}" if problems else ""


def imported_session_id(system: str, foreign_id: str) -> str:
    """Return our id of another program's session: the same whenever it is imported."""
    digest = hashlib.sha256(f"{system}\0{foreign_id}".encode("utf-8", "surrogatepass")).digest()
    # The first character of a ULID is at most 7; a shift leaves 127 bits.
    return "sess_" + int_to_ulid(int.from_bytes(digest[:16], "big") >> 1)


def priced(usage: Usage | None, model: str | None, at: datetime) -> Usage | None:
    """Return a usage with its cost, if there is a price for the model."""
    if usage is None or model is None:
        return usage
    try:
        return price(usage, model, at)
    except MetisError:
        return usage  # the model has no price: tokens are counted without a cost


def call_wire_ids(message: Message) -> dict[str, str]:
    """Return the ids of the calls of a message in the file that it came from, by ours."""
    ids = provider_tool_ids(message)
    for data in (message.metadata.external or {}).values():
        ids |= maybe_object(maybe_object(data).get("calls"))
    return ids


def source_position(entry: KnownEntry) -> str:
    """Return the position of an entry in the file that it came from, for the reason of a loss."""
    external = (
        entry.message.metadata.external if isinstance(entry, MessageEntry) else entry.external
    )
    for system, data in (external or {}).items():
        positions = maybe_object(data).get("at")
        if isinstance(positions, list) and positions:
            return f" ({system} line {positions[0]})"
    if isinstance(entry, SidecarEntry) and entry.kind == RECORD_KIND:
        return f" ({entry.data.get('system')} line {entry.data.get('at')})"
    return ""


def foreign_data(entry: KnownEntry, system: str) -> Wire:
    """Return the data of an entry that only another program needs."""
    if isinstance(entry, MessageEntry):
        external = entry.message.metadata.external
    else:
        external = entry.external
    return maybe_object(None if external is None else external.get(system))


def with_foreign_data(entry: KnownEntry, system: str, data: Mapping[str, Any]) -> KnownEntry:
    """Return an entry with more data that only another program needs."""
    merged = {**foreign_data(entry, system), **data}
    if not isinstance(entry, MessageEntry):
        return replace(entry, external={**(entry.external or {}), system: merged})
    message = entry.message
    external = {**(message.metadata.external or {}), system: merged}
    changed = replace(message, metadata=replace(message.metadata, external=external))
    return replace(entry, message=changed)


def entry_key(entry: KnownEntry, system: str) -> str | None:
    """Return what identifies an entry in the file that it came from; None if it has none."""
    if isinstance(entry, SidecarEntry):
        if entry.kind == PARENT_KIND:
            return f"{PARENT_KIND} {entry.data.get('session_id')}"
        if entry.kind != RECORD_KIND or entry.data.get("system") != system:
            return None
        raw = str(entry.data.get("raw", ""))
        checksum = hashlib.sha256(raw.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        return f"record {entry.data.get('at')} {checksum}"
    data = foreign_data(entry, system)
    key = data.get("key")
    if isinstance(key, str):
        return key
    part = data.get("part")
    return f"{data.get('of')}#{part}" if part and data.get("of") else None


def _record_type(record: ForeignRecord) -> str:
    if record.value is None:
        return "line"
    kind = record.fields.get("type")
    inner = maybe_object(record.fields.get("payload")).get("type")
    name = kind if isinstance(kind, str) else "record"
    return f"{name}/{inner}" if isinstance(inner, str) else name
