"""Messages of klaude-code's history, and ours."""

from datetime import datetime
from typing import Any

from msgspec import UNSET

from metis.canonical.blocks import TextBlock, ToolResultBlock
from metis.canonical.errors import DecodeError
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageStatus, Outcome, OutcomeStatus
from metis.interchange.desk import Desk, foreign_of, read_moment, told
from metis.interchange.document import shaped
from metis.interchange.klaude import types
from metis.interchange.klaude.parts import SYSTEM, decode_parts, encode_parts
from metis.interchange.klaude.usage import (
    STOP_REASONS,
    decode_model,
    decode_usage,
    encode_stop,
    encode_usage,
)
from metis.projection.loss import Change
from metis.wire.shape import Wire

SAID = {
    "SystemMessage": (Role.SYSTEM, types.SystemMessage),
    "DeveloperMessage": (Role.DEVELOPER, types.DeveloperMessage),
    "UserMessage": (Role.USER, types.UserMessage),
    "AssistantMessage": (Role.ASSISTANT, types.AssistantMessage),
}
"""The types of messages that are made of parts."""

_NAMES = {role: name for name, (role, _) in SAID.items()}
_ENDED = {"error": MessageStatus.ERROR, "aborted": MessageStatus.CANCELLED}


def decode_said(name: str, data: Wire, desk: Desk) -> Message:
    """A message that is made of parts."""
    role, kind = SAID[name]
    _check_role(data, role)
    wire = shaped(kind, data, "$.data")
    moment = decode_moment(wire.created_at)
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
        desk.lose(message, "text", "$.data.parts", reason, Change.SYNTHESISED)
    _lose_zone(wire.created_at, message, desk)
    return message


def _decode_answer(wire: types.AssistantMessage) -> dict[str, Any]:
    about: dict[str, Any] = {}
    if wire.usage is not None:
        usage = shaped(types.Usage, wire.usage, "$.data.usage")
        about = {"usage": decode_usage(usage), **decode_model(usage)}
    if wire.stop_reason is not None:
        about["stop_reason"] = STOP_REASONS[wire.stop_reason]
        about["status"] = _ENDED.get(wire.stop_reason, MessageStatus.COMPLETE)
    return about


def decode_result(data: Wire, desk: Desk) -> Message:
    """The result of a call; one whose call is not in the history becomes words of the user."""
    _check_role(data, Role.TOOL)
    wire = shaped(types.ToolResultMessage, data, "$.data")
    parts, _ = decode_parts(wire.parts, Role.TOOL, desk)
    said = [TextBlock(wire.output_text)] if wire.output_text else []
    foreign: dict[str, Any] = {"id": wire.id}
    facts: dict[str, Any] = {
        "foreign": foreign,
        "created_at": decode_moment(wire.created_at),
        "response_id": wire.response_id,
    }
    answered = desk.answer_call(wire.call_id)
    if answered is None:
        message = desk.message(Role.USER, told([*said, *parts]), **facts)
        reason = "it answers no open call of this history; here it is told by the user"
        desk.lose(message, "tool_result", "$", reason)
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


def encode_message(message: Message, desk: Desk) -> Wire | None:
    """The line of a message."""
    if message.role == Role.TOOL:
        return _encode_result(message, desk)
    name = _NAMES.get(message.role)
    if name is None:
        return None
    calls = desk.foreign_calls(message)
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


def _encode_result(message: Message, desk: Desk) -> Wire | None:
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
        "call_id": desk.foreign_call(block.tool_use_id),
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
        "id": foreign_of(message, SYSTEM).get("id", message.id),
        "created_at": encode_moment(message.created_at),
        "response_id": message.metadata.response_id,
    }


def encode_moment(moment: datetime) -> str:
    """A time as klaude-code writes it."""
    return moment.isoformat().replace("+00:00", "Z")


def decode_moment(text: str | None) -> datetime | None:
    """A time of a record; None where the record has none."""
    if text is None:
        return None
    moment = read_moment(text)
    if moment is None:
        raise DecodeError(f"{text!r} is not a time", path="$.data.created_at")
    return moment


def _lose_zone(text: str | None, message: Message, desk: Desk) -> None:
    if text is None:
        reason, change = "it has no time; here the time of the import", Change.SYNTHESISED
        desk.lose(message, "created_at", "$.data.created_at", reason, change)
    elif has_no_zone(text):
        reason = "a time without a zone; read as UTC"
        desk.lose(message, "created_at", "$.data.created_at", reason)


def has_no_zone(text: str) -> bool:
    """Whether a time leaves open where it was so late."""
    return datetime.fromisoformat(text).tzinfo is None


def _check_role(data: Wire, role: Role) -> None:
    found = data.get("role", role)
    if found != role:
        raise DecodeError(f"expected the role {role}, got {found!r}", path="$.data.role")
