"""Exchanges that wait for the recorder: few in memory, the others in the files of a backlog.

Answers come first, so that exchanges wait while the gateway is busy. The queue bounds what they
take: beyond some bytes, or after half a second, they are saved in files; beyond a limit of the
files, exchanges lose their requests, and only then are they dropped.
"""

import logging
import time
from collections import deque
from collections.abc import Iterator, Sequence
from enum import Enum
from itertools import islice

from msgspec import Struct

from metis.canonical.errors import DecodeError
from metis.gateway.backlog import Backlog, Place
from metis.gateway.client_sessions import Join
from metis.gateway.exchange import Exchange

log = logging.getLogger("metis.gateway")

MAX_WAITING = 11_000
"""How many exchanges wait before detail is shed; each takes about 750 bytes of memory."""
MEMORY_BYTES = 2 * 1024 * 1024
"""How many bytes of exchanges wait in memory; without a backlog detail is shed beyond that."""
BACKLOG_BYTES = 512 * 1024 * 1024
"""How many bytes of exchanges wait in files before detail is shed."""
RECENT = 1024
RECENT_BYTES = 8 * 1024 * 1024
"""How many exchanges, and bytes of them, are held for look-ups without a store."""
SAVE_AFTER_S = 0.4
"""How often exchanges that are only in memory are saved: they are durable within a second."""
_RETRY_S = 10.0
"""How long exchanges wait in memory, within its bounds, after a file could not be written."""
_OBJECT_BYTES = 3000
"""What the objects of an exchange take beside its bytes."""
_NEWEST = 8
"""How many of the exchanges with one history may be the parent of a request: a client goes on with
a response that it got lately, while another may have sent one request ten thousand times."""
_History = tuple[str, str]


class Accepted(Enum):
    """What became of an exchange that ended."""

    WHOLE = "whole"
    BRIEF = "brief"
    DROPPED = "dropped"


class Waiting(Struct, gc=False, eq=False):
    """One exchange that waits."""

    size: int
    since: float
    id: str = ""
    exchange: Exchange | None = None
    """None while it is in a file."""
    place: Place | None = None
    history: _History | None = None
    """Scope and digest of the history of its request."""
    is_adopted: bool = False
    """Whether another process saved it, which may have stored it as well."""
    is_taken: bool = False


class WaitingExchanges:
    """The queue in front of the recorder."""

    def __init__(
        self,
        backlog: Backlog | None = None,
        *,
        max_waiting: int = MAX_WAITING,
        memory_bytes: int = MEMORY_BYTES,
        backlog_bytes: int = BACKLOG_BYTES,
    ) -> None:
        self._backlog = backlog
        self._max_waiting = max_waiting
        self._memory_bytes = memory_bytes
        self._backlog_bytes = backlog_bytes
        self._queue: deque[Waiting] = deque()
        self._unsaved: deque[Waiting] = deque()
        self._by_id: dict[str, Waiting] = {}
        self._by_history: dict[_History, dict[str, Waiting]] = {}
        self._bytes = 0
        self._count = 0
        self._unsavable_until = 0.0

    def __len__(self) -> int:
        return self._count

    @property
    def bytes_in_memory(self) -> int:
        """About how much memory the exchanges take."""
        return self._bytes

    @property
    def bytes_in_files(self) -> int:
        """How many bytes wait in files."""
        return 0 if self._backlog is None else self._backlog.size

    @property
    def _can_save(self) -> bool:
        return self._backlog is not None and time.monotonic() >= self._unsavable_until

    def add(self, exchange: Exchange) -> Accepted:
        """Add an exchange, unless too much waits already."""
        accepted = Accepted.WHOLE
        in_files = self.bytes_in_files
        is_full = self._bytes >= self._memory_bytes and not self._can_save
        if (
            self._count >= 2 * self._max_waiting
            or in_files >= 2 * self._backlog_bytes
            or (is_full and self._bytes >= 2 * self._memory_bytes)
        ):
            return Accepted.DROPPED
        if self._count >= self._max_waiting or is_full or in_files >= self._backlog_bytes:
            exchange.request, exchange.request_body, exchange.sent_body = None, b"", b""
            accepted = Accepted.BRIEF
        join: Join | None = exchange.facts.get("join")
        waiting = Waiting(exchange_bytes(exchange), time.monotonic(), exchange.id, exchange)
        if join is not None and join.chain.digests and accepted is Accepted.WHOLE:
            waiting.history = (join.scope, bare_digest(join.chain.digests[-1]))
            self._by_history.setdefault(waiting.history, {})[waiting.id] = waiting
        self._by_id[exchange.id] = waiting
        self._queue.append(waiting)
        self._unsaved.append(waiting)
        self._count += 1
        self._bytes += waiting.size
        if self._bytes > self._memory_bytes:
            self.save()
        return accepted

    def adopt(self) -> None:
        """Add what dead processes left in files, in front of everything else."""
        if self._backlog is None:
            return
        adopted = [
            Waiting(place.length, 0.0, place=place, is_adopted=True)
            for place in self._backlog.adopt()
        ]
        self._queue.extendleft(reversed(adopted))
        self._count += len(adopted)

    def save(self) -> None:
        """Save what is only in memory in the files of the backlog, also what is being stored."""
        unsaved, backlog = self._unsaved, self._backlog
        batch = [(one, one.exchange) for one in unsaved if one.exchange is not None]
        if backlog is None or not batch:
            unsaved.clear()
            return
        if not self._can_save:
            return
        try:
            places = backlog.save([exchange for _, exchange in batch])
        except OSError as error:
            log.warning("exchanges cannot be saved: %s", error)
            self._unsavable_until = time.monotonic() + _RETRY_S
            return
        for (waiting, _), place in zip(batch, places, strict=True):
            waiting.place = place
            if not waiting.is_taken:
                waiting.exchange = None
                self._bytes -= waiting.size
        unsaved.clear()

    @property
    def has_unsaved(self) -> bool:
        """Whether exchanges may be in memory only."""
        return bool(self._unsaved)

    def can_wait(self, seconds: float) -> bool:
        """Whether all may wait longer: none has waited so long, and there is room for more."""
        queue = self._queue
        while queue and queue[0].is_taken:
            queue.popleft()
        is_young = not queue or time.monotonic() - queue[0].since < seconds
        has_room = self._count < self._max_waiting // 2
        return is_young and has_room and self.bytes_in_files < self._backlog_bytes // 2

    def find(self, exchange_id: str) -> Exchange | None:
        """Return an exchange that is not stored yet."""
        waiting = self._by_id.get(exchange_id)
        return None if waiting is None else self._load(waiting)

    def take(self) -> tuple[Waiting, Exchange] | None:
        """Take the oldest exchange; None if none waits."""
        while self._queue:
            waiting = self._queue.popleft()
            if not waiting.is_taken and (exchange := self._take_one(waiting)) is not None:
                return waiting, exchange
        return None

    def take_parents(
        self, scope: str, digests: Sequence[str]
    ) -> Iterator[tuple[Waiting, Exchange]]:
        """Take the exchanges that a request may continue: those with its longest history.

        What these continue was taken when their requests came.
        """
        by_history = self._by_history
        if not by_history:
            return
        for digest in reversed(digests):
            same = by_history.get((scope, bare_digest(digest)))
            if same is not None:
                newest = list(islice(reversed(same.values()), _NEWEST))
                for waiting in reversed(newest):
                    exchange = self._take_one(waiting)
                    if exchange is not None:
                        yield waiting, exchange
                return

    def _take_one(self, waiting: Waiting) -> Exchange | None:
        waiting.is_taken = True
        exchange = self._load(waiting)
        self._count -= 1
        if waiting.history is not None:
            same = self._by_history[waiting.history]
            del same[waiting.id]
            if not same:
                del self._by_history[waiting.history]
        if exchange is None:
            self.release(waiting)
        elif waiting.exchange is None:
            waiting.exchange = exchange
            self._bytes += waiting.size
        return exchange

    def _load(self, waiting: Waiting) -> Exchange | None:
        if waiting.exchange is not None or waiting.place is None or self._backlog is None:
            return waiting.exchange
        try:
            return self._backlog.load(waiting.place)
        except (DecodeError, OSError) as error:
            log.warning("an exchange cannot be read: %s", error)
            return None

    def release(self, waiting: Waiting) -> None:
        """Forget an exchange that was taken, after it was stored."""
        self._by_id.pop(waiting.id, None)
        if waiting.exchange is not None:
            self._bytes -= waiting.size
            waiting.exchange = None
        if waiting.place is not None and self._backlog is not None:
            self._backlog.release(waiting.place)
            waiting.place = None

    def close(self) -> None:
        """Save what still waits, for the next process."""
        self.save()
        if self._backlog is not None:
            self._backlog.close()


class RecentExchanges:
    """The newest exchanges of a gateway without a store, for look-ups."""

    def __init__(self) -> None:
        self._exchanges: deque[Exchange] = deque()
        self._bytes = 0

    def add(self, exchange: Exchange) -> None:
        """Hold an exchange; the oldest beyond the limits are forgotten."""
        exchange.request, exchange.request_body, exchange.sent_body = None, b"", b""
        exchanges = self._exchanges
        exchanges.append(exchange)
        self._bytes += exchange_bytes(exchange)
        while len(exchanges) > RECENT or (self._bytes > RECENT_BYTES and len(exchanges) > 1):
            self._bytes -= exchange_bytes(exchanges.popleft())

    def find(self, exchange_id: str) -> Exchange | None:
        """Return an exchange by its id."""
        return next((one for one in self._exchanges if one.id == exchange_id), None)


def bare_digest(digest: str) -> str:
    """Return a digest without that of the system prompt, which may change between two requests."""
    return digest.partition(":")[0]


def exchange_bytes(exchange: Exchange) -> int:
    """Return about how much memory an exchange takes."""
    bodies = len(exchange.request_body) + len(exchange.sent_body)
    return _OBJECT_BYTES + bodies + sum(map(len, exchange.response_parts))
