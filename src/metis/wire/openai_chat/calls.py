"""Tool calls of Chat Completions, to and from ours, and the ids that tie them to their results."""

from collections.abc import Callable, Mapping
from typing import Any

from metis.canonical.blocks import ContentBlock, InvalidInput, ToolUseBlock
from metis.streaming.arguments import read_arguments
from metis.wire.openai_chat.parts import opaque, write_json
from metis.wire.shape import Wire, maybe_object
from metis.wire.tool_ids import CallIds

WireId = Callable[[str], str]
"""The protocol's id for one of ours."""


def decode_call(wire: Any, ids: CallIds, issuer: str) -> tuple[ContentBlock, str | None]:
    """Our block for one entry of `tool_calls`, and the provider's id if it is a call."""
    call = maybe_object(wire)
    read = _read_custom(call) if call.get("type") == "custom" else _read_function(call)
    if read is None:
        return opaque(wire, "tool_call", issuer), None
    theirs = call.get("id")
    theirs = theirs if isinstance(theirs, str) else ""
    name, arguments, invalid = read
    return ToolUseBlock(ids.of_call(theirs), name, arguments, invalid), theirs


def decode_function_call(wire: Any, ids: CallIds) -> ToolUseBlock | None:
    """Our block for the call of the time before tools; its result knows the name only."""
    read = _read_function({"function": wire})
    if read is None:
        return None
    name, arguments, invalid = read
    return ToolUseBlock(ids.of_call(name, is_id=False), name, arguments, invalid)


def encode_call(block: ToolUseBlock, wire_id: WireId) -> Wire:
    """The entry of `tool_calls` for a call that nothing more is known of."""
    return {"id": wire_id(block.id), "type": "function", "function": encode_function(block)}


def encode_function(block: ToolUseBlock) -> Wire:
    """Name and arguments; invalid ones are a string like any, and stay what they were (T32)."""
    if block.invalid is not None:
        return {"name": block.name, "arguments": block.invalid.raw}
    return {"name": block.name, "arguments": write_json(block.input).decode()}


def is_same_call(block: ToolUseBlock, wire: Wire) -> bool:
    """Whether a remembered entry still says what the block says."""
    read = _read_custom(wire) if wire.get("type") == "custom" else _read_function(wire)
    return read is not None and read == (block.name, block.input, block.invalid)


_Read = tuple[str, Mapping[str, Any], InvalidInput | None]


def _read_function(wire: Wire) -> _Read | None:
    function = maybe_object(wire.get("function"))
    name, arguments = function.get("name"), function.get("arguments")
    if not isinstance(name, str) or not name:
        return None
    if isinstance(arguments, dict):
        # Some hosts send the object where a string is due (T33).
        return name, maybe_object(arguments), None
    if not isinstance(arguments, str | None):
        return None
    return name, *read_arguments(arguments or "")


def _read_custom(wire: Wire) -> _Read | None:
    custom = maybe_object(wire.get("custom"))
    name, text = custom.get("name"), custom.get("input")
    if not isinstance(name, str) or not name or not isinstance(text, str):
        return None
    return name, {"input": text}, None
