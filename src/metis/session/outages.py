"""Outages: what the sessions of a store learn together of providers and rules, each told once."""

from collections.abc import Callable, Iterable
from datetime import datetime

from metis.canonical.errors import ProviderError, RoutingPolicyError
from metis.routing import Availability, Outage
from metis.routing.told import policy_invalid, provider_recovered, provider_unavailable
from metis.session.trace import Trace


class Outages:
    """Counts failed and good calls, and tells the bus when somebody goes down or comes back."""

    def __init__(self, availability: Availability, now: Callable[[], datetime]) -> None:
        self._availability = availability
        self._now = now
        self._problem: RoutingPolicyError | None = None

    def failed(self, model: str, error: ProviderError, trace: Trace) -> tuple[Outage, ...]:
        """A call failed for good; gives the outages that begin with it."""
        began = self._availability.failed(model, error)
        for outage in began:
            trace.emit(provider_unavailable(outage))
        return began

    def succeeded(self, model: str, trace: Trace) -> None:
        """A call was answered."""
        self._recovered(self._availability.succeeded(model), trace)

    def look(self, trace: Trace) -> None:
        """End what has rested long enough."""
        self._recovered(self._availability.lapsed(), trace)

    def lift(self, model: str, trace: Trace) -> bool:
        """Ask a model again that was down by a fault of our own; whether it was."""
        ended = self._availability.lifted(model)
        self._recovered(ended, trace)
        return bool(ended)

    def is_new(self, problem: RoutingPolicyError | None, trace: Trace) -> bool:
        """Whether a rules file is broken in a way that nobody was told of yet; then it is told."""
        is_new = problem is not None and problem is not self._problem
        self._problem = problem
        if is_new and problem is not None:
            trace.emit(policy_invalid(problem))
        return is_new

    def _recovered(self, outages: Iterable[Outage], trace: Trace) -> None:
        for outage in outages:
            trace.emit(provider_recovered(outage, self._now()))
