"""Sockets: Responses on a WebSocket, as Codex calls them, and tunnels to realtime endpoints."""

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from metis.canonical.errors import (
    InvalidRequestError,
    MetisError,
    ProviderError,
    RateLimitError,
)
from metis.canonical.ids import new_ulid
from metis.gateway.client_call import (
    ClientCall,
    ClientLeftError,
    Receive,
    Scope,
    Send,
    forwarded_headers,
    without_key_parameter,
)
from metis.gateway.config import ClientKey
from metis.gateway.core import Core
from metis.gateway.endpoints import RESPONSES, match_other, match_path
from metis.gateway.errors import encode_error
from metis.gateway.response_states import ResponseStates
from metis.gateway.upstream import Provider
from metis.gateway.usage_meter import requested_model
from metis.streaming.text_frames import SseParser

if TYPE_CHECKING:
    import aiohttp

log = logging.getLogger("metis.gateway")

_decode = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder().encode
_MAX_HISTORY_BYTES = 32 * 1024 * 1024
_MAX_WAITING = 64
_UPGRADE_REQUIRED = 426
_NORMAL, _REFUSED = 1000, 1008
_SWITCHING, _BAD_GATEWAY = 101, 502
_FIRST_ERROR_STATUS = 400


async def serve_socket(gateway: Core, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve one WebSocket: Responses, or a tunnel to a realtime endpoint."""
    await receive()  # the request to connect
    try:
        key = gateway.keys.authenticate(scope["headers"], scope["query_string"])
    except ProviderError as error:
        await _refuse(scope, send, 401, error)
        return
    endpoint = match_path("POST", scope["path"])
    if endpoint is not None and endpoint.protocol == "openai_responses":
        if not gateway.config.web_socket:
            error = InvalidRequestError("no WebSocket here: use POST", status=_UPGRADE_REQUIRED)
            await _refuse(scope, send, _UPGRADE_REQUIRED, error)
            return
        await send({"type": "websocket.accept"})
        await ResponsesSocket(gateway, scope, receive, send, key).run()
        return
    place = match_other(scope["path"], is_anthropic=False, is_google=False)
    provider = None if place is None else gateway.providers.get(place.provider)
    if place is None or provider is None:
        error = InvalidRequestError(f"no socket at {scope['path']}", status=404)
        await _refuse(scope, send, 404, error)
        return
    call = ClientCall({**scope, "method": "GET"}, receive, send, RESPONSES, key)
    exchange = call.exchange
    exchange.kind, exchange.provider, exchange.is_stream = "other", provider.name, True
    exchange.model = requested_model(place.path, scope["query_string"], b"")
    exchange.requested_model = exchange.model
    try:
        await gateway.reserve(call)
        await tunnel(gateway, call, provider, place.quoted)
    except ProviderError as error:
        exchange.status, exchange.error = error.status or _BAD_GATEWAY, error.text
        await _refuse(scope, send, exchange.status, error)
    finally:
        gateway.finish(call)


async def _refuse(scope: Scope, send: Send, status: int, error: ProviderError) -> None:
    """Answer the handshake with an error; closing the socket would not tell the client why."""
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": _REFUSED})
        return
    _, body, headers = encode_error(error, RESPONSES.adapter)
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "websocket.http.response.start", "status": status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": body})


class ResponsesSocket:
    """Responses on one socket: one after the other, or side by side in lanes (`stream_id`).

    A request may continue an earlier response of the socket by its id: the gateway holds what was
    sent and answered, so that any provider can go on, also one that stores nothing.
    """

    def __init__(
        self, gateway: Core, scope: Scope, receive: Receive, send: Send, key: ClientKey
    ) -> None:
        self._gateway = gateway
        self._scope = scope
        self._receive = receive
        self._send = send
        self._key = key
        self._states = ResponseStates(_MAX_HISTORY_BYTES)
        self._lanes: dict[str | None, asyncio.Task[None]] = {}
        """The last request of each lane; one lane has one response at a time."""
        self._waiting = 0

    async def run(self) -> None:
        """Answer messages until the client leaves."""
        try:
            while (message := await self._receive())["type"] == "websocket.receive":
                data = message.get("bytes") or (message.get("text") or "").encode()
                await self._queue(data)
        except ClientLeftError:
            pass
        finally:
            tasks = list(self._lanes.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _queue(self, data: bytes) -> None:
        """Answer a message as soon as the earlier ones of its lane are answered."""
        try:
            request = _decode(data)
        except (msgspec.MsgspecError, RecursionError) as error:
            await self._error(None, InvalidRequestError(f"not a JSON object: {error}", status=400))
            return
        lane = request.pop("stream_id", None)
        if lane is not None and not isinstance(lane, str):
            await self._error(None, InvalidRequestError("stream_id: not a text", status=400))
        elif self._waiting >= _MAX_WAITING:
            text = f"more than {_MAX_WAITING} requests wait on this socket"
            await self._error(lane, RateLimitError(text, status=429))
        else:
            self._waiting += 1
            task = asyncio.ensure_future(self._after(self._lanes.get(lane), lane, request))
            self._lanes[lane] = task

    async def _after(
        self, earlier: "asyncio.Task[None] | None", lane: str | None, request: dict[str, Any]
    ) -> None:
        """Answer a request once an earlier one of its lane is answered."""
        if earlier is not None:
            await asyncio.wait((earlier,))
        try:
            # Later writes end in the same way; the end of `run` is what the server reports.
            with suppress(ClientLeftError):
                await self._answer(lane, request)
        finally:
            self._waiting -= 1
            if self._lanes.get(lane) is asyncio.current_task():
                del self._lanes[lane]

    async def _answer(self, lane: str | None, request: dict[str, Any]) -> None:
        try:
            kind = request.pop("type", None)
            if kind != "response.create":
                raise InvalidRequestError(f"unknown event {kind!r}", status=400)
            # Older clients put the request into an object of its own.
            request = request.pop("response", None) or request
            history = self._states.expand("", request)
        except MetisError as error:
            await self._error(lane, error)
            return
        if request.pop("generate", True) is False:
            await self._warm_up(lane, request, history)
            return
        request["stream"] = True
        body = _encode(request)
        scope: Scope = {
            **self._scope,
            "type": "http",
            "method": "POST",
            "headers": [
                header for header in self._scope["headers"] if not header[0].startswith(b"sec-")
            ],
        }
        frames = _Frames(self._send, lane)
        messages = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive() -> dict[str, Any]:
            for message in messages:
                return message
            return await asyncio.Future()  # this task is cancelled if the client leaves

        call = ClientCall(scope, receive, frames.send, RESPONSES, self._key)
        await self._gateway.guarded(call, self._gateway.answer)
        if frames.response is not None:
            output: list[Any] = frames.response.get("output") or []
            self._states.add("", str(frames.response.get("id")), [*history, *output])

    async def _warm_up(self, lane: str | None, request: dict[str, Any], history: list[Any]) -> None:
        """Answer a request that only announces what comes: nothing is called."""
        response: dict[str, Any] = {
            "id": f"resp_{new_ulid()}",
            "object": "response",
            "created_at": 0,
            "status": "in_progress",
            "model": request.get("model"),
            "output": [],
        }
        event = {"type": "response.created", "sequence_number": 0, "response": response}
        await self._text(lane, event)
        response = {**response, "status": "completed", "usage": _NO_USAGE}
        event = {"type": "response.completed", "sequence_number": 1, "response": response}
        await self._text(lane, event)
        self._states.add("", response["id"], history)

    async def _error(self, lane: str | None, error: Exception) -> None:
        status, body, _ = encode_error(error, RESPONSES.adapter)
        await self._text(lane, _error_event(status, body))

    async def _text(self, lane: str | None, event: dict[str, Any]) -> None:
        try:
            await self._send(_event_message(lane, event))
        except OSError as error:
            raise ClientLeftError from error


def _event_message(lane: str | None, event: dict[str, Any]) -> dict[str, Any]:
    """An event as a message of the socket, with the lane that its request named."""
    if lane is not None:
        event = {**event, "stream_id": lane}
    return {"type": "websocket.send", "text": _encode(event).decode()}


_NO_USAGE = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}


def _error_event(status: int, body: bytes) -> dict[str, Any]:
    try:
        error = _decode(body).get("error")
    except msgspec.MsgspecError:
        error = {"message": body[:500].decode(errors="replace")}
    return {"type": "error", "status": status, "error": error}


class _Frames:
    """Turns the events of a response into messages of a socket."""

    def __init__(self, send: Send, lane: str | None) -> None:
        self._send = send
        self._lane = lane
        self._parser = SseParser()
        self._status = 0
        self._body = b""
        self.response: dict[str, Any] | None = None
        """The response, once it is complete."""

    async def send(self, message: dict[str, Any]) -> None:
        """Send what the HTTP handler writes."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
            return
        body = message.get("body", b"")
        if self._status >= _FIRST_ERROR_STATUS:
            self._body += body
            if not message.get("more_body", False):
                event = _error_event(self._status, self._body)
                await self._send(_event_message(self._lane, event))
            return
        for name, data in self._parser.feed(body):
            if data[:1] != b"{":
                continue
            if name in (b"response.completed", b"response.incomplete"):
                self.response = _decode(data).get("response")
            text = bytes(data).decode()
            if self._lane is not None:
                text = f'{{"stream_id":{_encode(self._lane).decode()},{text[1:]}'
            await self._send({"type": "websocket.send", "text": text})


async def tunnel(gateway: Core, call: ClientCall, provider: Provider, path: str) -> None:
    """Connect a client with a socket of a provider; only its usage is read on the way.

    Raises:
        ProviderError: the provider has no such socket.
    """
    headers = forwarded_headers(call.headers)
    headers = {name: value for name, value in headers.items() if not name.startswith("sec-")}
    socket = await gateway.upstream.socket(
        provider, path + without_key_parameter(call.query), headers
    )
    await call.send({"type": "websocket.accept"})
    call.exchange.status = _SWITCHING

    tasks = [
        asyncio.ensure_future(_upwards(call.receive, socket)),
        asyncio.ensure_future(_downwards(socket, call)),
    ]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        # A side that fails because the other has closed is the end of the tunnel, not an error.
        await asyncio.gather(*tasks, return_exceptions=True)
        await socket.close()


async def _upwards(receive: Receive, socket: "aiohttp.ClientWebSocketResponse") -> None:
    while True:
        message = await receive()
        if message["type"] != "websocket.receive":
            return
        if message.get("bytes") is not None:
            await socket.send_bytes(message["bytes"])
        else:
            await socket.send_str(message["text"])


async def _downwards(socket: "aiohttp.ClientWebSocketResponse", call: ClientCall) -> None:
    send = call.send
    async for message in socket:
        if isinstance(message.data, bytes):
            await send({"type": "websocket.send", "bytes": message.data})
        elif isinstance(message.data, str):
            if '"usage' in message.data:
                call.meter.add(message.data.encode())
            await send({"type": "websocket.send", "text": message.data})
    await send({"type": "websocket.close", "code": socket.close_code or _NORMAL})
