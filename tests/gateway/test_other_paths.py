"""Gateway paths besides responses: model lists, token counts, health, exchanges, others."""

import base64
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from gateway.served import Upstream, serve
from gateway.test_translation import CLIENTS
from metis.gateway.config import GatewayConfig
from metis.store.store import open_store

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def decode(body: bytes) -> Any:
    return msgspec.json.decode(body)


@pytest.mark.row("GW-19")
async def test_model_list_has_format_of_client() -> None:
    config = GatewayConfig(aliases={"fast": "openai:gpt-4o"})
    async with serve(Upstream(), config=config) as gateway:
        openai = decode((await gateway.get("/v1/models"))[2])
        anthropic = decode((await gateway.get("/v1/models", anthropic_version="2023-06-01"))[2])
        gemini = decode((await gateway.get("/v1beta/models"))[2])
        google = decode((await gateway.get("/v1/models", x_goog_api_key="k"))[2])
        codex = decode((await gateway.get("/v1/models", originator="codex_cli_rs"))[2])
        tags = decode((await gateway.get("/api/tags"))[2])
        one = decode((await gateway.get("/v1/models/fast"))[2])
    fast = next(row for row in openai["data"] if row["id"] == "fast")
    assert openai["object"] == "list"
    assert fast["context_window"] >= 128_000
    assert fast["pricing"]["prompt"] == "0.0000025"
    assert fast["capabilities"]["tools"] is True
    assert anthropic["has_more"] is False
    assert anthropic["first_id"] == anthropic["data"][0]["id"] == "fast"
    assert gemini == google
    assert gemini["models"][0]["name"] == "models/fast"
    assert codex["models"][0]["slug"] == "fast"
    assert codex["models"][0]["context_window"] == fast["context_window"]
    assert tags["models"][0]["name"] == "fast"
    assert one["id"] == "fast"


@pytest.mark.row("GW-40")
async def test_clients_that_filter_model_names_see_every_model() -> None:
    upstream = Upstream()
    async with serve(upstream) as gateway:
        _, _, body = await gateway.get(
            "/v1/models?limit=1000", user_agent="claude-cli/2.1", anthropic_version="2023-06-01"
        )
        names = [row["id"] for row in decode(body)["data"]]
        # The client shows the names that contain either word, and no others.
        assert all("claude" in name or "anthropic" in name for name in names)
        name = next(name for name in names if name.endswith("gpt-4o"))
        path, request = CLIENTS["anthropic"]
        status, headers, _ = await gateway.post(path, {**request, "model": name})
    assert status == 200
    assert headers["x-metis-model"] == "openai:gpt-4o"


@pytest.mark.parametrize(
    ("path", "body", "key"),
    [
        ("/v1/messages/count_tokens", CLIENTS["anthropic"][1], "input_tokens"),
        ("/v1beta/models/M:countTokens", CLIENTS["gemini"][1], "totalTokens"),
        (
            "/v1beta/models/M:countTokens",
            {"generateContentRequest": {"model": "models/M", **CLIENTS["gemini"][1]}},
            "totalTokens",
        ),
        ("/v1/responses/input_tokens", CLIENTS["responses"][1], "input_tokens"),
        ("/model/M/count-tokens", {"input": {"converse": CLIENTS["converse"][1]}}, "inputTokens"),
        (
            "/model/M/count-tokens",
            {
                "input": {
                    "invokeModel": {
                        "body": base64.b64encode(msgspec.json.encode(CLIENTS["invoke"][1])).decode()
                    }
                }
            },
            "inputTokens",
        ),
    ],
)
async def test_tokens_are_estimated_for_providers_that_do_not_count(
    path: str, body: dict[str, Any], key: str
) -> None:
    upstream = Upstream()
    async with serve(upstream, routes=("*=openai:gpt-4o",)) as gateway:
        status, headers, reply = await gateway.post(path, body)
    assert status == 200, reply
    assert decode(reply)[key] > 0
    assert headers["x-metis-estimated"] == "true"
    assert upstream.requests == []


@pytest.mark.row("GW-21")
async def test_token_count_is_forwarded_to_provider_of_client() -> None:
    async def count(request: web.Request, _: bytes) -> web.StreamResponse:
        return web.json_response({"input_tokens": 42, "path": request.path_qs})

    async with serve(Upstream(count)) as gateway:
        body = {**CLIENTS["anthropic"][1], "model": "claude-sonnet-4-5"}
        _, headers, reply = await gateway.post("/v1/messages/count_tokens?beta=true", body)
    assert decode(reply) == {"input_tokens": 42, "path": "/v1/messages/count_tokens?beta=true"}
    assert "x-metis-estimated" not in headers


async def test_probes_need_no_key_and_other_paths_do() -> None:
    async with serve(Upstream(), keys=("me=secret-5",)) as gateway:
        for path in ("/", "/healthz", "/readyz", "/api/hello", "/api/version"):
            assert (await gateway.get(path))[0] == 200, path
        async with gateway.client.head(gateway.url + "/") as response:
            assert response.status == 200
        for path in ("/v1/models", "/metis/metrics", "/metis/requests/x", "/v1/embeddings"):
            assert (await gateway.get(path))[0] == 401, path


async def test_other_paths_pass_to_the_provider_with_its_key() -> None:
    async def echo(request: web.Request, body: bytes) -> web.StreamResponse:
        return web.json_response(
            {
                "path": request.path_qs,
                "method": request.method,
                "key": request.headers.get("authorization") or request.headers.get("x-api-key"),
                "body": body.decode(),
            }
        )

    async with serve(Upstream(echo), keys=("me=secret-6",)) as gateway:
        key = {"authorization": "Bearer secret-6"}
        embeddings = decode((await gateway.post("/v1/embeddings", {"input": "x"}, **key))[2])
        audio = decode((await gateway.post("/audio/speech?x=1", b"raw", **key))[2])
        named = decode((await gateway.post("/pass/anthropic/v1/skills", {}, **key))[2])
        batches = decode(
            (await gateway.get("/v1/messages/batches", anthropic_version="1", **key))[2]
        )
        chat = {"model": "claude-x", "messages": [{"role": "user", "content": "hi"}]}
        answer = decode((await gateway.post("/pass/anthropic/v1/messages", chat, **key))[2])
        models = decode((await gateway.get("/pass/openai/v1/models", **key))[2])
        missing = await gateway.post("/pass/groq/v1/x", {}, **key)
        climbing = await gateway.post("/pass/openai/v1/../../x", {}, **key)
    assert embeddings["path"] == "/v1/embeddings"
    # A path that the gateway serves itself goes where the client says, too.
    assert (answer["path"], decode(answer["body"])) == ("/v1/messages", chat)
    assert models["path"] == "/v1/models"
    assert embeddings["key"] == "Bearer key-of-openai"
    assert embeddings["body"] == '{"input":"x"}'
    assert audio["path"] == "/v1/audio/speech?x=1"
    assert named["path"] == "/v1/skills"
    assert named["key"] == "key-of-anthropic"
    assert batches["path"] == "/v1/messages/batches"
    assert missing[0] == 404
    assert climbing[0] in (200, 404)  # the client may have resolved it


@pytest.mark.parametrize("has_store", [False, True])
async def test_exchange_can_be_fetched_by_its_tenant(tmp_path: Path, has_store: bool) -> None:  # noqa: FBT001 - a case
    store = open_store(f"sqlite:///{tmp_path / 'g.db'}") if has_store else None
    async with serve(
        Upstream(),
        keys=("t/ann=secret-7", "t/bob=secret-8"),
        routes=("*=openai:gpt-4o",),
        store=store,
    ) as gateway:
        path, body = CLIENTS["anthropic"]
        _, headers, _ = await gateway.post(path, {**body, "top_k": 3}, x_api_key="secret-7")
        place = f"/metis/requests/{headers['x-metis-request-id']}"
        status, _, record = await gateway.get(place, x_api_key="secret-7")
        foreign, _, _ = await gateway.get(place, x_api_key="secret-8")
    exchange = decode(record)
    assert (status, foreign) == (200, 404)
    assert exchange["id"] == headers["x-metis-request-id"]
    assert exchange["client_protocol"] == "anthropic"
    assert exchange["asked_model"] == "M"
    assert (exchange["provider"], exchange["mode"], exchange["status"]) == (
        "openai",
        "translate",
        200,
    )
    assert len(exchange["losses"]) == int(headers["x-metis-losses"])
    assert any("top_k" in loss["path"] for loss in exchange["losses"])
    assert exchange["usage"]["input_tokens"] == 7
    assert exchange["session"] == headers["x-metis-session"]
    assert len(exchange["attempts"]) == 1


async def test_a_history_is_compacted_by_any_provider_and_can_be_continued() -> None:
    upstream = Upstream()
    history = [
        {"type": "message", "role": "user", "content": "first question"},
        {"type": "message", "role": "assistant", "content": "a long answer " * 50},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "seen " * 50},
        {"type": "message", "role": "user", "content": "second question"},
    ]
    async with serve(upstream, routes=("*=openai:gpt-4o",)) as gateway:
        body = {"model": "M", "input": history, "instructions": "be brief"}
        status, headers, reply = await gateway.post("/v1/responses/compact", body)
        value = decode(reply)
        place = f"/metis/requests/{headers['x-metis-request-id']}"
        record = decode((await gateway.get(place))[2])
        more = {"type": "message", "role": "user", "content": "third question"}
        again = {"model": "M", "input": [*value["output"], more]}
        continued, _, _ = await gateway.post("/v1/responses", again)
        unknown = await gateway.post(
            "/v1/responses/compact", {"model": "M", "previous_response_id": "resp_x"}
        )
    assert (status, value["object"]) == (200, "response.compaction"), reply
    texts = [str(item["content"]) for item in value["output"]]
    assert texts[:2] == ["first question", "second question"]
    assert "hello" in texts[2]  # what the model wrote
    sent = decode(upstream.requests[0][1])["messages"]
    assert "be brief" in str(sent[0])
    assert "seen" in str(sent)
    assert "Summar" in str(sent[-1])
    assert record["usage"]["input_tokens"] == value["usage"]["input_tokens"] == 7
    assert (record["mode"], record["provider"]) == ("translate", "openai")
    assert continued == 200
    assert len(decode(upstream.requests[1][1])["messages"]) <= 4
    assert unknown[0] == 400


async def test_compaction_is_forwarded_to_provider_that_supports_it() -> None:
    async def reply(request: web.Request, _: bytes) -> web.StreamResponse:
        return web.json_response({"object": "response.compaction", "path": request.path})

    upstream = Upstream(reply)
    body = {"model": "gpt-5", "input": "x"}
    async with serve(upstream) as gateway:
        _, _, answer = await gateway.post("/v1/responses/compact", body)
    assert decode(answer)["path"] == "/v1/responses/compact"
    assert decode(upstream.requests[0][1]) == body


async def test_ollama_clients_list_show_and_chat() -> None:
    config = GatewayConfig(aliases={"fast": "openai:gpt-4o"})
    async with serve(Upstream(), config=config) as gateway:
        tags = decode((await gateway.get("/api/tags"))[2])
        running = decode((await gateway.get("/api/ps"))[2])
        shown = decode((await gateway.post("/api/show", {"model": "fast:latest"}))[2])
        bad = await gateway.post("/api/show", b"no json")
    assert tags["models"][0]["model"] == "fast"
    assert running == {"models": []}
    assert shown["capabilities"][:2] == ["completion", "tools"]
    assert shown["model_info"]["metis.context_length"] >= 128_000
    assert bad[0] == 400
    assert "JSON" in decode(bad[2])["error"]


async def test_a_page_of_another_origin_may_call_with_a_key() -> None:
    page = {"origin": "https://app.example"}
    async with serve(Upstream(), keys=("me=secret-5",)) as gateway:
        url = gateway.url + "/v1/chat/completions"
        sent = {**page, "access-control-request-method": "POST"}
        async with gateway.client.options(url, headers=sent) as response:
            assert response.status == 204
            assert response.headers["access-control-allow-origin"] == "*"
            assert "authorization" in response.headers["access-control-allow-headers"]
        path, body = CLIENTS["chat"]
        status, headers, _ = await gateway.post(
            path, {**body, "model": "gpt-4o"}, authorization="Bearer secret-5", **page
        )
        refused, refused_headers, _ = await gateway.post(path, body, **page)
    assert (status, refused) == (200, 401)
    assert headers["access-control-allow-origin"] == "*"
    assert refused_headers["access-control-allow-origin"] == "*"
