"""Host-switch failures (rows T…): one test for each way in which a conversation can break."""

import json
import logging
from typing import Any

import pytest
from msgspec.structs import replace

from build import assistant, call, provenance, system, thinking, tool, tool_id, usage, user
from judges import complaints
from metis import adapters
from metis.canonical import Message, ToolDefinition
from metis.canonical.codec import decode, encode
from metis.canonical.errors import InvalidValueError
from metis.canonical.tools import SideEffects
from metis.wire.call import AdapterOptions, RequestContext, ToolChoice

CONTEXT = RequestContext(session_id="sess_interop")
TOOL = ToolDefinition("f", "Does it.", {"type": "object"}, SideEffects.READ)
ONE, TWO, THREE = tool_id(1), tool_id(2), tool_id(3)


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="metis.adapters")


def sent(name: str, *messages: Message, **options: Any) -> tuple[dict[str, Any], Any]:
    tools = options.pop("tools", ())
    wire = adapters.get(name).to_wire(messages, tools, AdapterOptions(**options))
    return json.loads(wire.body), wire


# Calls and results.


@pytest.mark.row("T18")
def test_databricks_receives_each_call_with_its_result() -> None:
    talk = [
        user("go"),
        assistant("On it.", call("f", ONE, n=1), call("f", TWO, n=2), call("g", THREE)),
        tool("one", answers=ONE),
        tool("two", answers=TWO),
        tool("three", answers=THREE),
        assistant("Done.", call("f", tool_id(4))),
        tool("four", answers=tool_id(4)),
        user("more"),
    ]
    body, wire = sent("databricks", *talk)
    turns = body["messages"]
    assert [turn["role"] for turn in turns] == [
        "user",
        *("assistant", "tool") * 4,
        "user",
    ]
    assert [turn["content"] for turn in turns if turn["role"] == "tool"] == [
        "one",
        "two",
        "three",
        "four",
    ]
    assert turns[1]["content"] == "On it."
    for answer, result in zip(turns[1:9:2], turns[2:9:2], strict=True):
        (sent_call,) = answer["tool_calls"]
        assert sent_call["id"] == result["tool_call_id"]
    assert [(loss.path, str(loss.change)) for loss in wire.losses] == [("$.tool_calls", "altered")]
    assert complaints("openai", body) == []
    # The next request has the same prefix.
    again, _ = sent("databricks", *talk, assistant("Well."), user("and?"))
    assert again["messages"][: len(turns)] == turns
    elsewhere, _ = sent("openai", *talk)
    assert len(elsewhere["messages"][1]["tool_calls"]) == 3


@pytest.mark.row("T51")
def test_kimi_receives_reasoning_with_every_assistant_message() -> None:
    foreign = provenance(provider="openai", model="openai:gpt-5")
    talk = [
        user("go"),
        assistant(call("f", ONE), metadata=foreign),
        tool("one", answers=ONE),
        assistant(
            thinking("hm", issuer="moonshot"),
            call("f", TWO),
            metadata=provenance(provider="moonshot", model="moonshot:kimi-k2.5"),
        ),
        tool("two", answers=TWO),
    ]
    body, wire = sent("moonshot", *talk, model="kimi-k2.5")
    answers = [turn for turn in body["messages"] if turn["role"] == "assistant"]
    assert [turn["reasoning_content"] for turn in answers] == ["", "hm"]
    assert [str(loss.change) for loss in wire.losses] == ["synthesised"]


@pytest.mark.row("T120")
@pytest.mark.parametrize("name", ["gemini", "vertex"])
def test_open_foreign_call_is_closed_before_next_prompt(name: str) -> None:
    output = assistant(
        call("final_result", ONE, city="Paris"),
        metadata=provenance(provider="openai", model="openai:gpt-5"),
    )
    body, wire = sent(name, user("Which city?"), output, user("And its river?"))
    turns = body["contents"]
    assert [turn["role"] for turn in turns] == ["user", "model", "user", "user"]
    (closed,) = turns[2]["parts"]
    assert closed["functionResponse"]["name"] == "final_result"
    assert turns[3]["parts"] == [{"text": "And its river?"}]
    assert ("synthesised", "tool_result") in [
        (str(loss.change), loss.block_type) for loss in wire.losses
    ]
    assert complaints("gemini", body) == []


# Foreign thinking.


@pytest.mark.row("KX-03", "T69")
@pytest.mark.parametrize("name", ["anthropic", "openai", "openai-responses", "gemini", "ollama"])
def test_foreign_thinking_is_sent_as_text_only_on_request(name: str) -> None:
    foreign = provenance(provider="elsewhere", model="elsewhere:m")
    thought = thinking("a plan", signature="c2VhbGVk", issuer="elsewhere")
    talk = [user("go"), assistant(thought, "Yes.", metadata=foreign), user("more")]
    for model in ({}, {"model": "claude-sonnet-4-6"} if name == "anthropic" else {}):
        _, wire = sent(name, *talk, **model)
        assert b"a plan" not in wire.body
        _, wire = sent(name, *talk, include_thinking=True, **model)
        sent_text = wire.body.decode()
        assert "<thinking>\\na plan\\n</thinking>" in sent_text
        assert "c2VhbGVk" not in sent_text
        assert [str(loss.change) for loss in wire.losses] == ["altered"]


# Caches.


@pytest.mark.row("T148")
@pytest.mark.parametrize("name", ["openai", "openai-responses", "gemini", "anthropic"])
def test_cache_writes_are_never_reported_as_reads(name: str) -> None:
    spent = usage(
        input_tokens=10,
        cached_input_tokens=100,
        cache_creation_input_tokens=50,
        output_tokens=5,
    )
    answer = assistant("Yes.", metadata=provenance(usage=spent))
    host = adapters.get(name)
    body = host.to_wire_response(answer, CONTEXT)
    response = json.loads(body)
    reads = {
        "openai": lambda: response["usage"]["prompt_tokens_details"]["cached_tokens"],
        "openai-responses": lambda: response["usage"]["input_tokens_details"]["cached_tokens"],
        "gemini": lambda: response["usageMetadata"]["cachedContentTokenCount"],
        "anthropic": lambda: response["usage"]["cache_read_input_tokens"],
    }
    assert reads[name]() == 100
    back = host.from_wire_response(body, CONTEXT).metadata.usage
    assert back is not None
    assert back.cached_input_tokens == 100
    if name in ("openai", "anthropic"):
        assert back.cache_creation_input_tokens == 50
    assert back.prompt_tokens == spent.prompt_tokens


@pytest.mark.row("AX-03")
def test_message_changed_since_last_request_is_reported() -> None:
    host = adapters.get("anthropic", base_url="http://127.0.0.1:9")
    talk = [user("one"), assistant("two"), user("three"), assistant("four"), user("five")]
    talk = [replace(one, id=f"{one.id[:-1]}{n}") for n, one in enumerate(talk)]
    assert host.changed_since_sent(talk) is None
    host.to_wire(talk[:3])
    assert host.changed_since_sent(talk) is None
    host.to_wire(talk)
    stored = [decode(encode(message)) for message in talk]
    assert host.changed_since_sent(stored) is None
    mutated = [stored[0], replace(stored[1], content=user("other").content), *stored[2:]]
    assert host.changed_since_sent(mutated) is mutated[1]
    assert host.changed_since_sent([*talk[:2], *talk[3:]]) is talk[3]
    assert host.changed_since_sent(mutated, model="claude-opus-5") is None
    host.to_wire(mutated)
    assert host.changed_since_sent(mutated) is None
    assert host.changed_since_sent([]) is None
    assert host.changed_since_sent([user("another talk")]) is None


@pytest.mark.row("T178")
@pytest.mark.parametrize("name", ["gemini", "vertex"])
def test_cached_content_replaces_instructions_and_tools(name: str) -> None:
    native = {"gemini": {"cachedContent": "cachedContents/x"}}
    body, wire = sent(
        name,
        system("Be kind."),
        user("go"),
        tools=(TOOL,),
        tool_choice=ToolChoice("required"),
        native=native,
    )
    assert body == {
        "cachedContent": "cachedContents/x",
        "contents": [{"role": "user", "parts": [{"text": "go"}]}],
    }
    assert sorted(loss.path for loss in wire.losses) == [
        "$.systemInstruction",
        "$.tool_choice",
        "$.tools",
    ]
    assert complaints("gemini", body) == []
    plain, wire = sent(name, system("Be kind."), user("go"), tools=(TOOL,))
    assert {"systemInstruction", "tools"} <= set(plain)
    assert wire.losses == []


@pytest.mark.row("GX-11")
@pytest.mark.parametrize("name", ["gemini", "vertex"])
def test_gemini_searches_only_without_other_tools(name: str) -> None:
    native: dict[str, Any] = {"gemini": {"tools": [{"googleSearch": {}}]}}
    options: dict[str, Any] = {"native": native, "model": "gemini-2.5-flash"}
    with pytest.raises(InvalidValueError, match=r"'googleSearch' only without .* \(f\)") as caught:
        sent(name, user("go"), tools=(TOOL,), **options)
    assert caught.value.path == "$.tools"
    body, _ = sent(name, user("go"), **options)
    assert body["tools"] == [{"googleSearch": {}}]
    newer, _ = sent(name, user("go"), tools=(TOOL,), native=native, model="gemini-3.5-flash")
    assert {"googleSearch": {}} in newer["tools"]
    assert len(newer["tools"]) == 2


@pytest.mark.row("GX-11")
@pytest.mark.parametrize("name", ["openai", "azure"])
def test_openai_has_no_search_in_chat_completions(name: str) -> None:
    native = {"openai_chat": {"tools": [{"type": "web_search"}]}}
    with pytest.raises(InvalidValueError, match=r"no tool 'web_search' at .*chat/comp"):
        sent(name, user("go"), native=native)
    responses, _ = sent(
        "openai-responses",
        user("go"),
        native={"openai_responses": {"tools": [{"type": "web_search"}]}},
    )
    assert responses["tools"] == [{"type": "web_search"}]
    # An option of a client of another provider is a loss, not an error.
    request = adapters.get("anthropic").from_wire_request(
        {
            "model": "claude-sonnet-4-6",
            "max_tokens": 9,
            "messages": [{"role": "user", "content": "go"}],
            "tools": [{"type": "web_search_20250305", "name": "web_search"}],
        },
        CONTEXT,
    )
    wire = adapters.get(name).to_wire(
        request.messages, request.tools, replace(request.options, model="gpt-5")
    )
    assert "$.tools[0]" in [loss.path for loss in wire.losses]
