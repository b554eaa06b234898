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
# A proxy may answer with a whole HTML page; its beginning is enough for an error text.
_MAX_TEXT = 500
_BY_STATUS: Mapping[int, type[ProviderError]] = {
    401: AuthenticationError,
    # An account without credit fails like a refused key: a retry cannot succeed.
    402: AuthenticationError,
    403: AuthenticationError,
    # The server did not wait for the whole request: retried like a lost connection.
    408: NetworkError,
    # Proxies such as nginx reject a large body before the provider reads it; shortening helps.
    413: ContextOverflowError,
    429: RateLimitError,
    # Anthropic's status for an overloaded API.
    529: RateLimitError,
}
_THROTTLED = re.compile(r"too many tokens.{0,20}wait|rate.?limit|throttl", re.IGNORECASE)
# Providers and local servers report a full context window by text; few have an error code for it.
_OVERFLOW = re.compile(
    r"(?:maximum|max|available|model.?s?) (?:model |maximum )?context|context[ _](?:length|window)"
    r"|(?:prompt|input|request) (?:is )?too (?:long|large)|exceed.{0,40}(?:context|tokens? limit)"
    r"|token limit (?:reached|exceeded)|string too long|maximum number of tokens allowed"
    r"|configured context size|maximum (?:prompt|model) length|range of input length should be"
    r"|reduce the length of the messages|more than max tokens allowed|too many (?:input )?tokens"
    r"|token count.{0,40}exceeds the (?:limit|maximum)|token count.{0,40}only supports up to"
    r"|input tokens exceed|prompt exceeds max|max tokens of \d{1,9} exceeded|expected maxLength: \d"
    r"|max_new_tokens`? must be <=|must have less than \d{1,9} tokens",
    re.IGNORECASE,
)
# OpenAI and Groq word a request above the tokens of a whole minute as a rate limit: waiting does
# not help, a shorter history does.
_ABOVE_RATE = re.compile(r"request too large for.{0,200}tokens per min", re.IGNORECASE)

_REFUSED_KEY = re.compile(
    r"(?:incorrect|invalid|expired|missing|no) (?:x-)?api[ -]?key"
    r"|api[ -]?key (?:is )?(?:not valid|invalid|expired|missing|required)"
    r"|invalid (?:authentication|bearer|access) (?:credentials|token)"
    r"|credit balance is too low|insufficient credits"
    r"|reached your specified (?:\w+ )?API usage limits|organization has been disabled",
    re.IGNORECASE,
)
NOT_FOUND = 404
"""The status for a model or a path that does not exist, in every protocol."""


def has_failed(context: RequestContext) -> bool:
    """Whether the status of a response is that of an error."""
    return (context.status or 0) >= FIRST_ERROR_STATUS


def read_error(body: bytes, key: str = "message") -> Wire:
    """Read an error body; one that is not a JSON object, such as HTML, is text under `key`."""
    try:
        return read_object(body, "response")
    except DecodeError:
        return {key: body.decode(errors="replace")[:_MAX_TEXT] or "an empty body"}


def class_of_status(status: int | None) -> type[ProviderError]:
    """Return the error class for an HTTP status when the body gives no better information."""
    if status is None:
        return OtherProviderError
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    return ServerError if status >= _FIRST_SERVER_STATUS else InvalidRequestError


def class_of_text(text: str) -> type[ProviderError] | None:
    """Return the error class that an error text implies; None if the text matches no pattern."""
    if _ABOVE_RATE.search(text):
        return ContextOverflowError
    # Throttling first: "too many tokens, wait" is not a context overflow (T185).
    if _THROTTLED.search(text):
        return RateLimitError
    if _OVERFLOW.search(text):
        return ContextOverflowError
    # xAI and Gemini refuse a wrong key with status 400 and a general error type.
    return AuthenticationError if _REFUSED_KEY.search(text) else None


def refine_class(
    by_type: type[ProviderError], status: int | None, text: str
) -> type[ProviderError]:
    """Return the error class for a wire error type, refined by status and text if it is general.

    Gateways report a wrong key or an exhausted quota with the general type of the protocol.
    """
    by_status = _BY_STATUS.get(status or 0)
    if by_type is ServerError:
        # A 401 whose body claims a server error would otherwise be retried with the refused key.
        return by_status or by_type
    if by_type is RateLimitError and _ABOVE_RATE.search(text):
        return ContextOverflowError
    if by_type is not InvalidRequestError:
        return by_type
    return by_status or class_of_text(text) or by_type


class OverflowWording(NamedTuple):
    """A provider's error text for a full context window, which its clients search for (T218)."""

    plain: str
    counted: str
    """A format with `tokens` and `limit`, or `excess`: some clients compute from these numbers how
    much of the conversation they have to remove."""


def worded_text(error: ProviderError, wording: OverflowWording) -> str:
    """Return the text of an error, with the wording that clients recognise as a context overflow.

    A client compacts its conversation only if the text matches the wording of its own provider.
    """
    if not isinstance(error, ContextOverflowError):
        return error.text
    tokens, limit = error.input_tokens, error.limit_tokens
    words = wording.plain
    if tokens is not None and limit is not None:
        words = wording.counted.format(tokens=tokens, limit=limit, excess=tokens - limit)
    return error.text if words.lower() in error.text.lower() else f"{words} ({error.text})"


def stream_error(message_id: str, error: ProviderError, message: Message) -> StreamError:
    """Return the event that ends a stream with an error and the message received so far."""
    return StreamError(
        message_id, type(error).__name__, error.text, message, error.status, error.is_retryable
    )


def is_failed_stop(reason: StopReason | None) -> bool:
    """Whether a response with this stop reason must not be encoded as a complete one."""
    return reason in (StopReason.ERROR, StopReason.CANCELLED)


def failed_stop_error(reason: StopReason | None) -> ProviderError:
    """Return the error to send in place of the end of a response that failed or was cancelled."""
    is_cancelled = reason is StopReason.CANCELLED
    return ServerError("the response was cancelled" if is_cancelled else "the response failed")
