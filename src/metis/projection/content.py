"""Helpers for the content of one message: calls, results, replaced and critical blocks."""

from collections.abc import Sequence
from operator import is_

from msgspec.structs import replace

from metis.canonical.blocks import ContentBlock, ToolResultBlock, ToolUseBlock
from metis.canonical.errors import CriticalLossError
from metis.canonical.message import Message, Role
from metis.canonical.metadata import CacheHint

IndexedBlock = tuple[int, ContentBlock]
"""A block, and its original index or that of the block that it replaces."""


def calls_of(message: Message) -> list[ToolUseBlock]:
    """Return the calls of an assistant message; none for other roles."""
    if message.role != Role.ASSISTANT:
        return []
    return [block for block in message.content if isinstance(block, ToolUseBlock)]


def result_of(message: Message) -> ToolResultBlock | None:
    """Return the result of a tool message; None for other messages."""
    if message.role != Role.TOOL or not message.content:
        return None
    block = message.content[0]
    return block if isinstance(block, ToolResultBlock) else None


def are_identical(first: Sequence[object], second: Sequence[object]) -> bool:
    """Whether two sequences contain the same objects, so that nothing has changed."""
    return first is second or (len(first) == len(second) and all(map(is_, first, second)))


def fail_if_critical(block: ContentBlock, message: Message, path: str, reason: str) -> None:
    """Raise CriticalLossError if a block that would be changed or dropped is marked critical."""
    if getattr(block, "critical", False):
        raise CriticalLossError(
            message_id=message.id, path=path, block_type=block.type, reason=reason
        )


def with_blocks(message: Message, blocks: Sequence[IndexedBlock]) -> Message:
    """Return the message with other blocks, and its cache hints moved to their new indexes.

    A hint on a removed block moves to the block before it.
    """
    content = tuple(block for _, block in blocks)
    if not message.metadata.hints:
        return replace(message, content=content)
    indexes = [index for index, _ in blocks]
    hints = tuple(
        moved for hint in message.metadata.hints if (moved := _moved(hint, indexes)) is not None
    )
    return replace(message, content=content, metadata=replace(message.metadata, hints=hints))


def _moved(hint: CacheHint, indexes: Sequence[int]) -> CacheHint | None:
    after = sum(index <= hint.after for index in indexes) - 1
    return None if after < 0 else replace(hint, after=after)
