"""Errors in the protocol of the client: body, status and headers."""

import logging
import math
import re
from collections.abc import Iterable
from http import HTTPStatus

from metis import adapters
from metis.canonical.errors import (
    CriticalLossError,
    InvalidRequestError,
    MetisError,
    ProviderError,
    RateLimitError,
    ServerError,
)
from metis.canonical.urls import shown_address
from metis.gateway.client_call import ClientCall
from metis.gateway.exchange import Exchange
from metis.gateway.upstream import Provider
from metis.transport.concealment import hide_key, without_key
from metis.transport.response import is_web_page, page_error

log = logging.getLogger("metis.gateway")

JSON_TYPE = (b"content-type", b"application/json")

_FIRST_ERROR_STATUS, _BAD_GATEWAY = 400, 502
_NOT_ALLOWED = frozenset({401, 403, 404, 405, 408, 413, 415, 426, 429})
_PASSING = frozenset({408, 429})
"""Of these, the ones after which the same request may succeed."""


def client_error(error: Exception) -> ProviderError:
    """Return any error as one that a provider could have raised."""
    if isinstance(error, ProviderError):
        return error
    if isinstance(error, CriticalLossError | MetisError):
        return InvalidRequestError(str(error), status=400)
    log.error("unexpected error in the gateway", exc_info=error)
    return ServerError("internal error of the gateway; see its log", status=500)


def encode_error(
    error: Exception, adapter: str, hidden_keys: Iterable[str] = ()
) -> tuple[int, bytes, list[tuple[bytes, bytes]]]:
    """Return status, body and headers with which an error reaches a client."""
    provider_error = client_error(error)
    for key in hidden_keys:
        hide_key(provider_error, key)
    status, body = adapters.get(adapter).encode_error(provider_error)
    if provider_error.provider is None and provider_error.status in _NOT_ALLOWED:
        # Statuses of the gateway itself, for which protocols have no error class.
        status = provider_error.status
    if status < _FIRST_ERROR_STATUS:
        status = _BAD_GATEWAY  # a redirect, which the client must not follow either
    headers: list[tuple[bytes, bytes]] = [JSON_TYPE]
    if provider_error.retry_after_s is not None:
        headers.append((b"retry-after", str(math.ceil(provider_error.retry_after_s)).encode()))
    elif isinstance(provider_error, RateLimitError):
        headers.append((b"retry-after", b"1"))
    is_refused = (
        provider_error.status in _NOT_ALLOWED - _PASSING
        or provider_error.code == "insufficient_quota"
    )
    if provider_error.provider is None and is_refused:
        # SDKs repeat such a request for minutes otherwise.
        headers.append((b"x-should-retry", b"false"))
    return status, body, headers


HTTP_STATUSES = frozenset(HTTPStatus) | {529}
"""The statuses that have a meaning, and that servers can write; 529 is Anthropic's overload."""


async def reply_error(call: ClientCall, error: Exception, provider: Provider | None = None) -> None:
    """Answer a call with an error, unless its response has begun."""
    keys = () if provider is None else provider.keys.lookup(provider.profile)[0]
    if isinstance(error, ProviderError) and error.text.startswith("a web page"):
        # The page may come from a proxy, a login page or a wrong address: name the host.
        error.text = f"{_sender(call.exchange)} with {error.text}"
    status, body, headers = encode_error(error, call.endpoint.adapter, keys)
    # A provider may answer with a number that is no status; servers cannot send it on.
    if status not in HTTP_STATUSES:
        status = 502
    exchange = call.exchange
    exchange.error = client_error(error).text
    if call.is_started:
        return
    headers += metis_headers(call)
    await call.reply(status, headers, body)


def _sender(exchange: Exchange) -> str:
    """Return who answered with which status."""
    adapter_used = exchange.adapter
    host = "" if adapter_used is None else f" ({shown_address(adapter_used.profile.base_url)})"
    status = exchange.attempts[-1].status if exchange.attempts else None
    return f"{exchange.provider}{host} answered {status or 'nothing'}"


def metis_headers(call: ClientCall) -> list[tuple[bytes, bytes]]:
    """Return the headers that describe what the gateway did with a request."""
    exchange = call.exchange
    headers = [(b"x-metis-request-id", exchange.id.encode())]
    if exchange.model:
        headers.append((b"x-metis-model", _header_text(exchange.model_id)))
    if exchange.session_id:
        headers.append((b"x-metis-session", exchange.session_id.encode()))
    headers.append((b"x-metis-losses", str(len(exchange.losses)).encode()))
    return headers


_UNPRINTABLE = re.compile(r"[^\x21-\x7e]")


def _header_text(text: str) -> bytes:
    return _UNPRINTABLE.sub("?", text).encode()


def safe_error_body(body: bytes, status: int, provider: Provider) -> bytes | ProviderError:
    """Return the error body of a provider without its keys, or the error that a web page is."""
    if is_web_page(body):
        return page_error(body, status, provider.name)
    text = body.decode("latin-1")
    safe = text
    for key in provider.keys.lookup(provider.profile)[0]:
        safe = without_key(safe, key)
    return body if safe is text or safe == text else safe.encode("latin-1")
