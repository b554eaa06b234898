"""Facts: what routing has to know of a turn, taken from the conversation."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import PurePosixPath

from metis.canonical.blocks import (
    ContentBlock,
    ImageBlock,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageStatus
from metis.canonical.tools import ToolDefinition
from metis.routing import TurnFacts
from metis.session.models import Served


def facts_of(
    messages: Sequence[Message], tools: Sequence[ToolDefinition], now: datetime
) -> TurnFacts:
    """What a conversation and its tools ask of a model."""
    return TurnFacts(
        now=now,
        has_images=has_images(messages),
        has_tool_calls_in_history=_has_calls(messages),
        needs_tools=bool(tools),
        needs_system_prompt=any(message.role is Role.SYSTEM for message in messages),
        side_effects=frozenset(tool.side_effects for tool in tools),
        file_extensions_in_context=_extensions(messages),
    )


def has_images(messages: Iterable[Message]) -> bool:
    """Whether any message or result holds an image."""
    return any(_has_image(block) for message in messages for block in message.content)


def estimate(messages: Sequence[Message], tools: Sequence[ToolDefinition], served: Served) -> int:
    """About how many tokens a request takes: what the last answer took, and what came since."""
    for place in range(len(messages) - 1, -1, -1):
        metadata = messages[place].metadata
        if messages[place].role is not Role.ASSISTANT:
            continue
        usage = metadata.usage
        if usage is None or usage.estimated or metadata.status is not MessageStatus.COMPLETE:
            continue
        if metadata.model != served.id or _is_before_summary(messages, place):
            break
        since = messages[place + 1 :]
        more = served.adapter.estimate_input_tokens(since, model=served.id) if since else 0
        return usage.prompt_tokens + usage.output_tokens + more
    return served.adapter.estimate_input_tokens(messages, tools, model=served.id)


def words_of(content: Iterable[ContentBlock]) -> str:
    """The plain words of some blocks."""
    return "\n".join(block.text for block in content if isinstance(block, TextBlock))


def _is_before_summary(messages: Sequence[Message], place: int) -> bool:
    """Whether an answer was given to more than is shown now."""
    first = next((each for each in messages if each.role is not Role.SYSTEM), messages[place])
    return first.metadata.origin == "compaction" and first.id > messages[place].id


def _has_image(block: ContentBlock) -> bool:
    if isinstance(block, ToolResultBlock):
        return any(isinstance(part, ImageBlock) for part in block.content)
    return isinstance(block, ImageBlock)


def _has_calls(messages: Iterable[Message]) -> bool:
    return any(isinstance(block, ToolUseBlock) for each in messages for block in each.content)


def _extensions(messages: Iterable[Message]) -> frozenset[str]:
    """The kinds of the files that calls have named."""
    paths = (
        block.input.get("path")
        for message in messages
        for block in message.content
        if isinstance(block, ToolUseBlock)
    )
    found = {PurePosixPath(path).suffix.lower() for path in paths if isinstance(path, str)}
    return frozenset(found - {""})
