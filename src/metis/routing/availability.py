"""Availability: which models and providers have failed too often to be asked again just now."""

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from metis.canonical.errors import (
    AuthenticationError,
    ContextOverflowError,
    InvalidRequestError,
    NetworkError,
    ProviderError,
)

_OWN_FAULT = (InvalidRequestError, ContextOverflowError)


class AvailabilityLimits(Struct, frozen=True, kw_only=True):
    """After how many failures within which time nobody is asked any more, and for how long."""

    model_failures: int = 5
    models_down: int = 3
    window: timedelta = timedelta(minutes=2)
    network_errors: int = 2
    network_window: timedelta = timedelta(seconds=30)
    cooldown: timedelta = timedelta(minutes=5)
    """After this time without an attempt, a model or provider is tried again."""


class Outage(Struct, frozen=True, kw_only=True):
    """A model or a whole provider that is not asked for now, and why."""

    provider: str
    scope: Literal["model", "provider"]
    models: tuple[str, ...]
    """The model, or those whose failures took the provider down."""
    reason: str
    began_at: datetime
    is_local_fault: bool = False
    """Whether the fault may be mended on this side: a key, a network."""

    def __str__(self) -> str:
        who = self.models[0] if self.scope == "model" else f"all of {self.provider}"
        return f"{who}: {self.reason}"


class _Health:
    """What happened to one model, or to one provider."""

    __slots__ = ("failed_at", "last_attempt_at", "network_at", "outage")

    def __init__(self) -> None:
        self.failed_at: list[datetime] = []
        self.network_at: list[datetime] = []
        self.last_attempt_at: datetime | None = None
        self.outage: Outage | None = None


class Availability:
    """Counts failed and good calls; one report a call, however often it was tried inside."""

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
        """Why a model is not to be asked now: its provider's outage, or its own."""
        now = self._clock()
        for health in (self._providers.get(_provider(model)), self._models.get(model)):
            if health is not None and health.outage is not None and not self._rested(health, now):
                return health.outage
        return None

    def record_failure(self, model: str, error: ProviderError) -> tuple[Outage, ...]:
        """Report a call that failed for good; the outages that begin with it."""
        if isinstance(error, _OWN_FAULT):  # says nothing about the provider
            return ()
        now = self._clock()
        health, provider = self._health(model, now)
        health.failed_at = [*_recent(health.failed_at, now, self._limits.window), now]
        began: list[Outage] = []
        if len(health.failed_at) >= self._limits.model_failures and health.outage is None:
            reason = f"{len(health.failed_at)} failures in a row; only this model is affected"
            health.outage = _outage(model, "model", (model,), reason, now)
            began.append(health.outage)
        reason = self._provider_reason(model, provider, error, now)
        if reason is not None and provider.outage is None:
            models = self._down(model, now) or (model,)
            is_ours = isinstance(error, AuthenticationError | NetworkError)
            made = _outage(model, "provider", models, reason, now)
            provider.outage = replace(made, is_local_fault=is_ours)
            began.append(provider.outage)
        return tuple(began)

    def record_success(self, model: str) -> tuple[Outage, ...]:
        """Report a good call; the outages that end with it."""
        now = self._clock()
        ended = tuple(
            health.outage for health in self._health(model, now) if health.outage is not None
        )
        del self._models[model], self._providers[_provider(model)]
        return ended

    def clear_expired(self) -> tuple[Outage, ...]:
        """End the outages that have rested long enough, and tell them."""
        now, ended = self._clock(), list[Outage]()
        for health in (*self._providers.values(), *self._models.values()):
            if health.outage is not None and self._rested(health, now):
                ended.append(health.outage)
                health.outage, health.failed_at, health.network_at = None, [], []
        return tuple(ended)

    def clear_local_fault(self, model: str) -> tuple[Outage, ...]:
        """Let a model be asked again now if the fault may have been mended on this side."""
        health = self._providers.get(_provider(model))
        if health is None or health.outage is None or not health.outage.is_local_fault:
            return ()
        ended = health.outage
        health.outage, health.failed_at, health.network_at = None, [], []
        return (ended,)

    def _health(self, model: str, now: datetime) -> tuple[_Health, _Health]:
        """The health of a model and of its provider, with this attempt noted; rest heals."""
        pair = (
            self._models.setdefault(model, _Health()),
            self._providers.setdefault(_provider(model), _Health()),
        )
        for health in pair:
            if self._rested(health, now):
                health.outage, health.failed_at, health.network_at = None, [], []
            health.last_attempt_at = now
        return pair

    def _rested(self, health: _Health, now: datetime) -> bool:
        last = health.last_attempt_at
        return last is not None and now - last >= self._limits.cooldown

    def _provider_reason(
        self, model: str, provider: _Health, error: ProviderError, now: datetime
    ) -> str | None:
        if isinstance(error, AuthenticationError):
            return "it does not accept the key"
        limits = self._limits
        if isinstance(error, NetworkError):
            recent = _recent(provider.network_at, now, limits.network_window)
            provider.network_at = [*recent, now]
            if len(provider.network_at) >= limits.network_errors:
                return "it cannot be reached"
        down = self._down(model, now)
        if len(down) >= limits.models_down:
            return f"{len(down)} of its models are down"
        return None

    def _down(self, model: str, now: datetime) -> tuple[str, ...]:
        """The models of the same provider that went down a short time ago, sorted."""
        return tuple(sorted(self._down_names(_provider(model), now)))

    def _down_names(self, provider: str, now: datetime) -> Iterator[str]:
        for model, health in self._models.items():
            outage = health.outage
            if outage is None or outage.provider != provider:
                continue
            if now - outage.began_at <= self._limits.window:
                yield model


def _provider(model: str) -> str:
    return model.partition(":")[0]


def _recent(moments: list[datetime], now: datetime, window: timedelta) -> list[datetime]:
    return [moment for moment in moments if now - moment <= window]


def _outage(
    model: str,
    scope: Literal["model", "provider"],
    models: tuple[str, ...],
    reason: str,
    now: datetime,
) -> Outage:
    return Outage(
        provider=_provider(model), scope=scope, models=models, reason=reason, began_at=now
    )
