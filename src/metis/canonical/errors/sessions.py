"""Errors of settings, routing, events and sessions."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from metis.canonical.errors.base import MetisError, ProblemsError

if TYPE_CHECKING:
    from decimal import Decimal

    from metis.canonical.problem import Problem


class SettingsError(MetisError, ValueError):
    """A setting that cannot be used: `place` is a file with its line, a variable or an option."""

    def __init__(self, reason: str, *, place: str) -> None:
        self.reason = reason
        self.place = place
        super().__init__(f"{place}: {reason}")


class RoutingError(MetisError):
    """A turn for which no model was chosen; it was not started."""


class RoutingPolicyError(RoutingError, ProblemsError):
    """A rules file that cannot be used; the last good rules stay in force."""


class RefusedChoiceError(RoutingError):
    """The model that the user asked for cannot take the turn; no other one is put in its place."""

    def __init__(self, model: str, *, reason: str, text: str) -> None:
        self.model = model
        self.reason = reason
        super().__init__(f"{model} cannot take this turn: {text}")


class NoModelError(RoutingError):
    """No model can take the turn: `tried` names each candidate with the reason against it."""

    def __init__(self, tried: Sequence[tuple[str, str]], *, providers: Sequence[str]) -> None:
        self.tried = tuple(tried)
        self.providers = tuple(providers)
        """The providers that are configured."""
        told = "".join(f"\n  {model}: {reason}" for model, reason in self.tried)
        known = ", ".join(self.providers) or "none"
        tried_text = f"; tried:{told}" if told else "; no slot names a model"
        super().__init__(f"no model can take this turn{tried_text}\nproviders configured: {known}")


class EventError(MetisError):
    """An event that cannot be sent, kept or read."""


class InvalidEventError(EventError, ValueError):
    """An event that the catalogue does not allow: `path` names the place, `reason` the fault."""

    def __init__(self, reason: str, *, path: str = "$") -> None:
        self.reason = reason
        self.path = path
        super().__init__(f"{path}: {reason}")


class BusOverflowError(EventError):
    """A subscriber has taken too few events for too long; the event was given to nobody."""

    def __init__(self, subscriber: str, capacity: int) -> None:
        self.subscriber = subscriber
        self.capacity = capacity
        super().__init__(f"subscriber {subscriber!r} has {capacity} events waiting already")


class SessionError(MetisError):
    """A session that cannot do what was asked."""


class SwapRefusedError(SessionError):
    """The history does not fit the model that was asked for; nothing was changed."""

    def __init__(self, model: str, *, capability: str, why: str, active: str | None) -> None:
        self.model = model
        self.capability = capability
        self.why = why
        self.active = active
        super().__init__(f"Cannot swap to {model}: {why}. Active model unchanged.")


class BudgetExceededError(SessionError):
    """A budget is spent, or the next call would overdraw it; nothing was sent."""

    def __init__(self, scope: str, *, limit_usd: "Decimal", spent_usd: "Decimal") -> None:
        self.scope = scope
        self.limit_usd = limit_usd
        self.spent_usd = spent_usd
        super().__init__(
            f"the budget of this {scope} is {limit_usd} USD, and {spent_usd} USD are spent"
        )


class TurnLimitError(SessionError):
    """A turn was ended because the model went on and on."""


class NoTurnError(SessionError):
    """There is no turn that could be taken back or asked again."""


class InvalidAnswerError(SessionError, ProblemsError):
    """An answer that is not of the form that was asked for; it is stored all the same."""

    def __init__(
        self, subject: str, problems: "Sequence[Problem]", *, message: object = None
    ) -> None:
        self.message = message
        """The message of the answer; None if there was none."""
        super().__init__(subject, problems)


class SessionEndedError(SessionError):
    """A session that was ended takes no more turns."""
