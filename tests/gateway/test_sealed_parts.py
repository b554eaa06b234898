"""Signatures, thinking and encrypted reasoning reach only their issuer."""

from typing import Any

import msgspec
import pytest
from aiohttp import web

from gateway.served import Served, Upstream, serve
from metis.gateway.config import GatewayConfig

pytestmark = pytest.mark.anyio

SIGNATURE = "c2lnbmF0dXJlLW9mLWEtdGhvdWdodA=="
ENCRYPTED = "Z2FoLWVuY3J5cHRlZC1yZWFzb25pbmc="
GEMINI_CALL: dict[str, Any] = {
    "candidates": [
        {
            "content": {
                "role": "model",
                "parts": [
                    {"text": "I look.", "thought": True},
                    {
                        "functionCall": {"name": "look", "args": {"q": "x"}},
                        "thoughtSignature": SIGNATURE,
                    },
                ],
            },
            "finishReason": "STOP",
            "index": 0,
        }
    ],
    "usageMetadata": {"promptTokenCount": 5, "candidatesTokenCount": 3, "totalTokenCount": 8},
    "modelVersion": "gemini-2.5-pro",
    "responseId": "r1",
}
MESSAGES_CALL: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-4-5",
    "content": [
        {"type": "thinking", "thinking": "I look.", "signature": SIGNATURE},
        {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"q": "x"}},
    ],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {"input_tokens": 5, "output_tokens": 3},
}
RESPONSES_CALL: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "status": "completed",
    "model": "gpt-5",
    "output": [
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": ENCRYPTED},
        {
            "type": "function_call",
            "id": "fc_1",
            "call_id": "call_1",
            "name": "look",
            "arguments": '{"q":"x"}',
            "status": "completed",
        },
    ],
    "usage": {"input_tokens": 5, "output_tokens": 3, "total_tokens": 8},
}
REPLIES: dict[str, dict[str, Any]] = {
    "gemini": GEMINI_CALL,
    "anthropic": MESSAGES_CALL,
    "openai-responses": RESPONSES_CALL,
}
SEALS = {"gemini": SIGNATURE, "anthropic": SIGNATURE, "openai-responses": ENCRYPTED}
MODELS = {
    "gemini": "gemini-2.5-pro",
    "anthropic": "claude-sonnet-4-5",
    "openai-responses": "gpt-5",
}
SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def scripted(request: web.Request, _: bytes) -> web.StreamResponse:
    """Answer in the protocol of the path."""
    marks = {"messages": "anthropic", "invoke": "anthropic", "responses": "openai-responses"}
    provider = marks.get(request.path.rpartition("/")[2], "gemini")
    return web.json_response(REPLIES[provider])


async def turn_of_messages(gateway: Served, model: str, **more: Any) -> dict[str, Any]:
    """Return the second request of a Messages client: the unchanged response and a result."""
    first: dict[str, Any] = {
        "model": model,
        "max_tokens": 2000,
        "messages": [{"role": "user", "content": "look"}],
        "tools": [{"name": "look", "input_schema": SCHEMA}],
        **more,
    }
    status, _, body = await gateway.post("/v1/messages", first)
    assert status == 200, body
    content = msgspec.json.decode(body)["content"]
    call = next(block for block in content if block["type"] == "tool_use")
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": "seen"}
    history = [
        *first["messages"],
        {"role": "assistant", "content": content},
        {"role": "user", "content": [result]},
    ]
    return {**first, "messages": history}


async def turn_of_chat(gateway: Served, model: str, **more: Any) -> dict[str, Any]:
    """Return the second request of a Chat client that sends back only standard fields."""
    function = {"name": "look", "parameters": SCHEMA}
    first: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": "look"}],
        "tools": [{"type": "function", "function": function}],
        **more,
    }
    status, _, body = await gateway.post("/v1/chat/completions", first)
    assert status == 200, body
    message = msgspec.json.decode(body)["choices"][0]["message"]
    calls = [
        {"id": call["id"], "type": "function", "function": call["function"]}
        for call in message["tool_calls"]
    ]
    history = [
        *first["messages"],
        {"role": "assistant", "content": message.get("content"), "tool_calls": calls},
        {"role": "tool", "tool_call_id": calls[0]["id"], "content": "seen"},
    ]
    return {**first, "messages": history}


async def turn_of_responses(gateway: Served, model: str, **more: Any) -> dict[str, Any]:
    """Return the second request of a Responses client without storage, such as Codex."""
    first: dict[str, Any] = {
        "model": model,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "input": [{"type": "message", "role": "user", "content": "look"}],
        "tools": [{"type": "function", "name": "look", "parameters": SCHEMA}],
        **more,
    }
    status, _, body = await gateway.post("/v1/responses", first)
    assert status == 200, body
    output = msgspec.json.decode(body)["output"]
    call = next(item for item in output if item["type"] == "function_call")
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "seen"}
    return {**first, "input": [*first["input"], *output, result]}


TURNS = {
    "/v1/messages": turn_of_messages,
    "/v1/chat/completions": turn_of_chat,
    "/v1/responses": turn_of_responses,
}


@pytest.mark.row("GW-01")
@pytest.mark.parametrize("path", TURNS)
@pytest.mark.parametrize("provider", REPLIES)
async def test_a_seal_reaches_its_issuer_through_every_client(path: str, provider: str) -> None:
    upstream = Upstream(scripted)
    model = f"{provider}:{MODELS[provider]}"
    async with serve(upstream) as gateway:
        second = await TURNS[path](gateway, model)
        status, _, reply = await gateway.post(path, second)
    assert status == 200, reply
    body = upstream.requests[1][1].decode()
    assert f'"{SEALS[provider]}"' in body
    if provider == "gemini":
        parts = [part for one in msgspec.json.decode(body)["contents"] for part in one["parts"]]
        call = next(part for part in parts if "functionCall" in part)
        assert call["thoughtSignature"] == SIGNATURE


@pytest.mark.row("GW-03", "GW-11")
@pytest.mark.parametrize(
    ("path", "first", "then"),
    [
        ("/v1/messages", "openai-responses", "anthropic"),
        ("/v1/messages", "gemini", "anthropic"),
        ("/v1/responses", "anthropic", "openai-responses"),
        ("/v1/responses", "gemini", "openai-responses"),
    ],
)
async def test_foreign_seal_is_not_sent_to_provider_of_client(
    path: str, first: str, then: str
) -> None:
    upstream = Upstream(scripted)
    async with serve(upstream) as gateway:
        second = await TURNS[path](gateway, f"{first}:{MODELS[first]}")
        second["model"] = MODELS[then]
        status, headers, reply = await gateway.post(path, second)
        _, _, third = await gateway.post(path, {**second, "model": f"{first}:{MODELS[first]}"})
        record = await gateway.get(f"/metis/requests/{headers['x-metis-request-id']}")
    assert status == 200, (reply, third)
    body = upstream.requests[1][1].decode()
    wire = msgspec.json.decode(body)
    assert headers["x-metis-model"] == f"{then}:{MODELS[then]}"
    assert SEALS[first] not in body
    assert "bWV0aXM" not in body  # the beginning of an envelope
    for message in wire.get("messages", []):
        for block in message["content"]:
            if isinstance(block, dict) and block["type"] == "thinking":
                assert block["thinking"]
                assert block["signature"]
    losses = msgspec.json.decode(record[2])["losses"]
    assert any("thinking" in loss["block_type"] for loss in losses), losses
    assert f'"{SEALS[first]}"' in upstream.requests[2][1].decode()


@pytest.mark.row("GW-04")
async def test_thinking_is_disabled_if_history_has_no_signed_thinking() -> None:
    upstream = Upstream(scripted)
    config = GatewayConfig(aliases={"other": "anthropic:claude-sonnet-4-5"})
    async with serve(upstream, config=config) as gateway:
        second = await turn_of_responses(gateway, "gpt-5", reasoning={"effort": "high"})
        second["model"] = "other"
        status, headers, reply = await gateway.post("/v1/responses", second)
        record = await gateway.get(f"/metis/requests/{headers['x-metis-request-id']}")
    assert status == 200, reply
    wire = msgspec.json.decode(upstream.requests[1][1])
    assert wire.get("thinking", {"type": "disabled"})["type"] == "disabled"
    losses = msgspec.json.decode(record[2])["losses"]
    assert any("cannot think" in loss["reason"] for loss in losses)


THOUGHTS: list[dict[str, Any]] = [
    {"type": "thinking", "thinking": "first", "signature": "c2VhbC1vbmU="},
    {"type": "text", "text": "between"},
    {"type": "thinking", "thinking": "second", "signature": "c2VhbC10d28="},
    {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"q": "x"}},
]
CONVERSE_THOUGHTS: list[dict[str, Any]] = [
    {"reasoningContent": {"reasoningText": {"text": "first", "signature": "c2VhbC1vbmU="}}},
    {"text": "between"},
    {"reasoningContent": {"reasoningText": {"text": "second", "signature": "c2VhbC10d28="}}},
    {"toolUse": {"toolUseId": "toolu_1", "name": "look", "input": {"q": "x"}}},
]


@pytest.mark.row("GW-07")
async def test_replayed_thinking_stays_in_its_place_for_a_bedrock_client() -> None:
    result = {"toolUseId": "toolu_1", "content": [{"text": "seen"}]}
    body = {
        "messages": [
            {"role": "user", "content": [{"text": "look"}]},
            {"role": "assistant", "content": CONVERSE_THOUGHTS},
            {"role": "user", "content": [{"toolResult": result}]},
        ],
        "toolConfig": {
            "tools": [{"toolSpec": {"name": "look", "inputSchema": {"json": SCHEMA}}}],
        },
    }
    invoked = {
        "anthropic_version": "bedrock-2023-05-31",
        "max_tokens": 99,
        "messages": [
            {"role": "user", "content": "look"},
            {"role": "assistant", "content": THOUGHTS},
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "toolu_1", "content": "seen"},
                ],
            },
        ],
        "tools": [{"name": "look", "input_schema": SCHEMA}],
    }
    upstream = Upstream(scripted)
    providers = ("bedrock-converse", "bedrock")
    name = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
    async with serve(upstream, providers=providers) as gateway:
        await gateway.post(f"/model/bedrock-converse:{name}/converse", body)
        await gateway.post(f"/model/bedrock:{name}/invoke", invoked)
    sent = [msgspec.json.decode(body) for _, body in upstream.requests]
    assert sent[0] == body
    assert sent[1] == invoked


@pytest.mark.row("GW-02", "GW-06", "GW-08", "GW-16")
async def test_thinking_and_unknown_parts_pass_unchanged() -> None:
    body = msgspec.json.encode(
        {
            "model": "claude-sonnet-4-5",
            "max_tokens": 9,
            "thinking": {"type": "adaptive", "new_key": 1},
            "invented_field": {"deep": [1, None]},
            "messages": [
                {"role": "user", "content": [{"type": "invented_block", "x": "\u00e9"}]},
                {"role": "assistant", "content": THOUGHTS},
                {"role": "system", "content": "an instruction in the middle"},
            ],
        }
    )
    upstream = Upstream(scripted)
    betas = "invented-2099-01-01,context-management-2025-06-27"
    async with serve(upstream) as gateway:
        status, headers, _ = await gateway.post(
            "/v1/messages?beta=true", body, anthropic_beta=betas
        )
    request, sent = upstream.requests[0]
    assert status == 200
    assert sent == body
    assert request.headers["anthropic-beta"] == betas
    assert request.path_qs == "/v1/messages?beta=true"
    assert headers["x-metis-losses"] == "0"


@pytest.mark.row("GW-08", "GW-09")
async def test_thinking_for_a_target_without_it_is_a_loss_that_the_response_states() -> None:
    body = {
        "model": "openai:gpt-4o",
        "max_tokens": 9,
        "messages": [
            {"role": "user", "content": "look"},
            {"role": "assistant", "content": [*THOUGHTS[:3], {"type": "text", "text": "done"}]},
            {"role": "user", "content": "more"},
        ],
    }

    async with serve(Upstream()) as gateway:
        status, headers, reply = await gateway.post("/v1/messages", body)
        record = await gateway.get(f"/metis/requests/{headers['x-metis-request-id']}")
    assert status == 200, reply
    losses = msgspec.json.decode(record[2])["losses"]
    thinking = [loss for loss in losses if "thinking" in loss["block_type"]]
    assert len(thinking) == 2
    assert int(headers["x-metis-losses"]) == len(losses)


@pytest.mark.row("GW-05")
@pytest.mark.parametrize("target", ["anthropic:claude-haiku-4-5", "gemini:gemini-2.5-pro"])
async def test_response_has_requested_model_name(target: str) -> None:
    config = GatewayConfig(aliases={"claude-best": target})
    async with serve(Upstream(scripted), config=config) as gateway:
        body = {
            "model": "claude-best",
            "max_tokens": 9,
            "messages": [{"role": "user", "content": "look"}],
        }
        _, headers, reply = await gateway.post("/v1/messages", body)
    assert msgspec.json.decode(reply)["model"] == "claude-best"
    assert headers["x-metis-model"] == target
