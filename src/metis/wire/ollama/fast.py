"""Fast path of Ollama: common messages of a history are encoded as small Structs."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from metis.canonical.blocks import ContentBlock, TextBlock, ToolUseBlock

_Text = str | UnsetType


class TextMessage(Struct, gc=False):
    """A text of anybody."""

    content: str
    role: str


class ToolMessage(Struct, gc=False):
    """The answer to a call; an id is only told to a server that gave it."""

    content: str
    role: str
    tool_call_id: _Text
    tool_name: _Text


class FastFunction(Struct, gc=False):
    """What is called, and with what."""

    arguments: Mapping[str, Any]
    name: str


class FastCall(Struct, gc=False):
    """A call of a tool."""

    function: FastFunction
    id: _Text


class CallMessage(Struct, gc=False):
    """What a model said, and the tools that it called then."""

    content: str
    role: str
    tool_calls: list[FastCall]


def encode_common(content: Sequence[ContentBlock], ids: Mapping[str, str]) -> CallMessage | None:
    """The message for at most one text and calls behind it; None for all other blocks."""
    text = ""
    calls: list[FastCall] = []
    for block in content:
        if type(block) is ToolUseBlock:
            function = FastFunction(block.input, block.name)
            calls.append(FastCall(function, ids.get(block.id, UNSET)))
        elif type(block) is TextBlock and not text and not calls:
            text = block.text
        else:
            return None
    return CallMessage(text, "assistant", calls) if calls else None
