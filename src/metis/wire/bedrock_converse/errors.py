"""Errors of Bedrock Converse, to and from ours."""

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
from metis.streaming.aws_event_stream import encode_event_frame
from metis.wire.bedrock_converse.blocks import PROTOCOL
from metis.wire.errors import class_of_status, class_of_text
from metis.wire.json_access import Wire, maybe_text

_OWN = (PROTOCOL, "bedrock-converse")
_SUFFIX = "Exception"
_BY_TYPE: Mapping[str, type[ProviderError]] = {
    "accessdenied": AuthenticationError,
    "expiredtoken": AuthenticationError,
    "incompletesignature": AuthenticationError,
    "internalserver": ServerError,
    "invalidsignature": AuthenticationError,
    "modelerror": ServerError,
    "modelnotready": RateLimitError,
    "modelstreamerror": ServerError,
    "modeltimeout": NetworkError,
    "resourcenotfound": InvalidRequestError,
    "servicequotaexceeded": RateLimitError,
    "serviceunavailable": ServerError,
    "throttling": RateLimitError,
    "unrecognizedclient": AuthenticationError,
    "validation": InvalidRequestError,
}
_TYPE_OF: Mapping[type[ProviderError], tuple[int, str]] = {
    RateLimitError: (429, "Throttling"),
    AuthenticationError: (403, "AccessDenied"),
    ServerError: (500, "InternalServer"),
    NetworkError: (503, "ServiceUnavailable"),
    ContextOverflowError: (400, "Validation"),
    InvalidRequestError: (400, "Validation"),
}
_UNKNOWN = (500, "InternalServer")
_MODEL_FAILED = 424
_STREAMED = frozenset({"InternalServer", "ServiceUnavailable", "Throttling", "Validation"})
"""The exceptions that a stream has a place for; there is one more, which we do not raise."""
_write = msgspec.json.Encoder().encode


def decode_error(wire: Wire, status: int | None = None, provider: str = PROTOCOL) -> ProviderError:
    """Our error for an error body; the provider's own words are kept."""
    kind = maybe_text(wire.get("__type"))
    name = None if kind is None else kind.rpartition("#")[2].partition(":")[0]
    text = str(wire.get("message") or wire.get("Message") or wire)
    return _class_of(name, status, text)(text, provider=provider, status=status, kind=name)


def _class_of(name: str | None, status: int | None, text: str) -> type[ProviderError]:
    by_type = _BY_TYPE.get((name or "").removesuffix(_SUFFIX).lower())
    if by_type is None:
        by_type = ServerError if status == _MODEL_FAILED else class_of_status(status)
    return (class_of_text(text) or by_type) if by_type is InvalidRequestError else by_type


def refine_stream_error(error: ProviderError) -> ProviderError:
    """The error that an exception in a stream stands for, with what its words add."""
    kind = class_of_text(error.text) if type(error) is InvalidRequestError else None
    found = type(error) if kind is None else kind
    return found(error.text, provider=PROTOCOL, status=error.status, kind=error.kind)


def encode_error(error: ProviderError) -> tuple[int, bytes]:
    """The status and the body that say the same here."""
    status, name = _TYPE_OF.get(type(error), _UNKNOWN)
    same = error.provider in _OWN
    shown = error.kind if same and error.kind else name + _SUFFIX
    body: Wire = {"__type": shown, "message": error.text}
    return (error.status if same and error.status else status), _write(body)


def error_frame(error: ProviderError) -> bytes:
    """The exception that ends a stream."""
    _, name = _TYPE_OF.get(type(error), _UNKNOWN)
    if name not in _STREAMED:
        name = "Validation"
    headers = {
        ":exception-type": name[0].lower() + name[1:] + _SUFFIX,
        ":content-type": "application/json",
        ":message-type": "exception",
    }
    return encode_event_frame(headers, _write({"message": error.text}))
