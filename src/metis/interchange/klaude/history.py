"""The history format of klaude-code: JSON lines, each a typed event."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from msgspec import UNSET

from metis.canonical.blocks import TextBlock, ToolResultBlock
from metis.canonical.errors import DecodeError
from metis.canonical.ids import new_ulid
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageStatus, Outcome, OutcomeStatus
from metis.interchange.conversion import (
    NO_MATCHING_CALL,
    ConversionContext,
    foreign_fields,
    orphan_result_content,
    parse_time,
)
from metis.interchange.document import convert_to, first_object
from metis.interchange.format import Format, entry_of
from metis.interchange.klaude import types
from metis.interchange.klaude.parts import (
    STOP_REASONS,
    SYSTEM,
    decode_model,
    decode_parts,
    decode_usage,
    encode_parts,
    encode_stop_reason,
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
"""The types of messages that consist of parts."""

_TYPE_OF_ROLE = {role: name for name, (role, _) in MESSAGE_TYPES.items()}
_STATUS_OF_STOP = {"error": MessageStatus.ERROR, "aborted": MessageStatus.CANCELLED}
_REFUSAL = {name: reason for reason, names in types.REFUSED.items() for name in names}
_EVENTS = ("ToolResultMessage", "StreamErrorItem", "TaskMetadataItem")
_MODELLED_TYPES = {*MESSAGE_TYPES, *_REFUSAL, *_EVENTS, "CompactionEntry", "RetractEntry"}
_COUNTS = ("input_tokens", "cached_tokens", "reasoning_tokens", "output_tokens")
_NULLABLE_KEYS = (
    *("id", "response_id", "usage", "stop_reason", "mime_type", "byte_size", "sha256", "model_id"),
    *("format", "ui_extra", "task_metadata", "provider", "tokens_before", "details"),
    *("input_cost", "output_cost", "cache_read_cost"),
)


class KlaudeHistory(Format):
    """`events.jsonl` of klaude-code: messages, errors, task metadata and summaries in order."""

    name = "klaude-code"
    system = SYSTEM
    default_values = {  # noqa: RUF012 - a table, read only
        **dict.fromkeys(_NULLABLE_KEYS, (None,)),
        **dict.fromkeys(_COUNTS, (0,)),
        **dict.fromkeys(("call_id", "tool_name", "model_name"), ("",)),
        **dict.fromkeys(("parts", "kept_items_brief"), ([],)),
        "attachment_position": ("append",),
        "currency": ("USD",),
        "side_effects": (None, []),
    }

    def fits(self, data: bytes) -> bool:
        """Return whether the first line is a typed event."""
        first = first_object(data)
        return first is not None and isinstance(first.get("data"), dict) and "type" in first

    def decode(self, record: Wire, conversion: ConversionContext) -> list[KnownEntry]:
        """Return the entry of one line."""
        line = convert_to(types.Line, record, "$")
        # Such lines mean that the file is not a stored history; guessing would mix two
        # conversations.
        if line.type in _REFUSAL:
            reason = f"{line.type} does not belong into a history: {_REFUSAL[line.type]}"
            raise DecodeError(reason, path="$.type")
        entry = self._decode(line, conversion)
        is_message = isinstance(entry, MessageEntry)
        # Summaries refer to records by index, and not every record is a message.
        conversion.message_ids.append(entry.id if is_message else None)
        _note_user_message(entry, conversion)
        return [entry]

    def _decode(self, line: types.Line, conversion: ConversionContext) -> KnownEntry:
        if line.type in MESSAGE_TYPES:
            return entry_of(decode_message(line.type, line.data, conversion))
        if line.type == "ToolResultMessage":
            return entry_of(decode_result(line.data, conversion))
        return _decode_event(line, conversion)

    def encode(self, entries: Sequence[KnownEntry], conversion: ConversionContext) -> Wire | None:
        """Return the line of one entry."""
        entry = entries[0]
        if not isinstance(entry, MessageEntry):
            return _encode_event(entry, conversion)
        _note_user_message(entry, conversion)
        return encode_message(entry.message, conversion)

    def prepare(self, entries: list[KnownEntry], conversion: ConversionContext) -> list[KnownEntry]:
        """Number the messages, for summaries that say where the part begins that stays."""
        conversion.message_ids = [
            entry.id if isinstance(entry, MessageEntry) else None for entry in entries
        ]
        return entries

    def is_equivalent(self, difference: Difference) -> bool:
        """Return whether both values mean the same; times and arguments have several forms."""
        key = difference.key
        if key == "arguments_json":
            return has_same_arguments(difference.expected, difference.actual)
        if key == "created_at" and isinstance(difference.expected, str):
            actual = difference.actual
            return isinstance(actual, str) and not lacks_time_zone(actual)
        # A missing role is implied by the type of the line.
        if key == "role":
            return not isinstance(difference.actual, str)
        return super().is_equivalent(difference)


def _note_user_message(entry: KnownEntry, conversion: ConversionContext) -> None:
    # A retraction names no message: it hides the last one of the user.
    if isinstance(entry, MessageEntry) and entry.message.role == Role.USER:
        conversion.turns["user"] = entry.id


def decode_message(name: str, data: Wire, conversion: ConversionContext) -> Message:
    """Return a message that consists of parts."""
    role, kind = MESSAGE_TYPES[name]
    _check_role(data, role)
    wire = convert_to(kind, data, "$.data")
    created_at = decode_time(wire.created_at)
    blocks, calls = decode_parts(wire.parts, role, conversion)
    is_empty = not blocks and role != Role.SYSTEM
    if is_empty:
        blocks = [TextBlock("")]
    foreign: dict[str, Any] = {"id": wire.id}
    if calls:
        foreign["calls"] = calls
    metadata: dict[str, Any] = {}
    if isinstance(wire, types.AssistantMessage):
        metadata = _decode_response_metadata(wire)
    elif isinstance(wire, types.DeveloperMessage):
        metadata = {"prepended": wire.attachment_position == "prepend"}
    message = conversion.message(
        role,
        blocks,
        foreign=foreign,
        created_at=created_at,
        response_id=wire.response_id,
        **metadata,
    )
    if is_empty:
        reason = "a message without parts; an empty text was added"
        conversion.add_loss(message, "text", "$.data.parts", reason, Change.SYNTHESISED)
    _add_time_loss(wire.created_at, message, conversion)
    return message


def _decode_response_metadata(wire: types.AssistantMessage) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    if wire.usage is not None:
        usage = convert_to(types.Usage, wire.usage, "$.data.usage")
        metadata = {"usage": decode_usage(usage), **decode_model(usage)}
    if wire.stop_reason is not None:
        metadata["stop_reason"] = STOP_REASONS[wire.stop_reason]
        metadata["status"] = _STATUS_OF_STOP.get(wire.stop_reason, MessageStatus.COMPLETE)
    return metadata


def decode_result(data: Wire, conversion: ConversionContext) -> Message:
    """Return the message of a tool result; without its call it becomes a user message."""
    _check_role(data, Role.TOOL)
    wire = convert_to(types.ToolResultMessage, data, "$.data")
    parts, _ = decode_parts(wire.parts, Role.TOOL, conversion)
    texts = [TextBlock(wire.output_text)] if wire.output_text else []
    common: dict[str, Any] = {
        "foreign": {"id": wire.id},
        "created_at": decode_time(wire.created_at),
        "response_id": wire.response_id,
    }
    tool_use_id = conversion.match_tool_result(wire.call_id)
    if tool_use_id is None:
        content = orphan_result_content([*texts, *parts])
        message = conversion.message(Role.USER, content, **common)
        conversion.add_loss(message, "tool_result", "$", NO_MATCHING_CALL)
        return message
    result = ToolResultBlock(tool_use_id, (*texts, *parts), wire.status != "success")
    outcome = Outcome(
        status=OutcomeStatus(wire.status),
        tool_name=wire.tool_name,
        ui=UNSET if wire.ui_extra is None else wire.ui_extra,
        side_effects=tuple(wire.side_effects or ()),
    )
    message = conversion.message(
        Role.TOOL, (result,), parent_tool_use_id=tool_use_id, outcome=outcome, **common
    )
    _add_time_loss(wire.created_at, message, conversion)
    return message


def encode_message(message: Message, conversion: ConversionContext) -> Wire | None:
    """Return the line of a message; None if klaude-code has no type for its role."""
    if message.role == Role.TOOL:
        return _encode_result(message, conversion)
    name = _TYPE_OF_ROLE.get(message.role)
    if name is None:
        return None
    calls = conversion.foreign_call_ids(message)
    data = _common_fields(message)
    data |= {
        "role": str(message.role),
        "parts": encode_parts(message.content, calls, message.metadata.model),
    }
    if message.role == Role.ASSISTANT:
        data["usage"] = encode_usage(message.metadata)
        data["stop_reason"] = encode_stop_reason(message.metadata)
    elif message.role == Role.DEVELOPER and message.metadata.prepended:
        data["attachment_position"] = "prepend"
    return {"type": name, "data": data}


def _encode_result(message: Message, conversion: ConversionContext) -> Wire | None:
    block = message.content[0] if message.content else None
    if not isinstance(block, ToolResultBlock):
        return None
    outcome = message.metadata.outcome
    ui = UNSET if outcome is None else outcome.ui
    status = "error" if block.is_error else "success"
    # klaude-code has one text per result, before all other parts.
    texts = [inner.text for inner in block.content if isinstance(inner, TextBlock)]
    media = [inner for inner in block.content if not isinstance(inner, TextBlock)]
    data = _common_fields(message)
    data |= {
        "role": "tool",
        "call_id": conversion.foreign_call_id(block.tool_use_id),
        "tool_name": "" if outcome is None else outcome.tool_name or "",
        "status": status if outcome is None else str(outcome.status),
        "output_text": "".join(texts),
        "parts": encode_parts(media, (), None),
        "ui_extra": None if ui is UNSET else ui,
        "side_effects": list(outcome.side_effects) if outcome and outcome.side_effects else None,
        "task_metadata": None,
    }
    return {"type": "ToolResultMessage", "data": data}


def _common_fields(message: Message) -> Wire:
    return {
        "id": foreign_fields(message, SYSTEM).get("id", message.id),
        "created_at": encode_time(message.created_at),
        "response_id": message.metadata.response_id,
    }


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


def _add_time_loss(text: str | None, message: Message, conversion: ConversionContext) -> None:
    path = "$.data.created_at"
    if text is None:
        reason = "no time; the time of the import was added"
        conversion.add_loss(message, "created_at", path, reason, Change.SYNTHESISED)
    elif lacks_time_zone(text):
        conversion.add_loss(message, "created_at", path, "a time without a zone; read as UTC")


def lacks_time_zone(text: str) -> bool:
    """Return whether a time has no time zone."""
    return datetime.fromisoformat(text).tzinfo is None


def _check_role(data: Wire, role: Role) -> None:
    actual = data.get("role", role)
    # Two statements about one message contradict each other; neither can be trusted.
    if actual != role:
        raise DecodeError(f"expected the role {role}, got {actual!r}", path="$.data.role")


def _decode_event(line: types.Line, conversion: ConversionContext) -> KnownEntry:
    data, context = line.data, conversion.request_context
    stated = data.get("created_at")
    # Events of other programs may hold anything under this key.
    created_at = decode_time(stated) if isinstance(stated, str) else None
    common: dict[str, Any] = {
        "id": new_ulid(),
        "session_id": context.session_id,
        "created_at": created_at or context.created_at,
    }
    # A time that could not be read stays in the data, so that it is written back.
    rest = {key: value for key, value in data.items() if key != "created_at" or not created_at}
    match line.type:
        case "StreamErrorItem":
            error = convert_to(types.StreamErrorItem, data, "$.data")
            return ErrorEntry(text=error.error, **common)
        case "TaskMetadataItem":
            return TaskMetadataEntry(data=rest, **common)
        case "CompactionEntry":
            summary = convert_to(types.CompactionEntry, data, "$.data")
            return _decode_summary(summary, conversion, common)
        case "RetractEntry" if "user" in conversion.turns:
            return RetractionEntry(message_id=conversion.turns["user"], **common)
        case _:
            entry = SidecarEntry(kind=line.type, data=rest, **common)
            conversion.add_loss(entry, line.type, "$", "an unknown event; kept as it is")
            return entry


def _decode_summary(
    wire: types.CompactionEntry, conversion: ConversionContext, common: dict[str, Any]
) -> KnownEntry:
    # The index may point at an event; the first message after it stays.
    remaining = conversion.message_ids[max(wire.first_kept_index, 0) :]
    return CompactionEntry(
        summary=wire.summary,
        first_kept_id=next((name for name in remaining if name is not None), None),
        tokens_before=wire.tokens_before,
        details=wire.details,
        kept_brief=tuple(wire.kept_items_brief),
        **common,
    )


def _encode_event(entry: KnownEntry, conversion: ConversionContext) -> Wire | None:
    created_at = encode_time(entry.created_at)
    match entry:
        case ErrorEntry():
            return _line("StreamErrorItem", {"error": entry.text, "created_at": created_at})
        case TaskMetadataEntry():
            return _line("TaskMetadataItem", _with_time(entry.data, created_at))
        case CompactionEntry():
            summary = _encode_summary(entry, conversion)
            return _line("CompactionEntry", summary | {"created_at": created_at})
        case RetractionEntry() if entry.message_id == conversion.turns.get("user"):
            return _line("RetractEntry", {"created_at": created_at})
        case SidecarEntry() if entry.kind not in _MODELLED_TYPES:
            return _line(entry.kind, _with_time(entry.data, created_at))
        case _:
            return None


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


def _with_time(data: Any, created_at: str) -> Wire:
    return {**data} if "created_at" in data else {**data, "created_at": created_at}


def _line(name: str, data: Wire) -> Wire:
    return {"type": name, "data": data}
