"""Provider-switch failures (rows T…) for the target Bedrock Converse."""

import json
import logging
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

import converse_shape
from build import assistant, call, image, numbered, provenance, system, text, tool, tool_id, user
from corpus import body_of
from metis import adapters
from metis.canonical import (
    CacheHint,
    ImageBlock,
    ImageSource,
    Message,
    OpaqueBlock,
    SideEffects,
    ThinkingBlock,
    ToolDefinition,
    ToolUseBlock,
)
from metis.canonical.metadata import MessageMetadata
from metis.projection.media import DOCUMENT_TEXT
from metis.wire.call import AdapterOptions, RequestContext, ToolChoice
from metis.wire.reasoning import Reasoning

CONVERSE = adapters.get("bedrock-converse")
CONTEXT = RequestContext(session_id="sess_rows")
NEWER = "us.anthropic.claude-sonnet-4-6"
WEATHER = ToolDefinition("weather", "Tells it.", {"type": "object"}, SideEffects.READ)
A, B = call("weather", tool_id(1), city="x"), call("weather", tool_id(2))


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="metis.adapters")


def sent(
    *messages: Message, tools: tuple[ToolDefinition, ...] = (WEATHER,), **options: Any
) -> tuple[dict[str, Any], list[str]]:
    """Return a request that the service accepts, and the paths of its losses."""
    wire = CONVERSE.to_wire(numbered(*messages), tools, AdapterOptions(**options))
    body = json.loads(wire.body)
    assert converse_shape.complaints(body) == []
    assert list(converse_shape.faults(body)) == []
    return body, [loss.path for loss in wire.losses]


@pytest.mark.row("T08", "T22")
def test_duplicate_calls_and_results_are_repaired() -> None:
    body, lost = sent(
        user("go"), assistant(A, A), tool("1", answers=A.id), tool("2", answers=A.id), user("on")
    )
    assert len(body["messages"][1]["content"]) == 1
    assert lost


@pytest.mark.row("T19", "T20")
def test_unpaired_calls_and_results_are_repaired() -> None:
    _, lost = sent(user("go"), assistant(A, B), tool("1", answers=A.id), user("on"))
    assert lost
    _, lost = sent(user("go"), tool("1", answers=A.id), assistant("so"), user("on"))
    assert lost


@pytest.mark.row("T24", "T25")
@pytest.mark.parametrize("texts", [(), ("",), (" \n",)])
def test_empty_tool_result_is_sent(texts: tuple[str, ...]) -> None:
    body, _ = sent(user("go"), assistant(A), tool(*texts, answers=A.id))
    answer = body["messages"][2]["content"][0]["toolResult"]
    assert all(part["text"].strip() for part in answer["content"])


@pytest.mark.row("T32", "T34")
def test_non_object_arguments_are_repaired() -> None:
    part: dict[str, Any] = {"toolUse": {"toolUseId": "x", "name": "weather", "input": "{cit"}}
    body = {"output": {"message": {"role": "assistant", "content": [part]}}}
    message = CONVERSE.from_wire_response(body_of(body), CONTEXT)
    (block,) = message.content
    assert isinstance(block, ToolUseBlock)
    assert block.invalid is not None
    assert block.input == {}
    body, _ = sent(user("go"), message, tool("bad", answers=block.id))
    assert isinstance(body["messages"][1]["content"][0]["toolUse"]["input"], dict)
    del part["toolUse"]["input"]
    body = {"output": {"message": {"role": "assistant", "content": [part]}}}
    (block,) = CONVERSE.from_wire_response(body_of(body), CONTEXT).content
    assert isinstance(block, ToolUseBlock)
    assert (block.input, block.invalid) == ({}, None)


@pytest.mark.row("T37")
def test_tool_loop_without_thinking_continues_without_thinking() -> None:
    talk = (user("go"), assistant(A), tool("x", answers=A.id))
    body, lost = sent(*talk, reasoning=Reasoning(budget_tokens=2000))
    assert lost == ["$.reasoning"]
    assert body["additionalModelRequestFields"] == {"thinking": {"type": "disabled"}}


@pytest.mark.row("T41", "T43")
def test_only_signed_thinking_is_sent_and_its_text_may_be_empty() -> None:
    signed = ThinkingBlock("", "c2ln", issuer="bedrock_converse")
    bare = ThinkingBlock("hm", issuer="bedrock_converse")
    body, lost = sent(user("go"), assistant(signed, bare, text("x")), user("on"))
    first, second = body["messages"][1]["content"]
    assert first == {"reasoningContent": {"reasoningText": {"signature": "c2ln", "text": ""}}}
    assert second == {"text": "x"}
    assert lost == ["$.content[1]"]


@pytest.mark.row("T40", "T203")
def test_foreign_thinking_is_not_sent() -> None:
    thought = ThinkingBlock("hm", "c2ln", issuer="anthropic")
    answer = assistant(thought, text("x"), metadata=provenance(provider="anthropic"))
    body, lost = sent(user("go"), answer, user("on"))
    assert body["messages"][1]["content"] == [{"text": "x"}]
    assert lost == ["$.content[0]"]


@pytest.mark.row("T46", "T47")
def test_forced_tool_choice_disables_thinking() -> None:
    body, lost = sent(user("go"), reasoning=Reasoning(budget_tokens=10), max_output_tokens=3000)
    assert body["additionalModelRequestFields"]["thinking"]["budget_tokens"] == 1024
    assert lost == ["$.reasoning"]
    body, lost = sent(
        user("go"), reasoning=Reasoning(budget_tokens=2000), tool_choice=ToolChoice("required")
    )
    assert lost == ["$.reasoning"]
    assert body["additionalModelRequestFields"] == {"thinking": {"type": "disabled"}}
    assert body["toolConfig"]["toolChoice"] == {"any": {}}


@pytest.mark.row("T76", "T77")
def test_first_turn_is_a_user_turn() -> None:
    for talk in ((system("s"),), (assistant("x"), user("y"))):
        body, lost = sent(*talk)
        assert body["messages"][0]["role"] == "user"
        assert lost == ["$"]


@pytest.mark.row("T78", "T79")
def test_prefill_is_sent_only_to_models_that_continue_it() -> None:
    body, lost = sent(user("go"), assistant("1. "))
    assert (body["messages"][-1]["content"], lost) == ([{"text": "1."}], ["$.content[0]"])
    body, lost = sent(user("go"), assistant("1."), model=NEWER)
    assert body["messages"][-1]["role"] == "user"
    assert lost == ["$"]


@pytest.mark.row("T83", "T84")
def test_blank_texts_are_omitted_and_placeholders_are_visible() -> None:
    body, lost = sent(user("go"), assistant("", "x", " "), user("on"))
    assert body["messages"][1]["content"] == [{"text": "x"}]
    assert len(lost) == 2
    assert DOCUMENT_TEXT.strip()


@pytest.mark.row("T89", "T91")
def test_image_type_follows_bytes_and_size_is_limited() -> None:
    wrong = ImageBlock(ImageSource("base64", "iVBORw0KGgo="), "image/jpeg")
    body, lost = sent(user("look", wrong))
    assert body["messages"][0]["content"][1]["image"]["format"] == "png"
    assert lost == ["$.content[1]"]
    body, lost = sent(user("look", image("A" * 5 * 1024 * 1024 + "AAAA")))
    assert "image" not in body["messages"][0]["content"][1]
    assert lost == ["$.content[1]"]


@pytest.mark.row("T104", "T107", "T111")
def test_tool_schemas_fit_accepted_subset() -> None:
    union = {"anyOf": [{"type": "object", "properties": {"a": {"type": "string"}}}]}
    named = ToolDefinition("mcp." + "x" * 80, "Long.", union, SideEffects.READ)
    used = call(named.name, tool_id(1))
    body, lost = sent(user("go"), assistant(used), tool("x", answers=used.id), tools=(named,))
    (spec,) = body["toolConfig"]["tools"]
    assert "anyOf" not in spec["toolSpec"]["inputSchema"]["json"]
    name = body["messages"][1]["content"][0]["toolUse"]["name"]
    assert name == spec["toolSpec"]["name"] != named.name
    assert lost


@pytest.mark.row("T109")
def test_strict_flag_of_tools_is_kept_only_for_clients_of_this_protocol() -> None:
    spec = {"name": "weather", "inputSchema": {"json": {"type": "object"}}, "strict": True}
    body = {
        "messages": [{"role": "user", "content": [{"text": "hi"}]}],
        "toolConfig": {"tools": [{"toolSpec": spec}]},
    }
    read = CONVERSE.from_wire_request(body_of(body), CONTEXT)
    assert json.loads(CONVERSE.to_wire(read.messages, read.tools, read.options).body) == body
    options = replace(read.options, model=None)
    away = adapters.get("anthropic").to_wire(read.messages, read.tools, options)
    assert [loss.path for loss in away.losses] == ["$.toolConfig.tools[0].toolSpec.strict"]


@pytest.mark.row("T170", "T171", "T179")
def test_at_most_four_cache_points_with_longest_ttl_first() -> None:
    lives = ("5m", "1h", None, "1h", "5m", None)
    talk: list[Message] = []
    for number, ttl in enumerate(lives):
        hints = (CacheHint(after=0, ttl=ttl),)
        talk += [user(f"{number}", metadata=MessageMetadata(hints=hints)), assistant("ok")]
    body, _ = sent(*talk, user("go"))
    parts = [part for turn in body["messages"] for part in turn["content"]]
    marks = [part["cachePoint"] for part in parts if "cachePoint" in part]
    assert len(marks) == 4
    lived = [mark.get("ttl") == "1h" for mark in marks]
    assert lived == sorted(lived, reverse=True)


@pytest.mark.row("T175")
def test_model_without_cache_gets_no_cache_points() -> None:
    hinted = user("x", metadata=MessageMetadata(hints=(CacheHint(after=0),)))
    body, lost = sent(hinted, model="us.meta.llama4-maverick-17b-instruct-v1:0")
    assert (body["messages"][0]["content"], lost) == ([{"text": "x"}], [])


@pytest.mark.row("T196")
def test_foreign_provider_run_calls_are_reported_as_losses() -> None:
    raw = b'{"type":"server_tool_use","id":"x","name":"web_search","input":{}}'
    ran = OpaqueBlock("anthropic", Raw(raw), "server_tool_use")
    body, lost = sent(user("go"), assistant(ran, text("x")), user("on"))
    assert body["messages"][1]["content"] == [{"text": "x"}]
    assert lost == ["$.content[0]"]
