"""Facts: what routing has to know of a turn, taken from the conversation."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import islice, takewhile

from metis.canonical.blocks import ContentBlock, TextBlock
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageStatus
from metis.canonical.tools import ToolDefinition
from metis.canonical.value import made
from metis.routing import TurnFacts
from metis.session.models import Served
from metis.session.seen import Seen

ORIGIN = "compaction"
"""The origin of the message that shows a summary."""

_make_message = made(Message)
_NEVER = datetime.fromtimestamp(0, UTC)


def facts_of(seen: Seen, tools: Sequence[ToolDefinition], now: datetime) -> TurnFacts:
    """What a conversation and its tools ask of a model."""
    return TurnFacts(
        now=now,
        has_images=seen.has_images,
        has_tool_calls_in_history=seen.has_calls,
        needs_tools=bool(tools),
        needs_system_prompt=seen.has_instructions,
        side_effects=frozenset(tool.side_effects for tool in tools),
        file_extensions_in_context=frozenset(seen.extensions),
    )


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


def needed(messages: Sequence[Message], tools: Sequence[ToolDefinition], served: Served) -> int:
    """About how many tokens a request takes at least: instructions and the last turn."""
    start = len(messages) - 1
    while start > 0 and messages[start].role is not Role.USER:
        start -= 1
    lead = takewhile(lambda message: message.role is Role.SYSTEM, islice(messages, max(start, 0)))
    least = [*lead, *messages[max(start, 0) :]]
    return served.adapter.estimate_input_tokens(least, tools, model=served.id)


def text_tokens(text: str, served: Served) -> int:
    """About how many tokens a question takes that is nothing but a text."""
    message = _make_message(
        id="", session_id="", role=Role.USER, content=(TextBlock(text),), created_at=_NEVER
    )
    return served.adapter.estimate_input_tokens((message,), model=served.id)


def words_of(content: Iterable[ContentBlock]) -> str:
    """The plain words of some blocks."""
    return "\n".join(block.text for block in content if isinstance(block, TextBlock))


def _is_before_summary(messages: Sequence[Message], place: int) -> bool:
    """Whether an answer was given to more than is shown now."""
    first = next((each for each in messages if each.role is not Role.SYSTEM), messages[place])
    return first.metadata.origin == ORIGIN and first.id > messages[place].id
