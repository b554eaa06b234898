"""Errors of Ollama, to and from ours: a sentence, and the status of the response."""

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
    """Our error for an error body; the server's own words are kept."""
    if status is not None and status < FIRST_ERROR_STATUS:
        status = None  # an error inside of a success says nothing by its status (T132)
    found = wire.get("error")
    inner = maybe_object(found)
    text = maybe_text(found) or maybe_text(inner.get("message")) or write_json(wire).decode()
    return _class_of(status, text)(
        text, provider=provider, status=status, kind=maybe_text(inner.get("type"))
    )


def _class_of(status: int | None, text: str) -> type[ProviderError]:
    by_status = class_of_status(status)
    if by_status in (InvalidRequestError, OtherProviderError, ServerError):
        return class_of_text(text) or by_status
    return by_status


def encode_error(error: ProviderError) -> tuple[int, bytes]:
    """The status and the body that say the same here."""
    status = _STATUS_OF.get(type(error), 500)
    return error.status or status, write_json({"error": error.text})
