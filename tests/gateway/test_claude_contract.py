"""Anthropic's published contract for gateways in front of Claude Code, rule by rule."""

from typing import Any

import msgspec
import pytest
from aiohttp import web

from gateway.served import Upstream, serve
from metis.gateway.config import GatewayConfig, Limits

pytestmark = pytest.mark.anyio

SESSION = "5f0c1a52-8a4c-4b0e-9d39-0d0f4f0a6b11"
HEADERS = {
    "authorization": "Bearer secret-1",
    "anthropic_version": "2023-06-01",
    "anthropic_beta": "claude-code-20250219,interleaved-thinking-2025-05-14,auto-mode-2099-01-01",
    "user_agent": "claude-cli/2.1.325 (external, cli)",
    "x_app": "cli",
    "x_stainless_lang": "js",
    "x_stainless_retry_count": "0",
    "x_claude_code_session_id": SESSION,
}
BODY: dict[str, Any] = {
    "model": "claude-sonnet-4-5",
    "max_tokens": 99,
    "system": [
        {
            "type": "text",
            "text": "x-anthropic-billing-header: cc_version=2.1.325; cc_entrypoint=cli;",
        },
        {"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}},
    ],
    "metadata": {"user_id": f'{{"session_id":"{SESSION}"}}'},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "high"},
    "messages": [{"role": "user", "content": "hi"}],
}
REPLY: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-4-5",
    "content": [{"type": "text", "text": "hello"}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 5, "output_tokens": 3},
    "safeguard_results": [{"verdict": "ok"}],
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def decode(body: bytes) -> Any:
    return msgspec.json.decode(body)


async def reply(request: web.Request, _: bytes) -> web.StreamResponse:
    if request.path.endswith("count_tokens"):
        return web.json_response({"input_tokens": 42})
    return web.json_response(REPLY, headers={"request-id": "req_1"})


async def test_headers_body_and_reply_pass_unchanged_and_the_credential_does_not() -> None:
    upstream = Upstream(reply)
    body = {**BODY, "safeguards": {"mode": "auto"}}
    async with serve(upstream, keys=("ann=secret-1",)) as gateway:
        status, headers, answer = await gateway.post("/v1/messages?beta=true", body, **HEADERS)
    request, sent = upstream.requests[0]
    assert status == 200
    assert sent == msgspec.json.encode(body)
    assert decode(answer) == REPLY
    assert headers["request-id"] == "req_1"
    for name, value in HEADERS.items():
        if name != "authorization":
            assert request.headers[name.replace("_", "-")] == value
    assert request.headers["x-api-key"] == "key-of-anthropic"
    assert "secret-1" not in str(request.raw_headers)


async def test_the_session_header_joins_requests_to_one_conversation() -> None:
    async with serve(Upstream(reply), keys=("ann=secret-1",)) as gateway:
        _, one, _ = await gateway.post("/v1/messages", BODY, **HEADERS)
        _, two, _ = await gateway.post("/v1/messages", {**BODY, "max_tokens": 9}, **HEADERS)
        other = {**HEADERS, "x_claude_code_session_id": "another"}
        _, three, _ = await gateway.post("/v1/messages", BODY, **other)
    assert one["x-metis-session"] == two["x-metis-session"]
    assert one["x-metis-session"] != three["x-metis-session"]


async def test_anthropic_only_check_is_refused_by_name_elsewhere() -> None:
    upstream = Upstream()
    async with serve(upstream, keys=("ann=secret-1",), routes=("*=openai:gpt-4o",)) as gateway:
        body = {**BODY, "safeguards": {"mode": "auto"}}
        status, _, answer = await gateway.post("/v1/messages", body, **HEADERS)
        without = await gateway.post("/v1/messages", BODY, **HEADERS)
    error = decode(answer)
    assert (status, error["error"]["type"]) == (400, "invalid_request_error")
    assert "safeguards" in error["error"]["message"]
    assert without[0] == 200


async def test_the_billing_line_of_the_client_does_not_reach_other_providers() -> None:
    upstream = Upstream()
    async with serve(upstream, keys=("ann=secret-1",), routes=("*=openai:gpt-4o",)) as gateway:
        _, headers, _ = await gateway.post("/v1/messages", BODY, **HEADERS)
    assert b"x-anthropic-billing-header" not in upstream.requests[0][1]
    assert b"be brief" in upstream.requests[0][1]
    assert int(headers["x-metis-losses"]) > 0


async def test_tokens_are_counted_and_probes_are_answered() -> None:
    async with serve(Upstream(reply), keys=("ann=secret-1",)) as gateway:
        path = "/v1/messages/count_tokens?beta=true"
        _, _, counted = await gateway.post(path, BODY, **HEADERS)
        for place in ("/", "/api/hello"):
            async with gateway.client.head(gateway.url + place) as response:
                assert response.status == 200
    assert decode(counted) == {"input_tokens": 42}


async def test_model_discovery_lists_names_that_the_client_shows() -> None:
    sent = {key: value for key, value in HEADERS.items() if key != "x_app"}
    async with serve(Upstream(reply), keys=("ann=secret-1",)) as gateway:
        status, _, answer = await gateway.get("/v1/models?limit=1000", **sent)
    rows = decode(answer)["data"]
    assert status == 200
    assert rows
    assert all(row["id"] and row["display_name"] for row in rows)
    # The client shows the names that contain either word, and no others.
    assert all("claude" in row["id"] or "anthropic" in row["id"] for row in rows)


async def test_a_wrong_key_is_an_authentication_error_that_is_not_repeated() -> None:
    async with serve(Upstream(reply), keys=("ann=secret-1",)) as gateway:
        wrong = {**HEADERS, "authorization": "Bearer other"}
        for path in ("/v1/messages", "/v1/messages/count_tokens"):
            status, headers, answer = await gateway.post(path, BODY, **wrong)
            error = decode(answer)
            assert status == 401
            assert headers["x-should-retry"] == "false"
            assert (error["type"], error["error"]["type"]) == ("error", "authentication_error")


@pytest.mark.parametrize("target", ["anthropic:claude-sonnet-4-5", "openai:gpt-4o"])
@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (429, "rate_limit_error"),
        (529, "overloaded_error"),
        (500, "api_error"),
    ],
)
async def test_errors_have_the_envelope_type_and_status(
    status: int, kind: str, target: str
) -> None:
    stated = {"type": "error", "error": {"type": kind, "message": "the reason"}}
    if target.startswith("openai"):
        kind_there = "invalid_request_error" if status == 400 else "server_error"
        stated = {"error": {"message": "the reason", "type": kind_there, "code": None}}

    async def fail(_: web.Request, __: bytes) -> web.StreamResponse:
        return web.json_response(stated, status=status, headers={"retry-after": "9"})

    async with serve(Upstream(fail), routes=(f"*={target}",)) as gateway:
        received, headers, answer = await gateway.post("/v1/messages", BODY)
    error = decode(answer)
    assert received == status
    assert (error["type"], error["error"]["type"]) == ("error", kind)
    assert "the reason" in error["error"]["message"]
    if status == 429:
        assert headers["retry-after"] == "9"


async def test_a_body_over_the_limit_is_too_large() -> None:
    config = GatewayConfig(limits=Limits(body_bytes=1000))
    async with serve(Upstream(reply), config=config) as gateway:
        body = {**BODY, "system": "x" * 2000}
        status, _, answer = await gateway.post("/v1/messages", body)
    assert status == 413
    assert decode(answer)["error"]["type"] == "request_too_large"


async def test_bedrock_and_vertex_bodies_keep_their_betas_and_versions() -> None:
    upstream = Upstream(reply)
    invoke = {
        "anthropic_version": "bedrock-2023-05-31",
        "anthropic_beta": ["interleaved-thinking-2025-05-14", "invented-2099-01-01"],
        "max_tokens": 9,
        "messages": BODY["messages"],
    }
    vertex = {**invoke, "anthropic_version": "vertex-2023-10-16"}
    name = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
    place = "/v1/projects/p/locations/global/publishers/anthropic/models"
    async with serve(upstream, providers=("bedrock", "vertex-claude")) as gateway:
        first = await gateway.post(f"/model/{name}/invoke", invoke)
        second = await gateway.post(f"{place}/claude-sonnet-4-5@20250929:rawPredict", vertex)
    assert (first[0], second[0]) == (200, 200), (first, second)
    assert [decode(body) for _, body in upstream.requests] == [invoke, vertex]
    assert upstream.requests[0][0].path.endswith("/invoke")
    assert upstream.requests[1][0].path.endswith(":rawPredict")


@pytest.mark.parametrize("provider", ["bedrock", "vertex-claude"])
async def test_cloud_host_receives_its_request_form_without_billing_tags(provider: str) -> None:
    upstream = Upstream(reply)
    body = {**BODY, "model": f"{provider}:claude-sonnet-4-5", "tags": {"team": "x"}}
    async with serve(upstream, providers=(provider,)) as gateway:
        status, headers, answer = await gateway.post("/v1/messages?beta=true", body)
    wire = decode(upstream.requests[0][1])
    assert status == 200, answer
    assert "tags" not in wire
    assert "model" not in wire
    assert wire["anthropic_version"].startswith(("bedrock-", "vertex-"))
    assert int(headers["x-metis-losses"]) > 0
