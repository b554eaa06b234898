"""Cache marks of Anthropic Messages, to and from the hints of a message."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from metis.canonical.metadata import CacheHint
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


def marked(blocks: Sequence[Any], hints: Iterable[CacheHint]) -> list[Any]:
    """The blocks with a mark where a hint says so; a mark that a client set stays as it is."""
    marks = {hint.after: hint.ttl for hint in hints}
    return [
        _with_mark(own, marks[index])
        if index in marks and (own := maybe_object(block)) and not _mark_of(own)
        else block
        for index, block in enumerate(blocks)
    ]


def _with_mark(block: Wire, ttl: str | None) -> Wire:
    mark = {"type": "ephemeral"} if ttl is None else {"type": "ephemeral", "ttl": ttl}
    return {**block, "cache_control": mark}


def is_bare(block: Any) -> bool:
    """Whether a block is text and nothing else, so that a string can stand for it."""
    own = maybe_object(block)
    return "text" in own and "cache_control" not in own
