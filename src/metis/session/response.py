"""Model responses: metadata, tool calls, partial responses and structured output."""

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import Any, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from metis.canonical.blocks import ContentBlock, TextBlock, ToolResultBlock, ToolUseBlock
from metis.canonical.errors import InvalidAnswerError, InvalidValueError, Problem
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
from metis.canonical.schema.python_types import convert, is_type, schema_of
from metis.canonical.schema.subset import describe
from metis.canonical.schema.validate import compile_output_schema
from metis.session.models import Models, ResolvedModel
from metis.store.wire_bodies import WireBody
from metis.transport.concealment import bytes_without_key
from metis.wire.call import UNPRICED, ReceivedBytes, WireRequest
from metis.wire.codec import StreamDecoder
from metis.wire.output_format import OutputFormat

NOT_RUN = "This call was not run: the response that contains it did not complete."
ABORTED = "This call was aborted: the turn was cancelled before it had a result."

CONTINUE_PROMPT = (
    "Your answer was interrupted here, through no fault of yours. Continue exactly where it ends; "
    "repeat nothing."
)
"""Sent after an interrupted response, so that the model continues it; never stored."""

_RUNNABLE_STOP_REASONS = frozenset(
    {
        StopReason.TOOL_USE,
        StopReason.END_TURN,
        StopReason.STOP_SEQUENCE,
        StopReason.PAUSE,
        # Hosts have stop reasons of their own. Arguments that were cut off are invalid JSON, and
        # such calls are refused by the dispatcher.
        StopReason.UNKNOWN,
        None,
    }
)


class PendingCall(Struct, kw_only=True):
    """A running model call: its request, and the part of the response that has arrived."""

    model: ResolvedModel
    record: RoutingDecisionRecord
    input_tokens: int
    """The estimated tokens of the request."""
    started_at: datetime
    started_s: float
    """The start on a monotonic clock, to measure the latency."""
    first_chunk_ms: int | None = None
    retry_count: int = 0
    decoder: StreamDecoder | None = None
    """The decoder of a streamed response; its message is what has arrived so far."""
    partial: Message | None = None
    """The partial response of a stream that ended with an error."""
    request: WireRequest | None = None
    received: ReceivedBytes | None = None
    """The bytes of the response, if they are stored."""

    def wire_body(self, message: Message) -> WireBody | None:
        """Return the bytes of the call for the stored response; None if they are not stored."""
        request, received = self.request, self.received
        if request is None or received is None:
            return None
        return WireBody(
            id=message.id,
            session_id=message.session_id,
            provider=self.model.provider,
            path=request.path.partition("?")[0],
            request=request.body,
            response=received.parts,
            response_bytes=received.size,
            conceal=partial(bytes_without_key, key=received.key),
        )

    def elapsed_ms(self) -> int:
        """Return the milliseconds since the call started."""
        return max(0, round((time.monotonic() - self.started_s) * 1000))


def complete_response(
    message: Message, call: PendingCall, models: Models, *, status: MessageStatus
) -> Message:
    """Return a response as it is stored: with model, routing decision, status, usage and cost."""
    stop_reason = message.metadata.stop_reason
    usage = message.metadata.usage
    if status is not MessageStatus.COMPLETE:
        stop_reason = StopReason(status.value)
    # Providers report the usage at the end of a stream, so an interrupted stream has none.
    if usage is None or status is not MessageStatus.COMPLETE:
        usage = estimated_usage(message, call.model, call.input_tokens, reported=usage)
    usage = replace(usage, latency_ms=call.elapsed_ms())
    metadata = replace(
        message.metadata,
        origin=None,
        model=call.model.id,
        provider=call.model.provider,
        routing=call.record,
        status=status,
        stop_reason=stop_reason,
        usage=models.price(usage, call.model, call.started_at),
    )
    # A stream may be interrupted before the first character of a text block.
    content = tuple(
        block for block in message.content if not isinstance(block, TextBlock) or block.text
    )
    return replace(message, metadata=metadata, content=content)


def estimated_usage(
    response: Message, model: ResolvedModel, input_tokens: int, *, reported: Usage | None = None
) -> Usage:
    """Return the usage of a response whose provider reported none, or only a part of it."""
    output_tokens = model.estimate_tokens([response])
    if reported is not None:
        return replace(
            reported,
            input_tokens=reported.input_tokens if reported.prompt_tokens else input_tokens,
            output_tokens=max(reported.output_tokens, output_tokens),
            estimated=True,
        )
    return Usage(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cost_usd=Decimal(0),
        pricing_version=UNPRICED,
        latency_ms=0,
        estimated=True,
    )


def text_of(content: Iterable[ContentBlock]) -> str:
    """Return the text of the text blocks, one per line."""
    return "\n".join(block.text for block in content if isinstance(block, TextBlock))


def text_only(message: Message) -> Message:
    """Return the message with its text blocks only."""
    content = tuple(block for block in message.content if isinstance(block, TextBlock))
    return replace(message, content=content)


# Tool calls of a response


def tool_calls_of(message: Message) -> list[ToolUseBlock]:
    """Return the tool calls of a response."""
    return [block for block in message.content if isinstance(block, ToolUseBlock)]


def unanswered_calls(messages: Sequence[Message]) -> list[ToolUseBlock]:
    """Return the calls of the newest response that have no result yet."""
    answered: set[str | None] = set()
    for message in reversed(messages):
        if message.role is Role.TOOL:
            answered.add(message.metadata.parent_tool_use_id)
        else:
            return [call for call in tool_calls_of(message) if call.id not in answered]
    return []


def can_run_calls(message: Message) -> bool:
    """Return whether the calls of a response may run: it is complete and not truncated."""
    metadata = message.metadata
    is_complete = metadata.status is MessageStatus.COMPLETE
    return is_complete and metadata.stop_reason in _RUNNABLE_STOP_REASONS


def error_result(
    call: ToolUseBlock, session_id: str, text: str, status: OutcomeStatus, at: datetime
) -> Message:
    """Return the TOOL message with an error result for a call that was not run."""
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


# Interrupted responses


def ended_with_error(message: Message) -> bool:
    """Return whether a message is a response that ended with an error."""
    return message.role is Role.ASSISTANT and message.metadata.status is MessageStatus.ERROR


def with_continue_prompt(messages: Sequence[Message]) -> Sequence[Message]:
    """Return the history, with a prompt to continue if its last response was interrupted."""
    if not messages or not ended_with_error(messages[-1]):
        return messages
    prompt = replace(
        messages[-1],
        role=Role.USER,
        content=(TextBlock(CONTINUE_PROMPT),),
        metadata=MessageMetadata(origin="session"),
    )
    return [*messages, prompt]


# Structured output

OutputSchema = OutputFormat | Mapping[str, Any] | type
"""The required form of a response: an output format, its JSON Schema, or a Python type."""

_RULE = "T115"
_VALUE = "value"
"""The property for a value that is not an object: providers require an object at the root."""
_decode_json = msgspec.json.Decoder().decode
_NO_VALUE = {
    StopReason.MAX_TOKENS: "the response was cut off at its token limit",
    StopReason.CONTENT_FILTER: "the response was withheld by a content filter",
    StopReason.REFUSAL: "the model refused to answer",
}


class StructuredOutput(Struct, frozen=True):
    """The required form of a response, and the conversion of its value."""

    format: OutputFormat
    kind: Any = None
    """The Python type of the value; None for plain JSON."""
    is_wrapped: bool = False
    """Whether the value is a property of an object."""

    def value_of(self, message: Message | None) -> Any:
        """Return the value of a response.

        Raises:
            InvalidAnswerError: the response has no value, or one that does not match.
        """
        value = json_value_of(message, self.format)
        if self.kind is None:
            return value
        try:
            return convert(value[_VALUE] if self.is_wrapped else value, self.kind)
        except InvalidValueError as error:
            # A type may require more than its schema states, as a validator of a pydantic model.
            problem = Problem(error.path, _RULE, error.reason)
            text = "the response does not match the type"
            raise InvalidAnswerError(text, [problem], message=message) from None


def structured_output(schema: OutputSchema | None) -> StructuredOutput:
    """Return the required form of a response for a schema or a type.

    Raises:
        InvalidValueError: `schema` is not a JSON Schema, has unsupported keywords, or is a type
            whose values have no form in JSON.
    """
    if schema is None:
        return StructuredOutput(OutputFormat())
    if isinstance(schema, OutputFormat):
        return StructuredOutput(_checked(schema))
    if not is_type(schema):
        _check_is_mapping(schema)
        return StructuredOutput(_checked(OutputFormat(dict(cast("Mapping[str, Any]", schema)))))
    described = schema_of(schema)
    is_wrapped = not _is_object_schema(described)
    if is_wrapped:
        definitions = described.pop("$defs", None)
        described = {"type": "object", "properties": {_VALUE: described}, "required": [_VALUE]}
        if definitions:
            described["$defs"] = definitions
    return StructuredOutput(_checked(OutputFormat(described)), schema, is_wrapped)


def output_format(schema: OutputSchema | None) -> OutputFormat | None:
    """Return the output format for a schema or a type.

    Raises:
        InvalidValueError: `schema` is not a JSON Schema, has unsupported keywords, or is a type
            whose values have no form in JSON.
    """
    return None if schema is None else structured_output(schema).format


def repair_prompt(error: InvalidAnswerError) -> str | None:
    """Return a prompt for the model to correct its output; None if a correction is impossible."""
    message = error.message
    if not isinstance(message, Message) or message.metadata.stop_reason in _NO_VALUE:
        return None
    lines = "".join(f"\n- {problem}" for problem in error.problems)
    return (
        f"Your answer does not have the required form:{lines}\n"
        "Answer again with the corrected JSON as a whole, and nothing else."
    )


def _checked(output: OutputFormat) -> OutputFormat:
    if output.schema is not None:
        compile_output_schema(output.schema)  # raises before anything is sent
    return output


def _is_object_schema(schema: Mapping[str, Any]) -> bool:
    reference = schema.get("$ref")
    if isinstance(reference, str):
        schema = schema.get("$defs", {}).get(reference.removeprefix("#/$defs/"), {})
    return schema.get("type") == "object"


def _check_is_mapping(schema: object) -> None:
    if not isinstance(schema, Mapping):
        fault = f"expected a JSON Schema (dict) or a type, got {type(schema).__name__}"
        raise InvalidValueError(fault, path="$.schema")


def json_value_of(message: Message | None, output: OutputFormat) -> Any:
    """Return the JSON value of a response.

    Raises:
        InvalidAnswerError: the response has no value, or one that does not match the schema.
    """
    if message is None:
        raise _no_value(message, "the response is empty")
    stop_reason = message.metadata.stop_reason
    if stop_reason is not None and stop_reason in _NO_VALUE:
        # A refusal is plain text; the error "invalid JSON" would hide the reason (T119).
        raise _no_value(message, _NO_VALUE[stop_reason])
    try:
        value = _decode_json(text_of(message.content))
    except (ValueError, RecursionError) as error:
        raise _no_value(message, f"the response is not valid JSON: {error}") from None
    problems = _problems(value, output)
    if problems:
        text = "the response does not match the schema"
        raise InvalidAnswerError(text, problems, message=message)
    return value


def _problems(value: object, output: OutputFormat) -> list[Problem]:
    if output.schema is not None:
        return compile_output_schema(output.schema)(value)
    if isinstance(value, dict):
        return []
    return [Problem("$", _RULE, f"expected an object, got {describe(value)}")]


def _no_value(message: Message | None, text: str) -> InvalidAnswerError:
    problem = Problem("$", _RULE, text)
    return InvalidAnswerError("the response has no value", [problem], message=message)
