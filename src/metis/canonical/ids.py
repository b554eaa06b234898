"""Identifiers: monotonic ULIDs, and the ids of tool calls.

A ULID is 26 characters of Crockford's base 32: 48 bits of milliseconds, then 80 random bits. Ids
from one source always increase: within one millisecond, and after the clock was set back, the last
id is incremented instead of generating a random one. This is the only module of the pure packages
that uses a clock and randomness; both can be passed in.
"""

import hashlib
import os
import re
import threading
import time
from collections.abc import Callable

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_CHARACTER_VALUES = {character: value for value, character in enumerate(_ALPHABET)}
_RANDOM_BITS = 80
# With a leading 0 these are the 26 characters of a ULID.
_HASH_DIGITS = 25
# Encoding two characters at a time halves the work.
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]
_LAST_PAIR = len(_PAIRS) - 1
_LOW_50_BITS = (1 << 50) - 1
_END = 1 << 128
_sha256 = hashlib.sha256

ULID_PATTERN = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")
"""Matches a ULID."""

CANONICAL_TOOL_ID_PATTERN = re.compile(r"tu_[0-9A-HJKMNP-TV-Z]+")
"""Matches any tool_use_id, but no wire ids; examples and imports contain shorter ones."""


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _random_bits() -> int:
    return int.from_bytes(os.urandom(_RANDOM_BITS // 8), "big")


def _random_step() -> int:
    return int.from_bytes(os.urandom(8), "big")


class UlidSource:
    """Mints increasing ULIDs, from any number of threads and even if the clock is set back.

    `after` is an id of an earlier process, so that the ids of a session increase over restarts.
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
        """Mint a ULID greater than all that this source minted before."""
        # The lock covers clock and counter, because two threads must not mint the same id.
        with self._lock:
            now = self._now_ms()
            # Ids of one millisecond usually differ only in the last two characters, so that the
            # others are not computed again.
            if now > self._time_ms or self._pair == _LAST_PAIR:
                self._set(self._next(now))
            else:
                self._pair += 1
            return self._stem + _PAIRS[self._pair]

    def mint_many(self, count: int) -> list[str]:
        """Mint several ULIDs in order; faster than one by one."""
        if count < 1:
            return []
        with self._lock:
            number = self._next(self._now_ms())
            self._set(number + count - 1)
        minted: list[str] = []
        while len(minted) < count:  # ids with the same first 24 characters are created together
            stem, pair = int_to_ulid(number)[:-2], number % len(_PAIRS)
            minted += [stem + last for last in _PAIRS[pair : pair + count - len(minted)]]
            number += len(_PAIRS) - pair
        return minted

    def _next(self, now: int) -> int:
        """Return the number of the next id: random in a new millisecond, else incremented."""
        if now > self._time_ms:
            return (now << _RANDOM_BITS) | self._random_bits()
        return self._last() + 1

    def _last(self) -> int:
        return self._number + self._pair

    def _set(self, last: int) -> None:
        """Store the last id: its time, its first 24 characters, and the number of the last two."""
        self._stem = "" if last < 0 else int_to_ulid(last)[:-2]
        self._time_ms = last >> _RANDOM_BITS
        self._pair = last % len(_PAIRS)
        self._number = last - self._pair

    def follow(self, ulid: str) -> None:
        """Mint only ids greater than `ulid` in the future."""
        with self._lock:
            self._set(max(self._last(), ulid_to_int(ulid)))


_source = UlidSource()


def new_ulid() -> str:
    """Mint a ULID greater than all that this process minted before."""
    return _source.mint()


def new_ulid_after(ulid: str) -> str:
    """Mint a ULID greater than one that another process minted.

    That process increments its ids within one millisecond; a random step avoids a collision.
    """
    new = _source.mint()
    return new if new > ulid else int_to_ulid(ulid_to_int(ulid) + 1 + _random_step())


def new_ulids(count: int) -> list[str]:
    """Mint several ULIDs in order."""
    return _source.mint_many(count)


def new_tool_use_id() -> str:
    """Mint an id for a tool call: `tu_` and a ULID."""
    return f"tu_{_source.mint()}"


def hashed_tool_id(*parts: str) -> str:
    """Derive a tool_use_id from texts, the same in every process."""
    # Hexadecimal digits are valid characters of a ULID and faster to compute than base 32.
    text = "\0".join(parts)
    # Provider ids may contain lone surrogates, which have no UTF-8 form.
    key = text.encode() if text.isascii() else text.encode("utf-8", "surrogatepass")
    return "tu_0" + _sha256(key).hexdigest()[:_HASH_DIGITS].upper()


def new_session_id() -> str:
    """Mint an id for a session: `sess_` and a ULID."""
    return f"sess_{_source.mint()}"


def is_ulid(text: str) -> bool:
    """Return whether a text is a well-formed ULID."""
    return ULID_PATTERN.fullmatch(text) is not None


def ulid_to_int(ulid: str) -> int:
    """Decode a ULID to its 128-bit number."""
    if not is_ulid(ulid):
        raise ValueError(f"{ulid!r} is not a ULID")
    number = 0
    for character in ulid:
        number = (number << 5) | _CHARACTER_VALUES[character]
    return number


def int_to_ulid(number: int) -> str:
    """Encode a 128-bit number as a ULID."""
    if not 0 <= number < _END:
        raise ValueError(f"{number} does not fit into a ULID")
    # Shifting three small numbers is faster than shifting one of 128 bits.
    a, b, c = number >> 100, number >> 50 & _LOW_50_BITS, number & _LOW_50_BITS
    p = _PAIRS
    return (
        f"{p[a >> 20]}{p[a >> 10 & 1023]}{p[a & 1023]}"
        f"{p[b >> 40]}{p[b >> 30 & 1023]}{p[b >> 20 & 1023]}{p[b >> 10 & 1023]}{p[b & 1023]}"
        f"{p[c >> 40]}{p[c >> 30 & 1023]}{p[c >> 20 & 1023]}{p[c >> 10 & 1023]}{p[c & 1023]}"
    )
