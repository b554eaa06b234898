"""Cache marks: which blocks end a reusable prefix of a request.

A hint in the metadata of a message says where a prefix ends. The plan turns the hints of a history
into marks that the target takes, and leaves them as the hints of the projected messages: a codec
writes exactly these. Marks that a client set itself are kept and counted.
"""

from collections.abc import Collection, Sequence
from datetime import datetime
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from metis.canonical.blocks import (
    ContentBlock,
    OpaqueBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from metis.canonical.ids import new_ulid
from metis.canonical.message import Message, Role
from metis.canonical.metadata import CacheHint, MessageMetadata
from metis.projection.loss import LossRecorder
from metis.projection.target import Target, is_native


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


def system_message(
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


SHORT_TTL, LONG_TTL = "5m", "1h"
"""The two lifetimes that a mark can have; the short one is what is meant if none is named."""


_SHARED_BY_ALL = (Role.SYSTEM, Role.DEVELOPER)
"""Whose words stand before all turns, so that most rests on a mark there."""
LOOKED_BACK = 20
"""How many blocks before a mark are looked at for one of an earlier request."""
_CHARACTERS = 3
"""How many characters a token has at least; so that no prefix is called short that is not."""
_MEDIUM = 3000
"""What a picture or a document counts as."""


class _Mark(Struct):
    """A place that is to be marked."""

    message: int
    hint: CacheHint
    is_own: bool
    """Whether a client that speaks to the target set it."""


def plan_cache_marks(messages: Sequence[Message], ledger: LossRecorder) -> list[Message]:
    """The same messages with the hints that the target takes as marks (T170-T175).

    Where there are more than a request may hold, the last ones stay, which the next request reads,
    and a first one on the instructions, which every turn shares. Where a long way of blocks follows
    the last mark, others are set on it, for the target looks only so far back (T179).
    """
    if not any(message.metadata.hints for message in messages):
        return list(messages)
    if not ledger.target.cache_marks:
        return [_unmarked(message, ledger) for message in messages]
    marks = _choose(messages, _found(messages, ledger), ledger.target.cache_marks)
    marks += _rolling(messages, marks, ledger)
    _warn_if_short(messages, marks, ledger)
    _settle_lifetimes(messages, marks, ledger)
    planned: dict[int, list[CacheHint]] = {}
    for mark in marks:
        planned.setdefault(mark.message, []).append(mark.hint)
    return [
        message
        if is_native(message, ledger.target)
        else _with_hints(message, tuple(planned.get(index, ())))
        for index, message in enumerate(messages)
    ]


def _unmarked(message: Message, ledger: LossRecorder) -> Message:
    """The message for a target without marks; only a lifetime that was asked for is missed."""
    if is_native(message, ledger.target):
        return message
    for hint in message.metadata.hints:
        if hint.ttl not in (None, SHORT_TTL):
            ledger.record_dropped(
                message, "hint", "$.metadata.hints", f"no cache lives {hint.ttl} here"
            )
    return _with_hints(message, ())


def _with_hints(message: Message, hints: tuple[CacheHint, ...]) -> Message:
    if message.metadata.hints == hints:
        return message
    return replace(message, metadata=replace(message.metadata, hints=hints))


def _found(messages: Sequence[Message], ledger: LossRecorder) -> list[_Mark]:
    """Every place that can be marked, in order, each once."""
    marks: list[_Mark] = []
    for index, message in enumerate(messages):
        is_own = is_native(message, ledger.target)
        places: dict[int, CacheHint] = {}
        for hint in message.metadata.hints:
            content, target = message.content, ledger.target
            after = hint.after if is_own else _last_carrier(content, hint.after, target)
            if after is not None:
                known = places.get(after)
                ttl = hint.ttl if known is None or known.ttl in (None, SHORT_TTL) else known.ttl
                places[after] = replace(hint, after=after, ttl=ttl)
        marks += [_Mark(index, places[after], is_own) for after in sorted(places)]
    return marks


def _last_carrier(content: Sequence[ContentBlock], after: int, target: Target) -> int | None:
    """The block at or before a place that may carry a mark: no thought, no blank text (T172)."""
    places = range(min(after, len(content) - 1), -1, -1)
    return next((index for index in places if _carries(content[index], target)), None)


def _carries(block: ContentBlock, target: Target) -> bool:
    if block.type in target.unmarkable_blocks:
        return False
    match block:
        case TextBlock():
            return bool(block.text.strip())
        case ToolUseBlock():
            return target.can_mark_calls
        case _:
            return not isinstance(block, ThinkingBlock | RedactedThinkingBlock | OpaqueBlock)


def _choose(messages: Sequence[Message], marks: list[_Mark], limit: int) -> list[_Mark]:
    """At most that many marks, with all of the client's own (T170)."""
    ours = [mark for mark in marks if not mark.is_own]
    room = max(0, limit - (len(marks) - len(ours)))
    if len(ours) <= room:
        return marks
    kept = ours[len(ours) - room :]
    if room > 1 and messages[ours[0].message].role in _SHARED_BY_ALL:
        kept = [ours[0], *kept[1:]]
    return [mark for mark in marks if mark.is_own or any(mark is each for each in kept)]


def _rolling(messages: Sequence[Message], marks: list[_Mark], ledger: LossRecorder) -> list[_Mark]:
    """Marks behind the last one, each as near to the next as the target looks back (T179)."""
    room = ledger.target.cache_marks - len(marks)
    if room <= 0 or not marks:
        return []
    last = marks[-1]
    places = [
        (index, place)
        for index, message in enumerate(messages)
        for place in range(len(message.content))
        if (index, place) > (last.message, last.hint.after)
    ]
    more: list[_Mark] = []
    within, gap = places, len(places)
    while within and gap > LOOKED_BACK and len(more) < room:
        found = _carrier(messages, within, ledger)
        if found is None:
            break
        index, place = found
        reason = "many blocks follow the mark before it, so that one more is set"
        ledger.record_synthesised(messages[index], "hint", f"$.content[{place}]", reason)
        more.append(_Mark(index, CacheHint(after=place), is_own=False))
        gap = places.index(found) + 1
        within = places[: max(gap - LOOKED_BACK, 0)]
    return more[::-1]


def _carrier(
    messages: Sequence[Message], places: list[tuple[int, int]], ledger: LossRecorder
) -> tuple[int, int] | None:
    """The last of some places that can be marked."""
    for index, place in reversed(places):
        is_free = not is_native(messages[index], ledger.target)
        content = messages[index].content
        if is_free and _last_carrier(content, place, ledger.target) == place:
            return index, place
    return None


def _warn_if_short(messages: Sequence[Message], marks: list[_Mark], ledger: LossRecorder) -> None:
    """Tell of a prefix that is too short to be kept; what is cached then is nothing (T179)."""
    least = ledger.target.min_cached_tokens
    if not least or not marks or marks[-1].is_own:
        return
    last = marks[-1]
    size = 0
    for message in messages[: last.message + 1]:
        size += sum(map(_length, message.content))
        if size > least * _CHARACTERS:
            return
    reason = f"some {size // _CHARACTERS} tokens stand before the mark, tools aside; "
    reason += f"the target keeps {least} or more"
    path = f"$.content[{last.hint.after}]"
    ledger.record_altered(messages[last.message], "hint", path, reason)


def _length(block: ContentBlock) -> int:
    """About how many characters a block is worth."""
    match block:
        case TextBlock() | ThinkingBlock():
            return len(block.text)
        case ToolResultBlock():
            return sum(map(_length, block.content))
        case ToolUseBlock():
            return len(str(block.input))
        case _:
            return _MEDIUM


def _settle_lifetimes(
    messages: Sequence[Message], marks: list[_Mark], ledger: LossRecorder
) -> None:
    """Give every mark a lifetime that the target has, none longer than one before it (T171)."""
    is_long = ledger.target.accepts_long_marks
    for place, mark in enumerate(marks):
        asked = mark.hint.ttl or SHORT_TTL
        if mark.is_own:
            is_long = is_long and asked == LONG_TTL
            continue
        owed = any(after.is_own and after.hint.ttl == LONG_TTL for after in marks[place:])
        given = LONG_TTL if is_long and (owed or asked != SHORT_TTL) else SHORT_TTL
        is_long = given == LONG_TTL
        if given != asked:
            reason = f"a cache of {asked} is not to be had here; it lives {given}"
            message = messages[mark.message]
            ledger.record_altered(message, "hint", f"$.content[{mark.hint.after}]", reason)
        mark.hint = replace(mark.hint, ttl=LONG_TTL if given == LONG_TTL else None)
