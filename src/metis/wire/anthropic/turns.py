"""Turns of Anthropic Messages: what the messages of a conversation become in a request.

Turns are written as they are complete and kept as bytes, so that the next request of the same
conversation writes only what is new. The last turn stays open: results of tools join it (T15).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from metis.canonical.blocks import (
    ContentBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from metis.canonical.message import Message, Role
from metis.canonical.tools import ToolDefinition
from metis.wire.anthropic.blocks import PROTOCOL, encode_block
from metis.wire.anthropic.cache import mark
from metis.wire.anthropic.options import encode_options
from metis.wire.anthropic.parts import TextPart, ThinkingPart, ToolResultPart, ToolUsePart
from metis.wire.body import write_around
from metis.wire.call import AdapterOptions
from metis.wire.shape import Wire
from metis.wire.spelling import NOTHING, spelled_blocks, spelling_of
from metis.wire.tool_ids import derived_id

# Keys are sorted, so that a history gives the same bytes before and after it was stored (T176).
_write = msgspec.json.Encoder(order="deterministic").encode
_ASSISTANT, _SYSTEM, _TOOL, _USER = Role.ASSISTANT, Role.SYSTEM, Role.TOOL, Role.USER


def _word(role: Role) -> str:
    """Who speaks, in the protocol's words."""
    if role is _ASSISTANT:
        return "assistant"
    return "user" if role is _USER or role is _TOOL else str(role)


class _Turn(Struct, gc=False):
    content: list[Any] | str
    role: str


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
        self._written: list[bytes] = []
        self._last: _Turn | Wire | None = None
        self._parts: list[Any] | None = None
        """The content of the last turn; None if it is a string, which nothing can join."""
        self._takes_results = False
        self._ids: dict[str, str] = {}
        self._system: list[Message] = []

    def copy(self) -> "Turns":
        """The same turns, to which others can be added."""
        other = Turns()
        other._written = [*self._written]
        other._last = self._last
        if self._last is not None and self._parts is not None:
            other._parts = [*self._parts]
            other._last = _with_content(self._last, other._parts)
        other._takes_results = self._takes_results
        other._ids = self._ids
        other._system = self._system
        return other

    def body(self, tools: Sequence[ToolDefinition], options: AdapterOptions) -> bytes:
        """The request body with these turns."""
        wire = encode_options(options, tools)
        if self._system:
            wire["system"] = _encode_system(self._system)
        last = () if self._last is None else (_write(self._last),)
        return write_around(wire, "messages", (*self._written, *last), _write)

    def add(self, messages: Sequence[Message]) -> None:
        """Add messages that were projected for this protocol."""
        if self._last is None:
            messages = self._without_system(messages)
        turns: list[_Turn | Wire] = []
        last, parts = self._last, self._parts
        for message in messages:
            role, raw = message.role, message.metadata.provider_raw
            if raw is not None and PROTOCOL in raw:
                self._last, self._parts = last, parts
                self._add_spelled(message, raw[PROTOCOL], turns)
                last, parts = self._last, self._parts
                continue
            blocks = self._blocks(message.content)
            if message.metadata.hints:
                mark(blocks, message.metadata.hints)
            if role is _TOOL:
                if parts is not None and self._takes_results:
                    parts += blocks
                    continue
                self._takes_results = True
            elif self._takes_results:
                self._takes_results = False
            if last is not None:
                turns.append(last)
            last, parts = _Turn(blocks, "assistant" if role is _ASSISTANT else _word(role)), blocks
        self._last, self._parts = last, parts
        if turns:
            self._written.append(_write(turns)[1:-1])

    def _add_spelled(
        self, message: Message, spelling: Mapping[str, Any], turns: list[_Turn | Wire]
    ) -> None:
        """Add a message as it was spelled."""
        self._ids.update(spelling.get("ids", NOTHING))
        role, blocks = message.role, _spelled_blocks(message, spelling, self._wire_id)
        word = _word(role)
        last, is_result = self._last, role is _TOOL
        if last is not None:
            if spelling.get("joined") and self._parts is not None and _role_of(last) == word:
                self._parts += blocks
                self._takes_results = self._takes_results and is_result
                return
            turns.append(last)
        self._parts, self._takes_results = blocks, is_result
        content: Any = blocks
        if spelling.get("plain") and _is_bare(blocks):
            content, self._parts = blocks[0].text, None
        keys = spelling.get("keys")
        if spelling.get("bare") and not blocks:
            self._last, self._parts = {"role": word, **(keys or {})}, None
        elif keys:
            self._last = {"role": word, "content": content, **keys}
        else:
            self._last = _Turn(content, word)

    def _without_system(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Leading instructions stand beside the turns, not among them."""
        count = next((i for i, m in enumerate(messages) if not _is_aside(m)), len(messages))
        self._system = [*self._system, *messages[:count]]
        return messages[count:]

    def _blocks(self, content: Sequence[ContentBlock]) -> list[Any]:
        if len(content) == 1 and type(only := content[0]) is TextBlock and not only.citations:
            return [TextPart(only.text)]
        ids = self._ids
        blocks: list[Any] = []
        for block in content:
            if type(block) is TextBlock and not block.citations:
                blocks.append(TextPart(block.text))
            elif type(block) is ToolResultBlock:
                call = block.tool_use_id
                inner = self._blocks(block.content)
                is_error = True if block.is_error else UNSET
                blocks.append(ToolResultPart(ids.get(call) or self._wire_id(call), inner, is_error))
            elif type(block) is ToolUseBlock:
                call = block.id
                blocks.append(
                    ToolUsePart(ids.get(call) or self._wire_id(call), block.input, block.name)
                )
            elif type(block) is ThinkingBlock and block.signature:
                blocks.append(ThinkingPart(block.signature, block.text))
            elif (part := encode_block(block, self._wire_id)) is not None:
                blocks.append(part)
        return blocks

    def _wire_id(self, ours: str) -> str:
        theirs = self._ids.get(ours)
        if not theirs:
            theirs = self._ids[ours] = derived_id(ours, "toolu_")
        return theirs


def _is_aside(message: Message) -> bool:
    """Whether a leading message stands beside the turns; a client may have put it among them."""
    return message.role is _SYSTEM and not spelling_of(message, PROTOCOL).get("turn")


def _role_of(turn: _Turn | Wire) -> str:
    return turn["role"] if isinstance(turn, dict) else turn.role


def _with_content(turn: _Turn | Wire, content: list[Any]) -> _Turn | Wire:
    if isinstance(turn, dict):
        return {**turn, "content": content}
    return _Turn(content, turn.role)


def _spelled_blocks(
    message: Message, spelling: Mapping[str, Any], wire_id: Callable[[str], str]
) -> list[Any]:
    odd = spelled_blocks(message, spelling) if "blocks" in spelling else NOTHING
    parts = (
        odd.get(str(index)) or encode_block(block, wire_id)
        for index, block in enumerate(message.content)
    )
    blocks = [part for part in parts if part is not None]
    if message.role is _TOOL and spelling.get("plain"):
        for block in blocks:
            _make_plain(block)
    if message.metadata.hints:
        mark(blocks, message.metadata.hints)
    return blocks


def _is_bare(blocks: list[Any]) -> bool:
    """Whether blocks are one text and nothing else, so that a string can stand for them."""
    return len(blocks) == 1 and type(blocks[0]) is TextPart and blocks[0].cache_control is UNSET


def _make_plain(result: Any) -> None:
    """Write the one text of a result as a string, not as a list."""
    match result:
        case ToolResultPart(content=[TextPart(text=str(text))]):
            result.content = text
        case _:
            pass


def _encode_system(messages: Sequence[Message]) -> Any:
    blocks = [
        block
        for message in messages
        for block in _spelled_blocks(message, spelling_of(message, PROTOCOL), str)
    ]
    is_plain = spelling_of(messages[0], PROTOCOL).get("plain")
    return blocks[0].text if is_plain and _is_bare(blocks) else blocks
