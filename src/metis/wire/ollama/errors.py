"""Errors of Ollama, both directions: a sentence, and the status of the response."""

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
from metis.wire.errors import FIRST_ERROR_STATUS, class_of_status, class_of_text
from metis.wire.json_access import Wire, maybe_object, maybe_text
from metis.wire.ollama.blocks import PROTOCOL, write_json

_STATUS_OF: Mapping[type[ProviderError], int] = {
    RateLimitError: 429,
    AuthenticationError: 401,
    ServerError: 500,
    NetworkError: 502,
    ContextOverflowError: 400,
    InvalidRequestError: 400,
}


def decode_error(wire: Wire, status: int | None = None, provider: str = PROTOCOL) -> ProviderError:
    """Decode an error body; the text of the server is kept."""
    if status is not None and status < FIRST_ERROR_STATUS:
        status = None  # the status of a success says nothing about an error inside it (T132)
    error = wire.get("error")
    inner = maybe_object(error)
    text = maybe_text(error) or maybe_text(inner.get("message")) or write_json(wire).decode()
    kind = class_of_status(status)
    if kind in (InvalidRequestError, OtherProviderError, ServerError):
        kind = class_of_text(text) or kind
    return kind(text, provider=provider, status=status, kind=maybe_text(inner.get("type")))


def encode_error(error: ProviderError) -> tuple[int, bytes]:
    """Encode an error as the status and the body of a response."""
    status = _STATUS_OF.get(type(error), 500)
    return error.status or status, write_json({"error": error.text})
