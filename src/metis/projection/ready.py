"""A quick look at a conversation: most need no projection at all."""

from collections.abc import Sequence

from metis.canonical.blocks import (
    ContentBlock,
    ImageBlock,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from metis.canonical.message import Message, Role
from metis.projection.target import Target


def is_ready(messages: Sequence[Message], target: Target) -> bool:
    """Whether a conversation surely can be sent as it is; no is no verdict, only a longer look.

    Text, images that the target takes, and calls that are answered in the next messages.
    """
    waiting: set[str] = set()
    seen: set[str] = set()
    is_leading = True
    for message in messages:
        role, content = message.role, message.content
        if role is Role.TOOL:
            if not _answers(content, waiting, target):
                return False
        elif waiting or not content:
            return False
        elif role is Role.ASSISTANT:
            if not _says_plainly(content, waiting, seen, target):
                return False
        elif role is Role.USER:
            if not _asks_plainly(content, target):
                return False
        elif not (role is Role.SYSTEM and is_leading and _asks_plainly(content, target)):
            return False
        is_leading = is_leading and role is Role.SYSTEM
    return not waiting


def _answers(content: tuple[ContentBlock, ...], waiting: set[str], target: Target) -> bool:
    if len(content) != 1:
        return False
    result = content[0]
    if type(result) is not ToolResultBlock or result.tool_use_id not in waiting:
        return False
    waiting.remove(result.tool_use_id)
    for block in result.content:
        if type(block) is not TextBlock or block.citations or _is_refused_blank(block, target):
            return False
    return True


def _says_plainly(
    content: tuple[ContentBlock, ...], waiting: set[str], seen: set[str], target: Target
) -> bool:
    for block in content:
        if type(block) is ToolUseBlock:
            if block.id in seen or not target.takes_tools or target.call_signature:
                return False
            seen.add(block.id)
            waiting.add(block.id)
        elif type(block) is not TextBlock or block.citations or _is_refused_blank(block, target):
            return False
    return True


def _asks_plainly(content: tuple[ContentBlock, ...], target: Target) -> bool:
    for block in content:
        if type(block) is TextBlock:
            if block.citations or _is_refused_blank(block, target):
                return False
        elif type(block) is not ImageBlock or not _is_taken(block, target):
            return False
    return True


def _is_refused_blank(block: TextBlock, target: Target) -> bool:
    return not target.takes_blank_text and (not block.text or block.text.isspace())


def _is_taken(image: ImageBlock, target: Target) -> bool:
    return (
        "image" in target.user_blocks
        and image.source.kind == "base64"
        and image.media_type in target.image_media_types
    )
