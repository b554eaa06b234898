"""Sections: instructions that are made of parts, with names for the places where prefixes end.

What seldom changes comes first: what is told of the tools, then what is remembered, then the rest.
A boundary is the end of the last section that names it. It becomes a hint of the message, and the
cache plan makes a mark of it where the target takes marks.
"""

from collections.abc import Collection, Sequence
from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from metis.canonical.blocks import ContentBlock, TextBlock
from metis.canonical.ids import new_ulid
from metis.canonical.message import Message, Role
from metis.canonical.metadata import CacheHint, MessageMetadata


class Boundary(StrEnum):
    """A place in the instructions where a reusable prefix ends."""

    TOOLS_END = "tools_end"
    MEMORY_END = "memory_end"
    SYSTEM_END = "system_end"


class Section(Struct, frozen=True, kw_only=True):
    """One part of the instructions."""

    text: str
    ends: Boundary | None = None
    """The boundary that this section ends, if it is the last of its kind."""
    ttl: str | None = None
    """How long the prefix up to there is to be kept, `5m` or `1h`."""


def sectioned(
    sections: Sequence[Section],
    session_id: str,
    created_at: datetime,
    *,
    marked: Collection[Boundary] = tuple(Boundary),
) -> Message:
    """The SYSTEM message of some sections, one text each, with hints at the boundaries.

    A section without a word has no text; a boundary that it ends moves to the text before it.
    """
    content: list[ContentBlock] = []
    ends: dict[Boundary, CacheHint] = {}
    for section in sections:
        if section.text.strip():
            content.append(TextBlock(section.text))
        if section.ends in marked and section.ends is not None and content:
            ends[section.ends] = CacheHint(after=len(content) - 1, ttl=section.ttl)
    hints = {hint.after: hint for hint in ends.values()}
    return Message(
        id=new_ulid(),
        session_id=session_id,
        role=Role.SYSTEM,
        content=tuple(content),
        created_at=created_at,
        metadata=MessageMetadata(hints=tuple(hints[after] for after in sorted(hints))),
    )
