"""Session event payloads: sessions, turns, routes, model calls and tool calls."""

from datetime import datetime
from decimal import Decimal
from typing import Literal

from msgspec import Struct

from metis.canonical.metadata import ChainPolicy, StopReason
from metis.canonical.tools import SideEffects
from metis.events.registry import (
    KeyRef,
    Payload,
    Private,
    RequestRef,
    Sensitivity,
    SessionRef,
    TeamRef,
    UserNamed,
    UserRef,
    WorkspaceRef,
    event_type,
)

PRIVATE, PSEUDONYMOUS = Sensitivity.PRIVATE, Sensitivity.PSEUDONYMOUS
USER_CONTROLLED = Sensitivity.USER_CONTROLLED
# A started turn, call or tool run has exactly one of these ends, also after a cancellation.
TURN_ENDS = ("turn.completed", "turn.cancelled", "turn.failed")
CALL_ENDS = ("llm.call_completed", "llm.call_failed")
TOOL_ENDS = ("tool.completed", "tool.failed")

# Stored in traces: a new class may be added, an old one is never renamed.
LlmErrorClass = Literal[
    "rate_limit",
    "auth",
    "server_error",
    "network",
    "context_overflow",
    "invalid_request",
    "cancelled",
    "other",
]
ToolErrorClass = Literal[
    "not_found",
    "validation_error",
    "permission_denied",
    "user_denied",
    "timeout",
    "execution_error",
    "cancelled",
    "confirmation_timeout",
]


@event_type("session.created", PRIVATE)
class SessionCreated(Payload, frozen=True, kw_only=True):
    """A session was opened."""

    workspace_path: WorkspaceRef
    initial_active_model: str | None = None
    routing_policy_version: str = "none"
    parent_session_id: SessionRef | None = None
    is_worker: bool = False


@event_type("session.resumed", PSEUDONYMOUS)
class SessionResumed(Payload, frozen=True, kw_only=True):
    """A session was opened again."""

    last_event_id_at_resume: str | None = None
    message_count: int = 0


@event_type("session.forked", PSEUDONYMOUS)
class SessionForked(Payload, frozen=True, kw_only=True):
    """A session was started as a copy of another one up to a message."""

    source_session_id: SessionRef
    at_message_id: str


@event_type("session.model_changed", PSEUDONYMOUS)
class SessionModelChanged(Payload, frozen=True, kw_only=True):
    """Another model was set for the session; queued if a turn was running."""

    old_model: str | None = None
    new_model: str | None = None
    is_queued: bool = False


@event_type("session.rewound", PSEUDONYMOUS)
class SessionRewound(Payload, frozen=True, kw_only=True):
    """A session was rewound to an earlier message; nothing was deleted."""

    to_message_id: str | None
    message_count: int


@event_type("session.compacted", PSEUDONYMOUS)
class SessionCompacted(Payload, frozen=True, kw_only=True):
    """A part of the history was replaced by a summary."""

    trigger: Literal["limit", "user", "overflow"]
    model: str | None = None
    message_count: int
    tokens_before: int
    tokens_after: int
    provider: str = ""
    input_tokens: int = 0
    """Tokens of the call that wrote the summary."""
    output_tokens: int = 0
    cached_input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    cache_creation_1h_input_tokens: int = 0
    cost_usd: Decimal = Decimal(0)
    pricing_version: str = "unpriced"
    latency_ms: int = 0


@event_type("session.ended", PSEUDONYMOUS)
class SessionEnded(Payload, frozen=True, kw_only=True):
    """A session was closed."""

    disposition: Literal["completed", "abandoned", "error"]
    turn_count: int
    total_cost_usd: Decimal
    duration_seconds: float


@event_type("turn.started", PRIVATE, ends=TURN_ENDS)
class TurnStarted(Payload, frozen=True, kw_only=True):
    """A turn was started by a prompt; only a hash of its text is recorded."""

    user_message_hash: Private
    estimated_input_tokens: int
    has_images: bool = False
    has_tool_calls_in_history: bool = False


@event_type("turn.completed", PSEUDONYMOUS, parents=("turn.started",))
class TurnCompleted(Payload, frozen=True, kw_only=True):
    """A turn ended normally."""

    stop_reason: StopReason
    llm_call_count: int
    tool_call_count: int
    total_input_tokens: int
    total_output_tokens: int
    total_cost_usd: Decimal
    wall_time_seconds: float
    user_id: UserRef | None = None
    team_id: TeamRef | None = None


@event_type("turn.cancelled", PSEUDONYMOUS, parents=("turn.started",))
class TurnCancelled(Payload, frozen=True, kw_only=True):
    """A turn was stopped before its end."""

    reason: Literal["user_cancel", "client_disconnect", "timeout"]
    partial_llm_calls: int = 0
    partial_tool_calls: int = 0


@event_type("turn.failed", PRIVATE, parents=("turn.started",))
class TurnFailed(Payload, frozen=True, kw_only=True):
    """A turn ended with an error."""

    error_type: str
    error_message: Private


@event_type("turn.history_repaired", PSEUDONYMOUS, parents=("llm.call_failed", "turn.started"))
class TurnHistoryRepaired(Payload, frozen=True, kw_only=True):
    """A provider refused the history; it was repaired and sent again."""

    model: str
    repairs: tuple[str, ...]


class RouteAlternative(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model that a pattern considered."""

    model: str
    score: float
    sample_size: int


class RouteStep(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One step of the routing chain."""

    policy: ChainPolicy
    verdict: Literal["not_applicable", "deferred", "rejected", "chose"]
    reason: UserNamed
    candidate_model: str | None = None
    rule_name: UserNamed | None = None
    confidence: float | None = None
    pattern_alternatives: tuple[RouteAlternative, ...] = ()
    validation_failure: str | None = None


@event_type("route.decided", USER_CONTROLLED, parents=("turn.started",))
class RouteDecided(Payload, frozen=True, kw_only=True):
    """A model was chosen, or none could be; emitted exactly once per turn."""

    chosen_model: str | None
    winner_index: int
    elapsed_ms: float
    chain: tuple[RouteStep, ...]
    policy_version: str = "none"


@event_type("route.constraint_failed", PSEUDONYMOUS)
class RouteConstraintFailed(Payload, frozen=True, kw_only=True):
    """A swap was refused because the history does not fit the model."""

    model: str
    active_model: str | None
    capability: str
    reason: str


@event_type(
    "llm.call_started",
    PRIVATE,
    parents=("turn.started", "tool.completed", "tool.failed", "llm.call_failed"),
    ends=CALL_ENDS,
)
class LlmCallStarted(Payload, frozen=True, kw_only=True):
    """A model call was started."""

    model: str
    provider: str
    request_id: RequestRef
    estimated_input_tokens: int = 0
    is_worker: bool = False


@event_type("llm.call_completed", PSEUDONYMOUS, parents=("llm.call_started",))
class LlmCallCompleted(Payload, frozen=True, kw_only=True):
    """A model call succeeded; the three input counts are disjoint."""

    model: str
    provider: str
    input_tokens: int
    output_tokens: int
    cached_input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    cache_creation_1h_input_tokens: int = 0
    reasoning_output_tokens: int = 0
    is_estimated: bool = False
    cost_usd: Decimal
    pricing_version: str
    latency_ms: int
    time_to_first_chunk_ms: int | None = None
    stop_reason: StopReason
    response_id: RequestRef | None = None
    produced_tool_calls: int = 0
    produced_thinking_blocks: int = 0
    gateway_key_id: KeyRef | None = None
    inbound_shape: str | None = None
    user_id: UserRef | None = None
    team_id: TeamRef | None = None
    parent_session_id: SessionRef | None = None


@event_type("llm.call_failed", PRIVATE, parents=("llm.call_started",))
class LlmCallFailed(Payload, frozen=True, kw_only=True):
    """A model call failed, perhaps in the middle of the response."""

    model: str
    provider: str
    error_class: LlmErrorClass
    error_message: Private
    latency_ms: int
    retry_count: int = 0
    """The number of earlier attempts of this call."""
    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    cache_creation_1h_input_tokens: int = 0
    cost_usd: Decimal = Decimal(0)
    """The cost of the tokens before the failure; an estimate if the provider reported none."""
    pricing_version: str = "unpriced"
    user_id: UserRef | None = None
    team_id: TeamRef | None = None


@event_type("tool.called", PRIVATE, parents=("llm.call_completed",), ends=TOOL_ENDS)
class ToolCalled(Payload, frozen=True, kw_only=True):
    """A tool run was started; only hash and size of its input are recorded."""

    tool_use_id: str
    tool_name: UserNamed
    side_effects: SideEffects
    input_hash: Private
    input_size_bytes: int


@event_type("tool.completed", PRIVATE, parents=("tool.called",))
class ToolCompleted(Payload, frozen=True, kw_only=True):
    """A tool returned its result."""

    tool_use_id: str
    success: bool
    output_size_bytes: int
    latency_ms: int
    files_modified: tuple[Private, ...] = ()
    command_executed: Private | None = None


@event_type("tool.failed", PRIVATE, parents=("tool.called", "llm.call_completed"))
class ToolFailed(Payload, frozen=True, kw_only=True):
    """A tool run failed without a result."""

    tool_use_id: str
    error_class: ToolErrorClass
    error_message: Private
    latency_ms: int


@event_type("tool.input_invalid", PRIVATE, parents=("llm.call_completed",))
class ToolInputInvalid(Payload, frozen=True, kw_only=True):
    """A model called a tool with an input that does not match its schema."""

    tool_use_id: str
    tool_name: UserNamed
    validation_errors: tuple[Private, ...]


@event_type("tool.confirmation_requested", PRIVATE, parents=("llm.call_completed",))
class ToolConfirmationRequested(Payload, frozen=True, kw_only=True):
    """The user was asked whether a tool may run."""

    tool_use_id: str
    tool_name: UserNamed
    side_effects: SideEffects
    confirmation_request_id: str
    input_summary: Private
    command_summary: Private | None = None
    projected_modifications: tuple[Private, ...] = ()
    expires_at: datetime | None = None


@event_type(
    "tool.confirmation_resolved",
    USER_CONTROLLED,
    parents=("tool.confirmation_requested",),
    is_audit=True,
)
class ToolConfirmationResolved(Payload, frozen=True, kw_only=True):
    """The user allowed or denied a tool run, or did not respond in time."""

    tool_use_id: str
    confirmation_request_id: str
    decision: Literal["allow", "deny", "timeout"]
    scope: Literal["once", "session"] = "once"
    responding_client: UserNamed | None = None
