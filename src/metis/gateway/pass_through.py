"""Requests that go on byte for byte, to a provider that speaks the client's protocol."""

import asyncio
import re
import time
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec

from metis.canonical.errors import NetworkError
from metis.gateway.client_call import (
    OUR_HEADERS,
    ClientCall,
    forwarded_headers,
    with_model,
    without_key_parameter,
)
from metis.gateway.endpoints import KEEP_ALIVES, STREAM_TYPES, Endpoint
from metis.gateway.errors import metis_headers, reply_error, safe_error_body
from metis.gateway.exchange import MAX_RECORDED_BYTES, BodyCollector
from metis.gateway.models import Target
from metis.gateway.upstream import Provider, Upstream
from metis.transport.concealment import without_key
from metis.transport.response import (
    MAX_ERROR_BYTES,
    ConnectionWatch,
    is_web_page,
    page_error,
    raise_error,
    run_by_size,
)
from metis.wire.call import RequestContext

if TYPE_CHECKING:
    import aiohttp

_FIRST_ERROR_STATUS = 400
_LAST_STATUS = 599
_BAD_GATEWAY = 502
_MAX_LINE_BYTES = 1 << 20
_NOT_RETURNED = frozenset(
    {
        b"connection",
        b"transfer-encoding",
        b"keep-alive",
        b"set-cookie",
        b"server",
        b"date",
        b"alt-svc",
        b"strict-transport-security",
    }
)


class KeepAlive:
    """Writes to a client in silences of a provider that is still connected.

    Claude Code shows a stall after twenty seconds and ends after three minutes without an event.
    But a client that gets keep-alives while the provider is dead waits for ever: they end after
    the time that a provider may be silent.
    """

    def __init__(self, call: ClientCall, seconds: float, max_silence_s: float) -> None:
        self._call = call
        self._data = KEEP_ALIVES.get(call.endpoint.protocol, b"")
        if call.endpoint.shape != "sse":
            self._data = b""
        self._seconds = seconds
        self._max_silence_s = max_silence_s
        self._last = 0.0
        """When the last byte came."""
        self._is_between_events = True
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to watch for silences.

        Called before the request is sent, the first keep-alive also begins the response: some
        providers send no headers before their first token. An error that follows it is an event.
        """
        if self._data and self._call.exchange.is_stream:
            self._last = time.monotonic()
            if self._timer is None:
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(self._seconds, self._check)

    async def wait(self) -> None:
        """Wait until a keep-alive that is on its way has been written."""
        if self._task is not None and not self._task.done():
            await self._task

    def note(self, data: bytes) -> None:
        """Note that something came from the provider."""
        if self._timer is not None:
            self._last = time.monotonic()
            self._is_between_events = data.endswith((b"\n\n", b"\r\n\r\n"))

    def stop(self) -> None:
        """End; nothing is written from now on."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is not None:
            self._task.cancel()

    def _check(self) -> None:
        silence = time.monotonic() - self._last
        is_writing = self._task is not None and not self._task.done()
        if silence > self._max_silence_s:
            return
        if silence >= self._seconds and self._is_between_events and not is_writing:
            self._task = asyncio.ensure_future(self._write())
            wait = self._seconds
        else:
            wait = max(0.05, self._seconds - silence)
        self._timer = asyncio.get_running_loop().call_later(wait, self._check)

    async def _write(self) -> None:
        call = self._call
        if not call.is_started:
            content = [(b"content-type", STREAM_TYPES["sse"]), (b"cache-control", b"no-cache")]
            await call.start(200, content + metis_headers(call))
        await call.write(self._data)


def upstream_path(endpoint: Endpoint, provider: Provider, model: str, query: bytes) -> str:
    """Return the path of a request at a provider of the client's protocol."""
    if not endpoint.model:
        path = endpoint.path
    elif endpoint.protocol == "gemini":
        head, _, method = endpoint.path.rpartition(":")
        path = f"{head[: head.rindex('/') + 1]}{quote(model, safe='@.-_')}:{method}"
    else:
        path = provider.profile.request_path(model, is_stream=bool(endpoint.stream))
    return path + without_key_parameter(query)


async def pass_request(
    call: ClientCall, target: Target, upstream: Upstream, keep_alive: KeepAlive
) -> None:
    """Send a request on as it came, and its response back as it comes."""
    exchange, endpoint, provider = call.exchange, call.endpoint, target.provider
    has_credentials = not provider.has_keys
    headers = forwarded_headers(call.headers, with_credentials=has_credentials)
    for name, value in provider.profile.headers.items():
        headers.setdefault(name, value)
    body, is_renamed = call.body, target.model != exchange.requested_model
    if is_renamed and not endpoint.model:
        names = exchange.requested_model, target.model
        body = await run_by_size(len(body), with_model, body, *names)
    path = upstream_path(endpoint, provider, target.model, call.query)
    if exchange.records_bytes:
        exchange.sent_path = path.partition("?")[0]
        if body is not call.body:
            exchange.sent_body = body
    keep_alive.start()
    try:
        response = await upstream.post(
            provider,
            exchange,
            path,
            headers,
            body,
            method=call.scope["method"],
            has_credentials=has_credentials,
        )
        await keep_alive.wait()
    except BaseException:
        keep_alive.stop()
        raise
    try:
        if response.status >= _FIRST_ERROR_STATUS and call.is_started:
            context = RequestContext(provider=provider.name, status=response.status)
            await raise_error(provider.adapter, response, context)
        elif response.status >= _FIRST_ERROR_STATUS:
            await _pass_error(call, response, provider)
        else:
            echo = ModelEcho(exchange.requested_model, endpoint.protocol) if is_renamed else None
            await _pass_response(call, response, echo, keep_alive, provider)
    except BaseException:
        response.close()
        raise
    finally:
        keep_alive.stop()
        response.release()


def returned_headers(
    response: "aiohttp.ClientResponse", *, is_changed: bool = False
) -> list[tuple[bytes, bytes]]:
    """Return the headers of a provider's response that go to the client."""
    headers = [
        (lower, value)
        for name, value in response.raw_headers
        if (lower := name.lower()) not in _NOT_RETURNED and not lower.startswith(OUR_HEADERS)
    ]
    if is_changed:
        return [(name, value) for name, value in headers if name != b"content-length"]
    return headers


async def _pass_response(
    call: ClientCall,
    response: "aiohttp.ClientResponse",
    echo: "ModelEcho | None",
    keep_alive: KeepAlive,
    provider: Provider,
) -> None:
    exchange, content = call.exchange, response.content
    headers = returned_headers(response, is_changed=echo is not None)
    headers += metis_headers(call)
    watch = ConnectionWatch(response)
    collector, data = BodyCollector(exchange), b""
    is_page = _is_markup(headers)
    if is_page:
        data = await content.readany()
        if is_web_page(data):
            # A login page of the network, or a proxy: no client could read it.
            raise page_error(data, response.status, provider.name)
        collector.add(data)
        data = data if echo is None else echo.feed(data)
    if not call.is_started:
        await call.start(response.status, headers)
    keep_alive.start()
    while not content.at_eof():
        if data:
            await call.write(data)
        data = await content.readany()
        collector.add(data)
        if echo is not None:
            data = echo.feed(data)
        keep_alive.note(data)
    keep_alive.stop()
    if exchange.is_truncated:
        exchange.error = f"only the first {MAX_RECORDED_BYTES:,} bytes of the response are stored"
    # A connection that broke must not look like the end of a response.
    watch.check()
    await call.write(data if echo is None else data + echo.finish(), more=False)


async def _pass_error(
    call: ClientCall, response: "aiohttp.ClientResponse", provider: Provider
) -> None:
    body = await response.content.read(MAX_ERROR_BYTES)
    while len(body) < MAX_ERROR_BYTES and not response.content.at_eof():
        body += await response.content.read(MAX_ERROR_BYTES - len(body))
    if not response.content.at_eof():
        response.close()
    safe = safe_error_body(body, response.status, provider)
    if not isinstance(safe, bytes):
        await reply_error(call, safe, provider)
        return
    call.exchange.response_parts.append(safe)  # what is stored has no key either
    call.exchange.error = safe[:500].decode(errors="replace")
    headers = _without_keys(returned_headers(response, is_changed=True), provider)
    # No server can write another status, and a client would get nothing.
    status = response.status if response.status <= _LAST_STATUS else _BAD_GATEWAY
    await call.reply(status, headers + metis_headers(call), safe)


def _without_keys(
    headers: list[tuple[bytes, bytes]], provider: Provider
) -> list[tuple[bytes, bytes]]:
    """Return headers without keys of the provider, which clients must not learn."""
    for key in provider.keys.lookup(provider.profile)[0]:
        headers = [
            (name, without_key(value.decode("latin-1"), key).encode("latin-1"))
            for name, value in headers
        ]
    return headers


def _is_markup(headers: list[tuple[bytes, bytes]]) -> bool:
    return any(name == b"content-type" and b"html" in value.lower() for name, value in headers)


def broken_stream(error: Exception, provider: Provider) -> NetworkError:
    """Return the error for a response that broke off."""
    text = f"the response of {provider.name} broke off ({type(error).__name__})"
    return NetworkError(text, provider=provider.name)


class ModelEcho:
    """Writes the requested name of a model over the provider's in a response.

    Claude Code drops its thinking from the history if the response names another model than the
    request. Of each line the first key `model` is changed: it precedes all content, and in texts
    and arguments such a key has escaped quotes.
    """

    def __init__(self, name: str, protocol: str) -> None:
        key = b"modelVersion" if protocol == "gemini" else b"model"
        self._pattern = re.compile(rb'("%b"\s*:\s*)"(?:[^"\\]|\\.){0,200}"' % key)
        self._name = rb"\g<1>" + msgspec.json.encode(name).replace(b"\\", rb"\\")
        # In parts, each searched once: a long line that comes in small pieces takes linear time.
        self._pending: list[bytes] = []
        self._pending_bytes = 0

    def feed(self, data: bytes) -> bytes:
        """Return what can be sent: up to the last line break, as a name may be cut."""
        end = data.rfind(b"\n") + 1
        if not end and self._pending_bytes + len(data) > _MAX_LINE_BYTES:
            end = len(data)  # a line that does not end is not held back
        if not end:
            self._pending.append(data)
            self._pending_bytes += len(data)
            return b""
        lines = b"".join((*self._pending, data[:end])).splitlines(keepends=True)
        self._pending, self._pending_bytes = [data[end:]], len(data) - end
        return b"".join(map(self._line, lines))

    def finish(self) -> bytes:
        """Return the last line, which has no end."""
        data, self._pending, self._pending_bytes = b"".join(self._pending), [], 0
        return self._line(data)

    def _line(self, line: bytes) -> bytes:
        return self._pattern.sub(self._name, line, count=1)
