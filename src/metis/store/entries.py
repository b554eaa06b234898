"""Entries: what the journal of a session holds, in order: messages, and what is no message.

A message is never rewritten once it is complete. What happens to a conversation afterwards is
another entry behind it: a model swap, a summary, a step back, a retraction. What people and models
see is derived from the entries; see `threads` and `replay`.
"""

import logging
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw, Struct
from msgspec.structs import replace

from metis.canonical.errors import DecodeError
from metis.canonical.message import Message, to_utc
from metis.canonical.metadata import Count
from metis.canonical.reader import LIMITS, Limits, check_json, read_fields, to_bytes
from metis.canonical.value import (
    Value,
    canonical_bytes,
    encode_fast,
    normalise_json,
    normalise_tuple,
    set_field,
)

log = logging.getLogger("metis.store")


class Entry(Value, frozen=True, kw_only=True, tag_field="type"):
    """What all entries share."""

    created_at: Annotated[datetime, Meta(tz=True)]
    external: Mapping[str, Any] | None = None
    """What another system knew of this entry and we have no field for."""
    id: str
    seq: Count = 0
    """The place in the session, counted from 1; 0 until the entry is stored."""
    session_id: str

    def normalise(self) -> None:
        """Tidy what the constructor was given."""
        super().normalise()
        normalise_json(self, "external")
        set_field(self, "created_at", to_utc(self.created_at))


class MessageEntry(Entry, frozen=True, kw_only=True, tag="message"):
    """A message; id, session and time of the entry are those of the message."""

    message: Message


class ErrorEntry(Entry, frozen=True, kw_only=True, tag="error"):
    """Something failed, and a replay shows it."""

    code: str | None = None
    data: Mapping[str, Any] | None = None
    kind: str | None = None
    """The name of the kind of failure, such as the class of the error."""
    message_id: str | None = None
    """The message that was being made, if there is one."""
    provider: str | None = None
    retryable: bool = False
    status: Count | None = None
    text: str

    def normalise(self) -> None:
        """Tidy what the constructor was given."""
        super().normalise()
        normalise_json(self, "data")


class TaskMetadataEntry(Entry, frozen=True, kw_only=True, tag="task_metadata"):
    """What a task came to: models, tokens, cost and time over all its turns."""

    data: Mapping[str, Any]
    message_id: str | None = None
    """The message that ended the task, if there is one."""

    def normalise(self) -> None:
        """Tidy what the constructor was given."""
        super().normalise()
        normalise_json(self, "data")


class SwapEntry(Entry, frozen=True, kw_only=True, tag="swap"):
    """From here on another model answers."""

    from_model: str | None = None
    reason: str | None = None
    to_model: str


class CompactionEntry(Entry, frozen=True, kw_only=True, tag="compaction"):
    """Everything before `first_kept_id` is seen as one summary from here on."""

    details: Mapping[str, Any] | None = None
    first_kept_id: str | None = None
    """The first message that is still seen as it is; None keeps none of those before."""
    head_id: str | None = None
    """The newest message of the thread that was summed up; None is the newest of the session."""
    kept_brief: tuple[Any, ...] = ()
    """What was kept, in short, for people."""
    summary: str
    tokens_before: Count | None = None

    def normalise(self) -> None:
        """Tidy what the constructor was given."""
        super().normalise()
        normalise_tuple(self, "kept_brief")
        normalise_json(self, "details", "kept_brief")


class CheckpointEntry(Entry, frozen=True, kw_only=True, tag="checkpoint"):
    """A numbered place to which a conversation can go back."""

    message_id: str | None = None
    """The newest message at that place; None is before the first."""
    number: Count


class RewindEntry(Entry, frozen=True, kw_only=True, tag="rewind"):
    """The conversation goes back: what came after `to_id` is no longer seen."""

    checkpoint: Count | None = None
    details: Mapping[str, Any] | None = None
    head_id: str | None = None
    """The newest message of the thread that goes back; None is the newest of the session."""
    note: str | None = None
    """What the model is told about the part that is gone."""
    reason: str | None = None
    to_id: str | None = None
    """The message that is the newest again; None goes back to before the first."""

    def normalise(self) -> None:
        """Tidy what the constructor was given."""
        super().normalise()
        normalise_json(self, "details")


class RetractionEntry(Entry, frozen=True, kw_only=True, tag="retraction"):
    """A message is taken back, and what follows it with it."""

    message_id: str
    reason: str | None = None


class ForkEntry(Entry, frozen=True, kw_only=True, tag="fork"):
    """This session began as a copy of another, up to one of its messages."""

    message_ids: Mapping[str, str]
    """The ids of the copies by those of the originals."""
    source_message_id: str | None = None
    """The last message that was copied; None if there was none."""
    source_session_id: str
    tool_use_ids: Mapping[str, str]
    """The same for tool calls."""

    def normalise(self) -> None:
        """Tidy what the constructor was given."""
        super().normalise()
        normalise_json(self, "message_ids", "tool_use_ids")


class BookmarkEntry(Entry, frozen=True, kw_only=True, tag="bookmark"):
    """A name is given to a message, is moved there, or is taken away."""

    message_id: str | None = None
    """None takes the name away."""
    name: str


class SidecarEntry(Entry, frozen=True, kw_only=True, tag="sidecar"):
    """Something for people or programs that no model is shown."""

    data: Mapping[str, Any]
    kind: str

    def normalise(self) -> None:
        """Tidy what the constructor was given."""
        super().normalise()
        normalise_json(self, "data")


class RecoveryEntry(Entry, frozen=True, kw_only=True, tag="recovery"):
    """What a crash had left open was closed."""

    aborted_calls: tuple[str, ...] = ()
    """Calls that got an aborted result."""
    failed_messages: tuple[str, ...] = ()
    """Partial messages that ended as failed."""

    def normalise(self) -> None:
        """Tidy what the constructor was given."""
        super().normalise()
        normalise_tuple(self, "aborted_calls")
        normalise_tuple(self, "failed_messages")


class UnknownEntry(Struct, frozen=True, kw_only=True):
    """An entry of a kind that this version does not know, kept byte for byte."""

    created_at: datetime
    id: str
    raw: Raw
    seq: int
    session_id: str
    type: str


KnownEntry = (
    MessageEntry
    | ErrorEntry
    | TaskMetadataEntry
    | SwapEntry
    | CompactionEntry
    | CheckpointEntry
    | RewindEntry
    | RetractionEntry
    | ForkEntry
    | BookmarkEntry
    | SidecarEntry
    | RecoveryEntry
)
AnyEntry = KnownEntry | UnknownEntry

ENTRY_TYPES: dict[str, type[Entry]] = {
    str(kind.__struct_config__.tag): kind for kind in KnownEntry.__args__
}
"""Every kind of entry by its tag."""


class _Head(Struct):
    """What every entry has, known or not."""

    created_at: Annotated[datetime, Meta(tz=True)]
    id: str
    session_id: str
    type: str
    seq: int = 0


_read_fast = msgspec.json.Decoder(KnownEntry).decode
_read_head = msgspec.json.Decoder(_Head).decode
_split_object = msgspec.json.Decoder(dict[str, Raw]).decode


def encode_entry(entry: AnyEntry) -> bytes:
    """The canonical JSON of an entry; an unknown one is written as it was read."""
    return bytes(entry.raw) if isinstance(entry, UnknownEntry) else canonical_bytes(entry)


def decode_entry(data: bytes | str, *, limits: Limits = LIMITS) -> AnyEntry:
    """An entry from its JSON; what is unknown in it is kept.

    Raises:
        DecodeError: the bytes are no entry; `path` names the place.
    """
    data = to_bytes(data)
    try:
        entry = _read_fast(data)
        if encode_fast(entry) == data and len(data) <= limits.max_bytes:
            return entry
    except (ValueError, RecursionError):
        pass
    return _read_carefully(data, limits)


def place_entry(entry: AnyEntry, *, session_id: str, seq: int) -> AnyEntry:
    """The same entry at another place."""
    if not isinstance(entry, UnknownEntry):
        return replace(entry, session_id=session_id, seq=seq)
    fields = _split_object(entry.raw)
    fields["session_id"] = Raw(msgspec.json.encode(session_id))
    fields["seq"] = Raw(msgspec.json.encode(seq))
    raw = Raw(msgspec.json.encode(fields, order="sorted"))
    return replace(entry, raw=raw, session_id=session_id, seq=seq)


def _read_carefully(data: bytes, limits: Limits) -> AnyEntry:
    check_json(data, limits)
    try:
        head = _read_head(data)
    except msgspec.ValidationError as error:
        raise DecodeError(f"not an entry: {error}") from None
    kind = ENTRY_TYPES.get(head.type)
    unknown: list[str] = []
    if kind is None:
        log.warning("entry %s: the unknown kind %.80r is kept as it is", head.id, head.type)
        return UnknownEntry(
            created_at=to_utc(head.created_at),
            id=head.id,
            raw=Raw(data),
            seq=head.seq,
            session_id=head.session_id,
            type=head.type,
        )
    entry: AnyEntry = read_fields(kind, _split_object(data), "$", unknown)
    if unknown:
        log.warning("entry %s: unknown parts are kept: %s", head.id, ", ".join(unknown))
    return entry
