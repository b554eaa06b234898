"""Recorded exchanges over HTTP: passed unchanged, or translated without a silent loss."""

import base64
import json
import logging
from typing import Any

import pytest
from aiohttp import web

from corpus import Exchange, body_of, exchanges, needs_corpus
from gateway.served import Served, Upstream, serve
from metis import adapters
from metis.canonical import ContentBlock
from metis.canonical.blocks import OpaqueBlock, ToolResultBlock
from metis.wire.call import RequestContext
from test_laws import is_carried, strings

pytestmark = [pytest.mark.anyio, pytest.mark.slow, needs_corpus]

PROTOCOLS = {
    "anthropic_messages": ("anthropic", "/v1/messages"),
    "openai_chat": ("openai", "/v1/chat/completions"),
    "openai_responses": ("openai-responses", "/v1/responses"),
    "gemini": ("gemini", ""),
    "ollama": ("ollama", ""),
    "bedrock_converse": ("bedrock-converse", ""),
}
ANSWERS = {
    "anthropic": b'{"id":"m","type":"message","role":"assistant","model":"x","content":[{"type":'
    b'"text","text":"ok"}],"stop_reason":"end_turn","usage":{"input_tokens":1,"output_tokens":1}}',
    "openai": b'{"id":"c","object":"chat.completion","created":1,"model":"x","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"ok"},"finish_reason":"stop"}]}',
    "openai-responses": b'{"id":"r","object":"response","status":"completed","model":"x","output":['
    b'{"type":"message","id":"m","role":"assistant","status":"completed","content":[{"type":'
    b'"output_text","text":"ok","annotations":[]}]}]}',
    "gemini": b'{"candidates":[{"content":{"role":"model","parts":[{"text":"ok"}]},'
    b'"finishReason":"STOP"}]}',
    "ollama": b'{"model":"x","message":{"role":"assistant","content":"ok"},"done":true,'
    b'"done_reason":"stop"}',
    "bedrock-converse": b'{"output":{"message":{"role":"assistant","content":[{"text":"ok"}]}},'
    b'"stopReason":"end_turn","usage":{"inputTokens":1,"outputTokens":1,"totalTokens":2}}',
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="metis.adapters")


def path_of(exchange: Exchange, path: str) -> str:
    if path:
        return path
    query = exchange.get("query")
    sse = "?alt=sse" if exchange["sse"] and exchange["protocol"] == "gemini" else ""
    return exchange["url_path"] + (sse or (f"?{query}" if isinstance(query, str) else ""))


def is_served(exchange: Exchange, path: str) -> bool:
    """Return whether an exchange is a call of the endpoint that the test posts to."""
    url = exchange["url_path"]
    if not exchange["request"] or exchange["method"] != "POST":
        return False
    if path:
        return url.endswith(path.removeprefix("/v1"))
    return url.endswith(
        (":generateContent", ":streamGenerateContent", "/api/chat", "/converse", "/converse-stream")
    )


def reply_of(exchange: Exchange) -> tuple[bytes, str]:
    if exchange.get("raw_b64"):
        return base64.b64decode(exchange["raw_b64"]), "application/vnd.amazon.eventstream"
    if exchange["sse"]:
        kind = "application/x-ndjson" if exchange["protocol"] == "ollama" else "text/event-stream"
        return exchange["sse"].encode(), kind
    return body_of(exchange["response"]), "application/json"


@pytest.mark.row("GW-36")
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_requests_and_responses_pass_with_every_key(protocol: str) -> None:
    name, path = PROTOCOLS[protocol]
    current: list[Exchange] = []

    async def replay(_: web.Request, __: bytes) -> web.StreamResponse:
        body, content_type = reply_of(current[0])
        return web.Response(body=body, status=current[0]["status"], content_type=content_type)

    upstream = Upstream(replay)
    count = 0
    async with serve(upstream, providers=(name,), routes=(f"*={name}:*",)) as gateway:
        for exchange in exchanges(protocol):
            if not is_served(exchange, path) or not 200 <= exchange["status"] < 600:
                continue
            current[:] = [exchange]
            upstream.requests.clear()
            sent = body_of(exchange["request"])
            status, _, reply = await gateway.post(path_of(exchange, path), sent)
            assert upstream.requests, (exchange["id"], status, reply[:300])
            assert upstream.requests[0][1] == sent, exchange["id"]
            assert (status, reply) == (exchange["status"], reply_of(exchange)[0]), exchange["id"]
            count += 1
    assert count > 0


async def fetched_losses(gateway: Served, headers: dict[str, str]) -> list[dict[str, Any]]:
    _, _, record = await gateway.get(f"/metis/requests/{headers['x-metis-request-id']}")
    return json.loads(record)["losses"]


def is_accounted(block: ContentBlock, carried: set[str], lost_types: set[str]) -> bool:
    if isinstance(block, ToolResultBlock):
        return all(is_accounted(inner, carried, lost_types) for inner in block.content)
    if isinstance(block, OpaqueBlock) and block.kind == "additional_tools":
        return True  # the tools in it are functions of the request
    return is_carried(block, carried) or block.type in lost_types


@pytest.mark.row("GW-09", "GW-36")
@pytest.mark.parametrize("target", ANSWERS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_translated_requests_have_no_silent_loss(protocol: str, target: str) -> None:
    name, path = PROTOCOLS[protocol]
    if name == target:
        pytest.skip("passed as it is")

    async def answer(_: web.Request, __: bytes) -> web.StreamResponse:
        return web.Response(body=ANSWERS[target], content_type="application/json")

    upstream, client, count = Upstream(answer), adapters.get(name), 0
    async with serve(upstream, providers=(target,), routes=(f"*={target}:some-model",)) as gateway:
        for exchange in exchanges(protocol):
            if not is_served(exchange, path):
                continue
            request = dict(exchange["request"])
            if name in ("anthropic", "openai", "openai-responses", "ollama"):
                request["stream"] = False
            url = path_of(exchange, path).replace(":streamGenerateContent", ":generateContent")
            url = url.replace("/converse-stream", "/converse")
            upstream.requests.clear()
            status, headers, reply = await gateway.post(url, body_of(request))
            if not upstream.requests:
                # Refused before the call, with a reason that the client can read.
                assert 400 <= status < 500, (exchange["id"], status, reply[:300])
                continue
            assert status == 200, (exchange["id"], reply[:300])
            losses = await fetched_losses(gateway, headers)
            carried = set(strings(json.loads(upstream.requests[0][1])))
            canonical = client.from_wire_request(
                body_of(request), RequestContext(session_id="s", path=url)
            )
            lost_types = {loss["block_type"] for loss in losses}
            for message in canonical.messages:
                for block in message.content:
                    assert is_accounted(block, carried, lost_types), (exchange["id"], block)
            count += 1
    assert count > 0
