"""Calls of OpenAI Responses and their outputs, to and from ours.

A call has two ids: `call_id`, which ties it to its output, and `id`, which names the item (T05).
What a call says beyond its block is kept by our id: keys that the block has no place for, the
arguments as they were written, or the whole item if it is of a kind of its own.
"""

from collections.abc import Mapping
from typing import Any

from metis.canonical.blocks import InvalidInput, ToolResultBlock, ToolUseBlock
from metis.canonical.value import made
from metis.streaming.arguments import read_arguments, read_exactly
from metis.wire.openai_responses.client_tools import (
    BY_CALL,
    ClientTool,
    encode_client_output,
    read_client_call,
)
from metis.wire.openai_responses.output import encode_output
from metis.wire.openai_responses.parts import write_json
from metis.wire.shape import Wire, maybe_object, maybe_text
from metis.wire.tool_ids import CallIds, derived_id

FUNCTION = "function_call"
"""The kind of item that calls a function of the client."""
CUSTOM = "custom_tool_call"
"""The kind of item that calls a tool of the client which takes free text."""

Extra = dict[str, Any]
"""What an item says beyond its blocks."""
Read = tuple[str, Mapping[str, Any], InvalidInput | None]
"""The name of a tool, the input, and what is wrong with it."""

_OWN_KEYS = {
    FUNCTION: frozenset({"type", "call_id", "name", "arguments"}),
    CUSTOM: frozenset({"type", "call_id", "name", "input"}),
}
_KEYS_OF_CALL = len(_OWN_KEYS[FUNCTION])
_make_call = made(ToolUseBlock)


def decode_call(wire: Wire, ids: CallIds) -> tuple[ToolUseBlock, str, Extra] | None:
    """Our block for a call, the provider's id, and what is left to keep; None if it is no call."""
    common = _decode_common(wire, ids)
    if common is not None:
        return common
    read = read_call(wire)
    if read is None:
        return None
    stated = maybe_text(wire.get("call_id"))
    theirs = stated or maybe_text(wire.get("id")) or ""
    block = _make_call(ids.of_call(theirs), *read)
    kind = wire["type"]
    is_odd = kind == FUNCTION and not isinstance(wire.get("arguments"), str)
    if kind not in _OWN_KEYS or not stated or is_odd:
        return block, theirs, {"wire": wire}
    extra = {key: value for key, value in wire.items() if key not in _OWN_KEYS[kind]}
    if kind == CUSTOM:
        extra["type"] = CUSTOM
    elif wire.get("arguments") != write_json(block.input).decode():
        extra["arguments"] = wire.get("arguments")
    return block, theirs, extra


def _decode_common(wire: Wire, ids: CallIds) -> tuple[ToolUseBlock, str, Extra] | None:
    """The same for a function and its arguments as a string, which most calls are."""
    theirs, name, text = wire.get("call_id"), wire.get("name"), wire.get("arguments")
    if type(theirs) is not str or type(name) is not str or type(text) is not str:
        return None
    if wire.get("type") != FUNCTION or not theirs or not name:
        return None
    extra: Extra = {}
    if len(wire) > _KEYS_OF_CALL:
        extra = {key: value for key, value in wire.items() if key not in _OWN_KEYS[FUNCTION]}
    arguments, invalid, is_exact = read_exactly(text)
    if not is_exact:
        extra["arguments"] = text
    return _make_call(ids.of_call(theirs), name, arguments, invalid), theirs, extra


def read_call(wire: Wire) -> Read | None:
    """What a call says, whatever its kind."""
    kind, name = maybe_text(wire.get("type")), wire.get("name")
    if kind not in _OWN_KEYS:
        found = read_client_call(wire)
        return None if found is None else (*found, None)
    if not isinstance(name, str) or not name:
        return None
    if kind == CUSTOM:
        text = wire.get("input")
        return (name, {"input": text}, None) if isinstance(text, str) else None
    arguments = wire.get("arguments")
    if isinstance(arguments, dict):
        # Some hosts send the object where a string is due (T33).
        return name, maybe_object(arguments), None
    if not isinstance(arguments, str | None):
        return None
    return name, *read_arguments(arguments or "")


def encode_call(block: ToolUseBlock, extra: Mapping[str, Any], call_id: str) -> Wire:
    """The item for a call; what was kept of it is used while it says the same."""
    whole: Wire | None = extra.get("wire")
    if whole is not None:
        if read_call(whole) == (block.name, block.input, block.invalid):
            has_id = isinstance(whole.get("call_id"), str)
            return {**whole, "call_id": call_id} if has_id else whole
        extra = {}
    wire: Wire = {"type": FUNCTION, "call_id": call_id, "name": block.name}
    text = block.input.get("input")
    if extra.get("type") == CUSTOM and isinstance(text, str) and len(block.input) == 1:
        wire["input"] = text
    else:
        wire["arguments"] = _arguments(block, extra)
    if not extra:
        return wire
    kept = {key: value for key, value in extra.items() if key != "arguments"}
    if "arguments" in wire:
        kept.pop("type", None)
    return wire | kept


def _arguments(block: ToolUseBlock, extra: Mapping[str, Any]) -> Any:
    """The arguments as they came; invalid ones of another provider are left empty (T32)."""
    if "arguments" in extra:
        text = extra["arguments"]
        if read_arguments(text or "") == (block.input, block.invalid):
            return text
    return write_json(block.input).decode()


class Calls:
    """The calls of a conversation while it is written: their ids here, and their kinds."""

    def __init__(self) -> None:
        self._ids: dict[str, str] = {}
        self._kinds: dict[str, str] = {}

    def learn(self, spelling: Mapping[str, Any]) -> None:
        """Take note of the calls that a message spells out."""
        if "ids" in spelling:
            self._ids.update(spelling["ids"])
        if "calls" in spelling:
            for ours, extra in spelling["calls"].items():
                kind = extra.get("type") or maybe_object(extra.get("wire")).get("type")
                if kind:
                    self._kinds[ours] = kind

    def wire_id(self, ours: str) -> str:
        """The protocol's id for one of ours."""
        return self._ids.get(ours) or derived_id(ours, "call_")

    def tool(self, ours: str) -> ClientTool | None:
        """The tool that a call was for, if it is one that OpenAI defines."""
        return BY_CALL.get(self._kinds.get(ours, ""))

    def is_special(self, ours: str) -> bool:
        """Whether a call was of a kind that asks for an output of its own kind."""
        return ours in self._kinds

    def encode_result(self, result: ToolResultBlock, spelling: Mapping[str, Any]) -> Wire:
        """The output item for a result, of the kind that its call asks for."""
        call_id = self.wire_id(result.tool_use_id)
        tool = self.tool(result.tool_use_id)
        if tool is not None and not spelling:
            return encode_client_output(tool, call_id, result)
        is_custom = self._kinds.get(result.tool_use_id) == CUSTOM
        return encode_output(result, spelling, call_id, is_custom=is_custom)
