"""The adapter: registry, options, losses, capabilities, and conversations across providers."""

import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import anyio
import msgspec
import pytest
from msgspec.structs import replace

from build import assistant, call, image, text, thinking, tool, user
from metis import adapters
from metis.adapters.profiles import PROFILES
from metis.canonical import Message, StopReason, ToolDefinition, ToolUseBlock, encode
from metis.canonical.errors import CriticalLossError, MetisError, UnknownAdapterError
from metis.canonical.tools import SideEffects
from metis.streaming import MessageComplete, StreamEvent
from metis.wire.call import AdapterOptions, RequestContext

NAMES = adapters.names()
CALL = call("read_file", path="a")
TALK = [
    user("go"),
    assistant(replace(thinking("hm"), signature="s", issuer="anthropic"), text("yes"), CALL),
    tool("ok", answers=CALL.id),
]
TOOL = ToolDefinition("read_file", "Reads a file.", {"type": "object"}, SideEffects.READ)


def test_adapters_are_found_by_name() -> None:
    assert NAMES[:2] == ["anthropic", "openai"]
    assert {"openai-responses", "azure-responses", "gemini", "vertex", "ollama"} <= {*NAMES}
    assert NAMES[-1] == "openai-compatible"
    assert [adapters.get(name).name for name in NAMES] == NAMES
    other = adapters.get("openai-compatible", base_url="http://127.0.0.1:9")
    assert other.profile.base_url == "http://127.0.0.1:9"
    with pytest.raises(UnknownAdapterError, match="Providers: anthropic, openai") as caught:
        adapters.get("nobody")
    assert isinstance(caught.value, MetisError)


@pytest.mark.row("M-203", "M-214", "M-220")
def test_capabilities_come_from_the_catalogue_or_are_assumed() -> None:
    anthropic = adapters.get("anthropic")
    assert anthropic.capabilities("claude-sonnet-4-6").supports_images
    assert anthropic.capabilities("claude-sonnet-4-6") == anthropic.capabilities(
        "anthropic:claude-sonnet-4-6"
    )
    assert anthropic.capabilities("claude-unheard-of") == PROFILES["anthropic"].defaults


@pytest.mark.row("M-013", "M-016", "M-109", "M-199")
@pytest.mark.parametrize("name", NAMES)
def test_request_body_is_wire_json_not_canonical_json(name: str) -> None:
    adapter = adapters.get(name)
    one, two = (adapter.to_wire(TALK, [TOOL], AdapterOptions()) for _ in range(2))
    assert one == two
    path = adapter.profile.request_path(adapter.profile.default_model)
    assert (one.method, one.path) == ("POST", path)
    assert one.body != encode(TALK[0])
    assert b"Reads a file." in one.body


@pytest.mark.row("M-002", "M-060", "M-061", "M-063", "M-223", "M-225", "M-287")
def test_each_loss_is_one_warning_with_its_facts(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="metis.adapters"):
        wire = adapters.get("openai").to_wire(TALK)
    (record,) = caplog.records
    facts = ("session_id", "message_id", "block_type", "adapter", "reason")
    assert record.levelno == logging.WARNING
    assert {name: getattr(record, name) for name in facts} == {
        "session_id": TALK[1].session_id,
        "message_id": TALK[1].id,
        "block_type": "thinking",
        "adapter": "openai",
        "reason": "the model does not accept thinking blocks",
    }
    assert [loss.block_type for loss in wire.losses] == ["thinking"]


@pytest.mark.row("M-064")
def test_critical_block_fails_before_encoding() -> None:
    message = user(replace(image(), critical=True))
    with pytest.raises(CriticalLossError):
        adapters.get("openai-compatible").to_wire([message])


@pytest.mark.row("M-014")
def test_native_options_are_sent_only_to_their_protocol() -> None:
    options = AdapterOptions(
        native={"openai_chat": {"logit_bias": {"1": 2}}}, stop_sequences=("x",)
    )
    sent = adapters.get("openai").to_wire(TALK[:1], options=options)
    other = adapters.get("anthropic").to_wire(TALK[:1], options=options)
    assert json.loads(sent.body)["logit_bias"] == {"1": 2}
    assert sent.losses == []
    assert "logit_bias" not in json.loads(other.body)
    assert json.loads(other.body)["stop_sequences"] == ["x"]
    assert [(loss.block_type, loss.path) for loss in other.losses] == [("option", "$.logit_bias")]


@pytest.mark.row("T196", "T201")
def test_server_side_tools_are_losses_at_other_providers() -> None:
    search = {"type": "web_search_20250305", "name": "web_search"}
    body: dict[str, Any] = {
        "model": "claude-sonnet-4-6",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "go"}],
        "tools": [{"name": "f", "input_schema": {"type": "object"}}, search],
    }
    anthropic = adapters.get("anthropic")
    request = anthropic.from_wire_request(body)
    away = adapters.get("openai").to_wire(request.messages, request.tools, request.options)
    assert [loss.path for loss in away.losses] == ["$.tools[1]"]
    sent = json.loads(anthropic.to_wire(request.messages, [TOOL], request.options).body)
    assert sent["tools"][1] == search
    assert sent["tools"][0]["name"] == "read_file"


@pytest.mark.row("T183")
def test_option_the_provider_refuses_is_omitted_with_loss() -> None:
    options = AdapterOptions(temperature=0.5, top_k=3, model="gpt-4.1")
    wire = adapters.get("openai").to_wire(TALK[:1], options=options)
    assert json.loads(wire.body)["temperature"] == 0.5
    assert [(loss.path, loss.reason) for loss in wire.losses] == [
        ("$.top_k", "top_k is not supported by openai")
    ]


@pytest.mark.row("T183")
@pytest.mark.parametrize(
    ("name", "model", "refused"),
    [
        ("anthropic", "claude-3-5-haiku-latest", []),
        ("anthropic", "claude-sonnet-4-20250514", []),
        ("anthropic", "claude-sonnet-4-6", ["$.top_p"]),
        ("anthropic", "claude-haiku-4-5", ["$.top_p"]),
        ("anthropic", "claude-opus-4-7", ["$.temperature", "$.top_k", "$.top_p"]),
        ("anthropic", "claude-opus-5", ["$.temperature", "$.top_k", "$.top_p"]),
        ("anthropic", "claude-sonnet-5", ["$.temperature", "$.top_k", "$.top_p"]),
        ("openai", "gpt-4.1", ["$.top_k"]),
        ("openai", "o3", ["$.temperature", "$.top_k", "$.top_p"]),
        ("openai", "gpt-5", ["$.temperature", "$.top_k", "$.top_p"]),
        ("openai", "gpt-5-chat-latest", ["$.top_k"]),
        ("azure", "gpt-5-mini", ["$.temperature", "$.top_k", "$.top_p"]),
        ("openrouter", "anthropic/claude-opus-4.7", []),
    ],
)
def test_unsupported_options_follow_model_capabilities(
    name: str, model: str, refused: list[str]
) -> None:
    options = AdapterOptions(temperature=0.5, top_p=0.5, top_k=3, model=model)
    wire = adapters.get(name).to_wire(TALK[:1], options=options)
    assert [loss.path for loss in wire.losses] == refused
    sent = {f"$.{key}" for key in ("temperature", "top_p", "top_k") if key in json.loads(wire.body)}
    assert sent == {"$.temperature", "$.top_p", "$.top_k"} - set(refused)


@pytest.mark.row("M-151", "M-195")
def test_cache_of_another_adapter_changes_nothing() -> None:
    bare = TALK[1]
    raw = {"openai_chat": {"ids": {CALL.id: "call_x"}}, "unheard_of": {"a": 1}}
    with_raw = replace(bare, metadata=replace(bare.metadata, provider_raw=raw))
    adapter = adapters.get("anthropic")
    one = adapter.to_wire([TALK[0], bare, TALK[2]]).body
    two = adapter.to_wire([TALK[0], with_raw, TALK[2]]).body
    assert one == two


ANSWER = {
    "id": "chatcmpl-1",
    "model": "m",
    "choices": [
        {
            "index": 0,
            "finish_reason": "tool_calls",
            "message": {
                "role": "assistant",
                "content": None,
                "reasoning": "hm",
                "executed_tools": [{"index": 0}],
                "tool_calls": [
                    {
                        "id": "fc_own",
                        "type": "function",
                        "function": {"name": "f", "arguments": "{ }"},
                    }
                ],
            },
        }
    ],
}


@pytest.mark.row("M-151", "M-173", "M-195", "T13")
def test_unmapped_keys_are_not_sent_to_another_host_of_the_protocol() -> None:
    host = adapters.get("openai-compatible")
    answer = host.from_wire_response(ANSWER)
    (called,) = (block for block in answer.content if isinstance(block, ToolUseBlock))
    history = [user("go"), answer, tool("ok", answers=called.id)]
    history_sent = json.loads(host.to_wire(history).body)["messages"]
    assert history_sent[1]["tool_calls"][0]["id"] == history_sent[2]["tool_call_id"] == "fc_own"
    assert history_sent[1]["tool_calls"][0]["function"]["arguments"] == "{ }"
    assert history_sent[1]["executed_tools"] == [{"index": 0}]
    away = adapters.get("openai").to_wire(history)
    sent = json.loads(away.body)["messages"]
    derived = "call_" + called.id.removeprefix("tu_")
    assert sent[1:] == [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": derived, "type": "function", "function": {"name": "f", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": derived, "content": "ok"},
    ]
    assert [(loss.block_type, loss.path) for loss in away.losses] == [
        ("thinking", "$.content[0]"),
        ("message", "$.executed_tools"),
    ]
    shown = json.loads(adapters.get("openai").to_wire_response(answer))
    assert shown["choices"][0]["message"]["tool_calls"][0]["id"] == derived
    assert json.loads(host.to_wire_response(answer)) == ANSWER


@pytest.mark.row("M-014", "T183")
def test_host_receives_options_common_to_the_protocol() -> None:
    body: dict[str, Any] = {
        "model": "gpt-5",
        "messages": [{"role": "user", "content": "go"}],
        "max_completion_tokens": 9,
        "response_format": {"type": "json_object"},
        "seed": 7,
        "logit_bias": {"1": 2},
        "stop": "x",
        "verbosity": "low",
        "tools": [{"type": "custom", "custom": {"name": "c"}}],
    }
    openai = adapters.get("openai")
    request = openai.from_wire_request(body)
    assert request.options.origin == "openai"
    assert json.loads(openai.to_wire(request.messages, (), request.options).body) == body
    options = replace(request.options, model="other")
    away = adapters.get("openai-compatible").to_wire(request.messages, (), options)
    assert json.loads(away.body) == {
        "model": "other",
        "messages": body["messages"],
        "max_tokens": 9,
        "response_format": {"type": "json_object"},
        "seed": 7,
        "logit_bias": {"1": 2},
        "stop": ["x"],
        "tools": json.loads(away.body)["tools"],
    }
    assert json.loads(away.body)["tools"][0]["function"]["name"] == "c"
    paths = ["$.tools.c", "$.verbosity", "$.tools[0].description"]
    assert [loss.path for loss in away.losses] == paths


@pytest.mark.row("M-009", "M-056", "M-168", "M-173", "T204", "T205")
def test_conversation_moves_to_another_provider_and_back() -> None:
    anthropic, openai = adapters.get("anthropic"), adapters.get("openai")
    context = RequestContext(session_id="sess_walk")
    first = anthropic.from_wire_response(
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "claude-sonnet-4-6",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "sealed"},
                {"type": "tool_use", "id": "toolu_own", "name": "f", "input": {"b": 1, "a": 2}},
            ],
            "stop_reason": "tool_use",
            "usage": {"input_tokens": 1, "output_tokens": 1},
        },
        context,
    )
    (called,) = (block for block in first.content if isinstance(block, ToolUseBlock))
    history = [user("go"), first, tool("ok", answers=called.id)]
    away = json.loads(openai.to_wire(history).body)
    (sent,) = away["messages"][1]["tool_calls"]
    assert away["messages"][2]["tool_call_id"] == sent["id"] != "toolu_own"
    second = openai.from_wire_response(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "model": "gpt-5",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": "done"},
                    "finish_reason": "stop",
                }
            ],
        },
        context,
    )
    back = json.loads(anthropic.to_wire([*history, second, user("more")]).body)
    assert back["messages"][1]["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": "sealed"},
        {"type": "tool_use", "id": "toolu_own", "name": "f", "input": {"b": 1, "a": 2}},
    ]
    assert back["messages"][2]["content"][0]["tool_use_id"] == "toolu_own"
    assert back["messages"][3]["content"] == [{"type": "text", "text": "done"}]


STREAM = (
    b'data: {"id":"c","model":"gpt-5","choices":[{"index":0,"delta":{"content":"he"}}]}\n\n'
    b'data: {"id":"c","model":"gpt-5","choices":[{"index":0,"delta":{"content":"llo"},'
    b'"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
)


@pytest.mark.row("M-201", "M-237")
def test_stream_of_one_provider_is_encoded_for_another() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for byte in STREAM:
            yield bytes([byte])

    async def translate() -> tuple[list[StreamEvent], bytes]:
        events = [event async for event in adapters.get("openai").stream_response(chunks())]

        async def again() -> AsyncIterator[StreamEvent]:
            for event in events:
                yield event

        written = [data async for data in adapters.get("anthropic").stream_to_wire(again())]
        return events, b"".join(written)

    events, written = anyio.run(translate)
    last = events[-1]
    assert isinstance(last, MessageComplete)
    assert last.stop_reason is StopReason.END_TURN
    decoder = adapters.get("anthropic").stream_decoder()
    decoder.feed(written)
    decoder.finish()
    assert decoder.message.content == last.message.content


@pytest.mark.row("M-011")
def test_new_provider_needs_only_a_profile() -> None:
    profile = msgspec.structs.replace(PROFILES["openai"], name="toy", base_url="http://127.0.0.1:1")
    toy = adapters.Adapter(profile)
    request = toy.to_wire(TALK)
    assert json.loads(request.body)["messages"][0] == {"role": "user", "content": "go"}
    assert isinstance(toy.from_wire_request(request.body).messages[0], Message)


@pytest.mark.row("M-010")
def test_client_tools_are_sent_unchanged_to_its_own_provider() -> None:
    """Every key of the client's request is sent, whatever the catalogue says of the model."""
    adapter = adapters.get("deepseek")
    function: dict[str, Any] = {
        "name": "f",
        "description": "",
        "parameters": {"type": "object", "properties": {}},
    }
    body: dict[str, Any] = {
        "model": "deepseek-reasoner",
        "messages": [{"role": "user", "content": "go"}],
        "tools": [{"type": "function", "function": function}],
    }
    assert not adapter.capabilities("deepseek-reasoner").supports_tools
    request = adapter.from_wire_request(body)
    wire = adapter.to_wire(request.messages, request.tools, request.options)
    assert json.loads(wire.body) == body
    assert wire.losses == []
