"""Cache marks of Bedrock Converse, to and from the hints of a message.

A mark is a block of its own behind what it marks; ours is a hint at the block before it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from metis.canonical.metadata import CacheHint
from metis.wire.shape import Wire, maybe_list, maybe_object, maybe_text

_KEY = "cachePoint"
_TTLS = (None, "5m", "1h")


def hint_of(part: Any, after: int) -> CacheHint | None:
    """The hint that a mark stands for; None if it is none, or says more."""
    own = maybe_object(part)
    mark = maybe_object(own.get(_KEY))
    if len(own) != 1 or mark.get("type") != "default" or after < 0:
        return None
    ttl = maybe_text(mark.get("ttl"))
    return CacheHint(after=after, ttl=ttl) if mark == _mark(ttl) and ttl in _TTLS else None


def _mark(ttl: str | None) -> Wire:
    return {"type": "default"} if ttl is None else {"ttl": ttl, "type": "default"}


def with_marks(parts: Sequence[Any], hints: Sequence[CacheHint]) -> list[Any]:
    """The parts of a message, one for each block, with the marks that hints ask for.

    A block that has no part is not marked itself: what stands before it is.
    """
    marked: list[Any] = []
    for index, part in enumerate(parts):
        if part is not None:
            marked.append(part)
        if marked:
            marked += ({_KEY: _mark(hint.ttl)} for hint in hints if hint.after == index)
    return marked


def marks_of(wire: Mapping[str, Any]) -> list[Wire]:
    """The marks that a request sets beside its messages: on tools."""
    tools = maybe_list(maybe_object(wire.get("toolConfig")).get("tools"))
    marks = (maybe_object(maybe_object(tool).get(_KEY)) for tool in tools)
    return [mark for mark in marks if mark]
