"""Hiding: calls under other ids than ours, for whoever does not want models to see ours (M-296).

What a model sees instead is a hash: always the same for the same call, and no way back.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from metis.canonical.blocks import ContentBlock, ToolResultBlock, ToolUseBlock
from metis.canonical.ids import hashed_tool_id
from metis.canonical.message import Message
from metis.wire.spelling import with_tool_ids


def hidden(messages: Sequence[Message]) -> Sequence[Message]:
    """The same messages with every call and result under an id that does not tell ours."""
    return [_hidden(message) for message in messages]


def _hidden(message: Message) -> Message:
    ids = {own: _other(own) for block in message.content if (own := _id_of(block)) is not None}
    if not ids:
        return message
    parent = message.metadata.parent_tool_use_id
    metadata = replace(message.metadata, parent_tool_use_id=parent and _other(parent))
    content = tuple(_renamed(block) for block in message.content)
    return with_tool_ids(replace(message, content=content, metadata=metadata), ids)


def _id_of(block: ContentBlock) -> str | None:
    if isinstance(block, ToolUseBlock):
        return block.id
    return block.tool_use_id if isinstance(block, ToolResultBlock) else None


def _renamed(block: ContentBlock) -> ContentBlock:
    if isinstance(block, ToolUseBlock):
        return replace(block, id=_other(block.id))
    if isinstance(block, ToolResultBlock):
        return replace(block, tool_use_id=_other(block.tool_use_id))
    return block


def _other(own: str) -> str:
    return hashed_tool_id("hidden", own, "")
