"""The HTTP client: sends requests to providers; returns messages, stream events or typed errors."""

import asyncio
import importlib
import io
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from functools import lru_cache
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from msgspec import Struct
from msgspec.structs import replace

from metis.adapters.adapter import Adapter
from metis.adapters.embeddings import Embeddings, decode_embeddings, embedding_request
from metis.adapters.reported_cost import cost_request, with_reported_cost
from metis.canonical.errors import (
    AuthenticationError,
    InvalidRequestError,
    InvalidValueError,
    ProviderError,
    RateLimitError,
)
from metis.canonical.message import Message
from metis.canonical.urls import check_base_url, split_login
from metis.streaming import (
    DEFAULT_LIMITS,
    MessageComplete,
    StreamError,
    StreamEvent,
    StreamLimits,
    TextDelta,
    ThinkingDelta,
    ToolUseStart,
)
from metis.transport.concealment import hide_key, safe_text
from metis.transport.keys import Keys, with_key_hint
from metis.transport.response import (
    ACCEPTED_ENCODINGS,
    LARGE_BYTES,
    MAX_TAIL_BYTES,
    ConnectionWatch,
    body_chunks,
    bounded_response,
    check_redirect,
    cut_error,
    decode,
    is_web_page,
    page_error,
    raise_error,
    read_response,
    read_rest,
    run_by_size,
    run_outside,
    timed,
)
from metis.transport.retry import (
    Retry,
    call_failures,
    describe_break,
    provider_error,
)
from metis.transport.signing import auth_headers
from metis.wire.call import RequestContext, WireRequest
from metis.wire.codec import StreamDecoder
from metis.wire.errors import FIRST_ERROR_STATUS

if TYPE_CHECKING:
    import aiohttp

log = logging.getLogger("metis.transport")

T = TypeVar("T")

_CHUNK_BYTES = 1024 * 1024
_COST_DELAYS_S = (1.0, 2.0, 4.0)
"""The waits for a cost: OpenRouter has it only some seconds after the response."""
_NOT_FOUND_STATUS = 404
_VISIBLE_EVENTS = (TextDelta, ThinkingDelta, ToolUseStart)


class Limits(Struct, frozen=True, kw_only=True):
    """How long each phase of a call may take, in seconds, and how large a response may be."""

    connect_s: float = 10.0
    silence_s: float = 120.0
    """The longest time between two chunks of a response."""
    total_s: float | None = 600.0
    connections: int = 1000
    connections_per_host: int = 500
    """A call waits while all are in use; a stream uses one until it ends."""
    response_bytes: int = 100_000_000
    """The largest body of a response that is not streamed."""
    response: StreamLimits = DEFAULT_LIMITS
    """The limits of the content of a response."""


OnFailure = Callable[[ProviderError, int, float | None], Awaitable[None]]
"""Receives each failed attempt: the error, the number of the attempt, the wait before the next."""

OnDecoder = Callable[[StreamDecoder], None]
"""Receives the decoder of each attempt; its message is what has arrived so far."""


class _Call(NamedTuple):
    """One attempt: the request, the adapter of the provider, and the key."""

    adapter: Adapter
    request: WireRequest
    context: RequestContext
    key: str | None


class Transport:
    """One client for all providers: a connection pool, keys, limits, retries.

    Use it as a context manager; any number of tasks may share it.
    """

    def __init__(
        self,
        *,
        keys: Keys | None = None,
        limits: Limits = Limits(),  # noqa: B008 - an immutable value
        retry: Retry = Retry(),  # noqa: B008 - an immutable value
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.keys = keys or Keys()
        self._limits = limits
        self._retry = retry
        self._sleep = sleep
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def prepare(self) -> None:
        """Load the HTTP client now, in a thread, so that the first call does not wait for it."""
        await asyncio.to_thread(importlib.import_module, "aiohttp")
        self._client()

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def complete(
        self,
        adapter: Adapter,
        request: WireRequest,
        context: RequestContext,
        on_failure: OnFailure | None = None,
    ) -> Message:
        """Return the message that answers a request; transient failures are retried."""
        return await self._complete(adapter, request, context, _decode, on_failure)

    async def embed(
        self, adapter: Adapter, model: str, texts: Sequence[str], *, is_query: bool = False
    ) -> Embeddings:
        """Return the vectors of texts, at most `MAX_TEXTS`; transient failures are retried.

        Raises:
            InvalidValueError: the provider has no embeddings, or the texts cannot be embedded.
            ProviderError: the call failed.
        """
        request = embedding_request(adapter.profile, model, texts, is_query=is_query)

        async def read(_: Adapter, body: bytes, *__: object) -> Embeddings:
            return await run_outside(decode_embeddings, adapter.profile, model, body, len(texts))

        context = adapter.complete_context(RequestContext(session_id="embeddings"))
        return await self._complete(adapter, request, context, read)

    async def _complete(
        self,
        adapter: Adapter,
        request: WireRequest,
        context: RequestContext,
        read: "Callable[[Adapter, bytes, RequestContext, aiohttp.ClientResponse], Awaitable[T]]",
        on_failure: OnFailure | None = None,
    ) -> T:
        context = self._with_limits(context)
        attempt = 1
        while True:
            call = _Call(adapter, request, context, self.keys.next(adapter.profile))
            start, has_begun = time.monotonic(), False
            try:
                async with self._post(call) as response:
                    has_begun = True
                    context = replace(context, status=response.status)
                    check_redirect(response, adapter.name)
                    if response.status >= FIRST_ERROR_STATUS:
                        await raise_error(adapter, response, context)
                    max_bytes = self._limits.response_bytes
                    body = await read_response(adapter, response, context, max_bytes)
                    if context.received is not None:
                        context.received.begin(call.key)
                        context.received.add(body)
                    latency_ms = round((time.monotonic() - start) * 1000)
                    context = replace(context, latency_ms=latency_ms)
                    return await read(adapter, body, context, response)
            except call_failures() as failure:
                error = provider_error(failure, adapter.name, has_begun=has_begun)
                await self._wait(error, attempt, call, on_failure)
            attempt += 1

    async def look_up_cost(self, adapter: Adapter, message: Message) -> Message:
        """Return a response with the cost that its provider reports.

        Raises:
            InvalidRequestError: the provider has no look-up, or the message no response id.
            ProviderError: the look-up failed, or states no amount.
        """
        request = cost_request(adapter.profile, message)
        context = adapter.complete_context(RequestContext(session_id=message.session_id))
        delays = iter(_COST_DELAYS_S)
        while True:
            call = _Call(adapter, request, context, self.keys.next(adapter.profile))
            delay_s: float | None = None
            try:
                async with self._post(call) as response:
                    check_redirect(response, adapter.name)
                    context = replace(context, status=response.status)
                    if response.status == _NOT_FOUND_STATUS:
                        delay_s = next(delays, None)
                    if delay_s is None and response.status >= FIRST_ERROR_STATUS:
                        await raise_error(adapter, response, context)
                    if delay_s is None:
                        max_bytes = self._limits.response_bytes
                        body = await read_response(adapter, response, context, max_bytes)
                        return with_reported_cost(message, body, adapter.name)
            except call_failures() as failure:
                error = provider_error(failure, adapter.name, has_begun=False)
                hide_key(error, call.key)
                raise error from None
            await self._sleep(delay_s)

    async def stream(  # noqa: PLR0913 - a call and its observers
        self,
        adapter: Adapter,
        request: WireRequest,
        context: RequestContext,
        on_failure: OnFailure | None = None,
        on_decoder: OnDecoder | None = None,
        *,
        previous_attempts: int = 0,
    ) -> AsyncGenerator[StreamEvent]:
        """Yield the events of a streamed response.

        A call that fails before a visible event is retried. After one it is not, so that no text
        is shown twice; the last event is then a StreamError with the partial message.
        `previous_attempts` counts the attempts at other models, which share one limit.
        """
        context = self._with_limits(context)
        attempt = previous_attempts + 1
        is_shown = False
        while True:
            call = _Call(adapter, request, context, self.keys.next(adapter.profile))
            try:
                decoder = adapter.stream_decoder(context)
                if on_decoder is not None:
                    on_decoder(decoder)
                async with aclosing(self._attempt(call, decoder)) as events:
                    async for event in events:
                        is_shown = True
                        yield event
            except ProviderError as error:
                if is_shown:  # a retry would show the text twice
                    hide_key(error, call.key)
                    raise
                await self._wait(error, attempt, call, on_failure)
            else:
                return
            attempt += 1

    async def _attempt(self, call: _Call, decoder: StreamDecoder) -> AsyncGenerator[StreamEvent]:
        """Yield the events of one attempt; an error before a visible event is raised."""
        # Events are buffered until one is visible, because a retry starts the message again.
        buffered: list[StreamEvent] | None = []
        async with aclosing(self._events(call, decoder)) as events:
            async for event in events:
                if buffered is None:
                    if type(event) is StreamError:
                        yield replace(event, text=safe_text(event.text, call.key))
                    else:
                        yield event
                    continue
                if isinstance(event, StreamError):
                    raise provider_error(event, call.adapter.name)
                buffered.append(event)
                if isinstance(event, _VISIBLE_EVENTS):
                    for early in buffered:
                        yield early
                    buffered = None
        for early in buffered or ():
            yield early

    async def _events(  # noqa: C901, PLR0912 - a function per chunk would cost a tenth of the time of a delta
        self, call: _Call, decoder: StreamDecoder
    ) -> AsyncGenerator[StreamEvent]:
        """Yield the events of one response; an interrupted one ends with a StreamError."""
        adapter, has_begun, start = call.adapter, False, time.monotonic()
        broken_by: Exception | None = None
        size, max_size = 0, 1 << 62
        received = call.context.received
        if received is not None:
            received.begin(call.key)
        try:
            async with (
                self._post(call) as response,
                aclosing(body_chunks(response, call.context.limits)) as chunks,
            ):
                check_redirect(response, adapter.name)
                if response.status >= FIRST_ERROR_STATUS:
                    context = replace(call.context, status=response.status)
                    await raise_error(adapter, response, context)
                watch = ConnectionWatch(response)
                async for chunk in chunks:
                    if received is not None:
                        received.add(chunk)
                    if not has_begun and is_web_page(chunk):
                        raise page_error(chunk, response.status, adapter.name)
                    if not has_begun and adapter.profile.aws_framed and chunk[:1] == b"{":
                        # Plain JSON: as the length of a frame it would be two gigabytes.
                        for event in await self._unstreamed_events(call, response, chunks, chunk):
                            yield event
                        return
                    has_begun = has_begun or not chunk.isspace()
                    size += len(chunk)
                    is_small = size <= LARGE_BYTES
                    events = (
                        decoder.feed(chunk) if is_small else await run_outside(decoder.feed, chunk)
                    )
                    for event in events:
                        if type(event) is MessageComplete:
                            max_size = size + MAX_TAIL_BYTES
                            yield timed(event, start)
                        else:
                            yield event
                    if size > max_size or (events and type(events[-1]) is StreamError):
                        # The message has ended; a server could send more bytes endlessly.
                        response.close()
                        return
                watch.check()
        except call_failures() as failure:
            # Before the first byte a retry is safe. Afterwards it would show the beginning of the
            # response again, so the decoder ends the message instead (T133).
            if not has_begun:
                raise provider_error(failure, adapter.name) from None
            broken_by = failure
            log.info("%s: the stream broke: %s", adapter.name, type(failure).__name__)
        is_small = size <= LARGE_BYTES
        for event in decoder.finish() if is_small else await run_outside(decoder.finish):
            if type(event) is StreamError and broken_by is not None:
                yield describe_break(event, broken_by)
            else:
                yield timed(event, start) if type(event) is MessageComplete else event

    async def _unstreamed_events(
        self,
        call: _Call,
        response: "aiohttp.ClientResponse",
        chunks: AsyncGenerator[bytes],
        first_chunk: bytes,
    ) -> list[StreamEvent]:
        """Return the events of a plain response to a request for a stream."""
        context = replace(call.context, status=response.status)
        body, is_whole = await read_rest(chunks, self._limits.response_bytes, first_chunk)
        if not is_whole:
            raise await cut_error(call.adapter, body, context)
        message = await _decode(call.adapter, body, context, response)
        return call.adapter.response_events(message, context)

    def _with_limits(self, context: RequestContext) -> RequestContext:
        limits = self._limits.response
        return context if context.limits is limits else replace(context, limits=limits)

    def _post(self, call: _Call) -> "AbstractAsyncContextManager[aiohttp.ClientResponse]":
        request, profile, key = call.request, call.adapter.profile, call.key
        headers = dict(request.headers)
        base_url, login = _address(call.adapter.profile.base_url, call.adapter.name)
        url = base_url.rstrip("/") + request.path
        if key is not None:
            headers |= auth_headers(profile, key, request.method, url, headers, request.body)
        if login is not None:
            if any(name.lower() == "authorization" for name in headers):
                text = "the base URL has a login, but the key needs the same header: remove one"
                raise InvalidRequestError(text, provider=profile.name)
            headers["authorization"] = login
        # A long body is written in chunks, so that other tasks do not wait for it.
        is_short = len(request.body) <= _CHUNK_BYTES
        body = request.body if is_short else io.BytesIO(request.body)
        from aiohttp import BasicAuth  # noqa: PLC0415 - loaded by the first call

        proxy, proxy_login = environment_proxy(url)
        return self._client().request(
            request.method,
            url,
            data=body,
            headers=headers,
            proxy=proxy,
            proxy_auth=None if proxy_login is None else BasicAuth.decode(proxy_login, "utf-8"),
            allow_redirects=False,  # `check_redirect` refuses redirects
        )

    def _client(self) -> "aiohttp.ClientSession":
        if self._session is None:
            import aiohttp  # noqa: PLC0415 - loaded by the first call: it is a sixth of the time to the prompt

            limits = self._limits
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=limits.connections, limit_per_host=limits.connections_per_host
                ),
                timeout=aiohttp.ClientTimeout(
                    total=limits.total_s,
                    sock_connect=limits.connect_s,
                    sock_read=limits.silence_s,
                ),
                # `trust_env` would also read the netrc file, whose logins are not meant for
                # providers and collide with their keys.
                trust_env=False,
                # `body_chunks` decompresses with a limit.
                auto_decompress=False,
                headers={"Accept-Encoding": ACCEPTED_ENCODINGS},
                response_class=bounded_response(aiohttp.ClientResponse),
                # A server must not recognise the next request by a cookie.
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session

    async def _wait(
        self, error: ProviderError, attempt: int, call: _Call, on_failure: OnFailure | None
    ) -> None:
        """Wait before the next attempt; raise the error if there is none.

        Raises:
            ProviderError: the given error, which is not retried.
        """
        adapter, key = call.adapter, call.key
        # Removed first, because logs, traces and callbacks all get this object.
        hide_key(error, key)
        delay = self._retry.delay(error, attempt)
        if isinstance(error, RateLimitError) and key is not None:
            self.keys.mark_rate_limited(key, error.retry_after_s)
            # Another key is not limited and can be used at once.
            if attempt < self._retry.attempts and self.keys.has_available(adapter.profile):
                delay = 0.0
        if isinstance(error, AuthenticationError) and key is None:
            error = with_key_hint(error, adapter.profile)
        if on_failure is not None:
            await on_failure(error, attempt, delay)
        if delay is None:
            raise error
        log.info("%s: attempt %d failed, the next in %.1f s", adapter.name, attempt, delay)
        await self._sleep(delay)


@lru_cache(maxsize=64)
def _address(base_url: str, provider: str) -> tuple[str, str | None]:
    """Return the base URL of a provider without the login in it, and that login."""
    try:
        check_base_url(base_url)
    except InvalidValueError as error:
        raise InvalidRequestError(error.reason, provider=provider) from None
    return split_login(base_url)


async def _decode(
    adapter: Adapter, body: bytes, context: RequestContext, response: "aiohttp.ClientResponse"
) -> Message:
    """Decode a plain response; a large one in a thread, so that other tasks can run."""
    return await run_by_size(len(body), decode, adapter, body, context, response)


def environment_proxy(url: str) -> tuple[str | None, str | None]:
    """Return the proxy that the environment names for a URL, and the login for the proxy."""
    parts = urlsplit(url)
    proxy = getproxies().get(parts.scheme)
    if not proxy or proxy_bypass(parts.netloc):
        return None, None
    if "://" not in proxy:
        proxy = f"http://{proxy}"
    return split_login(proxy)
