"""Beta features per host, and cache marks for clients whose own provider needs none."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from metis import adapters
from metis.adapters import RequestContext
from metis.wire.call import CanonicalRequest, WireRequest

LONG = "A long instruction. " * 2000
CHAT: dict[str, Any] = {
    "model": "gpt-5",
    "messages": [
        {"role": "system", "content": LONG},
        {"role": "user", "content": "One."},
        {"role": "assistant", "content": "Two."},
        {"role": "user", "content": "Three."},
    ],
}
CLAUDE = {
    "anthropic": "claude-sonnet-4-5",
    "bedrock": "anthropic.claude-sonnet-4-5-20250929-v1:0",
    "bedrock-converse": "anthropic.claude-sonnet-4-5-20250929-v1:0",
    "vertex-claude": "claude-sonnet-4-5@20250929",
}


def claude_request(name: str, betas: str, **keys: Any) -> CanonicalRequest:
    body = {"max_tokens": 9, "messages": [{"role": "user", "content": "Hi."}], **keys}
    if name == "anthropic":
        body["model"] = CLAUDE[name]
    context = RequestContext(session_id="sess_b", headers={"anthropic-beta": betas})
    return adapters.get(name).from_wire_request(body, context)


def served(name: str, request: CanonicalRequest) -> WireRequest:
    options = replace(request.options, model=CLAUDE.get(name))
    return adapters.get(name).preview(request.messages, request.tools, options)


@pytest.mark.row("T220")
def test_beta_features_are_sent_where_each_host_reads_them() -> None:
    betas = "context-1m-2025-08-07, files-api-2025-04-14,advanced-tool-use-2025-11-20"
    request = claude_request("anthropic", betas)
    bedrock = served("bedrock", request)
    sent = json.loads(bedrock.body)["anthropic_beta"]
    assert sent == ["context-1m-2025-08-07", "tool-search-tool-2025-10-19"]
    assert "anthropic-beta" not in bedrock.headers
    assert [loss.path for loss in bedrock.losses] == ["$.betas"]
    assert "files-api-2025-04-14" in bedrock.losses[0].reason
    vertex = served("vertex-claude", request)
    expected = "context-1m-2025-08-07,tool-search-tool-2025-10-19"
    assert vertex.headers["anthropic-beta"] == expected
    assert "anthropic_beta" not in json.loads(vertex.body)
    other = served("openai", replace(request, options=replace(request.options, model=None)))
    assert "$.betas" in [loss.path for loss in other.losses]


@pytest.mark.row("T220")
@pytest.mark.parametrize("name", ["anthropic", "bedrock", "vertex-claude"])
def test_unlisted_beta_feature_is_sent_to_the_same_host(name: str) -> None:
    keys = {"anthropic_beta": ["of-tomorrow"]} if name == "bedrock" else {}
    request = claude_request(name, "" if name == "bedrock" else "of-tomorrow", **keys)
    wire = served(name, request)
    named = wire.headers.get("anthropic-beta") or json.loads(wire.body)["anthropic_beta"][0]
    assert named == "of-tomorrow"
    assert not wire.losses


@pytest.mark.row("T220")
def test_api_version_is_sent_where_each_host_reads_it() -> None:
    request = claude_request("anthropic", "")
    assert served("anthropic", request).headers["anthropic-version"] == "2023-06-01"
    for name in ("bedrock", "vertex-claude"):
        wire = served(name, request)
        assert "anthropic-version" not in wire.headers
        assert json.loads(wire.body)["anthropic_version"].startswith(name.split("-")[0])


def marks(wire: Any) -> int:
    text = json.dumps(wire)
    return text.count('"cache_control"') + text.count('"cachePoint"')


@pytest.mark.row("T221")
@pytest.mark.parametrize("client", ["openai", "openai-responses", "gemini"])
@pytest.mark.parametrize("name", CLAUDE)
def test_cache_marks_are_added_where_only_marked_prefixes_are_cached(
    client: str, name: str
) -> None:
    chat = adapters.get("openai").from_wire_request(CHAT)
    body = adapters.get(client).preview(chat.messages).body
    request = adapters.get(client).from_wire_request(
        body, RequestContext(session_id="sess_b", path="/v1beta/models/m:generateContent")
    )
    wire = served(name, request)
    sent = json.loads(wire.body)
    assert [loss.path for loss in wire.losses if "caches by itself" in loss.reason]
    if name == "anthropic":
        assert sent["cache_control"] == {"type": "ephemeral"}
        assert marks(sent) == 1
    else:
        assert marks(sent) == 3
        assert marks(sent["system"]) == 1
        assert marks(sent["messages"][-1]) == 1
        assert marks(sent["messages"][0]) == 1


@pytest.mark.row("T221")
def test_no_cache_mark_that_costs_more_than_it_saves() -> None:
    first = {**CHAT, "messages": CHAT["messages"][:2]}
    short = {**CHAT, "messages": CHAT["messages"][1:]}
    for body in (first, short):
        request = adapters.get("openai").from_wire_request(body)
        for name in CLAUDE:
            assert marks(json.loads(served(name, request).body)) == 0
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    request = adapters.get("openai").from_wire_request({**first, "tools": [tool]})
    assert marks(json.loads(served("bedrock", request).body)) > 0


@pytest.mark.row("T221")
def test_cache_marks_of_client_are_respected() -> None:
    body = {
        "model": CLAUDE["anthropic"],
        "max_tokens": 9,
        "system": [{"type": "text", "text": LONG, "cache_control": {"type": "ephemeral"}}],
        "messages": [{"role": "user", "content": "Hi."}],
        "tools": [{"name": "f", "input_schema": {"type": "object"}}],
    }
    request = adapters.get("anthropic").from_wire_request(body)
    for name in CLAUDE:
        assert marks(json.loads(served(name, request).body)) == 1
