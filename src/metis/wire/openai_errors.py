"""Errors in the form that OpenAI and the hosts after its model send, to and from ours."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

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
from metis.wire.errors import class_of_status, class_of_text
from metis.wire.json_access import Wire, maybe_list, maybe_object

_BY_CODE: Mapping[str, type[ProviderError]] = {
    "rate_limit_exceeded": RateLimitError,
    "rate_limit_error": RateLimitError,
    "rate_limited": RateLimitError,
    "too_many_requests": RateLimitError,
    "insufficient_quota": RateLimitError,
    "overloaded": RateLimitError,
    "overloaded_error": RateLimitError,
    "engine_overloaded": RateLimitError,
    "context_length_exceeded": ContextOverflowError,
    "string_above_max_length": ContextOverflowError,
    "request_too_large": ContextOverflowError,
    "invalid_api_key": AuthenticationError,
    "authentication_error": AuthenticationError,
    "permission_error": AuthenticationError,
    "server_error": ServerError,
    "api_error": ServerError,
    "internal_error": ServerError,
    "internal_server_error": ServerError,
    "timeout": NetworkError,
}
_KIND_OF: Mapping[type[ProviderError], tuple[int, str, str | None]] = {
    RateLimitError: (429, "rate_limit_error", "rate_limit_exceeded"),
    AuthenticationError: (401, "authentication_error", "invalid_api_key"),
    ServerError: (500, "server_error", None),
    NetworkError: (502, "server_error", None),
    ContextOverflowError: (400, "invalid_request_error", "context_length_exceeded"),
    InvalidRequestError: (400, "invalid_request_error", None),
}
_FINAL = frozenset({"insufficient_quota", "billing_hard_limit_reached"})
"""Codes of a limit that waiting does not lift (T187)."""
_WAIT = re.compile(
    r"(?:try again in|retry (?:after|in)|retryDelay\W+)\s*(\d+(?:\.\d+)?)\s*"
    r"(ms|milliseconds?|m(?:in(?:utes?)?)?(?![a-z])|s(?:ec(?:onds?)?)?)?",
    re.IGNORECASE,
)
_REQUEST_ID = re.compile(r"\breq_[0-9A-Za-z]{8,}")
_LOWEST, _HIGHEST = 400, 599
_read_json = msgspec.json.Decoder().decode
_write_json = msgspec.json.Encoder(order="deterministic").encode


def decode_error(
    body: bytes | Wire, status: int | None = None, provider: str = "openai"
) -> ProviderError:
    """Our error for an error body, JSON or not; the provider's own words are kept."""
    wire = _read(body) if isinstance(body, bytes) else body
    found = wire.get("error", wire.get("detail"))
    error = maybe_object(found) or wire
    text = _words(error, found)
    code, kind = _name(error.get("code")), _name(error.get("type"))
    status = _status(status, error)
    upstream = f"{text} {maybe_object(error.get('metadata')).get('raw', '')}"
    made = _class_of((code, kind), status, upstream)(
        text,
        provider=provider,
        status=status,
        code=code,
        kind=kind,
        request_id=_request_id(wire, error, text),
        retry_after_s=_wait_s(error, upstream),
    )
    if code in _FINAL or kind in _FINAL:
        made.is_retryable = False
    return made


def _read(body: bytes) -> Wire:
    try:
        wire = _read_json(body)
    except (ValueError, RecursionError):
        return {"message": body.decode(errors="replace")}
    return maybe_object(wire) or {"message": str(wire)}


def _words(error: Wire, found: Any) -> str:
    for text in (error.get("message"), error.get("msg"), error.get("detail"), found):
        if isinstance(text, str) and text:
            return text
    listed = maybe_list(found)
    return _words(maybe_object(listed[0]), None) if listed else _write_json(error).decode()


def _name(value: Any) -> str | None:
    """A code or a type; hosts write numbers, too."""
    return str(value) if isinstance(value, str | int) and value != "" else None


def _status(status: int | None, error: Wire) -> int | None:
    """The status of the response, or the one that an error inside a success names (T132, T189)."""
    if status is not None and status >= _LOWEST:
        return status
    for value in (error.get("status_code"), error.get("status"), error.get("code")):
        if type(value) is int and _LOWEST <= value <= _HIGHEST:
            return value
    return None


def _class_of(names: tuple[str | None, ...], status: int | None, text: str) -> type[ProviderError]:
    by_name = next((found for name in names if (found := _BY_CODE.get(name or ""))), None)
    if by_name is not None:
        return by_name
    by_status = class_of_status(status)
    if by_status in (InvalidRequestError, OtherProviderError, ServerError):
        by_words = class_of_text(text)
        if by_words is not None:
            return by_words
    if status is None and "invalid_request_error" in names:
        return InvalidRequestError
    return by_status


def _request_id(wire: Wire, error: Wire, text: str) -> str | None:
    for value in (wire.get("request_id"), error.get("request_id")):
        if isinstance(value, str) and value:
            return value
    named = _REQUEST_ID.search(text)
    return named[0] if named else None


def _wait_s(error: Wire, text: str) -> float | None:
    """How long the body asks to wait, as a field or in words, fractions included (T187)."""
    stated = error.get("retry_after")
    if isinstance(stated, int | float) and not isinstance(stated, bool) and stated >= 0:
        return float(stated)
    said = _WAIT.search(text)
    if said is None:
        return None
    unit = (said[2] or "s").lower()
    scale = 0.001 if unit.startswith(("ms", "mil")) else 60.0 if unit.startswith("m") else 1.0
    return float(said[1]) * scale


def encode_error(error: ProviderError) -> tuple[int, bytes]:
    """The status and the body that say the same here."""
    status, kind, code = _KIND_OF.get(type(error), (500, "server_error", None))
    inner: Wire = {
        "message": error.text,
        "type": error.kind or kind,
        "param": None,
        "code": error.code or code,
    }
    return error.status or status, _write_json({"error": inner})
