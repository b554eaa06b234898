"""Events of routing decisions."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from metis.canonical.errors import RoutingPolicyError
from metis.catalog import catalog
from metis.events.analytics import routing_report
from metis.events.turn_events import RouteDecided
from metis.routing import (
    Neighbour,
    Outage,
    Policy,
    Router,
    Scope,
    TurnFacts,
    read_policy,
)
from metis.routing.router import (
    policy_invalid,
    provider_recovered,
    provider_unavailable,
    route_decided,
)
from sample_events import recording_bus

NOON = datetime(2026, 5, 8, 12, tzinfo=UTC)
HAIKU, OPUS = "anthropic:claude-haiku-4-5", "anthropic:claude-opus-4-7"


@pytest.mark.row("M-079", "M-309")
def test_decision_event_has_whole_chain() -> None:
    neighbour = Neighbour(
        model=HAIKU, similarity=1.0, success=1.0, sample_size=9, cost_usd=Decimal(1)
    )
    policy = Policy(common=Scope(default=OPUS))
    for configured, turn, slots, failures in (
        ({"anthropic"}, TurnFacts(now=NOON, neighbours=(neighbour,)), 4, 0),
        ({"anthropic"}, TurnFacts(now=NOON), 7, 0),
        (set[str](), TurnFacts(now=NOON), 7, 1),
    ):
        decision = Router(catalog(), configured=configured, rules=policy).decide(turn)
        bus, emitted = recording_bus()
        bus.emit(route_decided(decision, elapsed_ms=0.2))
        (event,) = emitted
        assert isinstance(event.payload, RouteDecided)
        assert event.payload.chosen_model == decision.chosen
        assert len(event.payload.chain) == len(decision.chain) == slots
        assert routing_report(emitted).hard_failures == failures
        if decision.record is not None:
            assert set(decision.record.__struct_fields__) - {"extra"} == {
                *("mode", "chosen_model", "reason", "rule_name", "confidence"),
                "alternatives_considered",
            }


def test_other_routing_events_are_registered() -> None:
    with pytest.raises(RoutingPolicyError) as caught:
        read_policy(b"schema_version = 2", catalog(), name=".metis/routing.toml")
    outage = Outage(provider="a", scope="provider", models=("a:x",), reason="gone", began_at=NOON)
    bus, emitted = recording_bus()
    bus.emit(policy_invalid(caught.value))
    bus.emit(provider_unavailable(outage))
    bus.emit(provider_recovered(outage, NOON + timedelta(seconds=9)))
    assert [event.type for event in emitted] == [
        *("routing.policy_invalid", "routing.provider_unavailable", "routing.provider_recovered"),
    ]
