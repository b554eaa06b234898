"""Ids of tool calls: deterministic conversion between tool_use_ids (ours) and wire ids.

A tool_use_id is a hash of session and wire id, so that the same history gives the same ids each
time it is decoded, in every process. The wire id is stored in the original form of the message with
the call; for other providers a wire id is derived from the tool_use_id.
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
"""The prefix of tool_use_ids that metis generates."""

# A client repeats its history with every request, so that the same ids are hashed again.
_CACHE_SIZE = 20_000
# Anthropic's pattern, which is also valid for most other providers.
_USUAL_PATTERN = "[a-zA-Z0-9_-]+"
_ALNUM = string.digits + string.ascii_letters


@lru_cache(maxsize=_CACHE_SIZE)
def canonical_tool_id(session_id: str, provider_id: str, occurrence: int = 0) -> str:
    """Return the tool_use_id for a wire id; `occurrence` counts earlier calls with the same one."""
    return hashed_tool_id(session_id, provider_id, str(occurrence))


def next_tool_id(scope: str, wire_id: str, counts: dict[str, int]) -> str:
    """Return the tool_use_id for the next call of a response; `counts` are the calls by wire id.

    Without the count, a response that repeats a wire id would contain two calls with the same
    tool_use_id, which stores reject (T09).
    """
    occurrence = counts.get(wire_id, 0)
    counts[wire_id] = occurrence + 1
    return canonical_tool_id(scope, wire_id, occurrence)


def derived_id(tool_use_id: str, prefix: str) -> str:
    """Return a wire id, with the prefix of a protocol, for a call of another provider."""
    return prefix + tool_use_id.removeprefix(TOOL_ID_PREFIX)


class IdRule(Struct, frozen=True, kw_only=True):
    """The ids of calls that a provider accepts."""

    prefix: str
    """The prefix of wire ids that are derived from tool_use_ids."""
    pattern: str = _USUAL_PATTERN
    max_length: int = 64
    hash_length: int = 24
    """The length of the hash that replaces an id which the provider does not accept."""

    def fits(self, wire_id: str) -> bool:
        """Whether the provider accepts an id."""
        return len(wire_id) <= self.max_length and bool(re.fullmatch(self.pattern, wire_id))

    def fits_all(self, wire_ids: Collection[str]) -> bool:
        """Whether the provider accepts all of these ids."""
        # Checking thousands of ids as one string is ten times as fast as one by one.
        if self.pattern != _USUAL_PATTERN:
            return all(map(self.fits, wire_ids))
        joined = "".join(wire_ids).replace("_", "").replace("-", "")
        if not (joined.isascii() and joined.isalnum()):
            return False
        return all(wire_ids) and len(max(wire_ids, key=len)) <= self.max_length

    def wire_id(self, tool_use_id: str, used: Collection[str] = ()) -> str:
        """Return the wire id for a call: derived from its tool_use_id if accepted, else a hash.

        Some providers reject long ids or characters such as a colon (T02, T13).
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
    """Assigns tool_use_ids to the calls and results of one conversation, in their order.

    A repeated wire id is another call (T08, T09). A call with an empty wire id is identified by its
    name and position within `scope` (T10).
    """

    def __init__(self, session_id: str, scope: str = "") -> None:
        self._session_id = session_id
        self._scope = scope
        self._calls: dict[str, list[str]] = {}
        self._answered: dict[str, int] = {}
        # The keys whose lists belong to this object alone; None as long as there is no copy.
        self._unshared: set[str] | None = None

    def copy(self) -> "CallIds":
        """Return a copy that continues from this state; lists are copied when first changed."""
        other = CallIds(self._session_id, self._scope)
        other._calls, other._answered = self._calls.copy(), self._answered.copy()
        self._unshared, other._unshared = set(), set()
        return other

    def enter_response(self, response: str) -> None:
        """Scope later ids to one response: some hosts number the calls of each from 0 (T09)."""
        self._session_id = f"{self._session_id}\0{response}"

    def of_call(self, wire_id: str, *, is_id: bool = True) -> str:
        """Return the tool_use_id of the next call with this wire id; without `is_id`, this name."""
        # Wire ids contain no NUL byte, so that keys of names and of ids never collide.
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
        """Return the tool_use_id for a result: that of the oldest unanswered call, or the last."""
        key = wire_id if wire_id and is_id else f"{self._scope}\0{wire_id}"
        calls = self._calls.get(key)
        if calls is None:
            return canonical_tool_id(self._session_id, key)
        number = self._answered.get(key, 0)
        self._answered[key] = number + 1
        return calls[number] if number < len(calls) else calls[-1]


# Up to this number of calls a linear search is faster than the queues.
_FEW_CALLS = 8


class WaitingCall(Struct, frozen=True, gc=False):
    """A call that waits for its result."""

    tool_use_id: str
    name: str
    wire_id: str


class WaitingCalls:
    """The calls without a result, in protocols that match results by id, by name or by order.

    A few calls are searched linearly. For more there is a queue per id and per name: a hostile
    body of 10 MB contains 100,000 calls and results, and a linear search would be quadratic.
    """

    def __init__(self) -> None:
        self._calls: dict[str, WaitingCall] = {}
        self._queues: dict[tuple[str, str | None], deque[str]] | None = None

    def copy(self) -> "WaitingCalls":
        """Return an independent copy of the calls that still wait for a result."""
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
        by_name: list[tuple[str, str | None]] = [("no_id", call.name), ("no_id", None)]
        keys += [("id", call.wire_id)] if call.wire_id else by_name
        for key in keys:
            queues.setdefault(key, deque()).append(call.tool_use_id)

    def take(self, wire_id: str, name: str | None) -> tuple[WaitingCall, bool] | None:
        """Remove the call that a result belongs to; return it, and whether it was the oldest.

        A call with the same wire id is preferred. If no call has this id, the client invented it:
        then the oldest call without an id matches that has the same name, or any name if the result
        has none. Returns None if no call matches.
        """
        if self._queues is None:
            oldest = next(iter(self._calls), None)
            if oldest is not None and wire_id and self._calls[oldest].wire_id == wire_id:
                return self._calls.pop(oldest), True  # as nearly always: results come in order
            tool_use_id = self._find(wire_id, name)
        else:
            oldest = self._first(self._queues, ("all", None))
            keys = [("id", wire_id), ("no_id", name)] if wire_id else [("all", name)]
            candidates = (self._first(self._queues, key) for key in keys)
            tool_use_id = next((call for call in candidates if call is not None), None)
        if tool_use_id is None:
            return None
        return self._calls.pop(tool_use_id), tool_use_id == oldest

    def _find(self, wire_id: str, name: str | None) -> str | None:
        match_by_name = None
        for tool_use_id, call in self._calls.items():
            if wire_id and call.wire_id == wire_id:
                return tool_use_id
            has_other_id = bool(wire_id and call.wire_id)
            if match_by_name is None and not has_other_id and name in (None, call.name):
                match_by_name = tool_use_id
                if not wire_id:
                    break
        return match_by_name

    def clear(self) -> None:
        """Remove all calls."""
        self._calls, self._queues = {}, None

    def drop_without_id(self) -> None:
        """Remove the calls without a wire id, which only name or order identifies."""
        self._calls = {key: call for key, call in self._calls.items() if call.wire_id}

    def _first(
        self, queues: dict[tuple[str, str | None], deque[str]], key: tuple[str, str | None]
    ) -> str | None:
        """Return the oldest waiting call of a queue, and remove answered calls before it."""
        queue = queues.get(key)
        while queue:
            if queue[0] in self._calls:
                return queue[0]
            queue.popleft()
        return None
