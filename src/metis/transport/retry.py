"""Retry: which failures are tried again, and after how long."""

import random
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from msgspec import Struct

from metis.canonical.errors import ProviderError

_MILLISECONDS = "retry-after-ms"
_SECONDS = "retry-after"


class Retry(Struct, frozen=True, kw_only=True):
    """How often a call is tried again, and how long is waited before."""

    attempts: int = 3
    """How often a call is made at most, the first time included."""
    first_s: float = 1.0
    longest_s: float = 30.0
    longest_asked_s: float = 60.0
    """The longest wait that a provider may ask for; who asks for more is given up."""
    jitter: float = 0.25
    """By which part a wait is made longer or shorter, so that callers do not come back at once."""

    def delay(
        self, error: ProviderError, attempt: int, chance: Callable[[], float] = random.random
    ) -> float | None:
        """Seconds to wait before the next attempt; None if there is to be none.

        >>> from metis.canonical.errors import RateLimitError, InvalidRequestError
        >>> Retry().delay(InvalidRequestError("no"), 1) is None
        True
        >>> Retry().delay(RateLimitError("slow down", retry_after_s=7), 1)
        7
        """
        if not error.is_retryable or attempt >= self.attempts:
            return None
        asked = error.retry_after_s
        if asked is not None:
            return asked if asked <= self.longest_asked_s else None
        wait = min(self.first_s * 2 ** (attempt - 1), self.longest_s)
        return wait * (1 + self.jitter * (2 * chance() - 1))


def asked_delay(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """The wait in seconds that the headers of a response ask for, if they do.

    >>> asked_delay({"retry-after": "3"})
    3.0
    """
    milliseconds = _number(headers.get(_MILLISECONDS))
    if milliseconds is not None:
        return milliseconds / 1000
    stated = headers.get(_SECONDS)
    seconds = _number(stated)
    if seconds is not None or stated is None:
        return seconds
    try:
        moment = parsedate_to_datetime(stated)
    except ValueError:
        return None
    if moment.tzinfo is None:
        return None
    return max(0.0, (moment - (now or datetime.now(UTC))).total_seconds())


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if 0 <= number < float("inf") else None
