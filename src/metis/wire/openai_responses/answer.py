"""Answers of common items, read in one pass: messages of plain text and calls of functions."""

from typing import Any, NamedTuple

from metis.canonical.blocks import ContentBlock, TextBlock, ToolUseBlock
from metis.canonical.value import raw_constructor
from metis.streaming.arguments import parse_arguments_exactly
from metis.wire.json_access import Wire
from metis.wire.tool_ids import canonical_tool_id

_KEYS_OF_TEXT = 3
_make_text = raw_constructor(TextBlock)
_make_call = raw_constructor(ToolUseBlock)


class Answer(NamedTuple):
    """What the items of an answer say, and how they were spelled."""

    content: tuple[ContentBlock, ...]
    spelling: dict[str, Any]
    is_refused: bool


def read_common(output: list[Wire], scope: str) -> Answer | None:
    """What common items say; None if one is of another kind or form."""
    blocks: list[ContentBlock] = []
    spelling: dict[str, Any] = {}
    try:
        for item in output:
            kind = item["type"]
            if kind == "message":
                is_read = _read_said(item, blocks, spelling)
            elif kind == "function_call":
                is_read = _read_call(item, scope, blocks, spelling)
            else:
                return None
            if not is_read:
                return None
    except (AttributeError, KeyError, TypeError):  # an item or a part is no object, or lacks a key
        return None
    return Answer(tuple(blocks), spelling, is_refused=False)


def _read_said(item: Wire, blocks: list[ContentBlock], spelling: dict[str, Any]) -> bool:
    """Add the texts of a message; false if it holds anything else."""
    extras: list[dict[str, Any]] = []
    for part in item["content"]:
        text = part["text"]
        if part["type"] != "output_text" or part["annotations"] != [] or type(text) is not str:
            return False
        extra: dict[str, Any] = {}
        if len(part) != _KEYS_OF_TEXT:
            extra["logprobs"] = part["logprobs"]
            if len(part) != _KEYS_OF_TEXT + 1 or type(part["logprobs"]) is not list:
                return False
        extras.append(extra)
        blocks.append(_make_text(text))
    if not extras or item["role"] != "assistant":
        return False
    keys = item.copy()
    del keys["role"], keys["content"]
    entry = {"keys": keys, "parts": extras}
    if "texts" in spelling:
        spelling["texts"].append(entry)
    else:
        spelling["texts"] = [entry]
    return True


def _read_call(
    item: Wire, scope: str, blocks: list[ContentBlock], spelling: dict[str, Any]
) -> bool:
    """Add a call; false if it comes again, or is not made of strings."""
    extra = item.copy()
    theirs, name, text = extra.pop("call_id"), extra.pop("name"), extra.pop("arguments")
    if type(theirs) is not str or type(name) is not str or type(text) is not str:
        return False
    ids = spelling.setdefault("ids", {})
    ours = canonical_tool_id(scope, theirs)
    if not theirs or not name or ours in ids:
        return False
    del extra["type"]
    arguments, invalid, is_exact = parse_arguments_exactly(text)
    if not is_exact:
        extra["arguments"] = text
    ids[ours] = theirs
    if extra:
        spelling.setdefault("calls", {})[ours] = extra
    blocks.append(_make_call(ours, name, arguments, invalid))
    return True
