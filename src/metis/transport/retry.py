"""The typed errors of failed calls, and the policy of retries."""

import random
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache

from msgspec import Struct
from msgspec.structs import replace

from metis.canonical.errors import NetworkError, ProviderError
from metis.streaming import StreamError
from metis.streaming.events import provider_error as provider_error_of_stream


class Retry(Struct, frozen=True, kw_only=True):
    """How often a call is retried, and the waits between attempts."""

    attempts: int = 3
    """The maximum number of attempts, including the first."""
    first_s: float = 1.0
    """The wait before the second attempt; it doubles with each attempt."""
    longest_s: float = 30.0
    longest_retry_after_s: float = 60.0
    """The longest wait that a provider may request; if it requests more, the call fails."""
    jitter: float = 0.25
    """The fraction by which waits vary, so that many callers do not retry at the same time."""

    def delay(
        self, error: ProviderError, attempt: int, chance: Callable[[], float] = random.random
    ) -> float | None:
        """Return the seconds to wait before the next attempt; None if the call is not retried.

        >>> from metis.canonical.errors import RateLimitError, InvalidRequestError
        >>> Retry().delay(InvalidRequestError("no"), 1) is None
        True
        >>> Retry().delay(RateLimitError("slow down", retry_after_s=7), 1)
        7
        """
        if not error.is_retryable or attempt >= self.attempts:
            return None
        # A daily quota requests a wait of hours (T187); the error is more useful to the user.
        if error.retry_after_s is not None:
            is_short = error.retry_after_s <= self.longest_retry_after_s
            return error.retry_after_s if is_short else None
        wait = min(self.first_s * 2 ** (attempt - 1), self.longest_s)
        return wait * (1 + self.jitter * (2 * chance() - 1))


def retry_after(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Return the wait in seconds that the headers of a response request, or None.

    >>> retry_after({"retry-after": "3"})
    3.0
    """
    # Azure and OpenAI also send this header, which is more precise than the standard one.
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    text = headers.get("retry-after")
    seconds = _number(text)
    if seconds is not None or text is None:
        return seconds
    try:
        moment = parsedate_to_datetime(text)  # HTTP also allows a date here
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


@cache
def call_failures() -> tuple[type[Exception], ...]:
    """Return the exceptions with which a call can fail."""
    import aiohttp  # noqa: PLC0415 - loaded by the first call: it is a sixth of the time to the prompt

    return (ProviderError, aiohttp.ClientError, TimeoutError, OSError)


def provider_error(
    failure: BaseException | StreamError, provider: str, *, has_begun: bool = False
) -> ProviderError:
    """Return the typed error for a failure of a call.

    `has_begun` is whether a part of the response had arrived.
    """
    if isinstance(failure, ProviderError):
        return failure
    if isinstance(failure, StreamError):
        return provider_error_of_stream(failure, provider)
    return NetworkError(_describe(failure), provider=provider, response_began=has_begun)


def _describe(failure: BaseException) -> str:
    """Describe a failure without the text of the exception, which may contain headers and keys."""
    import aiohttp  # noqa: PLC0415 - loaded by the first call: it is a sixth of the time to the prompt

    match failure:
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientSSLError():
            return f"no trusted connection to {failure.host}"
        case aiohttp.ClientConnectorDNSError():
            return f"the host {failure.host} is not known"
        case aiohttp.ClientConnectorError():
            return f"no connection to {failure.host}:{failure.port}"
        case aiohttp.InvalidURL():
            return "the address of the provider is not a valid URL"
        case TimeoutError():
            return "no response in time"
        case _:
            return f"the connection broke ({type(failure).__name__})"


def describe_break(end: StreamError, failure: BaseException) -> StreamError:
    """Return the last event of an interrupted stream with the reason for the interruption."""
    if isinstance(failure, ProviderError):
        kind = type(failure).__name__
        return replace(end, error_class=kind, text=failure.text, is_retryable=failure.is_retryable)
    return replace(end, text=f"{end.text}: {_describe(failure)}; what arrived is preserved")
