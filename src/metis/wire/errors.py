"""Error classes by HTTP status and error text, for every protocol."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from metis.canonical.errors import (
    AuthenticationError,
    ContextOverflowError,
    DecodeError,
    InvalidRequestError,
    NetworkError,
    OtherProviderError,
    ProviderError,
    RateLimitError,
    ServerError,
)
from metis.canonical.message import Message
from metis.canonical.metadata import StopReason
from metis.streaming import StreamError
from metis.wire.call import RequestContext
from metis.wire.json_access import Wire, read_object

STREAM_CUT_OFF = "the stream ended before the response was complete"
"""The error text for a stream that ends too early."""

FIRST_ERROR_STATUS = 400
"""The lowest status of a failed request."""

_FIRST_SERVER_STATUS = 500
_MAX_TEXT = 500
_BY_STATUS: Mapping[int, type[ProviderError]] = {
    401: AuthenticationError,
    # Without credit a key is not allowed to do anything; waiting does not help.
    402: AuthenticationError,
    403: AuthenticationError,
    # A timeout of the server is retried like one of the network.
    408: NetworkError,
    # Gateways refuse a body that is too large before the provider sees it.
    413: ContextOverflowError,
    429: RateLimitError,
    529: RateLimitError,
}
_THROTTLED = re.compile(r"too many tokens.{0,20}wait|rate.?limit|throttl", re.IGNORECASE)
# How providers and local servers word a full context window; most have no code for it.
_OVERFLOW = re.compile(
    r"(?:maximum|max|available|model.?s?) (?:model |maximum )?context|context[ _](?:length|window)"
    r"|(?:prompt|input|request) (?:is )?too (?:long|large)|exceed.{0,40}(?:context|token limit)"
    r"|token limit (?:reached|exceeded)|string too long|maximum number of tokens allowed"
    r"|configured context size|maximum (?:prompt|model) length|range of input length should be"
    r"|reduce the length of the messages|more than max tokens allowed|too many (?:input )?tokens"
    r"|token count.{0,40}exceeds the (?:limit|maximum)",
    re.IGNORECASE,
)

_REFUSED_KEY = re.compile(
    r"(?:incorrect|invalid|expired|missing|no) (?:x-)?api[ -]?key"
    r"|api[ -]?key (?:is )?(?:not valid|invalid|expired|missing|required)"
    r"|invalid (?:authentication|bearer|access) (?:credentials|token)"
    r"|credit balance is too low|insufficient credits",
    re.IGNORECASE,
)
NOT_FOUND = 404
"""The status for a model or a path that does not exist, in every protocol."""


def has_failed(context: RequestContext) -> bool:
    """Whether the status of a response is that of an error."""
    return (context.status or 0) >= FIRST_ERROR_STATUS


def read_error(body: bytes, key: str = "message") -> Wire:
    """Read an error body; one that is no JSON object, such as a page of a proxy, is its text."""
    try:
        return read_object(body, "response")
    except DecodeError:
        return {key: body.decode(errors="replace")[:_MAX_TEXT] or "an empty body"}


def class_of_status(status: int | None) -> type[ProviderError]:
    """Return the error class for a status alone."""
    if status is None:
        return OtherProviderError
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    return ServerError if status >= _FIRST_SERVER_STATUS else InvalidRequestError


def class_of_text(text: str) -> type[ProviderError] | None:
    """Return the error class that a text shows, if any; many hosts have no code for it."""
    # Throttling first: "too many tokens, wait" is not a context overflow (T185).
    if _THROTTLED.search(text):
        return RateLimitError
    if _OVERFLOW.search(text):
        return ContextOverflowError
    # Some hosts refuse a key with the status 400 and a general type.
    return AuthenticationError if _REFUSED_KEY.search(text) else None


def refine_class(
    by_type: type[ProviderError], status: int | None, text: str
) -> type[ProviderError]:
    """Return the error class for a type, where a general type is judged by status and text."""
    # Gateways answer a wrong key or a full quota with the general type of the protocol.
    by_status = _BY_STATUS.get(status or 0)
    if by_type is ServerError:
        # A 401 that calls itself a failure of the server would be retried with the refused key.
        return by_status or by_type
    if by_type is not InvalidRequestError:
        return by_type
    return by_status or class_of_text(text) or by_type


class OverflowWording(NamedTuple):
    """How a provider words a full context window, which its clients search the text for (T218)."""

    plain: str
    counted: str
    """With `tokens` and `limit`, from which some clients compute how much they have to remove, or
    with `excess`."""


def worded_text(error: ProviderError, wording: OverflowWording) -> str:
    """Return the text of an error with the words by which clients notice a full context window.

    Clients shorten the conversation then, and look for the words of their own provider.
    """
    if not isinstance(error, ContextOverflowError):
        return error.text
    tokens, limit = error.input_tokens, error.limit_tokens
    words = wording.plain
    if tokens is not None and limit is not None:
        words = wording.counted.format(tokens=tokens, limit=limit, excess=tokens - limit)
    return error.text if words.lower() in error.text.lower() else f"{words} ({error.text})"


def stream_error(message_id: str, error: ProviderError, message: Message) -> StreamError:
    """Make the event that ends a stream with an error and the message received so far."""
    return StreamError(
        message_id, type(error).__name__, error.text, message, error.status, error.is_retryable
    )


def is_failed_stop(reason: StopReason | None) -> bool:
    """Whether a response with this stop reason is not complete, so that no clean end is encoded."""
    return reason in (StopReason.ERROR, StopReason.CANCELLED)


def failed_stop_error(reason: StopReason | None) -> ProviderError:
    """Return the error for a response that the model did not end."""
    is_cancelled = reason is StopReason.CANCELLED
    return ServerError("the response was cancelled" if is_cancelled else "the response failed")
