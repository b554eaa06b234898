"""Turns of Chat Completions: what the messages of a conversation become in a request.

Each message is one turn; turns are kept as bytes, so that the next request writes what is new.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from metis.canonical.blocks import ContentBlock, TextBlock, ToolResultBlock, ToolUseBlock
from metis.canonical.message import Message, Role
from metis.canonical.tools import ToolDefinition
from metis.wire.body import TurnRecord
from metis.wire.call import AdapterOptions
from metis.wire.openai_chat.assistant import kept_call
from metis.wire.openai_chat.cache import with_marks
from metis.wire.openai_chat.options import encode_options
from metis.wire.openai_chat.parts import PROTOCOL, write_json
from metis.wire.openai_chat.request import encode_message
from metis.wire.shape import Wire
from metis.wire.spelling import NOTHING
from metis.wire.tool_ids import OURS, derived_id

_ASSISTANT, _TOOL, _USER = Role.ASSISTANT, Role.TOOL, Role.USER
_PREFIX = "call_"
_PLAIN = frozenset({"calls", "ids", "response"})
"""What the spelling of a message may hold that is written like one of ours."""


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
    tool_calls: list[_Call | Wire]
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

    def __init__(self, turns: TurnRecord | None = None) -> None:
        self._turns = turns or TurnRecord("messages", write_json)
        self._ids: dict[str, str] = {}

    def copy(self) -> "Turns":
        """The same turns, to which others can be added."""
        other = Turns(self._turns.copy())
        other._ids = self._ids
        return other

    def body(self, tools: Sequence[ToolDefinition], options: AdapterOptions) -> bytes:
        """The request body with these turns."""
        return self._turns.body(tools, options, encode_options)

    def add(self, messages: Sequence[Message], ids: Mapping[str, str] = NOTHING) -> None:
        """Add messages that were projected for this protocol; `ids` are those of odd calls."""
        self._ids.update(ids)
        turns: list[Any] = []
        for message in messages:
            raw = message.metadata.provider_raw
            spelling = NOTHING if raw is None else raw.get(PROTOCOL, NOTHING)
            turn = None
            if spelling:
                self._ids.update(spelling.get("ids") or NOTHING)
            hints = message.metadata.hints
            if spelling.keys() <= _PLAIN and not hints:
                turn = self._plain(message.role, message.content, spelling)
            if turn is None:
                turn = encode_message(message, spelling, self._wire_id)
                if hints:
                    turn = with_marks(turn, message.content, hints)
            turns.append(turn)
        self._turns.add(turns)

    def _plain(
        self, role: Role, content: Sequence[ContentBlock], spelling: Mapping[str, Any]
    ) -> Struct | None:
        """The turn of a message of texts and calls; None for all others."""
        if len(content) == 1:
            only = content[0]
            if type(only) is TextBlock and role is not _TOOL:
                return None if only.citations else _Said(only.text, _word(role))
            if type(only) is ToolResultBlock:
                return self._result(only)
        return self._asked(content, spelling) if content and role is _ASSISTANT else None

    def _result(self, result: ToolResultBlock) -> _Result | None:
        inner = result.content
        if len(inner) != 1 or result.is_error:
            return None
        only, call = inner[0], result.tool_use_id
        if type(only) is not TextBlock:
            return None
        theirs = self._ids.get(call)
        return _Result(only.text, _PREFIX + call.removeprefix(OURS) if theirs is None else theirs)

    def _asked(self, content: Sequence[ContentBlock], spelling: Mapping[str, Any]) -> _Asked | None:
        text = None
        calls: list[_Call | Wire] = []
        ids, odd = self._ids, spelling.get("calls", NOTHING)
        for block in content:
            if type(block) is ToolUseBlock:
                if odd and (kept := kept_call(block, spelling, self._wire_id)) is not None:
                    calls.append(kept)
                    continue
                invalid, call = block.invalid, block.id
                arguments = invalid.raw if invalid else write_json(block.input).decode()
                theirs = ids.get(call)
                if theirs is None:
                    theirs = _PREFIX + call.removeprefix(OURS)
                calls.append(_Call(_Function(arguments, block.name), theirs))
            elif type(block) is TextBlock and text is None and not calls and not block.citations:
                text = block.text
            else:
                return None
        return _Asked(text, calls)

    def _wire_id(self, ours: str) -> str:
        theirs = self._ids.get(ours)
        return derived_id(ours, _PREFIX) if theirs is None else theirs


def _word(role: Role) -> str:
    """Who speaks, in the protocol's words."""
    if role is _USER:
        return "user"
    return "assistant" if role is _ASSISTANT else str(role)
