"""Health of models and providers: failures, outages and recovery."""

from datetime import UTC, datetime, timedelta

import pytest

from metis.canonical.errors import (
    AuthenticationError,
    ContextOverflowError,
    InvalidRequestError,
    NetworkError,
    OtherProviderError,
    ProviderError,
    RateLimitError,
    ServerError,
)
from metis.routing import Availability

DOWN = ServerError("down")


class Clock:
    """A clock that advances only on request."""

    def __init__(self) -> None:
        self.now = datetime(2026, 5, 8, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def go(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def health(clock: Clock) -> Availability:
    return Availability(clock=clock)


def fail(health: Availability, model: str, times: int, error: ProviderError = DOWN) -> None:
    for _ in range(times):
        health.record_failure(model, error)


def test_five_consecutive_failures_mark_model_down(health: Availability, clock: Clock) -> None:
    fail(health, "a:x", 4)
    assert health.outage("a:x") is None
    (began,) = health.record_failure("a:x", RateLimitError("slow"))
    assert began.scope == "model"
    assert health.outage("a:x") == began
    assert health.outage("a:y") is None
    assert "only this model" in str(began)
    assert health.record_failure("a:x", DOWN) == (), "an outage begins once"


def test_failures_long_ago_or_before_a_success_do_not_count(
    health: Availability, clock: Clock
) -> None:
    fail(health, "a:x", 4)
    clock.go(121)
    fail(health, "a:x", 4)
    assert health.outage("a:x") is None
    assert health.record_success("a:x") == ()
    fail(health, "a:x", 4)
    assert health.outage("a:x") is None


def test_three_models_down_mark_provider_down(health: Availability) -> None:
    for name in "xyz":
        fail(health, f"a:{name}", 5)
    outage = health.outage("a:other")
    assert outage is not None
    assert outage.scope == "provider"
    assert outage.models == ("a:x", "a:y", "a:z")
    assert "all of a" in str(outage)
    assert health.outage("b:x") is None


def test_models_that_went_down_long_ago_do_not_count(health: Availability, clock: Clock) -> None:
    fail(health, "a:x", 5)
    fail(health, "a:y", 5)
    clock.go(121)
    fail(health, "a:z", 5)
    assert health.outage("a:other") is None


def test_refused_key_marks_provider_down_at_once(health: Availability) -> None:
    (began,) = health.record_failure("a:x", AuthenticationError("no", status=401))
    assert (began.scope, began.models) == ("provider", ("a:x",))
    assert health.outage("a:y") == began


def test_locally_fixable_outage_can_be_cleared(health: Availability) -> None:
    (began,) = health.record_failure("a:x", AuthenticationError("no", status=401))
    assert health.clear_local_fault("b:x") == ()
    assert health.clear_local_fault("a:y") == (began,)
    assert health.outage("a:x") is None
    assert health.record_failure("a:x", AuthenticationError("no", status=401))
    fail(health, "b:x", 5)
    assert health.clear_local_fault("b:x") == ()
    assert health.outage("b:x") is not None


def test_two_network_errors_in_half_a_minute_mark_provider_down(
    health: Availability, clock: Clock
) -> None:
    health.record_failure("a:x", NetworkError("cut"))
    clock.go(31)
    health.record_failure("a:x", NetworkError("cut"))
    assert health.outage("a:x") is None
    clock.go(30)
    (began,) = health.record_failure("a:y", NetworkError("cut"))
    assert began.reason == "it cannot be reached"


@pytest.mark.parametrize("error", [InvalidRequestError("bad"), ContextOverflowError("long")])
def test_client_errors_do_not_count_against_provider(
    health: Availability, error: ProviderError
) -> None:
    fail(health, "a:x", 20, error)
    assert health.outage("a:x") is None


def test_a_success_clears_the_model_the_provider_and_the_network(
    health: Availability, clock: Clock
) -> None:
    fail(health, "a:x", 5, OtherProviderError("odd"))
    health.record_failure("a:y", AuthenticationError("no"))
    assert {outage.scope for outage in health.record_success("a:x")} == {"model", "provider"}
    assert health.outage("a:x") is None
    assert health.outage("a:y") is None
    health.record_failure("a:x", NetworkError("cut"))
    health.record_success("a:x")
    health.record_failure("a:x", NetworkError("cut"))
    assert health.outage("a:x") is None


def test_model_is_tried_again_after_five_minutes(health: Availability, clock: Clock) -> None:
    fail(health, "a:x", 5)
    clock.go(299)
    assert health.outage("a:x") is not None
    assert health.clear_expired() == ()
    health.record_failure("a:x", DOWN)
    clock.go(299)
    assert health.outage("a:x") is not None, "each attempt starts the rest anew"
    clock.go(1)
    assert health.outage("a:x") is None
    assert [outage.models for outage in health.clear_expired()] == [("a:x",)]
    assert health.clear_expired() == ()
    fail(health, "a:x", 4)
    assert health.outage("a:x") is None
