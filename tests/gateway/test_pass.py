"""Pass-through to providers of the client's protocol: only model name and key change."""

import asyncio

import msgspec
import pytest
from aiohttp import web

from gateway.served import CHAT_CHUNKS, CHAT_REPLY, Upstream, serve, stream
from metis.gateway.config import GatewayConfig

pytestmark = pytest.mark.anyio

BODY = (
    b'{ "messages" : [ {"role":"user","content":"h\\u00e9\\/"} ],\n "model":"gpt-4o" ,'
    b' "unknown": {"z":1,"a":[1.0,2e3]}, "n":1 }'
)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_body_and_reply_pass_byte_for_byte_and_credentials_do_not() -> None:
    upstream = Upstream()
    async with serve(upstream, keys=("team/ann=secret-1",)) as gateway:
        status, headers, reply = await gateway.post(
            "/v1/chat/completions", BODY, authorization="Bearer secret-1", x_custom="kept"
        )
    request, body = upstream.requests[0]
    assert status == 200
    assert body == BODY
    assert reply == CHAT_REPLY
    assert request.headers["authorization"] == "Bearer key-of-openai"
    assert request.headers["x-custom"] == "kept"
    assert "secret-1" not in str(request.raw_headers)
    assert headers["x-metis-model"] == "openai:gpt-4o"
    assert headers["x-metis-losses"] == "0"
    assert headers["x-metis-request-id"]


async def test_a_stream_passes_byte_for_byte() -> None:
    upstream = Upstream()
    async with serve(upstream) as gateway:
        _, headers, reply = await gateway.post(
            "/chat/completions", {"model": "gpt-4o", "stream": True, "messages": []}
        )
    assert reply == b"".join(CHAT_CHUNKS)
    assert headers["content-type"] == "text/event-stream"


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"gpt-4o","messages":[],"model":"gpt-5"}',
        b'{"model":"gpt-4o","messages":[],"mod\\u0065l":"gpt-5"}',
        b'{"max_tokens":1,"model":"gpt-4o","messages":[],"max_tokens":100000}',
    ],
)
async def test_a_key_that_occurs_twice_is_refused_before_anything_is_sent(body: bytes) -> None:
    upstream = Upstream()
    async with serve(upstream) as gateway:
        status, _, reply = await gateway.post("/v1/chat/completions", body)
    assert status == 400
    assert b"occurs twice" in reply
    assert upstream.requests == []


async def test_nested_keys_of_the_same_name_pass() -> None:
    body = b'{"model":"gpt-4o","messages":[{"model":"x"},{"model":"y"}],"metadata":{"stream":1}}'
    upstream = Upstream()
    async with serve(upstream) as gateway:
        status, _, _ = await gateway.post("/v1/chat/completions", body)
    assert status == 200
    assert upstream.requests[0][1] == body


@pytest.mark.parametrize("body", [BODY, BODY.replace(b'"n":1', b'"metadata":{"model":"gpt-4o"}')])
async def test_alias_changes_only_the_model_name_and_response_has_requested_name(
    body: bytes,
) -> None:
    requested = body.replace(b'"model":"gpt-4o" ,', b'"model":"fast" ,')
    upstream = Upstream()
    config = GatewayConfig(aliases={"fast": "openai:gpt-4o"})
    async with serve(upstream, config=config) as gateway:
        _, headers, reply = await gateway.post("/v1/chat/completions", requested)
        streamed = requested.replace(b'"model":"fast"', b'"stream":true,"model":"fast"')
        _, _, events = await gateway.post("/v1/chat/completions", streamed)
    assert upstream.requests[0][1] == body
    assert reply == CHAT_REPLY.replace(b"gpt-4o-2024-08-06", b"fast")
    assert headers["x-metis-model"] == "openai:gpt-4o"
    assert events == b"".join(CHAT_CHUNKS).replace(b"gpt-4o", b"fast")


async def test_errors_of_the_provider_pass_without_its_key() -> None:
    async def refuse(_: web.Request, __: bytes) -> web.StreamResponse:
        body = b'{"error":{"message":"wrong key key-of-openai","type":"invalid_request_error"}}'
        return web.Response(status=401, body=body, headers={"x-request-id": "r1"})

    async with serve(Upstream(refuse)) as gateway:
        status, headers, reply = await gateway.post("/v1/chat/completions", BODY)
    assert status == 401
    assert b"key-of-openai" not in reply
    assert b"wrong key" in reply
    assert headers["x-request-id"] == "r1"


async def test_web_page_becomes_error_in_client_format() -> None:
    async def page(_: web.Request, __: bytes) -> web.StreamResponse:
        return web.Response(status=502, text="<html><title>Bad gateway</title></html>")

    async with serve(Upstream(page)) as gateway:
        status, _, reply = await gateway.post("/v1/chat/completions", BODY)
    assert status >= 500
    error = msgspec.json.decode(reply)["error"]
    assert "Bad gateway" in error["message"]
    assert "502" in error["message"]


async def test_a_redirect_is_not_followed() -> None:
    async def away(request: web.Request, _: bytes) -> web.StreamResponse:
        return web.Response(status=307, headers={"location": "http://127.0.0.1:9/elsewhere"})

    upstream = Upstream(away)
    async with serve(upstream) as gateway:
        status, _, reply = await gateway.post("/v1/chat/completions", BODY)
    assert status >= 400
    assert b"redirect" in reply.lower()
    assert len(upstream.requests) == 1


async def test_disconnected_client_cancels_the_upstream() -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def endless(request: web.Request, _: bytes) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        started.set()
        try:
            while True:
                await response.write(CHAT_CHUNKS[1])
                await asyncio.sleep(0.01)
        finally:
            ended.set()

    async with serve(Upstream(endless)) as gateway:
        response = await gateway.client.post(
            gateway.url + "/v1/chat/completions",
            json={"model": "gpt-4o", "stream": True, "messages": []},
        )
        await response.content.readany()
        response.close()
        await asyncio.wait_for(ended.wait(), 60)


async def test_truncated_stream_ends_with_error_event() -> None:
    async def cut(request: web.Request, _: bytes) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(CHAT_CHUNKS[0])
        await response.write(CHAT_CHUNKS[1])
        assert request.transport is not None
        request.transport.close()
        return response

    async with serve(Upstream(cut)) as gateway:
        _, _, reply = await gateway.post(
            "/v1/chat/completions", {"model": "gpt-4o", "stream": True, "messages": []}
        )
    assert reply.startswith(CHAT_CHUNKS[0] + CHAT_CHUNKS[1])
    assert b"broke off" in reply[len(CHAT_CHUNKS[0] + CHAT_CHUNKS[1]) :]


async def test_the_model_in_a_path_is_replaced_and_the_query_passes_without_the_key() -> None:
    async def gemini(request: web.Request, _: bytes) -> web.StreamResponse:
        return await stream(request, [b'data: {"candidates":[]}\r\n\r\n'])

    upstream = Upstream(gemini)
    config = GatewayConfig(aliases={"quick": "gemini:gemini-2.5-flash"})
    async with serve(upstream, keys=("k=secret-2",), config=config) as gateway:
        status, _, _ = await gateway.post(
            "/v1beta/models/quick:streamGenerateContent?alt=sse&key=secret-2", {"contents": []}
        )
    assert status == 200
    request = upstream.requests[0][0]
    assert request.path_qs == "/v1beta/models/gemini-2.5-flash:streamGenerateContent?alt=sse"
    assert request.headers["x-goog-api-key"] == "key-of-gemini"


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer secret-3"},
        {"x_api_key": "secret-3"},
        {"x_goog_api_key": "secret-3"},
        {"api_key": "secret-3"},
        {
            "authorization": "AWS4-HMAC-SHA256 Credential=secret-3/20260101/us-east-1/bedrock/"
            "aws4_request, SignedHeaders=host, Signature=00"
        },
    ],
)
async def test_every_way_to_send_a_key_is_accepted(headers: dict[str, str]) -> None:
    async with serve(Upstream(), keys=("me=secret-3",)) as gateway:
        status, _, _ = await gateway.post("/v1/chat/completions", BODY, **headers)
        wrong = {name: value.replace("secret-3", "secret-4") for name, value in headers.items()}
        refused, _, reply = await gateway.post("/v1/chat/completions", BODY, **wrong)
    assert status == 200
    assert refused == 401
    assert b"secret-4" not in reply
