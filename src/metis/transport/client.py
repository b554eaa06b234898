"""The HTTP client: requests to providers in, messages, stream events and typed errors out."""

import asyncio
import importlib
import io
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self

from msgspec import Struct
from msgspec.structs import replace

from metis.adapters.adapter import Adapter
from metis.canonical.errors import (
    AuthenticationError,
    NetworkError,
    ProviderError,
    RateLimitError,
)
from metis.canonical.message import Message
from metis.streaming import (
    MessageComplete,
    StreamError,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseStart,
)
from metis.transport.keys import Keys
from metis.transport.retry import (
    Retry,
    call_failures,
    hide_key,
    provider_error,
    retry_after,
    stream_breaks,
    without_key,
)
from metis.transport.signing import read_credentials, sign
from metis.wire.call import RequestContext, WireRequest
from metis.wire.codec import StreamDecoder

if TYPE_CHECKING:
    import aiohttp

log = logging.getLogger("metis.transport")

_CHUNK_BYTES = 1024 * 1024
_FIRST_ERROR_STATUS = 400
_VISIBLE_EVENTS = (TextDelta, ThinkingDelta, ToolUseStart)


class Limits(Struct, frozen=True, kw_only=True):
    """How long each phase of a call may take, in seconds, and how large a response may be."""

    connect_s: float = 10.0
    silence_s: float = 120.0
    """Between two chunks of a response."""
    total_s: float | None = 600.0
    connections: int = 1000
    connections_per_host: int = 500
    """A call waits while all are in use; a stream uses one until it ends."""
    response_bytes: int = 100_000_000


OnFailure = Callable[[ProviderError, int, float | None], Awaitable[None]]
"""Receives each failed attempt: the error, the number of the attempt, the wait before the next."""

OnDecoder = Callable[[StreamDecoder], None]
"""Receives the decoder of each attempt, which knows at any moment what has arrived so far."""


class _Call(NamedTuple):
    """One attempt: what is sent to which provider, with which key."""

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
        attempt = 1
        while True:
            call = _Call(adapter, request, context, self.keys.next(adapter.profile))
            start = time.monotonic()
            try:
                async with self._post(call) as response:
                    body = await self._read(response)
                    latency_ms = round((time.monotonic() - start) * 1000)
                    context = replace(context, status=response.status, latency_ms=latency_ms)
                    return _decode(adapter, body, context, response)
            except call_failures() as failure:
                error = provider_error(failure, adapter.name)
                await self._wait(error, attempt, call, on_failure)
            attempt += 1

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

        A call that fails before anything of the response was visible is retried; after that never,
        so that no text is shown twice: the last event is then a StreamError with what arrived.
        `previous_attempts` counts the attempts at other models: all share one number of attempts.
        """
        attempt = previous_attempts + 1
        while True:
            call = _Call(adapter, request, context, self.keys.next(adapter.profile))
            try:
                decoder = adapter.stream_decoder(context)
                if on_decoder is not None:
                    on_decoder(decoder)
                async with aclosing(self._attempt(call, decoder)) as events:
                    async for event in events:
                        yield event
            except ProviderError as error:
                await self._wait(error, attempt, call, on_failure)
            else:
                return
            attempt += 1

    async def _attempt(self, call: _Call, decoder: StreamDecoder) -> AsyncGenerator[StreamEvent]:
        """Yield the events of one attempt; raise only while nothing visible was yielded."""
        # Held back until something is visible: a retry would start the message anew.
        buffered: list[StreamEvent] | None = []
        async with aclosing(self._events(call, decoder)) as events:
            async for event in events:
                if buffered is None:
                    if type(event) is StreamError:
                        yield replace(event, text=without_key(event.text, call.key))
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

    async def _events(self, call: _Call, decoder: StreamDecoder) -> AsyncGenerator[StreamEvent]:
        """Yield the events of one response; one that breaks off ends with a StreamError."""
        adapter, has_begun, start = call.adapter, False, time.monotonic()
        try:
            async with self._post(call) as response:
                if response.status >= _FIRST_ERROR_STATUS:
                    context = replace(call.context, status=response.status)
                    _decode(adapter, await self._read(response), context, response)
                async for chunk in response.content.iter_any():
                    has_begun = True
                    for event in decoder.feed(chunk):
                        yield (_timed(event, start) if type(event) is MessageComplete else event)
        except call_failures() as failure:
            # Before the first byte a retry is safe; afterwards the decoder ends the message (T133).
            if not has_begun or not isinstance(failure, stream_breaks()):
                raise provider_error(failure, adapter.name) from None
            log.info("%s: the stream broke: %s", adapter.name, type(failure).__name__)
        for event in decoder.finish():
            yield _timed(event, start) if type(event) is MessageComplete else event

    def _post(self, call: _Call) -> "AbstractAsyncContextManager[aiohttp.ClientResponse]":
        request, profile, key = call.request, call.adapter.profile, call.key
        headers = dict(request.headers)
        url, auth = profile.base_url.rstrip("/") + request.path, profile.auth
        credentials = read_credentials(key) if key is not None and auth.aws_service else None
        if credentials is not None:
            headers |= sign(
                request.method,
                url,
                headers,
                request.body,
                credentials,
                service=auth.aws_service or "",
                now=datetime.now(UTC),
            )
        elif key is not None:
            headers |= auth.headers(key)
        # A long body is written in chunks, so that other tasks do not wait for it.
        is_short = len(request.body) <= _CHUNK_BYTES
        body = request.body if is_short else io.BytesIO(request.body)
        return self._client().request(request.method, url, data=body, headers=headers)

    async def _read(self, response: "aiohttp.ClientResponse") -> bytes:
        # Bounded, since a server could send without end.
        body = await response.content.read(self._limits.response_bytes)
        if not response.content.at_eof():
            raise NetworkError(f"a response of more than {self._limits.response_bytes} bytes")
        return body

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
                # Proxies of companies are set by environment variables.
                trust_env=True,
                auto_decompress=True,
            )
        return self._session

    async def _wait(
        self, error: ProviderError, attempt: int, call: _Call, on_failure: OnFailure | None
    ) -> None:
        """Wait before the next attempt, or raise the error if there is to be none."""
        adapter, key = call.adapter, call.key
        # Before anybody sees the error: logs, traces and callbacks all get this object.
        hide_key(error, key)
        delay = self._retry.delay(error, attempt)
        if isinstance(error, RateLimitError) and key is not None:
            self.keys.mark_rate_limited(key, error.retry_after_s)
            # Another key is not limited, so there is nothing to wait for.
            if attempt < self._retry.attempts and self.keys.has_available(adapter.profile):
                delay = 0.0
        if isinstance(error, AuthenticationError) and key is None:
            error = _with_key_hint(error, adapter)
        if on_failure is not None:
            await on_failure(error, attempt, delay)
        if delay is None:
            raise error
        log.info("%s: attempt %d failed, the next in %.1f s", adapter.name, attempt, delay)
        await self._sleep(delay)


def _decode(
    adapter: Adapter, body: bytes, context: RequestContext, response: "aiohttp.ClientResponse"
) -> Message:
    """Decode a body; an error gets the retry-after and request id of the headers."""
    try:
        return adapter.from_wire_response(body, context)
    except ProviderError as error:
        headers = response.headers
        if error.retry_after_s is None:
            error.retry_after_s = retry_after(headers)
        if error.request_id is None:
            error.request_id = headers.get("request-id") or headers.get("x-request-id")
        raise


def _timed(event: MessageComplete, start: float) -> MessageComplete:
    """Add to the usage of the final message how long the response took."""
    metadata = event.message.metadata
    if metadata.usage is None:
        return event
    usage = replace(metadata.usage, latency_ms=round((time.monotonic() - start) * 1000))
    message = replace(event.message, metadata=replace(metadata, usage=usage))
    return replace(event, message=message)


def _with_key_hint(error: AuthenticationError, adapter: Adapter) -> AuthenticationError:
    """Add to an error how to provide a key, since none was sent."""
    variable = adapter.profile.auth.variable
    hint = f"; set {variable}" if variable else ""
    return AuthenticationError(
        f"{error.text} (no key for {adapter.name} was found{hint})",
        provider=error.provider,
        status=error.status,
        code=error.code,
        kind=error.kind,
        request_id=error.request_id,
    )
