"""Model responses: metadata, tool calls, partial responses and structured output."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from metis.canonical.blocks import ContentBlock, TextBlock, ToolResultBlock, ToolUseBlock
from metis.canonical.errors import InvalidAnswerError, Problem
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
from metis.canonical.schema.output import compile_output_schema
from metis.canonical.schema.subset import describe
from metis.session.models import Models, ResolvedModel
from metis.session.state import text_of
from metis.wire.call import UNPRICED
from metis.wire.output_format import OutputFormat

NOT_RUN = "This call was not run: the answer that holds it did not come to its end."
ABORTED = "This call was aborted: the turn was cancelled before it had a result."

CONTINUE_PROMPT = (
    "Your answer broke off here, by no fault of yours. Go on where it ends; repeat nothing."
)
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


class PendingCall(Struct, frozen=True, kw_only=True):
    """One call of a model, as far as it is known before the answer."""

    model: ResolvedModel
    record: RoutingDecisionRecord
    input_tokens: int
    """Our estimate of the prompt."""
    started_at: datetime
    started_s: float
    """The same on a clock that only goes forward."""


def complete_response(
    message: Message, call: PendingCall, models: Models, *, ended_s: float, status: MessageStatus
) -> Message:
    """The message as it is stored: who answered and why, what it took, and how it ended."""
    reason = message.metadata.stop_reason
    if status is not MessageStatus.COMPLETE:
        reason = StopReason(status.value)
    usage = message.metadata.usage
    if usage is None or status is not MessageStatus.COMPLETE:
        usage = _estimated(message, call, usage)
    usage = replace(usage, latency_ms=max(0, round((ended_s - call.started_s) * 1000)))
    metadata = replace(
        message.metadata,
        origin=None,
        model=call.model.id,
        provider=call.model.adapter.name,
        routing=call.record,
        status=status,
        stop_reason=reason,
        usage=models.price(usage, call.model, call.started_at),
    )
    return replace(message, metadata=metadata, content=_whole(message.content))


def tool_calls_of(message: Message) -> list[ToolUseBlock]:
    """The calls in an answer."""
    return [block for block in message.content if isinstance(block, ToolUseBlock)]


def unanswered_calls(messages: Sequence[Message]) -> list[ToolUseBlock]:
    """The calls of the newest answer that have no result yet."""
    answered: set[str | None] = set()
    for message in reversed(messages):
        if message.role is Role.TOOL:
            answered.add(message.metadata.parent_tool_use_id)
        else:
            return [call for call in tool_calls_of(message) if call.id not in answered]
    return []


def can_run_calls(message: Message) -> bool:
    """Whether the calls of an answer may be run: it came to its end, and not by a limit."""
    metadata = message.metadata
    return metadata.status is MessageStatus.COMPLETE and metadata.stop_reason in _RUNS_AFTER


def with_continue_prompt(messages: Sequence[Message]) -> Sequence[Message]:
    """The messages of a request; behind an answer that broke off with the wish to go on with it."""
    if not messages or not ended_with_error(messages[-1]):
        return messages
    about, words = MessageMetadata(origin="session"), (TextBlock(CONTINUE_PROMPT),)
    return [*messages, replace(messages[-1], role=Role.USER, content=words, metadata=about)]


def ended_with_error(message: Message) -> bool:
    """Whether a message is an answer that ended with an error."""
    return message.role is Role.ASSISTANT and message.metadata.status is MessageStatus.ERROR


def text_only(message: Message) -> Message:
    """The message without thoughts, calls and whatever else is no text."""
    content = tuple(block for block in message.content if isinstance(block, TextBlock))
    return replace(message, content=content)


def error_result(
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


def _estimated(message: Message, asked: PendingCall, told: Usage | None) -> Usage:
    """The usage of an answer whose provider did not come to tell it, or not all of it."""
    adapter = asked.model.adapter
    output = adapter.estimate_input_tokens([message], model=asked.model.id)
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


RULE = "T115"
OutputSchema = OutputFormat | Mapping[str, Any]
"""What an answer shall be: a form, or only its schema."""

_read = msgspec.json.Decoder().decode
_CUT = {
    StopReason.MAX_TOKENS: "the answer was cut by its limit",
    StopReason.CONTENT_FILTER: "the answer was held back by a filter",
    StopReason.REFUSAL: "the model refused to answer",
}


def output_format(output: OutputSchema | None) -> OutputFormat | None:
    """The form that is meant.

    Raises:
        InvalidValueError: a schema that asks for something which is not checked.
    """
    if output is None:
        return None
    form = output if isinstance(output, OutputFormat) else OutputFormat(dict(output))
    if form.schema is not None:
        compile_output_schema(form.schema)
    return form


def json_value_of(message: Message | None, output: OutputFormat) -> Any:
    """The value that an answer gives.

    Raises:
        InvalidAnswerError: it gives none, or one that does not keep to the schema.
    """
    if message is None:
        raise _wrong(message, "the model said nothing")
    reason = message.metadata.stop_reason
    if reason is not None and reason in _CUT:
        # A refusal is no JSON that went wrong (T119).
        raise _wrong(message, _CUT[reason])
    try:
        value = _read(text_of(message.content))
    except (ValueError, RecursionError) as error:
        raise _wrong(message, f"the answer is no JSON: {error}") from None
    problems = _problems(value, output)
    if problems:
        raise InvalidAnswerError("the answer is not what was asked for", problems, message=message)
    return value


def _problems(value: object, output: OutputFormat) -> list[Problem]:
    if output.schema is not None:
        return compile_output_schema(output.schema)(value)
    if isinstance(value, dict):
        return []
    return [Problem("$", RULE, f"expected an object, got {describe(value)}")]


def _wrong(message: Message | None, text: str) -> InvalidAnswerError:
    problem = Problem("$", RULE, text)
    return InvalidAnswerError("there is no answer of that form", [problem], message=message)
