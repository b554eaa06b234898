"""Requests to providers of other protocols: every pair, plain and streamed, with losses."""

import asyncio
import itertools
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from gateway.served import CHAT_CHUNKS, CHAT_REPLY, Upstream, chat_chunk, serve
from metis.gateway.config import GatewayConfig, Limits
from metis.store import open as open_store

pytestmark = pytest.mark.anyio

QUESTION = "say hello"
CLIENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "anthropic": (
        "/v1/messages",
        {"model": "M", "max_tokens": 99, "messages": [{"role": "user", "content": QUESTION}]},
    ),
    "chat": (
        "/v1/chat/completions",
        {"model": "M", "messages": [{"role": "user", "content": QUESTION}]},
    ),
    "responses": ("/v1/responses", {"model": "M", "input": QUESTION}),
    "cursor": ("/v1/chat/completions", {"model": "M", "input": QUESTION}),
    "gemini": (
        "/v1beta/models/M:generateContent",
        {"contents": [{"role": "user", "parts": [{"text": QUESTION}]}]},
    ),
    "ollama": (
        "/api/chat",
        {"model": "M", "stream": False, "messages": [{"role": "user", "content": QUESTION}]},
    ),
    "generate": ("/api/generate", {"model": "M", "stream": False, "prompt": QUESTION}),
    "converse": (
        "/model/M/converse",
        {"messages": [{"role": "user", "content": [{"text": QUESTION}]}]},
    ),
    "invoke": (
        "/model/M-claude/invoke",
        {
            "anthropic_version": "bedrock-2023-05-31",
            "max_tokens": 99,
            "messages": [{"role": "user", "content": QUESTION}],
        },
    ),
}
TARGETS = ["anthropic", "openai", "openai-responses", "gemini", "ollama", "bedrock-converse"]
STREAM_PATHS = {
    "gemini": "/v1beta/models/M:streamGenerateContent?alt=sse",
    "converse": "/model/M/converse-stream",
    "invoke": "/model/M-claude/invoke-with-response-stream",
}


STREAM_FORMS = {
    "ollama": ("application/x-ndjson", b'"done":true'),
    "generate": ("application/x-ndjson", b'"done":true'),
    "converse": ("application/vnd.amazon.eventstream", b"messageStop"),
    "invoke": ("application/vnd.amazon.eventstream", b"chunk"),
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def clients_for(target: str) -> list[tuple[str, tuple[str, dict[str, Any]]]]:
    # The simulator has no `/api/generate`, which would be passed to it as it is.
    return [item for item in CLIENTS.items() if item[0] != "generate" or target != "ollama"]


@pytest.mark.row("GW-14")
@pytest.mark.parametrize("target", TARGETS)
async def test_every_client_gets_response_of_every_provider(target: str) -> None:
    # Without a provider the simulator answers, which has all protocols.
    async with serve(routes=(f"*={target}:some-model",)) as gateway:
        for name, (path, body) in clients_for(target):
            status, headers, reply = await gateway.post(path, body)
            assert status == 200, (name, reply)
            assert b"hello" in reply.lower(), name
            assert headers["x-metis-model"] == f"{target}:some-model"
            wire = msgspec.json.decode(reply)
            model = wire.get("model", wire.get("modelVersion", "M"))
            assert model in ("M", "M-claude"), name


@pytest.mark.row("GW-14")
@pytest.mark.parametrize("target", TARGETS)
async def test_every_client_gets_a_stream_of_every_provider(target: str) -> None:
    async with serve(routes=(f"*={target}:some-model",)) as gateway:
        for name, (path, body) in clients_for(target):
            streamed = {**body, "stream": True} if name not in STREAM_PATHS else body
            status, headers, reply = await gateway.post(STREAM_PATHS.get(name, path), streamed)
            assert status == 200, (name, reply)
            assert reply, name
            content_type, end = STREAM_FORMS.get(name, ("text/event-stream", b"\n"))
            assert headers["content-type"].startswith(content_type), name
            assert end in reply, name


async def test_gemini_streams_an_array_unless_events_are_requested() -> None:
    body = CLIENTS["gemini"][1]
    async with serve(routes=("*=openai:gpt-4o",)) as gateway:
        _, headers, reply = await gateway.post("/v1beta/models/M:streamGenerateContent", body)
    chunks = msgspec.json.decode(reply)
    texts = [
        part.get("text", "")
        for chunk in chunks
        for candidate in chunk["candidates"]
        for part in candidate.get("content", {}).get("parts", [])
    ]
    assert "hello" in "".join(texts).lower()
    assert headers["content-type"].startswith("application/json")


async def test_chat_stream_has_usage_only_on_request() -> None:
    body = {**CLIENTS["chat"][1], "stream": True}
    async with serve(routes=("*=anthropic:some-model",)) as gateway:
        _, _, silent = await gateway.post("/v1/chat/completions", body)
        asks = {**body, "stream_options": {"include_usage": True}}
        _, _, stated = await gateway.post("/v1/chat/completions", asks)
    assert b'"choices":[]' not in silent.replace(b" ", b"")
    assert b'"usage":{' in stated.replace(b" ", b"")


async def test_policies_refuse_losses_before_the_call() -> None:
    body = {**CLIENTS["anthropic"][1], "top_k": 5}
    upstream = Upstream()
    async with serve(upstream, routes=("*=openai:gpt-4o",)) as gateway:
        status, headers, _ = await gateway.post("/v1/messages", body)
        assert status == 200
        assert int(headers["x-metis-losses"]) >= 1
        refused, _, reply = await gateway.post("/v1/messages", body, x_metis_policy="refuse any")
        passes, _, _ = await gateway.post("/v1/messages", body, x_metis_policy="refuse critical")
        wrong, _, _ = await gateway.post("/v1/messages", body, x_metis_policy="maybe")
    assert (refused, passes, wrong) == (400, 200, 400)
    assert "top_k" in msgspec.json.decode(reply)["error"]["message"]
    assert len(upstream.requests) == 2


@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, "authentication_error"), (429, "rate_limit_error"), (500, "api_error")],
)
async def test_errors_have_client_format(status: int, kind: str) -> None:
    async def fail(_: web.Request, __: bytes) -> web.StreamResponse:
        body = b'{"error":{"message":"no: key-of-openai","type":"x","code":null}}'
        return web.Response(status=status, body=body, headers={"retry-after": "7"})

    async with serve(Upstream(fail), routes=("*=openai:gpt-4o",)) as gateway:
        received, headers, reply = await gateway.post(*CLIENTS["anthropic"])
    error = msgspec.json.decode(reply)
    assert received == status
    assert error["type"] == "error"
    assert error["error"]["type"] == kind
    assert b"key-of-openai" not in reply
    assert headers.get("retry-after") == "7"


async def test_an_error_before_the_first_byte_of_a_stream_has_its_status() -> None:
    async def fail(request: web.Request, _: bytes) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b'data: {"error":{"message":"overloaded","code":503}}\n\n')
        await response.write_eof()
        return response

    async with serve(Upstream(fail), routes=("*=openai:gpt-4o",)) as gateway:
        path, body = CLIENTS["anthropic"]
        status, _, reply = await gateway.post(path, {**body, "stream": True})
    assert status >= 500
    assert b"overloaded" in reply


@pytest.mark.row("GW-20")
async def test_keep_alives_have_client_format() -> None:
    release = asyncio.Event()

    async def slow(request: web.Request, _: bytes) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(CHAT_CHUNKS[0] + chat_chunk('{"content":"hel"}'))
        await release.wait()
        for chunk in CHAT_CHUNKS[2:]:
            await response.write(chunk)
        await response.write_eof()
        return response

    config = GatewayConfig(limits=Limits(keep_alive_s=0.05))
    async with serve(Upstream(slow), routes=("*=openai:gpt-4o",), config=config) as gateway:
        path, body = CLIENTS["anthropic"]
        async with gateway.client.post(gateway.url + path, json={**body, "stream": True}) as reply:
            received = b""
            while b"ping" not in received:
                received += await reply.content.readany()
            release.set()
            received += await reply.content.read()
    assert received.endswith(b'{"type":"message_stop"}\n\n')
    assert b'event: ping\ndata: {"type": "ping"}\n\n' in received


async def test_a_server_tool_that_no_provider_can_run_is_refused_before_the_call() -> None:
    path, body = CLIENTS["anthropic"]
    tool = {"type": "code_execution_20250522", "name": "code_execution"}
    upstream = Upstream()
    async with serve(upstream, routes=("*=openai:gpt-4o",)) as gateway:
        status, _, reply = await gateway.post(path, {**body, "tools": [tool]})
    assert status == 400
    assert b"code_execution" in reply
    assert upstream.requests == []


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_response_can_be_continued_by_its_id_at_any_provider(is_stream: bool) -> None:  # noqa: FBT001 - a case
    upstream = Upstream()
    keys = ("ann=secret-a", "bob=secret-b")
    async with serve(upstream, keys=keys, routes=("*=openai:gpt-4o",)) as gateway:
        first = {"model": "M", "input": "first words", "stream": is_stream}
        _, _, reply = await gateway.post("/v1/responses", first, x_api_key="secret-a")
        if is_stream:
            line = next(line for line in reply.splitlines() if b'"response.completed"' in line)
            response_id = msgspec.json.decode(line.removeprefix(b"data: "))["response"]["id"]
        else:
            response_id = msgspec.json.decode(reply)["id"]
        more = {"model": "M", "input": "more words", "previous_response_id": response_id}
        status, _, _ = await gateway.post("/v1/responses", more, x_api_key="secret-a")
        foreign, _, error = await gateway.post("/v1/responses", more, x_api_key="secret-b")
    messages = msgspec.json.decode(upstream.requests[1][1])["messages"]
    assert status == 200
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]
    assert "first words" in str(messages[0])
    assert foreign == 400
    assert msgspec.json.decode(error)["error"]["code"] == "previous_response_not_found"


@pytest.mark.row("GW-12")
async def test_another_worker_continues_a_response_by_its_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metis.gateway.response_states._PAUSES_S", (0.001,))
    numbers = itertools.count(1)

    async def reply(_: web.Request, body: bytes) -> web.Response:
        del body
        data = CHAT_REPLY.replace(b"chatcmpl-1", b"chatcmpl-%d" % next(numbers))
        return web.Response(body=data, content_type="application/json")

    upstream = Upstream(reply)
    url = f"sqlite:///{tmp_path}/store.db"
    previous: str | None = None
    keys = ("ann=secret-a", "bob=secret-b")
    for words in ("first words", "second words", "third words"):  # each by a process of its own
        store = open_store(url)
        async with serve(upstream, keys=keys, routes=("*=openai:gpt-4o",), store=store) as gateway:
            body = {"model": "M", "input": words, "previous_response_id": previous}
            if previous is not None:
                foreign, _, _ = await gateway.post("/v1/responses", body, x_api_key="secret-b")
                assert foreign == 400
            status, _, answer = await gateway.post("/v1/responses", body, x_api_key="secret-a")
            assert status == 200
            previous = msgspec.json.decode(answer)["id"]
    messages = msgspec.json.decode(upstream.requests[-1][1])["messages"]
    texts = [message["content"] for message in messages]
    assert texts == ["first words", "hello", "second words", "hello", "third words"]


async def test_model_auto_is_chosen_by_routing_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rules = tmp_path / ".metis" / "routing.toml"
    rules.parent.mkdir()
    rules.write_text(
        'schema_version = 1\nglobal_default = "anthropic:claude-sonnet-4-6"\n[[rules]]\n'
        'name = "greetings"\nwhen = { message_contains_any = ["hello"] }\nuse = "openai:gpt-4o"\n'
    )
    async with serve(Upstream(), providers=("openai", "anthropic")) as gateway:
        path, body = CLIENTS["anthropic"]
        status, headers, reply = await gateway.post(path, {**body, "model": "auto"})
    assert status == 200, reply
    assert headers["x-metis-model"] == "openai:gpt-4o"
    assert msgspec.json.decode(reply)["model"] == "auto"
