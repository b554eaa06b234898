"""Ids of tool calls: our id for a wire id, and the wire id for ours, always the same.

A wire id becomes ours by a hash over session and id, so that the same history gives the same ids
each time it is decoded, in every process. The wire id is stored with the message that holds the
call; other providers get one that is derived from ours.
"""

import hashlib
import re
import string
from collections import deque
from collections.abc import Collection
from functools import lru_cache
from itertools import count

from msgspec import Struct

from metis.canonical.ids import hashed_tool_id

TOOL_ID_PREFIX = "tu_"
"""The start of ids that metis made."""

_CACHE_SIZE = 20_000  # a client sends its whole history again with every request
_USUAL_PATTERN = "[a-zA-Z0-9_-]+"
_ALNUM = string.digits + string.ascii_letters


@lru_cache(maxsize=_CACHE_SIZE)
def canonical_tool_id(session_id: str, provider_id: str, occurrence: int = 0) -> str:
    """Return our id for a wire id; `occurrence` counts the calls with the same wire id."""
    return hashed_tool_id(session_id, provider_id, str(occurrence))


def next_tool_id(scope: str, wire_id: str, counts: dict[str, int]) -> str:
    """Return our id for the next call of a response; `counts` has the calls so far, by wire id.

    A response that repeats an id would else hold two calls of one id, which no store accepts (T09).
    """
    occurrence = counts.get(wire_id, 0)
    counts[wire_id] = occurrence + 1
    return canonical_tool_id(scope, wire_id, occurrence)


def derived_id(tool_use_id: str, prefix: str) -> str:
    """Return a wire id for a call of another provider."""
    return prefix + tool_use_id.removeprefix(TOOL_ID_PREFIX)


class IdRule(Struct, frozen=True, kw_only=True):
    """The ids of calls that a provider accepts."""

    prefix: str
    """The start of ids that are derived from ours."""
    pattern: str = _USUAL_PATTERN
    max_length: int = 64
    hash_length: int = 24
    """The number of characters of a hash that replaces an id which is not accepted."""

    def fits(self, wire_id: str) -> bool:
        """Whether the provider accepts an id."""
        return len(wire_id) <= self.max_length and bool(re.fullmatch(self.pattern, wire_id))

    def fits_all(self, wire_ids: Collection[str]) -> bool:
        """Whether the provider accepts all of these ids."""
        # A history may have thousands; joined they are checked ten times as fast as one by one.
        if self.pattern != _USUAL_PATTERN:
            return all(map(self.fits, wire_ids))
        joined = "".join(wire_ids).replace("_", "").replace("-", "")
        if not (joined.isascii() and joined.isalnum()):
            return False
        return all(wire_ids) and len(max(wire_ids, key=len)) <= self.max_length

    def wire_id(self, tool_use_id: str, used: Collection[str] = ()) -> str:
        """Return the wire id for a call: derived from ours if that is accepted, else a hash.

        Some providers refuse long ids or characters such as a colon (T02, T13).
        """
        is_ours = tool_use_id.startswith(TOOL_ID_PREFIX)
        derived = derived_id(tool_use_id, self.prefix) if is_ours else tool_use_id
        if self.fits(derived) and derived not in used:
            return derived
        hashes = (_hash(f"{tool_use_id}{salt or ''}", self.hash_length) for salt in count())
        candidates = (self.prefix + digits for digits in hashes)
        return next(wire_id for wire_id in candidates if wire_id not in used)


def _hash(text: str, length: int) -> str:
    number = int.from_bytes(hashlib.sha256(text.encode()).digest(), "big")
    digits: list[str] = []
    for _ in range(length):
        number, digit = divmod(number, len(_ALNUM))
        digits.append(_ALNUM[digit])
    return "".join(digits)


class CallIds:
    """Gives the calls and results of one conversation our ids, in the order in which they come.

    A wire id that comes again is another call (T08, T09). A call with an empty one is identified by
    its name and position within `scope` (T10).
    """

    def __init__(self, session_id: str, scope: str = "") -> None:
        self._session_id = session_id
        self._scope = scope
        self._calls: dict[str, list[str]] = {}
        self._answered: dict[str, int] = {}
        # The keys whose lists no copy shares; None while there is no copy.
        self._unshared: set[str] | None = None

    def copy(self) -> "CallIds":
        """Return ids that go on from here; lists are shared until one of the two changes them."""
        other = CallIds(self._session_id, self._scope)
        other._calls, other._answered = self._calls.copy(), self._answered.copy()
        self._unshared, other._unshared = set(), set()
        return other

    def enter_response(self, response: str) -> None:
        """Give later ids the scope of one response: some hosts restart counting in each (T09)."""
        self._session_id = f"{self._session_id}\0{response}"

    def of_call(self, wire_id: str, *, is_id: bool = True) -> str:
        """Return our id for the next call with this wire id or, unless `is_id`, this name."""
        # A null byte cannot be part of a wire id, so that names and ids never collide.
        key = wire_id if wire_id and is_id else f"{self._scope}\0{wire_id}"
        calls = self._calls.get(key)
        if calls is None:
            tool_use_id = canonical_tool_id(self._session_id, key)
            self._calls[key] = [tool_use_id]
            if self._unshared is not None:
                self._unshared.add(key)
        else:
            tool_use_id = canonical_tool_id(self._session_id, key, len(calls))
            if self._unshared is not None and key not in self._unshared:
                self._unshared.add(key)
                calls = self._calls[key] = [*calls]
            calls.append(tool_use_id)
        return tool_use_id

    def of_result(self, wire_id: str, *, is_id: bool = True) -> str:
        """Return our id of the call of a result: the oldest that waits for one, or the last."""
        key = wire_id if wire_id and is_id else f"{self._scope}\0{wire_id}"
        calls = self._calls.get(key)
        if calls is None:
            return canonical_tool_id(self._session_id, key)
        number = self._answered.get(key, 0)
        self._answered[key] = number + 1
        return calls[number] if number < len(calls) else calls[-1]


_FEW_CALLS = 8


class WaitingCall(Struct, frozen=True, gc=False):
    """A call that waits for its result."""

    tool_use_id: str
    name: str
    wire_id: str


class WaitingCalls:
    """The calls that wait for results, in protocols that pair them by id, by name or by order.

    A few calls are looked through. More have a queue per id and per name, so that no result has to
    look through all calls: a body of 10 MB holds 100,000 of each.
    """

    def __init__(self) -> None:
        self._calls: dict[str, WaitingCall] = {}
        self._queues: dict[tuple[str, str | None], deque[str]] | None = None

    def copy(self) -> "WaitingCalls":
        """Return the calls that wait now; calls that have their results are left out."""
        other = WaitingCalls()
        for call in self._calls.values():
            other.add(call)
        return other

    def add(self, call: WaitingCall) -> None:
        """Add a call."""
        self._calls[call.tool_use_id] = call
        if self._queues is not None:
            self._enqueue(self._queues, call)
        elif len(self._calls) > _FEW_CALLS:
            self._queues = {}
            for waiting in self._calls.values():
                self._enqueue(self._queues, waiting)

    def _enqueue(self, queues: dict[tuple[str, str | None], deque[str]], call: WaitingCall) -> None:
        keys: list[tuple[str, str | None]] = [("all", call.name), ("all", None)]
        keys += [("id", call.wire_id)] if call.wire_id else [("free", call.name), ("free", None)]
        for key in keys:
            queues.setdefault(key, deque()).append(call.tool_use_id)

    def take(self, wire_id: str, name: str | None) -> tuple[WaitingCall, bool] | None:
        """Remove the oldest call that fits a result; return it, and whether it was the oldest.

        A call with the same id fits best. An id that no call has was made up by the client: then
        calls without an id fit, by name or, if the result has no name, all of them.
        """
        if self._queues is None:
            oldest = next(iter(self._calls), None)
            tool_use_id = self._find(wire_id, name)
        else:
            oldest = self._first(self._queues, ("all", None))
            keys = [("id", wire_id), ("free", name)] if wire_id else [("all", name)]
            candidates = (self._first(self._queues, key) for key in keys)
            tool_use_id = next((call for call in candidates if call is not None), None)
        if tool_use_id is None:
            return None
        return self._calls.pop(tool_use_id), tool_use_id == oldest

    def _find(self, wire_id: str, name: str | None) -> str | None:
        free = None
        for tool_use_id, call in self._calls.items():
            if wire_id and call.wire_id == wire_id:
                return tool_use_id
            is_free = not (wire_id and call.wire_id)
            if free is None and is_free and name in (None, call.name):
                free = tool_use_id
                if not wire_id:
                    break
        return free

    def clear(self) -> None:
        """Remove all calls."""
        self._calls, self._queues = {}, None

    def drop_without_id(self) -> None:
        """Remove the calls that only their name or order identifies."""
        self._calls = {key: call for key, call in self._calls.items() if call.wire_id}

    def _first(
        self, queues: dict[tuple[str, str | None], deque[str]], key: tuple[str, str | None]
    ) -> str | None:
        """Return the oldest call of a queue; calls that others have removed leave it here."""
        queue = queues.get(key)
        while queue:
            if queue[0] in self._calls:
                return queue[0]
            queue.popleft()
        return None
