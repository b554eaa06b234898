"""Turn events for the caller of a session, and the bus events that trace it."""

import hashlib
import logging
import re
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from decimal import Decimal
from typing import ClassVar, Literal

import msgspec
from msgspec import Struct
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
    RoutingPolicyError,
    ServerError,
)
from metis.canonical.message import Message
from metis.canonical.metadata import RoutingDecisionRecord, StopReason
from metis.canonical.tools import SideEffects
from metis.events import Actor, Bus, Event, Payload
from metis.events.turn_events import (
    LlmCallCompleted,
    LlmCallFailed,
    LlmErrorClass,
    ToolCalled,
    ToolCompleted,
    ToolConfirmationRequested,
    ToolFailed,
    ToolInputInvalid,
)
from metis.projection.loss import Loss
from metis.routing import Availability, Outage
from metis.routing.router import policy_invalid, provider_recovered, provider_unavailable
from metis.session.response import PendingCall
from metis.streaming import StreamEvent
from metis.tools import Question, error_class


class TurnNotice(Struct, frozen=True, kw_only=True, tag_field="type"):
    """What all notices share: the turn that they belong to."""

    turn_id: str


class TurnStarted(TurnNotice, frozen=True, kw_only=True, tag="turn_started"):
    """The words of the user are stored."""

    type: ClassVar[Literal["turn_started"]] = "turn_started"
    message: Message


class Routed(TurnNotice, frozen=True, kw_only=True, tag="routed"):
    """A model was chosen: once at the start of a turn, and again if another has to step in."""

    type: ClassVar[Literal["routed"]] = "routed"
    record: RoutingDecisionRecord


class Lost(TurnNotice, frozen=True, kw_only=True, tag="lost"):
    """Parts of the history do not reach the model as they are; each is told once."""

    type: ClassVar[Literal["lost"]] = "lost"
    model: str
    losses: tuple[Loss, ...]


class Stored(TurnNotice, frozen=True, kw_only=True, tag="stored"):
    """A message of the turn is in the store: an answer with its cost, or the result of a call."""

    type: ClassVar[Literal["stored"]] = "stored"
    message: Message


class ToolStarted(TurnNotice, frozen=True, kw_only=True, tag="tool_started"):
    """A call is being run."""

    type: ClassVar[Literal["tool_started"]] = "tool_started"
    call: ToolUseBlock


class CallFailed(TurnNotice, frozen=True, kw_only=True, tag="call_failed"):
    """An attempt to reach a model failed; `next_in_s` is the wait before the next, if any."""

    type: ClassVar[Literal["call_failed"]] = "call_failed"
    model: str
    error_class: str
    attempt: int
    next_in_s: float | None = None


WarningCode = Literal[
    "budget", "compacted", "empty_answer", "fallback", "outage", "repaired", "rules_invalid"
]
"""What a warning is about."""


class Warned(TurnNotice, frozen=True, kw_only=True, tag="warned"):
    """Something that a person should know, and that stops nothing."""

    type: ClassVar[Literal["warned"]] = "warned"
    code: WarningCode
    text: str


class TurnEnded(TurnNotice, frozen=True, kw_only=True, tag="turn_ended"):
    """The turn is over; what it cost, over all its calls."""

    type: ClassVar[Literal["turn_ended"]] = "turn_ended"
    stop_reason: StopReason
    cost_usd: Decimal
    message: Message | None = None
    """The last answer, if there was one."""


TurnEvent = (
    StreamEvent
    | TurnStarted
    | Routed
    | Lost
    | Stored
    | ToolStarted
    | CallFailed
    | Warned
    | TurnEnded
)
"""Everything that comes while a turn runs."""


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


def llm_call_completed(
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


def llm_call_failed(
    asked: PendingCall, error: BaseException, *, retries: int, partial: Message | None
) -> LlmCallFailed:
    """What is told of a call without an answer; the provider's words may hold ours."""
    found: LlmErrorClass = "other" if isinstance(error, Exception) else "cancelled"
    for kind, name in _CLASSES:
        if isinstance(error, kind):
            found = name
    usage = None if partial is None else partial.metadata.usage
    told = LlmCallFailed(
        model=asked.model.id,
        provider=asked.model.adapter.name,
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


def tool_input_invalid(call: ToolUseBlock, problems: Sequence[str]) -> ToolInputInvalid:
    """What is told of arguments that are refused: places and kinds, and not what stood there."""
    told = tuple(_VALUE.sub("", problem) for problem in problems)
    return ToolInputInvalid(tool_use_id=call.id, tool_name=call.name, validation_errors=told)


def confirmation_requested(question: Question, request_id: str) -> ToolConfirmationRequested:
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
        input_hash=short_hash(data),
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
            command_executed=None if ran is None else short_hash(ran.encode()),
        )
    return ToolFailed(
        tool_use_id=own,
        error_class=failure.value,
        error_message=failure.value,
        latency_ms=latency_ms,
    )


def short_hash(data: bytes) -> str:
    """A short name for bytes that must not be told."""
    return hashlib.sha256(data).hexdigest()[:16]


def _count(message: Message, kind: type) -> int:
    return sum(isinstance(block, kind) for block in message.content)


class TurnReporter(Struct, frozen=True, kw_only=True):
    """One turn, who listens to it, and its trace."""

    turn_id: str
    send: Callable[[TurnEvent], None]
    trace: Trace

    def warn(self, code: WarningCode, text: str) -> None:
        """Tell something that a person should know, and that stops nothing."""
        self.send(Warned(turn_id=self.turn_id, code=code, text=text))


class OutageTracker:
    """Counts failed and good calls, and tells the bus when somebody goes down or comes back."""

    def __init__(self, availability: Availability, now: Callable[[], datetime]) -> None:
        self._availability = availability
        self._now = now
        self._problem: RoutingPolicyError | None = None

    def record_failure(self, model: str, error: ProviderError, trace: Trace) -> tuple[Outage, ...]:
        """A call failed for good; gives the outages that begin with it."""
        began = self._availability.record_failure(model, error)
        for outage in began:
            trace.emit(provider_unavailable(outage))
        return began

    def record_success(self, model: str, trace: Trace) -> None:
        """A call was answered."""
        self._recovered(self._availability.record_success(model), trace)

    def clear_expired(self, trace: Trace) -> None:
        """End what has rested long enough."""
        self._recovered(self._availability.clear_expired(), trace)

    def retry_now(self, model: str, trace: Trace) -> bool:
        """Ask a model again that was down by a fault of our own; whether it was."""
        ended = self._availability.clear_local_fault(model)
        self._recovered(ended, trace)
        return bool(ended)

    def is_new_problem(self, problem: RoutingPolicyError | None, trace: Trace) -> bool:
        """Whether a rules file is broken in a way that nobody was told of yet; then it is told."""
        is_new = problem is not None and problem is not self._problem
        self._problem = problem
        if is_new and problem is not None:
            trace.emit(policy_invalid(problem))
        return is_new

    def _recovered(self, outages: Iterable[Outage], trace: Trace) -> None:
        for outage in outages:
            trace.emit(provider_recovered(outage, self._now()))
