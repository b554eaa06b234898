"""Content of one message.

replaced without losing its cache hints, and protected if it is critical.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from metis.canonical.blocks import ContentBlock
from metis.canonical.errors import CriticalLossError
from metis.canonical.message import Message
from metis.canonical.metadata import CacheHint

IndexedBlock = tuple[int, ContentBlock]
"""A block, and the index that it or what it stands for had."""


def with_blocks(message: Message, blocks: Sequence[IndexedBlock]) -> Message:
    """The message with other blocks; a prefix that ended at a block that is gone ends before it."""
    content = tuple(block for _, block in blocks)
    if not message.metadata.hints:
        return replace(message, content=content)
    hints = tuple(
        moved
        for hint in message.metadata.hints
        if (moved := _moved(hint, [index for index, _ in blocks])) is not None
    )
    return replace(message, content=content, metadata=replace(message.metadata, hints=hints))


def _moved(hint: CacheHint, origins: Sequence[int]) -> CacheHint | None:
    after = sum(origin <= hint.after for origin in origins) - 1
    return None if after < 0 else replace(hint, after=after)


def fail_if_critical(block: ContentBlock, message: Message, path: str, reason: str) -> None:
    """Raise if a block that is to be changed or left out is marked critical."""
    if getattr(block, "critical", False):
        raise CriticalLossError(
            message_id=message.id, path=path, block_type=block.type, reason=reason
        )
