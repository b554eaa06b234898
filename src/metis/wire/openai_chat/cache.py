"""Cache marks of Chat Completions, where a host knows them: on the parts of a message."""

from collections.abc import Iterable, Sequence
from typing import Any

from metis.canonical.blocks import (
    ContentBlock,
    RedactedThinkingBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from metis.canonical.metadata import CacheHint
from metis.wire.shape import Wire, maybe_list, maybe_object, maybe_text

_KEY = "cache_control"
_ELSEWHERE = ThinkingBlock | RedactedThinkingBlock | ToolUseBlock
"""Blocks that stand beside the content of a message."""


def hints_of(wire: Wire, content: Sequence[ContentBlock]) -> tuple[CacheHint, ...]:
    """The hints that the marks on the parts of a message stand for."""
    parts = maybe_list(wire.get("content"))
    marks = [maybe_object(maybe_object(part).get(_KEY)) for part in parts]
    if not any(marks):
        return ()
    found = {
        place: maybe_text(mark.get("ttl"))
        for mark, place in zip(marks, _places(content), strict=False)
        if mark
    }
    return tuple(CacheHint(after=place, ttl=ttl) for place, ttl in found.items())


def with_marks(wire: Wire, content: Sequence[ContentBlock], hints: Iterable[CacheHint]) -> Wire:
    """The message with marks where hints say so; marks that a client set stay as they are."""
    said = wire.get("content")
    parts: list[Any] = [{"type": "text", "text": said}] if isinstance(said, str) else []
    parts = parts or [*maybe_list(said)]
    if not parts or any(_KEY in maybe_object(part) for part in parts):
        return wire
    # What a result says last is marked, for there it ends.
    last = {
        place: number for number, place in zip(range(len(parts)), _places(content), strict=False)
    }
    for hint in hints:
        number = last.get(hint.after)
        if number is not None and maybe_object(parts[number]):
            ttl = {} if hint.ttl is None else {"ttl": hint.ttl}
            parts[number] = {**parts[number], _KEY: {"type": "ephemeral", **ttl}}
    return {**wire, "content": parts}


def _places(content: Sequence[ContentBlock]) -> list[int]:
    """The block in which each part of a message stands, in order."""
    places: list[int] = []
    for index, block in enumerate(content):
        if isinstance(block, ToolResultBlock):
            places += [index] * len(block.content)
        elif not isinstance(block, _ELSEWHERE):
            places.append(index)
    return places
