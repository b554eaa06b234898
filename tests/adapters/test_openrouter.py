"""OpenRouter: cache marks on parts, and reasoning details that are sent back unchanged."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from build import assistant, call, image, numbered, provenance, system, thinking, tool, user
from corpus import body_of, needs_corpus, requests
from metis import adapters
from metis.canonical import CacheHint, Message, MessageMetadata
from metis.wire.call import AdapterOptions, RequestContext

CLAUDE = "anthropic/claude-sonnet-4.6"
MARK = {"type": "ephemeral"}
CONTEXT = RequestContext(session_id="sess_openrouter")


def marked(message: Message, *hints: CacheHint) -> Message:
    return replace(message, metadata=replace(message.metadata, hints=hints))


def sent(*messages: Message, to: str = "openrouter", model: str = CLAUDE) -> list[Any]:
    request = adapters.get(to).to_wire(numbered(*messages), (), AdapterOptions(model=model))
    return json.loads(request.body)["messages"]


def marks(message: dict[str, Any]) -> list[Any]:
    content = message["content"]
    return [] if isinstance(content, str) else [part.get("cache_control") for part in content]


@pytest.mark.row("K-105", "T170")
def test_conversation_with_cache_marks_and_reasoning() -> None:
    details = [
        {"type": "reasoning.text", "text": "hm", "signature": "sealed", "index": 0},
    ]
    thought = thinking("hm", signature="sealed", issuer="openrouter")
    response = assistant(
        thought,
        "let me see",
        call("look", path="a"),
        metadata=provenance(model=f"openrouter:{CLAUDE}", provider="openrouter"),
    )
    body = sent(
        marked(system("Be brief."), CacheHint(after=0, ttl="1h")),
        marked(user("what is this?", image()), CacheHint(after=1)),
        response,
        marked(tool("a picture"), CacheHint(after=0)),
    )
    call_id = body[2]["tool_calls"][0]["id"]
    text = {"type": "text", "text": "what is this?"}
    link = {"url": "data:image/png;base64,aWY="}
    picture = {"type": "image_url", "image_url": link, "cache_control": MARK}
    function = {"name": "look", "arguments": '{"path":"a"}'}
    assert body == [
        {
            "role": "system",
            "content": [
                {"type": "text", "text": "Be brief.", "cache_control": {**MARK, "ttl": "1h"}}
            ],
        },
        {"role": "user", "content": [text, picture]},
        {
            "role": "assistant",
            "content": "let me see",
            "reasoning_details": details,
            "tool_calls": [{"id": call_id, "type": "function", "function": function}],
        },
        {
            "role": "tool",
            "tool_call_id": call_id,
            "content": [{"type": "text", "text": "a picture", "cache_control": MARK}],
        },
    ]


def test_cache_mark_is_set_on_text_and_never_on_a_call() -> None:
    answer = assistant("first", "second", call("look"), metadata=provenance())
    body = sent(user("go"), marked(answer, CacheHint(after=2)), tool("done"))
    assert marks(body[1]) == [None, MARK]
    bare = assistant(call("look"), metadata=provenance())
    assert marks(sent(user("go"), marked(bare, CacheHint(after=0)), tool("x"))[0]) == []


@pytest.mark.parametrize(
    ("to", "model"), [("openai", "gpt-5"), ("groq", "openai/gpt-oss-120b"), ("openrouter", "who/x")]
)
def test_other_vendors_get_no_cache_marks(to: str, model: str) -> None:
    assert sent(marked(user("go"), CacheHint(after=0)), to=to, model=model)[0]["content"] == "go"


@pytest.mark.row("T180")
def test_cache_marks_of_client_reach_anthropic_with_ttl() -> None:
    mark = {"type": "ephemeral", "ttl": "1h"}
    body = {
        "model": CLAUDE,
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "s", "cache_control": mark}]},
            {"role": "user", "content": [{"type": "text", "text": "a"}]},
        ],
    }
    request = adapters.get("openrouter").from_wire_request(body, CONTEXT)
    assert [message.metadata.hints for message in request.messages] == [
        (CacheHint(after=0, ttl="1h"),),
        (),
    ]
    moved = json.loads(adapters.get("anthropic").to_wire(request.messages).body)
    assert moved["system"][0]["cache_control"] == mark


@needs_corpus
def test_recorded_cache_marks_round_trip() -> None:
    adapter = adapters.get("openrouter")
    checked = 0
    for _, body in requests("openai_chat"):
        if "cache_control" not in json.dumps(body["messages"]):
            continue
        read = adapter.from_wire_request(body_of(body), CONTEXT)
        again = json.loads(adapter.to_wire(read.messages, read.tools, read.options).body)
        assert again["messages"] == body["messages"]
        hints = sum(len(message.metadata.hints) for message in read.messages)
        assert hints == json.dumps(body["messages"]).count('"cache_control"')
        # Also with the messages only, without their original form.
        bare = [
            replace(message, metadata=MessageMetadata(hints=message.metadata.hints))
            for message in read.messages
            if message.role not in ("tool", "assistant")
        ]
        sent = json.loads(adapter.to_wire(bare, (), AdapterOptions(model=CLAUDE)).body)["messages"]
        set_by_us = sum(bool(mark) for turn in sent for mark in marks(turn))
        assert set_by_us == sum(len(message.metadata.hints) for message in bare)
        checked += 1
    assert checked
