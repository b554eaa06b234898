"""Responses over WebSocket: events as messages, continuation by id, errors as events."""

import asyncio
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web

from gateway.served import Served, Upstream, reply_chat, serve
from metis.gateway.config import GatewayConfig

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def ask(socket: aiohttp.ClientWebSocketResponse, **request: Any) -> list[dict[str, Any]]:
    await socket.send_json({"type": "response.create", "model": "gpt-4o", **request})
    events: list[dict[str, Any]] = []
    while not events or events[-1]["type"] not in ("response.completed", "error"):
        events.append(await socket.receive_json(timeout=60))
    return events


@pytest.mark.row("GW-13")
async def test_response_is_sent_as_events_and_can_be_continued() -> None:
    upstream = Upstream()
    async with (
        serve(upstream, routes=("*=openai:gpt-4o",)) as gateway,
        gateway.client.ws_connect(gateway.url + "/v1/responses") as socket,
    ):
        first = await ask(socket, input="first words")
        response = first[-1]["response"]
        await ask(socket, input="second words", previous_response_id=response["id"])
    assert first[0]["type"] == "response.created"
    assert response["output"][0]["content"][0]["text"] == "hello"
    messages = msgspec.json.decode(upstream.requests[1][1])["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]
    assert "first words" in str(messages[0])
    assert "second words" in str(messages[2])


async def test_request_without_generation_calls_no_provider_and_can_be_continued() -> None:
    upstream = Upstream()
    async with (
        serve(upstream, routes=("*=openai:gpt-4o",)) as gateway,
        gateway.client.ws_connect(gateway.url + "/v1/responses") as socket,
    ):
        warm = await ask(socket, input=[], instructions="be brief", generate=False)
        assert upstream.requests == []
        events = await ask(socket, input="hi", previous_response_id=warm[-1]["response"]["id"])
    assert events[-1]["type"] == "response.completed"


@pytest.mark.parametrize(
    "message",
    ["no json", '{"type":"other"}', '{"type":"response.create","model":"nobody-has-it"}'],
)
async def test_errors_are_events_and_the_socket_stays_open(message: str) -> None:
    async with (
        serve(Upstream(), providers=("anthropic",), routes=("gpt-*=anthropic:m",)) as gateway,
        gateway.client.ws_connect(gateway.url + "/v1/responses") as socket,
    ):
        await socket.send_str(message)
        event = await socket.receive_json(timeout=60)
        assert event["type"] == "error"
        assert event["status"] >= 400
        assert event["error"]["message"]
        await socket.send_str("again")
        assert (await socket.receive_json(timeout=60))["type"] == "error"


async def refused_status(gateway: Served, **options: Any) -> int:
    try:
        async with gateway.client.ws_connect(gateway.url + "/v1/responses", **options):
            return 101
    except aiohttp.WSServerHandshakeError as error:
        return error.status


@pytest.mark.row("GW-13")
async def test_a_handshake_without_a_key_or_with_sockets_off_is_refused_with_a_status() -> None:
    async with serve(Upstream(), keys=("me=secret-9",)) as gateway:
        assert await refused_status(gateway) == 401
        headers = {"authorization": "Bearer secret-9"}
        assert await refused_status(gateway, headers=headers) == 101
    async with serve(Upstream(), config=GatewayConfig(web_socket=False)) as gateway:
        assert await refused_status(gateway) == 426


async def test_a_realtime_socket_is_a_tunnel() -> None:
    async def echo(request: web.Request, _: bytes) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.send_str(request.headers["authorization"])
        async for message in socket:
            await socket.send_str(f"echo {message.data}")
        return socket

    async with (
        serve(Upstream(echo)) as gateway,
        gateway.client.ws_connect(gateway.url + "/v1/realtime?model=m") as socket,
    ):
        assert await socket.receive_str(timeout=60) == "Bearer key-of-openai"
        await socket.send_str("one")
        assert await socket.receive_str(timeout=60) == "echo one"


async def test_lanes_of_a_socket_are_answered_concurrently() -> None:
    release = asyncio.Event()

    async def slow_first(request: web.Request, body: bytes) -> web.StreamResponse:
        if b"slow" in body:
            await release.wait()
        return await reply_chat(request, body)

    async with (
        serve(Upstream(slow_first), routes=("*=openai:gpt-4o",)) as gateway,
        gateway.client.ws_connect(gateway.url + "/v1/responses") as socket,
    ):
        create = {"type": "response.create", "model": "M"}
        await socket.send_json({**create, "stream_id": "a", "input": "slow"})
        await socket.send_json({**create, "stream_id": "a", "input": "later"})
        await socket.send_json({**create, "stream_id": "b", "input": "quick"})
        ends: list[str] = []
        while len(ends) < 3:
            event = await socket.receive_json(timeout=60)
            if event["type"] == "response.completed":
                ends.append(event["stream_id"])
                release.set()
    assert ends == ["b", "a", "a"]
