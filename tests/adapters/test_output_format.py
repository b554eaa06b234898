"""The output format option, encoded for each model in the form that it supports."""

import json
import logging
from typing import Any

import pytest
from msgspec.structs import replace

from build import assistant, call, tool, user
from judges import complaints
from metis import adapters
from metis.adapters.response_decoder import OUTPUT_TOOL
from metis.canonical import Message, TextBlock, ToolDefinition, ToolUseBlock
from metis.canonical.errors import CatalogDataError, InvalidValueError
from metis.canonical.metadata import StopReason
from metis.canonical.tools import SideEffects
from metis.catalog.model_rules import read_output_rules
from metis.streaming import (
    MessageComplete,
    MessageStart,
    StreamEvent,
    TextDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
)
from metis.streaming.accumulator import Accumulator
from metis.wire.call import AdapterOptions, RequestContext, ToolChoice
from metis.wire.output_format import OutputFormat
from metis.wire.reasoning import Reasoning

CONTEXT = RequestContext(session_id="sess_form")
TOOL = ToolDefinition("f", "Does it.", {"type": "object"}, SideEffects.READ)
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
PLACE = OutputFormat(SCHEMA, "place", "Where it is.")
ANY = OutputFormat()
NAMED_SCHEMA = {**SCHEMA, "title": "place", "description": "Where it is."}
NAMED = {"name": "place", "description": "Where it is.", "schema": SCHEMA, "strict": True}
JUDGED = ("anthropic", "openai", "openai-responses", "gemini", "ollama")


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="metis.adapters")


def body_with(
    name: str, output: OutputFormat | None, model: str | None = None, **options: Any
) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Return the request body and the losses."""
    tools, messages = options.pop("tools", ()), options.pop("messages", (user("hi"),))
    given = AdapterOptions(model=model, output=output, **options)
    wire = adapters.get(name).to_wire(messages, tools, given)
    body = json.loads(wire.body)
    if name in JUDGED and "stream" not in options:
        assert complaints(name, body) == []
    return body, [(str(loss.change), loss.path) for loss in wire.losses]


@pytest.mark.parametrize(
    ("name", "key", "schema", "any_object"),
    [
        (
            "openai",
            "response_format",
            {"type": "json_schema", "json_schema": NAMED},
            {"type": "json_object"},
        ),
        (
            "openai-responses",
            "text",
            {"format": {"type": "json_schema", **NAMED}},
            {"format": {"type": "json_object"}},
        ),
        (
            "gemini",
            "generationConfig",
            {"responseMimeType": "application/json", "responseJsonSchema": NAMED_SCHEMA},
            {"responseMimeType": "application/json"},
        ),
        ("ollama", "format", NAMED_SCHEMA, "json"),
    ],
)
def test_output_format_has_form_of_each_protocol(
    name: str, key: str, schema: Any, any_object: Any
) -> None:
    body, lost = body_with(name, PLACE)
    assert (body[key], lost) == (schema, [])
    body, lost = body_with(name, ANY, messages=(user("hi, in JSON"),))
    assert (body[key], lost) == (any_object, [])
    assert key not in body_with(name, None)[0]


def test_output_format_of_anthropic() -> None:
    body, lost = body_with("anthropic", PLACE, "claude-sonnet-4-6", reasoning=Reasoning("low"))
    assert body["output_config"] == {
        "effort": "low",
        "format": {"type": "json_schema", "schema": NAMED_SCHEMA},
    }
    assert lost == []


@pytest.mark.parametrize("name", JUDGED)
@pytest.mark.parametrize("output", [PLACE, ANY])
def test_encoded_output_format_round_trips(name: str, output: OutputFormat) -> None:
    """The encoded request decodes to the same option, and is encoded again with equal keys."""
    if (name, output) == ("anthropic", ANY):
        pytest.skip("no such wish there")
    adapter = adapters.get(name)
    body, _ = body_with(name, output, messages=(user("hi, in JSON"),))
    request = adapter.from_wire_request(body, CONTEXT)
    assert request.options.output is not None
    assert (request.options.output.schema is None) is (output is ANY)
    again = adapter.to_wire(request.messages, request.tools, request.options)
    assert json.loads(again.body) == body
    assert again.losses == []
    other = adapter.to_wire(request.messages, request.tools, replace(request.options, output=None))
    assert complaints(name, json.loads(other.body)) == []
    assert adapter.from_wire_request(other.body, CONTEXT).options.output is None


def test_text_format_is_not_a_loss() -> None:
    spelled: dict[str, dict[str, Any]] = {
        "openai": {"messages": [], "response_format": {"type": "text"}},
        "openai-responses": {"input": [], "text": {"format": {"type": "text"}}},
        "gemini": {"contents": [], "generationConfig": {"responseMimeType": "text/plain"}},
    }
    for name, body in spelled.items():
        request = adapters.get(name).from_wire_request(body, CONTEXT)
        assert request.options.output is None
        away = adapters.get("anthropic").to_wire([user("hi")], (), request.options)
        assert away.losses == []


def test_format_keys_of_one_protocol_are_losses_elsewhere() -> None:
    form = {"type": "json_schema", "json_schema": {**NAMED, "odd": 1}}
    body: dict[str, Any] = {"model": "m", "messages": [], "response_format": form}
    request = adapters.get("openai").from_wire_request(body, CONTEXT)
    assert request.options.output == PLACE
    away = adapters.get("gemini").to_wire([user("hi")], (), replace(request.options, model=None))
    assert [loss.path for loss in away.losses] == ["$.response_format.json_schema.odd"]
    grammar = {"type": "grammar", "grammar": "root ::= x"}
    request = adapters.get("openai").from_wire_request(body | {"response_format": grammar}, CONTEXT)
    assert request.options.output is None
    away = adapters.get("ollama").to_wire([user("hi")], (), replace(request.options, model=None))
    assert [loss.path for loss in away.losses] == ["$.response_format"]


def test_gemini_decodes_every_spelling_of_output_format() -> None:
    dialect = {
        "type": "OBJECT",
        "properties": {"city": {"type": "STRING", "nullable": True}},
        "propertyOrdering": ["city"],
    }
    read = {"type": "object", "properties": {"city": {"type": ["string", "null"]}}}
    listed = {"text": {"mimeType": "application/json", "schema": SCHEMA}}
    ways: list[tuple[dict[str, Any], Any]] = [
        ({"responseMimeType": "application/json", "responseSchema": dialect}, read),
        ({"response_mime_type": "application/json", "response_schema": dialect}, read),
        ({"responseMimeType": "application/json", "responseJsonSchema": SCHEMA}, SCHEMA),
        (
            {"responseFormat": [listed]},
            SCHEMA,
        ),
    ]
    adapter = adapters.get("gemini")
    for config, schema in ways:
        body: dict[str, Any] = {"contents": [], "generationConfig": config}
        request = adapter.from_wire_request(body, CONTEXT)
        assert request.options.output == OutputFormat(schema)
        assert json.loads(adapter.to_wire((), (), request.options).body) == body
        away = adapters.get("ollama").to_wire([user("hi")], (), request.options)
        assert json.loads(away.body)["format"] == schema
        assert away.losses == []


def test_older_schema_dialect_is_sent_to_models_that_require_it() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}}}}
    body, lost = body_with("gemini", OutputFormat(schema), "gemini-1.5-pro")
    assert body["generationConfig"] == {
        "responseMimeType": "application/json",
        "responseSchema": {
            "type": "OBJECT",
            "properties": {"a": {"type": "ARRAY", "items": {"type": "STRING"}}},
        },
    }
    assert lost == []


def test_schema_name_is_sanitised_or_becomes_title() -> None:
    body, lost = body_with("openai", OutputFormat(SCHEMA, "my place!"))
    assert body["response_format"]["json_schema"]["name"].startswith("my_place")
    assert lost == [("altered", "$.output.name")]
    body, lost = body_with("openai", OutputFormat({**SCHEMA, "title": "Town"}))
    assert body["response_format"]["json_schema"]["name"] == "Town"
    assert lost == []
    assert body_with("openai", OutputFormat(SCHEMA))[0]["response_format"]["json_schema"]["name"]
    titled = OutputFormat({**SCHEMA, "title": "Town"}, "place")
    assert body_with("ollama", titled)[1] == [("dropped", "$.output.name")]


def test_non_strict_schema_stays_non_strict_where_supported() -> None:
    loose = replace(PLACE, strict=False)
    body, lost = body_with("openai", loose)
    assert "strict" not in body["response_format"]["json_schema"]
    assert lost == []
    assert body_with("anthropic", loose)[1] == [("altered", "$.output.strict")]
    optional = OutputFormat({"type": "object", "properties": {"a": {"type": "string"}}})
    body, lost = body_with("openai", optional)
    assert "strict" not in body["response_format"]["json_schema"]
    assert lost == [("altered", "$.output.strict")]
    assert body_with("groq", PLACE, "moonshotai/kimi-k2-instruct")[1] == [
        ("altered", "$.output.strict")
    ]


@pytest.mark.row("T115")
@pytest.mark.parametrize("name", ["gemini", "vertex"])
def test_json_and_tools_go_together_from_gemini_3_on(name: str) -> None:
    body, lost = body_with(name, PLACE, "gemini-3.5-flash", tools=(TOOL,))
    assert body["generationConfig"]["responseJsonSchema"] == NAMED_SCHEMA
    assert [each["name"] for each in body["tools"][0]["functionDeclarations"]] == ["f"]
    assert lost == []
    for model in ("gemini-2.5-pro", "gemini-2.0-flash", "gemini-1.5-pro"):
        body, lost = body_with(name, PLACE, model, tools=(TOOL,), reasoning=Reasoning("none"))
        assert not any(key.startswith("response") for key in body.get("generationConfig", {}))
        names = [each["name"] for each in body["tools"][0]["functionDeclarations"]]
        assert names == ["f", OUTPUT_TOOL]
        assert body["toolConfig"] == {"functionCallingConfig": {"mode": "ANY"}}
        assert ("altered", "$.output") in lost
        alone, lost = body_with(name, PLACE, model)
        assert "responseMimeType" in alone["generationConfig"]
        assert lost == []


@pytest.mark.row("T115")
def test_request_of_gemini_client_is_unchanged() -> None:
    body = {
        "contents": [{"role": "user", "parts": [{"text": "hi"}]}],
        "generationConfig": {"responseMimeType": "application/json"},
        "tools": [{"functionDeclarations": [{"name": "f", "description": "Does it."}]}],
    }
    adapter = adapters.get("gemini")
    request = adapter.from_wire_request(
        body, replace(CONTEXT, path="/v1beta/models/gemini-2.5-pro:generateContent")
    )
    wire = adapter.to_wire(request.messages, request.tools, request.options)
    assert (json.loads(wire.body), wire.losses) == (body, [])


@pytest.mark.row("T116", "T117")
def test_claude_gets_forced_output_tool_only_without_thinking() -> None:
    model = "claude-3-7-sonnet-latest"
    body, lost = body_with("anthropic", PLACE, model, max_output_tokens=9000)
    assert "output_config" not in body
    assert [each["name"] for each in body["tools"]] == [OUTPUT_TOOL]
    assert body["tools"][0]["input_schema"] == SCHEMA
    assert body["tool_choice"] == {"type": "tool", "name": OUTPUT_TOOL}
    assert lost == [("altered", "$.output"), ("altered", "$.output.strict")]
    # A thinking model cannot be forced to call a tool: it gets an instruction instead.
    thought = Reasoning(budget_tokens=2048)
    body, lost = body_with("anthropic", PLACE, model, reasoning=thought, max_output_tokens=9000)
    assert body["thinking"] == {"type": "enabled", "budget_tokens": 2048}
    assert "tools" not in body
    assert json.dumps(SCHEMA, separators=(",", ":")) in body["system"][0]["text"]
    assert lost == [("altered", "$.output"), ("altered", "$.output.strict")]
    # With native support of schemas, thinking stays enabled.
    body, lost = body_with("anthropic", PLACE, "claude-sonnet-4-5", reasoning=thought)
    assert body["output_config"]["format"]["schema"] == NAMED_SCHEMA
    assert body["thinking"]["type"] == "enabled"
    assert lost == []


def test_tools_of_caller_stay_with_output_tool() -> None:
    model = "claude-3-5-haiku-latest"
    body, _ = body_with("anthropic", PLACE, model, tools=(TOOL,))
    assert [each["name"] for each in body["tools"]] == ["f", OUTPUT_TOOL]
    assert body["tool_choice"] == {"type": "any"}
    body, _ = body_with("anthropic", PLACE, model, tools=(TOOL,), tool_choice=ToolChoice("none"))
    assert body["tool_choice"] == {"type": "tool", "name": OUTPUT_TOOL}
    named = ToolChoice("tool", "f")
    body, _ = body_with("anthropic", PLACE, model, tools=(TOOL,), tool_choice=named)
    assert [each["name"] for each in body["tools"]] == ["f"]
    assert body["tool_choice"] == {"type": "tool", "name": "f"}
    assert "JSON Schema" in body["system"][0]["text"]


def test_model_without_schema_support_gets_json_mode_and_schema_in_instructions() -> None:
    body, lost = body_with("deepseek", PLACE, "deepseek-reasoner")
    assert body["response_format"] == {"type": "json_object"}
    assert json.dumps(SCHEMA, separators=(",", ":")) in body["messages"][0]["content"]
    assert lost == [("altered", "$.output"), ("altered", "$.output.strict")]


def test_openai_json_mode_adds_the_word_json_if_absent() -> None:
    body, lost = body_with("openai", ANY)
    assert "JSON" in body["messages"][0]["content"]
    assert lost == [("synthesised", "$.output")]


def test_growing_conversation_has_same_format_instructions() -> None:
    """The text follows the instructions, so that later requests extend earlier ones."""
    growing = adapters.Adapter(adapters.get("anthropic").profile)
    first, second = user("hi"), assistant("ho")
    options = AdapterOptions(model="claude-3-opus-latest", output=OutputFormat({"type": "array"}))
    part = growing.to_wire([first], (), options).body
    request = growing.to_wire([first, second, user("again")], (), options)
    fresh = adapters.Adapter(growing.profile)
    assert request.body == fresh.to_wire([first, second, user("again")], (), options).body
    assert json.loads(part)["system"] == json.loads(request.body)["system"]


# Responses

ANTHROPIC_ANSWER: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-3-5-haiku-latest",
    "content": [
        {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}},
        {"type": "tool_use", "id": "toolu_2", "name": OUTPUT_TOOL, "input": {"city": "Bergen"}},
    ],
    "stop_reason": "tool_use",
    "usage": {"input_tokens": 1, "output_tokens": 2},
}


@pytest.mark.row("T116")
def test_the_internal_tool_is_hidden_from_the_caller_and_from_history() -> None:
    adapter = adapters.get("anthropic")
    alone = {**ANTHROPIC_ANSWER, "content": ANTHROPIC_ANSWER["content"][1:]}
    message = adapter.from_wire_response(alone, CONTEXT)
    assert message.content == (TextBlock('{"city":"Bergen"}'),)
    assert message.metadata.stop_reason is StopReason.END_TURN
    back = adapter.to_wire([user("hi"), message, user("on")])
    assert OUTPUT_TOOL.encode() not in back.body
    assert json.loads(back.body)["messages"][1]["content"] == [
        {"type": "text", "text": '{"city":"Bergen"}'}
    ]
    served = json.loads(adapters.get("openai").to_wire_response(message))
    assert served["choices"][0]["message"]["content"] == '{"city":"Bergen"}'
    assert served["choices"][0]["finish_reason"] == "stop"


@pytest.mark.row("T116")
def test_other_calls_keep_their_wire_ids() -> None:
    adapter = adapters.get("anthropic")
    message = adapter.from_wire_response(ANTHROPIC_ANSWER, replace(CONTEXT, tools=("f",)))
    thinking, text = message.content
    assert isinstance(thinking, ToolUseBlock)
    assert text == TextBlock('{"city":"Bergen"}')
    assert message.metadata.stop_reason is StopReason.TOOL_USE
    answered = tool("done", answers=thinking.id)
    back = json.loads(adapter.to_wire([user("hi"), message, answered], (TOOL,)).body)
    calls = [part for part in back["messages"][1]["content"] if part["type"] == "tool_use"]
    assert [(part["id"], part["name"]) for part in calls] == [("toolu_1", "f")]


def test_tool_of_caller_with_that_name_is_a_normal_tool() -> None:
    context = replace(CONTEXT, tools=(OUTPUT_TOOL,))
    alone = {**ANTHROPIC_ANSWER, "content": ANTHROPIC_ANSWER["content"][1:]}
    message = adapters.get("anthropic").from_wire_response(alone, context)
    assert [type(block) for block in message.content] == [ToolUseBlock]


@pytest.mark.row("T116")
@pytest.mark.parametrize("name", ["anthropic", "openai", "gemini", "openai-responses"])
@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_the_internal_tool_is_hidden_from_a_stream(name: str, size: int) -> None:
    adapter = adapters.get(name)
    answer = assistant("so", call(OUTPUT_TOOL, city="Bergen"))
    data = streamed(name, answer)
    decoder = adapter.stream_decoder(CONTEXT)
    events = [
        event
        for start in range(0, len(data), size)
        for event in decoder.feed(data[start : start + size])
    ]
    events += decoder.finish()
    assert not any("tool_use" in event.type for event in events)
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == (
        'so{"city":"Bergen"}'
    )
    end = events[-1]
    assert isinstance(end, MessageComplete)
    assert end.stop_reason is StopReason.END_TURN
    assert summed(events) == end.message.content == decoder.message.content


def streamed(name: str, answer: Message) -> bytes:
    """Return the bytes with which a provider streams a response."""
    encoder = adapters.get(name).stream_encoder(CONTEXT)
    return b"".join(map(encoder.encode, events_of(answer))) + encoder.finish()


def events_of(message: Message) -> list[StreamEvent]:
    events: list[StreamEvent] = [MessageStart(message.id, "m")]
    for index, block in enumerate(message.content):
        if isinstance(block, TextBlock):
            events.append(TextDelta(message.id, index, block.text))
        if isinstance(block, ToolUseBlock):
            written = json.dumps(block.input)
            events += [
                ToolUseStart(message.id, index, block.id, block.name),
                ToolUseInputDelta(message.id, index, block.id, written),
                ToolUseEnd(message.id, index, block.id, block.input),
            ]
    return [*events, MessageComplete(message.id, StopReason.TOOL_USE, message)]


def summed(events: list[StreamEvent]) -> Any:
    accumulator = Accumulator()
    for event in events:
        accumulator.add(event)
    return accumulator.content


# Invalid options


def test_schema_that_is_not_an_object_is_refused() -> None:
    with pytest.raises(InvalidValueError, match=r"\$\.schema"):
        OutputFormat([])  # pyright: ignore[reportArgumentType] - wrong on purpose
    with pytest.raises(InvalidValueError, match=r"\$\.schema\.a"):
        OutputFormat({"a": float("nan")})


def test_unreadable_rules_are_refused() -> None:
    with pytest.raises(CatalogDataError):
        read_output_rules({"rules": [{"models": ["a"], "takes": ["poem"]}]})


def test_history_with_calls_is_unchanged_by_output_format() -> None:
    """A history with calls is sent together with an output format."""
    asked_for = (user("hi"), assistant(call("f")), tool("1"))
    body, lost = body_with("openai", PLACE, messages=asked_for, tools=(TOOL,))
    assert body["response_format"]["json_schema"] == NAMED
    assert lost == []
