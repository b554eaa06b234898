"""Requirement rows that other tests cover only in passing; each has its own test here."""

import json
import logging
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from build import assistant, call, developer, tool_id, ulid, user
from build import message as built
from metis import adapters, interchange
from metis.canonical import (
    DocumentBlock,
    MediaSource,
    Message,
    MessageMetadata,
    RedactedThinkingBlock,
    Role,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    decode,
    encode,
)
from metis.wire.call import AdapterOptions, RequestContext
from metis.wire.json_access import maybe_list, maybe_object

CONTEXT = RequestContext(session_id="sess_1")
REDACTED = "EroBCkYIARgCKkC+/=="
TWICE = [
    {"type": "redacted_thinking", "data": REDACTED},
    {"type": "redacted_thinking", "data": "AA=="},
]
ANSWERED = [
    {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
    *TWICE,
    {"type": "text", "text": "so"},
]
ANTHROPIC_RESPONSE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-4-6",
    "content": ANSWERED,
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 1, "output_tokens": 1},
}


def server_event(kind: str, **fields: Any) -> bytes:
    data = json.dumps({"type": kind, **fields})
    return f"event: {kind}\ndata: {data}\n\n".encode()


def anthropic_stream() -> bytes:
    head = {**ANTHROPIC_RESPONSE, "content": [], "stop_reason": None}
    pieces = [server_event("message_start", message=head)]
    for index, part in enumerate(ANSWERED):
        start = {**part, **({"text": ""} if part["type"] == "text" else {})}
        if part["type"] == "thinking":
            start = {"type": "thinking", "thinking": "", "signature": ""}
        pieces.append(server_event("content_block_start", index=index, content_block=start))
        deltas: list[dict[str, Any]] = []
        if part["type"] == "text":
            deltas = [{"type": "text_delta", "text": part["text"]}]
        elif part["type"] == "thinking":
            deltas = [
                {"type": "thinking_delta", "thinking": part["thinking"]},
                {"type": "signature_delta", "signature": part["signature"]},
            ]
        pieces += [server_event("content_block_delta", index=index, delta=each) for each in deltas]
        pieces.append(server_event("content_block_stop", index=index))
    usage = {"output_tokens": 1}
    pieces.append(server_event("message_delta", delta={"stop_reason": "end_turn"}, usage=usage))
    return b"".join([*pieces, server_event("message_stop")])


def streamed(name: str, data: bytes) -> Message:
    decoder = adapters.get(name).stream_decoder(CONTEXT)
    decoder.feed(data)
    decoder.finish()
    return decoder.message


@pytest.mark.row("T44", "M-053")
@pytest.mark.parametrize("is_streamed", [False, True])
def test_redacted_thinking_round_trips_in_place(*, is_streamed: bool) -> None:
    adapter = adapters.get("anthropic")
    answer = (
        streamed("anthropic", anthropic_stream())
        if is_streamed
        else adapter.from_wire_response(ANTHROPIC_RESPONSE, CONTEXT)
    )
    stored = decode(encode(answer))
    kinds = [block.type for block in stored.content]
    assert kinds == ["thinking", "redacted_thinking", "redacted_thinking", "text"]
    assert stored.content[1] == RedactedThinkingBlock(REDACTED, issuer="anthropic")
    body = json.loads(adapter.to_wire([user("q"), stored, user("on")]).body)
    assert body["messages"][1]["content"] == ANSWERED


@pytest.mark.row("T44")
def test_bedrock_redacted_content_round_trips_in_place() -> None:
    adapter = adapters.get("bedrock-converse")
    parts: list[dict[str, Any]] = [
        {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "c2ln"}}},
        {"reasoningContent": {"redactedContent": "ZW5j"}},
        {"text": "so"},
    ]
    response = {
        "output": {"message": {"role": "assistant", "content": parts}},
        "stopReason": "end_turn",
        "usage": {"inputTokens": 1, "outputTokens": 1, "totalTokens": 2},
    }
    context = replace(CONTEXT, model="bedrock-converse:anthropic.claude-sonnet-4-6")
    answer = decode(encode(adapter.from_wire_response(response, context)))
    assert [block.type for block in answer.content] == ["thinking", "redacted_thinking", "text"]
    options = AdapterOptions(model="anthropic.claude-sonnet-4-6")
    body = json.loads(adapter.to_wire([user("q"), answer, user("on")], (), options).body)
    assert body["messages"][1]["content"] == parts


@pytest.mark.row("T44", "M-053")
@pytest.mark.parametrize(
    ("name", "model", "part"),
    [
        ("anthropic", None, {"type": "redacted_thinking", "data": "ZW5jcnlwdGVk"}),
        (
            "bedrock-converse",
            "anthropic.claude-sonnet-4-6",
            {"reasoningContent": {"redactedContent": "ZW5jcnlwdGVk"}},
        ),
    ],
)
def test_redacted_thinking_without_original_form_is_encoded(
    name: str, model: str | None, part: dict[str, Any]
) -> None:
    adapter = adapters.get(name)
    issuer = adapter.profile.issuer if name == "anthropic" else "bedrock_converse"
    block = RedactedThinkingBlock("ZW5jcnlwdGVk", issuer=issuer)
    talk = [user("q"), assistant(block, "so", id=ulid(2)), user("on", id=ulid(3))]
    wire = adapter.to_wire(talk, (), AdapterOptions(model=model))
    assert json.loads(wire.body)["messages"][1]["content"][0] == part
    assert wire.losses == []


@pytest.mark.row("T05", "T12")
@pytest.mark.parametrize("foreign", ["call_a|fc_b", "call_a__thought__c2lnbmF0dXJl"])
@pytest.mark.parametrize("name", ["anthropic", "openai-responses", "gemini", "bedrock-converse"])
def test_composite_id_is_not_sent_in_other_protocols(name: str, foreign: str) -> None:
    function = {"name": "f", "arguments": "{}"}
    request = {
        "model": "m",
        "messages": [
            {"role": "user", "content": "q"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": foreign, "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": foreign, "content": "ok"},
        ],
    }
    client = adapters.get("openai")
    messages = client.from_wire_request(request, CONTEXT).messages
    assert client.to_wire(messages).body.count(json.dumps(foreign).encode()) == 2
    body = json.loads(adapters.get(name).to_wire(messages).body)
    ids = [*_values(body, {"id", "tool_use_id", "call_id", "toolUseId"})]
    assert all("|" not in each and "__thought__" not in each for each in ids)
    # Gemini pairs calls and results by their order, so it needs no ids.
    assert (len(ids), len(set(ids))) == ((0, 0) if name == "gemini" else (2, 1))


@pytest.mark.row("T05")
def test_the_call_id_and_the_item_id_are_two_fields() -> None:
    adapter = adapters.get("openai-responses")
    item = {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "call_1",
        "name": "f",
        "arguments": "{}",
        "status": "completed",
    }
    response = {"id": "resp_1", "status": "completed", "model": "gpt-5", "output": [item]}
    answer = decode(encode(adapter.from_wire_response(response, CONTEXT)))
    (block,) = answer.content
    assert isinstance(block, ToolUseBlock)
    result = built(
        Role.TOOL,
        ToolResultBlock(block.id, (TextBlock("ok"),)),
        id=ulid(3),
        metadata=MessageMetadata(parent_tool_use_id=block.id),
    )
    sent = json.loads(adapter.to_wire([user("q"), answer, result]).body)["input"]
    assert sent[1] == item
    assert sent[2]["call_id"] == "call_1"


def _values(value: Any, keys: set[str]) -> list[str]:
    items = maybe_object(value)
    named = [each for key, each in items.items() if key in keys and isinstance(each, str)]
    inner = [*items.values(), *maybe_list(value)]
    return named + [found for each in inner for found in _values(each, keys)]


@pytest.mark.row("T97")
def test_uploaded_file_is_sent_only_to_its_host_and_noted_elsewhere() -> None:
    source = MediaSource("file_id", "file_1", "anthropic")
    talk = [user("read", DocumentBlock(source, "application/pdf"))]
    home = adapters.get("anthropic").to_wire(talk)
    assert home.losses == []
    assert json.loads(home.body)["messages"][0]["content"][1]["source"]["file_id"] == "file_1"
    for name in ("openai", "gemini", "bedrock-converse", "openai-responses"):
        away = adapters.get(name).to_wire(talk)
        assert b"file_1" not in away.body, name
        reasons = [loss.reason for loss in away.losses if loss.block_type == "document"]
        assert ["anthropic" in reason for reason in reasons] == [True], name


@pytest.mark.row("T123")
@pytest.mark.parametrize("pieces", [["1", "2"], ['{"a":1}', "0"], ['{"a"', ":1}", "}"]])
def test_arguments_that_parse_early_are_not_truncated(pieces: Sequence[str]) -> None:
    chunks: list[Any] = []
    for number, piece in enumerate(pieces):
        head = {"id": "call_1", "type": "function"} if number == 0 else {}
        function = {"name": "f", "arguments": piece} if number == 0 else {"arguments": piece}
        calls = [{"index": 0, **head, "function": function}]
        chunks.append({"choices": [{"index": 0, "delta": {"tool_calls": calls}}]})
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    data = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    (block,) = streamed("openai", data.encode()).content
    assert isinstance(block, ToolUseBlock)
    assert block.input == {}
    assert block.invalid is not None
    assert block.invalid.raw == "".join(pieces)


EXAMPLE_BODY = {
    "model": "claude-sonnet-4-20250514",
    "system": "You are a coding assistant...",
    "messages": [
        {"role": "user", "content": "Read the file"},
        {
            "role": "assistant",
            "content": [
                {
                    "type": "tool_use",
                    "id": "call_1",
                    "name": "read_file",
                    "input": {"path": "src/main.ts"},
                }
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "call_1",
                    "content": "file contents here...",
                }
            ],
        },
    ],
}


def plain(value: Any) -> Any:
    """Return a body in which one text without a mark is a string."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in maybe_object(value).items()}
    if not isinstance(value, list):
        return value
    items = maybe_list(value)
    if len(items) == 1 and set(items[0]) == {"type", "text"}:
        return items[0]["text"]
    return [plain(each) for each in items]


@pytest.mark.row("A-024")
def test_the_example_of_attocode_becomes_its_example_body() -> None:
    called = {"id": "call_1", "name": "read_file", "arguments": {"path": "src/main.ts"}}
    unified: list[dict[str, Any]] = [
        {"role": "system", "content": "You are a coding assistant..."},
        {"role": "user", "content": "Read the file"},
        {"role": "assistant", "content": "", "toolCalls": [called]},
        {"role": "tool", "content": "file contents here...", "toolCallId": "call_1"},
    ]
    messages = interchange.load("attocode", json.dumps(unified)).messages
    options = AdapterOptions(model="claude-sonnet-4-20250514", max_output_tokens=100)
    body = json.loads(adapters.get("anthropic").to_wire(messages, (), options).body)
    # The example has no limit and no tools; the API requires both for this history.
    tools, choice = body.pop("tools"), body.pop("tool_choice")
    assert ([each["name"] for each in tools], choice) == (["read_file"], {"type": "none"})
    assert body.pop("max_tokens") == 100
    written = json.dumps(plain(body), sort_keys=True)
    (wire_id,) = {*_values(body["messages"], {"id", "tool_use_id"})}
    assert json.loads(written.replace(wire_id, "call_1")) == EXAMPLE_BODY


@pytest.mark.row("A-017")
def test_structured_content_changes_no_other_field_of_a_message() -> None:
    called: dict[str, Any] = {"id": "a", "name": "f", "arguments": {}}
    others: list[dict[str, Any]] = [
        {"role": "assistant", "toolCalls": [called, {**called, "id": "b"}], "metadata": {"m": 1}},
        {"role": "tool", "toolCallId": "a"},
        {"role": "tool", "toolResults": [{"callId": "b", "result": {"n": 1}}]},
    ]
    texts = ["so", "out", ""]
    forms: list[list[Any]] = [
        texts,
        [[{"type": "text", "text": each}] for each in texts[:2]] + [[]],
    ]
    first, second = (
        interchange.load(
            "attocode",
            json.dumps([{**other, "content": c} for other, c in zip(others, form, strict=True)]),
            CONTEXT,
        )
        for form in forms
    )
    assert [m.content_digest() for m in first.messages] == [
        m.content_digest() for m in second.messages
    ]
    assert [m.metadata.outcome for m in first.messages] == [
        m.metadata.outcome for m in second.messages
    ]
    assert [loss.path for loss in first.losses] == [loss.path for loss in second.losses]


@pytest.mark.row("A-030", "A-031")
@pytest.mark.parametrize("is_streamed", [False, True])
def test_reasoning_and_cached_tokens_of_openrouter_are_read_into_their_fields(
    *, is_streamed: bool
) -> None:
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    wire_message = {"role": "assistant", "content": "so", "reasoning": "why"}
    if is_streamed:
        chunks: list[Any] = [
            {"id": "gen-1", "choices": [{"index": 0, "delta": {"reasoning": "wh"}}]},
            {"choices": [{"index": 0, "delta": {"reasoning": "y"}}]},
            {"choices": [{"index": 0, "delta": {"content": "so"}, "finish_reason": "stop"}]},
            {"choices": [], "usage": usage},
        ]
        data = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
        answer = streamed("openrouter", data.encode())
    else:
        choices = [{"index": 0, "message": wire_message, "finish_reason": "stop"}]
        body = {"id": "gen-1", "choices": choices, "usage": usage}
        answer = adapters.get("openrouter").from_wire_response(body, CONTEXT)
    thought, text = answer.content
    assert isinstance(thought, ThinkingBlock)
    assert (thought.text, text) == ("why", TextBlock("so"))
    counted = answer.metadata.usage
    assert counted is not None
    assert (counted.input_tokens, counted.cached_input_tokens, counted.output_tokens) == (6, 4, 3)


@pytest.mark.row("K-089", "K-092")
@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("is_error", [False, True])
def test_a_developer_text_beside_a_result_on_ollama_ends_with_one_line_break(
    *, is_error: bool, is_first: bool
) -> None:
    one = call("f", tool_id(1))
    result = built(
        Role.TOOL,
        ToolResultBlock(one.id, (TextBlock("one"),), is_error),
        id=ulid(3),
        metadata=MessageMetadata(parent_tool_use_id=one.id),
    )
    note = developer("note", id=ulid(4), metadata=MessageMetadata(prepended=is_first))
    talk = [user("q", id=ulid(1)), assistant(one, id=ulid(2)), result, note]
    content = json.loads(adapters.get("ollama").to_wire(talk).body)["messages"][2]["content"]
    mark = "Error: " if is_error else ""
    assert content == (f"{mark}note\n\n\none" if is_first else f"{mark}one\n\nnote\n")


@pytest.mark.row("M-002")
def test_each_loss_is_one_warning_with_its_facts(caplog: pytest.LogCaptureFixture) -> None:
    thought = ThinkingBlock("hm", "c2ln", issuer="anthropic")
    answer = assistant(thought, RedactedThinkingBlock("ZW5j", issuer="anthropic"), "so", id=ulid(2))
    with caplog.at_level(logging.DEBUG, logger="metis"):
        wire = adapters.get("openai").to_wire([user("q"), answer, user("on", id=ulid(3))])
    warned = [record for record in caplog.records if record.levelno == logging.WARNING]
    names = ("session_id", "message_id", "block_type", "adapter", "reason")
    logged = [tuple(getattr(record, name) for name in names) for record in warned]
    assert logged == [tuple(getattr(loss, name) for name in names) for loss in wire.losses]
    assert [entry[2] for entry in logged] == ["thinking", "redacted_thinking"]
