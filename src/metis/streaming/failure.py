"""Failure: the typed error that the end of a broken stream stands for."""

from metis.canonical.errors import (
    AuthenticationError,
    ContextOverflowError,
    InvalidRequestError,
    NetworkError,
    OtherProviderError,
    ProviderError,
    RateLimitError,
    ServerError,
)
from metis.streaming.events import StreamError

_CLASSES = {
    kind.__name__: kind
    for kind in (
        AuthenticationError,
        ContextOverflowError,
        InvalidRequestError,
        NetworkError,
        OtherProviderError,
        RateLimitError,
        ServerError,
    )
}


def failure_of(end: StreamError, provider: str) -> ProviderError:
    """The error with which a stream of a provider has ended."""
    kind = _CLASSES.get(end.error_class, OtherProviderError)
    return kind(end.text, provider=provider, status=end.status)
