"""Bedrock Converse requests: features of this protocol only, validated with botocore."""

import json
import logging
from typing import Any

import pytest
from msgspec.structs import replace

import converse_shape
from build import assistant, call, image, numbered, system, text, tool, tool_id, user
from corpus import body_of
from metis import adapters
from metis.canonical import (
    CacheHint,
    DocumentBlock,
    ImageBlock,
    ImageSource,
    MediaSource,
    Message,
    MetisError,
    Role,
    SideEffects,
    ToolDefinition,
    ToolResultBlock,
    VideoBlock,
)
from metis.canonical.metadata import MessageMetadata
from metis.wire.call import AdapterOptions, RequestContext, ToolChoice
from metis.wire.output_format import OutputFormat
from metis.wire.reasoning import Reasoning
from test_exchanges import PROTOCOLS

CONVERSE = adapters.get("bedrock-converse")
CONTEXT = RequestContext(session_id="sess_converse")
CLAUDE, NOVA = "us.anthropic.claude-sonnet-4-5-20250929-v1:0", "us.amazon.nova-pro-v1:0"
PNG = "iVBORw0KGgo="
WEATHER = ToolDefinition("weather", "Tells it.", {"type": "object"}, SideEffects.READ)
OTHERS = [name for name in PROTOCOLS if name != "bedrock-converse"]


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="metis.adapters")


def sent(
    *messages: Message,
    tools: tuple[ToolDefinition, ...] = (),
    losses: list[str] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Return the body of a request, after botocore and the turn rules have accepted it."""
    wire = CONVERSE.to_wire(numbered(*messages), tools, AdapterOptions(**options))
    body = json.loads(wire.body)
    assert converse_shape.complaints(body) == []
    assert list(converse_shape.faults(body)) == []
    if losses is not None:
        assert [loss.path for loss in wire.losses] == losses
    return body


# Requests.


def test_path_names_model_and_streaming() -> None:
    for is_stream, end in ((False, "converse"), (True, "converse-stream")):
        wire = CONVERSE.to_wire([user("hi")], (), AdapterOptions(model=NOVA, stream=is_stream))
        assert wire.path == f"/model/{NOVA}/{end}"
        context = replace(CONTEXT, path=wire.path)
        read = CONVERSE.from_wire_request(wire.body, context)
        assert (read.options.model, read.options.stream) == (NOVA, is_stream)
    arn = "arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/abc"
    wire = CONVERSE.to_wire([user("hi")], (), AdapterOptions(model=arn))
    assert wire.path == f"/model/{arn.replace('/', '%2F')}/converse"
    assert CONVERSE.from_wire_request(wire.body, replace(CONTEXT, path=wire.path)).options == (
        AdapterOptions(
            model=arn, stream=False, native={"bedrock_converse": {}}, origin=CONVERSE.name
        )
    )


@pytest.mark.row("T15", "T17", "T23", "T72")
def test_tool_results_precede_prompt_in_same_turn() -> None:
    a, b = call("weather", tool_id(1), city="x"), call("weather", tool_id(2))
    body = sent(
        system("be kind"),
        user("one"),
        user("two"),
        assistant("look", a, b),
        tool("2", answers=b.id),
        tool("1", answers=a.id),
        user("and?"),
        tools=(WEATHER,),
    )
    assert [turn["role"] for turn in body["messages"]] == ["user", "assistant", "user"]
    assert body["messages"][0]["content"] == [{"text": "one"}, {"text": "two"}]
    assert body["system"] == [{"text": "be kind"}]
    last = [next(iter(part)) for part in body["messages"][2]["content"]]
    assert last == ["toolResult", "toolResult", "text"]


@pytest.mark.row("T26")
def test_failed_call_has_error_status() -> None:
    a = call("weather", tool_id(1))
    answer = ToolResultBlock(a.id, (text("no"),), is_error=True)
    failed = replace(tool(answers=a.id), content=(answer,))
    body = sent(user("go"), assistant(a), failed, tools=(WEATHER,))
    assert body["messages"][2]["content"][0]["toolResult"]["status"] == "error"
    (read,) = CONVERSE.from_wire_request(body_of(body), CONTEXT).messages[-1].content
    assert isinstance(read, ToolResultBlock)
    assert read.is_error


@pytest.mark.row("T01", "T02")
def test_tool_ids_fit_allowed_alphabet_and_length() -> None:
    odd = ["functions.Bash:0", "x" * 100, "a b", "ok_1"]
    talk: list[Message] = [user("go")]
    for one in odd:
        talk += [assistant(call("weather", one)), tool("x", answers=one)]
    body = sent(*talk, tools=(WEATHER,))
    ids = [
        part["toolUse"]["toolUseId"]
        for turn in body["messages"]
        for part in turn["content"]
        if "toolUse" in part
    ]
    assert len(set(ids)) == len(odd)
    assert ids[-1] == "ok_1"


@pytest.mark.row("T36")
def test_tools_used_in_history_are_defined_and_choice_none_is_lost() -> None:
    a = call("weather", tool_id(1))
    talk = (user("go"), assistant(a), tool("x", answers=a.id), user("sum up"))
    body = sent(*talk, losses=["$.tools"])
    assert [tool["toolSpec"]["name"] for tool in body["toolConfig"]["tools"]] == ["weather"]
    body = sent(
        user("hi"), tools=(WEATHER,), tool_choice=ToolChoice("none"), losses=["$.tool_choice"]
    )
    assert "toolConfig" not in body
    body = sent(*talk, tools=(WEATHER,), tool_choice=ToolChoice("none"))
    assert "toolChoice" not in body["toolConfig"]


@pytest.mark.parametrize(
    ("choice", "word"),
    [
        (ToolChoice("auto"), {"auto": {}}),
        (ToolChoice("required"), {"any": {}}),
        (ToolChoice("tool", "weather"), {"tool": {"name": "weather"}}),
    ],
)
def test_tools_can_be_chosen(choice: ToolChoice, word: dict[str, Any]) -> None:
    body = sent(user("hi"), tools=(WEATHER,), tool_choice=choice, losses=[])
    assert body["toolConfig"]["toolChoice"] == word
    assert CONVERSE.from_wire_request(body_of(body)).options.tool_choice == choice


@pytest.mark.row("T112")
def test_an_empty_description_is_left_out() -> None:
    bare = ToolDefinition("weather", "", {"type": "object"}, SideEffects.READ)
    (tool,) = sent(user("hi"), tools=(bare,), losses=[])["toolConfig"]["tools"]
    assert set(tool["toolSpec"]) == {"name", "inputSchema"}


def test_options_are_sent_within_limits() -> None:
    body = sent(
        user("hi"),
        temperature=1.5,
        max_output_tokens=0,
        stop_sequences=("", "END"),
        losses=["$.max_output_tokens", "$.temperature", "$.stop_sequences[0]"],
    )
    assert body["inferenceConfig"] == {
        "maxTokens": 1,
        "stopSequences": ["END"],
        "temperature": 1,
    }


@pytest.mark.parametrize(
    ("model", "more"),
    [(CLAUDE, {"top_k": 5}), (NOVA, {"inferenceConfig": {"topK": 5}})],
)
def test_top_k_has_key_of_each_model_vendor(model: str, more: dict[str, Any]) -> None:
    body = sent(user("hi"), model=model, top_k=5, losses=[])
    assert body["additionalModelRequestFields"] == more
    read = CONVERSE.from_wire_request(body_of(body), replace(CONTEXT, model=model))
    assert read.options.top_k == 5
    without = CONVERSE.to_wire(read.messages, (), replace(read.options, top_k=None))
    assert "additionalModelRequestFields" not in json.loads(without.body)


@pytest.mark.row("T48", "T206")
@pytest.mark.parametrize(
    ("model", "reasoning_option", "expected_fields"),
    [
        (CLAUDE, Reasoning("none"), {"thinking": {"type": "disabled"}}),
        (
            CLAUDE,
            Reasoning(budget_tokens=2000),
            {"thinking": {"type": "enabled", "budget_tokens": 2000}},
        ),
        (
            "us.anthropic.claude-sonnet-4-6",
            Reasoning("high"),
            {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}},
        ),
        ("openai.gpt-oss-120b-1:0", Reasoning("low"), {"reasoning_effort": "low"}),
        ("qwen.qwen3-32b-v1:0", Reasoning("high"), {"reasoning_config": "high"}),
        (
            "us.amazon.nova-2-lite-v1:0",
            Reasoning("medium"),
            {"reasoningConfig": {"type": "enabled", "maxReasoningEffort": "medium"}},
        ),
        (
            "us.amazon.nova-2-lite-v1:0",
            Reasoning("none"),
            {"reasoningConfig": {"type": "disabled"}},
        ),
    ],
)
def test_reasoning_option_has_form_of_each_model_vendor(
    model: str, reasoning_option: Reasoning, expected_fields: dict[str, Any]
) -> None:
    body = sent(
        user("hi"), model=model, reasoning=reasoning_option, max_output_tokens=9000, losses=[]
    )
    assert body["additionalModelRequestFields"] == expected_fields
    read = CONVERSE.from_wire_request(body_of(body), replace(CONTEXT, model=model))
    assert read.options.reasoning == reasoning_option


@pytest.mark.row("T117")
def test_output_schema_is_native_or_a_tool() -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
    wanted = OutputFormat(schema, "place", "Where.", strict=False)
    body = sent(user("hi"), output=wanted, losses=["$.output.strict"])
    expected_fields = body["outputConfig"]["textFormat"]["structure"]["jsonSchema"]
    assert (
        json.loads(expected_fields["schema"]),
        expected_fields["name"],
        expected_fields["description"],
    ) == (
        schema,
        "place",
        "Where.",
    )
    body = sent(user("hi"), model=NOVA, output=replace(wanted, strict=True))
    assert "outputConfig" not in body
    assert body["toolConfig"]["toolChoice"].keys() == {"tool"}


# Media.


@pytest.mark.row("T92", "T93")
def test_only_s3_locations_are_sent_by_reference() -> None:
    bucket = ImageBlock(ImageSource("url", "s3://bucket/a.png"), "image/png")
    body = sent(user("look", bucket), losses=[])
    shown = body["messages"][0]["content"][1]["image"]
    assert shown == {"format": "png", "source": {"s3Location": {"uri": "s3://bucket/a.png"}}}
    web = ImageBlock(ImageSource("url", "https://example.org/a.png"), "image/png")
    body = sent(user("look", web), losses=["$.content[1]"])
    assert "image" not in body["messages"][0]["content"][1]
    # No other provider is sent an address that only Amazon can read.
    away = adapters.get("anthropic").to_wire([user("look", bucket)])
    assert [loss.path for loss in away.losses] == ["$.content[1]"]


@pytest.mark.row("T29")
def test_videos_go_only_to_models_that_accept_them() -> None:
    film = VideoBlock(MediaSource("base64", "AAAAGGZ0eXA="), "video/mp4")
    assert "video" in sent(user("look", film), model=NOVA, losses=[])["messages"][0]["content"][1]
    body = sent(user("look", film), model=CLAUDE, losses=["$.content[1]"])
    assert "text" in body["messages"][0]["content"][1]
    a = call("weather", tool_id(1))
    talk = (user("go"), assistant(a), tool(film, image(PNG), answers=a.id))
    inner = sent(*talk, tools=(WEATHER,), model=NOVA, losses=[])["messages"][2]["content"][0]
    assert [next(iter(part)) for part in inner["toolResult"]["content"]] == ["video", "image"]
    llama = "us.meta.llama4-maverick-17b-instruct-v1:0"
    body = sent(*talk, tools=(WEATHER,), model=llama)
    kinds = [next(iter(part)) for part in body["messages"][2]["content"]]
    assert kinds == ["toolResult", "text", "image"]


@pytest.mark.row("T95", "T96")
def test_documents_get_unique_names_and_accompanying_text() -> None:
    pdf = DocumentBlock(MediaSource("base64", "JVBERi0="), "application/pdf", "Lease v1.pdf")
    note = DocumentBlock(MediaSource("text", "Due."), "text/plain", context="a note")
    body = sent(
        user(pdf),
        assistant("ok"),
        user("and", pdf, note),
        losses=["$.content[0].name", "$.content", "$.content[1].name", "$.content[2].name"],
    )
    first, _, second = body["messages"]
    assert [next(iter(part)) for part in first["content"]] == ["text", "document"]
    names = [part["document"]["name"] for part in second["content"][1:]]
    assert (first["content"][1]["document"]["name"], *names) == (
        "Lease v1-pdf",
        "Lease v1-pdf (2)",
        "document-3",
    )
    assert second["content"][2]["document"]["context"] == "a note"


@pytest.mark.row("T95", "T176")
def test_document_names_are_stable_when_conversation_grows() -> None:
    pdf = DocumentBlock(MediaSource("base64", "JVBERi0="), "application/pdf", "a.pdf")
    talk = numbered(user("1", pdf), assistant("x"), user("2", pdf), assistant("y"), user("3"))
    growing = adapters.Adapter(CONVERSE.profile)
    for count in (1, 3, 5):
        grown = growing.to_wire(talk[:count])
        fresh = adapters.Adapter(CONVERSE.profile).to_wire(talk[:count])
        assert (grown.body, grown.losses) == (fresh.body, fresh.losses)


@pytest.mark.row("T170", "T172", "T174", "T180")
def test_cache_points_are_separate_parts_and_never_follow_a_document() -> None:
    pdf = DocumentBlock(MediaSource("base64", "JVBERi0="), "application/pdf", "a")
    hints = (CacheHint(after=1, ttl="1h"),)
    marked = user("read this", pdf, metadata=MessageMetadata(hints=hints))
    body = sent(marked, assistant("ok"), user("and?"))
    mark = {"cachePoint": {"type": "default", "ttl": "1h"}}
    assert body["messages"][0]["content"][1] == mark
    read = CONVERSE.from_wire_request(body_of(body), CONTEXT)
    assert read.messages[0].metadata.hints == (CacheHint(after=0, ttl="1h"),)
    away = json.loads(adapters.get("anthropic").to_wire(read.messages).body)
    assert away["messages"][0]["content"][0]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}


@pytest.mark.row("T170", "T171")
def test_cache_points_on_tools_count_towards_limit() -> None:
    point = {"cachePoint": {"type": "default"}}
    native = {"toolConfig": {"tools": [point, point, point]}}
    many = [user(f"{n}", metadata=MessageMetadata(hints=(CacheHint(after=0),))) for n in range(4)]
    talk = numbered(*(each for one in many for each in (one, assistant("ok"))), user("go"))
    options = AdapterOptions(native={"bedrock_converse": native})
    body = json.loads(CONVERSE.to_wire(talk, (WEATHER,), options).body)
    assert json.dumps(body).count("cachePoint") == 4
    assert converse_shape.complaints(body) == []


BAD: list[dict[str, Any]] = [
    {"messages": "x"},
    {"messages": [{"role": "user", "content": "x"}]},
    {"messages": [{"role": "robot", "content": []}]},
    {"messages": [{"content": []}]},
    {"messages": [3]},
    {"system": "x", "messages": []},
    {},
]


@pytest.mark.parametrize("body", BAD)
def test_invalid_request_error_names_the_place(body: dict[str, Any]) -> None:
    with pytest.raises(MetisError, match=r"\$\.(messages|system)"):
        CONVERSE.from_wire_request(body_of(body), CONTEXT)


def test_roles_and_texts_of_a_request() -> None:
    talk = [system("s"), user("u"), assistant(text("a"))]
    body = sent(*talk)
    read = CONVERSE.from_wire_request(body_of(body), CONTEXT)
    assert [message.role for message in read.messages] == [Role.SYSTEM, Role.USER, Role.ASSISTANT]
