"""Shared by gateway tests: a gateway on a free port, and an upstream that records requests."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
from aiohttp import web
from msgspec.structs import replace

from metis.gateway.app import Gateway
from metis.gateway.config import ClientKey, GatewayConfig, ProviderConfig, Route
from metis.gateway.recorder import Recorder
from metis.gateway.server import make_server
from metis.session.models import Models
from metis.store import Store
from metis.transport.keys import Keys
from metis.transport.sockets import send_parts_at_once

Handler = Callable[[web.Request, bytes], Awaitable[web.StreamResponse]]

CHAT_REPLY = (
    b'{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"gpt-4o-2024-08-06",'
    b'"choices":[{"index":0,"message":{"role":"assistant","content":"hello"},'
    b'"finish_reason":"stop"}],"usage":{"prompt_tokens":7,"completion_tokens":2,"total_tokens":9},'
    b'"unknown_key":{"a":[1,2]}}'
)


def chat_chunk(delta: str, finish: str = "null") -> bytes:
    """Return a chunk of a Chat Completions stream."""
    return (
        b'data: {"id":"c1","object":"chat.completion.chunk","created":1,"model":"gpt-4o","choices":'
        b'[{"index":0,"delta":%b,"finish_reason":%b}]}\n\n' % (delta.encode(), finish.encode())
    )


USAGE_CHUNK = (
    b'data: {"id":"c1","object":"chat.completion.chunk","created":1,"model":"gpt-4o","choices":[],'
    b'"usage":{"prompt_tokens":7,"completion_tokens":2,"total_tokens":9}}\n\n'
)
CHAT_CHUNKS = [
    chat_chunk('{"role":"assistant","content":""}'),
    chat_chunk('{"content":"hel"}'),
    chat_chunk('{"content":"lo"}'),
    chat_chunk("{}", '"stop"'),
    USAGE_CHUNK,
    b"data: [DONE]\n\n",
]


class Upstream:
    """A provider that records requests and replies with a handler."""

    def __init__(self, handler: Handler | None = None) -> None:
        self.requests: list[tuple[web.Request, bytes]] = []
        self.handler = handler or reply_chat
        self.cancelled = 0
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.requests.append((request, body))
        try:
            return await self.handler(request, body)
        except (asyncio.CancelledError, ConnectionError):
            self.cancelled += 1
            raise


async def reply_chat(request: web.Request, body: bytes) -> web.StreamResponse:
    if b'"stream":true' not in body.replace(b" ", b""):
        return web.Response(body=CHAT_REPLY, content_type="application/json")
    return await stream(request, CHAT_CHUNKS)


async def stream(
    request: web.Request, chunks: list[bytes], content_type: str = "text/event-stream"
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": content_type})
    await response.prepare(request)
    for chunk in chunks:
        await response.write(chunk)
    await response.write_eof()
    return response


def lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


class Served:
    """A running gateway with a client for it."""

    def __init__(self, gateway: Gateway, url: str, client: aiohttp.ClientSession) -> None:
        self.gateway = gateway
        self.url = url
        self.client = client

    async def post(self, path: str, body: Any, **headers: str) -> tuple[int, dict[str, str], bytes]:
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        sent = {"content-type": "application/json"}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.client.post(self.url + path, data=data, headers=sent) as response:
            return response.status, lower(response.headers), await response.read()

    async def get(self, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.client.get(self.url + path, headers=sent) as response:
            return response.status, lower(response.headers), await response.read()


@asynccontextmanager
async def serve(  # noqa: PLR0913 - settings, all by name
    upstream: Upstream | None = None,
    *,
    keys: tuple[str, ...] = (),
    routes: tuple[str, ...] = (),
    providers: tuple[str, ...] = ("openai", "openai-responses", "anthropic", "gemini", "ollama"),
    config: GatewayConfig | None = None,
    store: Store | None = None,
) -> AsyncGenerator[Served]:
    """Run a gateway in front of an upstream while the context is open."""
    runner: web.AppRunner | None = None
    config = config or GatewayConfig()
    if upstream is not None:
        app = web.Application(client_max_size=100_000_000)
        app.router.add_route("*", "/{path:.*}", upstream.handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        upstream.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        rows = {
            name: ProviderConfig(base_url=upstream.url, keys=(f"key-of-{name}",))
            for name in providers
        }
        config = replace(config, providers={**rows, **config.providers})
    config = replace(
        config,
        keys=tuple(map(ClientKey.parse, keys)) or config.keys,
        routes=tuple(map(Route.parse, routes)) or config.routes,
    )
    recorder = Recorder(store, Models(keys=Keys(environment={})))
    gateway = Gateway(
        config, Keys(environment={}), recorder=recorder, store=store, has_connection_watch=True
    )
    sock = socket.socket()
    send_parts_at_once(sock)
    sock.bind(("127.0.0.1", 0))
    server = make_server(gateway, lambda: config, None)
    task = asyncio.ensure_future(server.serve([sock]))
    while not server.started and not task.done():  # noqa: ASYNC110 - uvicorn has a flag only
        await asyncio.sleep(0.005)
    try:
        async with aiohttp.ClientSession(auto_decompress=False) as client:
            yield Served(gateway, f"http://127.0.0.1:{sock.getsockname()[1]}", client)
    finally:
        server.should_exit = True
        await task
        if runner is not None:
            await runner.cleanup()
