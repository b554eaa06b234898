"""Tool calls of Chat Completions, to and from ours, and the ids that tie them to their results."""

from collections.abc import Callable, Mapping
from typing import Any

from metis.canonical.blocks import ContentBlock, InvalidInput, ToolUseBlock
from metis.streaming.arguments import read_arguments
from metis.wire.openai_chat.parts import opaque, write_json
from metis.wire.shape import Wire, maybe_object
from metis.wire.tool_ids import canonical_tool_id

WireId = Callable[[str], str]
"""The protocol's id for one of ours."""


class CallIds:
    """Our ids for the calls of one conversation, by the order in which calls and results come.

    An id that comes again is another call (T09), and an empty one names nothing (T10): what has no
    id of its own is told apart by its turn, `scope`, and its position there.
    """

    def __init__(self, session_id: str, scope: str = "") -> None:
        self._session_id = session_id
        self._scope = scope
        self._counts: dict[str, int] = {}
        self._open: dict[str, list[str]] = {}
        self._last: dict[str, str] = {}

    def enter(self, answer: str) -> None:
        """Take the ids that follow for those of one answer: hosts count anew in each (T09)."""
        self._session_id = f"{self._session_id}\0{answer}"

    def of_call(self, theirs: str, *, is_id: bool = True) -> str:
        """Our id for the next call that goes by this id or name."""
        key = theirs if is_id and theirs else f"{self._scope}\0{theirs}"
        occurrence = self._counts.get(key, 0)
        self._counts[key] = occurrence + 1
        ours = canonical_tool_id(self._session_id, key, occurrence)
        self._open.setdefault(key, []).append(ours)
        self._last[key] = ours
        return ours

    def of_result(self, theirs: str, *, is_id: bool = True) -> str:
        """Our id for the call that a result answers: the oldest that waits for one."""
        key = theirs if is_id and theirs else f"{self._scope}\0{theirs}"
        waiting = self._open.get(key)
        if waiting:
            return waiting.pop(0)
        return self._last.get(key) or canonical_tool_id(self._session_id, key)


def decode_call(wire: Any, ids: CallIds) -> tuple[ContentBlock, str | None]:
    """Our block for one entry of `tool_calls`, and the provider's id if it is a call."""
    call = maybe_object(wire)
    read = _read_custom(call) if call.get("type") == "custom" else _read_function(call)
    if read is None:
        return opaque(wire, "tool_call"), None
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
