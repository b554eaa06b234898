"""The history format of klaude-code: JSON lines, each a typed event."""

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET

from metis.canonical.blocks import TextBlock, ToolResultBlock
from metis.canonical.errors import DecodeError
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageStatus, Outcome, OutcomeStatus
from metis.interchange.conversion import (
    NO_MATCHING_CALL,
    ConversionContext,
    foreign_fields,
    orphan_result_content,
)
from metis.interchange.document import convert_to, first_object
from metis.interchange.format import Format, entry_of
from metis.interchange.klaude import types
from metis.interchange.klaude.events import (
    POSITION_KEYS,
    REFUSAL,
    decode_event,
    decode_time,
    encode_event,
    encode_time,
    lacks_time_zone,
    note_message,
)
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
from metis.store.entries import KnownEntry, MessageEntry
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
        **dict.fromkeys(("note", "rationale", "original_user_message"), ("",)),
        "reverted_from_index": (0,),
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
        if line.type in REFUSAL:
            reason = f"{line.type} does not belong into a history: {REFUSAL[line.type]}"
            raise DecodeError(reason, path="$.type")
        entry = self._decode(line, conversion)
        is_message = isinstance(entry, MessageEntry)
        # Summaries refer to records by index, and not every record is a message.
        conversion.message_ids.append(entry.id if is_message else None)
        note_message(entry, conversion)
        return [entry]

    def _decode(self, line: types.Line, conversion: ConversionContext) -> KnownEntry:
        if line.type in MESSAGE_TYPES:
            return entry_of(decode_message(line.type, line.data, conversion))
        if line.type == "ToolResultMessage":
            return entry_of(decode_result(line.data, conversion))
        return decode_event(line, conversion)

    def encode(self, entries: Sequence[KnownEntry], conversion: ConversionContext) -> Wire | None:
        """Return the line of one entry."""
        entry = entries[0]
        if not isinstance(entry, MessageEntry):
            return encode_event(entry, conversion)
        note_message(entry, conversion)
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
        if key in POSITION_KEYS:
            return True
        # A missing role is implied by the type of the line.
        if key == "role":
            return not isinstance(difference.actual, str)
        return super().is_equivalent(difference)


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


def _add_time_loss(text: str | None, message: Message, conversion: ConversionContext) -> None:
    path = "$.data.created_at"
    if text is None:
        reason = "no time; the time of the import was added"
        conversion.add_loss(message, "created_at", path, reason, Change.SYNTHESISED)
    elif lacks_time_zone(text):
        conversion.add_loss(message, "created_at", path, "a time without a zone; read as UTC")


def _check_role(data: Wire, role: Role) -> None:
    actual = data.get("role", role)
    # Two statements about one message contradict each other; neither can be trusted.
    if actual != role:
        raise DecodeError(f"expected the role {role}, got {actual!r}", path="$.data.role")
