"""The live tail: pages that follow conversations share one query, however many there are."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from metis.canonical.errors import StoreError
from metis.store import Store
from metis.store.database import Transaction

POLL_S = 0.5
"""How often the store is polled for changes."""
MAX_TAILS = 200
# The date of a session may lag a second behind; its newest message and entry do not.
_NEWEST = (
    "SELECT s.id, s.updated_at, "
    "(SELECT max(created_at) FROM messages WHERE session_id = s.id), "
    "(SELECT max(seq) FROM journal WHERE session_id = s.id) FROM sessions s WHERE s.id IN "
)


class LiveTails:
    """Notifies pages when the conversation that they follow has changed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._wakers: dict[str, set[asyncio.Event]] = {}
        self._task: asyncio.Task[None] | None = None
        self._count = 0

    @property
    def is_full(self) -> bool:
        """Whether no more pages can follow."""
        return self._count >= MAX_TAILS

    async def changes(self, session_id: str) -> AsyncGenerator[None]:
        """Yield at once, and whenever a conversation has changed or was deleted."""
        waker = asyncio.Event()
        self._wakers.setdefault(session_id, set()).add(waker)
        self._count += 1
        if self._task is None:
            self._task = asyncio.create_task(self._poll(), name="metis-viewer-tails")
        try:
            yield
            while True:
                await waker.wait()
                waker.clear()
                yield
        finally:
            self._count -= 1
            wakers = self._wakers[session_id]
            wakers.discard(waker)
            if not wakers:
                del self._wakers[session_id]
            if not self._wakers:
                self._stop()

    def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _poll(self) -> None:
        previous: dict[str, Sequence[Any]] = {}
        while True:
            ids = list(self._wakers)
            try:
                newest = await self._store.read(lambda t, ids=ids: _read_newest(t, ids))
            except StoreError:  # the database may be available again later
                await asyncio.sleep(POLL_S)
                continue
            for session_id in ids:
                # A page that subscribed after the last query may have missed a change.
                if session_id not in previous or previous[session_id] != newest.get(session_id):
                    for waker in self._wakers.get(session_id, ()):
                        waker.set()
            previous = {session_id: newest.get(session_id, ()) for session_id in ids}
            await asyncio.sleep(POLL_S)


def _read_newest(transaction: Transaction, ids: Sequence[str]) -> dict[str, Sequence[Any]]:
    marks = ", ".join("?" * len(ids))
    return {row[0]: row[1:] for row in transaction.run(f"{_NEWEST}({marks})", ids)}
