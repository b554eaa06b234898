"""Ollama requests, responses and errors in both directions."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from ollama._types import ChatResponse, GenerateResponse

from build import assistant, call, image, numbered, system, text, thinking, tool, tool_id, user
from corpus import body_of, exchanges, needs_corpus, needs_whole_corpus, requests, responses
from judges import complaints
from metis import adapters
from metis.canonical import (
    ArtifactBlock,
    ImageBlock,
    Message,
    MetisError,
    OpaqueBlock,
    Role,
    StopReason,
    TextBlock,
    ThinkingBlock,
    ToolDefinition,
    ToolResultBlock,
    ToolUseBlock,
    decode,
    encode,
)
from metis.canonical.errors import (
    AuthenticationError,
    ContextOverflowError,
    DecodeError,
    InvalidRequestError,
    ProviderError,
    RateLimitError,
    ServerError,
)
from metis.wire.call import AdapterOptions, RequestContext, ToolChoice
from metis.wire.json_access import Wire
from metis.wire.ollama.codec import CODEC
from metis.wire.ollama.request import decode_request
from metis.wire.ollama.response import decode_error, decode_response, encode_error, encode_response
from strategies import json_objects
from wire.encoding import encode_request

CONTEXT = RequestContext(session_id="sess_test")
OLLAMA = adapters.get("ollama")

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ"
JPEG = "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAAEB"
PROMPT: Wire = {"role": "user", "content": "go"}
CALL: Wire = {"function": {"name": "f", "arguments": {"a": 1}}}
OTHER: Wire = {"function": {"name": "g", "arguments": {}}}
CALLED = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT = {"role": "tool", "content": "ok", "tool_name": "f"}
SCHEMA = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
TOOL = {
    "type": "function",
    "function": {"name": "f", "description": "Does f.", "parameters": SCHEMA},
}


def chat(*messages: Wire, **options: Any) -> Wire:
    return {"model": "qwen3", "messages": list(messages), **options}


def numbered_call(index: int, wire_id: str, name: str = "f") -> Wire:
    return {"id": wire_id, "function": {"index": index, "name": name, "arguments": {"n": index}}}


REQUESTS: dict[str, Wire] = {
    "text": chat(PROMPT),
    "system": chat({"role": "system", "content": "be brief"}, PROMPT),
    "system in the middle": chat(PROMPT, {"role": "system", "content": "now"}, PROMPT),
    "empty content": chat({"role": "user", "content": ""}),
    "no content": chat({"role": "assistant", "tool_calls": [CALL]}, RESULT),
    "null content": chat({"role": "assistant", "content": None, "tool_calls": [CALL]}, RESULT),
    "images": chat({**PROMPT, "images": [PNG, JPEG]}),
    "no images": chat({**PROMPT, "images": []}),
    "image as a data URL": chat({**PROMPT, "images": [f"data:image/png;base64,{PNG}"]}),
    "image of the system": chat({"role": "system", "content": "see", "images": [PNG]}, PROMPT),
    "image of a result": chat(PROMPT, CALLED, {**RESULT, "images": [PNG]}),
    "image of an answer": chat(PROMPT, {"role": "assistant", "content": "here", "images": [PNG]}),
    "thinking": chat(PROMPT, {"role": "assistant", "content": "hi", "thinking": "hm"}, PROMPT),
    "empty thinking": chat(PROMPT, {"role": "assistant", "content": "hi", "thinking": ""}),
    "calls without ids": chat(PROMPT, CALLED, RESULT),
    "result without a name": chat(PROMPT, CALLED, {"role": "tool", "content": "ok"}),
    "result under the old key": chat(
        PROMPT, CALLED, {"role": "tool", "content": "ok", "name": "f"}
    ),
    "parallel calls of one tool": chat(
        PROMPT,
        {**CALLED, "tool_calls": [CALL, CALL]},
        {**RESULT, "content": "1"},
        {**RESULT, "content": "2"},
    ),
    "results out of order": chat(
        PROMPT,
        {**CALLED, "tool_calls": [CALL, OTHER]},
        {**RESULT, "tool_name": "g"},
        RESULT,
    ),
    "calls with ids and indexes": chat(
        PROMPT,
        {**CALLED, "tool_calls": [numbered_call(0, "call_a"), numbered_call(1, "call_b")]},
        {**RESULT, "tool_call_id": "call_b"},
        {**RESULT, "tool_call_id": "call_a"},
    ),
    "result by its id alone": chat(
        PROMPT,
        {**CALLED, "tool_calls": [numbered_call(0, "call_a")]},
        {"role": "tool", "content": "ok", "tool_call_id": "call_a"},
    ),
    "arguments as text": chat(
        PROMPT,
        {**CALLED, "tool_calls": [{"function": {"name": "f", "arguments": '{"a":1}'}}]},
        RESULT,
    ),
    "broken arguments": chat(
        PROMPT, {**CALLED, "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}, RESULT
    ),
    "a call of a kind": chat(
        PROMPT, {**CALLED, "tool_calls": [{**CALL, "type": "function"}]}, RESULT
    ),
    "a call of nothing": chat(PROMPT, {**CALLED, "tool_calls": [{"function": {}}, CALL]}, RESULT),
    "tools": chat(PROMPT, tools=[TOOL]),
    "no tools": chat(PROMPT, tools=[]),
    "a tool of another kind": chat(PROMPT, tools=[{"type": "web_search"}, TOOL]),
    "options": chat(PROMPT, options={"temperature": 0, "stop": ["x"], "num_predict": 9, "seed": 1}),
    "endless output": chat(PROMPT, options={"num_predict": -1, "stop": []}),
    "no options": chat(PROMPT, options={}, keep_alive=None),
    "null options": chat(PROMPT, options=None),
    "keys that look like nested ones": chat(PROMPT, **{"options.seed": 1, ".x": 2, "..": 3}),
    "a prompt beside a chat": chat(PROMPT, prompt="x", system="y", raw=True),
    "formats": chat(PROMPT, format=SCHEMA, think="high", keep_alive="5m", stream=False),
    "streaming": chat(PROMPT, stream=True),
    "unknown keys": chat({**PROMPT, "mood": "calm"}, speed="fast", truncate=True),
    "prompt": {"model": "llama3", "prompt": "why?"},
    "prompt with everything": {
        "model": "llama3",
        "prompt": "why?",
        "system": "be brief",
        "images": [PNG],
        "suffix": "}",
        "template": "t",
        "context": [1, 2],
        "raw": True,
        "options": {"seed": 4},
    },
    "empty prompt": {"model": "llama3", "prompt": "", "system": "", "images": [], "context": []},
    "null prompt": {"model": "llama3", "prompt": None},
    "prompt with a data URL": {"prompt": "x", "images": [f"data:image/png;base64,{PNG}"]},
}


def round_trip_body(request: Wire) -> Any:
    read = decode_request(body_of(request), CONTEXT)
    stored = [decode(encode(message)) for message in read.messages]
    return json.loads(encode_request(CODEC, stored, read.tools, read.options))


@pytest.mark.parametrize("request_body", REQUESTS.values(), ids=REQUESTS)
def test_request_round_trip(request_body: Wire) -> None:
    assert round_trip_body(request_body) == request_body
    request = OLLAMA.from_wire_request(request_body, CONTEXT)
    wire = OLLAMA.to_wire(request.messages, request.tools, request.options)
    assert json.loads(wire.body) == request_body
    assert wire.losses == []
    assert wire.path == ("/api/chat" if "messages" in request_body else "/api/generate")


def test_empty_result_round_trip() -> None:
    request = chat(PROMPT, {**RESULT, "tool_name": "unheard_of"}, CALLED)
    assert round_trip_body(request) == request


@needs_corpus
def test_recorded_requests_keep_their_path() -> None:
    for exchange in exchanges("ollama"):
        request = OLLAMA.from_wire_request(exchange["request"], CONTEXT)
        wire = OLLAMA.to_wire(request.messages, request.tools, request.options)
        assert wire.path == exchange["url_path"]
        assert json.loads(wire.body) == exchange["request"]


def blocks(request: Wire) -> list[tuple[Any, ...]]:
    return [message.content for message in decode_request(body_of(request), CONTEXT).messages]


def test_image_type_is_detected_from_first_bytes() -> None:
    ((_, png, jpeg),) = blocks(REQUESTS["images"])
    assert (png.media_type, jpeg.media_type) == ("image/png", "image/jpeg")
    assert png.source.data == PNG
    ((image,),) = blocks(chat({"role": "user", "content": "", "images": ["????"]}))
    assert image.media_type == "application/octet-stream"
    assert isinstance(image, ImageBlock)


@pytest.mark.row("T94")
def test_data_url_prefix_is_removed_from_image() -> None:
    ((_, picture),) = blocks(REQUESTS["image as a data URL"])
    assert picture == ImageBlock(source=picture.source, media_type="image/png")
    assert picture.source.data == PNG
    sent = body_to(user("see", image(PNG)), model="llama4")
    assert sent["messages"] == [{"role": "user", "content": "see", "images": [PNG]}]


@pytest.mark.row("T92")
def test_an_image_by_url_is_not_sent() -> None:
    picture = image()
    by_url = replace(picture, source=replace(picture.source, kind="url", data="https://x/y.png"))
    wire = OLLAMA.to_wire([user("see", by_url)], (), AdapterOptions(model="llama4"))
    assert "images" not in json.loads(wire.body)["messages"][0]
    assert [loss.reason for loss in wire.losses] == [
        "image is not accepted by URL; replaced by a note"
    ]


def body_to(*messages: Message, model: str | None = None, **options: Any) -> Any:
    sent = OLLAMA.to_wire(numbered(*messages), (), AdapterOptions(model=model, **options))
    return json.loads(sent.body)


@pytest.mark.row("T33")
def test_arguments_are_always_an_object() -> None:
    _, (as_text,), _ = blocks(REQUESTS["arguments as text"])
    assert as_text.input == {"a": 1}
    _, (broken,), _ = blocks(REQUESTS["broken arguments"])
    assert broken.input == {}
    assert broken.invalid.raw == "{"
    first = call("f", a=1)
    sent = body_to(user("go"), assistant(first), tool("ok", answers=first.id))
    assert sent["messages"][1:] == [CALLED, RESULT]


@pytest.mark.row("M-171", "T10", "T13")
def test_calls_without_wire_ids_get_distinct_stable_ids() -> None:
    request = REQUESTS["parallel calls of one tool"]
    _, (one, two), (first,), (second,) = blocks(request)
    assert one.id != two.id
    assert (first.tool_use_id, second.tool_use_id) == (one.id, two.id)
    assert blocks(request) == blocks(request)
    longer = {**request, "messages": [*request["messages"], CALLED, RESULT]}
    assert blocks(longer)[:4] == blocks(request)
    assert blocks(longer)[4][0].id not in {one.id, two.id}


@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("results out of order", [1, 0]),
        ("calls with ids and indexes", [1, 0]),
        ("result without a name", [0]),
        ("result under the old key", [0]),
        ("result by its id alone", [0]),
    ],
)
def test_result_is_matched_to_call_by_id_name_or_order(name: str, order: list[int]) -> None:
    _, calls, *results = blocks(REQUESTS[name])
    assert [result.tool_use_id for (result,) in results] == [calls[n].id for n in order]


def test_unanswered_call_gets_no_result_of_a_later_turn() -> None:
    _, (lost,), _, (later,), (result,) = blocks(
        chat(PROMPT, CALLED, PROMPT, CALLED, {"role": "tool", "content": "ok"})
    )
    assert result.tool_use_id == later.id != lost.id


def test_results_without_ids_are_sent_in_the_order_of_their_calls() -> None:
    one, two = call("f", tool_id(1), n=1), call("f", tool_id(2), n=2)
    sent = body_to(
        user("go"), assistant(one, two), tool("2", answers=two.id), tool("1", answers=one.id)
    )
    assert [message["content"] for message in sent["messages"] if message["role"] == "tool"] == [
        "1",
        "2",
    ]


@pytest.mark.row("T26")
def test_failed_result_states_error_in_text() -> None:
    failed = call("f")
    result = ToolResultBlock(failed.id, (TextBlock("no such file"),), is_error=True)
    history = [
        user("go"),
        assistant(failed),
        replace(tool("x", answers=failed.id), content=(result,)),
    ]
    assert body_to(*history)["messages"][2]["content"] == "Error: no such file"


@pytest.mark.row("T86")
def test_several_texts_become_one_string() -> None:
    sent = body_to(user("one", "two"), assistant(text("a"), text("b")), user("three"))
    assert [message["content"] for message in sent["messages"]] == ["one\n\ntwo", "ab", "three"]


@pytest.mark.row("T73")
@pytest.mark.parametrize("model", [None, "qwen3", "unheard-of"])
def test_late_instructions_keep_their_place_in_user_turn(model: str | None) -> None:
    sent = body_to(system("lead"), user("go"), assistant("yes"), system("late"), model=model)
    assert [message["role"] for message in sent["messages"]] == [
        "system",
        "user",
        "assistant",
        "user",
    ]
    assert "late" in sent["messages"][3]["content"]


@pytest.mark.row("T52")
def test_own_thinking_is_sent_back_and_foreign_thinking_is_a_loss() -> None:
    native = replace(thinking("hm"), issuer="ollama")
    foreign = replace(thinking("hm"), issuer="anthropic", signature="s")
    talk = [user("go"), assistant(native, "yes"), assistant(foreign, "no"), user("on")]
    wire = OLLAMA.to_wire(talk, (), AdapterOptions(model="qwen3"))
    first, second = json.loads(wire.body)["messages"][1:3]
    assert first == {"role": "assistant", "content": "yes", "thinking": "hm"}
    assert second == {"role": "assistant", "content": "no"}
    assert [loss.reason for loss in wire.losses] == ["it was sealed by anthropic"]


def test_shared_options_are_encoded() -> None:
    read = decode_request(body_of(REQUESTS["options"]), CONTEXT).options
    assert (read.model, read.temperature, read.max_output_tokens) == ("qwen3", 0, 9)
    assert (read.stop_sequences, read.stream) == (("x",), True)
    sent = body_to(user("x"), max_output_tokens=5, top_k=3, top_p=0.5, stop_sequences=("y",))
    assert sent["options"] == {"num_predict": 5, "top_k": 3, "top_p": 0.5, "stop": ["y"]}
    assert sent["stream"] is False
    assert body_to(user("x"), stream=True)["stream"] is True


def test_changed_option_overrides_original_form() -> None:
    request = decode_request(body_of(REQUESTS["options"]), CONTEXT)
    changed = replace(request.options, max_output_tokens=2, stop_sequences=None, stream=False)
    sent = json.loads(encode_request(CODEC, request.messages, (), changed))
    assert sent["options"] == {"temperature": 0, "num_predict": 2, "seed": 1}
    assert sent["stream"] is False


def test_ollama_only_options_are_single_losses() -> None:
    body = chat(PROMPT, options={"seed": 1, "temperature": 1}, think=True, format="", template="")
    request = OLLAMA.from_wire_request(body, CONTEXT)
    wire = adapters.get("openai").to_wire(
        request.messages, request.tools, replace(request.options, model="gpt-4o")
    )
    assert sorted(loss.path for loss in wire.losses) == ["$.options.seed", "$.reasoning"]
    assert json.loads(wire.body)["stream"] is True
    assert json.loads(wire.body)["temperature"] == 1


def test_tool_choice_is_a_loss() -> None:
    wire = OLLAMA.to_wire([user("x")], (), AdapterOptions(tool_choice=ToolChoice("required")))
    assert [loss.reason for loss in wire.losses] == ["tool_choice is not supported by ollama"]


def test_continued_generate_prompt_becomes_chat_with_losses() -> None:
    request = OLLAMA.from_wire_request(REQUESTS["prompt with everything"], CONTEXT)
    more = [*request.messages, assistant("so"), user("and?")]
    wire = OLLAMA.to_wire(more, (), replace(request.options, model="llama4"))
    body = json.loads(wire.body)
    assert wire.path == "/api/chat"
    assert [message["role"] for message in body["messages"]] == [
        "system",
        "user",
        "assistant",
        "user",
    ]
    assert body["messages"][1]["images"] == [PNG]
    assert complaints("ollama", body) == []
    assert [loss.path for loss in wire.losses] == [
        "$.context",
        "$.raw",
        "$.suffix",
        "$.template",
    ]


def test_changed_generate_prompt_stays_generate() -> None:
    request = decode_request(body_of(REQUESTS["prompt with everything"]), CONTEXT)
    changed = [replace(message, content=(TextBlock("new"),)) for message in request.messages]
    sent = json.loads(encode_request(CODEC, changed, (), request.options))
    assert (sent["prompt"], sent["system"], sent["images"]) == ("new", "new", [])
    assert complaints("ollama prompt", sent) == []


def test_generate_prompt_with_tools_becomes_chat() -> None:
    request = OLLAMA.from_wire_request(REQUESTS["prompt"], CONTEXT)
    definition = ToolDefinition("f", "Does f.", SCHEMA, "read")  # pyright: ignore[reportArgumentType] - tidied
    wire = OLLAMA.to_wire(request.messages, (definition,), replace(request.options, model="qwen3"))
    assert wire.path == "/api/chat"
    assert json.loads(wire.body)["tools"] == [TOOL]


@needs_corpus
@pytest.mark.row("M-224")
@pytest.mark.parametrize("source", ["anthropic", "openai"])
def test_sdk_accepts_recorded_requests_of_others_for_vision_model(source: str) -> None:
    files = {"anthropic": "anthropic_messages", "openai": "openai_chat"}
    for key, body in requests(files[source]):
        if "messages" not in body:
            continue
        request = adapters.get(source).from_wire_request(body, CONTEXT)
        options = replace(request.options, model="llama4", stream=None)
        wire = OLLAMA.to_wire(request.messages, request.tools, options)
        assert complaints("ollama", json.loads(wire.body)) == [], key


ENVELOPE = {
    "model": "qwen3",
    "created_at": "2026-05-08T12:00:00.123456789Z",
    "done": True,
    "done_reason": "stop",
    "total_duration": 2_685_412_125,
    "load_duration": 3_494_667,
    "prompt_eval_count": 11,
    "prompt_eval_duration": 149_512_000,
    "eval_count": 79,
    "eval_duration": 2_530_305_000,
}
MESSAGE = {"role": "assistant", "content": "hi"}
RESPONSES: dict[str, Wire] = {
    "text": {**ENVELOPE, "message": MESSAGE},
    "nothing": {**ENVELOPE, "message": {**MESSAGE, "content": ""}},
    "thinking": {**ENVELOPE, "message": {**MESSAGE, "thinking": "hm"}},
    "calls": {**ENVELOPE, "message": {**MESSAGE, "content": "", "tool_calls": [CALL, CALL]}},
    "calls with ids": {
        **ENVELOPE,
        "message": {
            **MESSAGE,
            "tool_calls": [numbered_call(0, "call_a"), numbered_call(1, "call_b")],
        },
    },
    "everything": {
        **ENVELOPE,
        "message": {**MESSAGE, "thinking": "hm", "tool_calls": [CALL], "images": [PNG]},
    },
    "odd keys": {**ENVELOPE, "message": {**MESSAGE, "mood": "calm", "tool_calls": []}, "x": [None]},
    "another role": {**ENVELOPE, "message": {**MESSAGE, "role": "tool"}},
    "logprobs": {**ENVELOPE, "message": MESSAGE, "logprobs": [{"token": "hi", "logprob": -0.1}]},
    "loaded": {"model": "m", "message": {**MESSAGE, "content": ""}, "done": True},
    "completion": {**ENVELOPE, "response": "hi", "context": [1, 2, 3]},
    "completion with thinking": {**ENVELOPE, "response": "hi", "thinking": "hm"},
    "completion of nothing": {**ENVELOPE, "response": "", "thinking": ""},
    "picture": {**ENVELOPE, "response": "", "image": PNG},
}


@pytest.mark.parametrize("body", RESPONSES.values(), ids=RESPONSES)
def test_response_round_trip(body: Wire) -> None:
    message = decode_response(body_of(body), CONTEXT)
    stored = decode(encode(message))
    assert json.loads(encode_response(stored, CONTEXT)) == body
    assert decode_response(body, CONTEXT).content_digest() == message.content_digest()


@needs_corpus
def test_recorded_responses_round_trip() -> None:
    for exchange in responses("ollama"):
        message = OLLAMA.from_wire_response(exchange["response"], CONTEXT)
        assert json.loads(OLLAMA.to_wire_response(message)) == exchange["response"]


@pytest.mark.parametrize("name", [name for name in RESPONSES if "message" in RESPONSES[name]])
def test_response_is_sent_back_unchanged(name: str) -> None:
    message = decode(encode(decode_response(RESPONSES[name], CONTEXT)))
    sent = json.loads(encode_request(CODEC, [message], (), AdapterOptions()))
    assert sent["messages"] == [RESPONSES[name]["message"]]


def test_results_have_id_and_name_from_newer_servers() -> None:
    response = OLLAMA.from_wire_response(RESPONSES["calls with ids"], CONTEXT)
    one, two = (block for block in response.content if isinstance(block, ToolUseBlock))
    talk = [user("go"), response, tool("1", answers=one.id), tool("2", answers=two.id)]
    wire = OLLAMA.to_wire(talk, (), AdapterOptions(model="qwen3"))
    assert json.loads(wire.body)["messages"][1:] == [
        RESPONSES["calls with ids"]["message"],
        {"role": "tool", "content": "1", "tool_call_id": "call_a", "tool_name": "f"},
        {"role": "tool", "content": "2", "tool_call_id": "call_b", "tool_name": "f"},
    ]


@pytest.mark.row("T163", "T168", "T131")
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (RESPONSES["text"], StopReason.END_TURN),
        (RESPONSES["calls"], StopReason.TOOL_USE),
        ({**RESPONSES["text"], "done_reason": "length"}, StopReason.MAX_TOKENS),
        ({**RESPONSES["calls"], "done_reason": "length"}, StopReason.MAX_TOKENS),
        ({**RESPONSES["text"], "done_reason": None}, StopReason.UNKNOWN),
        (RESPONSES["loaded"], StopReason.UNKNOWN),
    ],
)
def test_stop_reasons_are_mapped(body: Wire, reason: StopReason) -> None:
    assert decode_response(body, CONTEXT).metadata.stop_reason is reason


@pytest.mark.row("T153")
def test_usage_counts_tokens_and_time_and_is_unknown_if_absent() -> None:
    usage = decode_response(RESPONSES["text"], CONTEXT).metadata.usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, usage.latency_ms) == (11, 79, 2685)
    measured = decode_response(RESPONSES["text"], replace(CONTEXT, latency_ms=9)).metadata.usage
    assert measured is not None
    assert measured.latency_ms == 9
    assert decode_response(RESPONSES["loaded"], CONTEXT).metadata.usage is None


def test_response_fields_are_decoded() -> None:
    message = decode_response(RESPONSES["everything"], CONTEXT)
    kinds = [type(block) for block in message.content]
    assert kinds == [ThinkingBlock, TextBlock, ArtifactBlock, ToolUseBlock]
    assert (message.role, message.metadata.model) == (Role.ASSISTANT, "ollama:qwen3")
    (image,) = decode_response(RESPONSES["picture"], CONTEXT).content
    assert isinstance(image, ArtifactBlock)
    assert image.media_type == "image/png"
    opaque, used = blocks(REQUESTS["a call of nothing"])[1]
    assert isinstance(opaque, OpaqueBlock)
    assert isinstance(used, ToolUseBlock)


@pytest.mark.row("M-205")
def test_response_of_another_provider_is_valid_for_sdk() -> None:
    message = assistant(thinking("hm"), text("hi"), call("f", a=1))
    body = json.loads(encode_response(message, CONTEXT))
    read = ChatResponse(**body)
    assert (read.message.content, read.message.thinking) == ("hi", "hm")
    assert read.message.tool_calls is not None
    assert read.message.tool_calls[0].function.arguments == {"a": 1}
    assert (read.done, read.done_reason, read.eval_count) == (True, "stop", 42)
    assert read.total_duration == 820_000_000
    assert read.model == "claude-sonnet-4-6"
    prompted = replace(CONTEXT, path="/api/generate")
    completion = GenerateResponse(**json.loads(encode_response(message, prompted)))
    assert (completion.response, completion.thinking) == ("hi", "hm")


@pytest.mark.parametrize(
    ("status", "text", "kind"),
    [
        (404, "model 'x' not found", InvalidRequestError),
        (400, "registry.ollama.ai/x does not support tools", InvalidRequestError),
        (401, "unauthorized", AuthenticationError),
        (429, "too many", RateLimitError),
        (500, "model requires more system memory", ServerError),
        (400, "the input exceeds the context length", ContextOverflowError),
        (200, "unexpected EOF", ProviderError),
    ],
)
def test_error_bodies_become_typed_errors(
    status: int, text: str, kind: type[ProviderError]
) -> None:
    with pytest.raises(kind) as caught:
        decode_response(body_of({"error": text}), replace(CONTEXT, status=status))
    assert caught.value.text == text
    again, body = encode_error(caught.value)
    assert json.loads(body) == {"error": text}
    assert again == (500 if status == 200 else status)
    assert type(decode_error({"error": {"message": text}}, status)) is type(caught.value)


def test_error_that_is_not_json_has_its_text() -> None:
    with pytest.raises(ServerError, match="<h1>Bad gateway</h1>"):
        decode_response(b"<h1>Bad gateway</h1>", replace(CONTEXT, status=502))


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"model": "m"}, "$.messages"),
        ({"messages": {}}, "$.messages"),
        ({"messages": ["x"]}, "$.messages[0]"),
        ({"messages": [{"role": "control"}]}, "$.messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "$.messages[0].content"),
        ({"messages": [{"role": "user", "images": "x"}]}, "$.messages[0].images"),
        ({"messages": [{"role": "user", "images": [1]}]}, "$.messages[0].images"),
        ({"prompt": 1}, "$.prompt"),
        ({"prompt": "x", "system": []}, "$.system"),
        ({"prompt": "x", "images": [1]}, "$.images"),
    ],
)
def test_invalid_request_error_names_the_place(body: Wire, path: str) -> None:
    with pytest.raises(DecodeError) as caught:
        decode_request(body_of(body), CONTEXT)
    assert caught.value.path == path


@pytest.mark.parametrize("body", [{}, {"message": "x"}, {"message": {"content": 1}}, []])
def test_invalid_response_is_refused(body: Any) -> None:
    with pytest.raises(DecodeError):
        decode_response(body_of(body), CONTEXT)


@given(st.one_of(st.binary(), json_objects().map(body_of)))
def test_any_bytes_are_a_request_or_a_typed_error(data: bytes) -> None:
    for read in (decode_request, decode_response):
        try:
            read(data, CONTEXT)
        except MetisError:
            continue


MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool"])},
    optional={
        "content": st.one_of(st.none(), st.text()),
        "thinking": st.text(),
        "images": st.lists(st.sampled_from([PNG, JPEG, "", f"data:image/png;base64,{PNG}"])),
        "tool_calls": st.lists(
            st.one_of(
                st.sampled_from([CALL, OTHER, numbered_call(0, "a"), numbered_call(0, "")]),
                json_objects(),
            )
        ),
        "tool_name": st.sampled_from(["f", "g", ""]),
        "tool_call_id": st.sampled_from(["a", "b", ""]),
        "mood": json_objects(),
    },
)


@given(st.lists(MESSAGES, max_size=6), json_objects())
def test_any_conversation_round_trips(messages: list[Wire], rest: Wire) -> None:
    request = {**rest, "messages": messages}
    assert round_trip_body(request) == request


@needs_whole_corpus
def test_the_same_server_speaks_chat_completions() -> None:
    adapter = adapters.get("ollama-openai")
    recorded = [e for e in exchanges("openai_chat") if e["provider"] == "ollama" and e["request"]]
    assert recorded
    for exchange in recorded:
        request = adapter.from_wire_request(exchange["request"], CONTEXT)
        wire = adapter.to_wire(request.messages, request.tools, request.options)
        assert (json.loads(wire.body), wire.losses) == (exchange["request"], [])
        assert exchange["url_path"].endswith(wire.path)


def test_both_profiles_know_the_models_of_the_server() -> None:
    by_name = [adapters.get(name).capabilities("qwen3") for name in ("ollama", "ollama-openai")]
    assert by_name[0] == by_name[1]
    assert by_name[0].supports_thinking
    assert adapters.get("ollama-openai").wire_model("ollama:qwen3:8b") == "qwen3:8b"
