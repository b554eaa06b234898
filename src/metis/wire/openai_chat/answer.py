"""Answers of Chat Completions that say nothing but text, clear thoughts and calls.

Most do. They are read here in one pass; what is not known here takes the long road of `assistant`,
and both remember the same.
"""

from typing import Any

import msgspec

from metis.canonical.blocks import ContentBlock, TextBlock, ThinkingBlock, ToolUseBlock
from metis.canonical.value import raw_constructor
from metis.wire.json_access import Wire
from metis.wire.openai_chat.blocks import write_json
from metis.wire.tool_ids import canonical_tool_id

_KEYS = frozenset({"annotations", "content", "reasoning_content", "refusal", "role", "tool_calls"})
_SILENT = ("annotations", "reasoning_content", "refusal")
_KEYS_OF_CALL, _KEYS_OF_FUNCTION = 3, 2
_TEXTS = (str, type(None))
_make_text = raw_constructor(TextBlock)
_make_call = raw_constructor(ToolUseBlock)
_make_thinking = raw_constructor(ThinkingBlock)
_read = msgspec.json.Decoder().decode


def read_answer(
    said: Wire, scope: str, issuer: str
) -> tuple[tuple[ContentBlock, ...], dict[str, Any]] | None:
    """The blocks of an answer and how they were spelled; None if the long road has to be taken.

    `scope` is what the ids of its calls are told apart by.
    """
    text, calls = said.get("content"), said.get("tool_calls")
    thought = said.get("reasoning_content")
    if said.get("role") != "assistant" or not said.keys() <= _KEYS:
        return None
    if type(text) not in _TEXTS or type(thought) not in _TEXTS:
        return None
    if said.get("annotations") or said.get("refusal") or ("tool_calls" in said and not calls):
        return None
    blocks: list[ContentBlock] = []
    spelling: dict[str, Any] = {}
    if thought:
        blocks.append(_make_thinking(thought, None, None, None, issuer))
        spelling["thoughts"] = {"reasoning_content": True}
    if text:
        blocks.append(_make_text(text))
    if calls:
        try:
            _read_calls(calls, scope, blocks, spelling)
        except (_MoreToIt, AttributeError, KeyError, TypeError, ValueError, RecursionError):
            return None
    if not text or len(said) > len(("role", "content")) + bool(calls) + bool(thought):
        _spell_keys(said, spelling)
    return tuple(blocks), spelling


class _MoreToIt(Exception):  # noqa: N818 - a signal, no error: it never leaves this module
    """A call says more than name and arguments, or something else."""


def _read_calls(
    calls: list[Wire], scope: str, blocks: list[ContentBlock], spelling: dict[str, Any]
) -> None:
    """Take in calls of functions; raises if they are something else, whatever it is."""
    ids: dict[str, str] = {}
    odd: Wire = {}
    for call in calls:
        function = call["function"]
        theirs, name = call["id"], function["name"]
        raw = function["arguments"].encode()
        given = _read(raw)
        is_usual = len(call) == _KEYS_OF_CALL and len(function) == _KEYS_OF_FUNCTION
        if not is_usual or call["type"] != "function" or type(given) is not dict:
            raise _MoreToIt
        if not theirs or not name or type(theirs) is not str or type(name) is not str:
            raise _MoreToIt
        ours = canonical_tool_id(scope, theirs)
        ids[ours] = theirs
        blocks.append(_make_call(ours, name, given))
        if write_json(given) != raw:
            odd[ours] = call
    if len(ids) < len(calls):
        raise _MoreToIt
    spelling["ids"] = ids
    if odd:
        spelling["calls"] = odd


def _spell_keys(said: Wire, spelling: dict[str, Any]) -> None:
    """Remember the keys that say nothing, and whether there is one for text."""
    keys: Wire = {}
    if "content" not in said:
        spelling["absent"] = ["content"]
    elif not (text := said["content"]) and text != (None if said.get("tool_calls") else ""):
        keys["content"] = text
    for name in _SILENT:
        if name in said and not said[name]:
            keys[name] = said[name]
    if keys:
        spelling["keys"] = keys
