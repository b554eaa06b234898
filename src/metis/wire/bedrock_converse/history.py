"""History of Bedrock Converse: canonical messages as the `messages` of a request.

Roles alternate in this protocol, so that neighbours of one role share a wire message: tool
results, and what the user writes after them. Wire messages are encoded once and stored as bytes;
the last one stays open.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from metis.canonical.blocks import ContentBlock, TextBlock, ToolResultBlock, ToolUseBlock
from metis.canonical.message import Message, Role
from metis.canonical.tools import ToolDefinition
from metis.wire.bedrock_converse.blocks import (
    PROTOCOL,
    TextPart,
    ToolResult,
    ToolResultPart,
    ToolUse,
    ToolUsePart,
    encode_block,
    with_cache_points,
)
from metis.wire.bedrock_converse.options import encode_options
from metis.wire.call import AdapterOptions
from metis.wire.history import EncodedMessages
from metis.wire.json_access import Wire
from metis.wire.original_form import EMPTY, original_blocks, original_form_of
from metis.wire.tool_ids import TOOL_ID_PREFIX

# Keys are sorted, so that a history gives the same bytes before and after it was stored (T176).
_write = msgspec.json.Encoder(order="deterministic").encode
WIRE_ID_PREFIX = "tooluse_"
"""How an id begins that is derived from ours."""
_ASSISTANT, _SYSTEM, _TOOL, _USER = Role.ASSISTANT, Role.SYSTEM, Role.TOOL, Role.USER


def _word(role: Role) -> str:
    """Who speaks, in the protocol's words."""
    if role is _ASSISTANT:
        return "assistant"
    return "user" if role is _USER or role is _TOOL else str(role)


class _Turn(Struct, gc=False):
    content: list[Any]
    role: str


class ConverseHistoryEncoder:
    """The turns of a conversation, written once each."""

    def __init__(self) -> None:
        self._closed = EncodedMessages("messages", _write)
        self._last: _Turn | Wire | None = None
        self._ids: dict[str, str] = {}
        self._system: list[Message] = []

    def copy(self) -> "ConverseHistoryEncoder":
        """The same turns, to which others can be added."""
        other = ConverseHistoryEncoder()
        other._closed = self._closed.copy()
        other._last = self._last
        other._ids = self._ids
        other._system = self._system
        return other

    def body(self, tools: Sequence[ToolDefinition], options: AdapterOptions) -> bytes:
        """The request body with these turns."""
        return self._closed.body(tools, options, self._around, self._last)

    def _around(self, options: AdapterOptions, tools: Sequence[ToolDefinition]) -> Wire:
        wire = encode_options(options, tools)
        if self._system:
            wire["system"] = [part for one in self._system for part in self._parts(one)]
        return wire

    def add(self, messages: Sequence[Message], ids: Mapping[str, str] = EMPTY) -> None:
        """Add messages that were projected for this protocol; `ids` are those of odd calls."""
        self._ids.update(ids)
        if self._last is None:
            messages = self._without_system(messages)
        turns: list[_Turn | Wire] = [] if self._last is None else [_reopened(self._last)]
        for message in messages:
            spelling = original_form_of(message, PROTOCOL)
            parts, word = self._parts(message), _word(message.role)
            before = turns[-1] if turns else None
            if before is not None and _role_of(before) == word and "apart" not in spelling:
                _content_of(before).extend(parts)
            elif "keys" in spelling:
                turns.append({"role": word, "content": parts, **spelling["keys"]})
            else:
                turns.append(_Turn(parts, word))
        if turns:
            self._last = turns.pop()
        self._closed.add(turns)

    def _without_system(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Leading instructions stand beside the turns, not among them."""
        count = next((i for i, m in enumerate(messages) if not _is_aside(m)), len(messages))
        self._system = [*self._system, *messages[:count]]
        return messages[count:]

    def _parts(self, message: Message) -> list[Any]:
        """The parts of a message, as they were spelled as far as that still holds."""
        spelling, hints = original_form_of(message, PROTOCOL), message.metadata.hints
        if "ids" in spelling:
            self._ids.update(spelling["ids"])
        if "blocks" not in spelling and "success" not in spelling and not hints:
            return self._plain(message.content)
        odd = original_blocks(message, spelling)
        parts: list[Any] = []
        for index, block in enumerate(message.content):
            own = odd.get(str(index)) or encode_block(block, self._wire_id)
            if type(own) is ToolResultPart and "success" in spelling and not _is_failed(block):
                own.tool_result.status = "success"
            parts.append(own)
        return with_cache_points(parts, hints)

    def _plain(self, content: tuple[ContentBlock, ...]) -> list[Any]:
        """The parts for blocks that nobody spelled; the common ones at once."""
        ids = self._ids
        parts: list[Any] = []
        for block in content:
            if type(block) is TextBlock and not block.citations:
                parts.append(TextPart(block.text))
            elif type(block) is ToolUseBlock:
                theirs = ids.get(block.id) or WIRE_ID_PREFIX + block.id.removeprefix(TOOL_ID_PREFIX)
                parts.append(ToolUsePart(ToolUse(block.input, block.name, theirs)))
            elif type(block) is ToolResultBlock:
                parts.append(self._result(block))
            elif (part := encode_block(block, self._wire_id)) is not None:
                parts.append(part)
        return parts

    def _result(self, block: ToolResultBlock) -> ToolResultPart:
        call, content = block.tool_use_id, list[Any]()
        for inner in block.content:
            if type(inner) is TextBlock:
                content.append(TextPart(inner.text))
            elif (part := encode_block(inner, self._wire_id)) is not None:
                content.append(part)
        theirs = self._ids.get(call) or WIRE_ID_PREFIX + call.removeprefix(TOOL_ID_PREFIX)
        status = "error" if block.is_error else UNSET
        return ToolResultPart(ToolResult(content=content, status=status, tool_use_id=theirs))

    def _wire_id(self, ours: str) -> str:
        return self._ids.get(ours) or WIRE_ID_PREFIX + ours.removeprefix(TOOL_ID_PREFIX)


def _is_failed(block: ContentBlock) -> bool:
    return isinstance(block, ToolResultBlock) and block.is_error


def _is_aside(message: Message) -> bool:
    """Whether a leading message stands beside the turns; a client may have put it among them."""
    return message.role is _SYSTEM and "turn" not in original_form_of(message, PROTOCOL)


def _role_of(turn: _Turn | Wire) -> str:
    return turn["role"] if isinstance(turn, dict) else turn.role


def _content_of(turn: _Turn | Wire) -> list[Any]:
    return turn["content"] if isinstance(turn, dict) else turn.content


def _reopened(turn: _Turn | Wire) -> _Turn | Wire:
    """The same turn with a list of its own, to which parts can be added."""
    content = [*_content_of(turn)]
    return {**turn, "content": content} if isinstance(turn, dict) else _Turn(content, turn.role)
