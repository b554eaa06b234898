"""The history format of klaude-code: JSON lines, each a typed event."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from metis.canonical.errors import DecodeError
from metis.canonical.ids import new_ulid
from metis.canonical.message import Role
from metis.interchange.aside import Difference
from metis.interchange.desk import Desk
from metis.interchange.document import Record, first_object, line_records, shaped
from metis.interchange.format import Format, entry_of
from metis.interchange.klaude import types
from metis.interchange.klaude.messages import (
    SAID,
    decode_moment,
    decode_result,
    decode_said,
    encode_message,
    encode_moment,
    has_no_zone,
)
from metis.interchange.klaude.parts import SYSTEM, has_same_arguments
from metis.store.entries import (
    CompactionEntry,
    ErrorEntry,
    KnownEntry,
    MessageEntry,
    RetractionEntry,
    SidecarEntry,
    TaskMetadataEntry,
)
from metis.wire.shape import Wire

_REASON_OF = {name: reason for reason, names in types.REFUSED.items() for name in names}
_EVENTS = ("ToolResultMessage", "StreamErrorItem", "TaskMetadataItem")
_KNOWN = {*SAID, *_REASON_OF, *_EVENTS, "CompactionEntry", "RetractEntry"}
_NONE = (None,)


class KlaudeHistory(Format):
    """`events.jsonl` of klaude-code: messages, errors, task metadata and summaries in order."""

    name = "klaude-code"
    system = SYSTEM
    silent = {  # noqa: RUF012 - a table, read only
        "id": _NONE,
        "response_id": _NONE,
        "usage": _NONE,
        "stop_reason": _NONE,
        "mime_type": _NONE,
        "byte_size": _NONE,
        "sha256": _NONE,
        "model_id": _NONE,
        "format": _NONE,
        "ui_extra": _NONE,
        "side_effects": (None, []),
        "task_metadata": _NONE,
        "parts": ([],),
        "attachment_position": ("append",),
        "call_id": ("",),
        "tool_name": ("",),
        "model_name": ("",),
        "provider": _NONE,
        "tokens_before": _NONE,
        "details": _NONE,
        "kept_items_brief": ([],),
        "input_tokens": (0,),
        "cached_tokens": (0,),
        "reasoning_tokens": (0,),
        "output_tokens": (0,),
        "currency": ("USD",),
        "input_cost": _NONE,
        "output_cost": _NONE,
        "cache_read_cost": _NONE,
    }

    def fits(self, data: bytes) -> bool:
        """Whether the first line is a typed event."""
        first = first_object(data)
        return first is not None and isinstance(first.get("data"), dict) and "type" in first

    def split(self, data: bytes) -> Iterable[Record]:
        """The lines."""
        return line_records(data, self.name)

    def join(self, records: list[Wire], entries: Sequence[KnownEntry]) -> bytes:  # noqa: ARG002 - every format has it
        """One line for each record, spelled as klaude-code spells it."""
        lines = [json.dumps(record, ensure_ascii=False) + "\n" for record in records]
        return "".join(lines).encode()

    def decode(self, record: Wire, desk: Desk) -> list[KnownEntry]:
        """The entry of one line."""
        line = shaped(types.Line, record, "$")
        if line.type in _REASON_OF:
            reason = f"{line.type} does not belong into a history: {_REASON_OF[line.type]}"
            raise DecodeError(reason, path="$.type")
        entry = self._decode(line, desk)
        is_message = isinstance(entry, MessageEntry)
        desk.message_ids.append(entry.id if is_message else None)
        _remember_user(entry, desk)
        return [entry]

    def _decode(self, line: types.Line, desk: Desk) -> KnownEntry:
        if line.type in SAID:
            return entry_of(decode_said(line.type, line.data, desk))
        if line.type == "ToolResultMessage":
            return entry_of(decode_result(line.data, desk))
        return _decode_event(line, desk)

    def encode(self, entries: Sequence[KnownEntry], desk: Desk) -> Wire | None:
        """The line of one entry."""
        entry = entries[0]
        if not isinstance(entry, MessageEntry):
            return _encode_event(entry, desk)
        _remember_user(entry, desk)
        return encode_message(entry.message, desk)

    def prepare(self, entries: list[KnownEntry], desk: Desk) -> list[KnownEntry]:
        """Number the messages, for summaries that say where the kept part begins."""
        desk.message_ids = [
            entry.id if isinstance(entry, MessageEntry) else None for entry in entries
        ]
        return entries

    def says_the_same(self, difference: Difference) -> bool:
        """Times and arguments can be spelled in several ways."""
        key = difference.steps[-1] if difference.steps else ""
        if key == "arguments_json":
            return has_same_arguments(difference.plain, difference.actual)
        if key == "created_at" and isinstance(difference.plain, str):
            actual = difference.actual
            return isinstance(actual, str) and not has_no_zone(actual)
        if key == "role":
            return not isinstance(difference.actual, str)
        return super().says_the_same(difference)


def _remember_user(entry: KnownEntry, desk: Desk) -> None:
    """The last message of the user is the one that a retraction takes back."""
    if isinstance(entry, MessageEntry) and entry.message.role == Role.USER:
        desk.turns["user"] = entry.id


def _decode_event(line: types.Line, desk: Desk) -> KnownEntry:
    data = line.data
    common: dict[str, Any] = {"id": new_ulid(), "session_id": desk.context.session_id}
    stated = data.get("created_at")
    moment = decode_moment(stated) if isinstance(stated, str) else None
    common["created_at"] = moment or desk.context.created_at
    rest = {key: value for key, value in data.items() if key != "created_at" or moment is None}
    match line.type:
        case "StreamErrorItem":
            return ErrorEntry(text=shaped(types.StreamErrorItem, data, "$.data").error, **common)
        case "TaskMetadataItem":
            return TaskMetadataEntry(data=rest, **common)
        case "CompactionEntry":
            return _decode_summary(shaped(types.CompactionEntry, data, "$.data"), desk, common)
        case "RetractEntry" if "user" in desk.turns:
            return RetractionEntry(message_id=desk.turns["user"], **common)
        case _:
            entry = SidecarEntry(kind=line.type, data=rest, **common)
            desk.lose(entry, line.type, "$", "an event that we do not know; kept as it is")
            return entry


def _decode_summary(wire: types.CompactionEntry, desk: Desk, common: dict[str, Any]) -> KnownEntry:
    kept = desk.message_ids[max(wire.first_kept_index, 0) :]
    return CompactionEntry(
        summary=wire.summary,
        first_kept_id=next((found for found in kept if found is not None), None),
        tokens_before=wire.tokens_before,
        details=wire.details,
        kept_brief=tuple(wire.kept_items_brief),
        **common,
    )


def _encode_event(entry: KnownEntry, desk: Desk) -> Wire | None:
    moment = encode_moment(entry.created_at)
    match entry:
        case ErrorEntry():
            return _line("StreamErrorItem", {"error": entry.text, "created_at": moment})
        case TaskMetadataEntry():
            return _line("TaskMetadataItem", {**entry.data, **_moment(entry.data, moment)})
        case CompactionEntry():
            return _line("CompactionEntry", _encode_summary(entry, desk) | {"created_at": moment})
        case RetractionEntry() if entry.message_id == desk.turns.get("user"):
            return _line("RetractEntry", {"created_at": moment})
        case SidecarEntry() if entry.kind not in _KNOWN:
            return _line(entry.kind, {**entry.data, **_moment(entry.data, moment)})
        case _:
            return None


def _encode_summary(entry: CompactionEntry, desk: Desk) -> Wire:
    ids = desk.message_ids
    kept = entry.first_kept_id
    return {
        "summary": entry.summary,
        "first_kept_index": ids.index(kept) if kept in ids else len(ids),
        "tokens_before": entry.tokens_before,
        "details": entry.details,
        "kept_items_brief": list(entry.kept_brief),
    }


def _moment(data: Any, moment: str) -> Wire:
    return {} if "created_at" in data else {"created_at": moment}


def _line(name: str, data: Wire) -> Wire:
    return {"type": name, "data": data}
