"""Failures: what the status and the words of an error say, whoever sent it."""

import re
from collections.abc import Mapping

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

FIRST_ERROR_STATUS = 400
"""From here on a status says that a request failed."""

_FIRST_SERVER_STATUS = 500
_BY_STATUS: Mapping[int, type[ProviderError]] = {
    401: AuthenticationError,
    403: AuthenticationError,
    408: NetworkError,
    413: ContextOverflowError,
    429: RateLimitError,
    529: RateLimitError,
}
_THROTTLED = re.compile(r"too many tokens.{0,20}wait|rate.?limit|throttl", re.IGNORECASE)
_OVERFLOW = re.compile(
    r"(?:maximum|max|available|model.?s?) (?:model |maximum )?context|context (?:length|window)"
    r"|(?:prompt|input|request) is too (?:long|large)|exceed.{0,40}(?:context|token limit)"
    r"|token limit (?:reached|exceeded)|string too long",
    re.IGNORECASE,
)


def class_of_status(status: int | None) -> type[ProviderError]:
    """The class that a status alone stands for."""
    if status is None:
        return OtherProviderError
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    return ServerError if status >= _FIRST_SERVER_STATUS else InvalidRequestError


def class_of_words(text: str) -> type[ProviderError] | None:
    """The class that the words of an error stand for, if they do; many hosts have no code for it.

    Throttling that speaks of tokens is no overflow, so it is asked first (T185).
    """
    if _THROTTLED.search(text):
        return RateLimitError
    return ContextOverflowError if _OVERFLOW.search(text) else None
