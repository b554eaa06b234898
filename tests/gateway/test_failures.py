"""Provider failures: fallback addresses, cut and failed streams, web pages, silence."""

import asyncio
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web

from gateway.served import CHAT_CHUNKS, Upstream, serve, stream
from gateway.test_translation import CLIENTS
from metis.canonical.errors import UnknownSessionError
from metis.canonical.metadata import MessageStatus
from metis.gateway.config import GatewayConfig, Limits, ProviderConfig
from metis.store.store import open_store

pytestmark = pytest.mark.anyio

ERROR_EVENT = b'data: {"error":{"message":"overloaded","type":"server_error","code":503}}\n\n'


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def decode(body: bytes) -> Any:
    return msgspec.json.decode(body)


async def cut(
    request: web.Request, chunks: list[bytes], content_type: str = "text/event-stream"
) -> web.StreamResponse:
    """Send the start of a response, and close the connection."""
    response = web.StreamResponse(headers={"content-type": content_type})
    await response.prepare(request)
    for chunk in chunks:
        await response.write(chunk)
    assert request.transport is not None
    request.transport.close()
    return response


async def fail_at_once(kind: str, request: web.Request, _: bytes) -> web.StreamResponse:
    match kind:
        case "status":
            return web.Response(status=503, text="busy")
        case "first event":
            return await stream(request, [ERROR_EVENT])
        case _:
            return await cut(request, [])


FIRST_ATTEMPTS = {
    "status": (503, "busy"),
    "first event": (200, "overloaded"),
    "cut": (200, "the connection broke (ConnectionError)"),
}


@pytest.mark.row("GW-29")
@pytest.mark.parametrize("kind", FIRST_ATTEMPTS)
async def test_failure_before_first_content_uses_another_address(kind: str) -> None:
    good, bad = Upstream(), Upstream(partial(fail_at_once, kind))
    async with serve(bad), serve(good):
        row = ProviderConfig(base_url=(bad.url, good.url), keys=("k",))
        config = GatewayConfig(providers={"openai": row})
        async with serve(config=config, routes=("*=openai:gpt-4o",)) as gateway:
            path, body = CLIENTS["anthropic"]
            status, headers, reply = await gateway.post(path, {**body, "stream": True})
            record = await gateway.get(f"/metis/requests/{headers['x-metis-request-id']}")
    assert status == 200, reply
    assert b"message_stop" in reply
    attempts = decode(record[2])["attempts"]
    assert [(each["status"], each["error"]) for each in attempts] == [
        FIRST_ATTEMPTS[kind],
        (200, None),
    ]
    assert (len(bad.requests), len(good.requests)) == (1, 1)


@pytest.mark.row("GW-29")
@pytest.mark.parametrize("client", ["chat", "anthropic"])
@pytest.mark.parametrize("kind", ["event", "cut"])
async def test_a_failure_in_the_middle_is_an_error_event_and_stored_as_a_failure(
    tmp_path: Path, client: str, kind: str
) -> None:
    async def fail(request: web.Request, _: bytes) -> web.StreamResponse:
        if kind == "event":
            return await stream(request, [*CHAT_CHUNKS[:3], ERROR_EVENT])
        return await cut(request, CHAT_CHUNKS[:3])

    store = open_store(f"sqlite:///{tmp_path / 'g.db'}")
    async with serve(Upstream(fail), routes=("*=openai:gpt-4o",), store=store) as gateway:
        path, body = CLIENTS[client]
        _, headers, reply = await gateway.post(path, {**body, "stream": True})
        session_id = headers["x-metis-session"]
        messages: list[Any] = []
        while len(messages) < 2:
            await asyncio.sleep(0.02)
            with suppress(UnknownSessionError):
                messages = await store.messages(session_id)
    assert b'"error"' in reply
    assert b"message_stop" not in reply
    assert messages[-1].metadata.status is MessageStatus.ERROR
    assert messages[-1].content[0].text == "hello"


@pytest.mark.row("GW-20")
async def test_silent_provider_times_out_with_error() -> None:
    release = asyncio.Event()

    async def silent(request: web.Request, _: bytes) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(CHAT_CHUNKS[0] + CHAT_CHUNKS[1])
        await release.wait()
        return response

    config = GatewayConfig(limits=Limits(keep_alive_s=0.05, silence_s=0.4))
    async with serve(Upstream(silent), routes=("*=openai:gpt-4o",), config=config) as gateway:
        path, body = CLIENTS["anthropic"]
        _, _, reply = await gateway.post(path, {**body, "stream": True})
        release.set()
    assert b"event: ping" in reply
    assert b"event: error" in reply
    assert reply.count(b"event: ping") < 20


@pytest.mark.row("GW-20")
@pytest.mark.parametrize("is_passed", [False, True])
@pytest.mark.parametrize("status", [200, 429])
async def test_keep_alives_are_sent_before_provider_headers(
    is_passed: bool,  # noqa: FBT001 - a case
    status: int,
) -> None:
    release = asyncio.Event()

    async def slow(request: web.Request, _: bytes) -> web.StreamResponse:
        await release.wait()
        if status != 200:
            error = {"error": {"message": "too many of them", "type": "rate_limit"}}
            return web.json_response(error, status=status)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for chunk in CHAT_CHUNKS:
            await response.write(chunk)
        return response

    config = GatewayConfig(limits=Limits(keep_alive_s=0.05))
    async with serve(Upstream(slow), routes=("*=openai:gpt-4o",), config=config) as gateway:
        path, body = CLIENTS["chat" if is_passed else "anthropic"]
        keep_alive = b": keep-alive\n\n" if is_passed else b"event: ping"
        async with gateway.client.post(gateway.url + path, json={**body, "stream": True}) as reply:
            received = b""
            while keep_alive not in received:
                received += await reply.content.readany()
            release.set()
            received += await reply.content.read()
            assert reply.headers["content-type"].startswith("text/event-stream")
    if status == 200:
        assert b"hel" in received
        assert (b"[DONE]" if is_passed else b"message_stop") in received
    else:
        assert b"too many of them" in received
        assert b"error" in received


@pytest.mark.row("GW-20")
async def test_a_gemini_client_gets_no_keep_alive_that_it_cannot_read() -> None:
    async def slow(request: web.Request, _: bytes) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(CHAT_CHUNKS[0] + CHAT_CHUNKS[1])
        await asyncio.sleep(0.3)
        for chunk in CHAT_CHUNKS[2:]:
            await response.write(chunk)
        return response

    config = GatewayConfig(limits=Limits(keep_alive_s=0.05))
    async with serve(Upstream(slow), routes=("*=openai:gpt-4o",), config=config) as gateway:
        body = CLIENTS["gemini"][1]
        _, _, reply = await gateway.post("/v1beta/models/M:streamGenerateContent?alt=sse", body)
    lines = [line for line in reply.splitlines() if line]
    assert len(lines) >= 2
    assert all(line.startswith(b"data: {") for line in lines)


@pytest.mark.row("GW-35")
@pytest.mark.parametrize("client", ["chat", "anthropic", "responses"])
async def test_content_is_forwarded_without_buffering(client: str) -> None:
    release = asyncio.Event()

    async def gated(request: web.Request, _: bytes) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(CHAT_CHUNKS[0] + CHAT_CHUNKS[1])
        await release.wait()
        for chunk in CHAT_CHUNKS[2:]:
            await response.write(chunk)
        return response

    async with serve(Upstream(gated), routes=("*=openai:gpt-4o",)) as gateway:
        path, body = CLIENTS[client]
        async with gateway.client.post(gateway.url + path, json={**body, "stream": True}) as reply:
            received = b""
            while b'"hel"' not in received:
                received += await asyncio.wait_for(reply.content.readany(), 60)
            release.set()
            await reply.content.read()


PAGE = (
    "<!doctype html><html><head><title>504 Gateway Time-out</title></head><body>"
    "<h1>The upstream of key-of-openai is away</h1></body></html>"
)


@pytest.mark.row("GW-37")
@pytest.mark.parametrize(
    "client", ["chat", "anthropic", "responses", "gemini", "ollama", "converse"]
)
@pytest.mark.parametrize("status", [200, 504])
async def test_a_web_page_is_an_error_with_status_provider_and_text(
    client: str, status: int
) -> None:
    async def page(_: web.Request, __: bytes) -> web.StreamResponse:
        return web.Response(status=status, text=PAGE, content_type="text/html")

    async with serve(Upstream(page), routes=("*=openai:gpt-4o",)) as gateway:
        received, _, reply = await gateway.post(*CLIENTS[client])
    text = str(decode(reply))
    assert received >= 500
    assert "openai" in text
    assert "504 Gateway Time-out" in text
    assert str(status) in text
    assert "key-of-openai" not in text
    assert "<html" not in text


ERRORS = [
    (401, {"error": {"message": "bad key", "type": "invalid_request_error"}}, (401, 403)),
    (404, {"error": {"message": "no such model", "code": "model_not_found"}}, (404,)),
    (429, {"error": {"message": "slow down", "type": "rate_limit"}}, (429,)),
    (500, {"error": {"message": "it broke", "type": "server_error"}}, (500,)),
    (529, {"error": {"message": "overloaded", "type": "overloaded_error"}}, (429, 503, 529)),
]
PLACES = {
    "chat": ("error", "message"),
    "responses": ("error", "message"),
    "anthropic": ("error", "message"),
    "gemini": ("error", "message"),
    "ollama": ("error",),
    "converse": ("message",),
}


@pytest.mark.slow
@pytest.mark.parametrize("client", PLACES)
@pytest.mark.parametrize("target", ["openai:m", "anthropic:m", "ollama:m"])
@pytest.mark.parametrize(("status", "body", "expected"), ERRORS)
async def test_errors_have_format_status_and_reason_for_every_client(
    client: str, target: str, status: int, body: Any, expected: tuple[int, ...]
) -> None:
    async def fail(_: web.Request, __: bytes) -> web.StreamResponse:
        return web.json_response(body, status=status)

    async with serve(Upstream(fail), routes=(f"*={target}",)) as gateway:
        received, _, reply = await gateway.post(*CLIENTS[client])
    value = decode(reply)
    if received == status:  # passed as it is
        assert body["error"]["message"] in reply.decode()
    assert received in (*expected, status)
    if target.partition(":")[0] not in ("openai", client):
        for key in PLACES[client]:
            value = value[key]
        assert body["error"]["message"] in value


@pytest.mark.row("GW-13")
async def test_dropped_client_socket_cancels_the_provider() -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def endless(request: web.Request, _: bytes) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        try:
            while True:
                await response.write(CHAT_CHUNKS[1])
                started.set()
                await asyncio.sleep(0.01)
        finally:
            ended.set()

    async with serve(Upstream(endless), routes=("*=openai:gpt-4o",)) as gateway:
        socket = await gateway.client.ws_connect(gateway.url + "/v1/responses")
        await socket.send_json({"type": "response.create", "model": "M", "input": "hi"})
        await socket.receive_json(timeout=60)
        await started.wait()
        await socket.close()
        await asyncio.wait_for(ended.wait(), 60)


def scope(kind: str, path: str) -> dict[str, Any]:
    headers = [(b"content-type", b"application/json")]
    scheme, method = ("ws", "GET") if kind == "websocket" else ("http", "POST")
    return {
        "type": kind,
        "method": method,
        "scheme": scheme,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": headers,
        "extensions": {},
    }


async def chat_stream(request: web.Request, _: bytes) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    for chunk in CHAT_CHUNKS:
        await response.write(chunk)
        await asyncio.sleep(0.01)
    return response


@pytest.mark.row("GW-13")
@pytest.mark.parametrize("sent", [0, 1, 2])
@pytest.mark.parametrize("client", ["anthropic", "chat"])
async def test_disconnected_client_is_not_a_provider_failure(client: str, sent: int) -> None:
    """ASGI servers report a closed connection as an OSError of `send`."""
    path, body = CLIENTS[client]
    request = msgspec.json.encode({**body, "stream": True})
    messages = [{"type": "http.request", "body": request, "more_body": False}]
    count = 0

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        return await asyncio.Future()

    async def send(_: dict[str, Any]) -> None:
        nonlocal count
        count += 1
        if count > sent:
            raise ConnectionResetError

    upstream = Upstream(chat_stream)
    async with serve(upstream, routes=("*=openai:gpt-4o",)) as gateway:
        await gateway.gateway(scope("http", path), receive, send)
    assert count == sent + 1, "nothing is sent to a client that left"
    assert len(upstream.requests) == 1, "the provider is not called again for nobody"


@pytest.mark.row("GW-13")
@pytest.mark.parametrize("sent", [1, 2, 3, 5])
async def test_socket_of_disconnected_client_ends(sent: int) -> None:
    messages = [
        {
            "type": "websocket.receive",
            "text": '{"type":"response.create","model":"M","input":"hi"}',
        },
        {"type": "websocket.connect"},
    ]
    count, left = 0, asyncio.Event()

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        await left.wait()
        return {"type": "websocket.disconnect", "code": 1006}

    async def send(_: dict[str, Any]) -> None:
        nonlocal count
        count += 1
        if count > sent:
            left.set()
            raise ConnectionResetError

    async with serve(Upstream(chat_stream), routes=("*=openai:gpt-4o",)) as gateway:
        app = gateway.gateway(scope("websocket", "/v1/responses"), receive, send)
        await asyncio.wait_for(app, 60)
    assert count == sent + 1


@pytest.mark.row("GW-13")
async def test_request_received_at_end_of_response_is_answered() -> None:
    create = {
        "type": "websocket.receive",
        "text": '{"type":"response.create","model":"M","input":"hi"}',
    }
    messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    messages.put_nowait({"type": "websocket.connect"})
    messages.put_nowait(create)
    ends = 0

    async def send(message: dict[str, Any]) -> None:
        nonlocal ends
        if '"type":"response.completed"' in message.get("text", ""):
            ends += 1
            messages.put_nowait(create if ends == 1 else {"type": "websocket.disconnect"})
            await asyncio.sleep(0)

    async with serve(Upstream(chat_stream), routes=("*=openai:gpt-4o",)) as gateway:
        session = gateway.gateway(scope("websocket", "/v1/responses"), messages.get, send)
        await asyncio.wait_for(session, 60)
    assert ends == 2


@pytest.mark.row("GW-13")
async def test_dropped_provider_connection_is_an_error_event_on_the_socket() -> None:
    async def drop(request: web.Request, _: bytes) -> web.StreamResponse:
        return await cut(request, CHAT_CHUNKS[:3])

    async with (
        serve(Upstream(drop), routes=("*=openai:gpt-4o",)) as gateway,
        gateway.client.ws_connect(gateway.url + "/v1/responses") as socket,
    ):
        for _ in range(2):  # the socket can be used again
            await socket.send_json({"type": "response.create", "model": "M", "input": "hi"})
            kinds: list[str] = []
            while not kinds or kinds[-1] not in ("error", "response.failed", "response.completed"):
                message = await socket.receive(timeout=60)
                assert message.type is aiohttp.WSMsgType.TEXT
                kinds.append(decode(message.data)["type"])
            assert kinds[-1] in ("error", "response.failed")
            assert "response.output_text.delta" in kinds
