"""Chat Completions requests, responses and errors in both directions."""

import json
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from build import assistant, call, system, text, tool, tool_id, user
from corpus import needs_whole_corpus
from metis import adapters
from metis.canonical import Message, Role, StopReason, ToolUseBlock, validate
from metis.canonical.blocks import (
    ArtifactBlock,
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    ImageSource,
    InvalidInput,
    MediaSource,
    OpaqueBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    VideoBlock,
)
from metis.canonical.errors import (
    AuthenticationError,
    ContextOverflowError,
    DecodeError,
    InvalidRequestError,
    MetisError,
    NetworkError,
    ProviderError,
    RateLimitError,
    ServerError,
)
from metis.canonical.metadata import MessageMetadata, MessageStatus
from metis.canonical.tools import SideEffects, ToolDefinition
from metis.wire.call import AdapterOptions, RequestContext, ToolChoice
from metis.wire.openai_chat import request as request_module
from metis.wire.openai_chat.blocks import PROTOCOL, is_empty
from metis.wire.openai_chat.codec import CODEC
from metis.wire.openai_chat.fast import decode_request
from metis.wire.openai_chat.response import decode_response, encode_response
from metis.wire.openai_errors import decode_error, encode_error
from wire.encoding import encode_request
from wire.openai_chat_corpus import (
    Exchange,
    answers,
    echoes,
    errors,
    exchanges,
    needs_corpus,
    requests,
)

CONTEXT = RequestContext(session_id="sess_1", status=200)
Wire = dict[str, Any]


def as_json(wire: Any) -> bytes:
    return json.dumps(wire).encode()


def round_trip(request: Wire) -> Wire:
    decoded = decode_request(as_json(request), CONTEXT)
    return json.loads(encode_request(CODEC, decoded.messages, decoded.tools, decoded.options))


def read_messages(*messages: Wire) -> tuple[Message, ...]:
    return decode_request(as_json({"model": "m", "messages": messages}), CONTEXT).messages


def write_messages(*messages: Message) -> list[Wire]:
    return json.loads(encode_request(CODEC, messages, (), AdapterOptions()))["messages"]


def response_body(message: Wire, **choice: Any) -> Wire:
    first = {"index": 0, "finish_reason": "stop", "message": message, **choice}
    return {"id": "chatcmpl-1", "object": "chat.completion", "model": "gpt-5", "choices": [first]}


def read_response(message: Wire, **choice: Any) -> Message:
    body = response_body({"role": "assistant", **message}, **choice)
    decoded = decode_response(as_json(body), CONTEXT)
    assert json.loads(encode_response(decoded, CONTEXT)) == body
    return decoded


def tool_call(wire_id: str | None, name: str, arguments: str, **more: Any) -> Wire:
    function = {"name": name, "arguments": arguments}
    return {"id": wire_id, "type": "function", "function": function, **more}


# Laws on the recordings


@needs_whole_corpus
@pytest.mark.row("T52", "T54", "T61", "T85")
def test_recorded_requests_round_trip_with_every_key() -> None:
    assert len(requests()) == 486
    for exchange in requests():
        assert round_trip(exchange["request"]) == exchange["request"], exchange["id"]


@needs_whole_corpus
def test_recorded_responses_round_trip_with_every_key() -> None:
    assert len(answers()) == 415
    for exchange in answers():
        context = RequestContext(status=200, provider=exchange["provider"])
        message = decode_response(exchange["response"], context)
        body = json.loads(encode_response(message, context))
        assert body == exchange["response"], exchange["id"]


@needs_corpus
def test_form_of_plain_response_is_the_one_that_encoding_it_gives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bodies = [as_json(exchange["response"]) for exchange in answers()]
    calls = [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}},
        {"id": "b", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}},
        {"id": "", "type": "function", "function": {"name": "f", "arguments": "{}"}},
        {"id": "c", "type": "custom", "custom": {"name": "f", "input": "x"}},
        {"id": "d", "type": "function", "function": {"name": "f", "arguments": "[1"}, "index": 3},
        *({"id": "a"}, 7),
    ]
    beside: list[Wire] = [
        {"tool_calls": given} for given in ([], None, *([one] for one in calls), calls[:2], calls)
    ]
    beside += [{}, {"refusal": None}, {"refusal": "no"}, {"function_call": None}, {"role": "user"}]
    beside += [{"reasoning_content": ""}, {"reasoning_content": "x"}, {"annotations": []}]
    beside += [{"annotations": [{"type": "x"}]}, {"audio": None}, {"audio": {"id": "x"}}]
    for content in ("text", "", None, [{"type": "text", "text": "x"}]):
        for keys in beside:
            message = {"role": "assistant", "content": content, **keys}
            bodies.append(as_json({"choices": [{"index": 0, "message": message}]}))
    context = replace(CONTEXT, is_stateless=True)
    fast = [decode_response(body, context) for body in bodies]

    def never(*_: object) -> bool:
        return False

    monkeypatch.setattr(request_module, "_is_plain_response", never)
    for body, message in zip(bodies, fast, strict=True):
        slow = decode_response(body, context)
        forms = [
            {**(one.metadata.provider_raw or {}).get(PROTOCOL, {}), "ids": None, "calls": None}
            for one in (message, slow)
        ]
        assert forms[0] == forms[1], body


@needs_whole_corpus
@pytest.mark.row("T55")
def test_encoded_history_equals_messages_sent_by_real_clients() -> None:
    assert len(echoes()) == 72
    for before, after in echoes():
        message = decode_response(before["response"], CONTEXT)
        sent = _without_empty_keys(write_messages(message)[0])
        assert sent in [_without_empty_keys(message) for message in after["request"]["messages"]], (
            after["id"]
        )


def _without_empty_keys(wire: Wire) -> Wire:
    return {key: value for key, value in wire.items() if not is_empty(value)}


@needs_corpus
def test_recorded_responses_decode_to_valid_messages() -> None:
    problems: dict[str, list[str]] = {}
    for exchange in answers():
        message = decode_response(exchange["response"], CONTEXT)
        texts = [str(problem) for problem in validate(message)]
        if texts and message.content:
            problems[exchange["id"]] = texts
    assert problems == {}


@needs_whole_corpus
def test_recorded_errors_are_typed() -> None:
    kinds: dict[int, set[str]] = {}
    for exchange in errors():
        with pytest.raises(ProviderError) as caught:
            decode_response(exchange["response"], RequestContext(status=exchange["status"]))
        error = exchange["response"]["error"]
        assert caught.value.text == error["message"]
        kinds.setdefault(exchange["status"], set()).add(type(caught.value).__name__)
    assert kinds == {
        400: {"InvalidRequestError"},
        404: {"InvalidRequestError"},
        429: {"RateLimitError"},
    }


@needs_whole_corpus
@pytest.mark.row("T189")
def test_a_body_without_choices_is_no_response() -> None:
    strange = [e for e in exchanges() if e["status"] < 400 and _is_malformed(e)]
    assert len(strange) == 1
    for exchange in strange:
        with pytest.raises(DecodeError):
            decode_response(exchange["response"], CONTEXT)


def _is_malformed(exchange: Exchange) -> bool:
    return exchange["response"] is not None and "choices" not in exchange["response"]


# Messages in both directions

PARTS: list[tuple[ContentBlock, Wire]] = [
    (TextBlock("hi"), {"type": "text", "text": "hi"}),
    (
        ImageBlock(ImageSource("base64", "aGk="), "image/png"),
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
    ),
    (
        ImageBlock(ImageSource("url", "https://a.b/c.png"), "image/*"),
        {"type": "image_url", "image_url": {"url": "https://a.b/c.png"}},
    ),
    (
        AudioBlock(MediaSource("base64", "aGk="), "audio/mpeg"),
        {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "mp3"}},
    ),
    (
        AudioBlock(MediaSource("base64", "aGk="), "audio/wav"),
        {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}},
    ),
    (
        DocumentBlock(MediaSource("base64", "aGk="), "application/pdf", "a.pdf"),
        {
            "type": "file",
            "file": {"file_data": "data:application/pdf;base64,aGk=", "filename": "a.pdf"},
        },
    ),
    (
        DocumentBlock(MediaSource("file_id", "file-1", PROTOCOL), "application/octet-stream"),
        {"type": "file", "file": {"file_id": "file-1"}},
    ),
    (
        VideoBlock(MediaSource("url", "https://a.b/c.mp4"), "video/*"),
        {"type": "video_url", "video_url": {"url": "https://a.b/c.mp4"}},
    ),
]


@pytest.mark.parametrize(("block", "wire"), PARTS)
def test_parts_are_read_and_written(block: ContentBlock, wire: Wire) -> None:
    twice = {"role": "user", "content": [wire, {"type": "text", "text": "?"}]}
    message = read_messages(twice)[0]
    assert message.content == (block, TextBlock("?"))
    born_here = replace(message, metadata=MessageMetadata())
    assert write_messages(born_here) == [twice]


ODD_MESSAGES: list[Wire] = [
    {"role": "user", "content": []},
    {"role": "user", "content": ""},
    {"role": "user", "content": None},
    {"role": "user"},
    {"role": "user", "content": 7},
    {"role": "user", "content": "hi", "name": "Ada", "x": {"y": [1]}},
    {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"a": 1}}]},
    {"role": "user", "content": [{"type": "new_thing", "a": 1}, "text", None]},
    {"role": "user", "content": [{"type": "image_url", "image_url": "https://a.b/c.png"}]},
    {"role": "developer", "content": "be brief"},
    {"role": "assistant", "content": None, "tool_calls": [tool_call("a", "f", '{"b": 1}')]},
    {"role": "assistant", "content": "", "tool_calls": [tool_call("a", "f", "")]},
    {"role": "assistant", "tool_calls": [tool_call("a", "f", '{"b":')]},
    {"role": "assistant", "tool_calls": [tool_call("", "f", "[1]")]},
    {"role": "assistant", "tool_calls": [tool_call(None, "f", "{}"), {"type": "new"}, None]},
    {"role": "assistant", "tool_calls": [tool_call("a", "f", "{}"), tool_call("a", "f", "{}")]},
    {"role": "assistant", "tool_calls": [tool_call("a", "f", "{}", extra_content={"g": "s"})]},
    {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]},
    {
        "role": "assistant",
        "tool_calls": [{"id": "a", "type": "custom", "custom": {"name": "sql", "input": "SELECT"}}],
    },
    {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{ }"}},
    {"role": "assistant", "content": None, "refusal": "No."},
    {"role": "assistant", "content": "Well.", "refusal": "No.", "annotations": []},
    {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
    {"role": "assistant", "content": "a", "audio": {"id": "audio_1"}},
    {"role": "assistant", "content": "a", "reasoning_content": ""},
    {"role": "assistant", "content": "a", "reasoning_content": "b", "reasoning": "c"},
    {"role": "assistant", "content": "a", "reasoning": "b", "reasoning_details": [{"x": 1}]},
    {"role": "assistant", "content": [{"type": "thinking", "thinking": [{"type": "reference"}]}]},
    {"role": "assistant", "content": [{"type": "image_url", "image_url": {"url": "https://a"}}]},
    {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "x"}]},
    {"role": "tool", "content": "no id"},
    {"role": "function", "name": "f", "content": "old"},
]


@pytest.mark.row("T61")
@pytest.mark.parametrize("message", ODD_MESSAGES, ids=json.dumps)
def test_unusual_messages_round_trip(message: Wire) -> None:
    request = {"model": "m", "messages": [{"role": "system", "content": "s"}, message], "new": 1}
    assert round_trip(request) == request


@pytest.mark.row("T32", "T33", "T34")
def test_arguments_are_an_object_or_invalid() -> None:
    calls = [
        tool_call("a", "f", '{"b": 1}'),
        tool_call("b", "f", ""),
        tool_call("c", "f", '{"b":'),
        {"id": "d", "type": "function", "function": {"name": "f", "arguments": {"b": 1}}},
    ]
    (message,) = read_messages({"role": "assistant", "content": None, "tool_calls": calls})
    calls = [block for block in message.content if isinstance(block, ToolUseBlock)]
    assert [block.input for block in calls] == [{"b": 1}, {}, {}, {"b": 1}]
    assert [block.invalid is None for block in calls] == [True, True, False, True]
    assert calls[2].invalid is not None
    assert calls[2].invalid.raw == '{"b":'


@pytest.mark.row("T32")
def test_invalid_arguments_are_sent_as_they_came() -> None:
    bad = ToolUseBlock(tool_id(), "f", {}, InvalidInput('{"b":', "not JSON"))
    (wire,) = write_messages(assistant(bad))
    assert wire["tool_calls"][0]["function"]["arguments"] == '{"b":'


def test_concatenated_arguments_are_stored_as_invalid() -> None:
    message = read_response(
        {"content": None, "tool_calls": [tool_call("a", "f", '{"a":1}{"b":2}')]}
    )
    (block,) = message.content
    assert isinstance(block, ToolUseBlock)
    assert block.invalid is not None


@pytest.mark.row("T09", "T10")
def test_equal_wire_ids_in_different_turns_are_different_calls() -> None:
    def call_and_result(wire_id: str, text: str) -> list[Wire]:
        call_message = {
            "role": "assistant",
            "content": None,
            "tool_calls": [tool_call(wire_id, "f", "{}")],
        }
        return [call_message, {"role": "tool", "tool_call_id": wire_id, "content": text}]

    for wire_id in ("functions.f:0", ""):
        messages = read_messages(*call_and_result(wire_id, "one"), *call_and_result(wire_id, "two"))
        call_ids = [
            block.id for m in messages for block in m.content if isinstance(block, ToolUseBlock)
        ]
        answered = [m.metadata.parent_tool_use_id for m in messages if m.role is Role.TOOL]
        assert len(set(call_ids)) == 2
        assert answered == call_ids


def test_ids_are_deterministic() -> None:
    wire = {"role": "assistant", "content": None, "tool_calls": [tool_call("Write:6", "f", "{}")]}
    assert read_messages(wire)[0].content == read_messages(wire)[0].content
    assert write_messages(*read_messages(wire)) == [wire]


@pytest.mark.row("T10")
def test_response_without_ids_is_sent_back_with_generated_ids() -> None:
    response = read_response({"tool_calls": [tool_call("", "f", "{}")]}, finish_reason="tool_calls")
    (block,) = response.content
    assert isinstance(block, ToolUseBlock)
    history = write_messages(response, tool("done", answers=block.id))
    assert history[0]["tool_calls"][0]["id"] == history[1]["tool_call_id"] == f"call_{block.id[3:]}"


@pytest.mark.row("T26")
def test_messages_of_other_protocols_are_encoded() -> None:
    failed = replace(
        tool("boom"), content=(ToolResultBlock(tool_id(), (TextBlock("boom"),), is_error=True),)
    )
    wire = write_messages(
        system("be brief"),
        user("hi"),
        assistant(ThinkingBlock("hm", "sig"), text("one"), text("two"), call("f", a=1)),
        failed,
    )
    wire_id = f"call_{tool_id()[3:]}"
    assert len(wire_id) <= 40
    assert wire == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}],
            "tool_calls": [tool_call(wire_id, "f", '{"a":1}')],
        },
        {"role": "tool", "tool_call_id": wire_id, "content": "Error: boom"},
    ]


@pytest.mark.row("T85")
def test_content_is_null_only_with_calls() -> None:
    (with_call,) = write_messages(assistant(call("f")))
    assert with_call["content"] is None
    (silent,) = write_messages(assistant(ThinkingBlock("hm")))
    assert silent == {"role": "assistant", "content": ""}


def test_original_form_is_dropped_when_block_has_changed() -> None:
    noted = {"type": "text", "text": "one", "note": "of a host"}
    user_wire = {"role": "user", "content": [noted, {"type": "text", "text": "two"}]}
    assistant_wire = {
        "role": "assistant",
        "content": None,
        "reasoning_content": "hm",
        "tool_calls": [tool_call("a", "f", '{ "b": 1 }')],
    }
    user_message, message = read_messages(user_wire, assistant_wire)
    changed = replace(user_message, content=(TextBlock("ONE"), user_message.content[1]))
    assert write_messages(changed)[0]["content"][0] == {"type": "text", "text": "ONE"}
    moved = replace(user_message, content=(TextBlock("new"), *user_message.content))
    assert write_messages(moved)[0]["content"][1] == noted
    bare = replace(message, content=message.content[1:])
    assert write_messages(bare) == [
        {key: assistant_wire[key] for key in assistant_wire if key[:3] != "rea"}
    ]
    block = message.content[-1]
    assert isinstance(block, ToolUseBlock)
    other = replace(message, content=(replace(block, input={"b": 2}),))
    assert write_messages(other)[0]["tool_calls"][0]["function"]["arguments"] == '{"b":2}'


# Options and tools

TOOL = ToolDefinition("f", "does f", {"type": "object", "properties": {}}, SideEffects.EXECUTE)


def tool_wire(**more: Any) -> Wire:
    function = {"name": "f", "description": "does f", "parameters": TOOL.input_schema, **more}
    return {"type": "function", "function": function}


@pytest.mark.row("T113", "T182")
def test_shared_options_are_read_and_written() -> None:
    request = {
        "model": "gpt-5",
        "messages": [],
        "max_completion_tokens": 9,
        "temperature": 0,
        "top_p": 0.5,
        "stop": ["a"],
        "stream": True,
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "parallel_tool_calls": False,
        "tools": [tool_wire()],
    }
    request_decoded = decode_request(as_json(request), CONTEXT)
    options = request_decoded.options
    assert request_decoded.tools == (TOOL,)
    assert options.max_output_tokens == 9
    assert options.temperature == 0
    assert options.stop_sequences == ("a",)
    assert options.tool_choice == ToolChoice("tool", "f")
    assert options.parallel_tool_calls is False
    fresh = replace(options, native={})
    assert json.loads(encode_request(CODEC, (), request_decoded.tools, fresh)) == request


@pytest.mark.row("T113")
@pytest.mark.parametrize(
    ("wire", "choice"),
    [
        ("auto", ToolChoice("auto")),
        ("none", ToolChoice("none")),
        ("required", ToolChoice("required")),
        ("any", ToolChoice("required")),
        ({"type": "allowed_tools", "allowed_tools": {}}, None),
    ],
)
def test_tool_choice_spellings_are_equivalent(wire: Any, choice: ToolChoice | None) -> None:
    request: Wire = {"model": "m", "messages": [], "tool_choice": wire}
    request_decoded = decode_request(as_json(request), CONTEXT)
    assert request_decoded.options.tool_choice == choice
    assert round_trip(request) == request


def test_changed_option_overrides_original_form() -> None:
    request: Wire = {
        "model": "m",
        "messages": [],
        "max_tokens": 5,
        "stop": "x",
        "seed": 1,
        "top_p": "?",
    }
    options = decode_request(as_json(request), CONTEXT).options
    assert options.stop_sequences == ("x",)
    changed = replace(options, max_output_tokens=7, stop_sequences=None, temperature=0.0)
    assert json.loads(encode_request(CODEC, (), (), changed)) == {
        "model": "m",
        "messages": [],
        "max_tokens": 7,
        "seed": 1,
        "top_p": "?",
        "temperature": 0.0,
    }


def test_provider_tools_stay_when_own_tools_change() -> None:
    host: Wire = {"type": "web_search", "parameters": {}}
    request: Wire = {"model": "m", "messages": [], "tools": [tool_wire(strict=True), host]}
    request_decoded = decode_request(as_json(request), CONTEXT)
    assert round_trip(request) == request
    other = replace(TOOL, description="other")
    body = json.loads(encode_request(CODEC, (), (other,), request_decoded.options))
    assert body["tools"] == [host, tool_wire(description="other")]


@pytest.mark.row("T114")
def test_parallel_tool_calls_is_omitted_without_tools() -> None:
    options = AdapterOptions(model="m", parallel_tool_calls=False)
    assert json.loads(encode_request(CODEC, (), (), options)) == {"model": "m", "messages": []}
    assert json.loads(encode_request(CODEC, (), (TOOL,), options))["parallel_tool_calls"] is False


# Responses


def test_response_has_provider_and_model() -> None:
    metadata = read_response({"content": "hi"}).metadata
    assert metadata.model == "openai:gpt-5"
    assert metadata.provider == "openai"
    assert metadata.response_id == "chatcmpl-1"
    assert metadata.usage is None
    assert metadata.stop_reason is StopReason.END_TURN


@pytest.mark.row("T52", "T55")
def test_reasoning_is_read_once_under_every_key() -> None:
    sealed = {
        "type": "reasoning.encrypted",
        "data": "gAAA",
        "id": "rs_1",
        "format": "o",
        "index": 1,
    }
    clear = {"type": "reasoning.text", "text": "hm", "signature": "s", "format": "a", "index": 0}
    cases: list[tuple[Wire, list[ContentBlock]]] = [
        ({"reasoning_content": "hm"}, [ThinkingBlock("hm", issuer=PROTOCOL)]),
        ({"reasoning": "hm"}, [ThinkingBlock("hm", issuer=PROTOCOL)]),
        (
            {"reasoning": "hm", "reasoning_details": [clear, sealed]},
            [
                ThinkingBlock("hm", "s", format="a", issuer=PROTOCOL),
                RedactedThinkingBlock("gAAA", "rs_1", "o", PROTOCOL),
            ],
        ),
        (
            {"reasoning": "hm", "reasoning_details": [sealed]},
            [
                ThinkingBlock("hm", issuer=PROTOCOL),
                RedactedThinkingBlock("gAAA", "rs_1", "o", PROTOCOL),
            ],
        ),
    ]
    for wire, thoughts in cases:
        message = read_response({**wire, "content": "4"})
        assert list(message.content) == [*thoughts, TextBlock("4")]
        assert write_messages(message) == [{"role": "assistant", "content": "4", **wire}]


@pytest.mark.row("T54")
def test_thinking_chunks_keep_their_position() -> None:
    chunk = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}], "closed": True}
    content = [chunk, {"type": "text", "text": "4"}]
    message = read_response({"content": content})
    assert message.content == (ThinkingBlock("hm", issuer=PROTOCOL), TextBlock("4"))
    assert write_messages(message) == [{"role": "assistant", "content": content}]


@pytest.mark.row("T119", "T159")
def test_refusal_has_its_own_stop_reason() -> None:
    message = read_response({"content": None, "refusal": "I cannot."})
    assert message.content == (TextBlock("I cannot."),)
    assert message.metadata.stop_reason is StopReason.REFUSAL


@pytest.mark.row("T163")
def test_tool_calls_and_legacy_function_calls_are_decoded() -> None:
    new = read_response({"content": None, "tool_calls": [tool_call("a", "f", "{}")]})
    old = read_response({"content": None, "function_call": {"name": "f", "arguments": '{"a": 1}'}})
    custom = {"id": "c", "type": "custom", "custom": {"name": "sql", "input": "SELECT 1"}}
    free = read_response({"content": None, "tool_calls": [custom]})
    for message, arguments in ((new, {}), (old, {"a": 1}), (free, {"input": "SELECT 1"})):
        (block,) = message.content
        assert isinstance(block, ToolUseBlock)
        assert block.input == arguments
        assert message.metadata.stop_reason is StopReason.TOOL_USE


def test_legacy_function_call_is_answered_by_name() -> None:
    call_wire = {
        "role": "assistant",
        "content": None,
        "function_call": {"name": "f", "arguments": ""},
    }
    result_wire = {"role": "function", "name": "f", "content": "4"}
    call_message, result_message = read_messages(call_wire, result_wire)
    (block,) = call_message.content
    assert isinstance(block, ToolUseBlock)
    assert result_message.metadata.parent_tool_use_id == block.id
    assert write_messages(call_message, result_message) == [call_wire, result_wire]


def test_citations_audio_and_images_are_decoded() -> None:
    note = {"type": "url_citation", "url_citation": {"url": "u", "title": "t", "start_index": 0}}
    cited = read_response({"content": "see", "annotations": [note]})
    (block,) = cited.content
    assert isinstance(block, TextBlock)
    assert [(c.kind, c.url, c.title, c.start) for c in block.citations] == [
        ("url_citation", "u", "t", 0)
    ]
    voice = {"id": "audio_1", "data": "aGk=", "transcript": "hi", "expires_at": 1}
    content = read_response({"content": None, "audio": voice}).content
    assert content == (
        ArtifactBlock(MediaSource("base64", "aGk="), "audio/*", id="audio_1", transcript="hi"),
    )
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}, "index": 0}
    drawn = read_response({"content": "", "images": [picture]}).content
    assert drawn == (ArtifactBlock(MediaSource("base64", "aGk="), "image/png"),)


def test_several_choices_and_logprobs_round_trip() -> None:
    body = response_body(
        {"role": "assistant", "content": "a"}, logprobs={"content": [{"token": "a"}]}
    )
    body["choices"].append({"index": 1, "message": {"content": "b"}, "finish_reason": "stop"})
    message = decode_response(body, CONTEXT)
    assert message.content == (TextBlock("a"),)
    assert json.loads(encode_response(message, CONTEXT)) == body


@pytest.mark.row("T139", "T164", "T165")
@pytest.mark.parametrize(
    ("choice", "reason"),
    [
        ({"finish_reason": "length"}, StopReason.MAX_TOKENS),
        ({"finish_reason": "content_filter"}, StopReason.CONTENT_FILTER),
        ({"finish_reason": "sensitive"}, StopReason.CONTENT_FILTER),
        ({"finish_reason": "eos"}, StopReason.END_TURN),
        ({"finish_reason": "new"}, StopReason.UNKNOWN),
        ({"finish_reason": None}, StopReason.UNKNOWN),
        ({"native_finish_reason": "stop_sequence"}, StopReason.STOP_SEQUENCE),
        ({"stop_reason": "###"}, StopReason.STOP_SEQUENCE),
    ],
)
def test_stop_reasons_are_mapped_and_original_words_preserved(
    choice: Wire, reason: StopReason
) -> None:
    assert read_response({"content": "a"}, **choice).metadata.stop_reason is reason


@pytest.mark.row("T139")
def test_response_cut_at_limit_with_calls_stays_cut() -> None:
    calls = [tool_call("a", "f", "{}")]
    message = read_response({"content": None, "tool_calls": calls}, finish_reason="length")
    assert message.metadata.stop_reason is StopReason.MAX_TOKENS


@pytest.mark.row("T162")
def test_response_that_ends_in_error_is_not_end_turn() -> None:
    metadata = read_response({"content": "par"}, finish_reason="error").metadata
    assert metadata.status is MessageStatus.ERROR
    body = response_body(
        {"role": "assistant", "content": ""}, error={"code": 502, "message": "down"}
    )
    with pytest.raises(ServerError):
        decode_response(body, CONTEXT)


USAGES: list[tuple[Wire, dict[str, Any]]] = [
    (
        {
            "prompt_tokens": 10,
            "completion_tokens": 5,
            "total_tokens": 15,
            "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 3},
            "completion_tokens_details": {"reasoning_tokens": 2},
            "cost": 0.0133176,
            "server_tool_use_details": {"web_search_requests": 1},
        },
        {
            "input_tokens": 3,
            "cached_input_tokens": 4,
            "cache_creation_input_tokens": 3,
            "output_tokens": 5,
            "reasoning_output_tokens": 2,
            "reported_cost_usd": Decimal("0.0133176"),
            "server_tool_requests": {"web_search": 1},
        },
    ),
    (
        {"prompt_tokens": 3, "completion_tokens": 1, "prompt_cache_hit_tokens": 2},
        {"input_tokens": 1, "cached_input_tokens": 2},
    ),
    (
        {"prompt_tokens": 3, "completion_tokens": 1, "num_cached_tokens": 9},
        {"input_tokens": 3, "cached_input_tokens": 9},
    ),
    (
        {
            "prompt_tokens": 3,
            "completion_tokens": 1,
            "total_tokens": 390,
            "completion_tokens_details": {"reasoning_tokens": 386},
        },
        {"output_tokens": 387, "reasoning_output_tokens": 386},
    ),
    (
        {
            "prompt_tokens": 3,
            "completion_tokens": 1,
            "total_tokens": 4,
            "completion_tokens_details": {"reasoning_tokens": 5},
        },
        {"output_tokens": 1, "reasoning_output_tokens": 1},
    ),
]


@pytest.mark.row("T142", "T143", "T144", "T147", "T157")
@pytest.mark.parametrize(("wire", "expected"), USAGES)
def test_usage_is_a_set_of_disjoint_buckets(wire: Wire, expected: dict[str, Any]) -> None:
    body = {
        **response_body({"role": "assistant", "content": "a"}),
        "usage": wire,
        "service_tier": "flex",
    }
    usage = decode_response(body, CONTEXT).metadata.usage
    assert usage is not None
    assert {name: getattr(usage, name) for name in expected} == expected
    assert usage.service_tier == "flex"


@pytest.mark.row("T153")
@pytest.mark.parametrize("usage", [None, {}, {"prompt_tokens": None}, "?"])
def test_missing_usage_is_unknown(usage: Any) -> None:
    body = {**response_body({"role": "assistant", "content": "a"}), "usage": usage}
    assert decode_response(body, CONTEXT).metadata.usage is None


def test_response_of_another_provider_is_encoded() -> None:
    message = assistant(ThinkingBlock("hm", "sig"), text("hi"), call("f", a=1))
    message = replace(message, metadata=replace(message.metadata, stop_reason=StopReason.TOOL_USE))
    body = json.loads(encode_response(message, CONTEXT))
    assert body["object"] == "chat.completion"
    assert body["choices"] == [
        {
            "index": 0,
            "logprobs": None,
            "finish_reason": "tool_calls",
            "message": {
                "role": "assistant",
                "content": "hi",
                "reasoning_content": "hm",
                "reasoning_details": [
                    {"type": "reasoning.text", "text": "hm", "signature": "sig", "index": 0}
                ],
                "tool_calls": [tool_call(f"call_{tool_id()[3:]}", "f", '{"a":1}')],
            },
        }
    ]


# Errors

ERRORS: list[tuple[int | None, Any, type[ProviderError]]] = [
    (401, {"error": {"message": "no", "code": "invalid_api_key"}}, AuthenticationError),
    (403, {"error": "forbidden"}, AuthenticationError),
    (408, {}, NetworkError),
    (413, {"message": "large"}, ContextOverflowError),
    (429, {"error": {"message": "slow", "type": "requests"}}, RateLimitError),
    (500, {"error": {"message": "oops", "type": "server_error"}}, ServerError),
    (529, {"error": {"message": "busy"}}, RateLimitError),
    (400, {"error": {"message": "?", "code": "context_length_exceeded"}}, ContextOverflowError),
    (400, {"error": {"message": "?", "code": "string_above_max_length"}}, ContextOverflowError),
    (
        400,
        {"object": "error", "message": "This model's maximum context length is 4096 tokens."},
        ContextOverflowError,
    ),
    (
        400,
        {"error": {"message": "the request exceeds the available context size"}},
        ContextOverflowError,
    ),
    (400, {"error": {"message": "Too many tokens, please wait"}}, RateLimitError),
    (422, {"detail": [{"msg": "field required"}]}, InvalidRequestError),
    (200, {"error": {"message": "down", "code": 502}}, ServerError),
    (None, {"error": {"message": "bad", "type": "invalid_request_error"}}, InvalidRequestError),
]


@pytest.mark.row("T186", "T189")
@pytest.mark.parametrize(("status", "body", "kind"), ERRORS)
def test_error_bodies_become_typed_errors(
    status: int | None, body: Any, kind: type[ProviderError]
) -> None:
    assert type(decode_error(as_json(body), status)) is kind


@pytest.mark.row("T187")
@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("Please try again in 1.5s.", 1.5),
        ("Please try again in 20ms.", 0.02),
        ("Please try again in 2m.", 120.0),
        ("retry after 30 seconds", 30.0),
        ('"retryDelay": "45.837906927s"', 45.837906927),
        ("slow down", None),
    ],
)
def test_retry_delay_is_read_from_error_message(text: str, seconds: float | None) -> None:
    error = decode_error({"error": {"message": text}}, 429)
    assert error.retry_after_s == (None if seconds is None else pytest.approx(seconds))
    assert error.is_retryable


@pytest.mark.row("T187")
def test_exhausted_quota_is_not_retried() -> None:
    error = decode_error({"error": {"message": "pay", "code": "insufficient_quota"}}, 429)
    assert isinstance(error, RateLimitError)
    assert not error.is_retryable


@pytest.mark.row("T189")
def test_error_body_with_status_200_is_an_error() -> None:
    with pytest.raises(RateLimitError) as caught:
        decode_response(as_json({"error": {"message": "busy", "code": 429}}), CONTEXT)
    assert caught.value.status == 429


def test_error_messages_round_trip() -> None:
    body = {"error": {"message": "no (req_0123456789ab)", "type": "t", "param": None, "code": "c"}}
    error = decode_error(as_json(body), 418, "groq")
    assert (error.status, error.code, error.kind) == (418, "c", "t")
    assert error.request_id == "req_0123456789ab"
    assert error.provider == "groq"
    status, again = encode_error(error)
    assert (status, json.loads(again)) == (418, body)
    assert encode_error(ContextOverflowError("long"))[0] == 400


def test_body_that_is_not_json_is_an_error_with_its_text() -> None:
    with pytest.raises(ServerError) as caught:
        decode_response(b"<html>Bad gateway</html>", RequestContext(status=502))
    assert caught.value.text == "<html>Bad gateway</html>"


# Any input

LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
)
NAMES = (
    "role content type text tool_calls id function name arguments refusal audio annotations tools "
    "reasoning reasoning_details data signature choices message messages usage error code stop "
    "finish_reason index delta image_url url thinking function_call tool_call_id images"
)
KEYS = st.sampled_from(NAMES.split())
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5)
)
ROLES = st.sampled_from(["system", "developer", "user", "assistant", "tool", "function"])


def _with_role(role: str, rest: Wire) -> Wire:
    return {**rest, "role": role}


MESSAGES = st.builds(_with_role, ROLES, st.dictionaries(KEYS, VALUES, max_size=6))


def survives(action: Callable[[], object]) -> None:
    with suppress(MetisError):
        action()


@given(st.binary(max_size=40) | VALUES.map(as_json))
def test_any_bytes_give_value_or_typed_error(body: bytes) -> None:
    survives(lambda: decode_request(body, CONTEXT))
    survives(lambda: decode_response(body, CONTEXT))
    survives(lambda: decode_response(body, RequestContext(status=400)))


@given(st.lists(MESSAGES, max_size=4), st.dictionaries(KEYS, VALUES, max_size=4))
def test_any_request_round_trips_or_is_refused(messages: list[Wire], rest: Wire) -> None:
    request = {**rest, "messages": messages}
    survives(lambda: _same(round_trip(request), request))


@given(st.dictionaries(KEYS, VALUES, max_size=6), st.dictionaries(KEYS, VALUES, max_size=4))
def test_any_response_round_trips_or_is_refused(message: Wire, choice: Wire) -> None:
    body = {"choices": [{**choice, "message": message}]}

    def round_trip_body() -> None:
        decoded = decode_response(as_json(body), CONTEXT)
        _same(json.loads(encode_response(decoded, CONTEXT)), body)
        write_messages(decoded)

    survives(round_trip_body)


def _same(decoded: Wire, expected: Wire) -> None:
    assert decoded == expected


def test_opaque_parts_go_to_their_issuer_only() -> None:
    openai, other = adapters.get("openai"), adapters.get("openai-compatible")
    body = {
        "messages": [{"role": "user", "content": [{"type": "new"}, {"type": "text", "text": "a"}]}]
    }
    (message,) = openai.from_wire_request(body).messages
    (block, _) = message.content
    assert isinstance(block, OpaqueBlock)
    assert block.issuer == "openai"
    assert json.loads(openai.to_wire([message]).body)["messages"] == body["messages"]
    away = other.to_wire([message])
    assert json.loads(away.body)["messages"] == [{"role": "user", "content": "a"}]
    assert [loss.reason for loss in away.losses] == ["only openai can read it"]


def test_response_omits_opaque_parts_of_other_providers() -> None:
    body = {"choices": [{"message": {"role": "assistant", "content": [{"type": "new"}]}}]}
    response_body = adapters.get("openai-compatible").from_wire_response(body)
    assert b"new" in adapters.get("openai-compatible").to_wire_response(response_body)
    assert b"new" not in adapters.get("openai").to_wire_response(response_body)


@pytest.mark.row("G-009")
def test_file_bytes_without_name_get_one_unless_client_omitted_it() -> None:
    """OpenAI refuses file bytes without a file name."""
    data = "data:application/pdf;base64,JVBERi0xLjQK"
    document = DocumentBlock(MediaSource("base64", "JVBERi0xLjQK"), "application/pdf")
    body = json.loads(adapters.get("openai").to_wire([user(document)]).body)
    (part,) = body["messages"][0]["content"]
    assert part["file"] == {"file_data": data, "filename": "document.pdf"}
    message = {"role": "user", "content": [{"type": "file", "file": {"file_data": data}}]}
    request = adapters.get("openai").from_wire_request({"model": "gpt-5", "messages": [message]})
    again = adapters.get("openai").to_wire(request.messages, (), request.options)
    assert json.loads(again.body)["messages"] == [message]


FUNCTION = {"name": "f", "arguments": "{}"}


@pytest.mark.row("T212")
@pytest.mark.parametrize(
    ("entry", "kind"),
    [
        ({"type": "function", "function": FUNCTION}, "tool_use"),
        ({"id": "", "type": "function", "function": FUNCTION}, "tool_use"),
        ({"id": "a", "type": "function", "function": {"arguments": "{}"}}, "opaque"),
        ({"id": "a", "type": "function"}, "opaque"),
    ],
)
def test_client_call_without_id_or_name_is_preserved(entry: dict[str, Any], kind: str) -> None:
    wire_message = {"role": "assistant", "content": "so", "tool_calls": [entry]}
    turns = [{"role": "user", "content": "q"}, wire_message, {"role": "user", "content": "on"}]
    client = adapters.get("openai")
    context = RequestContext(session_id="sess_1")
    messages = client.from_wire_request({"model": "m", "messages": turns}, context).messages
    assert [block.type for block in messages[1].content] == ["text", kind]
    assert json.loads(client.to_wire(messages).body)["messages"][1] == wire_message
    other = adapters.get("anthropic").to_wire(messages)
    parts = json.loads(other.body)["messages"][1]["content"]
    if kind == "tool_use":
        assert [part["type"] for part in parts] == ["text", "tool_use"]
    else:
        assert parts == [{"type": "text", "text": "so"}]
        assert [(loss.path, loss.change) for loss in other.losses] == [("$.content[1]", "dropped")]
