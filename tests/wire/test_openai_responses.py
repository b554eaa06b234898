"""OpenAI Responses requests, responses and errors in both directions."""

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import openai.types.responses as sdk
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import corpus
from build import assistant, call, image, system, text, thinking, tool, tool_id, user
from corpus import Exchange, needs_corpus, needs_whole_corpus
from judges import complaints
from metis import adapters
from metis.canonical import Message, Role, StopReason, decode, encode, validate
from metis.canonical.blocks import (
    ArtifactBlock,
    DocumentBlock,
    ImageBlock,
    OpaqueBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from metis.canonical.errors import (
    ContextOverflowError,
    DecodeError,
    InvalidRequestError,
    MetisError,
    ProviderError,
    RateLimitError,
    ServerError,
)
from metis.canonical.metadata import MessageStatus
from metis.canonical.tools import SideEffects, ToolDefinition
from metis.wire.call import AdapterOptions, RequestContext, ToolChoice
from metis.wire.openai_responses.blocks import PROTOCOL
from metis.wire.openai_responses.codec import CODEC
from metis.wire.openai_responses.fast import decode_request
from metis.wire.openai_responses.response import decode_response, encode_response
from openai_responses_cases import (
    CALL,
    CITED,
    CUSTOM,
    FEATURES,
    MESSAGE,
    OUTPUT,
    PROMPT,
    REASONING,
    SEALED,
    Wire,
)
from wire.encoding import encode_request

CONTEXT = RequestContext(session_id="sess_1", status=200)
NAME = "openai-responses"


def as_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def round_trip(body: Wire) -> Wire:
    """Decode, store and encode a request."""
    request = decode_request(as_json(body), CONTEXT)
    stored = [decode(encode(message)) for message in request.messages]
    return json.loads(encode_request(CODEC, stored, request.tools, request.options))


def messages_of(*items: Wire, **rest: Any) -> tuple[Message, ...]:
    return decode_request(as_json({"model": "m", "input": [*items], **rest}), CONTEXT).messages


def body_of(*output: Wire, **rest: Any) -> Wire:
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "gpt-x",
        "status": "completed",
        "output": [*output],
        **rest,
    }


def response_of(*output: Wire, **rest: Any) -> Message:
    return decode_response(body_of(*output, **rest), CONTEXT)


def items_of(*messages: Message, **native: Any) -> list[Any]:
    options = AdapterOptions(native={PROTOCOL: native} if native else {})
    return json.loads(encode_request(CODEC, messages, (), options)).get("input", [])


def failed(text: str, answers: str | None = None) -> Message:
    message = tool(text, answers=answers or tool_id())
    (block,) = message.content
    assert isinstance(block, ToolResultBlock)
    return replace(message, content=(replace(block, is_error=True),))


# Laws on the recordings


def exchanges() -> list[Exchange]:
    return corpus.exchanges("openai_responses")


def answers() -> list[Exchange]:
    return [e for e in exchanges() if e["status"] < 400 and "output" in (e["response"] or {})]


@needs_whole_corpus
@pytest.mark.row("M-008", "M-193", "K-110", "T201", "T202", "T210")
def test_recorded_requests_round_trip_with_every_key() -> None:
    bodies = [(e["id"], e["request"]) for e in exchanges() if e["request"]]
    assert len(bodies) == 351
    for name, body in bodies:
        assert round_trip(body) == body, name
        for message in decode_request(as_json(body), CONTEXT).messages:
            assert validate(message) == [], name


@needs_whole_corpus
@pytest.mark.row("M-008", "M-193", "G-048", "G-049", "G-050", "G-051", "T62", "T66")
def test_recorded_responses_round_trip_with_every_key() -> None:
    assert len(answers()) == 305
    for exchange in answers():
        message = decode_response(exchange["response"], CONTEXT)
        again = decode(encode(message))
        assert json.loads(encode_response(again, CONTEXT)) == exchange["response"], exchange["id"]
        if message.content:
            assert validate(message) == [], exchange["id"]
            assert message.metadata.model
            assert isinstance(message.metadata.stop_reason, StopReason)
        usage = message.metadata.usage
        assert (usage is None) is (exchange["response"].get("usage") is None)
        if usage is not None:
            assert type(usage.prompt_tokens) is type(usage.output_tokens) is int


@needs_whole_corpus
@pytest.mark.row("T05", "T62", "T66")
def test_encoded_history_equals_items_sent_by_real_clients() -> None:
    by_id = {e["id"]: e for e in answers()}
    pairs = [(by_id[e["echo_of"]], e) for e in exchanges() if e.get("echo_of") in by_id]
    counted = 0
    for before, after in pairs:
        if after["echo"] not in ("verbatim", "full"):
            continue
        message = decode_response(before["response"], CONTEXT)
        by_name = {name: item for item in items_of(message) if (name := _name(item))}
        for item in after["request"]["input"]:
            encoded = by_name.get(_name(item))
            if encoded is not None and item["type"] not in _REWRITTEN:
                expected = {key: value for key, value in item.items() if key != "namespace"}
                assert is_in(expected, encoded), after["id"]
                counted += 1
    assert counted > 100


_REWRITTEN = ("image_generation_call", "tool_search_call")
"""Items that the recorded client does not send back unchanged."""


def is_in(expected: Any, encoded: Any) -> bool:
    """Return whether the encoded value has everything expected, and possibly more."""
    match expected:
        case None | []:
            return True
        case dict():
            pairs = cast("Wire", expected)
            return all(is_in(value, encoded.get(key)) for key, value in pairs.items())
        case list():
            values = cast("list[Any]", expected)
            return len(values) == len(encoded) and all(map(is_in, values, encoded))
        case str() if expected[:1] == "{":
            return json.loads(expected) == json.loads(encoded)
        case _:
            return expected == encoded


def _name(item: Wire) -> str:
    kind = item.get("type") or ""
    return "" if kind.endswith("_output") else item.get("call_id") or item.get("id") or ""


@needs_corpus
@pytest.mark.row("T66")
def test_sdk_accepts_recorded_responses_sent_back() -> None:
    for exchange in answers():
        if exchange["provider"] == "openai_responses":
            message = decode_response(exchange["response"], CONTEXT)
            # Opaque items belong to the provider, also where the SDK's types lack them.
            items = [item for item in items_of(message) if "search_call" not in item["type"]]
            assert complaints(NAME, {"model": "m", "input": items}) == [], exchange["id"]


@needs_whole_corpus
def test_recorded_errors_are_typed() -> None:
    refused = [e for e in exchanges() if e["status"] >= 400]
    assert len(refused) == 8
    for exchange in refused:
        with pytest.raises(InvalidRequestError) as caught:
            decode_response(exchange["response"], RequestContext(status=exchange["status"]))
        assert caught.value.text == exchange["response"]["error"]["message"]


# Items


@pytest.mark.row("K-110", "T05", "T33", "T61", "T62", "T66", "T195", "T198", "T201", "T202")
@pytest.mark.parametrize("name", FEATURES)
def test_items_round_trip_with_every_key(name: str) -> None:
    body = {"model": "m", "input": FEATURES[name]}
    assert round_trip(body) == body
    for message in messages_of(*FEATURES[name]):
        assert validate(message) == []


@pytest.mark.parametrize("name", FEATURES)
def test_items_are_encoded_without_loss(name: str) -> None:
    adapter = adapters.get(NAME)
    kinds = {item.get("type") for item in FEATURES[name]}
    if not _is_whole(FEATURES[name]):
        pytest.skip("a call is not answered, or an output has no call")
    request = adapter.from_wire_request({"model": "m", "input": FEATURES[name]})
    wire = adapter.to_wire(request.messages, request.tools, request.options)
    assert json.loads(wire.body)["input"] == FEATURES[name], kinds
    assert wire.losses == []


def _is_whole(items: list[Wire]) -> bool:
    return not any(item.get("type") in ("function_call_output", "shell_call") for item in items[:1])


@pytest.mark.row("T05", "T62", "K-129")
def test_sequence_of_items_is_one_message_in_order() -> None:
    prompt, response, output, last = messages_of(
        PROMPT, REASONING, MESSAGE, CALL, OUTPUT, SEALED, MESSAGE
    )
    assert [m.role for m in (prompt, response, output, last)] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    thought, message_text, one = response.content
    assert thought == ThinkingBlock("Look it up.", "gAAAA1", "rs_1", issuer=PROTOCOL)
    assert isinstance(message_text, TextBlock)
    assert [(note.kind, note.url, note.raw) for note in message_text.citations] == [
        ("url_citation", "https://news.example", CITED)
    ]
    assert isinstance(one, ToolUseBlock)
    assert (one.name, one.input) == ("look_up", {"word": "new", "deep": True})
    (result,) = output.content
    assert result == ToolResultBlock(one.id, (TextBlock("nothing"),))
    assert output.metadata.parent_tool_use_id == one.id
    assert last.content[0] == RedactedThinkingBlock("gAAAA2", "rs_2", issuer=PROTOCOL)


def test_client_run_builtin_tool_is_a_tool_call() -> None:
    inputs_and_results = {
        block.name: (block.input, result)
        for name in ("a local shell", "a shell", "a patch", "a computer")
        for response, output in [messages_of(*FEATURES[name])]
        for block, result in [(response.content[0], output.content[0])]
        if isinstance(block, ToolUseBlock) and isinstance(result, ToolResultBlock)
    }
    assert inputs_and_results["local_shell"][0] == {"type": "exec", "command": ["ls"], "env": {}}
    assert inputs_and_results["local_shell"][1].content == (TextBlock("a\nb"),)
    assert inputs_and_results["shell"][1].content == (TextBlock("ano[exit code 2]\n[timed out]\n"),)
    assert inputs_and_results["apply_patch"][1].is_error
    assert inputs_and_results["computer"][0] == {"type": "screenshot"}
    assert isinstance(inputs_and_results["computer"][1].content[0], ImageBlock)


@pytest.mark.parametrize(
    ("name", "result", "output"),
    [
        ("a custom tool", tool("1"), {"type": "custom_tool_call_output", "output": "1"}),
        ("a thought beside its call", tool("1"), {"type": "function_call_output", "output": "1"}),
        ("a local shell", tool("1"), {"type": "local_shell_call_output", "output": "1"}),
        (
            "a shell",
            failed("1"),
            {
                "type": "shell_call_output",
                "output": [
                    {"stdout": "1", "stderr": "", "outcome": {"type": "exit", "exit_code": 1}}
                ],
            },
        ),
        (
            "a patch",
            failed("1"),
            {"type": "apply_patch_call_output", "status": "failed", "output": "1"},
        ),
        (
            "a computer",
            tool(image()),
            {
                "type": "computer_call_output",
                "output": {
                    "type": "computer_screenshot",
                    "image_url": "data:image/png;base64,aWY=",
                },
            },
        ),
        (
            "a search for tools by the client",
            tool('[{"type": "function", "name": "g"}]'),
            {
                "type": "tool_search_output",
                "execution": "client",
                "status": "completed",
                "tools": [{"type": "function", "name": "g"}],
            },
        ),
    ],
)
def test_result_type_follows_type_of_call(name: str, result: Message, output: Wire) -> None:
    response = response_of(*[item for item in FEATURES[name] if "_output" not in item["type"]])
    one = next(block for block in response.content if isinstance(block, ToolUseBlock))
    (block,) = result.content
    assert isinstance(block, ToolResultBlock)
    mine = replace(result, content=(replace(block, tool_use_id=one.id),))
    *_, last = items_of(response, mine)
    key = "id" if name == "a local shell" else "call_id"
    call_id = next(item["call_id"] for item in FEATURES[name] if "call_id" in item)
    assert last == {**output, key: call_id}


def test_thinking_with_equal_ids_stays_separate() -> None:
    content = [{"type": "reasoning_text", "text": "aloud"}]
    short = [{"type": "summary_text", "text": "in short"}]
    first = {"type": "reasoning", "id": "rs_0", "summary": short, "content": content}
    second = {"type": "reasoning", "id": "rs_0", "summary": [*short, *short]}
    body = body_of(first, second)
    assert json.loads(encode_response(decode_response(body, CONTEXT), CONTEXT)) == body


@pytest.mark.row("T09")
def test_repeated_wire_id_names_another_call() -> None:
    _, first, _, second, _ = messages_of(PROMPT, CALL, OUTPUT, CALL, OUTPUT)
    assert first.content[0] != second.content[0]
    assert first.content[0] == messages_of(PROMPT, CALL, OUTPUT)[1].content[0]


@pytest.mark.row("T32", "T34")
def test_arguments_are_an_object_or_invalid() -> None:
    broken = response_of({**CALL, "arguments": "{"}).content[0]
    assert isinstance(broken, ToolUseBlock)
    assert broken.input == {}
    assert broken.invalid is not None
    assert broken.invalid.raw == "{"
    empty = response_of({**CALL, "arguments": ""}).content[0]
    assert isinstance(empty, ToolUseBlock)
    assert (empty.input, empty.invalid) == ({}, None)


def test_original_form_is_dropped_when_block_has_changed() -> None:
    _, response, _ = messages_of(PROMPT, REASONING, MESSAGE, CALL, OUTPUT)
    thought, message_text, one = response.content
    assert isinstance(thought, ThinkingBlock)
    assert isinstance(message_text, TextBlock)
    assert isinstance(one, ToolUseBlock)
    changed = replace(
        response,
        content=(
            replace(thought, text="Other."),
            replace(message_text, text="News!"),
            replace(one, input={"word": "old"}),
        ),
    )
    first, second, third = items_of(changed)
    assert first["summary"] == [{"type": "summary_text", "text": "Other."}]
    assert second["content"][0]["text"] == "News!"
    assert third["arguments"] == '{"word":"old"}'
    more = replace(response, content=(*response.content, text("more")))
    assert items_of(more)[-1] == {"type": "message", "role": "assistant", "content": "more"}


# Messages of other protocols


@pytest.mark.row("K-110", "K-111", "T02", "T06", "T26", "T66", "T75", "T100")
def test_messages_of_other_protocols_are_encoded() -> None:
    one, two = call("f", tool_id(1), a=1), call("g", tool_id(2))
    messages = [
        system("be kind"),
        replace(user("now"), role=Role.DEVELOPER),
        user("hi", image()),
        assistant(text("a"), text("b"), one, two),
        tool("ok", answers=one.id),
        failed("bad", answers=two.id),
        replace(system("later"), role=Role.SYSTEM),
    ]
    wire = adapters.get(NAME).to_wire(messages)
    body = json.loads(wire.body)
    assert complaints(NAME, body) == []
    assert wire.losses == []
    assert body["instructions"] == "be kind"
    first, second = f"call_{one.id[3:]}", f"call_{two.id[3:]}"
    picture = {"type": "input_image", "detail": "auto", "image_url": "data:image/png;base64,aWY="}
    assert body["input"] == [
        {"role": "developer", "content": "now"},
        {"role": "user", "content": [{"type": "input_text", "text": "hi"}, picture]},
        {"type": "message", "role": "assistant", "content": "a"},
        {"type": "message", "role": "assistant", "content": "b"},
        {"type": "function_call", "call_id": first, "name": "f", "arguments": '{"a":1}'},
        {"type": "function_call", "call_id": second, "name": "g", "arguments": "{}"},
        {"type": "function_call_output", "call_id": first, "output": "ok"},
        {"type": "function_call_output", "call_id": second, "output": "Error: bad"},
        {"role": "system", "content": "later"},
    ]


@pytest.mark.row("G-009", "G-010")
def test_documents_are_files_and_text_is_text() -> None:
    content = messages_of(*FEATURES["media"])[0].content
    kinds = [block.type for block in content]
    assert kinds == [
        *("image", "image", "opaque", "document", "document", "document", "document"),
        *("audio", "video", "image", "audio", "text"),
    ]
    table = content[6]
    assert isinstance(table, DocumentBlock)
    assert (table.source.kind, table.source.data) == ("text", "a,b")


@pytest.mark.row("G-048", "G-051")
def test_response_of_another_provider_is_encoded() -> None:
    one = call("f", tool_id(1), a=1)
    message = assistant(thinking("hm"), text("hi"), one)
    body = json.loads(encode_response(message, CONTEXT))
    parsed = sdk.Response.model_validate(body, strict=True)
    assert parsed.status == "completed"
    assert parsed.output_text == "hi"
    kinds = [item.type for item in parsed.output]
    assert kinds == ["reasoning", "message", "function_call"]
    again = decode_response(body, CONTEXT)
    assert [block.type for block in again.content] == ["thinking", "text", "tool_use"]
    assert again.metadata.stop_reason is StopReason.TOOL_USE


# Requests as a whole


@pytest.mark.row("M-193")
@pytest.mark.parametrize(
    "body",
    [
        {"model": "m", "input": "hi"},
        {"model": "m", "input": "hi", "instructions": "be kind"},
        {"model": "m", "input": [PROMPT], "instructions": None},
        {"model": "m", "input": []},
        {"model": "m", "prompt": {"id": "pmpt_1"}},
        {"model": "m", "instructions": "be kind", "conversation": "conv_1"},
        {"model": "m", "input": [PROMPT], "background": True, "store": True, "stream": True},
        {"model": "m", "input": [OUTPUT], "previous_response_id": "resp_0"},
        {
            "model": "m",
            "input": [{"role": "system", "content": "listed"}, PROMPT],
            "instructions": "beside",
        },
    ],
)
def test_request_round_trip_keeps_every_key(body: Wire) -> None:
    assert round_trip(body) == body
    adapter = adapters.get(NAME)
    request = adapter.from_wire_request(body)
    wire = adapter.to_wire(request.messages, request.tools, request.options)
    assert json.loads(wire.body) == body
    assert wire.losses == []


def test_continued_string_input_becomes_list() -> None:
    (prompt,) = decode_request(as_json({"input": "hi"}), CONTEXT).messages
    assert items_of(prompt, assistant("ho"), user("hi")) == [
        {"role": "user", "content": "hi"},
        {"type": "message", "role": "assistant", "content": "ho"},
        {"role": "user", "content": "hi"},
    ]


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"input": 5}, "$.input"),
        ({"input": [5]}, "$.input[0]"),
        ({"input": [{"role": "critic", "content": "x"}]}, "$.input[0].role"),
        ([], "$"),
    ],
)
def test_invalid_request_error_names_the_place(body: Any, path: str) -> None:
    with pytest.raises(DecodeError) as caught:
        decode_request(as_json(body), CONTEXT)
    assert caught.value.path == path


FUNCTION: Wire = {
    "type": "function",
    "name": "f",
    "description": "do",
    "parameters": {"type": "object", "properties": {}},
    "strict": True,
}
GRAMMAR: Wire = {
    "type": "custom",
    "name": "sql",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
}
TOOLS = [
    FUNCTION,
    GRAMMAR,
    {"type": "namespace", "name": "crm", "description": "x", "tools": [FUNCTION]},
    {"type": "tool_search"},
    {"type": "web_search", "search_context_size": "low"},
    {"type": "code_interpreter", "container": {"type": "auto"}},
    {"type": "file_search", "vector_store_ids": ["vs_1"]},
    {"type": "image_generation"},
    {"type": "mcp", "server_label": "s", "server_url": "https://mcp.example"},
    {"type": "local_shell"},
    {"type": "shell"},
    {"type": "apply_patch"},
]


@pytest.mark.row("T113")
def test_functions_become_tool_definitions_and_provider_tools_are_preserved() -> None:
    body = {"model": "m", "input": "hi", "tools": TOOLS}
    adapter = adapters.get(NAME)
    request = adapter.from_wire_request(body)
    assert [one.name for one in request.tools] == ["f"]
    assert (
        json.loads(adapter.to_wire(request.messages, request.tools, request.options).body) == body
    )
    more = ToolDefinition("g", "go", {"type": "object", "properties": {}}, SideEffects.READ)
    changed = adapter.to_wire(request.messages, [more], request.options)
    tools = json.loads(changed.body)["tools"]
    assert tools[:-1] == TOOLS[1:]
    assert tools[-1]["name"] == "g"
    away = adapters.get("anthropic").to_wire(request.messages, request.tools, request.options)
    lost = [loss.reason for loss in away.losses]
    server_tools = len([reason for reason in lost if "is not supported here" in reason])
    functions = len([reason for reason in lost if "is sent as a function" in reason])
    assert (server_tools, functions) == (6, 5)


@pytest.mark.row("T113", "T182")
def test_shared_options_are_read_and_written() -> None:
    body = {
        "model": "m",
        "input": "hi",
        "max_output_tokens": 9,
        "temperature": 1,
        "top_p": 0.5,
        "parallel_tool_calls": False,
        "stream": True,
        "tools": [FUNCTION],
        "tool_choice": {"type": "function", "name": "f"},
        "reasoning": {"effort": "low"},
    }
    request = decode_request(as_json(body), CONTEXT)
    options = request.options
    assert options.tool_choice == ToolChoice("tool", "f")
    assert (options.max_output_tokens, options.temperature, options.top_p) == (9, 1, 0.5)
    assert (options.parallel_tool_calls, options.stream) == (False, True)
    assert round_trip(body) == body
    changed = replace(options, tool_choice=ToolChoice("required"), temperature=None)
    again = json.loads(encode_request(CODEC, request.messages, request.tools, changed))
    assert again == {k: v for k, v in body.items() if k != "temperature"} | {
        "tool_choice": "required"
    }


@pytest.mark.parametrize("choice", ["auto", "none", "required", {"type": "web_search"}, "odd", 5])
def test_every_tool_choice_round_trips(choice: Any) -> None:
    body = {"model": "m", "input": "hi", "tools": [FUNCTION], "tool_choice": choice}
    assert round_trip(body) == body


@pytest.mark.row("T114", "T183")
def test_options_the_provider_refuses_are_omitted_with_loss() -> None:
    options = AdapterOptions(stop_sequences=("x",), top_k=1, parallel_tool_calls=False)
    wire = adapters.get(NAME).to_wire([user("hi")], (), options)
    body = json.loads(wire.body)
    assert complaints(NAME, body) == []
    assert set(body) == {"model", "input"}
    assert sorted(loss.path for loss in wire.losses) == [
        "$.parallel_tool_calls",
        "$.stop_sequences",
        "$.top_k",
    ]


# Answers


@pytest.mark.row("T136", "T159", "T169", "M-192")
@pytest.mark.parametrize(
    ("body", "reason", "status"),
    [
        (body_of(MESSAGE), StopReason.END_TURN, MessageStatus.COMPLETE),
        (body_of(REASONING, CALL), StopReason.TOOL_USE, MessageStatus.COMPLETE),
        (body_of(CUSTOM), StopReason.TOOL_USE, MessageStatus.COMPLETE),
        (
            body_of(FEATURES["tools of a server"][1]),
            StopReason.PAUSE,
            MessageStatus.COMPLETE,
        ),
        (
            body_of({**MESSAGE, "content": [{"type": "refusal", "refusal": "no"}]}),
            StopReason.REFUSAL,
            MessageStatus.COMPLETE,
        ),
        (
            body_of(
                MESSAGE, status="incomplete", incomplete_details={"reason": "max_output_tokens"}
            ),
            StopReason.MAX_TOKENS,
            MessageStatus.COMPLETE,
        ),
        (
            body_of(status="incomplete", incomplete_details={"reason": "max_output_tokens"}),
            StopReason.MAX_TOKENS,
            MessageStatus.ERROR,
        ),
        (
            body_of(MESSAGE, status="incomplete", incomplete_details={"reason": "content_filter"}),
            StopReason.CONTENT_FILTER,
            MessageStatus.COMPLETE,
        ),
        (body_of(status="queued", background=True), None, MessageStatus.PARTIAL),
        (body_of(status="in_progress", background=True), None, MessageStatus.PARTIAL),
        (body_of(MESSAGE, status="cancelled"), StopReason.CANCELLED, MessageStatus.CANCELLED),
    ],
)
def test_stop_reason_is_mapped_and_original_words_preserved(
    body: Wire, reason: StopReason | None, status: MessageStatus
) -> None:
    message = decode_response(body, CONTEXT)
    assert (message.metadata.stop_reason, message.metadata.status) == (reason, status)
    assert json.loads(encode_response(message, CONTEXT)) == body


@pytest.mark.row("T142", "T143", "T152", "G-049", "G-050")
def test_usage_is_a_set_of_disjoint_buckets() -> None:
    usage = response_of(
        MESSAGE,
        service_tier="flex",
        usage={
            "input_tokens": 100,
            "input_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 10},
            "output_tokens": 50,
            "output_tokens_details": {"reasoning_tokens": 30},
            "total_tokens": 150,
        },
    ).metadata.usage
    assert usage is not None
    assert (usage.input_tokens, usage.cached_input_tokens) == (30, 60)
    assert (usage.cache_creation_input_tokens, usage.prompt_tokens) == (10, 100)
    assert (usage.output_tokens, usage.reasoning_output_tokens) == (50, 30)
    assert usage.service_tier == "flex"


@pytest.mark.row("T153")
@pytest.mark.parametrize("usage", [None, {}, {"input_tokens": "many"}, 5])
def test_missing_usage_is_unknown(usage: Any) -> None:
    assert response_of(MESSAGE, usage=usage).metadata.usage is None


def test_generated_image_is_an_artifact() -> None:
    picture = response_of(FEATURES["a picture"][0]).content[0]
    assert isinstance(picture, ArtifactBlock)
    assert (picture.media_type, picture.source.data, picture.id) == ("image/webp", "aWY=", "ig_1")


@pytest.mark.row("T63", "T185", "T186", "T189")
@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        ({"error": {"code": "rate_limit_exceeded", "message": "slow"}}, 429, RateLimitError),
        (
            {"error": {"code": "invalid_encrypted_content", "message": "not verified"}},
            400,
            InvalidRequestError,
        ),
        ({"error": {"code": "context_length_exceeded", "message": "x"}}, 400, ContextOverflowError),
        (
            body_of(status="failed", error={"code": "server_error", "message": "oops"}),
            200,
            ServerError,
        ),
        (b"<html>", 502, ServerError),
    ],
)
def test_error_bodies_become_typed_errors(
    body: Any, status: int, kind: type[ProviderError]
) -> None:
    with pytest.raises(kind):
        decode_response(body, RequestContext(status=status))


def test_a_body_without_output_is_no_response() -> None:
    with pytest.raises(DecodeError, match="output"):
        decode_response({"id": "x"}, CONTEXT)


# Any input


KEY_NAMES = (
    "type role content id call_id name arguments input output status summary encrypted_content "
    "text annotations message function_call reasoning function_call_output output_text input_text "
    "refusal custom_tool_call shell_call action tool_search_call execution client tools phase user "
    "assistant environment image_generation_call result detail image_url file_data usage error"
)
KEYS = st.sampled_from(KEY_NAMES.split())
LEAVES = st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3) | KEYS
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=6)
)
KINDS = st.sampled_from(
    sorted({item["type"] for items in FEATURES.values() for item in items if "type" in item})
)


def _typed(kind: str | None, rest: Wire) -> Wire:
    return rest if kind is None else {**rest, "type": kind}


def _mutated(items: list[Wire], change: Wire) -> list[Wire]:
    return [{**item, **change} for item in items]


ITEMS = st.builds(_typed, st.none() | KINDS, st.dictionaries(KEYS, VALUES, max_size=7))
RUNS = st.lists(ITEMS, max_size=4) | st.builds(
    _mutated, st.sampled_from([*FEATURES.values()]), st.dictionaries(KEYS, VALUES, max_size=1)
)


def survives(action: Callable[[], object]) -> None:
    with suppress(MetisError):
        action()


@given(st.binary(max_size=40) | VALUES.map(as_json))
def test_any_bytes_give_value_or_typed_error(body: bytes) -> None:
    survives(lambda: decode_request(body, CONTEXT))
    survives(lambda: decode_response(body, CONTEXT))
    survives(lambda: decode_response(body, RequestContext(status=400)))


@given(RUNS, st.dictionaries(KEYS, VALUES, max_size=4))
def test_any_request_round_trips_or_is_refused(items: list[Wire], rest: Wire) -> None:
    request = {**rest, "input": items}
    survives(lambda: _same(round_trip(request), request))


@given(RUNS)
def test_any_response_round_trips_or_is_refused(output: list[Wire]) -> None:
    def round_trip_body() -> None:
        decoded = decode(encode(decode_response(as_json(body_of(*output)), CONTEXT)))
        _same(json.loads(encode_response(decoded, CONTEXT)), body_of(*output))
        items_of(decoded)

    survives(round_trip_body)


def _same(decoded: Wire, expected: Wire) -> None:
    assert decoded == expected


def test_opaque_items_go_to_their_issuer_only() -> None:
    openai, azure = adapters.get(NAME), adapters.get("azure-responses")
    body = {"model": "m", "input": [*FEATURES["a compaction"]]}
    messages = openai.from_wire_request(body).messages
    (block,) = messages[0].content
    assert isinstance(block, OpaqueBlock)
    assert (block.issuer, block.kind) == (NAME, "compaction")
    away = azure.to_wire(messages)
    assert json.loads(away.body)["input"] == [PROMPT]
    assert [loss.block_type for loss in away.losses] == ["opaque", "message"]
