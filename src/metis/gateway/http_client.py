"""A small HTTP/1.1 client for providers: a pool of connections, and bodies as they come.

It does what the gateway needs and no more, at a third of the cost of a general client: no cookies,
no redirects, no decompression, no proxy. Responses have the attributes of `aiohttp.ClientResponse`
that the readers of responses use.
"""

import asyncio
import ssl
import time
from collections.abc import AsyncGenerator, Mapping
from functools import cached_property
from typing import Final
from urllib.parse import urlsplit

import httptools

_IDLE_S = 30.0
_MAX_IDLE = 512
_HIGH_WATER: Final = 1 << 17
_MAX_HEADER_BYTES = 1 << 17
_MAX_HEAD_BYTES = 1 << 20
"""What may come before a body: interim responses, the status line, and headers that go on."""
_SWITCHING = 101
_FIRST_FINAL_STATUS = 200
_Host = tuple[bool, str, int]


class _StaleError(ConnectionError):
    """A connection that was closed while it was idle."""


class Body:
    """The body of a response, read as it comes; a reader that is slow stops the provider."""

    def __init__(self, connection: "_Connection") -> None:
        self._connection = connection
        self._parts: list[bytes] = []
        self._size = 0
        self.is_complete = False
        self._is_paused = False
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    def at_eof(self) -> bool:
        """Whether everything was read."""
        return self.is_complete and not self._parts

    async def readany(self) -> bytes:
        """Return what has arrived; empty at the end.

        Raises:
            OSError: the connection broke, or the provider was silent for too long.
        """
        if not self._parts and not self.is_complete and self._error is None:
            self._waiter = self._connection.loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self._parts:
            parts = self._parts
            data = parts[0] if len(parts) == 1 else b"".join(parts)
            self._parts, self._size = [], 0
            if self._is_paused:
                self._is_paused = False
                self._connection.resume()
            return data
        if self._error is not None:
            raise self._error
        return b""

    async def read(self, count: int = -1) -> bytes:
        """Return at most so many bytes; with -1, all of them."""
        data = bytearray()
        while (count < 0 or len(data) < count) and not self.at_eof():
            data += await self.readany()
        if 0 <= count < len(data):
            self._parts.insert(0, bytes(data[count:]))
            self._size += len(data) - count
            return bytes(data[:count])
        return bytes(data)

    async def iter_any(self) -> AsyncGenerator[bytes]:
        """Yield what arrives."""
        while not self.at_eof():
            data = await self.readany()
            if data:
                yield data

    def feed(self, data: bytes) -> None:
        """Add data; called by the connection."""
        self._parts.append(data)
        self._size += len(data)
        if self._size > _HIGH_WATER and not self._is_paused:
            self._is_paused = True
            self._connection.pause()
        self._wake()

    def complete(self) -> None:
        """End the body."""
        self.is_complete = True
        self._wake()

    def fail(self, error: Exception) -> None:
        """End the body with an error, after what has arrived."""
        if not self.is_complete and self._error is None:
            self._error = error
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Response:
    """The response of a provider; its body is unread."""

    connection: Final = None

    def __init__(
        self, connection: "_Connection", status: int, headers: list[tuple[bytes, bytes]]
    ) -> None:
        self.status = status
        self.raw_headers = headers
        self.content = Body(connection)
        self._connection: _Connection | None = connection

    @cached_property
    def headers(self) -> Mapping[str, str]:
        """The headers, by their names in lower case."""
        return {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in self.raw_headers
        }

    @property
    def url(self) -> str:
        """The address of the provider."""
        return "" if self._connection is None else self._connection.shown_host

    def close(self) -> None:
        """Close the connection, unless the response is complete."""
        connection, self._connection = self._connection, None
        if connection is not None and not self.content.is_complete:
            connection.abort()

    def release(self) -> None:
        """Give the connection back; one whose response was not read cannot be used again."""
        self.close()


class _Connection(asyncio.Protocol):
    """One connection, with one exchange at a time."""

    def __init__(self, client: "HttpClient", host: _Host, silence_s: float) -> None:
        self._client = client
        self._host = host
        self._silence_s = silence_s
        self.loop = asyncio.get_running_loop()
        self.shown_host = f"{'https' if host[0] else 'http'}://{host[1]}:{host[2]}"
        self.idle_since = 0.0
        self._transport: asyncio.Transport | None = None
        self._response: Response | None = None
        self._waiter: asyncio.Future[Response] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._last = 0.0
        self._is_head = False
        self._is_used = False
        self._has_length = False
        self._headers: list[tuple[bytes, bytes]] = []
        self._header_bytes = 0
        self._head_bytes = 0
        self._parser = httptools.HttpResponseParser(self)

    @property
    def is_open(self) -> bool:
        """Whether a request can be sent."""
        transport = self._transport
        return transport is not None and not transport.is_closing()

    async def send(self, method: str, data: list[bytes]) -> Response:
        """Send a request, and return its response once the headers have come."""
        transport = self._transport
        if transport is None or transport.is_closing():
            raise _StaleError("closed while it was idle")
        self._waiter = self.loop.create_future()
        self._head_bytes = 0
        self._is_head = method == "HEAD"
        self._last = time.monotonic()
        if self._timer is None:
            self._timer = self.loop.call_later(self._silence_s, self._check)
        for part in data:
            transport.write(part)
        try:
            return await self._waiter
        except asyncio.CancelledError:
            self.abort()
            raise
        finally:
            self._waiter = None

    def _check(self) -> None:
        self._timer = None
        if self._waiter is None and self._response is None:
            return  # idle
        silence = time.monotonic() - self._last
        if silence < self._silence_s:
            self._timer = self.loop.call_later(self._silence_s - silence, self._check)
        else:
            self._fail(TimeoutError("no response in time"))
            self.abort()

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the connection."""
        self._transport = transport  # pyright: ignore[reportAttributeAccessIssue] - a stream has one of these

    def data_received(self, data: bytes) -> None:
        """Parse what came."""
        self._last = time.monotonic()
        if self._waiter is None and self._response is None:
            self.abort()  # data without a request
            return
        if self._response is None:
            # The parser holds a header that does not end, and counts nothing.
            self._head_bytes += len(data)
            if self._head_bytes > _MAX_HEAD_BYTES:
                self._fail(ConnectionError("a response without a body"))
                self.abort()
                return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade, ValueError) as error:
            self._fail(ConnectionError(f"not an HTTP response ({type(error).__name__})"))
            self.abort()

    def eof_received(self) -> None:
        """Let the connection close."""

    def connection_lost(self, exc: Exception | None) -> None:
        """End what was running."""
        self._client.forget(self._host, self)
        response = self._response
        if response is not None and exc is None and not self._has_length:
            response.content.complete()  # the end of a body without a length
            self._response = None
        is_stale = self._is_used and response is None and not self._headers
        kind = _StaleError if is_stale else ConnectionError
        self._fail(kind("closed in the middle of a response"))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # What the parser calls

    def on_header(self, name: bytes, value: bytes) -> None:
        """Note a header."""
        self._headers.append((name, value))
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > _MAX_HEADER_BYTES:
            raise ValueError("headers without end")

    def on_headers_complete(self) -> None:
        """Hand the response to its reader."""
        status = self._parser.get_status_code()
        headers, self._headers, self._header_bytes = self._headers, [], 0
        if status < _FIRST_FINAL_STATUS and status != _SWITCHING:
            return  # the final response follows
        names = {name.lower() for name, _ in headers}
        self._has_length = b"content-length" in names or b"transfer-encoding" in names
        response = self._response = Response(self, status, headers)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(response)
        if self._is_head:
            response.content.complete()
            self._response = None
            self.abort()

    def on_body(self, body: bytes) -> None:
        """Hand on a part of the body."""
        if self._response is not None:
            self._response.content.feed(body)

    def on_message_complete(self) -> None:
        """End the exchange."""
        response = self._response
        if response is None:
            return
        self._response = None
        response.content.complete()
        self._is_used = True
        if self._parser.should_keep_alive() and self.is_open:
            self._client.put_back(self._host, self)
        else:
            self.abort()

    # For the reader of the response

    def pause(self) -> None:
        """Stop reading: the buffer is full."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        self._last = time.monotonic()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def _fail(self, error: Exception) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)
        if self._response is not None:
            self._response.content.fail(error)
            self._response = None


class HttpClient:
    """A pool of connections to providers."""

    def __init__(self, *, connect_s: float, silence_s: float) -> None:
        self._connect_s = connect_s
        self._silence_s = silence_s
        self._idle: dict[_Host, list[_Connection]] = {}
        self._hosts: dict[str, tuple[_Host, bytes]] = {}
        self._tls: ssl.SSLContext | None = None

    async def request(
        self, method: str, base_url: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> Response:
        """Return the response to a request.

        Raises:
            OSError: there is no connection, or it broke.
        """
        host, name = self._host(base_url)
        lines = [f"{method} {path} HTTP/1.1\r\n".encode("latin-1"), name]
        lines += [f"{key}: {value}\r\n".encode("latin-1") for key, value in headers.items()]
        lines.append(
            b"content-length: %d\r\n\r\n" % len(body) if body or method != "GET" else b"\r\n"
        )
        data = [b"".join([*lines, body])] if len(body) < _HIGH_WATER else [b"".join(lines), body]
        idle = self._idle.get(host)
        now = time.monotonic()
        while idle:
            connection = idle.pop()
            if connection.is_open and now - connection.idle_since < _IDLE_S:
                try:
                    return await connection.send(method, data)
                except _StaleError:
                    continue  # the provider closed it; nothing was answered
            connection.abort()
        connection = await self._connect(host)
        return await connection.send(method, data)

    def _host(self, base_url: str) -> tuple[_Host, bytes]:
        entry = self._hosts.get(base_url)
        if entry is None:
            parts = urlsplit(base_url)
            is_secure = parts.scheme == "https"
            host = (is_secure, parts.hostname or "", parts.port or (443 if is_secure else 80))
            name = parts.netloc.rpartition("@")[2]
            entry = self._hosts[base_url] = (host, f"host: {name}\r\n".encode("latin-1"))
        return entry

    async def _connect(self, host: _Host) -> _Connection:
        is_secure, name, port = host
        if is_secure and self._tls is None:
            self._tls = ssl.create_default_context()
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self._connect_s):
            _, connection = await loop.create_connection(
                lambda: _Connection(self, host, self._silence_s),
                name,
                port,
                ssl=self._tls if is_secure else None,
            )
        return connection

    def put_back(self, host: _Host, connection: _Connection) -> None:
        """Note that a connection can be used again."""
        idle = self._idle.setdefault(host, [])
        if len(idle) < _MAX_IDLE:
            connection.idle_since = time.monotonic()
            idle.append(connection)
        else:
            connection.abort()

    def forget(self, host: _Host, connection: _Connection) -> None:
        """Note that a connection was closed."""
        idle = self._idle.get(host)
        if idle and connection in idle:
            idle.remove(connection)

    def close(self) -> None:
        """Close all idle connections."""
        for idle in self._idle.values():
            for connection in list(idle):
                connection.abort()
        self._idle.clear()
