"""Trace: what a session tells the bus; hashes, sizes and counts, never what was said."""

import hashlib
import logging
import re
import time
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from metis.canonical.blocks import ThinkingBlock, ToolUseBlock
from metis.canonical.errors import (
    AuthenticationError,
    ContextOverflowError,
    EventError,
    InvalidRequestError,
    NetworkError,
    ProviderError,
    RateLimitError,
    ServerError,
)
from metis.canonical.message import Message
from metis.canonical.metadata import StopReason
from metis.canonical.tools import SideEffects
from metis.events import Actor, Bus, Event, Payload
from metis.events.work import (
    LlmCallCompleted,
    LlmCallFailed,
    LlmErrorClass,
    ToolCalled,
    ToolCompleted,
    ToolConfirmationRequested,
    ToolFailed,
    ToolInputInvalid,
)
from metis.session.answer import Asked
from metis.tools import Question, error_class

log = logging.getLogger("metis.session")

_VALUE = re.compile(r"[,;] got .*", re.DOTALL)
"""The end of a problem: what stood in the place, which an event does not tell."""

_CLASSES: tuple[tuple[type[ProviderError], LlmErrorClass], ...] = (
    (RateLimitError, "rate_limit"),
    (AuthenticationError, "auth"),
    (ServerError, "server_error"),
    (NetworkError, "network"),
    (ContextOverflowError, "context_overflow"),
    (InvalidRequestError, "invalid_request"),
)


class Trace:
    """Tells a bus what happens in a session; without a bus it tells nobody."""

    def __init__(self, bus: Bus | None, session_id: str, turn_id: str | None = None) -> None:
        self._bus = bus
        self._session_id = session_id
        self._turn_id = turn_id

    def emit(
        self, payload: Payload, *, parent: Event | None = None, actor: Actor = Actor.SYSTEM
    ) -> Event | None:
        """Tell something; a bus that is full or closed stops no turn."""
        if self._bus is None:
            return None
        try:
            return self._bus.emit(
                payload,
                session_id=self._session_id,
                turn_id=self._turn_id,
                parent=parent,
                actor=actor,
            )
        except EventError as error:
            log.warning("an event of %s was not told: %s", self._session_id, type(error).__name__)
            return None


def completed(
    answer: Message, *, first_ms: int | None = None, parent: str | None = None
) -> LlmCallCompleted:
    """What is told of an answer."""
    metadata = answer.metadata
    usage = metadata.usage
    if usage is None:
        raise AssertionError("an answer without usage")
    return LlmCallCompleted(
        model=metadata.model or "",
        provider=metadata.provider or "",
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_input_tokens=usage.cached_input_tokens,
        cache_creation_input_tokens=usage.cache_creation_input_tokens,
        cache_creation_1h_input_tokens=usage.cache_creation_1h_input_tokens,
        reasoning_output_tokens=usage.reasoning_output_tokens,
        is_estimated=usage.estimated,
        cost_usd=usage.cost_usd,
        pricing_version=usage.pricing_version,
        latency_ms=usage.latency_ms,
        time_to_first_chunk_ms=first_ms,
        stop_reason=metadata.stop_reason or StopReason.UNKNOWN,
        response_id=metadata.response_id,
        parent_session_id=parent,
        produced_tool_calls=_count(answer, ToolUseBlock),
        produced_thinking_blocks=_count(answer, ThinkingBlock),
    )


def failed(
    asked: Asked, error: BaseException, *, retries: int, partial: Message | None
) -> LlmCallFailed:
    """What is told of a call without an answer; the provider's words may hold ours."""
    found: LlmErrorClass = "other" if isinstance(error, Exception) else "cancelled"
    for kind, name in _CLASSES:
        if isinstance(error, kind):
            found = name
    usage = None if partial is None else partial.metadata.usage
    told = LlmCallFailed(
        model=asked.served.id,
        provider=asked.served.adapter.name,
        error_class=found,
        error_message=type(error).__name__,
        latency_ms=round((time.monotonic() - asked.started_s) * 1000),
        retry_count=retries,
    )
    if usage is None:
        return told
    return replace(
        told,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_input_tokens=usage.cached_input_tokens,
        cache_creation_input_tokens=usage.cache_creation_input_tokens,
        cache_creation_1h_input_tokens=usage.cache_creation_1h_input_tokens,
        cost_usd=usage.cost_usd,
        pricing_version=usage.pricing_version,
    )


def input_invalid(call: ToolUseBlock, problems: Sequence[str]) -> ToolInputInvalid:
    """What is told of arguments that are refused: places and kinds, and not what stood there."""
    told = tuple(_VALUE.sub("", problem) for problem in problems)
    return ToolInputInvalid(tool_use_id=call.id, tool_name=call.name, validation_errors=told)


def asked_for(question: Question, request_id: str) -> ToolConfirmationRequested:
    """What is told when somebody is asked: the names of the arguments and their size."""
    names = ", ".join(sorted(question.call.input))
    size = len(msgspec.json.encode(dict(question.call.input)))
    return ToolConfirmationRequested(
        tool_use_id=question.call.id,
        tool_name=question.call.name,
        side_effects=question.definition.side_effects,
        confirmation_request_id=request_id,
        input_summary=f"{names} ({size} bytes)",
    )


def tool_called(call: ToolUseBlock, side_effects: SideEffects) -> ToolCalled:
    """What is told of a call that is run."""
    data = msgspec.json.encode(dict(call.input), order="sorted")
    return ToolCalled(
        tool_use_id=call.id,
        tool_name=call.name,
        side_effects=side_effects,
        input_hash=hashed(data),
        input_size_bytes=len(data),
    )


def tool_ended(result: Message, latency_ms: int) -> ToolCompleted | ToolFailed:
    """What is told of the result of a call."""
    outcome = result.metadata.outcome
    own = result.metadata.parent_tool_use_id or ""
    failure = error_class(result)
    if failure is None:
        effects: list[dict[str, str]] = [] if outcome is None else list(outcome.side_effects)
        ran = next((each["command"] for each in effects if each["kind"] == "execute"), None)
        return ToolCompleted(
            tool_use_id=own,
            success=True,
            output_size_bytes=len(msgspec.json.encode(result.content)),
            latency_ms=latency_ms,
            files_modified=tuple(each["path"] for each in effects if each["kind"] == "write"),
            command_executed=None if ran is None else hashed(ran.encode()),
        )
    return ToolFailed(
        tool_use_id=own,
        error_class=failure.value,
        error_message=failure.value,
        latency_ms=latency_ms,
    )


def hashed(data: bytes) -> str:
    """A short name for bytes that must not be told."""
    return hashlib.sha256(data).hexdigest()[:16]


def _count(message: Message, kind: type) -> int:
    return sum(isinstance(block, kind) for block in message.content)
