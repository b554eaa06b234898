"""History of Anthropic Messages: canonical messages as the `messages` of a request.

Wire messages are encoded once and stored as bytes, so that the next request of the same
conversation encodes only what is new. The last wire message stays open, because tool results join
it (T15).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from metis.canonical.blocks import (
    ContentBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from metis.canonical.message import Message, Role
from metis.canonical.tools import ToolDefinition
from metis.wire.anthropic.blocks import (
    PROTOCOL,
    TextPart,
    ThinkingPart,
    ToolResultPart,
    ToolUsePart,
    add_cache_marks,
    encode_block,
)
from metis.wire.anthropic.options import encode_options
from metis.wire.call import AdapterOptions
from metis.wire.history import EncodedMessages
from metis.wire.json_access import Wire
from metis.wire.original_form import EMPTY, original_blocks, original_form_of
from metis.wire.tool_ids import TOOL_ID_PREFIX, derived_id

# Keys are sorted, so that a history gives the same bytes before and after it was stored (T176).
_write = msgspec.json.Encoder(order="deterministic").encode
_PREFIX = "toolu_"
_PLAIN = frozenset({"ids", "response"})
"""What the spelling of a message may hold that is written like one of ours."""
_PLACED = _PLAIN | {"joined"}
"""The same, but for the place where it is written."""
_ASSISTANT, _SYSTEM, _TOOL, _USER = Role.ASSISTANT, Role.SYSTEM, Role.TOOL, Role.USER


def _word(role: Role) -> str:
    """Who speaks, in the protocol's words."""
    if role is _ASSISTANT:
        return "assistant"
    return "user" if role is _USER or role is _TOOL else str(role)


class _Turn(Struct, gc=False):
    content: list[Any] | tuple[Any, ...] | str
    role: str


class _Result(Struct, tag="tool_result", gc=False):
    tool_use_id: str
    content: Sequence[Any]
    is_error: bool | UnsetType = UNSET


def encode_request(
    messages: Sequence[Message], tools: Sequence[ToolDefinition], options: AdapterOptions
) -> bytes:
    """The request body for messages that were projected for this protocol."""
    turns = AnthropicHistoryEncoder()
    turns.add(messages)
    return turns.body(tools, options)


class AnthropicHistoryEncoder:
    """The turns of a conversation, written once each."""

    def __init__(self) -> None:
        self._closed = EncodedMessages("messages", _write)
        self._last: _Turn | Wire | None = None
        self._takes_results = False
        self._ids: dict[str, str] = {}
        self._system: list[Message] = []

    def copy(self) -> "AnthropicHistoryEncoder":
        """The same turns, to which others can be added."""
        other = AnthropicHistoryEncoder()
        other._closed = self._closed.copy()
        other._last = self._last
        other._takes_results = self._takes_results
        other._ids = self._ids
        other._system = self._system
        return other

    def body(self, tools: Sequence[ToolDefinition], options: AdapterOptions) -> bytes:
        """The request body with these turns."""
        return self._closed.body(tools, options, self._around, self._last)

    def _around(self, options: AdapterOptions, tools: Sequence[ToolDefinition]) -> Wire:
        wire = encode_options(options, tools)
        if self._system:
            wire["system"] = _encode_system(self._system)
        return wire

    def add(self, messages: Sequence[Message], ids: Mapping[str, str] = EMPTY) -> None:
        """Add messages that were projected for this protocol; `ids` are those of odd calls."""
        self._ids.update(ids)
        if self._last is None:
            messages = self._without_system(messages)
        turns: list[_Turn | Wire] = [] if self._last is None else [_reopened(self._last)]
        results = _blocks_of(turns[0]) if self._takes_results else None
        for message in messages:
            role, metadata = message.role, message.metadata
            raw = metadata.provider_raw
            if raw is not None and PROTOCOL in raw:
                spelling = raw[PROTOCOL]
                if role is _TOOL or not spelling.keys() <= _PLAIN:
                    results = self._add_spelled(message, spelling, turns, results)
                    continue
                self._ids.update(spelling.get("ids", EMPTY))
            blocks = self._marked(message) if metadata.hints else self._blocks(message.content)
            if role is not _TOOL:
                results = None
                turns.append(_Turn(blocks, "assistant" if role is _ASSISTANT else _word(role)))
            elif results is None:
                results = [*blocks]
                turns.append(_Turn(results, "user"))
            else:
                results += blocks
        self._takes_results = results is not None
        if turns:
            self._last = turns.pop()
        self._closed.add(turns)

    def _add_spelled(
        self,
        message: Message,
        spelling: Mapping[str, Any],
        turns: list[_Turn | Wire],
        results: list[Any] | None,
    ) -> list[Any] | None:
        """Add a message as it was spelled; the results that others can join, if it leaves some."""
        self._ids.update(spelling.get("ids", EMPTY))
        if spelling.keys() <= _PLACED and not message.metadata.hints:
            blocks = [*self._blocks(message.content)]
        else:
            blocks = _spelled_blocks(message, spelling, self._wire_id)
        role = message.role
        word, is_result = _word(role), role is _TOOL
        if spelling.get("joined") and turns and _role_of(turns[-1]) == word:
            before = _blocks_of(turns[-1])
            if before is not None:
                before += blocks
                return results if is_result else None
        is_plain = spelling.get("plain") and _is_bare(blocks)
        content: Any = blocks[0].text if is_plain else blocks
        keys = spelling.get("keys")
        if spelling.get("bare") and not blocks:
            turns.append({"role": word, **(keys or {})})
            return None
        turns.append({"role": word, "content": content, **keys} if keys else _Turn(content, word))
        return blocks if is_result and not is_plain else None

    def _without_system(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Leading instructions stand beside the turns, not among them."""
        count = next((i for i, m in enumerate(messages) if not _is_aside(m)), len(messages))
        self._system = [*self._system, *messages[:count]]
        return messages[count:]

    def _blocks(self, content: tuple[ContentBlock, ...]) -> list[Any] | tuple[Any, ...]:
        """The parts for blocks; a text of ours is written as it is, for it says the same here."""
        if len(content) == 1:
            only = content[0]
            if type(only) is ToolResultBlock:
                return (self._result(only),)
            if type(only) is TextBlock and not only.citations and not only.critical:
                return content if only.extra is UNSET else (TextPart(only.text),)
        ids = self._ids
        parts: list[Any] = []
        for block in content:
            if type(block) is TextBlock and not block.citations:
                parts.append(TextPart(block.text))
            elif type(block) is ToolUseBlock:
                theirs = ids.get(block.id) or _PREFIX + block.id.removeprefix(TOOL_ID_PREFIX)
                parts.append(ToolUsePart(theirs, block.input, block.name))
            elif type(block) is ThinkingBlock and block.signature:
                parts.append(ThinkingPart(block.signature, block.text))
            elif type(block) is ToolResultBlock:
                parts.append(self._result(block))
            elif (part := encode_block(block, self._wire_id)) is not None:
                parts.append(part)
        return parts

    def _result(self, block: ToolResultBlock) -> _Result:
        call, inner = block.tool_use_id, self._blocks(block.content)
        theirs = self._ids.get(call) or _PREFIX + call.removeprefix(TOOL_ID_PREFIX)
        return _Result(theirs, inner, True if block.is_error else UNSET)

    def _marked(self, message: Message) -> list[Any]:
        parts = [encode_block(block, self._wire_id) for block in message.content]
        blocks = [part for part in parts if part is not None]
        add_cache_marks(blocks, message.metadata.hints)
        return blocks

    def _wire_id(self, ours: str) -> str:
        return self._ids.get(ours) or derived_id(ours, _PREFIX)


def _is_aside(message: Message) -> bool:
    """Whether a leading message stands beside the turns; a client may have put it among them."""
    return message.role is _SYSTEM and not original_form_of(message, PROTOCOL).get("turn")


def _role_of(turn: _Turn | Wire) -> str:
    return turn["role"] if isinstance(turn, dict) else turn.role


def _reopened(turn: _Turn | Wire) -> _Turn | Wire:
    """The same turn with a list of its own, to which blocks can be added."""
    blocks = _blocks_of(turn)
    if blocks is None:
        return turn
    return {**turn, "content": [*blocks]} if isinstance(turn, dict) else _Turn([*blocks], turn.role)


def _blocks_of(turn: _Turn | Wire) -> list[Any] | None:
    """The blocks of a turn, to which others can be added; None if it has no list of them."""
    if isinstance(turn, dict):
        content = turn.get("content")
    else:
        content = turn.content
        if isinstance(content, tuple):
            turn.content = content = [*content]
    return None if content is None or isinstance(content, str) else content


def _spelled_blocks(
    message: Message, spelling: Mapping[str, Any], wire_id: Callable[[str], str]
) -> list[Any]:
    odd = original_blocks(message, spelling) if "blocks" in spelling else EMPTY
    parts = (
        odd.get(str(index)) or encode_block(block, wire_id)
        for index, block in enumerate(message.content)
    )
    blocks = [part for part in parts if part is not None]
    if message.role is _TOOL and spelling.get("plain"):
        for block in blocks:
            _make_plain(block)
    if message.metadata.hints:
        add_cache_marks(blocks, message.metadata.hints)
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
        for block in _spelled_blocks(message, original_form_of(message, PROTOCOL), str)
    ]
    is_plain = original_form_of(messages[0], PROTOCOL).get("plain")
    return blocks[0].text if is_plain and _is_bare(blocks) else blocks
