"""Requirement rows of requests and responses, on every protocol."""

import json
from decimal import Decimal
from typing import Any

import pytest
from msgspec.structs import replace

from build import assistant, call, image, numbered, system, text, thinking, tool, tool_id, user
from metis import adapters
from metis.canonical import (
    Role,
    ToolUseBlock,
    decode,
    encode,
    validate,
    validate_session,
)
from metis.wire.call import AdapterOptions, RequestContext

PROTOCOLS = ("anthropic", "gemini", "ollama", "openai", "openai-responses")
CONTEXT = RequestContext(session_id="sess_seed")
CALL = call("read_file", tool_id(1), path="a.txt")
TALK = numbered(
    system("Be brief."),
    user("Read a.txt"),
    assistant(text("I look."), CALL),
    tool("hello", answers=CALL.id),
)
HALF = '{"path": "a.t'


def broken_calls() -> dict[str, dict[str, Any]]:
    """Yield responses with a call whose arguments are not JSON, where these are text."""
    function = {"name": "read_file", "arguments": HALF}
    chat = {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": function}]}
    item = {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "read_file"}
    return {
        "openai": {"id": "r", "choices": [{"message": chat, "finish_reason": "tool_calls"}]},
        "openai-responses": {
            "id": "resp_1",
            "status": "completed",
            "output": [{**item, "arguments": HALF}],
        },
        "ollama": {"message": {**chat, "content": ""}, "done": True},
    }


@pytest.mark.row("M-143")
@pytest.mark.parametrize("name", broken_calls())
def test_arguments_are_checked_when_a_response_is_decoded(name: str) -> None:
    """The decoded message states that the call cannot be run, before any tool runs."""
    message = adapters.get(name).from_wire_response(broken_calls()[name], CONTEXT)
    (called,) = [block for block in message.content if isinstance(block, ToolUseBlock)]
    assert called.invalid is not None
    assert (dict(called.input), called.invalid.raw) == ({}, HALF)
    assert called.invalid.error
    assert validate(message) == []


@pytest.mark.row("M-143")
def test_streamed_arguments_are_checked_when_complete() -> None:
    pieces: list[dict[str, Any]] = [
        {"type": "message_start", "message": {"id": "m", "usage": {}}},
        {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "tool_use", "id": "t", "name": "read_file", "input": {}},
        },
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "input_json_delta", "partial_json": HALF},
        },
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {}},
        {"type": "message_stop"},
    ]
    decoder = adapters.get("anthropic").stream_decoder(CONTEXT)
    for piece in pieces:
        decoder.feed(f"event: {piece['type']}\ndata: {json.dumps(piece)}\n\n".encode())
    decoder.finish()
    (called,) = decoder.message.content
    assert isinstance(called, ToolUseBlock)
    assert called.invalid is not None
    assert called.invalid.raw == HALF


@pytest.mark.row("M-219")
@pytest.mark.parametrize(
    ("name", "able", "unable", "content", "mark"),
    [
        ("openai", "gpt-5", "gpt-3.5-turbo", image("iVBORw0KGgo="), b"iVBORw0KGgo="),
        ("ollama", "qwen3-vl", "llama3.2", image("iVBORw0KGgo="), b"iVBORw0KGgo="),
    ],
)
def test_images_are_sent_only_to_models_with_vision(
    name: str, able: str, unable: str, content: Any, mark: bytes
) -> None:
    adapter = adapters.get(name)
    assert adapter.capabilities(able).supports_images
    assert not adapter.capabilities(unable).supports_images
    talk = [user(text("what is it?"), content)]
    shown = adapter.to_wire(talk, (), AdapterOptions(model=able))
    hidden = adapter.to_wire(talk, (), AdapterOptions(model=unable))
    assert mark in shown.body
    assert mark not in hidden.body
    assert b"not shown to this model" in hidden.body
    assert [loss.block_type for loss in hidden.losses] == ["image"]


@pytest.mark.row("M-219")
def test_thinking_is_sent_only_to_reasoning_models() -> None:
    adapter = adapters.get("anthropic")
    thought = replace(thinking("a plan"), signature="c2ln", issuer="anthropic")
    talk = [user("go"), assistant(thought, text("yes")), user("on")]
    for model in ("claude-sonnet-4-6", "claude-3-haiku-20240307"):
        thinks = adapter.capabilities(model).supports_thinking
        body = adapter.to_wire(talk, (), AdapterOptions(model=model)).body
        assert (b"a plan" in body) is thinks
    assert not adapter.capabilities("claude-3-haiku-20240307").supports_thinking


@pytest.mark.row("M-300")
@pytest.mark.parametrize("name", PROTOCOLS)
def test_instructions_are_a_separate_message_in_every_protocol(name: str) -> None:
    stored = [decode(encode(message)) for message in TALK]
    assert stored[0].role is Role.SYSTEM
    assert validate_session(stored) == []
    body = json.loads(adapters.get(name).to_wire(stored).body)
    place = {
        "anthropic": lambda: body["system"][0]["text"],
        "gemini": lambda: body["systemInstruction"]["parts"][0]["text"],
        "openai-responses": lambda: body.get("instructions") or body["input"][0]["content"],
    }.get(name, lambda: body["messages"][0]["content"])
    assert place() == "Be brief."
    read = adapters.get(name).from_wire_request(body, CONTEXT)
    assert read.messages[0].role is Role.SYSTEM
    assert read.messages[0].content == (text("Be brief."),)


@pytest.mark.row("K-082")
@pytest.mark.parametrize("name", PROTOCOLS)
def test_request_is_deterministic(name: str) -> None:
    before = [encode(message) for message in TALK]
    profile = adapters.get(name).profile
    first, second = (adapters.Adapter(profile).to_wire(TALK) for _ in range(2))
    assert first == second
    assert [encode(message) for message in TALK] == before


@pytest.mark.row("A-032")
def test_reported_cost_is_stored_separately_from_computed_cost() -> None:
    wire_message = {"role": "assistant", "content": "hi"}
    body: Any = {
        "id": "gen-1",
        "model": "anthropic/claude-sonnet-4.6",
        "choices": [{"index": 0, "message": wire_message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 2, "cost": 0.0125},
    }
    usage = adapters.get("openrouter").from_wire_response(body, CONTEXT).metadata.usage
    assert usage is not None
    assert usage.reported_cost_usd == Decimal("0.0125")
    assert (usage.cost_usd, usage.pricing_version) == (Decimal(0), "unpriced")
