"""Error bodies of Anthropic Messages, to and from error classes."""

from collections.abc import Mapping

import msgspec

from metis.canonical.errors import (
    AuthenticationError,
    ContextOverflowError,
    InvalidRequestError,
    NetworkError,
    ProviderError,
    RateLimitError,
    ServerError,
)
from metis.wire.anthropic.blocks import PROTOCOL
from metis.wire.errors import (
    NOT_FOUND,
    OverflowWording,
    class_of_status,
    refine_class,
    worded_text,
)
from metis.wire.json_access import Wire, maybe_object, maybe_text

_BY_TYPE: Mapping[str, type[ProviderError]] = {
    "rate_limit_error": RateLimitError,
    # An overload is temporary like a rate limit, so both are retried after a pause.
    "overloaded_error": RateLimitError,
    "authentication_error": AuthenticationError,
    "permission_error": AuthenticationError,
    "billing_error": AuthenticationError,
    "invalid_request_error": InvalidRequestError,
    "not_found_error": InvalidRequestError,
    "request_too_large": ContextOverflowError,
    "api_error": ServerError,
    "timeout_error": NetworkError,
}
_TYPE_OF: Mapping[type[ProviderError], tuple[int, str]] = {
    RateLimitError: (429, "rate_limit_error"),
    AuthenticationError: (401, "authentication_error"),
    ServerError: (500, "api_error"),
    NetworkError: (502, "api_error"),
    ContextOverflowError: (400, "invalid_request_error"),
    InvalidRequestError: (400, "invalid_request_error"),
}
_TYPE_OF_STATUS: Mapping[int, str] = {
    403: "permission_error",
    NOT_FOUND: "not_found_error",
    529: "overloaded_error",
}
_TOO_LARGE = 413
OVERFLOW = OverflowWording(
    "prompt is too long", "prompt is too long: {tokens} tokens > {limit} maximum"
)
"""Claude Code compacts its history when it finds this text, and uses the numbers."""
_write = msgspec.json.Encoder().encode


def decode_error(wire: Wire, status: int | None = None, provider: str = PROTOCOL) -> ProviderError:
    """Decode an error body into an error with the provider's text unchanged."""
    error = maybe_object(wire.get("error")) or wire
    kind, text = maybe_text(error.get("type")), str(error.get("message") or wire)
    return _class_of(kind, status, text)(
        text,
        provider=provider,
        status=status,
        kind=kind,
        request_id=maybe_text(wire.get("request_id")),
    )


def _class_of(kind: str | None, status: int | None, text: str) -> type[ProviderError]:
    # Anthropic has no error type for a prompt that is too long; only the text shows it.
    return refine_class(_BY_TYPE.get(kind or "") or class_of_status(status), status, text)


def encode_error(error: ProviderError) -> tuple[int, bytes]:
    """Encode an error as the status and the body of a response."""
    status, kind = _TYPE_OF.get(type(error), (500, "api_error"))
    # An error that Anthropic itself sent reaches the client with its status and type unchanged.
    if error.provider == PROTOCOL:
        status, kind = error.status or status, error.kind or kind
    elif error.status is not None and error.status in _TYPE_OF_STATUS:
        status, kind = error.status, _TYPE_OF_STATUS[error.status]
    elif error.status == _TOO_LARGE and error.provider is None:
        # A size limit of a proxy, not of the model: shortening the history may not be enough.
        status, kind = _TOO_LARGE, "request_too_large"
    text = error.text if error.provider == PROTOCOL else worded_text(error, OVERFLOW)
    body: Wire = {"type": "error", "error": {"type": kind, "message": text}}
    if error.request_id is not None:
        body["request_id"] = error.request_id
    return status, _write(body)
