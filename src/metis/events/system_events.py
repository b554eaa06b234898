"""System event payloads: outages, memory, skills, delegation, budgets, gateway keys, the bus."""

from decimal import Decimal
from typing import Literal

from metis.events.registry import (
    KeyRef,
    Payload,
    Private,
    Sensitivity,
    SessionRef,
    TeamRef,
    UserNamed,
    UserRef,
    event_type,
)

PRIVATE, PSEUDONYMOUS = Sensitivity.PRIVATE, Sensitivity.PSEUDONYMOUS
AGGREGATABLE, USER_CONTROLLED = Sensitivity.AGGREGATABLE, Sensitivity.USER_CONTROLLED
# Names and fields of payloads are stored data: they are extended, never renamed.
BudgetScope = Literal["session", "day", "month"]


@event_type("routing.policy_invalid", PRIVATE, is_audit=True)
class RoutingPolicyInvalid(Payload, frozen=True, kw_only=True):
    """A rules file is invalid."""

    policy_path: Private
    errors: tuple[Private, ...]
    using_last_known_good: bool = True


@event_type("routing.provider_unavailable", AGGREGATABLE)
class RoutingProviderUnavailable(Payload, frozen=True, kw_only=True):
    """A model or a provider is paused after failures."""

    provider: str
    scope: Literal["model", "provider"]
    models_affected: tuple[str, ...]
    trigger_reason: str


@event_type("routing.provider_recovered", AGGREGATABLE)
class RoutingProviderRecovered(Payload, frozen=True, kw_only=True):
    """A paused model or provider is used again."""

    provider: str
    scope: Literal["model", "provider"]
    models_recovered: tuple[str, ...]
    downtime_seconds: float


@event_type("skill.loaded", USER_CONTROLLED)
class SkillLoaded(Payload, frozen=True, kw_only=True):
    """The text of a skill was added to the context."""

    skill_id: UserNamed
    skill_version: str
    load_reason: Literal["always", "on_demand", "auto_suggested"]
    load_size_tokens: int
    source: Literal["workspace", "global"]
    triggered_by_tool_use_id: str | None = None


@event_type("memory.updated", USER_CONTROLLED)
class MemoryUpdated(Payload, frozen=True, kw_only=True):
    """A memory file was changed; only hashes of its text are recorded."""

    file: UserNamed
    operation: Literal["add", "replace", "consolidate"]
    hash_before: str
    hash_after: str
    size_before_bytes: int
    size_after_bytes: int


@event_type("memory.eviction", USER_CONTROLLED, is_audit=True)
class MemoryEviction(Payload, frozen=True, kw_only=True):
    """A memory file was over its limit and was shortened."""

    file: UserNamed
    size_before_bytes: int
    size_after_bytes: int


@event_type("delegate.started", USER_CONTROLLED, ends=("delegate.completed", "delegate.failed"))
class DelegateStarted(Payload, frozen=True, kw_only=True):
    """A task was given to a worker session."""

    tool_use_id: str
    worker_session_id: SessionRef
    tier: Literal["fast", "balanced", "deep"]
    resolved_model: str | None = None
    context_mode: Literal["minimal", "explicit"] = "minimal"
    included_count: int = 0
    dropped_tools: tuple[UserNamed, ...] = ()


@event_type("delegate.completed", PSEUDONYMOUS, parents=("delegate.started",))
class DelegateCompleted(Payload, frozen=True, kw_only=True):
    """A worker session returned its result."""

    tool_use_id: str
    worker_session_id: SessionRef
    success: bool
    model: str
    result_size_bytes: int
    worker_total_cost_usd: Decimal
    llm_call_count: int = 0
    tool_call_count: int = 0


@event_type("delegate.failed", PRIVATE, parents=("delegate.started",))
class DelegateFailed(Payload, frozen=True, kw_only=True):
    """A worker session failed."""

    tool_use_id: str
    worker_session_id: SessionRef | None
    failure_mode: Literal[
        "worker_error",
        "max_tokens_exceeded",
        "insufficient_context",
        "output_schema_validation_failed",
        "no_model_available_for_tier",
        "cancelled_by_user",
        "timeout",
    ]
    error_message: Private
    partial_cost_usd: Decimal = Decimal(0)


@event_type("feedback.explicit", PRIVATE)
class FeedbackExplicit(Payload, frozen=True, kw_only=True):
    """The user rated a turn or a session."""

    scope: Literal["turn", "session"]
    rating: int
    subject_id: str
    comment: Private | None = None


@event_type("feedback.implicit", PSEUDONYMOUS)
class FeedbackImplicit(Payload, frozen=True, kw_only=True):
    """An action of the user implies a rating."""

    signal: Literal["retry", "manual_swap", "edit_followup", "abandon", "accept"]
    confidence: float
    subject_id: str


@event_type("budget.warned", PSEUDONYMOUS, is_audit=True)
class BudgetWarned(Payload, frozen=True, kw_only=True):
    """A warning level of a budget was reached."""

    scope: BudgetScope
    level: Decimal
    limit_usd: Decimal
    spent_usd: Decimal


@event_type("budget.exceeded", PSEUDONYMOUS, is_audit=True)
class BudgetExceeded(Payload, frozen=True, kw_only=True):
    """A model call was refused because a budget is used up."""

    scope: BudgetScope
    limit_usd: Decimal
    spent_usd: Decimal


@event_type("gateway.key_issued", PSEUDONYMOUS, is_audit=True)
class GatewayKeyIssued(Payload, frozen=True, kw_only=True):
    """A gateway key was issued."""

    key_id: KeyRef
    user_id: UserRef | None = None
    team_id: TeamRef | None = None


@event_type("gateway.key_revoked", PSEUDONYMOUS, is_audit=True)
class GatewayKeyRevoked(Payload, frozen=True, kw_only=True):
    """A gateway key was revoked."""

    key_id: KeyRef


@event_type("gateway.key_rotated", PSEUDONYMOUS, is_audit=True)
class GatewayKeyRotated(Payload, frozen=True, kw_only=True):
    """A gateway key was replaced by another one."""

    old_key_id: KeyRef
    new_key_id: KeyRef
    grace_seconds: int


@event_type("gateway.auth_failed", PSEUDONYMOUS, is_audit=True)
class GatewayAuthFailed(Payload, frozen=True, kw_only=True):
    """A request had no key, or one that is not accepted."""

    reason: Literal["missing", "unknown", "revoked", "disabled"]
    token_hash_prefix: KeyRef | None = None


@event_type("gateway.quota_exceeded", PSEUDONYMOUS, is_audit=True)
class GatewayQuotaExceeded(Payload, frozen=True, kw_only=True):
    """A request was refused because a key, user or team has spent its quota."""

    key_id: KeyRef
    scope: Literal["key", "user", "team"]
    window: Literal["day", "month"]
    limit_usd: Decimal
    spent_usd: Decimal


@event_type("bus.gap_detected", PSEUDONYMOUS, is_audit=True)
class BusGapDetected(Payload, frozen=True, kw_only=True):
    """A start event has no end event, such as after a crash."""

    unfinished_event_id: str
    unfinished_type: str


@event_type("trace.swept", AGGREGATABLE, is_audit=True)
class TraceSwept(Payload, frozen=True, kw_only=True):
    """Old events were deleted."""

    cutoff: str
    deleted_count: int
    spared_count: int
