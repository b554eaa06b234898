"""Everything beside responses of models: lists, counts, health, stored exchanges, other paths."""

import binascii
from typing import Any

import msgspec
from msgspec.structs import replace

from metis.canonical.errors import InvalidRequestError, ProviderError
from metis.gateway.client_call import (
    ClientCall,
    Receive,
    Scope,
    Send,
    forwarded_headers,
    read_body,
    read_keys,
    without_key_parameter,
)
from metis.gateway.compaction import compact
from metis.gateway.config import ClientKey
from metis.gateway.core import Core
from metis.gateway.endpoints import CHAT, MESSAGES, RESPONSES, Endpoint, OtherPath, match_other
from metis.gateway.errors import (
    JSON_TYPE,
    encode_error,
    metis_headers,
    reply_error,
    safe_error_body,
)
from metis.gateway.exchange import BodyCollector
from metis.gateway.model_lists import (
    client_names,
    encode_list,
    encode_model,
    list_shape,
    model_info,
    ollama_show,
    ollama_tag,
)
from metis.gateway.models import ListedModel
from metis.gateway.pass_through import KeepAlive, pass_request, returned_headers
from metis.gateway.upstream import Provider
from metis.gateway.usage_meter import MAX_METERED_BYTES, requested_model
from metis.transport.response import MAX_ERROR_BYTES, ConnectionWatch
from metis.version import __version__
from metis.wire.json_access import maybe_object

_encode = msgspec.json.Encoder().encode
_NOT_FOUND = 404
_FIRST_ERROR_STATUS = 400
_REQUEST_PATH = "/metis/requests/"
_OPEN_PATHS = frozenset({"/", "/healthz", "/readyz", "/api/hello", "/api/version"})
"""Paths that need no key: programs probe them before they send one."""
_COUNT_KEYS = {
    "anthropic": "input_tokens",
    "openai_responses": "input_tokens",
    "gemini": "totalTokens",
    "bedrock_converse": "inputTokens",
}
_NATIVE_COUNTS = frozenset({"anthropic", "gemini", "openai-responses"})
"""Providers with an endpoint that counts tokens."""


class SideEndpoints:
    """Answers calls that are no request for a response."""

    def __init__(self, gateway: Core) -> None:
        self._gateway = gateway

    async def serve(
        self, scope: Scope, receive: Receive, send: Send, endpoint: Endpoint | None
    ) -> None:
        """Answer one call."""
        path: str = scope["path"]
        if path in _OPEN_PATHS and scope["method"] in ("GET", "HEAD"):
            await self._open(send, path)
            return
        shown = endpoint or client_endpoint(scope)
        try:
            key = self._gateway.keys.authenticate(scope["headers"], scope["query_string"])
            if endpoint is not None and endpoint.action in ("count", "compact", "other"):
                call = ClientCall(scope, receive, send, endpoint, key)
                handle = self._count if endpoint.action == "count" else self._native_only
                await self._gateway.guarded(call, handle)
                return
            value = await self._value(scope, receive, send, endpoint, key)
        except ProviderError as error:
            await refuse(send, error, shown)
            return
        if value is not None:
            await reply_json(send, 200, value)
            return
        await self._other(scope, receive, send, shown, key)

    async def _open(self, send: Send, path: str) -> None:
        gateway = self._gateway
        if path == "/readyz":
            is_ready = gateway.is_ready and not gateway.is_draining
            text = "ready" if is_ready else "not ready"
            await reply_json(send, 200 if is_ready else 503, {"status": text})
        elif path == "/api/version":
            # Clients of Ollama refuse servers that are too old.
            await reply_json(send, 200, {"version": "0.30.0"})
        elif path == "/":
            await reply_json(send, 200, {"name": "metis gateway", "version": __version__})
        else:
            await reply_json(send, 200, {"status": "ok"})

    async def _value(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        endpoint: Endpoint | None,
        key: ClientKey,
    ) -> Any:
        """Return the JSON at a path; None if nothing is there."""
        gateway, path = self._gateway, scope["path"]
        if path.startswith(_REQUEST_PATH) and scope["method"] == "GET":
            recorder = gateway.recorder
            request_id = path.removeprefix(_REQUEST_PATH)
            value = None
            if recorder is not None:
                value = await recorder.lookup(request_id, key.tenant)
            if value is None:
                raise InvalidRequestError("there is no such request", status=_NOT_FOUND)
            return value
        if path == "/metis/metrics":
            return {} if gateway.recorder is None else gateway.recorder.metrics()
        if path in ("/model/info", "/v1/model/info"):
            return model_info(gateway.models.listed())
        if endpoint is None:
            return None
        if endpoint.action == "show":
            call = ClientCall(scope, receive, send, endpoint, key)
            wire = _read_object(await read_body(call, gateway.config.limits))
            return ollama_show(self._listed(str(wire.get("model") or wire.get("name") or "")))
        return self._listing(scope, endpoint)

    def _listing(self, scope: Scope, endpoint: Endpoint) -> Any:
        headers = dict(scope["headers"])
        shape = list_shape(scope["path"], headers, scope["query_string"])
        match endpoint.action:
            case "models":
                agent = headers.get(b"user-agent", b"")
                return encode_list(shape, client_names(self._gateway.models.listed(), agent))
            case "model":
                return encode_model(shape, self._listed(endpoint.model))
            case "tags":
                return {"models": [ollama_tag(model) for model in self._gateway.models.listed()]}
            case "processes":
                return {"models": []}
            case _:
                return None

    def _listed(self, name: str) -> ListedModel:
        for model in self._gateway.models.listed():
            if name in (model.name, f"{model.name}:latest"):
                return model
        target = self._gateway.models.resolve(name, CHAT)  # raises if nobody serves it
        return ListedModel(
            name, self._gateway.models.info(f"{target.provider.name}:{target.model}")
        )

    async def _count(self, call: ClientCall) -> None:
        """Count the tokens of a request: by the provider where it can, else as an estimate."""
        gateway, exchange, endpoint = self._gateway, call.exchange, call.endpoint
        exchange.kind = "count"
        call.body = exchange.request_body = await read_body(call, gateway.config.limits)
        keys = read_keys(call.body)
        name = keys.model or endpoint.model
        exchange.requested_model = endpoint.model if endpoint.protocol == "gemini" else name
        target = gateway.models.resolve(exchange.requested_model, endpoint)
        exchange.provider, exchange.model = target.provider.name, target.model
        limits = gateway.config.limits
        if target.mode == "pass" and target.provider.name in _NATIVE_COUNTS:
            exchange.mode = "pass"
            keep_alive = KeepAlive(call, limits.keep_alive_s, limits.silence_s)
            await pass_request(call, target, gateway.upstream, keep_alive)
            return
        exchange.mode = "translate"
        call.body, adapter_name = _counted_body(call.body, endpoint)
        path = endpoint.path.replace(":countTokens", ":generateContent")
        call.endpoint = replace(endpoint, path=path, adapter=adapter_name)
        translation = gateway.translation(call, target, keys)
        request = translation.read()
        adapter = target.provider.adapter
        count = adapter.estimate_input_tokens(request.messages, request.tools, model=target.model)
        value: dict[str, Any] = {_COUNT_KEYS[endpoint.protocol]: count}
        if endpoint.protocol == "openai_responses":
            value["object"] = "response.input_tokens"
        headers = [JSON_TYPE, (b"x-metis-estimated", b"true"), *metis_headers(call)]
        await call.reply(200, headers, _encode(value))

    async def _native_only(self, call: ClientCall) -> None:
        """Pass a call that only the client's own provider can answer."""
        gateway, exchange, endpoint = self._gateway, call.exchange, call.endpoint
        exchange.kind = "other"
        call.body = exchange.request_body = await read_body(call, gateway.config.limits)
        exchange.requested_model = endpoint.model or read_keys(call.body).model or ""
        target = gateway.models.resolve(exchange.requested_model, endpoint)
        exchange.provider, exchange.model = target.provider.name, target.model
        await gateway.reserve(call)
        if target.mode != "pass" and endpoint.action == "compact":
            await compact(gateway, call, target)
            return
        if target.mode != "pass":
            text = f"{target.provider.name} has nothing like {call.scope['path']}"
            raise InvalidRequestError(text, status=_NOT_FOUND)
        limits = gateway.config.limits
        keep_alive = KeepAlive(call, limits.keep_alive_s, limits.silence_s)
        await pass_request(call, target, gateway.upstream, keep_alive)

    async def _other(
        self, scope: Scope, receive: Receive, send: Send, shown: Endpoint, key: ClientKey
    ) -> None:
        """Pass anything else to the provider that the path or the client's protocol names."""
        names = {name for name, _ in scope["headers"]}
        place = match_other(
            scope["path"],
            is_anthropic=b"anthropic-version" in names,
            is_google=b"x-goog-api-key" in names,
        )
        provider = None if place is None else self._gateway.providers.get(place.provider)
        if place is None or provider is None:
            text = f"the gateway serves nothing at {scope['method']} {scope['path']}"
            if place is not None and provider is None:
                text = f"{text}: it has no key for {place.provider}"
            await refuse(send, InvalidRequestError(text, status=_NOT_FOUND), shown)
            return
        call = ClientCall(scope, receive, send, shown, key)
        call.exchange.kind, call.exchange.provider = "other", provider.name

        async def handle(call: ClientCall) -> None:
            await self._pass(call, provider, place)

        await self._gateway.guarded(call, handle)

    async def _pass(self, call: ClientCall, provider: Provider, place: OtherPath) -> None:
        exchange = call.exchange
        call.body = await read_body(call, self._gateway.config.limits)
        exchange.requested_model = requested_model(place.path, call.query, call.body)
        exchange.model = exchange.requested_model
        await self._gateway.reserve(call)
        has_credentials = not provider.has_keys
        headers = forwarded_headers(call.headers, with_credentials=has_credentials)
        for name, value in provider.profile.headers.items():
            headers.setdefault(name, value)
        response = await self._gateway.upstream.post(
            provider,
            exchange,
            place.quoted + without_key_parameter(call.query),
            headers,
            call.body,
            method=call.scope["method"],
            has_credentials=has_credentials,
        )
        try:
            if response.status >= _FIRST_ERROR_STATUS:
                body = await response.content.read(MAX_ERROR_BYTES)
                safe = safe_error_body(body, response.status, provider)
                if isinstance(safe, bytes):
                    exchange.error = safe[:500].decode(errors="replace")
                    sent = returned_headers(response, is_changed=True) + metis_headers(call)
                    await call.reply(response.status, sent, safe)
                else:
                    await reply_error(call, safe, provider)
                return
            watch = ConnectionWatch(response)
            await call.start(response.status, returned_headers(response) + metis_headers(call))
            collector = BodyCollector(exchange, MAX_METERED_BYTES)
            is_read = _may_state_usage(response.headers.get("content-type", ""))
            async for data in response.content.iter_any():
                if is_read:
                    collector.add(data)
                await call.write(data)
            watch.check()
            await call.write(b"", more=False)
        except BaseException:
            response.close()
            raise
        finally:
            response.release()


def _may_state_usage(content_type: str) -> bool:
    return "json" in content_type or "event-stream" in content_type


def _read_object(body: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        text = f"the body of the request is not a JSON object: {error}"
        raise InvalidRequestError(text, status=400) from None


def _counted_body(body: bytes, endpoint: Endpoint) -> tuple[bytes, str]:
    """Return the request that is counted, and the adapter that reads it.

    Gemini's `countTokens` may wrap it once more; `count-tokens` of Bedrock always does, either a
    request of Converse or the bytes of an invocation.
    """
    wire = _read_object(body)
    if endpoint.protocol == "gemini" and isinstance(wire.get("generateContentRequest"), dict):
        return _encode(wire["generateContentRequest"]), endpoint.adapter
    if endpoint.protocol != "bedrock_converse":
        return body, endpoint.adapter
    wrapped = maybe_object(wire.get("input"))
    invoked = maybe_object(wrapped.get("invokeModel")).get("body")
    if isinstance(invoked, str):
        try:
            return binascii.a2b_base64(invoked), "bedrock"
        except binascii.Error:
            raise InvalidRequestError("invokeModel.body is not base64", status=400) from None
    return _encode(maybe_object(wrapped.get("converse"))), endpoint.adapter


def client_endpoint(scope: Scope) -> Endpoint:
    """Return the endpoint by whose rules a client reads errors, by its headers."""
    names = {name for name, _ in scope["headers"]}
    if b"anthropic-version" in names:
        return MESSAGES
    if b"x-goog-api-key" in names or scope["path"].startswith("/v1beta"):
        return Endpoint(adapter="gemini", protocol="gemini")
    return RESPONSES if b"originator" in names else CHAT


async def reply_json(send: Send, status: int, value: Any) -> None:
    """Send a JSON value."""
    body = _encode(value)
    headers = [JSON_TYPE, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def refuse(send: Send, error: Exception, endpoint: Endpoint) -> None:
    """Send an error in the protocol of an endpoint."""
    status, body, headers = encode_error(error, endpoint.adapter)
    headers.append((b"content-length", str(len(body)).encode()))
    # The body of the request is not read: the connection cannot be used again.
    headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
