"""Spending: what was spent today, and the budgets that end it."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from msgspec import Struct

from metis.canonical.errors import BudgetExceededError
from metis.session.conversation import spent_in
from metis.store import Store

_MOST_SESSIONS = 10_000
_LATE = timedelta(seconds=5)
"""Another writer's clock may be behind by that much."""


class Budget(Struct, frozen=True, kw_only=True):
    """What may be spent; None sets no limit."""

    session_usd: Decimal | None = None
    day_usd: Decimal | None = None
    """For all sessions of the store together, by the day of UTC."""
    warn_at: Decimal = Decimal("0.8")
    """The part of a budget from which on it is told how much is left."""

    def limits(self, session_usd: Decimal, day_usd: Decimal) -> Iterator["Limit"]:
        """The limits that are set, each with what was spent of it."""
        if self.session_usd is not None:
            yield Limit("session", self.session_usd, session_usd)
        if self.day_usd is not None:
            yield Limit("day", self.day_usd, day_usd)

    def check(self, session_usd: Decimal, day_usd: Decimal, next_usd: Decimal) -> Iterator[str]:
        """A warning for each budget that is nearly spent.

        Raises:
            BudgetExceededError: one is spent, or the next call alone would overdraw it.
        """
        for limit in self.limits(session_usd, day_usd):
            if limit.spent_usd >= limit.limit_usd or limit.spent_usd + next_usd > limit.limit_usd:
                raise BudgetExceededError(
                    limit.scope, limit_usd=limit.limit_usd, spent_usd=limit.spent_usd
                )
            if limit.spent_usd >= limit.limit_usd * self.warn_at:
                yield (
                    f"{limit.spent_usd} of the {limit.limit_usd} USD of this {limit.scope} are "
                    "spent"
                )


class Limit(Struct, frozen=True):
    """One budget and what was spent of it."""

    scope: str
    limit_usd: Decimal
    spent_usd: Decimal


class Spending:
    """What all sessions of a store spent today; only what is new is read."""

    def __init__(self, store: Store, *, now: Callable[[], datetime]) -> None:
        self._store = store
        self._now = now
        self._day = now().astimezone(UTC).date()
        self._read_until: dict[str, int] = {}
        self._looked_at: datetime | None = None
        self._spent = Decimal(0)

    async def today_usd(self) -> Decimal:
        """What this day of UTC has cost so far."""
        now = self._now().astimezone(UTC)
        if now.date() != self._day:
            self._day, self._spent, self._looked_at = now.date(), Decimal(0), None
        midnight = datetime.combine(self._day, datetime.min.time(), UTC)
        since = midnight if self._looked_at is None else max(midnight, self._looked_at - _LATE)
        for record in await self._store.sessions(_MOST_SESSIONS):
            if record.updated_at < since:
                break
            await self._read(record.id, midnight)
        self._looked_at = now
        return self._spent

    async def _read(self, session_id: str, midnight: datetime) -> None:
        after = self._read_until.get(session_id, 0)
        for entry in await self._store.history(session_id, after=after):
            self._read_until[session_id] = max(entry.seq, self._read_until.get(session_id, 0))
            if entry.created_at >= midnight:
                self._spent += spent_in(entry)
