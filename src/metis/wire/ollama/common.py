"""Messages that are written often, as small Structs: texts, calls and results."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from metis.canonical.blocks import ContentBlock, TextBlock, ToolUseBlock

_Text = str | UnsetType


class Said(Struct, gc=False):
    """A text of anybody."""

    content: str
    role: str


class Result(Struct, gc=False):
    """The answer to a call; an id is only told to a server that gave it."""

    content: str
    role: str
    tool_call_id: _Text
    tool_name: _Text


class Function(Struct, gc=False):
    """What is called, and with what."""

    arguments: Mapping[str, Any]
    name: str


class Call(Struct, gc=False):
    """A call of a tool."""

    function: Function
    id: _Text


class Asked(Struct, gc=False):
    """What a model said, and the tools that it called then."""

    content: str
    role: str
    tool_calls: list[Call]


def write_common(content: Sequence[ContentBlock], ids: Mapping[str, str]) -> Asked | None:
    """The message for at most one text and calls behind it; None for all other blocks."""
    text = ""
    calls: list[Call] = []
    for block in content:
        if type(block) is ToolUseBlock:
            function = Function(block.input, block.name)
            calls.append(Call(function, ids.get(block.id, UNSET)))
        elif type(block) is TextBlock and not text and not calls:
            text = block.text
        else:
            return None
    return Asked(text, "assistant", calls) if calls else None
