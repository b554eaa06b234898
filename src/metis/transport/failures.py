"""Failures of the network and of providers, as the typed errors that callers see."""

from functools import cache

from metis.canonical.errors import (
    NetworkError,
    ProviderError,
)
from metis.streaming import StreamError
from metis.streaming.failure import failure_of

_SECRET = 16
"""How long a part of a key is that is worth hiding by itself."""


@cache
def failures() -> tuple[type[Exception], ...]:
    """Whatever a call can fail with."""
    import aiohttp  # noqa: PLC0415 - loaded by the first call: it is a sixth of the time to the prompt

    return (ProviderError, aiohttp.ClientError, TimeoutError, OSError)


@cache
def breaks() -> tuple[type[Exception], ...]:
    """What ends an answer in the middle, so that what came of it is kept."""
    import aiohttp  # noqa: PLC0415 - loaded by the first call: it is a sixth of the time to the prompt

    return (aiohttp.ClientPayloadError, aiohttp.SocketTimeoutError, ConnectionError)


def error_of(failure: BaseException | StreamError, provider: str) -> ProviderError:
    """The typed error for whatever went wrong on the way to a provider and back."""
    if isinstance(failure, ProviderError):
        return failure
    if isinstance(failure, StreamError):
        return failure_of(failure, provider)
    return NetworkError(_told(failure), provider=provider)


def concealed(text: str, key: str | None) -> str:
    """The same words without a key that a provider repeats in them, or a part of one."""
    for part in (key, *key.split(":")[1:]) if key else ():
        if part == key or len(part) >= _SECRET:
            text = text.replace(part, "[key]")
    return text


def conceal(error: ProviderError, key: str | None) -> None:
    """Take a key out of the words of an error."""
    if concealed(str(error), key) != str(error):
        error.text = concealed(error.text, key)
        error.args = tuple(concealed(str(part), key) for part in error.args)


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
