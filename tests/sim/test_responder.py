"""The simulator's responses: tool calls, schemas, thinking, limits and determinism."""

import json
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from build import NOW, SESSION, ulid
from metis.canonical import (
    ImageBlock,
    ImageSource,
    Message,
    Role,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from metis.canonical.blocks import ContentBlock
from metis.canonical.metadata import StopReason
from metis.sim import ModelOutput, Responder
from metis.sim.endpoints import match_path
from metis.sim.fill_schema import Entities, SchemaFiller
from metis.sim.model_output import split_tokens
from metis.sim.request import RequestSeed, RequestTraits, SimulatedCall
from metis.wire.call import AdapterOptions, CanonicalRequest, RequestContext, ToolChoice
from metis.wire.output_format import OutputFormat
from simulated import TOOLS, png_base64, tool

DEFAULT_TRAITS = RequestTraits()


def message(role: Role, *content: ContentBlock) -> Message:
    return Message(id=ulid(1), session_id=SESSION, role=role, content=content, created_at=NOW)


def user(text: str) -> Message:
    return message(Role.USER, TextBlock(text))


def respond(
    *messages: Message,
    traits: RequestTraits = DEFAULT_TRAITS,
    tools: Any = TOOLS,
    options: Any = None,
) -> ModelOutput:
    match = match_path("/v1/messages")
    assert match is not None
    call = SimulatedCall(
        endpoint=match.endpoint,
        seed=RequestSeed(b"a request"),
        request=CanonicalRequest(messages, tuple(tools), options or AdapterOptions()),
        traits=traits,
        context=RequestContext(),
        is_stream=False,
    )
    return Responder().respond(call)


def calls(answer: ModelOutput) -> list[tuple[str, Any]]:
    return [(b.name, dict(b.input)) for b in answer.content if isinstance(b, ToolUseBlock)]


def text_of(answer: ModelOutput) -> str:
    return "".join(block.text for block in answer.content if isinstance(block, TextBlock))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Read notes.txt, please.", [("read_file", {"path": "notes.txt"})]),
        ("What is in src/metis/main.py?", [("read_file", {"path": "src/metis/main.py"})]),
        (
            "Read a.txt and b.txt",
            [("read_file", {"path": "a.txt"}), ("read_file", {"path": "b.txt"})],
        ),
        ("List the files", [("list_files", {"path": "."})]),
        ("grep TODO in src/", [("grep", {"pattern": "TODO", "path": "src/"})]),
        ("search for 'two words'", [("grep", {"pattern": "two words"})]),
        (
            "What is the weather in Paris and New York, in fahrenheit?",
            [
                ("get_weather", {"city": "Paris", "unit": "fahrenheit"}),
                ("get_weather", {"city": "New York", "unit": "fahrenheit"}),
            ],
        ),
        ("Tell me a joke", []),
    ],
)
def test_prompt_selects_the_tool(text: str, expected: Any) -> None:
    answer = respond(user(text))
    assert calls(answer) == expected
    assert answer.final_stop_reason is (StopReason.TOOL_USE if expected else StopReason.END_TURN)


def test_results_are_answered_with_text_and_no_repeated_call() -> None:
    prompt = user("Read notes.txt")
    call = respond(prompt).content[-1]
    assert isinstance(call, ToolUseBlock)
    result = ToolResultBlock(call.id, (TextBlock("buy milk"),))
    answer = respond(prompt, message(Role.ASSISTANT, call), message(Role.TOOL, result))
    assert calls(answer) == []
    assert text_of(answer) == 'read_file gave: "buy milk".'


def test_calls_are_sequential_if_parallel_calls_are_disabled() -> None:
    one = AdapterOptions(parallel_tool_calls=False)
    prompt = user("Read a.txt and b.txt")
    first = respond(prompt, options=one)
    assert calls(first) == [("read_file", {"path": "a.txt"})]
    call = first.content[-1]
    assert isinstance(call, ToolUseBlock)
    result = message(Role.TOOL, ToolResultBlock(call.id, (TextBlock("a"),)))
    then = respond(prompt, message(Role.ASSISTANT, call), result, options=one)
    assert calls(then) == [("read_file", {"path": "b.txt"})]


def test_tool_choice_is_respected() -> None:
    def choose(mode: Any, name: str | None = None) -> ModelOutput:
        choice = AdapterOptions(tool_choice=ToolChoice(mode, name))
        return respond(user("Read notes.txt"), options=choice)

    assert calls(choose("none")) == []
    assert calls(choose("required")) == [("read_file", {"path": "notes.txt"})]
    assert calls(choose("tool", "list_files")) == [("list_files", {"path": "notes.txt"})]
    assert text_of(choose("tool", "list_files")) == ""


def test_a_loop_that_forces_calls_ends_at_the_final_tool() -> None:
    forced = AdapterOptions(tool_choice=ToolChoice("required"))
    final = tool("final_result", {"type": "object", "properties": {"city": {"type": "string"}}})
    prompt, called = (
        user("Read notes.txt"),
        ToolUseBlock("tu_1", "read_file", {"path": "notes.txt"}),
    )
    result = message(Role.TOOL, ToolResultBlock("tu_1", (TextBlock("a"),)))
    request = (prompt, message(Role.ASSISTANT, called), result)
    then = respond(*request, options=forced, tools=(*TOOLS, final))
    assert [name for name, _ in calls(then)] == ["final_result"]


def test_a_schema_in_the_text_is_filled() -> None:
    schema = '{"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}'
    prompt = user(f"How old is it? Reply with JSON that matches this schema: {schema}")
    reply = respond(prompt, options=AdapterOptions(output=OutputFormat()), tools=())
    assert "age" in json.loads(text_of(reply))


def test_response_states_that_it_is_simulated() -> None:
    assert "simulator" in text_of(respond(user("Which model are you?")))
    assert "not a language model" in text_of(respond(user("who are you?")))


def test_response_uses_earlier_messages() -> None:
    history = [user("My name is Ada."), message(Role.ASSISTANT, TextBlock("Good."))]
    assert text_of(respond(*history, user("What is my name?"))) == "Your name is Ada."


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("say exactly: all is well", "all is well"),
        ("What is 12 * 12?", "12 * 12 = 144"),
        ("count to 4", "1, 2, 3, 4"),
    ],
)
def test_built_in_answers(text: str, expected: str) -> None:
    assert text_of(respond(user(text))) == expected


def test_image_is_described_by_its_bytes() -> None:
    image = ImageBlock(ImageSource("base64", png_base64(640, 480)), "image/png")
    description = text_of(respond(message(Role.USER, image)))
    assert description.startswith("I see a PNG image, 640 by 480 pixels, 8 bits a channel, RGB, ")


def test_thinking_is_signed_and_verified() -> None:
    brain = Responder()
    first = respond(user("hello"), traits=RequestTraits(thinking="shown")).content[0]
    assert isinstance(first, ThinkingBlock)
    assert brain.signer.verify(first.signature, first.text)
    assert not brain.signer.verify(first.signature, first.text + "!")
    assert not brain.signer.is_issued_here("EqoBCkgIARABGAIiQL8")


def test_hidden_thinking_is_only_counted() -> None:
    answer = respond(user("hello"), traits=RequestTraits(thinking="hidden"))
    assert [type(block) for block in answer.content] == [TextBlock]
    assert answer.hidden_thinking


def test_the_limit_cuts_text_and_calls() -> None:
    short = respond(user("100 words")).within_limits(AdapterOptions(max_output_tokens=7))
    assert len(split_tokens(text_of(short))) == 7
    assert short.final_stop_reason is StopReason.MAX_TOKENS
    forced = AdapterOptions(tool_choice=ToolChoice("required"), max_output_tokens=3)
    cut = respond(user("Read notes.txt"), options=forced).within_limits(forced)
    call = cut.content[-1]
    assert isinstance(call, ToolUseBlock)
    assert call.invalid is not None
    assert (dict(call.input), call.invalid.raw) == ({}, '{"path')
    assert cut.final_stop_reason is StopReason.MAX_TOKENS


def test_a_stop_sequence_ends_the_text() -> None:
    stops = AdapterOptions(stop_sequences=(", 3", "never"))
    answer = respond(user("count to 9")).within_limits(stops)
    assert (text_of(answer), answer.final_stop_reason) == ("1, 2", StopReason.STOP_SEQUENCE)


@given(st.text())
def test_deltas_join_to_the_text(text: str) -> None:
    assert "".join(split_tokens(text)) == text


LEAVES = st.sampled_from(
    [
        {"type": "string"},
        {"type": "string", "minLength": 5, "maxLength": 9},
        {"type": "string", "format": "date"},
        {"type": "integer", "minimum": 3, "maximum": 9},
        {"type": "number", "exclusiveMinimum": 4},
        {"type": ["integer", "null"]},
        {"type": "boolean"},
        {"type": "null"},
        {"enum": ["a", 2, None]},
        {"const": {"x": 1}},
        {"anyOf": [{"type": "null"}, {"type": "integer", "multipleOf": 5}]},
        {"$ref": "#/$defs/named"},
        {"allOf": [{"type": "integer"}, {"minimum": 7}]},
    ]
)


def _objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    parts = st.dictionaries(st.sampled_from(["path", "city", "n", "query"]), inner, max_size=3)
    closed = parts.map(
        lambda found: {
            "type": "object",
            "properties": found,
            "required": list(found),
            "additionalProperties": False,
        }
    )
    arrays = inner.map(lambda item: {"type": "array", "items": item, "minItems": 2})
    return closed | arrays


@given(st.recursive(LEAVES, _objects, max_leaves=8), st.text(max_size=40))
def test_generated_value_matches_schema(schema: Any, text: str) -> None:
    complete = {**schema, "$defs": {"named": {"type": "string", "enum": ["yes", "no"]}}}
    value = SchemaFiller(complete, Entities(text)).fill()
    assert jsonschema_rs.is_valid(complete, value), value


def test_generated_value_uses_values_of_the_prompt() -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city", "days"],
        "additionalProperties": False,
    }
    options = AdapterOptions(output=OutputFormat(schema))
    output = respond(user("A trip of 3 days in Rome"), options=options)
    assert text_of(output) == '{"city":"Rome","days":3}'


def test_infinite_schema_is_bounded() -> None:
    endless = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}
    assert SchemaFiller(endless, Entities("")).fill() is not None
    nested: dict[str, Any] = {"type": "object", "required": ["a"], "properties": {}}
    nested["properties"]["a"] = {"$ref": "#"}
    assert SchemaFiller(nested, Entities("")).fill()["a"]["a"]


def test_tool_is_matched_by_words_of_its_name() -> None:
    stock = tool("getStockPrice", {"type": "object", "properties": {}})
    assert calls(respond(user("What is the price of gold?"), tools=[stock])) == [
        ("getStockPrice", {})
    ]
