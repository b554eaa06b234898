"""Calls and results of attocode, and the blocks that they stand for."""

import json
from collections.abc import Sequence
from typing import Any

from metis.canonical.blocks import InvalidInput, TextBlock, ToolResultBlock, ToolUseBlock
from metis.canonical.message import Message, Role
from metis.canonical.metadata import Outcome, OutcomeStatus
from metis.interchange.attocode import types
from metis.interchange.desk import Desk, told
from metis.streaming.arguments import read_arguments
from metis.wire.shape import Wire

RAW = "_raw"
"""Where a call keeps the text of arguments that were no JSON."""


def decode_call(call: types.ToolCall, desk: Desk) -> ToolUseBlock:
    """The block of a call; what could not be parsed is never taken for an input."""
    ours = desk.open_call(call.id, call.name)
    if call.parseError is None:
        return ToolUseBlock(ours, call.name, call.arguments)
    raw = call.arguments.get(RAW)
    if set(call.arguments) != {RAW} or not isinstance(raw, str):
        raw = json.dumps(call.arguments, ensure_ascii=False)
    return ToolUseBlock(ours, call.name, {}, InvalidInput(raw=raw, error=call.parseError))


def encode_calls(message: Message, desk: Desk) -> list[Wire]:
    """The calls of a message."""
    blocks = [block for block in message.content if isinstance(block, ToolUseBlock)]
    names = desk.foreign_calls(message)
    return [
        _encode_call(block, name or block.id) for block, name in zip(blocks, names, strict=True)
    ]


def _encode_call(block: ToolUseBlock, foreign: str) -> Wire:
    wire: Wire = {"id": foreign, "name": block.name}
    if block.invalid is None:
        return wire | {"arguments": block.input}
    found, fault = read_arguments(block.invalid.raw)
    arguments = {RAW: block.invalid.raw} if fault is not None else found
    return wire | {"arguments": arguments, "parseError": block.invalid.error}


def decode_result(result: types.ToolResult, desk: Desk, path: str) -> Message:
    """The message of one result: its text for models, its value for programs."""
    said = result.result if result.error is None else result.error
    text = said if isinstance(said, str) else json.dumps(said, ensure_ascii=False)
    content = (TextBlock(text),)
    answered = desk.answer_call(result.callId)
    if answered is None:
        message = desk.message(Role.USER, told(content))
        reason = "it answers no open call of this history; here it is told by the user"
        desk.lose(message, "tool_result", path, reason)
        return message
    failed = result.error is not None
    outcome = Outcome(
        status=OutcomeStatus.ERROR if failed else OutcomeStatus.SUCCESS, value=result.result
    )
    block = ToolResultBlock(answered, content, failed)
    return desk.message(Role.TOOL, (block,), parent_tool_use_id=answered, outcome=outcome)


def encode_result(message: Message, desk: Desk) -> Wire | None:
    """A result with its value; the text stands for it where there is no value."""
    block = message.content[0] if message.content else None
    if not isinstance(block, ToolResultBlock):
        return None
    text = text_of(block)
    outcome = message.metadata.outcome
    value: Any = text if outcome is None else outcome.value
    wire: Wire = {"callId": desk.foreign_call(block.tool_use_id), "result": value}
    return wire | {"error": text} if block.is_error else wire


def text_of(block: ToolResultBlock) -> str:
    """The text of a result."""
    return "".join(inner.text for inner in block.content if isinstance(inner, TextBlock))


def decode_calls(calls: Sequence[types.ToolCall] | None, desk: Desk) -> list[ToolUseBlock]:
    """The blocks of calls."""
    return [decode_call(call, desk) for call in calls or ()]


def call_ids(calls: Sequence[types.ToolCall] | None) -> Wire:
    """What is kept of calls for the way back: their ids."""
    return {"calls": [call.id for call in calls]} if calls else {}
