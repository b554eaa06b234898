"""Assistant messages of Ollama: what a model thought, said and called, always in this order."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from msgspec import UNSET, UnsetType

from metis.canonical.blocks import ContentBlock, TextBlock, ThinkingBlock, ToolUseBlock
from metis.canonical.value import made
from metis.wire.ollama.calls import CallIds, decode_call
from metis.wire.ollama.types import Call, ChatMessage, Function

_make_text = made(TextBlock)
_make_thinking = made(ThinkingBlock)
_GAP = "\n\n"

Spelling = dict[str, Any]
"""What is remembered of how a message was spelled."""


def decode_assistant(
    wire: ChatMessage, ids: CallIds, issuer: str
) -> tuple[tuple[ContentBlock, ...], Spelling]:
    """The blocks of an assistant message of the usual form, and how they were spelled."""
    blocks: list[ContentBlock] = []
    if wire.thinking is not UNSET:
        blocks.append(_make_thinking(wire.thinking, issuer=issuer))
    if wire.content:
        blocks.append(_make_text(wire.content))
    if wire.tool_calls is UNSET:
        return tuple(blocks), {}
    spelling: Spelling = {}
    for call in wire.tool_calls:
        block = decode_call(call, ids)
        if call.id is not UNSET:
            spelling.setdefault("ids", {})[block.id] = call.id
        if call.function.index is not UNSET:
            spelling.setdefault("indexes", {})[block.id] = call.function.index
        blocks.append(block)
    return tuple(blocks), spelling


def encode_assistant(
    content: Sequence[ContentBlock], spelling: Mapping[str, Any], known: Mapping[str, str]
) -> ChatMessage:
    """The assistant message for blocks; `known` are the ids that the server gave to calls."""
    if len(content) == 1 and type(content[0]) is TextBlock:
        return ChatMessage(role="assistant", content=content[0].text)
    thoughts = [block.text for block in content if isinstance(block, ThinkingBlock)]
    indexes: Mapping[str, int] = spelling.get("indexes") or {}
    calls = [
        encode_call(block, known.get(block.id, UNSET), indexes.get(block.id, UNSET))
        for block in content
        if isinstance(block, ToolUseBlock)
    ]
    return ChatMessage(
        role="assistant",
        content=joined_speech(content),
        thinking="".join(thoughts) or UNSET,
        tool_calls=calls or UNSET,
    )


def encode_call(
    block: ToolUseBlock, wire_id: str | UnsetType, index: int | UnsetType = UNSET
) -> Call:
    """One call; arguments that were no object were no use to anybody and are left empty (T32)."""
    arguments = cast("dict[str, Any]", block.input)
    return Call(function=Function(name=block.name, arguments=arguments, index=index), id=wire_id)


def joined_speech(content: Sequence[ContentBlock]) -> str:
    """The text of an answer; pieces that follow each other at once are one text."""
    pieces: list[str] = []
    follows = True
    for block in content:
        if isinstance(block, TextBlock):
            pieces += (block.text,) if follows or not pieces else (_GAP, block.text)
        follows = isinstance(block, TextBlock)
    return "".join(pieces)


def joined_text(content: Sequence[ContentBlock]) -> str:
    """The texts of a message of anybody else; each is a paragraph of its own (T86)."""
    return _GAP.join(block.text for block in content if isinstance(block, TextBlock))
