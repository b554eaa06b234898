"""Entries of a session's journal, in order: messages, and typed records of other events.

A complete message is never rewritten. A later change of the conversation is another entry: a model
swap, a summary, a rewind, a retraction. Views for users and models are derived from the entries;
see `threads` and `replay`.
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
    set_field,
)

log = logging.getLogger("metis.store")

PARENT_KIND = "session.parent"
"""The kind of the sidecar entry of a sub-agent that names its parent session and tool call."""


class Entry(Value, frozen=True, kw_only=True, tag_field="type"):
    """The fields that all entries share."""

    created_at: Annotated[datetime, Meta(tz=True)]
    external: Mapping[str, Any] | None = None
    """Fields of another system that have no canonical place, by system."""
    id: str
    seq: Count = 0
    """The sequence number in the session, from 1; 0 until the entry is stored."""
    session_id: str

    def normalise(self) -> None:
        """Convert the fields to their canonical form."""
        super().normalise()
        normalise_json(self, "external")
        set_field(self, "created_at", to_utc(self.created_at))


class MessageEntry(Entry, frozen=True, kw_only=True, tag="message"):
    """A message; id, session and time of the entry are those of the message."""

    message: Message


def entry_of(message: Message) -> MessageEntry:
    """Return the entry of a message, without a sequence number."""
    return MessageEntry(
        id=message.id, session_id=message.session_id, created_at=message.created_at, message=message
    )


class ErrorEntry(Entry, frozen=True, kw_only=True, tag="error"):
    """A failure, which a replay shows."""

    code: str | None = None
    data: Mapping[str, Any] | None = None
    kind: str | None = None
    """The kind of failure, such as the class of the error."""
    message_id: str | None = None
    """The message that was being written, if there is one."""
    provider: str | None = None
    retryable: bool = False
    status: Count | None = None
    text: str
    json_fields = ("data",)


class TaskMetadataEntry(Entry, frozen=True, kw_only=True, tag="task_metadata"):
    """Totals of a task: models, tokens, cost and time over all its turns."""

    data: Mapping[str, Any]
    message_id: str | None = None
    """The message that ended the task, if there is one."""
    json_fields = ("data",)


class SwapEntry(Entry, frozen=True, kw_only=True, tag="swap"):
    """A swap: from here on another model is used."""

    from_model: str | None = None
    reason: str | None = None
    to_model: str


class CompactionEntry(Entry, frozen=True, kw_only=True, tag="compaction"):
    """A compaction: from here on one summary replaces all messages before `first_kept_id`."""

    details: Mapping[str, Any] | None = None
    first_kept_id: str | None = None
    """The first message that is not summarised; None if all earlier ones are."""
    head_id: str | None = None
    """The newest message of the summarised thread; None is the newest of the session."""
    kept_brief: tuple[Any, ...] = ()
    """A short list of the messages that are not summarised, for users."""
    summary: str
    tokens_before: Count | None = None
    json_fields = ("details", "kept_brief")
    tuple_fields = ("kept_brief",)


class CheckpointEntry(Entry, frozen=True, kw_only=True, tag="checkpoint"):
    """A numbered point to which a conversation can be rewound."""

    message_id: str | None = None
    """The newest message at that point; None is before the first."""
    number: Count


class RewindEntry(Entry, frozen=True, kw_only=True, tag="rewind"):
    """A rewind: the messages after `to_id` are hidden."""

    checkpoint: Count | None = None
    details: Mapping[str, Any] | None = None
    head_id: str | None = None
    """The newest message of the rewound thread; None is the newest of the session."""
    note: str | None = None
    """A note for the model about the hidden part."""
    reason: str | None = None
    to_id: str | None = None
    """The message that becomes the newest; None hides all messages."""
    json_fields = ("details",)


class RetractionEntry(Entry, frozen=True, kw_only=True, tag="retraction"):
    """A retraction: a message is hidden together with all that follow it."""

    message_id: str
    reason: str | None = None


class ForkEntry(Entry, frozen=True, kw_only=True, tag="fork"):
    """A fork: this session began as a copy of another, up to one of its messages."""

    message_ids: Mapping[str, str]
    """The message ids of the copies by those of the originals."""
    source_message_id: str | None = None
    """The last message that was copied; None if there was none."""
    source_session_id: str
    tool_use_ids: Mapping[str, str]
    """The tool call ids of the copies by those of the originals."""
    json_fields = ("message_ids", "tool_use_ids")


class BookmarkEntry(Entry, frozen=True, kw_only=True, tag="bookmark"):
    """A bookmark is set on a message, moved there, or removed."""

    message_id: str | None = None
    """None removes the bookmark."""
    name: str


class SidecarEntry(Entry, frozen=True, kw_only=True, tag="sidecar"):
    """Data for users or programs, which models do not get."""

    data: Mapping[str, Any]
    kind: str
    json_fields = ("data",)


class RecoveryEntry(Entry, frozen=True, kw_only=True, tag="recovery"):
    """A recovery: messages and calls that a crash left open were closed."""

    aborted_calls: tuple[str, ...] = ()
    """Calls that got an aborted result."""
    failed_messages: tuple[str, ...] = ()
    """Partial messages that ended as failed."""
    tuple_fields = ("aborted_calls", "failed_messages")


class UnknownEntry(Struct, frozen=True, kw_only=True):
    """An entry of a kind that this version does not know, preserved byte for byte."""

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
"""Entry classes by tag."""


class _Head(Struct):
    """The fields that every entry has, of a known kind or not."""

    created_at: Annotated[datetime, Meta(tz=True)]
    id: str
    session_id: str
    type: str
    seq: int = 0


_read_fast = msgspec.json.Decoder(KnownEntry).decode
_read_head = msgspec.json.Decoder(_Head).decode
_split_object = msgspec.json.Decoder(dict[str, Raw]).decode


def encode_entry(entry: AnyEntry) -> bytes:
    """Return the canonical JSON of an entry; an unknown entry has its original bytes."""
    return bytes(entry.raw) if isinstance(entry, UnknownEntry) else canonical_bytes(entry)


def decode_entry(data: bytes | str, *, limits: Limits = LIMITS) -> AnyEntry:
    """Decode an entry from its JSON; unknown fields are preserved.

    Raises:
        DecodeError: the bytes are not an entry; `path` is the place of the fault.
    """
    data = to_bytes(data)
    try:
        entry = _read_fast(data)
        # The fast decoder ignores unknown fields; equal bytes prove that there were none.
        if encode_fast(entry) == data and len(data) <= limits.max_bytes:
            return entry
    except (ValueError, RecursionError):
        pass  # unknown fields or invalid input, which the complete decoder distinguishes
    return _decode_completely(data, limits)


def decode_trusted_entry(data: bytes) -> "KnownEntry":
    """Decode bytes that `encode_entry` wrote for a known entry; faster than `decode_entry`.

    Raises:
        DecodeError: the bytes are not a known entry; `path` is the place of the fault.
    """
    try:
        return _read_fast(data)
    except (ValueError, RecursionError):
        entry = _decode_completely(data, LIMITS)
    if isinstance(entry, UnknownEntry):
        raise DecodeError(f"an entry of the unknown kind {entry.type!r}")
    return entry


def place_entry(entry: AnyEntry, *, session_id: str, seq: int) -> AnyEntry:
    """Return an entry with another session and sequence number."""
    if not isinstance(entry, UnknownEntry):
        return replace(entry, session_id=session_id, seq=seq)
    # The other fields of an unknown kind stay byte for byte as they were.
    fields = _split_object(entry.raw)
    fields["session_id"] = Raw(msgspec.json.encode(session_id))
    fields["seq"] = Raw(msgspec.json.encode(seq))
    raw = Raw(msgspec.json.encode(fields, order="sorted"))
    return replace(entry, raw=raw, session_id=session_id, seq=seq)


def _decode_completely(data: bytes, limits: Limits) -> AnyEntry:
    check_json(data, limits)
    try:
        head = _read_head(data)
    except msgspec.ValidationError as error:
        raise DecodeError(f"not an entry: {error}") from None
    kind = ENTRY_TYPES.get(head.type)
    unknown: list[str] = []
    if kind is None:
        log.warning("entry %s: the unknown kind %.80r is preserved", head.id, head.type)
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
        log.warning("entry %s: unknown parts are preserved: %s", head.id, ", ".join(unknown))
    return entry
