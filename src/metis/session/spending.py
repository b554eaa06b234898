"""Spending: what all sessions of a store spent today and this month."""

import asyncio
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

from metis.events import Spent
from metis.session.conversation import spent_in
from metis.store import Store

_FEW_SESSIONS = 16
_LATE = timedelta(seconds=5)
"""Another writer's clock may be behind by that much."""


class Spending:
    """Adds up what the sessions of a store have cost; only what is new is read."""

    def __init__(self, store: Store, *, now: Callable[[], datetime]) -> None:
        self._store = store
        self._now = now
        self._by_day: dict[date, Decimal] = {}
        self._read_until: dict[str, int] = {}
        self._looked_at: datetime | None = None
        self._lock = asyncio.Lock()

    async def spent(self, session_usd: Decimal = Decimal(0)) -> Spent:
        """What was spent up to now, by days of UTC; the session knows its own."""
        now = self._now().astimezone(UTC)
        async with self._lock:  # two at once would count the same twice
            await self._catch_up(now)
        month = [
            amount
            for day, amount in self._by_day.items()
            if (day.year, day.month) == (now.year, now.month)
        ]
        return Spent(
            session_usd=session_usd,
            day_usd=self._by_day.get(now.date(), Decimal(0)),
            month_usd=sum(month, Decimal(0)),
        )

    async def _catch_up(self, now: datetime) -> None:
        first = datetime(now.year, now.month, 1, tzinfo=UTC)
        since = first if self._looked_at is None else self._looked_at - _LATE
        for session_id in await self._changed(since):
            await self._read(session_id)
        self._looked_at = now

    async def _changed(self, since: datetime) -> list[str]:
        """The sessions that changed since a time: mostly few of many, so few are asked for."""
        limit = _FEW_SESSIONS
        while True:
            records = await self._store.sessions(limit)
            changed = [record.id for record in records if record.updated_at >= since]
            if len(changed) < len(records) or len(records) < limit:
                return changed
            limit *= 8

    async def _read(self, session_id: str) -> None:
        after = self._read_until.get(session_id, 0)
        for entry in await self._store.history(session_id, after=after):
            self._read_until[session_id] = entry.seq
            day = entry.created_at.date()
            self._by_day[day] = self._by_day.get(day, Decimal(0)) + spent_in(entry)
