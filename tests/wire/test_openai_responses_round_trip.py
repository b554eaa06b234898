"""Conversations through OpenAI Responses and back lose no signature, seal or id."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

import corpus
from build import assistant, call, text, thinking, tool, tool_id, user
from corpus import needs_corpus
from judges import complaints
from metis import adapters
from metis.canonical import Message, decode, encode
from metis.canonical.blocks import RedactedThinkingBlock, ThinkingBlock, ToolUseBlock
from metis.canonical.metadata import MessageStatus
from metis.projection import Loss
from metis.wire.call import AdapterOptions, RequestContext
from metis.wire.openai_responses.blocks import PROTOCOL
from openai_responses_cases import (
    CALL,
    CUSTOM,
    CUSTOM_OUTPUT,
    FEATURES,
    MESSAGE,
    OUTPUT,
    PROMPT,
    REASONING,
    SEALED,
    Wire,
)

OPENAI, AZURE, ANTHROPIC = (
    adapters.get(name) for name in ("openai-responses", "azure-responses", "anthropic")
)
CONTEXT = RequestContext(session_id="sess_walk", status=200)
SIGNED: Wire = {"type": "thinking", "thinking": "Let me see.", "signature": "c2lnbmVk"}
HIDDEN: Wire = {"type": "redacted_thinking", "data": "aGlkZGVu"}
USED: Wire = {"type": "tool_use", "id": "toolu_01", "name": "look_up", "input": {"word": "x"}}
ANTHROPIC_RESPONSE: Wire = {
    "id": "msg_01",
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-4-6",
    "content": [SIGNED, HIDDEN, {"type": "text", "text": "I look."}, USED],
    "stop_reason": "tool_use",
    "usage": {"input_tokens": 3, "output_tokens": 4},
}


def response(*output: Wire, **rest: Any) -> Wire:
    return {"id": "resp_1", "model": "gpt-x", "status": "completed", "output": [*output], **rest}


def response_of(*output: Wire, **rest: Any) -> Message:
    return OPENAI.from_wire_response(response(*output, **rest), CONTEXT)


def input_of(
    messages: list[Message], adapter: adapters.Adapter = OPENAI, **native: Any
) -> tuple[list[Any], list[Loss]]:
    options = AdapterOptions(native={PROTOCOL: native} if native else {})
    wire = adapter.to_wire(messages, (), options)
    return json.loads(wire.body)["input"], wire.losses


def stored(messages: list[Message]) -> list[Message]:
    return [decode(encode(message)) for message in messages]


@pytest.mark.row("T01", "T05", "T12", "T37", "T38", "T71", "M-053")
def test_conversation_through_responses_keeps_every_signature_and_id() -> None:
    first = ANTHROPIC.from_wire_response(ANTHROPIC_RESPONSE, CONTEXT)
    one = first.content[3]
    assert isinstance(one, ToolUseBlock)
    talk = stored([user("What is x?"), first, tool("42", answers=one.id)])
    items, losses = input_of(talk)
    assert [loss.block_type for loss in losses] == ["thinking", "redacted_thinking"]
    assert "c2lnbmVk" not in json.dumps(items)
    second = response_of(SEALED, MESSAGE)
    talk = stored([*talk, second, user("And y?")])
    back = ANTHROPIC.to_wire(talk)
    messages = json.loads(back.body)["messages"]
    assert messages[1]["content"] == ANTHROPIC_RESPONSE["content"]
    assert messages[2]["content"][0]["tool_use_id"] == "toolu_01"
    assert "gAAAA2" not in back.body.decode()
    again, losses = input_of(talk)
    assert [item for item in again if "id" in item] == [SEALED, MESSAGE]
    assert complaints("openai-responses", {"model": "m", "input": again}) == []


@needs_corpus
@pytest.mark.row("T38", "T62", "T71")
def test_recorded_anthropic_responses_are_unchanged_after_responses_turn() -> None:
    between = response_of(SEALED, MESSAGE)
    for exchange in corpus.responses("anthropic_messages"):
        if exchange["status"] != 200 or not exchange["response"].get("content"):
            continue
        response_message = ANTHROPIC.from_wire_response(exchange["response"], CONTEXT)
        calls = [block for block in response_message.content if isinstance(block, ToolUseBlock)]
        talk = [
            user("go"),
            response_message,
            *(tool("ok", answers=one.id) for one in calls),
            user("on"),
        ]
        before = json.loads(ANTHROPIC.to_wire(talk).body)["messages"]
        input_of(talk)
        after = json.loads(ANTHROPIC.to_wire(stored([*talk, between, user("so")])).body)["messages"]
        assert after[: len(before)] == before, exchange["id"]


@pytest.mark.row("T71")
def test_responses_client_carries_anthropic_seals_back() -> None:
    """The gateway case: the client only sees Responses, Anthropic answers."""
    response_message = ANTHROPIC.from_wire_response(ANTHROPIC_RESPONSE, CONTEXT)
    body = json.loads(OPENAI.to_wire_response(response_message, CONTEXT))
    *_, called = body["output"]
    output = {"type": "function_call_output", "call_id": called["call_id"], "output": "42"}
    request = OPENAI.from_wire_request({"model": "m", "input": [PROMPT, *body["output"], output]})
    decoded = request.messages[1]
    assert decoded.content[:2] == (
        ThinkingBlock("Let me see.", "c2lnbmVk", issuer="anthropic"),
        RedactedThinkingBlock("aGlkZGVu", issuer="anthropic"),
    )
    messages = json.loads(ANTHROPIC.to_wire(request.messages).body)["messages"]
    assert messages[1]["content"][:3] == ANTHROPIC_RESPONSE["content"][:3]
    same = OPENAI.to_wire(request.messages, (), request.options)
    assert "metis1:" not in same.body.decode()
    assert [loss.block_type for loss in same.losses] == ["thinking", "redacted_thinking"]


@pytest.mark.row("T71")
@pytest.mark.parametrize("sealed", ["metis1:", "metis1:x", "metis1:e30", "metis1:W10="])
def test_unreadable_envelope_is_sent_to_no_provider(sealed: str) -> None:
    item = {**SEALED, "encrypted_content": sealed}
    body = {"model": "m", "input": [PROMPT, item, MESSAGE]}
    request = OPENAI.from_wire_request(body)
    sent = OPENAI.to_wire(request.messages, (), request.options)
    assert json.loads(sent.body) == {**body, "input": [PROMPT, MESSAGE]}
    assert [loss.reason for loss in sent.losses] == ["it was sealed by damaged envelope"]


@pytest.mark.row("T62", "T63")
def test_openai_seals_are_sent_only_to_openai() -> None:
    talk = [user("hi"), response_of(REASONING, MESSAGE, CALL)]
    talk.append(tool("ok", answers=next(iter(_calls(talk[1]))).id))
    items, losses = input_of(stored(talk))
    assert items == [
        {"role": "user", "content": "hi"},
        REASONING,
        MESSAGE,
        CALL,
        {**OUTPUT, "output": "ok"},
    ]
    assert losses == []
    items, losses = input_of(stored(talk), AZURE)
    text_of_it = json.dumps(items)
    assert not any(name in text_of_it for name in ("gAAAA1", "rs_1", "msg_1", "fc_1"))
    assert "thinking" in [loss.block_type for loss in losses]
    assert complaints("openai-responses", {"model": "m", "input": items}) == []


def _calls(message: Message) -> list[ToolUseBlock]:
    return [block for block in message.content if isinstance(block, ToolUseBlock)]


@pytest.mark.row("T02", "T06")
def test_ids_of_another_host_are_not_sent() -> None:
    long = {**CALL, "call_id": "call_" + "x" * 1300, "id": "call_1"}
    response_message = AZURE.from_wire_response(response(long), CONTEXT)
    items, _ = input_of(
        [user("hi"), response_message, tool("ok", answers=_calls(response_message)[0].id)]
    )
    called, output = items[1:]
    assert called["call_id"] == output["call_id"]
    assert len(called["call_id"]) <= 64
    assert "id" not in called


@pytest.mark.row("T07")
def test_provider_without_storage_is_sent_no_item_ids() -> None:
    talk = [user("hi"), response_of(SEALED, MESSAGE, CALL)]
    talk.append(tool("ok", answers=_calls(talk[1])[0].id))
    items, losses = input_of(talk, store=False)
    assert losses == []
    assert not any("id" in item for item in items)
    assert items[1]["encrypted_content"] == "gAAAA2"
    assert [item.get("call_id") for item in items[3:]] == ["call_1", "call_1"]


@pytest.mark.row("T07", "T64")
def test_reasoning_reference_is_sent_only_to_its_issuer() -> None:
    named: Wire = {"type": "reasoning", "id": "rs_5", "summary": []}
    talk = [user("hi"), response_of(named, MESSAGE)]
    items, losses = input_of(talk)
    assert items[1:] == [named, MESSAGE]
    assert losses == []
    items, losses = input_of(talk, store=False)
    assert [item.get("type") for item in items] == [None, "message"]
    assert [(loss.block_type, loss.reason) for loss in losses] == [
        ("thinking", "it has no signature")
    ]


@pytest.mark.row("T64")
def test_unsealed_thinking_of_truncated_response_is_dropped() -> None:
    response_message = response_of({"type": "reasoning", "id": "rs_5", "summary": []}, MESSAGE)
    metadata = replace(response_message.metadata, status=MessageStatus.CANCELLED)
    items, losses = input_of(
        [user("hi"), replace(response_message, metadata=metadata), user("go on")]
    )
    assert [loss.block_type for loss in losses] == ["thinking"]
    assert "rs_5" not in json.dumps(items)
    assert "msg_1" not in json.dumps(items)


@pytest.mark.row("T67")
def test_only_new_items_are_sent_after_stored_response() -> None:
    response_message = response_of(REASONING, CALL)
    talk = [user("hi"), response_message, tool("ok", answers=_calls(response_message)[0].id)]
    items, losses = input_of(talk, previous_response_id="resp_1")
    assert items == [{**OUTPUT, "output": "ok"}]
    assert losses == []
    items, _ = input_of(talk, previous_response_id="resp_of_somebody_else")
    assert len(items) == 4


@pytest.mark.row("T20")
def test_result_without_call_is_text_unless_provider_stores_the_call() -> None:
    talk = [user("hi"), tool("ok", answers=tool_id(7))]
    items, losses = input_of(talk)
    assert [item.get("type") for item in items] == [None, None]
    assert len(losses) == 1
    items, losses = input_of(talk, conversation="conv_1")
    assert items[1]["type"] == "function_call_output"
    assert losses == []


@pytest.mark.row("T198")
def test_citations_stay_with_their_issuer() -> None:
    talk = [user("hi"), response_of(MESSAGE), user("more")]
    assert input_of(talk)[0][1] == MESSAGE
    away = ANTHROPIC.to_wire(talk)
    assert [loss.path for loss in away.losses] == ["$.content[0].citations"]
    items, losses = input_of(talk, AZURE)
    assert items[1] == {"type": "message", "role": "assistant", "content": "Nothing is new."}
    assert [loss.path for loss in losses] == ["$.content[0].citations"]


@pytest.mark.row("T201", "T202")
@pytest.mark.parametrize(
    "name",
    ["a search of the web", "a compaction", "tools of a server", "code that was run", "a picture"],
)
def test_provider_generated_items_are_sent_only_to_that_provider(name: str) -> None:
    output = [item for item in FEATURES[name] if item.get("role") != "user"]
    output = [item for item in output if item.get("type") != "mcp_approval_response"]
    talk = [user("hi"), response_of(*output), user("more")]
    assert input_of(talk)[0][1:-1] == output
    away = ANTHROPIC.to_wire(talk)
    hosted = [item for item in output if item["type"] != "message"]
    reported = [loss for loss in away.losses if loss.block_type in ("opaque", "artifact")]
    assert len(reported) == len(hosted)


@pytest.mark.row("G-010")
@pytest.mark.parametrize(
    ("media_type", "kind", "losses"),
    [
        ("application/pdf", "document", 0),
        ("text/csv", "document", 0),
        ("application/zip", "text", 1),
    ],
)
def test_file_type_decides_encoding_for_other_providers(
    media_type: str, kind: str, losses: int
) -> None:
    part = {"type": "input_file", "filename": "a", "file_data": f"data:{media_type};base64,YSxi"}
    items = [{"role": "user", "content": [part]}]
    request = OPENAI.from_wire_request({"model": "m", "input": items})
    wire = ANTHROPIC.to_wire(request.messages)
    (block,) = json.loads(wire.body)["messages"][0]["content"]
    assert (block["type"], len(wire.losses)) == (kind, losses)


def test_custom_calls_are_tool_calls_in_other_protocols() -> None:
    request = OPENAI.from_wire_request({"model": "m", "input": [PROMPT, CUSTOM, CUSTOM_OUTPUT]})
    messages = json.loads(ANTHROPIC.to_wire(request.messages).body)["messages"]
    assert messages[1]["content"][0]["name"] == "sql"
    assert messages[1]["content"][0]["input"] == {"input": "SELECT 1"}


@pytest.mark.row("T62")
def test_reasoning_is_never_separated_from_next_item() -> None:
    """The items of a response stay together in order, for any conversation."""
    one = call("f", tool_id(1))
    response_message = response_of(SEALED, MESSAGE, REASONING, CALL)
    talk = [
        user("hi"),
        assistant(thinking("foreign", signature="s", issuer="anthropic"), text("ho"), one),
        tool("ok", answers=one.id),
        response_message,
        user("no result came"),
    ]
    items, _ = input_of(talk)
    start = items.index(SEALED)
    assert items[start : start + 4] == [SEALED, MESSAGE, REASONING, CALL]
    assert items[start + 4]["call_id"] == "call_1"
