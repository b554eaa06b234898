"""Pieces: what the simulator takes for tokens, in text and in the arguments of calls."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from metis.canonical.blocks import (
    ContentBlock,
    InvalidInput,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)

_PIECE = re.compile(r"\s*(?:\w{1,8}|[^\w\s])|\s+")
_write = msgspec.json.Encoder(order="deterministic").encode


def pieces(text: str) -> list[str]:
    """A text in pieces that are its tokens; joined they are the text again.

    >>> pieces("Hello, simulated world!")
    ['Hello', ',', ' simulate', 'd', ' world', '!']
    """
    return _PIECE.findall(text)


def spoken(block: ContentBlock) -> str:
    """What a model had to write for a block."""
    match block:
        case TextBlock() | ThinkingBlock():
            return block.text
        case ToolUseBlock():
            return arguments_text(block)
        case RedactedThinkingBlock():
            return block.data
        case _:
            return ""


def arguments_text(call: ToolUseBlock) -> str:
    """The arguments of a call as they are written, valid or not."""
    return _write(call.input).decode() if call.invalid is None else call.invalid.raw


def count(content: Sequence[ContentBlock]) -> int:
    """How many tokens some blocks are."""
    return sum(len(pieces(spoken(block))) for block in content)


def cut_to(content: Sequence[ContentBlock], most: int) -> tuple[tuple[ContentBlock, ...], bool]:
    """As much of the blocks as a number of tokens allows, and whether that is all of them."""
    kept: list[ContentBlock] = []
    for block in content:
        said = pieces(spoken(block))
        if len(said) <= most:
            kept.append(block)
            most -= len(said)
            continue
        part = _part(block, "".join(said[:most]))
        return (*kept, *part), False
    return tuple(kept), True


def _part(block: ContentBlock, text: str) -> list[ContentBlock]:
    """The beginning of a block; a thought that is not whole has no signature."""
    match block:
        case TextBlock() if text:
            return [TextBlock(text)]
        case ThinkingBlock() if text:
            return [ThinkingBlock(text, issuer=block.issuer)]
        case ToolUseBlock():
            invalid = InvalidInput(raw=text, error="the answer ended here")
            return [ToolUseBlock(block.id, block.name, {}, invalid)]
        case _:
            return []


def stop_at(
    content: Sequence[ContentBlock], stops: Sequence[Any]
) -> tuple[tuple[ContentBlock, ...], bool]:
    """The blocks up to the first stop sequence in a text, and whether one was met."""
    for index, block in enumerate(content):
        if not isinstance(block, TextBlock):
            continue
        places = [block.text.find(stop) for stop in stops if isinstance(stop, str) and stop]
        places = [at for at in places if at >= 0]
        if places:
            text = block.text[: min(places)]
            return (*content[:index], *([TextBlock(text)] if text else [])), True
    return tuple(content), False
