"""A quick look at a conversation: most need no projection at all."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from metis.canonical.blocks import (
    ContentBlock,
    ImageBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from metis.canonical.message import Message, Role
from metis.projection.target import Target

_ASSISTANT, _SYSTEM, _TOOL, _USER = Role.ASSISTANT, Role.SYSTEM, Role.TOOL, Role.USER


def calls_if_ready(  # noqa: C901, PLR0911 - one flat pass over every block of every request
    messages: Sequence[Message], target: Target, before: AbstractSet[str] | None = None
) -> set[str] | None:
    """The calls of a conversation that surely can be sent as it is; None asks for a longer look.

    Ready are text, images that the target takes, its own signed thoughts, and calls that are
    answered in the next messages. `before` are the calls of what stands before these messages; None
    if nothing does.
    """
    waiting: set[str] = set()
    seen: set[str] = set()
    is_leading = before is None
    may_be_blank = target.takes_blank_text
    for message in messages:
        role, content = message.role, message.content
        if role is _TOOL:
            if not _answers(content, waiting, may_be_blank=may_be_blank):
                return None
            continue
        if waiting or not content:
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
    if waiting or (seen and not target.takes_tools) or (before and not before.isdisjoint(seen)):
        return None
    return seen


def _is_fine(
    block: ContentBlock, role: Role, target: Target, waiting: set[str], seen: set[str]
) -> bool:
    """Whether a block other than text can be sent as it is."""
    if role is not _ASSISTANT:
        return role is _USER and _is_taken(block, target)
    if type(block) is not ToolUseBlock:
        return _is_own_thought(block, target)
    call = block.id
    if call in seen or block.invalid is not None:
        return False
    seen.add(call)
    waiting.add(call)
    return True


def _answers(content: tuple[ContentBlock, ...], waiting: set[str], *, may_be_blank: bool) -> bool:
    if len(content) != 1:
        return False
    result = content[0]
    if type(result) is not ToolResultBlock or result.tool_use_id not in waiting:
        return False
    waiting.remove(result.tool_use_id)
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
    return (
        type(block) is ImageBlock
        and "image" in target.user_blocks
        and block.source.kind == "base64"
        and block.media_type in target.image_media_types
    )
