"""The core of the gateway: settings, providers and pools, and how one request is answered."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any

import msgspec
from msgspec import Struct

from metis import adapters
from metis.adapters.request_reader import RequestReader
from metis.canonical.errors import InvalidRequestError, ProviderError
from metis.gateway.budgets import Budgets, possible_cost
from metis.gateway.client_call import (
    POLICY_HEADER,
    ClientCall,
    ClientKeys,
    ClientLeftError,
    RequestKeys,
    read_body,
    read_keys,
    recorded_headers,
)
from metis.gateway.client_requests import (
    SealMemory,
    read_request,
    request_adapter,
    unknown_response,
)
from metis.gateway.client_sessions import RECORDED_HEADERS, tenant_key
from metis.gateway.config import POLICIES, GatewayConfig, Policy
from metis.gateway.errors import reply_error
from metis.gateway.exchange import CLIENT_LEFT, Exchange
from metis.gateway.models import AUTO, ModelNames, Target
from metis.gateway.pass_through import KeepAlive, broken_stream, pass_request
from metis.gateway.recorder import Recorder
from metis.gateway.response_states import ResponseStates, own_items
from metis.gateway.translation import Translation
from metis.gateway.upstream import Providers, Upstream
from metis.sim.request import Settings
from metis.sim.server import Simulator
from metis.store import Store
from metis.store.exchanges import ResponseItems
from metis.streaming import StreamError
from metis.transport.keys import Keys
from metis.transport.response import LARGE_BYTES, run_by_size, run_outside
from metis.transport.retry import call_failures, provider_error
from metis.wire.seals import may_have_envelope

log = logging.getLogger("metis.gateway")


class _Continuation(Struct):
    """A Responses request that the client may continue by the id of its response."""

    previous_id: str
    added: list[Any]
    """The items of the request itself."""
    items: list[Any]
    """The items of the continued response, followed by `added`."""


class Core:
    """Answers requests for responses, with what all calls of a gateway share."""

    def __init__(  # noqa: PLR0913 - its parts, all by name
        self,
        config: GatewayConfig,
        keys: Keys,
        *,
        reader: RequestReader | None = None,
        recorder: Recorder | None = None,
        store: Store | None = None,
        has_connection_watch: bool = False,
    ) -> None:
        self._provider_keys = keys
        self._simulator: Simulator | None = None
        self.reader = reader or RequestReader()
        self.recorder = recorder
        if recorder is not None:
            recorder.provider_keys = self._keys_of_provider
        self._store = store
        self._seals = SealMemory()
        self._states = ResponseStates(store=store)
        self._budgets = Budgets(store)
        self._has_connection_watch = has_connection_watch
        """Whether the server cancels the task of a call whose client leaves."""
        self._endings: set[asyncio.Task[None]] = set()
        self.is_ready = False
        self.is_draining = False
        self.load(config)
        self.upstream = Upstream(config.limits)

    def load(self, config: GatewayConfig) -> None:
        """Use other settings from the next request on; responses that run are not touched."""
        simulator_url = None if self._simulator is None else self._simulator.base_url
        providers = Providers(config, self._provider_keys, simulator_url)
        self.config, self.providers = config, providers
        self.keys = ClientKeys(config)
        self.models = ModelNames(config, providers)

    async def start(self) -> None:
        """Open the connection pool and the recorder; without a provider, start the simulator."""
        await self.upstream.start()
        if not self.providers.names():
            self._simulator = Simulator(settings=Settings(strict=False))
            await self._simulator.start()
            self.load(self.config)
        if self.recorder is not None:
            await self.recorder.start()
        self.is_ready = True

    def _keys_of_provider(self, name: str) -> Sequence[str]:
        provider = self.providers.get(name)
        return () if provider is None else provider.keys.lookup(provider.profile)[0]

    async def stop(self) -> None:
        """Store what is queued, and close all connections."""
        self.is_ready = False
        await asyncio.gather(*self._endings)
        await self._states.close()
        if self.recorder is not None:
            await self.recorder.close()
        if self._store is not None:
            await self._store.close()
        await self.upstream.close()
        if self._simulator is not None:
            await self._simulator.stop()

    async def guarded(
        self, call: ClientCall, handle: Callable[[ClientCall], Awaitable[None]]
    ) -> None:
        """Answer a call; every failure becomes an error in the client's protocol."""
        exchange = call.exchange
        # The server cancels this task if the connection is lost.
        call.scope["metis.task"] = asyncio.current_task()
        try:
            await handle(call)
        except (asyncio.CancelledError, ClientLeftError):
            exchange.status, exchange.error = CLIENT_LEFT, "the client left"
        except Exception as error:  # noqa: BLE001 - any failure becomes an error for the client
            # The error is noted already if the client leaves while it is sent.
            with suppress(ClientLeftError):
                await self._fail(call, error)
        finally:
            self.finish(call)

    def finish(self, call: ClientCall) -> None:
        """Price and record a call that has ended."""
        call.exchange.timings.end = time.monotonic()
        if call.watch is not None:
            call.watch.cancel()
        recorder = self.recorder
        if recorder is None or call.reservation is None or call.exchange.size <= LARGE_BYTES:
            self._end(call)
            return
        task = asyncio.ensure_future(self._end_large(call, recorder))
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)

    def _end(self, call: ClientCall) -> None:
        self._settle(call)
        if self.recorder is not None:
            self.recorder.record(call.exchange)

    async def _end_large(self, call: ClientCall, recorder: Recorder) -> None:
        """Price a long response in a thread before the call ends: its cost counts for a budget."""
        await run_outside(recorder.prepare_response, call.exchange)
        self._end(call)

    async def reserve(self, call: ClientCall, output_tokens: int = 0) -> None:
        """Reserve what a call may cost in the budget of its key.

        Raises:
            RateLimitError: the budget is used up.
        """
        if call.key.budget is not None:
            amount = possible_cost(call.exchange, len(call.body), output_tokens, self.config)
            call.reservation = await self._budgets.reserve(call.key, amount)

    def _settle(self, call: ClientCall) -> None:
        """Price a passed call, and replace a reservation by the true cost."""
        exchange = call.exchange
        if exchange.kind == "other":
            meter = call.meter
            meter.add(b"".join(exchange.response_parts))
            meter.finish(exchange, self.config.prices)
            # Uploads and audio are passed, not stored.
            exchange.request_body, exchange.response_parts = b"", []
        if call.reservation is None:
            return
        usage = exchange.usage
        if exchange.kind == "chat" and self.recorder is not None:
            usage = self.recorder.priced(exchange).usage
        cost = Decimal(0) if usage is None else usage.cost_usd
        self._budgets.settle(call.reservation, exchange.id, cost)

    async def _fail(self, call: ClientCall, error: Exception) -> None:
        exchange = call.exchange
        provider = self.providers.get(exchange.provider)
        if isinstance(error, call_failures()) and not isinstance(error, ProviderError):
            error = (
                provider_error(error, exchange.provider)
                if provider is None or not call.is_started
                else broken_stream(error, provider)
            )
        if not call.is_started:
            await reply_error(call, error, provider)
            return
        await reply_error(call, error, provider)  # notes the error only
        if not exchange.is_stream:
            raise error  # the server closes the connection: a short body is no response
        encoder = adapters.get(call.endpoint.adapter).stream_encoder()
        text = exchange.error or str(error)
        data = encoder.encode(StreamError(exchange.id, type(error).__name__, text))
        await call.write(data + encoder.finish(), more=False)

    async def answer(self, call: ClientCall) -> None:
        """Answer a request for a response of a model."""
        exchange, endpoint = call.exchange, call.endpoint
        limits = self.config.limits
        call.body = exchange.request_body = await read_body(call, limits)
        if not self._has_connection_watch:
            task = asyncio.current_task()
            call.watch = asyncio.ensure_future(_cancel_if_left(call, task))
        size = len(call.body)
        keys = await run_by_size(size, read_keys, call.body)
        exchange.requested_model = endpoint.model or keys.model or ""
        if endpoint.stream is not None and (endpoint.stream or keys.stream is None):
            exchange.is_stream = endpoint.stream
        else:
            exchange.is_stream = endpoint.streams_by_default if keys.stream is None else keys.stream
        name = exchange.requested_model
        if name == AUTO:
            request = await run_by_size(size, read_request, call, keys, self.reader, self._seals)
            name = self.models.routed(request, len(call.body))
        target = self.models.resolve(name, endpoint)
        if (previous := keys.continued_response) and endpoint.protocol == "openai_responses":
            # A response that the gateway does not have may be stored at the client's provider.
            may_wait = target.mode == "translate"
            await self._states.load(tenant_key(exchange.tenant), previous, may_wait=may_wait)
        if target.mode == "pass" and self._needs_translation(call, keys):
            target = Target(target.provider, target.model, "translate")
        exchange.provider, exchange.model = target.provider.name, target.model
        exchange.mode = target.mode
        await self.reserve(call, keys.output_tokens)
        keep_alive = KeepAlive(call, limits.keep_alive_s, limits.silence_s)
        if target.mode == "pass":
            await self._begin(call)
            await pass_request(call, target, self.upstream, keep_alive)
            return
        continuation = await run_by_size(size, self._continue, call, keys)
        translation = self.translation(call, target, keys)
        request = await run_by_size(size, translation.read)
        await self._begin(call)
        await translation.run(request, self.policy(call), keep_alive)
        if continuation is not None:
            row = await run_by_size(size, self._held_items, exchange, translation, continuation)
            if row is not None:
                self._states.save(row)

    def _needs_translation(self, call: ClientCall, keys: RequestKeys) -> bool:
        """Whether a request cannot go on as it is, though its provider speaks its protocol.

        A seal in an envelope was made by another provider: the client's own would refuse the
        whole request. A Responses-shaped body on a Chat path has to be read as what it is.
        """
        return (
            request_adapter(call.endpoint, keys) != call.endpoint.adapter
            or may_have_envelope(call.body)
            or self._holds_previous(call, keys)
        )

    def _holds_previous(self, call: ClientCall, keys: RequestKeys) -> bool:
        """Whether a request continues a response that the gateway holds, not its provider."""
        name = keys.continued_response
        return bool(name) and self._states.has(tenant_key(call.exchange.tenant), name)

    def _continue(self, call: ClientCall, keys: RequestKeys) -> _Continuation | None:
        """Put what a Responses request continues before its input.

        Returns None if the client may not continue the response by its id.
        """
        if call.endpoint.protocol != "openai_responses":
            return None
        is_stored = not isinstance(keys.store, msgspec.Raw) or bytes(keys.store) != b"false"
        previous = keys.continued_response
        if not is_stored and not previous:
            return None
        wire = msgspec.json.decode(call.body, type=dict[str, Any])
        added = own_items(wire)
        items = self._states.expand(tenant_key(call.exchange.tenant), wire)
        if previous and "previous_response_id" not in wire:
            call.body = call.exchange.request_body = msgspec.json.encode(wire)
        return _Continuation(previous, added, items) if is_stored else None

    def _held_items(
        self, exchange: Exchange, translation: Translation, continuation: _Continuation
    ) -> ResponseItems | None:
        """Hold what the client may continue by the id of its response; returns the row of it."""
        tenant = tenant_key(exchange.tenant)
        response_id, output = translation.output_items()
        if not response_id:
            return None
        items, previous = [*continuation.items, *output], continuation.previous_id
        self._states.add(tenant, response_id, items)
        added = [*continuation.added, *output]
        if previous == response_id:  # some servers give all responses one id
            added, previous = items, ""
        text = msgspec.json.encode(added).decode()
        return ResponseItems(tenant, response_id, exchange.session_id, previous, text)

    async def expanded(self, call: ClientCall, request: dict[str, Any]) -> list[Any]:
        """Return the items of a Responses request, with those of the response that it continues.

        Raises:
            InvalidRequestError: the gateway does not hold that response.
        """
        tenant, previous = tenant_key(call.exchange.tenant), request.get("previous_response_id")
        if isinstance(previous, str) and previous:
            await self._states.load(tenant, previous, may_wait=True)
        items = self._states.expand(tenant, request)
        if request.get("previous_response_id"):
            raise unknown_response(request["previous_response_id"])
        return items

    def translation(self, call: ClientCall, target: Target, keys: RequestKeys) -> Translation:
        """Return the translation of a call."""
        return Translation(
            call, target, self.upstream, self.reader, self.config.limits, keys, self._seals
        )

    async def _begin(self, call: ClientCall) -> None:
        """Set the session of a call; only an unknown history may wait for the store."""
        recorder, exchange = self.recorder, call.exchange
        if recorder is not None:
            exchange.headers = recorded_headers(call.headers, RECORDED_HEADERS)
            await run_by_size(len(call.body), recorder.prepare, exchange)
            if not recorder.begin(exchange):
                await recorder.search(exchange)

    def policy(self, call: ClientCall) -> Policy:
        """Return the policy of a call: of its header, its key or the settings; the strictest."""
        header = (call.header(POLICY_HEADER) or b"").decode("latin-1").strip().lower()
        stated: list[Policy] = [call.key.policy or self.config.policy]
        if header:
            if header not in POLICIES:
                names = ", ".join(POLICIES)
                raise InvalidRequestError(f"x-metis-policy is one of {names}", status=400)
            stated.append(POLICIES[POLICIES.index(header)])
        return max(stated, key=POLICIES.index)


async def _cancel_if_left(call: ClientCall, task: "asyncio.Task[Any] | None") -> None:
    """Cancel a call whose client leaves; for servers that report this only on request."""
    while (await call.receive())["type"] != "http.disconnect":
        pass
    if task is not None:
        task.cancel()
