"""Error classes by HTTP status and error text, for every protocol."""

import re
from collections.abc import Mapping

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

STREAM_CUT_OFF = "the stream ended before the answer was complete"
"""What is said of a stream that breaks off."""

FIRST_ERROR_STATUS = 400
"""From here on a status says that a request failed."""

_FIRST_SERVER_STATUS = 500
_TEXT_KEPT = 500
_BY_STATUS: Mapping[int, type[ProviderError]] = {
    401: AuthenticationError,
    403: AuthenticationError,
    408: NetworkError,
    413: ContextOverflowError,
    429: RateLimitError,
    529: RateLimitError,
}
_OTHERS = (ServerError, InvalidRequestError, OtherProviderError)
_THROTTLED = re.compile(r"too many tokens.{0,20}wait|rate.?limit|throttl", re.IGNORECASE)
_OVERFLOW = re.compile(
    r"(?:maximum|max|available|model.?s?) (?:model |maximum )?context|context (?:length|window)"
    r"|(?:prompt|input|request) is too (?:long|large)|exceed.{0,40}(?:context|token limit)"
    r"|token limit (?:reached|exceeded)|string too long|maximum number of tokens allowed",
    re.IGNORECASE,
)


def has_failed(context: RequestContext) -> bool:
    """Whether the status of a response says that it is an error."""
    return (context.status or 0) >= FIRST_ERROR_STATUS


def read_error(body: bytes, key: str = "message") -> Wire:
    """An error body; what is no JSON object, such as a page of a proxy, is its own text."""
    try:
        return read_object(body, "response")
    except DecodeError:
        return {key: body.decode(errors="replace")[:_TEXT_KEPT] or "an empty body"}


def class_of_status(status: int | None) -> type[ProviderError]:
    """The class that a status alone stands for."""
    if status is None:
        return OtherProviderError
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    return ServerError if status >= _FIRST_SERVER_STATUS else InvalidRequestError


def class_of_text(text: str) -> type[ProviderError] | None:
    """The class that the words of an error stand for, if they do; many hosts have no code for it.

    Throttling that speaks of tokens is no overflow, so it is asked first (T185).
    """
    if _THROTTLED.search(text):
        return RateLimitError
    return ContextOverflowError if _OVERFLOW.search(text) else None


_BY_NAME = {kind.__name__: kind for kind in (*_BY_STATUS.values(), *_OTHERS)}


def stream_error(message_id: str, error: ProviderError, message: Message) -> StreamError:
    """The end of a stream that an error broke off, with what had come of the answer."""
    return StreamError(
        message_id, type(error).__name__, error.text, message, error.status, error.is_retryable
    )


def error_of_event(event: StreamError) -> ProviderError:
    """The error that ended a stream; what it is called decides how each protocol tells it."""
    kind = _BY_NAME.get(event.error_class, ServerError)
    return kind(event.text, status=event.status)


def is_failed_stop(reason: StopReason | None) -> bool:
    """Whether an answer that ended so is no whole answer, so that no clean end may be told."""
    return reason in (StopReason.ERROR, StopReason.CANCELLED)


def failed_stop_error(reason: StopReason | None) -> ProviderError:
    """The error that tells of an answer that was not ended by the model."""
    is_cancelled = reason is StopReason.CANCELLED
    return ServerError("the answer was cancelled" if is_cancelled else "the answer failed")
