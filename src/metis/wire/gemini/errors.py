"""Errors of Gemini, to and from ours."""

import re
from collections.abc import Mapping
from typing import Any, cast

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
from metis.wire.failure import class_of_status, class_of_words
from metis.wire.failure import read_error as read_bare_error
from metis.wire.gemini.names import HOSTS, PROTOCOL
from metis.wire.shape import Wire, maybe_list, maybe_object, maybe_text

_BY_STATUS: Mapping[str, type[ProviderError]] = {
    "INVALID_ARGUMENT": InvalidRequestError,
    "FAILED_PRECONDITION": InvalidRequestError,
    "OUT_OF_RANGE": InvalidRequestError,
    "NOT_FOUND": InvalidRequestError,
    "UNAUTHENTICATED": AuthenticationError,
    "PERMISSION_DENIED": AuthenticationError,
    "RESOURCE_EXHAUSTED": RateLimitError,
    "UNAVAILABLE": ServerError,
    "INTERNAL": ServerError,
    "UNKNOWN": ServerError,
    "DEADLINE_EXCEEDED": NetworkError,
    "CANCELLED": NetworkError,
}
_STATUS_OF: Mapping[type[ProviderError], tuple[int, str]] = {
    RateLimitError: (429, "RESOURCE_EXHAUSTED"),
    AuthenticationError: (401, "UNAUTHENTICATED"),
    ServerError: (500, "INTERNAL"),
    NetworkError: (504, "DEADLINE_EXCEEDED"),
    ContextOverflowError: (400, "INVALID_ARGUMENT"),
    InvalidRequestError: (400, "INVALID_ARGUMENT"),
}
_SECONDS = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)s")
_RETRY_IN = re.compile(r"retry in (\d{1,9}(?:\.\d{1,9})?)s", re.IGNORECASE)
_write = msgspec.json.Encoder().encode
_read_any = msgspec.json.Decoder().decode


def read_error(body: bytes) -> Wire:
    """An error body; it may be wrapped in a list, and what is no JSON is its own text."""
    try:
        value = _read_any(body)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, list) and value:
        return maybe_object(cast("list[Any]", value)[0])
    return read_bare_error(body)


def decode_error(wire: Wire, status: int | None = None, provider: str = PROTOCOL) -> ProviderError:
    """Our error for an error body; the provider's own words are kept."""
    error = maybe_object(wire.get("error")) or wire
    code = error.get("code")
    if status is None and type(code) is int:
        status = code
    kind, text = maybe_text(error.get("status")), str(error.get("message") or wire)
    details = [maybe_object(detail) for detail in maybe_list(error.get("details"))]
    failure = _class_of(kind, status, text, details)(
        text,
        provider=provider,
        status=status,
        kind=kind,
        code=_reason(details),
        retry_after_s=_retry_after(details, text),
    )
    if isinstance(failure, RateLimitError) and _is_daily(details):
        failure.is_retryable = False
    return failure


def _class_of(
    kind: str | None, status: int | None, text: str, details: list[Wire]
) -> type[ProviderError]:
    if _reason(details) == "API_KEY_INVALID":
        return AuthenticationError
    found = _BY_STATUS.get(kind or "")
    if found is InvalidRequestError:
        return class_of_words(text) or found
    return found or class_of_status(status)


def _reason(details: list[Wire]) -> str | None:
    return next((reason for each in details if (reason := maybe_text(each.get("reason")))), None)


def _retry_after(details: list[Wire], text: str) -> float | None:
    """How long to wait; it stands in the body, not in a header (T187)."""
    for detail in details:
        found = _SECONDS.fullmatch(str(detail.get("retryDelay")))
        if found:
            return float(found[1])
    told = _RETRY_IN.search(text)
    return float(told[1]) if told else None


def _is_daily(details: list[Wire]) -> bool:
    """Whether the quota of a day is used up: waiting some seconds does not help."""
    return any(
        "PerDay" in str(maybe_object(violation).get("quotaId"))
        for detail in details
        for violation in maybe_list(detail.get("violations"))
    )


def encode_error(error: ProviderError) -> tuple[int, bytes]:
    """The status and the body that say the same here."""
    status, kind = _STATUS_OF.get(type(error), (500, "INTERNAL"))
    if error.provider in HOSTS:
        status, kind = error.status or status, error.kind or kind
    body = {"error": {"code": status, "message": error.text, "status": kind}}
    return status, _write(body)
