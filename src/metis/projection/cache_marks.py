"""Cache marks: the blocks at which a reusable prefix of a request ends.

A cache hint in the metadata of a message is a request for a mark. `plan_cache_marks` replaces the
hints of a history by those that the target accepts as marks; a codec encodes exactly these. Marks
that a client of the target has set are not changed, but count towards the limit.
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

SHORT_TTL, LONG_TTL = "5m", "1h"
"""The two lifetimes of a cached prefix; the short one is the default."""

_INSTRUCTION_ROLES = (Role.SYSTEM, Role.DEVELOPER)
_LOOKBACK_BLOCKS = 20
"""How many blocks before a mark Anthropic searches for a mark of an earlier request (T179)."""
_CHARACTERS_PER_TOKEN = 3
"""A low estimate of characters per token, so that no long prefix is reported as short."""
_MEDIA_CHARACTERS = 3000
"""The estimated characters of an image or a document."""


class Boundary(StrEnum):
    """A position in the instructions where a reusable prefix ends."""

    TOOLS_END = "tools_end"
    MEMORY_END = "memory_end"
    SYSTEM_END = "system_end"


class Section(Struct, frozen=True, kw_only=True):
    """One part of the instructions."""

    text: str
    ends: Boundary | None = None
    """The boundary at the end of this section, if there is one."""
    ttl: str | None = None
    """The lifetime of the prefix up to this boundary, `5m` or `1h`."""


def system_message(
    sections: Sequence[Section],
    session_id: str,
    created_at: datetime,
    *,
    marked: Collection[Boundary] = tuple(Boundary),
) -> Message:
    """Return a system message with one text per section, and hints at the boundaries.

    Sections that rarely change should be first. A blank section is left out; its boundary moves to
    the text before it.
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


class _Mark(Struct):
    """A planned mark: the hint of one message."""

    message_index: int
    hint: CacheHint
    is_native: bool
    """Whether a client of the target has set the mark."""


def plan_cache_marks(messages: Sequence[Message], recorder: LossRecorder) -> list[Message]:
    """Return the messages with the hints that the target accepts as marks (T170-T175)."""
    if not any(message.metadata.hints for message in messages):
        return list(messages)
    if not recorder.target.cache_marks:
        return [_without_marks(message, recorder) for message in messages]
    marks = _choose(messages, _possible_marks(messages, recorder), recorder.target.cache_marks)
    marks += _rolling_marks(messages, marks, recorder)
    _report_short_prefix(messages, marks, recorder)
    _fit_lifetimes(messages, marks, recorder)
    planned: dict[int, list[CacheHint]] = {}
    for mark in marks:
        planned.setdefault(mark.message_index, []).append(mark.hint)
    return [
        message
        if is_native(message, recorder.target)
        else _with_hints(message, tuple(planned.get(index, ())))
        for index, message in enumerate(messages)
    ]


def _without_marks(message: Message, recorder: LossRecorder) -> Message:
    # Losing a hint with the default lifetime only costs money; an explicit long one is a loss.
    if is_native(message, recorder.target):
        return message
    for hint in message.metadata.hints:
        if hint.ttl not in (None, SHORT_TTL):
            reason = f"the target has no cache with a lifetime of {hint.ttl}"
            recorder.record_dropped(message, "hint", "$.metadata.hints", reason)
    return _with_hints(message, ())


def _with_hints(message: Message, hints: tuple[CacheHint, ...]) -> Message:
    if message.metadata.hints == hints:
        return message
    return replace(message, metadata=replace(message.metadata, hints=hints))


def _possible_marks(messages: Sequence[Message], recorder: LossRecorder) -> list[_Mark]:
    """Return a mark for each hint, on the last block up to it that can have a mark."""
    target, marks = recorder.target, list[_Mark]()
    for message_index, message in enumerate(messages):
        is_client = is_native(message, target)
        hints: dict[int, CacheHint] = {}
        for hint in message.metadata.hints:
            index = hint.after
            if not is_client:
                markable = _last_markable(message.content, hint.after, target)
                if markable is None:
                    continue
                index = markable
            earlier = hints.get(index)
            ttl = hint.ttl if earlier is None or earlier.ttl in (None, SHORT_TTL) else earlier.ttl
            hints[index] = replace(hint, after=index, ttl=ttl)
        marks += [_Mark(message_index, hints[index], is_client) for index in sorted(hints)]
    return marks


def _last_markable(content: Sequence[ContentBlock], after: int, target: Target) -> int | None:
    # Anthropic rejects marks on thinking and on blank text (T172).
    indexes = range(min(after, len(content) - 1), -1, -1)
    return next((index for index in indexes if _is_markable(content[index], target)), None)


def _is_markable(block: ContentBlock, target: Target) -> bool:
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
    """Return at most `limit` marks, including all marks of a client (T170)."""
    # The last marks are chosen, which the next request reads, and the first one if it is on the
    # instructions, which all requests share.
    hinted = [mark for mark in marks if not mark.is_native]
    available = max(0, limit - (len(marks) - len(hinted)))
    if len(hinted) <= available:
        return marks
    chosen = hinted[len(hinted) - available :]
    if available > 1 and messages[hinted[0].message_index].role in _INSTRUCTION_ROLES:
        chosen = [hinted[0], *chosen[1:]]
    return [mark for mark in marks if mark.is_native or any(mark is other for other in chosen)]


def _rolling_marks(
    messages: Sequence[Message], marks: list[_Mark], recorder: LossRecorder
) -> list[_Mark]:
    """Return additional marks after the last one, within the distance that is searched (T179)."""
    # Anthropic finds a cached prefix only within 20 blocks before a mark of the new request.
    available = recorder.target.cache_marks - len(marks)
    if available <= 0 or not marks:
        return []
    last = marks[-1]
    positions = [
        (message_index, index)
        for message_index, message in enumerate(messages)
        for index in range(len(message.content))
        if (message_index, index) > (last.message_index, last.hint.after)
    ]
    added: list[_Mark] = []
    candidates, gap = positions, len(positions)
    while candidates and gap > _LOOKBACK_BLOCKS and len(added) < available:
        position = _last_position(messages, candidates, recorder.target)
        if position is None:
            break
        message_index, index = position
        reason = f"more than {_LOOKBACK_BLOCKS} blocks follow the previous mark; a mark is added"
        path = f"$.content[{index}]"
        recorder.record_synthesised(messages[message_index], "hint", path, reason)
        added.append(_Mark(message_index, CacheHint(after=index), is_native=False))
        gap = positions.index(position) + 1
        candidates = positions[: max(gap - _LOOKBACK_BLOCKS, 0)]
    return added[::-1]


def _last_position(
    messages: Sequence[Message], positions: list[tuple[int, int]], target: Target
) -> tuple[int, int] | None:
    for message_index, index in reversed(positions):
        message = messages[message_index]
        if not is_native(message, target) and (
            _last_markable(message.content, index, target) == index
        ):
            return message_index, index
    return None


def _report_short_prefix(
    messages: Sequence[Message], marks: list[_Mark], recorder: LossRecorder
) -> None:
    """Record a loss if the marked prefix is too short to be cached."""
    # Anthropic ignores marks on short prefixes without an error: nothing is cached (T179).
    minimum = recorder.target.min_cached_tokens
    if not minimum or not marks or marks[-1].is_native:
        return
    last = marks[-1]
    size = 0
    for message in messages[: last.message_index + 1]:
        size += sum(map(_character_count, message.content))
        if size > minimum * _CHARACTERS_PER_TOKEN:
            return
    reason = f"about {size // _CHARACTERS_PER_TOKEN} tokens precede the mark, beside tools; "
    reason += f"the target caches {minimum} or more"
    path = f"$.content[{last.hint.after}]"
    recorder.record_altered(messages[last.message_index], "hint", path, reason)


def _character_count(block: ContentBlock) -> int:
    match block:
        case TextBlock() | ThinkingBlock():
            return len(block.text)
        case ToolResultBlock():
            return sum(map(_character_count, block.content))
        case ToolUseBlock():
            return len(str(block.input))
        case _:
            return _MEDIA_CHARACTERS


def _fit_lifetimes(messages: Sequence[Message], marks: list[_Mark], recorder: LossRecorder) -> None:
    """Set lifetimes that the target has, none longer than that of an earlier mark (T171)."""
    # Anthropic rejects a mark of one hour after one of five minutes with 400.
    is_long = recorder.target.accepts_long_marks
    for index, mark in enumerate(marks):
        requested = mark.hint.ttl or SHORT_TTL
        if mark.is_native:
            is_long = is_long and requested == LONG_TTL
            continue
        precedes_long = any(m.is_native and m.hint.ttl == LONG_TTL for m in marks[index:])
        ttl = LONG_TTL if is_long and (precedes_long or requested != SHORT_TTL) else SHORT_TTL
        is_long = ttl == LONG_TTL
        if ttl != requested:
            reason = f"a lifetime of {requested} is not available here; it is {ttl}"
            message = messages[mark.message_index]
            recorder.record_altered(message, "hint", f"$.content[{mark.hint.after}]", reason)
        mark.hint = replace(mark.hint, ttl=LONG_TTL if ttl == LONG_TTL else None)
