"""Trace: what a session tells the bus; hashes, sizes and counts, never what was said."""

import hashlib
import logging
from typing import Any

import msgspec

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
from metis.canonical.metadata import OutcomeStatus, StopReason
from metis.canonical.tools import SideEffects
from metis.events import Actor, Bus, Event, Payload
from metis.events.work import (
    LlmCallCompleted,
    LlmCallFailed,
    LlmErrorClass,
    RouteAlternative,
    RouteDecided,
    RouteStep,
    ToolCalled,
    ToolCompleted,
    ToolFailed,
)
from metis.routing import Decision

log = logging.getLogger("metis.session")

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

    def of_turn(self, turn_id: str) -> "Trace":
        """The trace of one turn."""
        return Trace(self._bus, self._session_id, turn_id)

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


def routed(decision: Decision, elapsed_ms: float) -> RouteDecided:
    """What is told of a decision: the chain up to the winner."""
    steps = [
        RouteStep(
            policy=entry.policy,
            verdict=entry.verdict.value,
            reason=entry.reason,
            candidate_model=entry.candidate_model,
            rule_name=entry.rule_name,
            confidence=entry.confidence,
            pattern_alternatives=tuple(
                RouteAlternative(
                    model=score.model, score=score.score, sample_size=score.sample_size
                )
                for score in entry.pattern_alternatives
            ),
            validation_failure=entry.validation_failure and str(entry.validation_failure.reason),
        )
        for entry in decision.chain
    ]
    return RouteDecided(
        chosen_model=decision.chosen,
        winner_index=decision.winner_index,
        elapsed_ms=elapsed_ms,
        chain=tuple(steps),
        policy_version=decision.policy_version,
    )


def completed(answer: Message) -> LlmCallCompleted:
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
        stop_reason=metadata.stop_reason or StopReason.UNKNOWN,
        response_id=metadata.response_id,
        produced_tool_calls=_count(answer, ToolUseBlock),
        produced_thinking_blocks=_count(answer, ThinkingBlock),
    )


def failed(model: str, provider: str, error: BaseException, latency_ms: int) -> LlmCallFailed:
    """What is told of a call without an answer; the provider's words may hold ours."""
    found: LlmErrorClass = "other" if isinstance(error, Exception) else "cancelled"
    for kind, name in _CLASSES:
        if isinstance(error, kind):
            found = name
    return LlmCallFailed(
        model=model,
        provider=provider,
        error_class=found,
        error_message=type(error).__name__,
        latency_ms=latency_ms,
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


def tool_ended(result: Message) -> ToolCompleted | ToolFailed:
    """What is told of the result of a call."""
    outcome = result.metadata.outcome
    own = result.metadata.parent_tool_use_id or ""
    if outcome is None or outcome.status is OutcomeStatus.SUCCESS:
        size = len(msgspec.json.encode(result.content))
        return ToolCompleted(tool_use_id=own, success=True, output_size_bytes=size, latency_ms=0)
    is_aborted = outcome.status is OutcomeStatus.ABORTED
    value: Any = outcome.value
    told = value.get("error_class") if isinstance(value, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - any JSON
    return ToolFailed(
        tool_use_id=own,
        error_class="cancelled" if is_aborted else told or "execution_error",  # pyright: ignore[reportUnknownArgumentType] - the bus checks it
        error_message=str(outcome.status),
        latency_ms=0,
    )


def hashed(data: bytes) -> str:
    """A short name for bytes that must not be told."""
    return hashlib.sha256(data).hexdigest()[:16]


def _count(message: Message, kind: type) -> int:
    return sum(isinstance(block, kind) for block in message.content)
