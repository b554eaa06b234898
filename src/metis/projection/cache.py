"""The cache plan: which blocks mark the end of a reusable prefix.

A hint in the metadata of a message says where a prefix ends. The plan turns the hints of a
conversation into marks that the target takes, and leaves them as the hints of the messages that
are sent: a codec writes exactly these. Marks that a client set itself are kept and counted.
"""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from metis.canonical.blocks import (
    ContentBlock,
    OpaqueBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
)
from metis.canonical.message import Message
from metis.canonical.metadata import CacheHint
from metis.projection.ledger import Ledger
from metis.projection.target import is_native

SHORT, LONG = "5m", "1h"
"""The two lifetimes that a mark can have; the short one is what is meant if none is named."""


class _Mark(Struct):
    """A place that is to be marked."""

    message: int
    hint: CacheHint
    is_own: bool
    """Whether a client that speaks to the target set it."""


def plan_marks(messages: Sequence[Message], ledger: Ledger) -> list[Message]:
    """The same messages with the hints that the target takes as marks (T170-T175).

    Where there are more than a request may hold, the first stays, because most rests on it, and
    the last ones, which the next request reads.
    """
    if not any(message.metadata.hints for message in messages):
        return list(messages)
    if not ledger.target.cache_marks:
        return [_unmarked(message, ledger) for message in messages]
    marks = _choose(_found(messages, ledger), ledger.target.cache_marks)
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


def _unmarked(message: Message, ledger: Ledger) -> Message:
    """The message for a target without marks; only a lifetime that was asked for is missed."""
    if is_native(message, ledger.target):
        return message
    for hint in message.metadata.hints:
        if hint.ttl not in (None, SHORT):
            ledger.dropped(message, "hint", "$.metadata.hints", f"no cache lives {hint.ttl} here")
    return _with_hints(message, ())


def _with_hints(message: Message, hints: tuple[CacheHint, ...]) -> Message:
    if message.metadata.hints == hints:
        return message
    return replace(message, metadata=replace(message.metadata, hints=hints))


def _found(messages: Sequence[Message], ledger: Ledger) -> list[_Mark]:
    """Every place that can be marked, in order, each once."""
    marks: list[_Mark] = []
    for index, message in enumerate(messages):
        is_own = is_native(message, ledger.target)
        places: dict[int, CacheHint] = {}
        for hint in message.metadata.hints:
            after = hint.after if is_own else _last_carrier(message.content, hint.after)
            if after is not None:
                known = places.get(after)
                ttl = hint.ttl if known is None or known.ttl in (None, SHORT) else known.ttl
                places[after] = replace(hint, after=after, ttl=ttl)
        marks += [_Mark(index, places[after], is_own) for after in sorted(places)]
    return marks


def _last_carrier(content: Sequence[ContentBlock], after: int) -> int | None:
    """The block at or before a place that may carry a mark: no thought, no blank text (T172)."""
    for index in range(min(after, len(content) - 1), -1, -1):
        block = content[index]
        is_blank = isinstance(block, TextBlock) and not block.text.strip()
        sealed = ThinkingBlock | RedactedThinkingBlock | OpaqueBlock
        if not is_blank and not isinstance(block, sealed):
            return index
    return None


def _choose(marks: list[_Mark], limit: int) -> list[_Mark]:
    """At most that many marks, with all of the client's own (T170)."""
    ours = [mark for mark in marks if not mark.is_own]
    room = max(0, limit - (len(marks) - len(ours)))
    if len(ours) <= room:
        return marks
    kept = [ours[0], *ours[len(ours) - room + 1 :]] if room > 1 else ours[len(ours) - room :]
    return [mark for mark in marks if mark.is_own or any(mark is each for each in kept)]


def _settle_lifetimes(messages: Sequence[Message], marks: list[_Mark], ledger: Ledger) -> None:
    """Give every mark a lifetime that the target has, none longer than one before it (T171)."""
    is_long = ledger.target.takes_long_marks
    for place, mark in enumerate(marks):
        asked = mark.hint.ttl or SHORT
        if mark.is_own:
            is_long = is_long and asked == LONG
            continue
        owed = any(after.is_own and after.hint.ttl == LONG for after in marks[place:])
        given = LONG if is_long and (owed or asked != SHORT) else SHORT
        is_long = given == LONG
        if given != asked:
            reason = f"a cache of {asked} is not to be had here; it lives {given}"
            message = messages[mark.message]
            ledger.altered(message, "hint", f"$.content[{mark.hint.after}]", reason)
        mark.hint = replace(mark.hint, ttl=LONG if given == LONG else None)
