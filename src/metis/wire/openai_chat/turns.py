"""Turns of Chat Completions: what the messages of a conversation become in a request.

Each message is one turn; turns are kept as bytes, so that the next request writes what is new.
"""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from metis.canonical.blocks import ContentBlock, TextBlock, ToolResultBlock, ToolUseBlock
from metis.canonical.message import Message, Role
from metis.canonical.tools import ToolDefinition
from metis.wire.body import TurnRecord
from metis.wire.call import AdapterOptions
from metis.wire.openai_chat.options import encode_options
from metis.wire.openai_chat.parts import PROTOCOL, write_json
from metis.wire.openai_chat.request import encode_message
from metis.wire.spelling import NOTHING
from metis.wire.tool_ids import derived_id

_ASSISTANT, _TOOL = Role.ASSISTANT, Role.TOOL


class _Said(Struct, gc=False):
    content: str
    role: str


class _Result(Struct, gc=False):
    content: str
    tool_call_id: str
    role: str = "tool"


class _Function(Struct, gc=False):
    arguments: str
    name: str


class _Call(Struct, gc=False):
    function: _Function
    id: str
    type: str = "function"


class _Asked(Struct, gc=False):
    content: str | None
    tool_calls: list[_Call]
    role: str = "assistant"


def encode_request(
    messages: Sequence[Message], tools: Sequence[ToolDefinition], options: AdapterOptions
) -> bytes:
    """The request body for messages that were projected for this protocol."""
    turns = Turns()
    turns.add(messages)
    return turns.body(tools, options)


class Turns:
    """The turns of a conversation, written once each."""

    def __init__(self) -> None:
        self._turns = TurnRecord()
        self._ids: dict[str, str] = {}

    def copy(self) -> "Turns":
        """The same turns, to which others can be added."""
        other = Turns()
        other._turns = self._turns.copy()
        other._ids = self._ids
        return other

    def body(self, tools: Sequence[ToolDefinition], options: AdapterOptions) -> bytes:
        """The request body with these turns."""
        return self._turns.body(encode_options(options, tools), "messages", write_json)

    def add(self, messages: Sequence[Message]) -> None:
        """Add messages that were projected for this protocol."""
        turns: list[Any] = []
        for message in messages:
            raw = message.metadata.provider_raw
            spelling = NOTHING if raw is None else raw.get(PROTOCOL, NOTHING)
            turn = None
            if spelling:
                self._ids.update(spelling.get("ids") or NOTHING)
            else:
                turn = self._plain(message.role, message.content)
            turns.append(turn or encode_message(message, spelling, self._wire_id))
        self._turns.add(turns)

    def _plain(self, role: Role, content: Sequence[ContentBlock]) -> Struct | None:
        """The turn of a message of texts and calls; None for all others."""
        if not content:
            return None
        first = content[0]
        if len(content) == 1:
            if type(first) is TextBlock and role is not _TOOL:
                return None if first.citations else _Said(first.text, role)
            if type(first) is ToolResultBlock:
                return self._result(first)
        return self._asked(content) if role is _ASSISTANT else None

    def _result(self, result: ToolResultBlock) -> _Result | None:
        if len(result.content) != 1 or result.is_error:
            return None
        only = result.content[0]
        if type(only) is not TextBlock:
            return None
        return _Result(only.text, self._wire_id(result.tool_use_id))

    def _asked(self, content: Sequence[ContentBlock]) -> _Asked | None:
        text = None
        calls: list[_Call] = []
        for block in content:
            if type(block) is ToolUseBlock:
                invalid = block.invalid
                arguments = invalid.raw if invalid else write_json(block.input).decode()
                calls.append(_Call(_Function(arguments, block.name), self._wire_id(block.id)))
            elif type(block) is TextBlock and text is None and not calls and not block.citations:
                text = block.text
            else:
                return None
        return _Asked(text, calls)

    def _wire_id(self, ours: str) -> str:
        theirs = self._ids.get(ours)
        return derived_id(ours, "call_") if theirs is None else theirs
