"""Content that only one protocol can express is a reported loss at other providers."""

import json
import re
from typing import Any

import pytest
from msgspec.structs import replace

from build import assistant, call, image, system, text, thinking, tool, tool_id, user
from metis import adapters
from metis.canonical import (
    CacheHint,
    InvalidInput,
    Message,
    ToolDefinition,
    ToolUseBlock,
    decode,
    encode,
)
from metis.canonical.tools import SideEffects
from metis.projection.loss import Change
from metis.projection.tool_calls import wire_tool_name
from metis.wire.call import AdapterOptions, RequestContext, ToolChoice, WireRequest

ANTHROPIC, OPENAI = adapters.get("anthropic"), adapters.get("openai")
COMPATIBLE = adapters.get("openai-compatible")
NAMES = adapters.names()
CONTEXT = RequestContext(session_id="sess_losses")
A = call("f", tool_id(1), a=1)
TOOL_A = ToolDefinition("f", "Does it.", {"type": "object", "properties": {}}, SideEffects.READ)


def losses_of(wire: WireRequest) -> list[tuple[str, str]]:
    return [(loss.block_type, loss.path) for loss in wire.losses]


def away(source: str, target: str, *messages: dict[str, Any], **keys: Any) -> WireRequest:
    body: Any = {"model": "m", "max_tokens": 9, "messages": list(messages), **keys}
    request = adapters.get(source).from_wire_request(body, CONTEXT)
    options = replace(request.options, model=None)
    return adapters.get(target).to_wire(request.messages, request.tools, options)


@pytest.mark.row("T71", "T87", "T212")
def test_keys_of_one_protocol_are_losses_elsewhere() -> None:
    url = {"url": "https://example.org/a.png", "detail": "high"}
    wire = away(
        "openai",
        "anthropic",
        {"role": "user", "name": "ann", "content": [{"type": "image_url", "image_url": url}]},
        {"role": "user", "content": [{"type": "text", "text": "go"}]},
    )
    assert losses_of(wire) == [("key", "$.name"), ("key", "$.content[0].image_url.detail")]
    assert wire.losses[0].reason == "'name' exists in openai_chat only"
    assert wire.losses[0].message_id == wire.losses[1].message_id


@pytest.mark.row("T71", "T212")
def test_keys_inside_parts_are_losses_at_another_host() -> None:
    url = {"url": "https://example.org/a.png", "detail": "high"}
    part = {"type": "image_url", "image_url": url}
    wire = away("openai", "openrouter", {"role": "user", "content": [part]})
    assert losses_of(wire)[0] == ("message", "$.content[0].image_url.detail")
    film = {
        "fileData": {"fileUri": "https://example.org/a.mp4", "mimeType": "video/mp4"},
        "videoMetadata": {"fps": 2},
    }
    body = {"contents": [{"role": "user", "parts": [film]}]}
    request = adapters.get("gemini").from_wire_request(body, CONTEXT)
    moved = adapters.get("vertex").to_wire(request.messages, (), request.options)
    assert losses_of(moved) == [("message", "$.content[0].videoMetadata")]


@pytest.mark.row("T71", "T212")
def test_redundant_keys_are_not_losses() -> None:
    url = {"url": "https://example.org/a.png", "detail": "auto"}
    wire = away(
        "openai",
        "anthropic",
        {"role": "user", "content": [{"type": "image_url", "image_url": url}]},
        {"role": "assistant", "content": "yes", "refusal": None, "tool_calls": []},
        {"role": "user", "content": "go on"},
    )
    assert losses_of(wire) == []
    block = {"type": "text", "text": "hi", "citations": None}
    assert losses_of(away("anthropic", "openai", {"role": "user", "content": [block]})) == []


@pytest.mark.row("T71", "T87")
def test_document_attributes_are_losses() -> None:
    document = {
        "type": "document",
        "source": {"type": "base64", "media_type": "application/pdf", "data": "AA=="},
        "context": "the contract",
        "citations": {"enabled": True},
    }
    wire = away("anthropic", "openai", {"role": "user", "content": [document]})
    assert losses_of(wire) == [
        ("document", "$.content[0].context"),
        ("key", "$.content[0].citations"),
    ]


@pytest.mark.row("T61", "T71")
def test_attributes_of_calls_are_losses() -> None:
    message = {
        "id": "c",
        "type": "function",
        "function": {"name": "f", "arguments": "{}"},
        "extra_content": {"google": {"thought_signature": "x"}},
        "host_key": 7,
    }
    wire = away(
        "openai",
        "anthropic",
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [message]},
        {"role": "tool", "tool_call_id": "c", "content": "ok"},
        tools=[{"type": "function", "function": {"name": "f", "parameters": TOOL_A.input_schema}}],
    )
    assert losses_of(wire) == [("thinking", "$.content[0]"), ("key", "$.content[1].host_key")]


@pytest.mark.row("T109", "T212")
def test_unmapped_keys_of_tools_are_losses() -> None:
    schema: Any = {"type": "object", "properties": {}}
    mark: Any = {"type": "ephemeral"}
    tools: Any = [{"name": "f", "input_schema": schema, "strict": True, "cache_control": mark}]
    message = {"role": "user", "content": "go"}
    assert losses_of(away("anthropic", "openai", message, tools=tools)) == [
        ("option", "$.tools[0].strict")
    ]
    function: Any = {"name": "f", "parameters": schema, "strict": True}
    definitions: Any = [{"type": "function", "function": function}]
    assert losses_of(away("openai", "anthropic", message, tools=definitions)) == [
        ("option", "$.tools[0].strict")
    ]


@pytest.mark.row("T113", "T114")
@pytest.mark.parametrize("name", NAMES)
def test_tool_choice_is_omitted_without_tools(name: str) -> None:
    options = AdapterOptions(tool_choice=ToolChoice("required"), parallel_tool_calls=False)
    wire = adapters.get(name).to_wire([user("go")], (), options)
    keys = {"tool_choice", "toolConfig", "parallel_tool_calls", "tools"}
    assert not keys & set(json.loads(wire.body))
    assert sorted(losses_of(wire)) == [
        ("option", "$.parallel_tool_calls"),
        ("option", "$.tool_choice"),
    ]


@pytest.mark.row("T114")
def test_tool_choice_is_omitted_with_its_tools() -> None:
    tools: Any = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    body: Any = {
        "messages": [{"role": "user", "content": "go"}],
        "tools": tools,
        "tool_choice": "required",
    }
    request = OPENAI.from_wire_request(body, CONTEXT)
    assert json.loads(OPENAI.to_wire(request.messages, request.tools, request.options).body) == body
    without = OPENAI.to_wire(request.messages, (), request.options)
    assert set(json.loads(without.body)) == {"messages"}
    assert losses_of(without) == [("option", "$.tool_choice")]
    usual = OPENAI.to_wire(
        request.messages, (), replace(request.options, tool_choice=ToolChoice("auto"))
    )
    assert (set(json.loads(usual.body)), losses_of(usual)) == ({"messages"}, [])
    body_without: Any = {"messages": body["messages"], "tool_choice": "none"}
    request = OPENAI.from_wire_request(body_without, CONTEXT)
    assert json.loads(OPENAI.to_wire(request.messages, (), request.options).body) == body_without


def tool_named(name: str) -> ToolDefinition:
    return ToolDefinition(name, "Does it.", {"type": "object"}, SideEffects.READ)


@pytest.mark.row("M-041", "T111")
@pytest.mark.parametrize("name", ["anthropic", "gemini", "openai", "openai-responses"])
def test_renamed_tool_has_one_name_in_definitions_choice_and_history(name: str) -> None:
    ours = "mcp.files/read"
    long_call = replace(A, name=ours)
    wire = adapters.get(name).to_wire(
        [user("go"), assistant(long_call), tool("ok", answers=A.id)],
        [tool_named(ours), tool_named("plain"), tool_named("plain")],
        AdapterOptions(tool_choice=ToolChoice("tool", ours)),
    )
    alias = wire_tool_name(ours)
    # Results name their tool as well.
    assert wire.body.count(f'"{alias}"'.encode()) == (4 if name == "gemini" else 3)
    assert ours.encode() not in wire.body
    renamed = [loss for loss in wire.losses if loss.change is not Change.SYNTHESISED]
    assert [(loss.block_type, loss.path) for loss in renamed] == [
        ("tool_use", "$.content[0].name"),
        ("option", "$.tools[0].name"),
        ("option", "$.tools[2]"),
    ]
    assert renamed[1].change == "altered"


@pytest.mark.row("T32", "KX-05")
def test_invalid_call_is_sent_and_its_result_explains_the_error() -> None:
    bad = ToolUseBlock(A.id, "f", {}, InvalidInput('{"a":', "unexpected end"))
    talk = [user("go"), assistant(bad), tool("not run", answers=A.id)]
    sent_back = json.loads(OPENAI.to_wire(talk).body)["messages"]
    assert sent_back[1]["tool_calls"][0]["function"]["arguments"] == '{"a":'
    assert "unexpected end" in json.dumps(sent_back[2]["content"])
    for adapter in (ANTHROPIC, COMPATIBLE):
        wire = adapter.to_wire(talk)
        assert ("tool_use", "$.content[0].input") in losses_of(wire)
        text = wire.body.decode().replace("\\", "")
        assert '{"_raw":"{"a":"}' in text
        assert "unexpected end" in text
    for raw, value in (("[1, 2]", [1, 2]), ('"x"', "x"), ("null", None)):
        bad = ToolUseBlock(A.id, "f", {}, InvalidInput(raw, "no object"))
        sent = json.loads(ANTHROPIC.to_wire([user("go"), assistant(bad)]).body)["messages"]
        assert sent[1]["content"][0]["input"] == {"_value": value}


@pytest.mark.row("T27")
def test_image_of_tool_result_follows_the_results() -> None:
    talk = [user("go"), assistant(A), tool("see", image(), answers=A.id), user("well?")]
    wire = OPENAI.to_wire(talk)
    sent = json.loads(wire.body)["messages"]
    assert [turn["role"] for turn in sent] == ["user", "assistant", "tool", "user", "user"]
    kinds = [part["type"] for part in sent[3]["content"]]
    assert kinds == ["text", "image_url"]
    assert losses_of(wire) == [("image", "$.content[0].content[1]")]
    assert ANTHROPIC.to_wire(talk, [TOOL_A]).losses == []


def hinted(message: Message, *hints: CacheHint) -> Message:
    return replace(message, metadata=replace(message.metadata, hints=hints))


@pytest.mark.row("M-212", "T170", "T172", "T174", "T175")
def test_cache_hints_become_cache_marks_where_supported() -> None:
    hint = CacheHint(after=0)
    talk = [
        hinted(system("s" * 9000), CacheHint(after=0, ttl="1h")),
        hinted(user("go"), hint),
        assistant(A),
        hinted(tool("ok", answers=A.id), hint),
        hinted(user(text("a"), text("b")), CacheHint(after=1)),
        hinted(user("c"), hint),
    ]
    wire = ANTHROPIC.to_wire(talk, [TOOL_A])
    body = json.loads(wire.body)
    assert wire.losses == []
    assert body["system"][0]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}
    assert wire.body.count(b'"cache_control"') == 4
    assert "cache_control" not in body["messages"][0]["content"][0]
    assert body["messages"][2]["content"][0]["cache_control"] == {"type": "ephemeral"}
    assert "cache_control" in body["messages"][3]["content"][1]
    unheard_of = ANTHROPIC.to_wire(talk, options=AdapterOptions(model="claude-unheard-of"))
    assert b"cache_control" not in unheard_of.body
    elsewhere = OPENAI.to_wire(talk)
    assert b"cache" not in elsewhere.body
    assert losses_of(elsewhere) == [("hint", "$.metadata.hints")]


@pytest.mark.row("T170", "T171", "T173")
def test_cache_marks_of_client_become_hints_with_original_form() -> None:
    mark: Any = {"type": "ephemeral"}
    inner = {"type": "text", "text": "x", "cache_control": mark}
    body: dict[str, Any] = {
        "model": "claude-sonnet-4-6",
        "max_tokens": 9,
        "tools": [{"name": "f", "input_schema": {"type": "object"}, "cache_control": mark}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "go", "cache_control": mark}]},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "toolu_1", "content": [inner]},
                    {"type": "text", "text": "y", "cache_control": None},
                ],
            },
        ],
    }
    request = ANTHROPIC.from_wire_request(body, CONTEXT)
    hints = [message.metadata.hints for message in request.messages]
    assert hints == [(CacheHint(after=0),), (), (CacheHint(after=0),), ()]
    same = ANTHROPIC.to_wire(request.messages, request.tools, request.options)
    assert json.loads(same.body) == body
    more = [hinted(user(word), CacheHint(after=0, ttl="1h")) for word in ("m" * 9000, "n")]
    wire = ANTHROPIC.to_wire([*request.messages, *more], request.tools, request.options)
    sent = json.loads(wire.body)["messages"]
    assert "cache_control" not in sent[3]["content"][0]
    assert sent[4]["content"][0]["cache_control"] == mark
    assert losses_of(wire) == [("hint", "$.content[0]")]
    assert losses_of(OPENAI.to_wire(request.messages, request.tools, AdapterOptions())) == []


@pytest.mark.row("T01", "T02", "T03", "T13")
@pytest.mark.parametrize(
    "given_id",
    ["functions.Bash:0", "Write:6", "x" * 44, "x" * 1324, "call_1__thought__" + "y" * 99],
)
def test_invalid_id_is_replaced(given_id: str) -> None:
    wire_call = {"id": given_id, "type": "function", "function": {"name": "f", "arguments": "{}"}}
    body = {
        "messages": [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": None, "tool_calls": [wire_call]},
            {"role": "tool", "tool_call_id": given_id, "content": "ok"},
        ]
    }
    request = COMPATIBLE.from_wire_request(body, CONTEXT)
    sent_back = COMPATIBLE.to_wire(request.messages, (), request.options)
    assert json.loads(sent_back.body) == body
    sent = json.loads(OPENAI.to_wire(request.messages).body)["messages"]
    new = sent[1]["tool_calls"][0]["id"]
    assert new == sent[2]["tool_call_id"] != given_id
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,40}", new)
    claude = json.loads(ANTHROPIC.to_wire(request.messages).body)["messages"]
    wire_id = claude[1]["content"][0]["id"]
    assert wire_id == claude[2]["content"][0]["tool_use_id"]
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", wire_id)
    assert request.messages[1].metadata.provider_raw is not None
    assert given_id in str(request.messages[1].metadata.provider_raw)


TURNS = {"gemini": "contents", "openai-responses": "input"}


@pytest.mark.row("T53", "T68", "T69")
@pytest.mark.parametrize(
    "name", ["gemini", "ollama", "openai", "openai-compatible", "openai-responses"]
)
def test_foreign_thinking_is_not_sent_as_text(name: str) -> None:
    thought = replace(thinking("a secret plan"), signature="s", issuer="anthropic")
    talk = [user("go"), assistant(thought), user("on"), assistant(thought, text("yes")), user("?")]
    wire = adapters.get(name).to_wire(talk)
    assert b"secret" not in wire.body
    sent = json.loads(wire.body)[TURNS.get(name, "messages")]
    answering = "model" if name == "gemini" else "assistant"
    assert [turn["role"] for turn in sent] == ["user", "user", answering, "user"]
    assert losses_of(wire) == [("thinking", "$.content[0]")] * 2 + [("message", "$")]


@pytest.mark.row("T190")
def test_request_for_one_target_does_not_affect_the_next() -> None:
    thought = replace(thinking("hm"), signature="s", issuer="anthropic")
    talk = [user("go"), assistant(thought, text("a"), A), tool(image(), answers=A.id)]
    options = AdapterOptions(temperature=0.5, top_k=3, tool_choice=ToolChoice("required"))
    fresh = {name: adapters.get(name).to_wire(talk, [tool_named("f")], options) for name in NAMES}
    for first in NAMES:
        for second in NAMES:
            adapters.get(first).to_wire(talk, [tool_named("f")], options)
            again = adapters.get(second).to_wire(talk, [tool_named("f")], options)
            assert again == fresh[second]


@pytest.mark.row("T202", "T210")
def test_compaction_is_sent_to_issuer_and_summary_text_to_others() -> None:
    part = {"type": "compaction", "content": "sealed", "encrypted_content": None}
    body = {
        "model": "claude-sonnet-4-6",
        "max_tokens": 9,
        "messages": [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": [part, {"type": "text", "text": "on"}]},
        ],
    }
    request = ANTHROPIC.from_wire_request(body, CONTEXT)
    stored = [decode(encode(message)) for message in request.messages]
    away = OPENAI.to_wire(stored)
    assert losses_of(away) == [("opaque", "$.content[0]")]
    texts = [part["text"] for part in json.loads(away.body)["messages"][1]["content"]]
    assert texts == ["Summary of the conversation so far:\nsealed", "on"]
    assert json.loads(ANTHROPIC.to_wire(stored, (), request.options).body) == body
