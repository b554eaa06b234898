"""Definitions: tools that a history uses and a request does not define (T36)."""

from collections.abc import Sequence

from metis.canonical.blocks import ToolUseBlock
from metis.canonical.message import Message
from metis.canonical.tools import SideEffects, ToolDefinition
from metis.projection.calls import wire_name

_TOLD = "A tool that was used before and cannot be called now."


def used_tools(messages: Sequence[Message], length: int) -> tuple[ToolDefinition, ...]:
    """A stand-in for each tool that was called, in the order of the first calls.

    A provider that wants every tool in the history to be defined is told of these, and that none
    of them may be called.
    """
    names = dict.fromkeys(
        wire_name(block.name, length)
        for message in messages
        for block in message.content
        if type(block) is ToolUseBlock
    )
    return tuple(_stand_in(name) for name in names)


def _stand_in(name: str) -> ToolDefinition:
    return ToolDefinition(name, _TOLD, {"type": "object"}, SideEffects.NONE)
