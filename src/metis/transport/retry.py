"""Failures of a call as typed errors, and whether and when a call is retried."""

import random
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache

from msgspec import Struct

from metis.canonical.errors import NetworkError, ProviderError
from metis.streaming import StreamError
from metis.streaming.events import provider_error as stream_provider_error

_SECRET = 16
"""How long a part of a key is that is worth hiding by itself."""


@cache
def call_failures() -> tuple[type[Exception], ...]:
    """Whatever a call can fail with."""
    import aiohttp  # noqa: PLC0415 - loaded by the first call: it is a sixth of the time to the prompt

    return (ProviderError, aiohttp.ClientError, TimeoutError, OSError)


@cache
def stream_breaks() -> tuple[type[Exception], ...]:
    """What ends an answer in the middle, so that what came of it is kept."""
    import aiohttp  # noqa: PLC0415 - loaded by the first call: it is a sixth of the time to the prompt

    return (aiohttp.ClientPayloadError, aiohttp.SocketTimeoutError, ConnectionError)


def provider_error(failure: BaseException | StreamError, provider: str) -> ProviderError:
    """The typed error for whatever went wrong on the way to a provider and back."""
    if isinstance(failure, ProviderError):
        return failure
    if isinstance(failure, StreamError):
        return stream_provider_error(failure, provider)
    return NetworkError(_told(failure), provider=provider)


def without_key(text: str, key: str | None) -> str:
    """The same words without a key that a provider repeats in them, or a part of one."""
    for part in (key, *key.split(":")[1:]) if key else ():
        if part == key or len(part) >= _SECRET:
            text = text.replace(part, "[key]")
    return text


def hide_key(error: ProviderError, key: str | None) -> None:
    """Take a key out of the words of an error."""
    if without_key(str(error), key) != str(error):
        error.text = without_key(error.text, key)
        error.args = tuple(without_key(str(part), key) for part in error.args)


def _told(failure: BaseException) -> str:
    """What happened, in words that hold no header and no key."""
    import aiohttp  # noqa: PLC0415 - loaded by the first call: it is a sixth of the time to the prompt

    match failure:
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientSSLError():
            return f"no trusted connection to {failure.host}"
        case aiohttp.ClientConnectorDNSError():
            return f"the host {failure.host} is not known"
        case aiohttp.ClientConnectorError():
            return f"no connection to {failure.host}:{failure.port}"
        case aiohttp.InvalidURL():
            return "the address of the provider is no URL"
        case TimeoutError():
            return "no answer in time"
        case _:
            return f"the connection broke ({type(failure).__name__})"


_MILLISECONDS = "retry-after-ms"
_SECONDS = "retry-after"


class Retry(Struct, frozen=True, kw_only=True):
    """How often a call is tried again, and how long is waited before."""

    attempts: int = 3
    """How often a call is made at most, the first time included."""
    first_s: float = 1.0
    longest_s: float = 30.0
    longest_retry_after_s: float = 60.0
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
            return asked if asked <= self.longest_retry_after_s else None
        wait = min(self.first_s * 2 ** (attempt - 1), self.longest_s)
        return wait * (1 + self.jitter * (2 * chance() - 1))


def retry_after(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
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
