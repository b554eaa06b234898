"""Identifiers: monotonic ULIDs, and the ids of tool calls.

A ULID is 26 characters of Crockford's base 32: 48 bits of milliseconds, then 80 random bits. Ids
from one source always increase: within one millisecond, and after the clock was set back, the last
id is counted up instead of drawing anew. This is the one file of a pure room with a clock and
randomness; both can be passed in.
"""

import hashlib
import os
import re
import threading
import time
from collections.abc import Callable

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_VALUE = {letter: value for value, letter in enumerate(_ALPHABET)}
_RANDOM_BITS = 80
_LETTERS_OF_HASH = 25
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]
_LAST_PAIR = len(_PAIRS) - 1
_PART = (1 << 50) - 1
_END = 1 << 128
_sha256 = hashlib.sha256

ULID_PATTERN = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")
"""What a ULID looks like."""

TOOL_USE_ID_PATTERN = re.compile(r"tu_[0-9A-HJKMNP-TV-Z]{26}")
"""What a minted tool id looks like."""

CANONICAL_TOOL_ID_PATTERN = re.compile(r"tu_[0-9A-HJKMNP-TV-Z]+")
"""What tells our tool ids from those of providers; short ones stand in examples and imports."""


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _random_bits() -> int:
    return int.from_bytes(os.urandom(_RANDOM_BITS // 8), "big")


def _random_step() -> int:
    return int.from_bytes(os.urandom(8), "big")


class UlidSource:
    """Mints ULIDs that always increase, whatever the clock does and however many threads ask.

    `after` continues behind an id of an earlier run: the ids of a session increase over restarts.
    """

    def __init__(
        self,
        *,
        now_ms: Callable[[], int] = _now_ms,
        random_bits: Callable[[], int] = _random_bits,
        after: str | None = None,
    ) -> None:
        self._now_ms = now_ms
        self._random_bits = random_bits
        self._lock = threading.Lock()
        self._set(-1 if after is None else ulid_to_int(after))

    def mint(self) -> str:
        """A new ULID, greater than every one that this source gave before."""
        with self._lock:
            now = self._now_ms()
            if now > self._moment or self._pair == _LAST_PAIR:
                self._set(self._next(now))
            else:
                self._pair += 1
            return self._stem + _PAIRS[self._pair]

    def mint_many(self, count: int) -> list[str]:
        """Several new ULIDs at once, in order; cheaper than one by one."""
        if count < 1:
            return []
        with self._lock:
            number = self._next(self._now_ms())
            self._set(number + count - 1)
        minted: list[str] = []
        while len(minted) < count:  # ids that differ in the last two letters only share the rest
            stem, pair = int_to_ulid(number)[:-2], number % len(_PAIRS)
            minted += [stem + last for last in _PAIRS[pair : pair + count - len(minted)]]
            number += len(_PAIRS) - pair
        return minted

    def _next(self, now: int) -> int:
        """The number of the next id: drawn anew in a new millisecond, else counted up."""
        if now > self._moment:
            return (now << _RANDOM_BITS) | self._random_bits()
        return self._last() + 1

    def _last(self) -> int:
        return self._number + self._pair

    def _set(self, last: int) -> None:
        """Remember the last id: its moment, its letters but for the last two, and those."""
        self._stem = "" if last < 0 else int_to_ulid(last)[:-2]
        self._moment = last >> _RANDOM_BITS
        self._pair = last % len(_PAIRS)
        self._number = last - self._pair

    def follow(self, ulid: str) -> None:
        """From now on mint behind this id, too."""
        with self._lock:
            self._set(max(self._last(), ulid_to_int(ulid)))


_source = UlidSource()


def new_ulid() -> str:
    """A new ULID, greater than every one that this process minted before."""
    return _source.mint()


def new_ulid_after(ulid: str) -> str:
    """A new ULID behind one that somebody else minted, by a random step.

    They count up from theirs within one millisecond; a random step keeps us from their next ids.
    """
    fresh = _source.mint()
    return fresh if fresh > ulid else int_to_ulid(ulid_to_int(ulid) + 1 + _random_step())


def new_ulids(count: int) -> list[str]:
    """Several new ULIDs at once, in order."""
    return _source.mint_many(count)


def new_tool_use_id() -> str:
    """A new id for a tool call: `tu_` and a ULID."""
    return f"tu_{_source.mint()}"


def hashed_tool_id(*parts: str) -> str:
    """A tool id that is the same for the same parts, in every process."""
    # Hexadecimal digits are letters of a ULID, too, and cheaper to come by.
    text = "\0".join(parts)
    key = text.encode() if text.isascii() else text.encode("utf-8", "surrogatepass")
    return "tu_0" + _sha256(key).hexdigest()[:_LETTERS_OF_HASH].upper()


def new_session_id() -> str:
    """A new id for a session: `sess_` and a ULID."""
    return f"sess_{_source.mint()}"


def is_ulid(text: str) -> bool:
    """Whether a text is a well-formed ULID."""
    return ULID_PATTERN.fullmatch(text) is not None


def is_tool_use_id(text: str) -> bool:
    """Whether a text is a tool id as we mint them."""
    return TOOL_USE_ID_PATTERN.fullmatch(text) is not None


def ulid_to_int(ulid: str) -> int:
    """The 128-bit number that a ULID spells."""
    if not is_ulid(ulid):
        raise ValueError(f"{ulid!r} is not a ULID")
    number = 0
    for letter in ulid:
        number = (number << 5) | _VALUE[letter]
    return number


def int_to_ulid(number: int) -> str:
    """The ULID that spells a 128-bit number."""
    if not 0 <= number < _END:
        raise ValueError(f"{number} does not fit into a ULID")
    # Three parts that are small numbers: shifting those is faster than shifting a large one.
    a, b, c = number >> 100, number >> 50 & _PART, number & _PART
    p = _PAIRS
    return (
        f"{p[a >> 20]}{p[a >> 10 & 1023]}{p[a & 1023]}"
        f"{p[b >> 40]}{p[b >> 30 & 1023]}{p[b >> 20 & 1023]}{p[b >> 10 & 1023]}{p[b & 1023]}"
        f"{p[c >> 40]}{p[c >> 30 & 1023]}{p[c >> 20 & 1023]}{p[c >> 10 & 1023]}{p[c & 1023]}"
    )


def ulid_time_ms(ulid: str) -> int:
    """The milliseconds since 1970 that a ULID was minted at."""
    return ulid_to_int(ulid) >> _RANDOM_BITS
