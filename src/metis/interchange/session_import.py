"""Import: stores sessions of other programs, and only what is new of those stored already."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from msgspec.structs import replace

from metis.canonical.blocks import ToolUseBlock
from metis.canonical.errors import UnknownSessionError
from metis.canonical.ids import is_ulid, new_tool_use_id, new_ulid_after
from metis.canonical.message import SCHEMA_VERSION, Message
from metis.canonical.metadata import MessageMetadata, Usage
from metis.interchange.entry_list import EntryList
from metis.interchange.handoff_links import HandoffLink, HandoffLinks
from metis.interchange.session_draft import ForeignSession, call_wire_ids, entry_key
from metis.store import SessionRecord, Store
from metis.store.database import Transaction
from metis.store.entries import (
    AnyEntry,
    CompactionEntry,
    KnownEntry,
    MessageEntry,
    RetractionEntry,
    RewindEntry,
    SidecarEntry,
    UnknownEntry,
    entry_of,
)
from metis.store.queries import read_reduced_history
from metis.store.threads import Threads
from metis.store.transfer import IdMapping
from metis.wire.json_access import maybe_object

# Rows of a batch are in memory beside the entries; a long session is never there twice.
_BATCH = 256
_COUNTS = (
    *("input_tokens", "output_tokens", "cached_input_tokens", "cache_creation_input_tokens"),
    *("cache_creation_1h_input_tokens", "reasoning_output_tokens", "cost_usd"),
)


class ImportedSession(NamedTuple):
    """A stored session, and how many messages were new."""

    record: SessionRecord
    added: int


class _StoredEntry(NamedTuple):
    """The compared facts of a stored entry; whole entries of a session may not fit memory."""

    entry_id: str
    content_digest: str | None = None
    """None for an entry that is not a message."""
    usage: Usage | None = None
    calls: Mapping[str, str] = {}
    """The ids of its calls in the file, by ours."""


class _StoredHistory:
    """The entries of a session that are stored, as far as an import compares them."""

    def __init__(self, system: str) -> None:
        self.by_key: dict[str, _StoredEntry] = {}
        self.messages: dict[str, _StoredEntry] = {}
        self.newest = ""
        self.tip: str | None = None
        self._system = system

    async def read(self, store: Store, session_id: str) -> None:
        """Note what is stored of a session."""
        await store.read(lambda transaction: self._read(transaction, session_id))

    def _read(self, transaction: Transaction, session_id: str) -> None:
        threads = Threads()
        for entry in read_reduced_history(transaction, session_id, self._note_message):
            threads.add(entry)
            if isinstance(entry, MessageEntry | UnknownEntry):
                continue
            key = entry_key(entry, self._system)
            if key is not None:
                self.by_key[key] = _StoredEntry(entry.id)
        self.tip = threads.tip

    def _note_message(self, message: Message) -> Message:
        """Note a message, and return what the threads of a session need of it."""
        usage, calls = message.metadata.usage, call_wire_ids(message)
        stored = _StoredEntry(message.id, message.content_digest(), usage, calls)
        self.messages[message.id] = stored
        self.newest = max(self.newest, message.id)
        key = entry_key(entry_of(message), self._system)
        if key is not None:
            self.by_key[key] = stored
        metadata = MessageMetadata(parents=message.metadata.parents)
        return replace(message, content=(), metadata=metadata)


async def import_session(
    store: Store,
    session: ForeignSession,
    *,
    workspace: str = "",
    links: HandoffLinks | None = None,
) -> ImportedSession:
    """Store a session, or what is new of it; importing a file again changes nothing.

    Messages that a program added to a file written by `metis handoff` go to the original session.
    """
    link = None if links is None else links.find(session.system, session.foreign_id)
    target_id = session.session_id if link is None else link.session_id
    record = await _stored_record(store, target_id)
    if link is not None and record is None:  # our session was deleted since
        link = None
        record = await _stored_record(store, session.session_id)
    if link is not None:
        session = _with_session_id(session, link.session_id)
    is_new = record is None
    if record is None:
        record = _new_record(session, workspace)
        await store.restore_session(record)
    history = _StoredHistory(session.system)
    if not is_new:
        await history.read(store, record.id)
    plan = _ImportPlan(session, history, link)
    batch: list[AnyEntry] = []
    for entry in session.entries:
        batch += plan.new_entries(entry)
        if len(batch) >= _BATCH:
            await store.append_entries(batch)
            batch = []
    batch += plan.last_entries()
    if batch:
        await store.append_entries(batch)
    if is_new:
        await store.restore_session(record)
    elif plan.added:
        newest = max(record.updated_at, session.updated_at)
        await store.restore_session(replace(record, updated_at=newest))
    return ImportedSession(record, plan.added)


async def _stored_record(store: Store, session_id: str) -> SessionRecord | None:
    try:
        return await store.session(session_id)
    except UnknownSessionError:
        return None


def _new_record(session: ForeignSession, workspace: str) -> SessionRecord:
    return SessionRecord(
        id=session.session_id,
        workspace_path=session.cwd or workspace,
        active_model=session.model,
        schema_version=SCHEMA_VERSION,
        created_at=session.created_at,
        updated_at=session.updated_at,
    )


class _ImportPlan:
    """Decides which entries of a session are new."""

    def __init__(
        self, session: ForeignSession, history: _StoredHistory, link: HandoffLink | None
    ) -> None:
        self.added = 0
        self._session = session
        self._ids: dict[str, str] = {}
        self._tool_ids: dict[str, str] = {}
        self._grown_calls: set[str] = set()
        self._stored = history.by_key
        self._newest = history.newest
        self._tip = history.tip
        self._link = link
        self._written: dict[str, _StoredEntry] = {}
        for key, entry_id in link.keys.items() if link is not None else ():
            self._written[key] = history.messages.get(entry_id) or _StoredEntry(entry_id)
        self._previous: str | None = None

    def new_entries(self, entry: KnownEntry) -> list[AnyEntry]:
        """Return what to store for an entry: nothing if it is stored already."""
        key = entry_key(entry, self._session.system)
        if key is not None and key in self._written:
            self._note_stored(entry, self._written[key])
            return []
        stored = None if key is None else self._stored.get(key)
        if not isinstance(entry, MessageEntry):
            if isinstance(entry, RewindEntry):
                self._previous = self._stored_id(entry.to_id)
            if stored is not None or self._is_written_record(entry):
                return []
            return self._track_tip([self._with_ids(entry)])
        if stored is None or stored.content_digest is None or self._is_of_grown_call(entry.message):
            return self._track_tip([self._new_message(entry.message)])
        if _is_unchanged(stored, entry.message):
            self._note_stored(entry, stored)
            return []
        # A stored message never changes: it is retracted, and the longer one is added with new
        # calls and results.
        calls = [block.id for block in entry.message.content if isinstance(block, ToolUseBlock)]
        self._tool_ids |= {call: new_tool_use_id() for call in calls}
        self._grown_calls.update(calls)
        reason = "the program has written more of it since"
        retraction = RetractionEntry(
            id=entry.id,
            session_id=entry.session_id,
            created_at=entry.created_at,
            message_id=stored.entry_id,
            reason=reason,
        )
        usage = _difference(entry.message.metadata.usage, stored.usage)
        metadata = replace(entry.message.metadata, usage=usage)
        grown = self._new_message(replace(entry.message, metadata=metadata))
        return self._track_tip([retraction, grown])

    def _note_stored(self, entry: KnownEntry, stored: _StoredEntry) -> None:
        """Note which stored message and calls those of an entry are."""
        if not isinstance(entry, MessageEntry) or stored.content_digest is None:
            return
        self._ids[entry.id] = self._previous = stored.entry_id
        stored_calls = {wire_id: call for call, wire_id in stored.calls.items()}
        for call, wire_id in call_wire_ids(entry.message).items():
            if stored_calls.get(wire_id, call) != call:
                self._tool_ids[call] = stored_calls[wire_id]

    def _is_written_record(self, entry: KnownEntry) -> bool:
        at = entry.data.get("at") if isinstance(entry, SidecarEntry) else None
        return self._link is not None and isinstance(at, int) and at <= self._link.record_count

    def last_entries(self) -> list[AnyEntry]:
        """Return the entry that makes the end of the conversation that of the program."""
        tip = self._ids.get(self._session.tip or "", self._session.tip)
        if not self.added or tip is None or tip == self._tip:
            return []
        last = self._session.entries[-1]
        return [
            RewindEntry(
                id=last.id, session_id=last.session_id, created_at=last.created_at, to_id=tip
            )
        ]

    def _track_tip(self, entries: list[AnyEntry]) -> list[AnyEntry]:
        for entry in entries:
            if isinstance(entry, MessageEntry):
                self._tip = entry.id
            elif isinstance(entry, RewindEntry):
                self._tip = entry.to_id
            elif isinstance(entry, RetractionEntry):
                # Its successor follows what it followed.
                self._tip = self._previous
        return entries

    def _is_of_grown_call(self, message: Message) -> bool:
        return message.metadata.parent_tool_use_id in self._grown_calls

    def _new_message(self, message: Message) -> MessageEntry:
        self.added += 1
        if self._tool_ids:
            message = _with_tool_ids(message, self._tool_ids)
        new_id = message.id
        parents = tuple(self._ids.get(parent, parent) for parent in message.metadata.parents)
        if not parents and self._previous is not None and self._previous != self._tip:
            parents = (self._previous,)
        if new_id <= self._newest:
            # The session was continued in metis since: the imported message starts another branch.
            new_id = new_ulid_after(self._newest if is_ulid(self._newest) else new_id)
        self._ids[message.id] = new_id
        self._newest = self._previous = new_id
        metadata = replace(message.metadata, parents=parents)
        stored = replace(message, id=new_id, metadata=metadata)
        return MessageEntry(
            id=new_id,
            session_id=stored.session_id,
            created_at=stored.created_at,
            message=stored,
        )

    def _with_ids(self, entry: KnownEntry) -> KnownEntry:
        if isinstance(entry, CompactionEntry):
            return replace(
                entry,
                head_id=self._stored_id(entry.head_id),
                first_kept_id=self._stored_id(entry.first_kept_id),
            )
        if isinstance(entry, RewindEntry):
            return replace(entry, to_id=self._stored_id(entry.to_id))
        return entry

    def _stored_id(self, message_id: str | None) -> str | None:
        return None if message_id is None else self._ids.get(message_id, message_id)


def _with_session_id(session: ForeignSession, session_id: str) -> ForeignSession:
    """Return a session whose entries belong to another one."""

    def changed_entries() -> Iterator[KnownEntry]:
        for entry in session.entries:
            if isinstance(entry, MessageEntry):
                message = replace(entry.message, session_id=session_id)
                yield replace(entry, session_id=session_id, seq=0, message=message)
            else:
                yield replace(entry, session_id=session_id, seq=0)

    return replace(session, session_id=session_id, entries=EntryList(changed_entries()))


def _with_tool_ids(message: Message, tool_ids: Mapping[str, str]) -> Message:
    mapping = IdMapping(message.session_id, {message.id: message.id}, tool_ids, {})
    mapped = mapping.map_message(message)
    external: dict[str, Any] = dict(mapped.metadata.external or {})
    for system, data in external.items():
        calls = maybe_object(maybe_object(data).get("calls"))
        if calls:
            renamed = {tool_ids.get(call, call): wire_id for call, wire_id in calls.items()}
            external[system] = {**data, "calls": renamed}
    return replace(mapped, metadata=replace(mapped.metadata, external=external or None))


def _is_unchanged(stored: _StoredEntry, read: Message) -> bool:
    if stored.content_digest != read.content_digest():
        return False
    return read.metadata.usage is None or stored.usage is not None


def _difference(usage: Usage | None, before: Usage | None) -> Usage | None:
    """Return what a longer message used beyond the part that is counted already."""
    if usage is None or before is None:
        return usage
    counts = {name: max(getattr(usage, name) - getattr(before, name), 0) for name in _COUNTS}
    return replace(usage, **counts)
