"""What routing tells on the bus: decisions, broken rules, outages and recoveries, as payloads."""

from datetime import datetime

from metis.canonical.errors import RoutingPolicyError
from metis.events.house import (
    RoutingPolicyInvalid,
    RoutingProviderRecovered,
    RoutingProviderUnavailable,
)
from metis.events.work import RouteAlternative, RouteConstraintFailed, RouteDecided, RouteStep
from metis.routing.availability import Outage
from metis.routing.chain import ChainEntry, Decision
from metis.routing.validation import Failure


def route_decided(decision: Decision, *, elapsed_ms: float) -> RouteDecided:
    """A decision with its whole chain; to be told once a turn, also when nobody won."""
    return RouteDecided(
        chosen_model=decision.chosen,
        winner_index=decision.winner_index,
        elapsed_ms=elapsed_ms,
        chain=tuple(_step(entry) for entry in decision.chain),
        policy_version=decision.policy_version,
    )


def _step(entry: ChainEntry) -> RouteStep:
    failure = entry.validation_failure
    return RouteStep(
        policy=entry.policy,
        verdict=entry.verdict.value,
        reason=entry.reason,
        candidate_model=entry.candidate_model,
        rule_name=entry.rule_name,
        confidence=entry.confidence,
        pattern_alternatives=tuple(
            RouteAlternative(model=score.model, score=score.score, sample_size=score.sample_size)
            for score in entry.pattern_alternatives
        ),
        validation_failure=None if failure is None else failure.reason.value,
    )


def constraint_failed(
    model: str, failure: Failure, *, active_model: str | None
) -> RouteConstraintFailed:
    """A swap to a model that the history does not fit."""
    return RouteConstraintFailed(
        model=model,
        active_model=active_model,
        capability=failure.reason.value,
        reason=failure.text,
    )


def policy_invalid(error: RoutingPolicyError) -> RoutingPolicyInvalid:
    """A rules file with mistakes, each with its place."""
    return RoutingPolicyInvalid(
        policy_path=error.subject, errors=tuple(str(problem) for problem in error.problems)
    )


def provider_unavailable(outage: Outage) -> RoutingProviderUnavailable:
    """An outage that began."""
    return RoutingProviderUnavailable(
        provider=outage.provider,
        scope=outage.scope,
        models_affected=outage.models,
        trigger_reason=outage.reason,
    )


def provider_recovered(outage: Outage, at: datetime) -> RoutingProviderRecovered:
    """An outage that ended."""
    return RoutingProviderRecovered(
        provider=outage.provider,
        scope=outage.scope,
        models_recovered=outage.models,
        downtime_seconds=(at - outage.began_at).total_seconds(),
    )
