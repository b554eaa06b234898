"""Answers: what a model gave, with everything that we know about it beside its words."""

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal

from msgspec import Struct
from msgspec.structs import replace

from metis.canonical.blocks import ContentBlock, TextBlock, ToolResultBlock, ToolUseBlock
from metis.canonical.ids import new_ulid
from metis.canonical.message import Message, Role
from metis.canonical.metadata import (
    MessageMetadata,
    MessageStatus,
    Outcome,
    OutcomeStatus,
    RoutingDecisionRecord,
    StopReason,
    Usage,
)
from metis.session.models import Models, Served
from metis.wire.call import UNPRICED

NOT_RUN = "This call was not run: the answer that holds it did not come to its end."
ABORTED = "This call was aborted: the turn was cancelled before it had a result."

GO_ON = "Your answer broke off here, by no fault of yours. Go on where it ends; repeat nothing."
"""What a model is told behind an answer that broke off; it is sent and never stored."""

_RUNS_AFTER = frozenset(
    {
        StopReason.TOOL_USE,
        StopReason.END_TURN,
        StopReason.STOP_SEQUENCE,
        StopReason.PAUSE,
        # A host's own word for the end; arguments that were cut off are no JSON and do not run.
        StopReason.UNKNOWN,
        None,
    }
)


class Asked(Struct, frozen=True, kw_only=True):
    """One call of a model, as far as it is known before the answer."""

    served: Served
    record: RoutingDecisionRecord
    input_tokens: int
    """Our estimate of the prompt."""
    started_at: datetime
    started_s: float
    """The same on a clock that only goes forward."""


def settle(
    message: Message, asked: Asked, models: Models, *, ended_s: float, status: MessageStatus
) -> Message:
    """The message as it is stored: who answered and why, what it took, and how it ended."""
    reason = message.metadata.stop_reason
    if status is not MessageStatus.COMPLETE:
        reason = StopReason(status.value)
    usage = message.metadata.usage
    if usage is None or status is not MessageStatus.COMPLETE:
        usage = _estimated(message, asked, usage)
    usage = replace(usage, latency_ms=max(0, round((ended_s - asked.started_s) * 1000)))
    metadata = replace(
        message.metadata,
        origin=None,
        model=asked.served.id,
        provider=asked.served.adapter.name,
        routing=asked.record,
        status=status,
        stop_reason=reason,
        usage=models.price(usage, asked.served, asked.started_at),
    )
    return replace(message, metadata=metadata, content=_whole(message.content))


def calls_of(message: Message) -> list[ToolUseBlock]:
    """The calls in an answer."""
    return [block for block in message.content if isinstance(block, ToolUseBlock)]


def open_calls(messages: Sequence[Message]) -> list[ToolUseBlock]:
    """The calls of the newest answer that have no result yet."""
    answered: set[str | None] = set()
    for message in reversed(messages):
        if message.role is Role.TOOL:
            answered.add(message.metadata.parent_tool_use_id)
        else:
            return [call for call in calls_of(message) if call.id not in answered]
    return []


def may_run(message: Message) -> bool:
    """Whether the calls of an answer may be run: it came to its end, and not by a limit."""
    metadata = message.metadata
    return metadata.status is MessageStatus.COMPLETE and metadata.stop_reason in _RUNS_AFTER


def continued(messages: Sequence[Message]) -> Sequence[Message]:
    """The messages of a request; behind an answer that broke off with the wish to go on with it."""
    if not messages or not is_broken(messages[-1]):
        return messages
    about, words = MessageMetadata(origin="session"), (TextBlock(GO_ON),)
    return [*messages, replace(messages[-1], role=Role.USER, content=words, metadata=about)]


def is_broken(message: Message) -> bool:
    """Whether a message is an answer that ended with an error."""
    return message.role is Role.ASSISTANT and message.metadata.status is MessageStatus.ERROR


def words_only(message: Message) -> Message:
    """The message without thoughts, calls and whatever else is no text."""
    content = tuple(block for block in message.content if isinstance(block, TextBlock))
    return replace(message, content=content)


def failed_result(
    call: ToolUseBlock, session_id: str, text: str, status: OutcomeStatus, at: datetime
) -> Message:
    """The TOOL message that answers a call which was not run."""
    return Message(
        id=new_ulid(),
        session_id=session_id,
        role=Role.TOOL,
        content=(ToolResultBlock(call.id, (TextBlock(text),), is_error=True),),
        created_at=at,
        metadata=MessageMetadata(
            parent_tool_use_id=call.id, outcome=Outcome(status=status, tool_name=call.name)
        ),
    )


def _whole(content: tuple[ContentBlock, ...]) -> tuple[ContentBlock, ...]:
    """Without texts that are empty: a stream may be cut before the first word of a block."""
    return tuple(
        block for block in content if not (isinstance(block, TextBlock) and not block.text)
    )


def _estimated(message: Message, asked: Asked, told: Usage | None) -> Usage:
    """The usage of an answer whose provider did not come to tell it, or not all of it."""
    adapter = asked.served.adapter
    output = adapter.estimate_input_tokens([message], model=asked.served.id)
    if told is not None:
        return replace(
            told,
            input_tokens=told.input_tokens if told.prompt_tokens else asked.input_tokens,
            output_tokens=max(told.output_tokens, output),
            estimated=True,
        )
    return Usage(
        input_tokens=asked.input_tokens,
        output_tokens=output,
        cost_usd=Decimal(0),
        pricing_version=UNPRICED,
        latency_ms=0,
        estimated=True,
    )
