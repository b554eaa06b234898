"""A quick look at a conversation: most need no projection at all."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache

from metis.canonical.blocks import (
    ContentBlock,
    ImageBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from metis.canonical.message import Message, Role
from metis.projection.calls import PLAIN_NAME
from metis.projection.media import is_base64, sniffed
from metis.projection.signatures import unsigned_call
from metis.projection.target import Target

_ASSISTANT, _SYSTEM, _TOOL, _USER = Role.ASSISTANT, Role.SYSTEM, Role.TOOL, Role.USER


def calls_if_ready(  # noqa: C901, PLR0911 - one flat pass over every block of every request
    messages: Sequence[Message], target: Target, before: AbstractSet[str] | None = None
) -> set[str] | None:
    """The calls of a conversation that surely can be sent as it is; None asks for a longer look.

    Ready are text, images that the target takes, its own signed thoughts, and calls that the next
    messages answer in their order. `before` are the calls of what stands before these messages;
    None if nothing does.
    """
    waiting: list[str] = []
    seen: set[str] = set()
    is_leading = before is None
    may_be_blank = target.takes_blank_text
    pairs_thoughts = target.pairs_thoughts
    for message in messages:
        role, content = message.role, message.content
        if message.metadata.hints:
            return None
        if role is _TOOL:
            if not _answers(content, waiting, may_be_blank=may_be_blank):
                return None
            continue
        if waiting or not content or unsigned_call(message, target) is not None:
            return None
        if role is not _USER and role is not _ASSISTANT and not (role is _SYSTEM and is_leading):
            return None
        is_leading = is_leading and role is _SYSTEM
        for block in content:
            if type(block) is TextBlock:
                text = block.text
                if block.citations or not (may_be_blank or (text and not text.isspace())):
                    return None
            elif not _is_fine(block, role, target, waiting, seen):
                return None
        if pairs_thoughts and type(content[-1]) is ThinkingBlock:
            return None
    if waiting or (seen and not target.takes_tools) or (before and not before.isdisjoint(seen)):
        return None
    return seen if _is_framed(messages, target, is_start=before is None) else None


@lru_cache(maxsize=1000)
def _is_plain(name: str) -> bool:
    """Whether every target takes a name of a tool; the same few come again and again."""
    return PLAIN_NAME.fullmatch(name) is not None


def _is_framed(messages: Sequence[Message], target: Target, *, is_start: bool) -> bool:
    """Whether a conversation begins and ends as the target wants it."""
    if not messages:
        return True
    if target.starts_with_user and is_start:
        first = next((message for message in messages if message.role is not _SYSTEM), None)
        if first is None or first.role is not _USER:
            return False
    return target.takes_blank_end or messages[-1].role is not _ASSISTANT


def _is_fine(
    block: ContentBlock, role: Role, target: Target, waiting: list[str], seen: set[str]
) -> bool:
    """Whether a block other than text can be sent as it is."""
    if role is not _ASSISTANT:
        return role is _USER and _is_taken(block, target)
    if type(block) is not ToolUseBlock:
        return _is_own_thought(block, target)
    call, name = block.id, block.name
    if not call or call in seen or block.invalid is not None:
        return False
    if len(name) > target.tool_name_length or not _is_plain(name):
        return False
    seen.add(call)
    waiting.append(call)
    return True


def _answers(content: tuple[ContentBlock, ...], waiting: list[str], *, may_be_blank: bool) -> bool:
    if len(content) != 1 or not waiting:
        return False
    result = content[0]
    if type(result) is not ToolResultBlock or waiting.pop(0) != result.tool_use_id:
        return False
    for block in result.content:
        if type(block) is not TextBlock or block.citations:
            return False
        if not may_be_blank and (not block.text or block.text.isspace()):
            return False
    return True


def _is_own_thought(block: ContentBlock, target: Target) -> bool:
    return (
        type(block) is ThinkingBlock
        and target.takes_thinking
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
        and sniffed(data) in (None, block.media_type)
        and is_base64(data)
        and (target.max_image_chars is None or len(data) <= target.max_image_chars)
    )
