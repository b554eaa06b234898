"""The input of a routing decision: the facts of a turn, and the availability of providers.

Facts are collected when a turn starts. Models and providers that failed too often are not called
until a cooldown is over.
"""

import re
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Literal

from msgspec import Struct

from metis.canonical.errors import (
    AuthenticationError,
    ContextOverflowError,
    InvalidRequestError,
    InvalidValueError,
    NetworkError,
    ProviderError,
)
from metis.canonical.tools import SideEffects
from metis.routing.pattern import Neighbour

_OVERRIDE = re.compile(r"@(\S+)(?:\s+|$)")
# These errors are caused by the request, so they do not count as failures of the provider.
_REQUEST_ERRORS = (InvalidRequestError, ContextOverflowError)


class Tier(StrEnum):
    """The class of model that a delegated task gets."""

    FAST = "fast"
    BALANCED = "balanced"
    DEEP = "deep"


class TurnFacts(Struct, frozen=True, kw_only=True):
    """All facts about a turn that the router uses."""

    now: datetime
    """The time in the user's time zone, for rules about the time of day."""
    message: str = ""
    """The text of the prompt, without an `@alias` at its start."""
    override: str | None = None
    """The model that the prompt names."""
    sticky: str | None = None
    """The model that is set for the session or its thread."""
    tier: Tier | None = None
    """The tier of a worker session; None in other sessions."""
    workspace_path: str = ""
    estimated_input_tokens: int = 0
    minimum_tokens: int | None = None
    """The tokens of a compacted history; None if it cannot be compacted."""
    reserved_output_tokens: int = 0
    """The tokens of the window that are reserved for the response."""
    has_images: bool = False
    has_images_in_prompt: bool = False
    has_tool_calls_in_history: bool = False
    needs_tools: bool = False
    needs_system_prompt: bool = False
    needs_structured_output: bool = False
    side_effects: AbstractSet[SideEffects] = frozenset()
    """The side effects of the tools of this turn."""
    skills_matching_message: AbstractSet[str] = frozenset()
    file_extensions_in_context: AbstractSet[str] = frozenset()
    """In lower case, such as `.py`."""
    cost_today_usd: Decimal = Decimal(0)
    """The cost of this UTC day so far."""
    team_budget_remaining_usd: Decimal | None = None
    """None if the team has no budget."""
    neighbours: tuple[Neighbour, ...] = ()
    """Similar earlier turns (k-nearest neighbours), if a program supplies them."""

    def __post_init__(self) -> None:
        """Refuse NaN and infinite amounts, which cannot be compared."""
        for name in ("cost_today_usd", "team_budget_remaining_usd"):
            amount = getattr(self, name)
            if amount is not None and not amount.is_finite():
                raise InvalidValueError(f"{amount} is not an amount of money", path=f"$.{name}")


class AddressedPrompt(Struct, frozen=True):
    """A prompt, and the model that it names."""

    text: str
    override: str | None = None


def parse_override(text: str) -> AddressedPrompt:
    r"""Split an `@alias` off the start of a prompt; `\\@` stands for a plain `@`.

    >>> parse_override("@haiku fix the typo")
    AddressedPrompt(text='fix the typo', override='haiku')
    >>> parse_override(r"\\@haiku is a name")
    AddressedPrompt(text='@haiku is a name', override=None)
    """
    # The escape is for prompts that begin with a handle or a Python decorator.
    if text.startswith("\\@"):
        return AddressedPrompt(text[1:])
    match = _OVERRIDE.match(text)
    if match is None:
        return AddressedPrompt(text)
    body = text[match.end() :]
    if not body:
        fault = f"there is no message after @{match[1]}; write the prompt after the model"
        raise InvalidValueError(fault, path="$.message")
    return AddressedPrompt(body, match[1])


class AvailabilityLimits(Struct, frozen=True, kw_only=True):
    """How many failures in which time start an outage, and the cooldown that ends it."""

    model_failures: int = 5
    models_down: int = 3
    window: timedelta = timedelta(minutes=2)
    network_errors: int = 2
    network_window: timedelta = timedelta(seconds=30)
    cooldown: timedelta = timedelta(minutes=5)
    """After this time without an attempt, a model or provider is tried again."""


class Outage(Struct, frozen=True, kw_only=True):
    """A model, or a provider with all its models, that is currently not called."""

    provider: str
    scope: Literal["model", "provider"]
    models: tuple[str, ...]
    """The model, or the models whose failures started the outage of the provider."""
    reason: str
    began_at: datetime
    is_local_fault: bool = False
    """Whether the user may be able to fix it: a key, a network."""

    def __str__(self) -> str:
        subject = self.models[0] if self.scope == "model" else f"all of {self.provider}"
        return f"{subject}: {self.reason}"


class _Health:
    """The recent failures of one model or provider."""

    __slots__ = ("failed_at", "last_attempt_at", "network_failed_at", "outage")

    def __init__(self) -> None:
        self.failed_at: list[datetime] = []
        self.network_failed_at: list[datetime] = []
        self.last_attempt_at: datetime | None = None
        self.outage: Outage | None = None

    def reset(self) -> None:
        self.outage, self.failed_at, self.network_failed_at = None, [], []


class Availability:
    """Records failed and successful calls; a call counts once, however often it was retried."""

    def __init__(
        self,
        *,
        clock: Callable[[], datetime],
        limits: AvailabilityLimits = AvailabilityLimits(),  # noqa: B008 - a frozen value
    ) -> None:
        self._clock = clock
        self._limits = limits
        self._models: dict[str, _Health] = {}
        self._providers: dict[str, _Health] = {}

    def outage(self, model: str) -> Outage | None:
        """Return the outage of a model's provider or of the model itself, if there is one."""
        for health in (self._providers.get(_provider(model)), self._models.get(model)):
            if health is not None and health.outage is not None and not self._is_over(health):
                return health.outage
        return None

    def record_failure(self, model: str, error: ProviderError) -> tuple[Outage, ...]:
        """Record a call that failed after all retries; return the outages that begin with it."""
        if isinstance(error, _REQUEST_ERRORS):
            return ()
        now = self._clock()
        health = self._attempt(self._models, model, now)
        provider = self._attempt(self._providers, _provider(model), now)
        health.failed_at = [*_recent(health.failed_at, now, self._limits.window), now]
        new_outages: list[Outage] = []
        failures = len(health.failed_at)
        if failures >= self._limits.model_failures and health.outage is None:
            health.outage = Outage(
                provider=_provider(model),
                scope="model",
                models=(model,),
                reason=f"failed {failures} times in a row; only this model is affected",
                began_at=now,
            )
            new_outages.append(health.outage)
        reason = self._provider_reason(model, provider, error, now)
        if reason is not None and provider.outage is None:
            provider.outage = Outage(
                provider=_provider(model),
                scope="provider",
                models=self._models_down(model, now) or (model,),
                reason=reason,
                began_at=now,
                is_local_fault=isinstance(error, AuthenticationError | NetworkError),
            )
            new_outages.append(provider.outage)
        return tuple(new_outages)

    def record_success(self, model: str) -> tuple[Outage, ...]:
        """Record a successful call; return the outages that end with it."""
        removed = self._models.pop(model, None), self._providers.pop(_provider(model), None)
        return tuple(
            health.outage
            for health in removed
            if health is not None and health.outage is not None and not self._is_over(health)
        )

    def clear_expired(self) -> tuple[Outage, ...]:
        """End the outages whose cooldown is over; return them."""
        ended: list[Outage] = []
        for health in (*self._providers.values(), *self._models.values()):
            if health.outage is not None and self._is_over(health):
                ended.append(health.outage)
                health.reset()
        return tuple(ended)

    def clear_local_fault(self, model: str) -> tuple[Outage, ...]:
        """End the outage of a model's provider if the user may have fixed it; return it."""
        health = self._providers.get(_provider(model))
        if health is None or health.outage is None or not health.outage.is_local_fault:
            return ()
        ended = health.outage
        health.reset()
        return (ended,)

    def _attempt(self, healths: dict[str, _Health], name: str, now: datetime) -> _Health:
        """Return the health of a model or provider, with one more attempt."""
        health = healths.setdefault(name, _Health())
        if self._is_over(health):
            health.reset()
        health.last_attempt_at = now
        return health

    def _is_over(self, health: _Health) -> bool:
        last = health.last_attempt_at
        return last is not None and self._clock() - last >= self._limits.cooldown

    def _provider_reason(
        self, model: str, provider: _Health, error: ProviderError, now: datetime
    ) -> str | None:
        """Return why all models of the provider are down; None if they are not."""
        # All models of a provider share a key, so one refusal of the key is enough.
        if isinstance(error, AuthenticationError):
            return "it does not accept the key"
        limits = self._limits
        # A single network error may be a dropped connection.
        if isinstance(error, NetworkError):
            recent = _recent(provider.network_failed_at, now, limits.network_window)
            provider.network_failed_at = [*recent, now]
            if len(provider.network_failed_at) >= limits.network_errors:
                return "it cannot be reached"
        down = self._models_down(model, now)
        if len(down) >= limits.models_down:
            return f"{len(down)} of its models are down"
        return None

    def _models_down(self, model: str, now: datetime) -> tuple[str, ...]:
        """Return the models of the same provider that went down recently, sorted."""
        return tuple(
            sorted(
                name
                for name, health in self._models.items()
                if health.outage is not None
                and health.outage.provider == _provider(model)
                and now - health.outage.began_at <= self._limits.window
            )
        )


def _provider(model: str) -> str:
    return model.partition(":")[0]


def _recent(moments: list[datetime], now: datetime, window: timedelta) -> list[datetime]:
    return [moment for moment in moments if now - moment <= window]
