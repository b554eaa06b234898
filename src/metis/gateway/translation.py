"""Requests for a provider of another protocol: decoded, fitted, encoded, and the response back."""

import time
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from metis import adapters
from metis.adapters.adapter import Adapter
from metis.adapters.request_reader import RequestReader
from metis.canonical.errors import (
    DecodeError,
    InvalidRequestError,
    InvalidValueError,
    ProviderError,
    ServerError,
)
from metis.canonical.message import Message
from metis.gateway.client_call import ClientCall, RequestKeys
from metis.gateway.client_requests import (
    SealMemory,
    estimated_tokens,
    includes_usage,
    read_request,
    refuse_losses,
    request_adapter,
    server_tools,
    unforced_search,
    unknown_response,
    without_billing_line,
)
from metis.gateway.client_sessions import tenant_key
from metis.gateway.config import Limits, Policy
from metis.gateway.endpoints import STREAM_TYPES, Endpoint
from metis.gateway.errors import JSON_TYPE, metis_headers
from metis.gateway.exchange import MAX_RECORDED_BYTES, BodyCollector, Exchange
from metis.gateway.models import Target
from metis.gateway.pass_through import KeepAlive, ModelEcho
from metis.gateway.upstream import Upstream
from metis.projection import Loss
from metis.streaming import MessageComplete, StreamError, StreamEvent
from metis.streaming.events import provider_error as error_of_event
from metis.streaming.text_frames import SseParser
from metis.transport.response import (
    LARGE_BYTES,
    MAX_TAIL_BYTES,
    ConnectionWatch,
    body_chunks,
    decode,
    is_web_page,
    page_error,
    raise_error,
    read_body,
    run_by_size,
    run_outside,
)
from metis.transport.retry import call_failures, describe_break, provider_error
from metis.wire.call import (
    CanonicalRequest,
    RequestContext,
    WireRequest,
)
from metis.wire.codec import StreamDecoder, StreamEncoder
from metis.wire.json_access import maybe_list

if TYPE_CHECKING:
    import aiohttp

_FIRST_ERROR_STATUS = 400
_BAD_GATEWAY = 502


class Translation:
    """One request on its way to a provider of another protocol."""

    def __init__(  # noqa: PLR0913, PLR0917 - what one translation needs
        self,
        call: ClientCall,
        target: Target,
        upstream: Upstream,
        reader: RequestReader,
        limits: Limits,
        keys: RequestKeys | None,
        seals: "SealMemory",
    ) -> None:
        self._call = call
        self._target = target
        self._upstream = upstream
        self._reader = reader
        self._limits = limits
        self._keys = keys
        self._seals = seals
        self._context = RequestContext()
        self._endpoint: Endpoint = call.endpoint
        self._client: Adapter = adapters.get(call.endpoint.adapter)
        # Cursor sends the body of a Responses request to the path of Chat Completions.
        self._request_client: Adapter = adapters.get(request_adapter(call.endpoint, keys))
        self._adapter: Adapter = target.provider.adapter

    def read(self) -> CanonicalRequest:
        """Return the request in the canonical form."""
        request = read_request(self._call, self._keys, self._reader, self._seals)
        if request.options.native.get("anthropic", {}).get("safeguards"):
            # Claude Code then makes the check itself; without the error it would wait for results.
            text = "safeguards: no other provider than Anthropic runs this check"
            raise InvalidRequestError(text, status=400)
        native = request.options.native.get("openai_responses", {})
        if native.get("previous_response_id"):
            # Dropped, it would leave the model without the conversation.
            raise unknown_response(native["previous_response_id"])
        return request

    def encode(self, request: CanonicalRequest, policy: Policy) -> WireRequest:
        """Return the request for the provider; its losses are known before anything is sent.

        Raises:
            InvalidRequestError: the policy refuses the losses.
        """
        exchange = self._call.exchange
        options = replace(
            request.options, model=self._target.model, stream=exchange.is_stream or None
        )
        messages, billing_loss = without_billing_line(request.messages, self._adapter)
        searching = server_tools(request, options, self._client, self._adapter)
        try:
            wire = self._adapter.to_wire(messages, request.tools, searching)
        except InvalidValueError:
            # Some models search only without other tools; the search is then a loss.
            if searching is options:
                raise
            wire = self._adapter.to_wire(messages, request.tools, options)
        exchange.losses = [*billing_loss, *wire.losses]
        if searching.tool_choice != options.tool_choice:
            exchange.losses.append(unforced_search(self._adapter.name))
        refuse_losses(exchange.losses, policy)
        return wire

    async def run(self, request: CanonicalRequest, policy: Policy, keep_alive: KeepAlive) -> None:
        """Send the request and answer the client.

        As long as the client has received nothing, a failure is answered by another address of the
        provider, also one that comes as the first event of a stream.
        """
        provider, remaining = self._target.provider, len(self._target.provider.adapters)
        while True:
            remaining -= 1
            try:
                return await self._attempt(request, policy, keep_alive)
            except ProviderError as error:
                if self._call.is_started or not error.is_retryable or remaining <= 0:
                    raise
                _note_failure(self._call.exchange, error)
                provider.mark_down(self._adapter)
                self._adapter = provider.adapter

    async def _attempt(
        self, request: CanonicalRequest, policy: Policy, keep_alive: KeepAlive
    ) -> None:
        exchange = self._call.exchange
        wire = await run_by_size(len(self._call.body), self.encode, request, policy)
        self._context = self._client_context(request)
        context = RequestContext(
            session_id=exchange.session_id or exchange.id,
            model=f"{self._target.provider.name}:{self._target.model}",
            provider=self._adapter.name,
            tools=self._context.tools,
            output=request.options.output,
            on_loss=exchange.losses.append,
            limits=self._limits.response,
        )
        if exchange.records_bytes:
            exchange.sent_body, exchange.sent_path = wire.body, wire.path.partition("?")[0]
            exchange.response_parts = []
        keep_alive.start()
        try:
            response = await self._upstream.post(
                self._target.provider,
                exchange,
                wire.path,
                wire.headers,
                wire.body,
                method=wire.method,
                adapter=self._adapter,
            )
            await keep_alive.wait()
        except BaseException:
            keep_alive.stop()
            raise
        try:
            if response.status >= _FIRST_ERROR_STATUS:
                await raise_error(self._adapter, response, replace(context, status=response.status))
            if exchange.is_stream:
                await self._stream(response, context, keep_alive)
            else:
                await self._answer(response, context)
        except BaseException:
            response.close()
            raise
        finally:
            keep_alive.stop()
            response.release()

    def _client_context(self, request: CanonicalRequest) -> RequestContext:
        """Return what the response side has to know: the client's tools, its model name, seals."""
        exchange, client = self._call.exchange, self._request_client
        context = client.response_context(
            request,
            RequestContext(
                session_id=exchange.session_id or exchange.id,
                provider=client.name,
                path=self._endpoint.path,
                on_seals=partial(self._seals.store, tenant_key(exchange.tenant)),
            ),
        )
        # The name before the colon is the issuer of sealed parts, the rest is what clients read.
        return replace(
            context,
            model=f"{self._adapter.name}:{exchange.requested_model}",
            provider=self._client.name,
            include_usage=self._client.profile.protocol != "openai_chat"
            or includes_usage(self._keys),
            prompt_tokens=estimated_tokens(self._call.body, request.messages)
            if exchange.is_stream
            else 0,
        )

    async def _answer(self, response: "aiohttp.ClientResponse", context: RequestContext) -> None:
        call, exchange = self._call, self._call.exchange
        body = await read_body(response, self._limits.response_bytes)
        if exchange.records_bytes:
            exchange.response_parts.append(body[:MAX_RECORDED_BYTES])
        exchange.received_bytes = len(body)
        latency = round((time.monotonic() - exchange.timings.begin) * 1000)
        context = replace(context, status=response.status, latency_ms=latency)
        try:
            message = await run_by_size(len(body), decode, self._adapter, body, context, response)
        except DecodeError as error:
            raise _unreadable(error, self._adapter.name) from None
        exchange.response = message
        body = await run_by_size(len(body), self._served_body, message)
        await call.reply(200, [JSON_TYPE, *metis_headers(call)], body)

    def _served_body(self, message: Message) -> bytes:
        served = self._client.encode_response(message, self._context)
        self._call.exchange.losses += served.losses
        echo = self._echo()
        return served.body if echo is None else echo.feed(served.body) + echo.finish()

    def output_items(self) -> tuple[str, list[Any]]:
        """Return the id and the output of the response, as a client of Responses got them."""
        message = self._call.exchange.response
        if message is None:
            return "", []
        body = self._client.encode_response(message, self._context).body
        wire = msgspec.json.decode(body, type=dict[str, Any])
        return str(wire.get("id")), maybe_list(wire.get("output"))

    def _echo(self) -> ModelEcho | None:
        # A response of the client's own provider is written as it came, with its model name.
        if self._client.profile.protocol != self._adapter.profile.protocol:
            return None
        return ModelEcho(self._call.exchange.requested_model, self._endpoint.protocol)

    async def _stream(  # noqa: C901 - a function per chunk would cost a tenth of a delta
        self,
        response: "aiohttp.ClientResponse",
        context: RequestContext,
        keep_alive: KeepAlive,
    ) -> None:
        """Write the events of a response as they come, in the protocol of the client."""
        call, exchange = self._call, self._call.exchange
        decoder = self._adapter.stream_decoder(replace(context, status=response.status))
        writer = StreamWriter(call, self._client, self._context, self._echo())
        watch = ConnectionWatch(response)
        failure: Exception | None = None
        has_begun, size, last_byte = False, 0, 1 << 62
        collector = BodyCollector(exchange) if exchange.records_bytes else None
        try:
            async for chunk in body_chunks(response, self._limits.response):
                if collector is not None:
                    collector.add(chunk)
                if not has_begun:
                    has_begun = not chunk.isspace()
                    if is_web_page(chunk):
                        raise page_error(  # noqa: TRY301 - as whatever else may break the stream
                            chunk, response.status, self._adapter.name
                        )
                size += len(chunk)
                is_small = size <= LARGE_BYTES
                events = decoder.feed(chunk) if is_small else await run_outside(decoder.feed, chunk)
                await writer.write(events, keep_alive)
                if events and type(events[-1]) is MessageComplete:
                    last_byte = size + MAX_TAIL_BYTES
                if size > last_byte or (events and type(events[-1]) is StreamError):
                    # The response has ended, and what follows could be without end.
                    response.close()
                    break
            else:
                watch.check()
        except call_failures() as error:
            if not call.is_started:
                exchange.response = await run_by_size(size, _message_so_far, decoder)
                raise provider_error(error, self._adapter.name) from None
            failure = error
        except BaseException:
            exchange.response = await run_by_size(size, _message_so_far, decoder)
            raise
        exchange.received_bytes = size
        events = await run_by_size(size, decoder.finish)
        if failure is not None:
            events = [
                describe_break(event, failure) if isinstance(event, StreamError) else event
                for event in events
            ]
        keep_alive.stop()
        exchange.response = _message_so_far(decoder)
        await writer.finish(events)
        exchange.losses += writer.losses


def _note_failure(exchange: Exchange, error: ProviderError) -> None:
    """Note why an attempt failed that began as a success."""
    last = exchange.attempts[-1] if exchange.attempts else None
    if last is not None and last.error is None:
        exchange.attempts[-1] = replace(last, error=error.text)


def _unreadable(error: DecodeError, provider: str) -> ServerError:
    """Return the error for a response that is none: the provider's fault, not the client's."""
    text = f"the response of {provider} cannot be read ({error})"
    return ServerError(text, provider=provider, status=_BAD_GATEWAY)


def _message_so_far(decoder: StreamDecoder) -> Message | None:
    try:
        return decoder.message
    except (AttributeError, ValueError):
        return None


class StreamWriter:
    """Writes stream events to a client, in the form of its protocol and of the path it called."""

    def __init__(
        self,
        call: ClientCall,
        client: Adapter,
        context: RequestContext,
        echo: ModelEcho | None = None,
    ) -> None:
        self._call = call
        self._echo = echo
        self._encoder: StreamEncoder = client.stream_encoder(context)
        self._array = ArrayWriter() if is_array(call) else None

    @property
    def losses(self) -> list[Loss]:
        """What the client did not receive of the response."""
        return self._encoder.losses

    async def write(self, events: list[StreamEvent], keep_alive: KeepAlive | None = None) -> None:
        """Write what has arrived; the response begins with its first bytes."""
        encode = self._encoder.encode
        if not self._call.is_started:
            # Before the first byte an error can still have its status.
            for event in events:
                if isinstance(event, StreamError):
                    raise error_of_event(event, "")
        data = b"".join([encode(event) for event in events])
        if data:
            await self._send(data, keep_alive)

    async def finish(self, events: list[StreamEvent]) -> None:
        """Write the end of the stream."""
        await self.write(events)
        data = self._encoder.finish()
        if self._echo is not None:
            data = self._echo.feed(data) + self._echo.finish()
        if self._array is not None:
            data = self._array.feed(data) + self._array.finish()
        if not self._call.is_started:
            await self._begin()
        await self._call.write(data, more=False)

    async def _send(self, data: bytes, keep_alive: KeepAlive | None) -> None:
        if self._echo is not None:
            data = self._echo.feed(data)
        if self._array is not None:
            data = self._array.feed(data)
        if not self._call.is_started:
            await self._begin()
            if keep_alive is not None:
                keep_alive.start()
        elif keep_alive is not None:
            keep_alive.note(data)
        await self._call.write(data)

    async def _begin(self) -> None:
        kind = "array" if self._array is not None else self._call.endpoint.shape
        content_type = STREAM_TYPES["sse" if kind == "array" and self._array is None else kind]
        if self._call.endpoint.protocol == "gemini" and self._array is None:
            content_type = STREAM_TYPES["sse"]
        headers = [(b"content-type", content_type), (b"cache-control", b"no-cache")]
        await self._call.start(200, headers + metis_headers(self._call))


def is_array(call: ClientCall) -> bool:
    """Whether a client of Gemini asks for a stream as a JSON array instead of events."""
    return call.endpoint.shape == "array" and b"alt=sse" not in call.query


class ArrayWriter:
    """Turns server-sent events into the elements of a JSON array, as Gemini streams by default."""

    def __init__(self) -> None:
        self._parser = SseParser()
        self._has_begun = False

    def feed(self, lines: bytes) -> bytes:
        """Return the elements that are complete."""
        pieces: list[bytes] = []
        for _, data in self._parser.feed(lines):
            pieces += (b",\r\n" if self._has_begun else b"[", bytes(data))
            self._has_begun = True
        return b"".join(pieces)

    def finish(self) -> bytes:
        """Return the end of the array."""
        return b"\n]" if self._has_begun else b"[]"
