"""HTTP responses of providers: bodies with limits, redirects, web pages and error bodies.

The HTTP client would decompress all bytes of one read at once, and 64 kB of gzip can become 64 MB.
Here a body is decompressed in pieces, with limits on its compressed and its decompressed size, and
other tasks run between two pieces.
"""

import asyncio
import re
import time
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar
from urllib.parse import urljoin

import msgspec
from msgspec.structs import replace

from metis.adapters.adapter import Adapter
from metis.canonical.blocks import ContentBlock, OpaqueBlock, TextBlock
from metis.canonical.errors import (
    DecodeError,
    MetisError,
    NetworkError,
    OtherProviderError,
    ProviderError,
    RedirectError,
    ResponseLimitError,
    WebPageError,
)
from metis.canonical.message import Message
from metis.canonical.metadata import MessageStatus
from metis.canonical.urls import shown_address
from metis.streaming import MessageComplete
from metis.streaming.arguments import partial_arguments
from metis.streaming.limits import NO_LIMITS, StreamLimits, limit_error
from metis.transport.retry import retry_after
from metis.wire.call import RequestContext
from metis.wire.errors import FIRST_ERROR_STATUS, class_of_status, read_error
from metis.wire.json_access import maybe_list, maybe_object, maybe_text

if TYPE_CHECKING:
    import aiohttp

ACCEPTED_ENCODINGS: Final = "gzip, deflate"
"""The encodings that requests accept; both can be decompressed with a limit."""

LARGE_BYTES: Final = 1 << 20
"""The size above which a response is decoded in a thread, so that other tasks can run."""

MAX_TAIL_BYTES: Final = 65_536
"""How many bytes after a complete message are read, so that the connection can be reused."""

MAX_INTERIM_RESPONSES: Final = 1000
"""How many interim responses (1xx) may precede the response; servers send one or two."""

# Small enough that decompressing one piece does not block the event loop noticeably.
_PIECE_BYTES = 1 << 16
# With this value of `wbits` zlib detects the headers of gzip and zlib itself.
_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS
# The low four bits of a zlib header; raw deflate has no header.
_DEFLATE_METHOD = 8
_Result = TypeVar("_Result")
_FIRST_REDIRECT_STATUS = 300
# No error of a provider is longer. A page of a proxy may be, but only its title is used.
MAX_ERROR_BYTES = 65_536
_BOM = b"\xef\xbb\xbf"
_SPACES = b" \t\r\n"
_TITLE = re.compile(rb"<title[^<>]{0,200}>([^<>]{0,500})", re.IGNORECASE)
_MAX_TITLE = 100
_ERROR_KEYS = ("message", "Message", "error", "detail", "error_description")
_REASON = "a login page of the network, a proxy or a wrong address answers in place of the provider"


def check_redirect(response: "aiohttp.ClientResponse", provider: str) -> None:
    """Refuse a redirect: its target would receive the key and, after a 307 or 308, the request.

    Raises:
        RedirectError: the response is a redirect.
    """
    if not _FIRST_REDIRECT_STATUS <= response.status < FIRST_ERROR_STATUS:
        return
    location = response.headers.get("Location", "")
    try:
        target = shown_address(urljoin(str(response.url), location)) if location else "nowhere"
    except ValueError:
        target = "an address that is not a URL"
    raise RedirectError(target, provider=provider, status=response.status)


class ConnectionWatch:
    """Notices that a connection was closed in the middle of a response.

    After a malformed chunk, aiohttp (3.14) closes the connection without an error for the reader
    of the body, which then waits until the total timeout. This class ends the body, and `check`
    raises an error; bytes that arrived before can still be read.
    """

    def __init__(self, response: "aiohttp.ClientResponse") -> None:
        self._content = response.content
        self._is_broken = False
        connection = response.connection
        protocol = None if connection is None else connection.protocol
        closed = None if protocol is None else protocol.closed
        if closed is not None:
            # asyncio prints an error that is never retrieved. One callback per connection is
            # enough, so an earlier one is removed.
            closed.remove_done_callback(_read_error)
            closed.add_done_callback(_read_error)
            closed.add_done_callback(self._on_closed)
            # Removed at the end of the body; a reused connection would otherwise refer to all its
            # responses.
            self._closed = closed
            self._content.on_eof(self._stop)

    def check(self) -> None:
        """Raise an error if the body ended because its connection was closed."""
        if self._is_broken:
            raise ConnectionError("closed in the middle of a response")

    def _stop(self) -> None:
        self._closed.remove_done_callback(self._on_closed)

    def _on_closed(self, _: object) -> None:
        content = self._content
        if not content.is_eof() and content.exception() is None:
            self._is_broken = True
            content.feed_eof()


def _read_error(closed: "asyncio.Future[None]") -> None:
    if not closed.cancelled():
        closed.exception()


async def read_body(response: "aiohttp.ClientResponse", max_bytes: int) -> bytes:
    """Read the body of a response up to a limit, because a server could send endlessly.

    Raises:
        ResponseLimitError: the body is longer; such a request is not retried.
    """
    body, is_whole = await _read(response, max_bytes)
    if not is_whole:
        raise length_error(max_bytes)
    return body


async def read_response(
    adapter: Adapter, response: "aiohttp.ClientResponse", context: RequestContext, max_bytes: int
) -> bytes:
    """Read the body of a response of a provider.

    Raises:
        ResponseLimitError: the body is longer; the error has the message up to the limit.
    """
    body, is_whole = await _read(response, max_bytes)
    if not is_whole:
        raise await cut_error(adapter, body, context)
    return body


def length_error(max_bytes: int, provider: str | None = None) -> ResponseLimitError:
    """Return the error for a body that is longer than allowed."""
    text = f"the response has more than {max_bytes:,} bytes"
    return ResponseLimitError(text, provider=provider, code="response_bytes")


async def cut_error(adapter: Adapter, body: bytes, context: RequestContext) -> ResponseLimitError:
    """Return the error for a body that is too long, with the message that its beginning has."""
    error = length_error(len(body), adapter.name)
    error.message = await run_outside(_partial_message, adapter, body, context)
    return error


def _partial_message(adapter: Adapter, body: bytes, context: RequestContext) -> Message | None:
    """Return the message that the beginning of a body has; None if it cannot be decoded."""
    # Open strings, lists and objects are closed, as in the partial arguments of a tool call.
    wire = partial_arguments(body.decode(errors="ignore"))
    try:
        message = adapter.from_wire_response(wire, context)
    except ResponseLimitError as error:
        return error.message if isinstance(error.message, Message) else None
    except MetisError:
        return None
    metadata = replace(message.metadata, status=MessageStatus.ERROR)
    content = (*message.content[:-1], *map(_readable_block, message.content[-1:]))
    return replace(message, content=content, metadata=metadata)


def _readable_block(block: ContentBlock) -> ContentBlock:
    """Return the text of a part that was cut before its type; any other block is unchanged.

    The provider would refuse an incomplete part in the history.
    """
    if not isinstance(block, OpaqueBlock):
        return block
    part: Any = msgspec.json.decode(block.raw)
    while isinstance(part, dict | list) and part:
        holder = maybe_object(part)
        text = maybe_text(holder.get("text"))
        if text is not None:
            return TextBlock(text)
        part = maybe_list(holder.get("content") if holder else part)[-1:]
        part = part[0] if part else None
    return block


async def raise_error(
    adapter: Adapter, response: "aiohttp.ClientResponse", context: RequestContext
) -> NoReturn:
    """Read the body of an error response, up to a limit, and raise the error that it states."""
    body, is_whole = await _read(response, MAX_ERROR_BYTES)
    try:
        decode(adapter, body, context, response)
    except ProviderError as error:
        if not is_whole:
            error.is_retryable = False
        raise
    # Codecs raise for an error status; if one returned a message, the call has still failed.
    raise OtherProviderError("the call failed", provider=adapter.name, status=response.status)


async def _read(response: "aiohttp.ClientResponse", max_bytes: int) -> tuple[bytes, bool]:
    """Return at most `max_bytes` of the body, and whether that is the whole body."""
    watch = ConnectionWatch(response)
    start, content = b"", response.content
    if not response.headers.get("content-encoding"):
        # Nearly every body arrives whole, and needs none of the steps below.
        start = await content.readany()
        if content.at_eof() and len(start) <= max_bytes:
            watch.check()
            return start, True
    async with aclosing(body_chunks(response, NO_LIMITS)) as chunks:
        body, is_whole = await read_rest(chunks, max_bytes, start)
    if not is_whole:
        # The connection has unread bytes and cannot be reused.
        response.close()
        return body, False
    watch.check()
    return body, True


def decode(
    adapter: Adapter, body: bytes, context: RequestContext, response: "aiohttp.ClientResponse"
) -> Message:
    """Decode a body; a provider error gets the retry-after and request id of the headers."""
    try:
        if is_web_page(body):
            raise page_error(body, response.status, adapter.name)
        return _decode(adapter, body, context)
    except ProviderError as error:
        headers = response.headers
        if error.retry_after_s is None:
            error.retry_after_s = retry_after(headers)
        if error.request_id is None:
            error.request_id = headers.get("request-id") or headers.get("x-request-id")
        raise


def _decode(adapter: Adapter, body: bytes, context: RequestContext) -> Message:
    try:
        return adapter.from_wire_response(body, context)
    except DecodeError:
        # A proxy or another API may send an error in another form, with a status of success.
        text = _stated_error(body)
        if text is None:
            raise
        raise OtherProviderError(text, provider=adapter.name, status=context.status) from None


def _stated_error(body: bytes) -> str | None:
    """Return the text of an error in any of the usual forms, if a body has one."""
    wire = read_error(body)
    nested = maybe_object(wire.get("error"))
    values = (nested.get("message"), *(wire.get(key) for key in _ERROR_KEYS))
    return next((text for text in map(maybe_text, values) if text), None)


def is_web_page(head: bytes) -> bool:
    """Return whether bytes are markup: bodies and streams of all protocols never begin with `<`."""
    return head.removeprefix(_BOM).lstrip(_SPACES)[:1] == b"<"


def page_error(body: bytes, status: int, provider: str) -> ProviderError:
    """Return the error for a web page; an error status determines its class."""
    match = _TITLE.search(body, 0, MAX_ERROR_BYTES)
    title = " ".join(match[1].decode(errors="replace").split())[:_MAX_TITLE] if match else ""
    page = f"a web page ({title!r})" if title else "a web page"
    if status >= FIRST_ERROR_STATUS:
        text = f"{page} instead of an error of the API"
        return class_of_status(status)(text, provider=provider, status=status)
    return WebPageError(f"{page} instead of a response: {_REASON}", provider=provider)


async def body_chunks(
    response: "aiohttp.ClientResponse", limits: StreamLimits
) -> AsyncGenerator[bytes]:
    """Yield the decompressed body of a response in pieces of limited size.

    The client must not decompress the body itself (`auto_decompress=False`).

    Raises:
        ResponseLimitError: the body is longer than the limits.
        NetworkError: the compressed data is damaged, or of a kind that was not requested.
    """
    decompress = _decompressor(response.headers.get("content-encoding", ""))
    received, size = limits.received_bytes, limits.body_bytes
    async for data in response.content.iter_any():
        available = data[:received]
        for piece in _cut(available) if decompress is None else decompress(available):
            # The bytes within the limit are yielded, so that the partial response can be stored.
            yield piece[:size]
            size -= len(piece)
            if size < 0:
                raise limit_error(limits, "body_bytes")
            if len(piece) == _PIECE_BYTES:
                await asyncio.sleep(0)
        received -= len(data)
        if received < 0:
            raise limit_error(limits, "received_bytes")


async def read_rest(
    chunks: AsyncIterator[bytes], max_bytes: int, start: bytes = b""
) -> tuple[bytes, bool]:
    """Return `start` and the chunks after it as one body, and whether it is the whole body."""
    body = bytearray(start)
    async for chunk in chunks:
        body += chunk
        if len(body) > max_bytes:
            break
    return bytes(body[:max_bytes]), len(body) <= max_bytes


async def run_outside(function: Callable[..., _Result], *arguments: object) -> _Result:
    """Call a function in a thread; a cancelled task waits for the end of the function.

    Otherwise the thread would still change a decoder while the caller reads its message.
    """
    future = asyncio.get_running_loop().run_in_executor(None, function, *arguments)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        raise


async def run_by_size(size: int, function: Callable[..., _Result], *arguments: object) -> _Result:
    """Call a function whose time grows with the size of its input; in a thread if it is large."""
    if size <= LARGE_BYTES:
        return function(*arguments)
    return await run_outside(function, *arguments)


def _cut(data: bytes) -> Iterator[bytes]:
    return (data[start : start + _PIECE_BYTES] for start in range(0, len(data), _PIECE_BYTES))


def _decompressor(encoding: str) -> Callable[[bytes], Iterator[bytes]] | None:
    """Return a function that decompresses bytes into pieces; None for an uncompressed body."""
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return None
    if name not in ("gzip", "x-gzip", "deflate"):
        text = f"the response is compressed in a way that was not requested: {name}"
        raise NetworkError(text, response_began=True)
    return _Inflater(is_deflate=name == "deflate").feed


class _Inflater:
    """Decompresses gzip and deflate; a gzip body may have several members."""

    def __init__(self, *, is_deflate: bool) -> None:
        self._is_deflate = is_deflate
        self._inflate: Any = None

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the decompressed data in pieces of limited size."""
        while data:
            inflate = self._inflate or self._begin(data)
            try:
                piece = inflate.decompress(data, _PIECE_BYTES)
            except zlib.error:
                raise NetworkError(
                    "the compressed response is damaged", response_began=True
                ) from None
            data = inflate.unconsumed_tail
            if inflate.eof:
                data, self._inflate = inflate.unused_data, None
            elif not data and len(piece) == _PIECE_BYTES:
                # The decompressor may still have buffered output.
                yield piece
                yield from self._rest(inflate)
                continue
            if piece:
                yield piece

    def _rest(self, inflate: Any) -> Iterator[bytes]:
        while piece := inflate.decompress(b"", _PIECE_BYTES):
            yield piece
        if inflate.eof:
            self._inflate = None

    def _begin(self, data: bytes) -> Any:
        # Some servers send deflate without the zlib header that RFC 9110 requires.
        is_raw = self._is_deflate and data[0] & 0xF != _DEFLATE_METHOD
        self._inflate = zlib.decompressobj(-zlib.MAX_WBITS if is_raw else _GZIP_OR_ZLIB)
        return self._inflate


def timed(event: MessageComplete, start: float) -> MessageComplete:
    """Return the event with the latency of the response in the usage of its message."""
    metadata = event.message.metadata
    if metadata.usage is None:
        return event
    usage = replace(metadata.usage, latency_ms=round((time.monotonic() - start) * 1000))
    message = replace(event.message, metadata=replace(metadata, usage=usage))
    return replace(event, message=message)


def bounded_response(base: "type[aiohttp.ClientResponse]") -> "type[aiohttp.ClientResponse]":
    """Return a response class that raises after too many interim responses (1xx).

    aiohttp (3.14) reads any number of them, and each one restarts the read timeout.
    """

    class BoundedResponse(base):
        """A response with a limit on the interim responses before it."""

        async def start(self, connection: Any) -> "aiohttp.ClientResponse":
            """Read up to the headers of the final response."""
            protocol = connection.protocol
            read, remaining = protocol.read, MAX_INTERIM_RESPONSES

            async def bounded_read() -> Any:
                nonlocal remaining
                remaining -= 1
                if remaining < 0:
                    raise ConnectionError(f"more than {MAX_INTERIM_RESPONSES} interim responses")
                return await read()

            protocol.read = bounded_read
            try:
                return await super().start(connection)
            finally:
                del protocol.read

    return BoundedResponse
