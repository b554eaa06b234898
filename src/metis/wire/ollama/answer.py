"""Answers of the usual form, read in one pass: a thought, a text, calls."""

from typing import Any

from metis.canonical.blocks import ContentBlock, TextBlock, ThinkingBlock, ToolUseBlock
from metis.canonical.value import raw_constructor
from metis.wire.json_access import Wire
from metis.wire.tool_ids import canonical_tool_id

_KEYS_OF_TEXT = _KEYS_OF_FUNCTION = 2
_make_text = raw_constructor(TextBlock)
_make_call = raw_constructor(ToolUseBlock)
_make_thinking = raw_constructor(ThinkingBlock)


def read_common(
    wire: Wire, scope: str, issuer: str
) -> tuple[tuple[ContentBlock, ...], dict[str, Any]] | None:
    """The blocks of an answer and how they were spelled; None if it has another form."""
    text, thought, calls = wire.get("content"), wire.get("thinking"), wire.get("tool_calls")
    if type(text) is not str or wire.get("role") != "assistant":
        return None
    size = _KEYS_OF_TEXT
    blocks: list[ContentBlock] = []
    spelling: dict[str, Any] = {}
    if thought is not None:
        if type(thought) is not str or not thought:
            return None
        size += 1
        blocks.append(_make_thinking(thought, None, None, None, issuer))
    if text:
        blocks.append(_make_text(text))
    if calls is not None:
        size += 1
        try:
            is_usual = bool(calls) and _read_calls(calls, scope, blocks, spelling)
        except (AttributeError, KeyError, TypeError):  # a call is no object
            is_usual = False
        if not is_usual:
            return None
    return (tuple(blocks), spelling) if len(wire) == size else None


def _read_calls(  # noqa: C901 - one flat pass over the calls of every answer
    calls: list[Wire], scope: str, blocks: list[ContentBlock], spelling: dict[str, Any]
) -> bool:
    """Add the blocks of calls, and how they are named; false if one has another form."""
    ids: dict[str, str] = {}
    indexes: dict[str, int] = {}
    counts: dict[str, int] = {}
    for call in calls:
        function, theirs = call["function"], call.get("id")
        name, arguments = function["name"], function["arguments"]
        size = _KEYS_OF_FUNCTION
        if type(name) is not str or not name or type(arguments) is not dict:
            return False
        key = f"\0{name}"
        if theirs is not None:
            if type(theirs) is not str or not theirs:
                return False
            key = theirs
        count = counts.get(key, 0)
        counts[key] = count + 1
        ours = canonical_tool_id(scope, key, count)
        if theirs is not None:
            ids[ours] = theirs
        index = function.get("index")
        if index is not None:
            if type(index) is not int:
                return False
            size += 1
            indexes[ours] = index
        if len(function) != size or len(call) != 1 + (theirs is not None):
            return False
        blocks.append(_make_call(ours, name, arguments))
    if ids:
        spelling["ids"] = ids
    if indexes:
        spelling["indexes"] = indexes
    return True
