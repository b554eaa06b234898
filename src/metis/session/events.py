"""Turn events for the caller of a session, and the bus events that trace it."""

import hashlib
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, ClassVar, Literal

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
from metis.canonical.metadata import RoutingDecisionRecord, StopReason, Usage
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

log = logging.getLogger("metis.session")


# Turn events: what `Session.send` yields beside the stream events of the responses.


class TurnNotice(Struct, frozen=True, kw_only=True, tag_field="type"):
    """The base of all turn events."""

    turn_id: str


class TurnStarted(TurnNotice, frozen=True, kw_only=True, tag="turn_started"):
    """The prompt is stored."""

    type: ClassVar[Literal["turn_started"]] = "turn_started"
    message: Message


class Routed(TurnNotice, frozen=True, kw_only=True, tag="routed"):
    """A model was chosen: once at the start of a turn, and again for each fallback."""

    type: ClassVar[Literal["routed"]] = "routed"
    record: RoutingDecisionRecord


class Lost(TurnNotice, frozen=True, kw_only=True, tag="lost"):
    """Parts of the history that the model gets changed or not at all; each is reported once."""

    type: ClassVar[Literal["lost"]] = "lost"
    model: str
    losses: tuple[Loss, ...]


class Stored(TurnNotice, frozen=True, kw_only=True, tag="stored"):
    """A message of the turn is stored: a response with its cost, or a tool result."""

    type: ClassVar[Literal["stored"]] = "stored"
    message: Message


class ToolStarted(TurnNotice, frozen=True, kw_only=True, tag="tool_started"):
    """A tool call starts to run."""

    type: ClassVar[Literal["tool_started"]] = "tool_started"
    call: ToolUseBlock


class CallFailed(TurnNotice, frozen=True, kw_only=True, tag="call_failed"):
    """An attempt to call a model failed; `next_in_s` is the wait before the next, if any."""

    type: ClassVar[Literal["call_failed"]] = "call_failed"
    model: str
    error_class: str
    attempt: int
    next_in_s: float | None = None


WarningCode = Literal[
    "budget", "compacted", "empty_answer", "fallback", "mcp", "outage", "repaired", "rules_invalid"
]
"""What a warning is about."""


class Warned(TurnNotice, frozen=True, kw_only=True, tag="warned"):
    """A warning for users; the turn continues."""

    type: ClassVar[Literal["warned"]] = "warned"
    code: WarningCode
    text: str


class TurnEnded(TurnNotice, frozen=True, kw_only=True, tag="turn_ended"):
    """The turn is over; `cost_usd` is the sum over all its model calls."""

    type: ClassVar[Literal["turn_ended"]] = "turn_ended"
    stop_reason: StopReason
    cost_usd: Decimal
    message: Message | None = None
    """The last response, if there was one."""


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
"""Every event of a turn."""


# Bus events: hashes, sizes and counts for the trace, never the text of a conversation.


class Trace:
    """Emits the bus events of one session or turn; without a bus it emits nothing."""

    def __init__(self, bus: Bus | None, session_id: str, turn_id: str | None = None) -> None:
        self._bus = bus
        self._session_id = session_id
        self._turn_id = turn_id

    def emit(
        self,
        payload: Payload | Callable[[], Payload],
        *,
        parent: Event | None = None,
        actor: Actor = Actor.SYSTEM,
    ) -> Event | None:
        """Emit an event; an error of the bus is logged and does not stop the turn.

        A payload can be a function, which is called only if there is a bus.
        """
        if self._bus is None:
            return None
        try:
            return self._bus.emit(
                payload if isinstance(payload, Payload) else payload(),
                session_id=self._session_id,
                turn_id=self._turn_id,
                parent=parent,
                actor=actor,
            )
        except EventError as error:
            log.warning(
                "an event of %s was not emitted: %s", self._session_id, type(error).__name__
            )
            return None


def _discard(_: TurnEvent) -> None:
    """Ignore a turn event that has no listener."""


class TurnReporter(Struct, frozen=True, kw_only=True):
    """Reports what happens in a turn: turn events to the listener, bus events to the trace."""

    trace: Trace
    turn_id: str = ""
    send: Callable[[TurnEvent], None] = _discard

    def warn(self, code: WarningCode, text: str) -> None:
        """Send a warning to the listener."""
        self.send(Warned(turn_id=self.turn_id, code=code, text=text))


class OutageTracker:
    """Records failed and successful calls of all sessions, and traces the outages."""

    def __init__(self, availability: Availability, now: Callable[[], datetime]) -> None:
        self._availability = availability
        self._now = now
        self._last_problem: RoutingPolicyError | None = None

    def record_failure(self, model: str, error: ProviderError, trace: Trace) -> tuple[Outage, ...]:
        """Record a call that failed after all retries; return the outages that begin with it."""
        new_outages = self._availability.record_failure(model, error)
        for outage in new_outages:
            trace.emit(provider_unavailable(outage))
        return new_outages

    def record_success(self, model: str, trace: Trace) -> None:
        """Record a successful call, which ends the outages of its model and provider."""
        self._emit_recovered(self._availability.record_success(model), trace)

    def clear_expired(self, trace: Trace) -> None:
        """End the outages whose cooldown is over."""
        self._emit_recovered(self._availability.clear_expired(), trace)

    def retry_now(self, model: str, trace: Trace) -> bool:
        """End an outage that the user may have fixed; return whether there was one."""
        ended = self._availability.clear_local_fault(model)
        self._emit_recovered(ended, trace)
        return bool(ended)

    def is_new_problem(self, problem: RoutingPolicyError | None, trace: Trace) -> bool:
        """Trace a problem of the rules file; return whether it was not reported before."""
        is_new = problem is not None and problem is not self._last_problem
        self._last_problem = problem
        if is_new and problem is not None:
            trace.emit(policy_invalid(problem))
        return is_new

    def _emit_recovered(self, outages: Iterable[Outage], trace: Trace) -> None:
        for outage in outages:
            trace.emit(provider_recovered(outage, self._now()))


_ERROR_CLASSES: tuple[tuple[type[ProviderError], LlmErrorClass], ...] = (
    (RateLimitError, "rate_limit"),
    (AuthenticationError, "auth"),
    (ServerError, "server_error"),
    (NetworkError, "network"),
    (ContextOverflowError, "context_overflow"),
    (InvalidRequestError, "invalid_request"),
)


_USAGE_FIELDS = (
    *("input_tokens", "output_tokens", "cached_input_tokens", "cache_creation_input_tokens"),
    *("cache_creation_1h_input_tokens", "cost_usd"),
)


def usage_totals(*usages: Usage) -> dict[str, Any]:
    """Return the sums of usages, by the field names that several payloads share."""
    return {name: sum(getattr(usage, name) for usage in usages) for name in _USAGE_FIELDS}


def llm_call_completed(
    response: Message,
    *,
    first_chunk_ms: int | None = None,
    parent_session_id: str | None = None,
    **fields: Any,
) -> LlmCallCompleted:
    """Return the payload for a response; `fields` are further fields of the payload."""
    metadata = response.metadata
    usage = metadata.usage
    if usage is None:
        raise AssertionError("a response without usage")
    return LlmCallCompleted(
        model=metadata.model or "",
        provider=metadata.provider or "",
        **usage_totals(usage),
        reasoning_output_tokens=usage.reasoning_output_tokens,
        is_estimated=usage.estimated,
        pricing_version=usage.pricing_version,
        latency_ms=usage.latency_ms,
        time_to_first_chunk_ms=first_chunk_ms,
        stop_reason=metadata.stop_reason or StopReason.UNKNOWN,
        response_id=metadata.response_id,
        parent_session_id=parent_session_id,
        produced_tool_calls=_count_blocks(response, ToolUseBlock),
        produced_thinking_blocks=_count_blocks(response, ThinkingBlock),
        **fields,
    )


def llm_call_failed(
    call: PendingCall, error: BaseException, *, partial: Message | None
) -> LlmCallFailed:
    """Return the payload for a call without a response.

    Only the class of the error is recorded: a provider's error text may quote the conversation.
    """
    error_class: LlmErrorClass = "other" if isinstance(error, Exception) else "cancelled"
    for error_type, name in _ERROR_CLASSES:
        if isinstance(error, error_type):
            error_class = name
    payload = LlmCallFailed(
        model=call.model.id,
        provider=call.model.provider,
        error_class=error_class,
        error_message=type(error).__name__,
        latency_ms=call.elapsed_ms(),
        retry_count=call.retry_count,
    )
    usage = None if partial is None else partial.metadata.usage
    if usage is None:
        return payload
    return replace(payload, **usage_totals(usage), pricing_version=usage.pricing_version)


# A validation problem ends with the refused value ("…, got 'secret'"), which no event may contain.
_REFUSED_VALUE = re.compile(r"[,;] got .*", re.DOTALL)


def tool_input_invalid(call: ToolUseBlock, problems: Sequence[str]) -> ToolInputInvalid:
    """Return the payload for refused arguments: paths and kinds, without the values."""
    errors = tuple(_REFUSED_VALUE.sub("", problem) for problem in problems)
    return ToolInputInvalid(tool_use_id=call.id, tool_name=call.name, validation_errors=errors)


def confirmation_requested(question: Question, request_id: str) -> ToolConfirmationRequested:
    """Return the payload for a confirmation: the names of the arguments and their size."""
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
    """Return the payload for a call that starts to run."""
    data = msgspec.json.encode(dict(call.input), order="sorted")
    return ToolCalled(
        tool_use_id=call.id,
        tool_name=call.name,
        side_effects=side_effects,
        input_hash=short_hash(data),
        input_size_bytes=len(data),
    )


def tool_ended(result: Message, latency_ms: int) -> ToolCompleted | ToolFailed:
    """Return the payload for the result of a call."""
    outcome = result.metadata.outcome
    tool_use_id = result.metadata.parent_tool_use_id or ""
    failure = error_class(result)
    if failure is not None:
        return ToolFailed(
            tool_use_id=tool_use_id,
            error_class=failure.value,
            error_message=failure.value,
            latency_ms=latency_ms,
        )
    effects: list[dict[str, str]] = [] if outcome is None else list(outcome.side_effects)
    # A command may contain secrets, so the trace gets only its hash.
    command = next((effect["command"] for effect in effects if effect["kind"] == "execute"), None)
    return ToolCompleted(
        tool_use_id=tool_use_id,
        success=True,
        output_size_bytes=len(msgspec.json.encode(result.content)),
        latency_ms=latency_ms,
        files_modified=tuple(effect["path"] for effect in effects if effect["kind"] == "write"),
        command_executed=None if command is None else short_hash(command.encode()),
    )


def short_hash(data: bytes) -> str:
    """Return a short digest of data that must not be in a trace."""
    return hashlib.sha256(data).hexdigest()[:16]


def _count_blocks(message: Message, block_type: type) -> int:
    return sum(isinstance(block, block_type) for block in message.content)
