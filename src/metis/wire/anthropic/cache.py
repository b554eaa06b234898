"""Cache marks of Anthropic Messages, to and from the hints of a message."""

from collections.abc import Iterable, Mapping
from typing import Any

from metis.canonical.metadata import CacheHint
from metis.wire.anthropic.parts import ImagePart, TextPart, ToolResultPart, ToolUsePart
from metis.wire.shape import Wire, maybe_list, maybe_object, maybe_text


def hints_of(blocks: Mapping[str, Any]) -> tuple[CacheHint, ...]:
    """The hints that the marks on blocks stand for; a mark inside a result is one of the result."""
    return tuple(
        CacheHint(after=int(index), ttl=maybe_text(mark.get("ttl")))
        for index, block in blocks.items()
        if (mark := _mark_of(block))
    )


def _mark_of(block: Any) -> Wire:
    own = maybe_object(block)
    mark = maybe_object(own.get("cache_control"))
    if mark or own.get("type") != "tool_result":
        return mark
    for part in maybe_list(own.get("content")):
        mark = maybe_object(maybe_object(part).get("cache_control"))
        if mark:
            return mark
    return {}


def mark(blocks: list[Any], hints: Iterable[CacheHint]) -> None:
    """Mark blocks where a hint says so; a mark that a client set stays as it is."""
    for hint in hints:
        if 0 <= hint.after < len(blocks):
            blocks[hint.after] = _with_mark(blocks[hint.after], hint.ttl)


def _with_mark(block: Any, ttl: str | None) -> Any:
    mark = {"type": "ephemeral"} if ttl is None else {"type": "ephemeral", "ttl": ttl}
    if isinstance(block, TextPart | ToolUsePart | ToolResultPart | ImagePart):
        block.cache_control = mark
        return block
    own = maybe_object(block)
    return block if not own or _mark_of(own) else {**own, "cache_control": mark}
