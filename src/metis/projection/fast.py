"""Fast path of the projection.

histories that a target takes as they are, or after fixing single messages.

Duplicates what `blocks`, `tool_calls`, `media`, `roles` and `message_order` decide for plain
messages; tests/projection/test_laws.py compares it with `project_by_rules`.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache

from msgspec import Struct

from metis.canonical.blocks import (
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from metis.canonical.message import Message, Role
from metis.projection.blocks import project_blocks, sign_call, unsigned_call
from metis.projection.images import size_if_larger
from metis.projection.loss import Loss, LossRecorder
from metis.projection.media import Media, is_base64, sniff_media_type
from metis.projection.target import Target, foreign_maker, is_native
from metis.projection.tool_calls import PORTABLE_NAME

_ASSISTANT, _SYSTEM, _TOOL, _USER = Role.ASSISTANT, Role.SYSTEM, Role.TOOL, Role.USER


class InspectedHistory(Struct, frozen=True, gc=False):
    """A conversation that can be sent as it is, but for what concerns one message alone."""

    call_ids: set[str]
    """Its calls; all are answered."""
    fix_indexes: list[int]
    """The places of messages with media that the target may not take, or unsigned calls."""


def inspect_history(  # noqa: C901, PLR0911, PLR0912 - one flat pass over every block of every request
    messages: Sequence[Message], target: Target, before: AbstractSet[str] | None = None
) -> InspectedHistory | None:
    """What there is to know of a conversation that surely is ready; None asks for a longer look.

    Ready are text, images that the target takes, its own signed thoughts, and calls that the next
    messages answer in their order. `before` are the calls of what stands before these messages;
    None if nothing does.
    """
    waiting: list[str] = []
    seen: set[str] = set()
    is_leading = before is None
    may_be_blank = target.accepts_blank_text
    flaws: list[int] = []
    pairs_thoughts, wants_signatures = target.pairs_thinking, bool(target.placeholder_signature)
    for index, message in enumerate(messages):
        role, content, metadata = message.role, message.content, message.metadata
        if metadata.hints:
            return None
        if role is _TOOL:
            if len(content) != 1 or not waiting:
                return None
            result = content[0]
            if type(result) is not ToolResultBlock or waiting.pop(0) != result.tool_use_id:
                return None
            content = result.content
        elif waiting or not content:
            return None
        elif role is not _USER and role is not _ASSISTANT:
            if role is not _SYSTEM or not is_leading:
                return None
        elif is_leading:
            is_leading = False
        for block in content:
            if type(block) is TextBlock:
                text = block.text
                if block.citations or not (may_be_blank or (text and not text.isspace())):
                    return None
            elif type(block) is ToolUseBlock and role is _ASSISTANT:
                call, name = block.id, block.name
                if not call or call in seen or block.invalid is not None:
                    return None
                if len(name) > target.tool_name_length or not _is_plain(name):
                    return None
                seen.add(call)
                waiting.append(call)
            elif not _is_fine(block, message, target):
                if role is not _USER or not isinstance(block, Media):
                    return None
                if target.needs_document_names and type(block) is DocumentBlock:
                    return None
                flaws.append(index)
        if role is _ASSISTANT:
            if pairs_thoughts and type(content[-1]) is ThinkingBlock:
                return None
            if wants_signatures and unsigned_call(message, target) is not None:
                flaws.append(index)
    if waiting or (seen and not target.accepts_tools) or (before and not before.isdisjoint(seen)):
        return None
    is_framed = _is_framed(messages, target, is_start=before is None)
    return InspectedHistory(seen, flaws) if is_framed else None


@lru_cache(maxsize=1000)
def _is_plain(name: str) -> bool:
    """Whether every target takes a name of a tool; the same few come again and again."""
    return PORTABLE_NAME.fullmatch(name) is not None


def _is_framed(messages: Sequence[Message], target: Target, *, is_start: bool) -> bool:
    """Whether a conversation begins and ends as the target wants it."""
    if not messages:
        return True
    if target.starts_with_user and is_start:
        first = next((message for message in messages if message.role is not _SYSTEM), None)
        if first is None or first.role is not _USER:
            return False
    return target.accepts_trailing_space or messages[-1].role is not _ASSISTANT


def _is_fine(block: ContentBlock, message: Message, target: Target) -> bool:
    """Whether a block other than text and calls can be sent as it is."""
    if message.role is _ASSISTANT:
        is_made_here = not target.maker_pattern or foreign_maker(message, target) is None
        return is_made_here and _is_own_thought(block, target)
    return message.role is _USER and _is_taken(block, target)


def _is_own_thought(block: ContentBlock, target: Target) -> bool:
    return (
        type(block) is ThinkingBlock
        and target.accepts_thinking
        and block.issuer in target.issuers
        and bool(block.signature or not target.needs_signatures)
    )


def _is_taken(block: ContentBlock, target: Target) -> bool:
    if type(block) is not ImageBlock or "image" not in target.user_blocks:
        return False
    data = block.source.data
    return (
        block.source.kind == "base64"
        and block.media_type in target.image_media_types
        and sniff_media_type(data) in (None, block.media_type)
        and is_base64(data)
        and (target.max_image_chars is None or len(data) <= target.max_image_chars)
        and size_if_larger(block, target.large_image_side) is None
    )


_TOUCH_USER = Role.USER


class FixedHistory(Struct, frozen=True):
    """A conversation of which some messages were mended, and what that cost."""

    messages: Sequence[Message]
    losses: list[Loss]
    has_large_images: bool = False


def fix_messages(
    messages: Sequence[Message], places: Sequence[int], target: Target
) -> FixedHistory | None:
    """Mend media and calls of the messages at some places; None if nothing is left of one."""
    media, calls = LossRecorder(target), LossRecorder(target)
    sent = list(messages)
    for place in places:
        message = sent[place]
        if message.role is not _TOUCH_USER:
            first = unsigned_call(message, target)
            if first is not None:
                sent[place] = sign_call(message, first, calls)
        elif message is messages[place] and not is_native(message, target):
            sent[place], _ = project_blocks(message, _TOUCH_USER, media)
            if not sent[place].content:
                return None
    return FixedHistory(sent, media.losses + calls.losses, media.has_large_images)
