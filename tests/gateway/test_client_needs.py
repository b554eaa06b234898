"""What clients send and expect beyond messages: tools, betas, counts, limits, overflows."""

from functools import partial
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from aiohttp import web

from gateway.served import Upstream, serve, stream
from gateway.test_translation import CLIENTS

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def decode(body: bytes) -> Any:
    return msgspec.json.decode(body)


def chat_call(name: str, arguments: str) -> dict[str, Any]:
    call = {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}
    return {
        "id": "c1",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt-4o",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": None, "tool_calls": [call]},
                "finish_reason": "tool_calls",
            }
        ],
        "usage": {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9},
    }


PATCH = "*** Begin Patch\n*** Add File: a.txt\n+x\n*** End Patch\n"


@pytest.mark.row("GW-10")
async def test_a_freeform_tool_is_called_as_the_client_declared_it() -> None:
    async def call(_: web.Request, body: bytes) -> web.StreamResponse:
        tools = decode(body)["tools"]
        assert [tool["type"] for tool in tools] == ["function"]
        properties = tools[0]["function"]["parameters"]["properties"]
        assert list(properties) == ["input"]
        arguments = msgspec.json.encode({"input": PATCH}).decode()
        return web.json_response(chat_call("apply_patch", arguments))

    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}
    tool = {"type": "custom", "name": "apply_patch", "description": "edit", "format": grammar}
    first: dict[str, Any] = {"model": "M", "input": "edit", "store": False, "tools": [tool]}
    upstream = Upstream(call)
    async with serve(upstream, routes=("*=openai:gpt-4o",)) as gateway:
        status, _, reply = await gateway.post("/v1/responses", first)
        item = next(i for i in decode(reply)["output"] if i["type"] == "custom_tool_call")
        output = {"type": "custom_tool_call_output", "call_id": item["call_id"], "output": "ok"}
        question = {"type": "message", "role": "user", "content": "edit"}
        await gateway.post("/v1/responses", {**first, "input": [question, item, output]})
    assert status == 200
    assert (item["name"], item["input"]) == ("apply_patch", PATCH)
    history = decode(upstream.requests[1][1])["messages"]
    sent = history[1]["tool_calls"][0]["function"]
    assert decode(sent["arguments"]) == {"input": PATCH}
    assert history[2]["content"] == "ok"


@pytest.mark.row("GW-12")
async def test_response_of_another_provider_continues_at_provider_of_client() -> None:
    upstream = Upstream()
    async with serve(upstream) as gateway:
        first = {"model": "openai:gpt-4o", "input": "first words"}
        _, _, reply = await gateway.post("/v1/responses", first)
        more = {"model": "gpt-5", "input": "more", "previous_response_id": decode(reply)["id"]}
        await gateway.post("/v1/responses", more)
        # A response stored by its provider is continued unchanged.
        held = {"model": "gpt-5", "input": "more", "previous_response_id": "resp_of_openai"}
        await gateway.post("/v1/responses", held)
    sent = decode(upstream.requests[1][1])
    assert "previous_response_id" not in sent
    assert "first words" in str(sent["input"][0])
    assert "hello" in str(sent["input"][1])
    assert "more" in str(sent["input"][2])
    assert decode(upstream.requests[2][1]) == held


@pytest.mark.row("GW-15")
async def test_unsupported_beta_is_a_loss_and_supported_one_is_sent() -> None:
    path, body = CLIENTS["anthropic"]
    upstream = Upstream()
    betas = "invented-2099-01-01,interleaved-thinking-2025-05-14"
    async with serve(upstream, providers=("bedrock", "vertex-claude")) as gateway:
        for provider in ("bedrock", "vertex-claude"):
            sent = {**body, "model": f"{provider}:claude-sonnet-4-5"}
            _, headers, _ = await gateway.post(path, sent, anthropic_beta=betas)
            record = await gateway.get(f"/metis/requests/{headers['x-metis-request-id']}")
            reasons = [loss["reason"] for loss in decode(record[2])["losses"]]
            assert any("invented-2099-01-01" in reason for reason in reasons), reasons
    named = [
        [*request.headers.getall("anthropic-beta", []), *decode(body).get("anthropic_beta", [])]
        for request, body in upstream.requests
    ]
    assert named == [["interleaved-thinking-2025-05-14"]] * 2


@pytest.mark.row("GW-17")
@pytest.mark.parametrize("target", ["openai:gpt-4o", "gemini:gemini-2.5-pro", "ollama:llama3.1"])
async def test_tool_choice_is_omitted_without_tools(target: str) -> None:
    path, body = CLIENTS["anthropic"]
    upstream = Upstream()
    async with serve(upstream, routes=(f"*={target}",)) as gateway:
        await gateway.post(path, {**body, "tool_choice": {"type": "auto"}, "tools": []})
        search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
        choice = {"type": "tool", "name": "web_search"}
        await gateway.post(path, {**body, "tool_choice": choice, "tools": [search]})
    for _, sent in upstream.requests:
        wire = decode(sent)
        assert "tool_choice" not in wire
        assert "function" not in str(wire.get("toolConfig", "")).lower()


@pytest.mark.row("GW-18")
async def test_web_search_is_translated_or_refused_with_reason() -> None:
    path, body = CLIENTS["anthropic"]
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
    upstream = Upstream()
    async with serve(upstream) as gateway:
        sent = {**body, "tools": [search]}
        await gateway.post(path, {**sent, "model": "gemini:gemini-2.5-pro"})
        await gateway.post(path, {**sent, "model": "openai-responses:gpt-5"})
        count = len(upstream.requests)
        status, _, reply = await gateway.post(path, {**sent, "model": "ollama:llama3.1"})
    assert "googleSearch" in str(decode(upstream.requests[0][1])["tools"])
    assert "web_search" in str(decode(upstream.requests[1][1])["tools"])
    assert (status, count) == (400, len(upstream.requests))
    assert "web_search" in decode(reply)["error"]["message"]


TOOL: dict[str, Any] = {
    "name": "look",
    "description": "words " * 200,
    "input_schema": {"type": "object", "properties": {}},
}
IMAGE: dict[str, Any] = {
    "type": "image",
    "source": {
        "type": "base64",
        "media_type": "image/png",
        "data": "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9"
        "awAAAABJRU5ErkJggg==",
    },
}
USE = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"q": "words " * 300}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "words " * 300}


@pytest.mark.row("GW-21")
async def test_token_count_covers_every_block_and_is_marked_as_estimate() -> None:
    user = {"role": "user", "content": [{"type": "text", "text": "look"}]}
    base = {"model": "openai:gpt-4o", "messages": [user]}
    asks = {"role": "assistant", "content": [USE]}
    answers = {"role": "user", "content": [RESULT]}
    more: list[dict[str, Any]] = [
        {**base, "system": "words " * 300},
        {**base, "tools": [TOOL]},
        {**base, "messages": [{"role": "user", "content": [IMAGE, *user["content"]]}]},
        {**base, "messages": [user, asks, {**answers, "content": [{**RESULT, "content": "x"}]}]},
        {**base, "messages": [user, {**asks, "content": [{**USE, "input": {}}]}, answers]},
    ]
    async with serve(Upstream()) as gateway:
        _, headers, reply = await gateway.post("/v1/messages/count_tokens", base)
        least = decode(reply)["input_tokens"]
        for body in more:
            _, _, reply = await gateway.post("/v1/messages/count_tokens", body)
            assert decode(reply)["input_tokens"] > least + 50, body
    assert headers["x-metis-estimated"] == "true"


@pytest.mark.row("GW-22")
@pytest.mark.parametrize(
    ("client", "words"),
    [
        ("anthropic", "prompt is too long"),
        ("chat", "maximum context length"),
        ("responses", "context_length_exceeded"),
        ("gemini", "exceeds the maximum number of tokens"),
    ],
)
async def test_overflow_error_has_text_that_makes_clients_compact(client: str, words: str) -> None:
    answers = {
        "openai": (400, {"error": {"code": "context_length_exceeded", "message": "too many"}}),
        "anthropic": (
            400,
            {
                "type": "error",
                "error": {
                    "type": "invalid_request_error",
                    "message": "prompt is too long: 210000 tokens > 200000 maximum",
                },
            },
        ),
    }
    own = {"anthropic": "anthropic", "chat": "openai", "responses": "openai"}
    for provider, (status, body) in answers.items():
        if own.get(client) == provider:
            continue
        upstream = Upstream(partial(refuse, status, body))
        async with serve(upstream, routes=(f"*={provider}:m",)) as gateway:
            received, _, reply = await gateway.post(*CLIENTS[client])
        assert received in (400, 413), reply
        assert words in reply.decode(), reply


async def refuse(status: int, body: Any, _: web.Request, __: bytes) -> web.StreamResponse:
    return web.json_response(body, status=status)


@pytest.mark.row("GW-22")
async def test_max_tokens_over_model_limit_are_clamped_with_loss() -> None:
    path, body = CLIENTS["anthropic"]
    upstream = Upstream()
    async with serve(upstream, routes=("*=openai:gpt-4o",)) as gateway:
        _, headers, _ = await gateway.post(path, {**body, "max_tokens": 900_000})
        record = await gateway.get(f"/metis/requests/{headers['x-metis-request-id']}")
    wire = decode(upstream.requests[0][1])
    assert wire.get("max_completion_tokens", wire.get("max_tokens")) == 16_384
    assert any("max_output_tokens" in loss["path"] for loss in decode(record[2])["losses"])


def chat_chunks(usage: dict[str, Any], *, with_choices: bool) -> list[bytes]:
    base = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4o"}
    delta = {"index": 0, "delta": {"role": "assistant", "content": "hello"}, "finish_reason": None}
    last: dict[str, Any] = {"index": 0, "delta": {}, "finish_reason": "stop"}
    rows: list[dict[str, Any]] = [{**base, "choices": [delta]}]
    if with_choices:
        rows.append({**base, "choices": [last], "usage": usage})
    else:
        rows += [{**base, "choices": [last]}, {**base, "choices": [], "usage": usage}]
    return [b"data: " + msgspec.json.encode(row) + b"\n\n" for row in rows] + [b"data: [DONE]\n\n"]


@pytest.mark.row("GW-26")
async def test_translated_stream_has_estimated_input_tokens_first_and_actual_last() -> None:
    usage = {
        "prompt_tokens": 70,
        "completion_tokens": 2,
        "total_tokens": 72,
        "prompt_tokens_details": {"cached_tokens": 30},
    }

    async def streamed(request: web.Request, _: bytes) -> web.StreamResponse:
        return await stream(request, chat_chunks(usage, with_choices=True))

    async with serve(Upstream(streamed), routes=("*=openai:gpt-4o",)) as gateway:
        path, body = CLIENTS["anthropic"]
        _, _, reply = await gateway.post(path, {**body, "stream": True})
    events = [decode(line[6:]) for line in reply.splitlines() if line.startswith(b"data: {")]
    start = next(event for event in events if event["type"] == "message_start")
    delta = next(event for event in events if event["type"] == "message_delta")
    assert start["message"]["usage"]["input_tokens"] > 0
    assert delta["usage"]["input_tokens"] == 40
    assert delta["usage"]["cache_read_input_tokens"] == 30
    assert delta["usage"]["output_tokens"] == 2


@pytest.mark.row("GW-30", "GW-33")
async def test_cache_marks_are_sent_to_claude_hosts_and_added_for_other_clients() -> None:
    mark = {"type": "ephemeral"}
    path, body = CLIENTS["anthropic"]
    text = {"type": "text", "text": "instructions " * 900, "cache_control": mark}
    upstream = Upstream()
    async with serve(upstream, providers=("vertex-claude", "bedrock", "anthropic")) as gateway:
        for provider in ("vertex-claude", "bedrock"):
            sent = {**body, "model": f"{provider}:claude-sonnet-4-5", "system": [text]}
            await gateway.post(path, sent)
        chat = {
            "model": "anthropic:claude-sonnet-4-5",
            "messages": [
                {"role": "system", "content": "instructions " * 900},
                {"role": "user", "content": "first"},
                {"role": "assistant", "content": "answer"},
                {"role": "user", "content": "second"},
            ],
        }
        await gateway.post("/v1/chat/completions", chat)
    for _, sent in upstream.requests[:2]:
        assert decode(sent)["system"][0]["cache_control"] == mark
    assert b'"cache_control"' in upstream.requests[2][1]


@pytest.mark.row("GW-31", "GW-32")
@pytest.mark.parametrize(
    "target", ["openai:gpt-4o", "anthropic:claude-sonnet-4-5", "gemini:gemini-2.5-pro"]
)
async def test_next_request_extends_bytes_of_previous_one(target: str) -> None:
    """A changed prefix, or another key, invalidates the provider's cache."""
    upstream = Upstream()
    history = [{"role": "user", "content": "first"}]
    async with serve(upstream, routes=(f"*={target}",)) as gateway:
        for turn in range(3):
            body: dict[str, Any] = {
                "model": "M",
                "system": "be brief",
                "max_tokens": 9,
                "tools": [TOOL],
                "messages": list(history),
            }
            await gateway.post("/v1/messages", body, x_claude_code_session_id="s1")
            history += [
                {"role": "assistant", "content": f"answer {turn}"},
                {"role": "user", "content": f"question {turn}"},
            ]
    bodies = [body for _, body in upstream.requests]
    credentials = ("authorization", "x-api-key", "x-goog-api-key")
    keys = {tuple(map(request.headers.get, credentials)) for request, _ in upstream.requests}
    key = "contents" if "gemini" in target else "messages"
    for earlier, later in pairwise(bodies):
        one, two = decode(earlier), decode(later)
        assert two[key][: len(one[key])] == one[key]
        assert {**one, key: 0} == {**two, key: 0}
        # The bytes before the first difference contain the whole earlier history.
        last = msgspec.json.encode(one[key][-1])
        at = earlier.rindex(last.rstrip(b"}]"))
        assert later.startswith(earlier[:at])
    assert len(bodies) == 3
    assert len(keys) == 1
