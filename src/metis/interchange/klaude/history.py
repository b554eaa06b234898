"""The history format of klaude-code: JSON lines, each a typed event."""

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from msgspec import UNSET

from metis.canonical.blocks import TextBlock, ToolResultBlock
from metis.canonical.errors import DecodeError
from metis.canonical.ids import new_ulid
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageStatus, Outcome, OutcomeStatus
from metis.interchange.conversion import (
    ConversionContext,
    foreign_fields,
    orphan_result_content,
    parse_time,
)
from metis.interchange.document import Record, convert_to, first_object, line_records
from metis.interchange.format import Format, entry_of
from metis.interchange.klaude import types
from metis.interchange.klaude.parts import (
    STOP_REASONS,
    SYSTEM,
    decode_model,
    decode_parts,
    decode_usage,
    encode_parts,
    encode_stop,
    encode_usage,
    has_same_arguments,
)
from metis.interchange.residue import Difference
from metis.projection.loss import Change
from metis.store.entries import (
    CompactionEntry,
    ErrorEntry,
    KnownEntry,
    MessageEntry,
    RetractionEntry,
    SidecarEntry,
    TaskMetadataEntry,
)
from metis.wire.json_access import Wire

MESSAGE_TYPES = {
    "SystemMessage": (Role.SYSTEM, types.SystemMessage),
    "DeveloperMessage": (Role.DEVELOPER, types.DeveloperMessage),
    "UserMessage": (Role.USER, types.UserMessage),
    "AssistantMessage": (Role.ASSISTANT, types.AssistantMessage),
}
"""The types of messages that are made of parts."""

_NAMES = {role: name for name, (role, _) in MESSAGE_TYPES.items()}
_ENDED = {"error": MessageStatus.ERROR, "aborted": MessageStatus.CANCELLED}


def decode_message(name: str, data: Wire, desk: ConversionContext) -> Message:
    """A message that is made of parts."""
    role, kind = MESSAGE_TYPES[name]
    _check_role(data, role)
    wire = convert_to(kind, data, "$.data")
    moment = decode_time(wire.created_at)
    blocks, calls = decode_parts(wire.parts, role, desk)
    is_empty = not blocks and role != Role.SYSTEM
    if is_empty:
        blocks = [TextBlock("")]
    foreign: dict[str, Any] = {"id": wire.id}
    if calls:
        foreign["calls"] = calls
    about: dict[str, Any] = {}
    if isinstance(wire, types.AssistantMessage):
        about = _decode_answer(wire)
    elif isinstance(wire, types.DeveloperMessage):
        about = {"prepended": wire.attachment_position == "prepend"}
    message = desk.message(
        role, blocks, foreign=foreign, created_at=moment, response_id=wire.response_id, **about
    )
    if is_empty:
        reason = "a message without parts; here it holds an empty text"
        desk.add_loss(message, "text", "$.data.parts", reason, Change.SYNTHESISED)
    _lose_zone(wire.created_at, message, desk)
    return message


def _decode_answer(wire: types.AssistantMessage) -> dict[str, Any]:
    about: dict[str, Any] = {}
    if wire.usage is not None:
        usage = convert_to(types.Usage, wire.usage, "$.data.usage")
        about = {"usage": decode_usage(usage), **decode_model(usage)}
    if wire.stop_reason is not None:
        about["stop_reason"] = STOP_REASONS[wire.stop_reason]
        about["status"] = _ENDED.get(wire.stop_reason, MessageStatus.COMPLETE)
    return about


def decode_result(data: Wire, desk: ConversionContext) -> Message:
    """The result of a call; one whose call is not in the history becomes words of the user."""
    _check_role(data, Role.TOOL)
    wire = convert_to(types.ToolResultMessage, data, "$.data")
    parts, _ = decode_parts(wire.parts, Role.TOOL, desk)
    said = [TextBlock(wire.output_text)] if wire.output_text else []
    foreign: dict[str, Any] = {"id": wire.id}
    facts: dict[str, Any] = {
        "foreign": foreign,
        "created_at": decode_time(wire.created_at),
        "response_id": wire.response_id,
    }
    answered = desk.match_tool_result(wire.call_id)
    if answered is None:
        message = desk.message(Role.USER, orphan_result_content([*said, *parts]), **facts)
        reason = "it answers no open call of this history; here it is told by the user"
        desk.add_loss(message, "tool_result", "$", reason)
        return message
    result = ToolResultBlock(answered, (*said, *parts), wire.status != "success")
    outcome = Outcome(
        status=OutcomeStatus(wire.status),
        tool_name=wire.tool_name,
        ui=UNSET if wire.ui_extra is None else wire.ui_extra,
        side_effects=tuple(wire.side_effects or ()),
    )
    message = desk.message(
        Role.TOOL, (result,), parent_tool_use_id=answered, outcome=outcome, **facts
    )
    _lose_zone(wire.created_at, message, desk)
    return message


def encode_message(message: Message, desk: ConversionContext) -> Wire | None:
    """The line of a message."""
    if message.role == Role.TOOL:
        return _encode_result(message, desk)
    name = _NAMES.get(message.role)
    if name is None:
        return None
    calls = desk.foreign_call_ids(message)
    data = _common(message)
    data |= {
        "role": str(message.role),
        "parts": encode_parts(message.content, calls, message.metadata.model),
    }
    if message.role == Role.ASSISTANT:
        data["usage"] = encode_usage(message.metadata)
        data["stop_reason"] = encode_stop(message.metadata)
    elif message.role == Role.DEVELOPER and message.metadata.prepended:
        data["attachment_position"] = "prepend"
    return {"type": name, "data": data}


def _encode_result(message: Message, desk: ConversionContext) -> Wire | None:
    block = message.content[0] if message.content else None
    if not isinstance(block, ToolResultBlock):
        return None
    outcome = message.metadata.outcome
    ui = UNSET if outcome is None else outcome.ui
    status = "error" if block.is_error else "success"
    texts = [inner.text for inner in block.content if isinstance(inner, TextBlock)]
    rest = [inner for inner in block.content if not isinstance(inner, TextBlock)]
    data = _common(message)
    data |= {
        "role": "tool",
        "call_id": desk.foreign_call_id(block.tool_use_id),
        "tool_name": "" if outcome is None else outcome.tool_name or "",
        "status": status if outcome is None else str(outcome.status),
        "output_text": "".join(texts),
        "parts": encode_parts(rest, (), None),
        "ui_extra": None if ui is UNSET else ui,
        "side_effects": list(outcome.side_effects) if outcome and outcome.side_effects else None,
        "task_metadata": None,
    }
    return {"type": "ToolResultMessage", "data": data}


def _common(message: Message) -> Wire:
    return {
        "id": foreign_fields(message, SYSTEM).get("id", message.id),
        "created_at": encode_time(message.created_at),
        "response_id": message.metadata.response_id,
    }


def encode_time(moment: datetime) -> str:
    """A time as klaude-code writes it."""
    return moment.isoformat().replace("+00:00", "Z")


def decode_time(text: str | None) -> datetime | None:
    """A time of a record; None where the record has none."""
    if text is None:
        return None
    moment = parse_time(text)
    if moment is None:
        raise DecodeError(f"{text!r} is not a time", path="$.data.created_at")
    return moment


def _lose_zone(text: str | None, message: Message, desk: ConversionContext) -> None:
    if text is None:
        reason, change = "it has no time; here the time of the import", Change.SYNTHESISED
        desk.add_loss(message, "created_at", "$.data.created_at", reason, change)
    elif lacks_time_zone(text):
        reason = "a time without a zone; read as UTC"
        desk.add_loss(message, "created_at", "$.data.created_at", reason)


def lacks_time_zone(text: str) -> bool:
    """Whether a time leaves open where it was so late."""
    return datetime.fromisoformat(text).tzinfo is None


def _check_role(data: Wire, role: Role) -> None:
    found = data.get("role", role)
    if found != role:
        raise DecodeError(f"expected the role {role}, got {found!r}", path="$.data.role")


_REASON_OF = {name: reason for reason, names in types.REFUSED.items() for name in names}
_EVENTS = ("ToolResultMessage", "StreamErrorItem", "TaskMetadataItem")
_KNOWN = {*MESSAGE_TYPES, *_REASON_OF, *_EVENTS, "CompactionEntry", "RetractEntry"}
_NONE = (None,)


class KlaudeHistory(Format):
    """`events.jsonl` of klaude-code: messages, errors, task metadata and summaries in order."""

    name = "klaude-code"
    system = SYSTEM
    default_values = {  # noqa: RUF012 - a table, read only
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

    def decode(self, record: Wire, desk: ConversionContext) -> list[KnownEntry]:
        """The entry of one line."""
        line = convert_to(types.Line, record, "$")
        if line.type in _REASON_OF:
            reason = f"{line.type} does not belong into a history: {_REASON_OF[line.type]}"
            raise DecodeError(reason, path="$.type")
        entry = self._decode(line, desk)
        is_message = isinstance(entry, MessageEntry)
        desk.message_ids.append(entry.id if is_message else None)
        _remember_user(entry, desk)
        return [entry]

    def _decode(self, line: types.Line, desk: ConversionContext) -> KnownEntry:
        if line.type in MESSAGE_TYPES:
            return entry_of(decode_message(line.type, line.data, desk))
        if line.type == "ToolResultMessage":
            return entry_of(decode_result(line.data, desk))
        return _decode_event(line, desk)

    def encode(self, entries: Sequence[KnownEntry], desk: ConversionContext) -> Wire | None:
        """The line of one entry."""
        entry = entries[0]
        if not isinstance(entry, MessageEntry):
            return _encode_event(entry, desk)
        _remember_user(entry, desk)
        return encode_message(entry.message, desk)

    def prepare(self, entries: list[KnownEntry], desk: ConversionContext) -> list[KnownEntry]:
        """Number the messages, for summaries that say where the kept part begins."""
        desk.message_ids = [
            entry.id if isinstance(entry, MessageEntry) else None for entry in entries
        ]
        return entries

    def is_equivalent(self, difference: Difference) -> bool:
        """Times and arguments can be spelled in several ways."""
        key = difference.steps[-1] if difference.steps else ""
        if key == "arguments_json":
            return has_same_arguments(difference.plain, difference.actual)
        if key == "created_at" and isinstance(difference.plain, str):
            actual = difference.actual
            return isinstance(actual, str) and not lacks_time_zone(actual)
        if key == "role":
            return not isinstance(difference.actual, str)
        return super().is_equivalent(difference)


def _remember_user(entry: KnownEntry, desk: ConversionContext) -> None:
    """The last message of the user is the one that a retraction takes back."""
    if isinstance(entry, MessageEntry) and entry.message.role == Role.USER:
        desk.turns["user"] = entry.id


def _decode_event(line: types.Line, desk: ConversionContext) -> KnownEntry:
    data = line.data
    common: dict[str, Any] = {"id": new_ulid(), "session_id": desk.request_context.session_id}
    stated = data.get("created_at")
    moment = decode_time(stated) if isinstance(stated, str) else None
    common["created_at"] = moment or desk.request_context.created_at
    rest = {key: value for key, value in data.items() if key != "created_at" or moment is None}
    match line.type:
        case "StreamErrorItem":
            return ErrorEntry(
                text=convert_to(types.StreamErrorItem, data, "$.data").error, **common
            )
        case "TaskMetadataItem":
            return TaskMetadataEntry(data=rest, **common)
        case "CompactionEntry":
            return _decode_summary(convert_to(types.CompactionEntry, data, "$.data"), desk, common)
        case "RetractEntry" if "user" in desk.turns:
            return RetractionEntry(message_id=desk.turns["user"], **common)
        case _:
            entry = SidecarEntry(kind=line.type, data=rest, **common)
            desk.add_loss(entry, line.type, "$", "an event that we do not know; kept as it is")
            return entry


def _decode_summary(
    wire: types.CompactionEntry, desk: ConversionContext, common: dict[str, Any]
) -> KnownEntry:
    kept = desk.message_ids[max(wire.first_kept_index, 0) :]
    return CompactionEntry(
        summary=wire.summary,
        first_kept_id=next((found for found in kept if found is not None), None),
        tokens_before=wire.tokens_before,
        details=wire.details,
        kept_brief=tuple(wire.kept_items_brief),
        **common,
    )


def _encode_event(entry: KnownEntry, desk: ConversionContext) -> Wire | None:
    moment = encode_time(entry.created_at)
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


def _encode_summary(entry: CompactionEntry, desk: ConversionContext) -> Wire:
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
