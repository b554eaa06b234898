"""Ids of tool calls on the wire: ours for theirs, theirs for ours, always the same.

A provider's id becomes a canonical one by a hash over session and id, so that the same history
gives the same ids every time it is read, in every process. The way back is remembered with the
message that holds the call; for other providers an id is derived from ours.
"""

import hashlib
import re
import string
from collections.abc import Collection
from functools import lru_cache
from itertools import count

from msgspec import Struct

from metis.canonical.ids import hashed_tool_id

TOOL_ID_PREFIX = "tu_"
"""How an id begins that we minted."""

_IDS_KEPT = 20_000  # a client sends its whole history again with every request
_USUAL = "[a-zA-Z0-9_-]+"
_ALNUM = string.digits + string.ascii_letters


@lru_cache(maxsize=_IDS_KEPT)
def canonical_tool_id(session_id: str, provider_id: str, occurrence: int = 0) -> str:
    """Our id for a provider's; `occurrence` tells calls apart that reuse an id in a later turn."""
    return hashed_tool_id(session_id, provider_id, str(occurrence))


def derived_id(tool_use_id: str, prefix: str) -> str:
    """An id for a call that the target did not make: its prefix, and what is unique of ours."""
    return prefix + tool_use_id.removeprefix(TOOL_ID_PREFIX)


class IdRule(Struct, frozen=True, kw_only=True):
    """Which ids of calls a provider takes."""

    prefix: str
    """How an id begins that is derived from ours."""
    pattern: str = _USUAL
    max_length: int = 64
    hash_length: int = 24
    """How many letters and digits stand in for an id that does not fit."""

    def fits(self, wire_id: str) -> bool:
        """Whether the provider takes an id."""
        return len(wire_id) <= self.max_length and bool(re.fullmatch(self.pattern, wire_id))

    def fits_all(self, wire_ids: Collection[str]) -> bool:
        """Whether the provider takes each of these ids; all at once, where that is simple."""
        if self.pattern != _USUAL:
            return all(map(self.fits, wire_ids))
        letters = "".join(wire_ids).replace("_", "").replace("-", "")
        are_letters = letters.isascii() and letters.isalnum()
        return (
            are_letters
            and len(min(wire_ids, key=len)) > 0
            and (len(max(wire_ids, key=len)) <= self.max_length)
        )

    def wire_id(self, tool_use_id: str, used: Collection[str] = ()) -> str:
        """The id for a call: derived from ours, or as it is, else a hash of it all (T02, T13)."""
        is_ours = tool_use_id.startswith(TOOL_ID_PREFIX)
        derived = derived_id(tool_use_id, self.prefix) if is_ours else tool_use_id
        if self.fits(derived) and derived not in used:
            return derived
        candidates = (_hashed(f"{tool_use_id}{salt or ''}", self.hash_length) for salt in count())
        return next(self.prefix + one for one in candidates if self.prefix + one not in used)


def _hashed(text: str, length: int) -> str:
    number = int.from_bytes(hashlib.sha256(text.encode()).digest(), "big")
    letters: list[str] = []
    for _ in range(length):
        number, rest = divmod(number, len(_ALNUM))
        letters.append(_ALNUM[rest])
    return "".join(letters)


class CallIds:
    """Our ids for the calls of one conversation, by the order in which calls and results come.

    An id that comes again is another call (T08, T09), and an empty one names nothing (T10): what
    has no id of its own is told apart by its turn, `scope`, and its position there.
    """

    def __init__(self, session_id: str, scope: str = "") -> None:
        self._session_id = session_id
        self._scope = scope
        self._calls: dict[str, list[str]] = {}
        self._answered: dict[str, int] = {}

    def enter_response(self, answer: str) -> None:
        """Take the ids that follow for those of one answer: hosts count anew in each (T09)."""
        self._session_id = f"{self._session_id}\0{answer}"

    def of_call(self, wire_id: str, *, is_id: bool = True) -> str:
        """Our id for the next call that goes by this id or name."""
        key = wire_id if wire_id and is_id else f"{self._scope}\0{wire_id}"
        calls = self._calls.get(key)
        if calls is None:
            ours = canonical_tool_id(self._session_id, key)
            self._calls[key] = [ours]
        else:
            ours = canonical_tool_id(self._session_id, key, len(calls))
            calls.append(ours)
        return ours

    def of_result(self, wire_id: str, *, is_id: bool = True) -> str:
        """Our id for the call that a result answers: the oldest that waits for one, or the last."""
        key = wire_id if wire_id and is_id else f"{self._scope}\0{wire_id}"
        calls = self._calls.get(key)
        if calls is None:
            return canonical_tool_id(self._session_id, key)
        number = self._answered.get(key, 0)
        self._answered[key] = number + 1
        return calls[number] if number < len(calls) else calls[-1]
