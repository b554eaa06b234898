"""Entries of klaude-code that are not messages, and the messages that they hide.

A file is only appended to: a rewind and a retraction are lines behind the messages that they hide,
and refer to them by a checkpoint, a text or a line.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from metis.canonical.blocks import TextBlock
from metis.canonical.errors import DecodeError
from metis.canonical.ids import new_ulid
from metis.canonical.message import Message, Role
from metis.interchange.conversion import ConversionContext, parse_time
from metis.interchange.document import convert_to
from metis.interchange.klaude import types
from metis.store.entries import (
    CompactionEntry,
    ErrorEntry,
    KnownEntry,
    MessageEntry,
    RetractionEntry,
    RewindEntry,
    SidecarEntry,
    TaskMetadataEntry,
)
from metis.wire.json_access import Wire

REFUSAL = {name: reason for reason, names in types.REFUSED.items() for name in names}
"""Why no history may hold a line, by the name of its type."""
POSITION_KEYS = frozenset({"first_kept_line", "retracted_text", "retracted_line"})
"""How lines name messages; newer files name them twice."""
_WRITTEN_ELSEWHERE = frozenset(
    {
        *REFUSAL,
        *("SystemMessage", "DeveloperMessage", "UserMessage", "AssistantMessage"),
        *("ToolResultMessage", "StreamErrorItem", "TaskMetadataItem"),
        *("CompactionEntry", "RewindEntry"),
    }
)
_CHECKPOINT = re.compile(r"<system-reminder>Checkpoint (\d{1,18})</system-reminder>", re.ASCII)


class ActiveMessages:
    """The messages of a history that no rewind or retraction hides so far."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._positions: dict[str, int] = {}
        self._user_positions: list[int] = []
        self._checkpoints: dict[int, str] = {}
        self._texts_of_user: dict[str, str] = {}

    def add(self, message: Message) -> None:
        """Add the next message; adding it again changes nothing."""
        if message.id in self._positions:
            return
        position = self._positions[message.id] = len(self._messages)
        self._messages.append(message)
        if message.role == Role.USER:
            self._user_positions.append(position)
            self._texts_of_user[message.id] = text_of(message)
        for number in _checkpoints_of(message):
            # The first message that names a checkpoint is the one to which a rewind goes.
            self._checkpoints.setdefault(number, message.id)

    def target_of(self, checkpoint: int) -> str | None:
        """Return the message that a rewind goes back to.

        A checkpoint that no message names hides nothing: it is the newest message.
        """
        newest = self._messages[-1].id if self._messages else None
        return self._checkpoints.get(checkpoint, newest)

    def rewind(self, target: str | None) -> None:
        """Hide every message after one of them."""
        position = -1 if target is None else self._positions.get(target, len(self._messages))
        self._hide_from(position + 1)

    def retracted(self, text: str | None, line_id: str | None) -> str | None:
        """Return the id of the message that a retraction withdraws; None if none fits."""
        if line_id in self._positions and line_id in self._texts_of_user:
            return line_id
        if not self._user_positions:
            return None
        newest = self._messages[self._user_positions[-1]]
        # A wrong text means that the line is about a message which is not here.
        return newest.id if text in (None, self._texts_of_user[newest.id]) else None

    def retract(self, message_id: str) -> str | None:
        """Hide a message of the user and what follows it, as our retraction does.

        Returns:
            The text of the message, also if it was hidden before; None if it is not a user message.
        """
        self._hide_from(self._positions.get(message_id, len(self._messages)))
        return self._texts_of_user.get(message_id)

    def _hide_from(self, start: int) -> None:
        for message in self._messages[start:]:
            del self._positions[message.id]
            for number in _checkpoints_of(message):
                if self._checkpoints.get(number) == message.id:
                    del self._checkpoints[number]
        del self._messages[start:]
        while self._user_positions and self._user_positions[-1] >= start:
            self._user_positions.pop()


def text_of(message: Message) -> str:
    """Return the text of a message."""
    return "".join(block.text for block in message.content if isinstance(block, TextBlock))


def _checkpoints_of(message: Message) -> list[int]:
    if message.role != Role.DEVELOPER:
        return []
    return [int(number) for number in _CHECKPOINT.findall(text_of(message))]


def note_message(entry: KnownEntry, conversion: ConversionContext) -> None:
    """Add a message to those that later lines may refer to."""
    if isinstance(entry, MessageEntry):
        _active(conversion).add(entry.message)


def _active(conversion: ConversionContext) -> ActiveMessages:
    if not isinstance(conversion.active, ActiveMessages):
        conversion.active = ActiveMessages()
    return conversion.active


def encode_time(moment: datetime) -> str:
    """Return a time as klaude-code writes it."""
    return moment.isoformat().replace("+00:00", "Z")


def decode_time(text: str | None) -> datetime | None:
    """Return the time of a record; None if the record has none."""
    if text is None:
        return None
    moment = parse_time(text)
    if moment is None:
        raise DecodeError(f"{text!r} is not a time", path="$.data.created_at")
    return moment


def lacks_time_zone(text: str) -> bool:
    """Return whether a time has no time zone."""
    return datetime.fromisoformat(text).tzinfo is None


def decode_event(line: types.Line, conversion: ConversionContext) -> KnownEntry:
    """Return the entry of a line that is not a message."""
    data, context = line.data, conversion.request_context
    time_text = data.get("created_at")
    # Events of other programs may hold anything under this key.
    created_at = decode_time(time_text) if isinstance(time_text, str) else None
    common: dict[str, Any] = {
        "id": new_ulid(),
        "session_id": context.session_id,
        "created_at": created_at or context.created_at,
    }
    # A time that could not be read stays in the data, so that it is written back.
    fields = {key: value for key, value in data.items() if key != "created_at" or not created_at}
    entry: KnownEntry | None
    match line.type:
        case "StreamErrorItem":
            error = convert_to(types.StreamErrorItem, data, "$.data")
            entry = ErrorEntry(text=error.error, **common)
        case "TaskMetadataItem":
            entry = TaskMetadataEntry(data=fields, **common)
        case "CompactionEntry":
            entry = _decode_summary(data, conversion, common)
        case "RewindEntry":
            entry = _decode_rewind(data, conversion, common)
        case "RetractEntry":
            entry = _decode_retraction(data, conversion, common)
        case _:
            entry = None
    if entry is None:
        entry = SidecarEntry(kind=line.type, data=fields, **common)
        conversion.add_loss(entry, line.type, "$", "an unknown event; stored unchanged")
    return entry


def _decode_summary(
    data: Wire, conversion: ConversionContext, common: dict[str, Any]
) -> CompactionEntry:
    wire = convert_to(types.CompactionEntry, data, "$.data")
    # The index may point at an event; the first message after it stays. A line wins over an index,
    # which counts only what was not hidden then.
    first = wire.first_kept_index if wire.first_kept_line is None else wire.first_kept_line
    remaining = conversion.message_ids[max(first, 0) :]
    return CompactionEntry(
        summary=wire.summary,
        first_kept_id=next((name for name in remaining if name is not None), None),
        tokens_before=wire.tokens_before,
        details=wire.details,
        kept_brief=tuple(wire.kept_items_brief),
        **common,
    )


def _decode_rewind(
    data: Wire, conversion: ConversionContext, common: dict[str, Any]
) -> RewindEntry:
    wire = convert_to(types.RewindEntry, data, "$.data")
    active = _active(conversion)
    target = active.target_of(wire.checkpoint_id)
    active.rewind(target)
    details = {
        "reverted_from_index": wire.reverted_from_index,
        "original_user_message": wire.original_user_message,
    }
    return RewindEntry(
        checkpoint=wire.checkpoint_id,
        details={key: value for key, value in details.items() if value is not None} or None,
        note=wire.note or None,
        reason=wire.rationale or None,
        to_id=target,
        **common,
    )


def _decode_retraction(
    data: Wire, conversion: ConversionContext, common: dict[str, Any]
) -> RetractionEntry | None:
    wire = convert_to(types.RetractEntry, data, "$.data")
    ids, number = conversion.message_ids, wire.retracted_line
    line_id = ids[number] if number is not None and 0 <= number < len(ids) else None
    active = _active(conversion)
    message_id = active.retracted(wire.retracted_text, line_id)
    if message_id is None:
        return None
    active.retract(message_id)
    return RetractionEntry(message_id=message_id, **common)


def encode_event(entry: KnownEntry, conversion: ConversionContext) -> Wire | None:
    """Return the line of an entry that is not a message; None if klaude-code has none."""
    name: str
    data: Mapping[str, Any] | None
    match entry:
        case ErrorEntry():
            name, data = "StreamErrorItem", {"error": entry.text}
        case TaskMetadataEntry():
            name, data = "TaskMetadataItem", entry.data
        case CompactionEntry():
            name, data = "CompactionEntry", _encode_summary(entry, conversion)
        case RewindEntry() if entry.checkpoint is not None:
            name, data = "RewindEntry", _encode_rewind(entry, entry.checkpoint, conversion)
        case RetractionEntry():
            name, data = "RetractEntry", _encode_retraction(entry, conversion)
        case SidecarEntry() if entry.kind not in _WRITTEN_ELSEWHERE:
            name, data = entry.kind, entry.data
        case _:
            return None
    if data is None:
        return None
    timed = {} if "created_at" in data else {"created_at": encode_time(entry.created_at)}
    return {"type": name, "data": {**data, **timed}}


def _encode_summary(entry: CompactionEntry, conversion: ConversionContext) -> Wire:
    ids = conversion.message_ids
    first_id = entry.first_kept_id
    return {
        "summary": entry.summary,
        "first_kept_index": ids.index(first_id) if first_id in ids else len(ids),
        "tokens_before": entry.tokens_before,
        "details": entry.details,
        "kept_items_brief": list(entry.kept_brief),
    }


def _encode_rewind(
    entry: RewindEntry, checkpoint: int, conversion: ConversionContext
) -> Wire | None:
    active = _active(conversion)
    # klaude-code goes where the checkpoint is, so a rewind to another message cannot be written.
    if active.target_of(checkpoint) != entry.to_id:
        return None
    active.rewind(entry.to_id)
    details = entry.details or {}
    return {
        "checkpoint_id": checkpoint,
        "note": entry.note or "",
        "rationale": entry.reason or "",
        "reverted_from_index": details.get("reverted_from_index", 0),
        "original_user_message": details.get("original_user_message", ""),
    }


def _encode_retraction(entry: RetractionEntry, conversion: ConversionContext) -> Wire | None:
    text = _active(conversion).retract(entry.message_id)
    return None if text is None else {"retracted_text": text}
