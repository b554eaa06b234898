"""Errors of OpenAI and of the hosts that imitate it, both directions.

The body is `{"error": {"message", "type", "param", "code"}}`. Hosts deviate: FastAPI servers such
as vLLM send `detail`, some send bare text, and OpenRouter nests the error of its upstream.
"""

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
from metis.wire.errors import (
    FIRST_ERROR_STATUS,
    OverflowWording,
    class_of_status,
    class_of_text,
    refine_class,
    worded_text,
)
from metis.wire.json_access import Wire, maybe_list, maybe_object

_BY_CODE: Mapping[str, type[ProviderError]] = {
    "rate_limit_exceeded": RateLimitError,
    "rate_limit_error": RateLimitError,
    "rate_limited": RateLimitError,
    "too_many_requests": RateLimitError,
    # A limit, too, but waiting does not end it: see `_FINAL_CODES`.
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
    "invalid_prompt": InvalidRequestError,
}
_WIRE_ERRORS: Mapping[type[ProviderError], tuple[int, str, str | None]] = {
    RateLimitError: (429, "rate_limit_error", "rate_limit_exceeded"),
    AuthenticationError: (401, "authentication_error", "invalid_api_key"),
    ServerError: (500, "server_error", None),
    # OpenAI's SDKs retry every 5xx status.
    NetworkError: (502, "server_error", None),
    ContextOverflowError: (400, "invalid_request_error", "context_length_exceeded"),
    InvalidRequestError: (400, "invalid_request_error", None),
}
_STREAM_CODES: Mapping[type[ProviderError], str] = {
    ContextOverflowError: "context_length_exceeded",
    InvalidRequestError: "invalid_prompt",
    RateLimitError: "rate_limit_exceeded",
}
_FINAL_CODES = frozenset({"insufficient_quota", "billing_hard_limit_reached"})
"""Codes of a spending limit, which does not reset with time: a retry fails again (T187)."""
_WAIT_TIME = re.compile(
    r"(?:try again in|retry (?:after|in)|retryDelay\W+)\s*(\d+(?:\.\d+)?)\s*"
    r"(ms|milliseconds?|m(?:in(?:utes?)?)?(?![a-z])|s(?:ec(?:onds?)?)?)?",
    re.IGNORECASE,
)
_REQUEST_ID = re.compile(r"\breq_[0-9A-Za-z]{8,}")
OVERFLOW = OverflowWording(
    "Your input exceeds the context window of this model, its maximum context length",
    "This model's maximum context length is {limit} tokens. However, your messages resulted in "
    "{tokens} tokens. Please reduce the length of the messages.",
)
# Larger numbers in `code` are codes of the host, not HTTP statuses.
_MAX_STATUS = 599
_read_json = msgspec.json.Decoder().decode
_write_json = msgspec.json.Encoder(order="deterministic").encode


def decode_error(
    body: bytes | Wire, status: int | None = None, provider: str = "openai"
) -> ProviderError:
    """Decode an error body, which may be any bytes, into an error with the provider's text."""
    wire = _read_body(body) if isinstance(body, bytes) else body
    value = wire.get("error", wire.get("detail"))
    error = maybe_object(value) or wire
    text = _text_of(error, value)
    code, kind = _name(error.get("code")), _name(error.get("type"))
    status = _error_status(status, error)
    # OpenRouter's message is generic; the error text of the upstream provider is in `metadata.raw`.
    full_text = f"{text} {maybe_object(error.get('metadata')).get('raw', '')}"
    decoded = _class_of((code, kind), status, full_text)(
        text,
        provider=provider,
        status=status,
        code=code,
        kind=kind,
        request_id=_request_id(wire, error, text),
        retry_after_s=_retry_after_s(error, full_text),
    )
    if code in _FINAL_CODES or kind in _FINAL_CODES:
        decoded.is_retryable = False
    return decoded


def _read_body(body: bytes) -> Wire:
    try:
        wire = _read_json(body)
    except (ValueError, RecursionError):
        return {"message": body.decode(errors="replace")}
    return maybe_object(wire) or {"message": str(wire)}


def _text_of(error: Wire, value: Any) -> str:
    for text in (error.get("message"), error.get("msg"), error.get("detail"), value):
        if isinstance(text, str) and text:
            return text
    problems = maybe_list(value)
    return _text_of(maybe_object(problems[0]), None) if problems else _write_json(error).decode()


def _name(value: Any) -> str | None:
    """Return an error code or type as text; OpenRouter and others send numbers."""
    return str(value) if isinstance(value, str | int) and value != "" else None


def _error_status(status: int | None, error: Wire) -> int | None:
    """Return the HTTP status if it is an error, else the status stated in the body, else None."""
    if status is not None and status >= FIRST_ERROR_STATUS:
        return status
    # OpenRouter sends errors with status 200, in a body or in a stream (T132, T189).
    for value in (error.get("status_code"), error.get("status"), error.get("code")):
        if type(value) is int and FIRST_ERROR_STATUS <= value <= _MAX_STATUS:
            return value
    return None


def _class_of(names: tuple[str | None, ...], status: int | None, text: str) -> type[ProviderError]:
    by_name = next((kind for name in names if (kind := _BY_CODE.get(name or ""))), None)
    if by_name is not None:
        return refine_class(by_name, status, text)
    by_status = class_of_status(status)
    if by_status in (InvalidRequestError, OtherProviderError, ServerError):
        # Many hosts report a context overflow with 400 or 500 and no code; only the text shows it.
        by_text = class_of_text(text)
        if by_text is not None:
            return by_text
    if status is None and "invalid_request_error" in names:
        return InvalidRequestError
    return by_status


def _request_id(wire: Wire, error: Wire, text: str) -> str | None:
    for value in (wire.get("request_id"), error.get("request_id")):
        if isinstance(value, str) and value:
            return value
    in_text = _REQUEST_ID.search(text)
    return in_text[0] if in_text else None


def _retry_after_s(error: Wire, text: str) -> float | None:
    """Return the seconds to wait before a retry, from the body of an error."""
    value = error.get("retry_after")
    if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
        return float(value)
    # OpenAI has it in the text, as a fraction ("try again in 45.8s"), Gemini as `retryDelay`. An
    # earlier retry fails and counts against the rate limit (T187).
    in_text = _WAIT_TIME.search(text)
    if in_text is None:
        return None
    unit = (in_text[2] or "s").lower()
    scale = 0.001 if unit.startswith(("ms", "mil")) else 60.0 if unit.startswith("m") else 1.0
    return float(in_text[1]) * scale


def stream_failure(error: ProviderError) -> Wire:
    """Return the `error` of a failed response; Codex decides by its code whether to retry."""
    text = error.text if error.provider else worded_text(error, OVERFLOW)
    return {"code": error.code or _STREAM_CODES.get(type(error), "server_error"), "message": text}


def encode_error(error: ProviderError) -> tuple[int, bytes]:
    """Encode an error as the status and the body of a response."""
    status, kind, code = _WIRE_ERRORS.get(type(error), (500, "server_error", None))
    text = error.text if error.provider else worded_text(error, OVERFLOW)
    if error.retry_after_s is not None and not error.provider and not _WAIT_TIME.search(text):
        # Codex reads the time to wait from the text.
        text = f"{text} Please try again in {error.retry_after_s:g}s."
    inner: Wire = {
        "message": text,
        "type": error.kind or kind,
        "param": None,
        "code": error.code or code,
    }
    return error.status or status, _write_json({"error": inner})
