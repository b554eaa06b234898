"""Requests for a provider of another protocol: decoded, fitted, encoded, and the response back."""

import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from metis import adapters
from metis.adapters.adapter import Adapter
from metis.adapters.client_features import BETA_HEADER
from metis.adapters.request_reader import RequestReader
from metis.canonical.errors import (
    DecodeError,
    InvalidRequestError,
    InvalidValueError,
    ProviderError,
    ServerError,
)
from metis.canonical.message import Message
from metis.gateway.client_call import ClientCall, RequestKeys, recorded_headers
from metis.gateway.client_sessions import tenant_key
from metis.gateway.config import Limits, Policy
from metis.gateway.endpoints import STREAM_TYPES, Endpoint
from metis.gateway.errors import JSON_TYPE, metis_headers
from metis.gateway.exchange import Exchange
from metis.gateway.models import Target
from metis.gateway.pass_through import KeepAlive, ModelEcho
from metis.gateway.recorder import READ_SESSION
from metis.gateway.upstream import Upstream
from metis.projection import Change, Loss
from metis.streaming import StreamError, StreamEvent
from metis.streaming.events import provider_error as error_of_event
from metis.streaming.limits import DEFAULT_LIMITS
from metis.streaming.text_frames import SseParser
from metis.transport.response import (
    ConnectionWatch,
    body_chunks,
    decode,
    is_web_page,
    page_error,
    raise_error,
    read_body,
)
from metis.transport.retry import call_failures, describe_break, provider_error
from metis.wire.call import (
    AdapterOptions,
    CanonicalRequest,
    RequestContext,
    SealRecord,
    WireRequest,
)
from metis.wire.codec import StreamDecoder, StreamEncoder
from metis.wire.json_access import maybe_list, maybe_object

if TYPE_CHECKING:
    import aiohttp

_FIRST_ERROR_STATUS = 400
_UNPROCESSABLE = 422
_BAD_GATEWAY = 502
_MAX_LISTED_LOSSES = 5
_BYTES_PER_TOKEN = 4
_MEDIA_BYTES = 6000
"""What an image counts as: some 1500 tokens."""
_OPTION_HEADERS = frozenset({BETA_HEADER})


class SealMemory:
    """The seals of responses whose clients have no field for them, by tenant; bounded.

    A client of Chat Completions sends a response back without the signature of its thinking; the
    provider that signed it gets it again from here.
    """

    def __init__(self, most: int = 20_000) -> None:
        self._most = most
        self._values: OrderedDict[tuple[str, str], str] = OrderedDict()

    @property
    def has_any(self) -> bool:
        """Whether anything is stored; most gateways never store any."""
        return bool(self._values)

    def store(self, tenant: str, record: SealRecord) -> None:
        """Store the seals of a response."""
        for key in record.keys:
            self._values[tenant, key] = record.value
        while len(self._values) > self._most:
            self._values.popitem(last=False)

    def find(self, tenant: str, keys: Sequence[str]) -> Mapping[str, str]:
        """Return the seals that are stored under keys."""
        values = ((key, self._values.get((tenant, key))) for key in keys)
        return {key: value for key, value in values if value is not None}


def read_request(
    call: ClientCall, keys: RequestKeys | None, reader: RequestReader, seals: SealMemory
) -> CanonicalRequest:
    """Return the request of a client in the canonical form, and note it in the exchange."""
    endpoint, exchange = call.endpoint, call.exchange
    exchange.request_adapter = request_adapter(endpoint, keys)
    client, tenant = adapters.get(exchange.request_adapter), tenant_key(exchange.tenant)
    # Clients send the whole history with every request, and equal requests must give equal
    # bytes, or the provider's cache is lost: ids do not depend on the session.
    context = RequestContext(
        session_id=READ_SESSION,
        model=endpoint.model or None,
        provider=client.name,
        path=endpoint.path,
        # Hosts of Claude differ in the beta features that they accept (T220).
        headers=recorded_headers(call.headers, _OPTION_HEADERS),
        find_seals=partial(seals.find, tenant) if seals.has_any else None,
    )
    exchange.request = reader.read(client, tenant, call.body, context)
    return exchange.request


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
            text = "Previous response with id {!r} not found: send the whole input instead"
            raise InvalidRequestError(
                text.format(native["previous_response_id"]),
                status=400,
                code="previous_response_not_found",
            )
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
        searching = server_tools(request, options, self._client, self._adapter)
        try:
            wire = self._adapter.to_wire(request.messages, request.tools, searching)
        except InvalidValueError:
            # Some models search only without other tools; the search is then a loss.
            if searching is options:
                raise
            wire = self._adapter.to_wire(request.messages, request.tools, options)
        exchange.losses = list(wire.losses)
        if searching.tool_choice != options.tool_choice:
            exchange.losses.append(_unforced_search(self._adapter.name))
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
        wire = self.encode(request, policy)
        self._context = self._client_context(request)
        context = RequestContext(
            session_id=exchange.session_id or exchange.id,
            model=f"{self._target.provider.name}:{self._target.model}",
            provider=self._adapter.name,
            tools=self._context.tools,
            output=request.options.output,
            on_loss=exchange.losses.append,
        )
        response = await self._upstream.post(
            self._target.provider,
            exchange,
            wire.path,
            wire.headers,
            wire.body,
            method=wire.method,
            adapter=self._adapter,
        )
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
        latency = round((time.monotonic() - exchange.timings.begin) * 1000)
        context = replace(context, status=response.status, latency_ms=latency)
        try:
            message = decode(self._adapter, body, context, response)
        except DecodeError as error:
            raise _unreadable(error, self._adapter.name) from None
        exchange.response = message
        served = self._client.encode_response(message, self._context)
        exchange.losses += served.losses
        echo = self._echo()
        body = served.body if echo is None else echo.feed(served.body) + echo.finish()
        await call.reply(200, [JSON_TYPE, *metis_headers(call)], body)

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

    async def _stream(
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
        has_begun = False
        try:
            async for chunk in body_chunks(response, DEFAULT_LIMITS):
                if not has_begun:
                    has_begun = not chunk.isspace()
                    if is_web_page(chunk):
                        raise page_error(chunk, response.status, self._adapter.name)
                await writer.write(decoder.feed(chunk), keep_alive)
            watch.check()
        except call_failures() as error:
            if not call.is_started:
                raise provider_error(error, self._adapter.name) from None
            failure = error
        finally:
            exchange.response = _message_so_far(decoder)
        events = decoder.finish()
        if failure is not None:
            events = [
                describe_break(event, failure) if isinstance(event, StreamError) else event
                for event in events
            ]
        keep_alive.stop()
        await writer.finish(events)
        exchange.response = _message_so_far(decoder)
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


def includes_usage(keys: RequestKeys | None) -> bool:
    """Whether a request of Chat Completions asks for the usage of a stream."""
    options = None if keys is None else keys.stream_options
    return isinstance(options, msgspec.Raw) and b"include_usage" in bytes(options)


def estimated_tokens(body: bytes, messages: Sequence[Message]) -> int:
    """Return about how many tokens a request has; an estimate by words takes milliseconds."""
    size = len(body)
    if b"base64" in body:
        for message in messages:
            for block in message.content:
                source = getattr(block, "source", None)
                if source is not None and source.kind == "base64":
                    size -= len(source.data) - _MEDIA_BYTES
    return max(1, size // _BYTES_PER_TOKEN)


def request_adapter(endpoint: Endpoint, keys: RequestKeys | None) -> str:
    """Return the adapter that reads a request: a Chat path may get a Responses body."""
    is_chat = endpoint.protocol == "openai_chat"
    if not is_chat or keys is None or keys.messages is not msgspec.UNSET:
        return endpoint.adapter
    return endpoint.adapter if keys.input is msgspec.UNSET else "openai-responses"


def server_tools(
    request: CanonicalRequest, options: AdapterOptions, client: Adapter, target: Adapter
) -> AdapterOptions:
    """Return the options with the provider's own web search for a client's, where both have one.

    Raises:
        InvalidRequestError: the request has no other tools than ones that only the client's
            provider runs; the answer could only be empty.
    """
    if client.profile.protocol == target.profile.protocol:
        return options
    kinds = native_tool_kinds(options.native.get(client.profile.protocol, {}))
    if not kinds:
        return options
    if any("search" in kind.lower() for kind in kinds) and target.profile.search is not None:
        choice = options.tool_choice
        if choice is not None and choice.name not in (None, *(tool.name for tool in request.tools)):
            # Claude Code forces its search, which is no function of the target.
            options = replace(options, tool_choice=None)
        return replace(options, search=True)
    if request.tools:
        return options  # the adapter reports each as a loss
    text = f"{target.name} cannot run the tool {kinds[0]!r} of {client.name}, and there is no other"
    raise InvalidRequestError(text, status=400)


def _unforced_search(adapter: str) -> Loss:
    return Loss(
        session_id="",
        message_id="",
        block_type="option",
        adapter=adapter,
        reason="the provider decides itself whether it searches",
        change=Change.ALTERED,
        path="$.tool_choice",
    )


_SERVER_TOOL_MARKS = ("search", "code_", "computer", "mcp", "fetch", "image_generation", "maps")


def native_tool_kinds(native: Mapping[str, Any]) -> list[str]:
    """Return the kinds of tools in native options that a provider runs itself."""
    tools = map(maybe_object, maybe_list(native.get("tools")))
    kinds = [str(tool.get("type") or next(iter(tool), "")) for tool in tools]
    return [kind for kind in kinds if any(mark in kind.lower() for mark in _SERVER_TOOL_MARKS)]


def refuse_losses(losses: list[Loss], policy: Policy) -> None:
    """Raise an error if a policy refuses losses.

    `refuse critical` refuses a request of which a part of a message or a tool would be dropped;
    `refuse any` refuses every change.
    """
    if policy == "warn" or not losses:
        return
    refused = losses if policy == "refuse any" else [loss for loss in losses if is_critical(loss)]
    if refused:
        listed = "; ".join(f"{loss.path}: {loss.reason}" for loss in refused[:_MAX_LISTED_LOSSES])
        text = f"{len(refused)} parts would not reach {refused[0].adapter} ({policy}): {listed}"
        raise InvalidRequestError(text, status=_UNPROCESSABLE)


def is_critical(loss: Loss) -> bool:
    """Whether a loss drops a part of a message or a tool, not only an option."""
    return loss.change is Change.DROPPED and loss.block_type != "option"
