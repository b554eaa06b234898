"""Requirement rows of klaude-code, attocode and gpt2099 for adapters and formats."""

import ast
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from msgspec.structs import replace

from build import (
    assistant,
    call,
    image,
    numbered,
    system,
    text,
    thinking,
    tool,
    tool_id,
    user,
)
from judges import complaints
from metis import adapters, interchange
from metis.adapters.adapter import Adapter
from metis.adapters.codecs import CODECS
from metis.canonical import (
    ArtifactBlock,
    CacheHint,
    Message,
    SideEffects,
    TextBlock,
    ThinkingBlock,
    ToolDefinition,
    ToolUseBlock,
)
from metis.cli.render import render_message
from metis.cli.text import unstyled
from metis.streaming import Accumulator, MessageComplete
from metis.wire.call import AdapterOptions, RequestContext

SOURCE = Path(__file__).parent.parent.parent / "src" / "metis"
CONTEXT = RequestContext(session_id="sess_42")
CLAUDE = AdapterOptions(model="claude-sonnet-4-6", max_output_tokens=100)
MARK = {"type": "ephemeral"}
PROTOCOLS = {adapters.get(name).profile.protocol: name for name in reversed(adapters.names())}
TALK = numbered(
    system("be kind"),
    user("one"),
    user("two"),
    assistant("look", call("f", tool_id(1), a=1), call("g", tool_id(2))),
    tool("r1", answers=tool_id(1)),
    tool("r2", answers=tool_id(2)),
    assistant("done"),
    user("on"),
)


def hinted(message: Message, after: int = 0) -> Message:
    return replace(message, metadata=replace(message.metadata, hints=(CacheHint(after=after),)))


def body_of(name: str, messages: Sequence[Message], **options: Any) -> dict[str, Any]:
    request_hints = CLAUDE if name == "anthropic" else AdapterOptions(**options)
    return json.loads(adapters.get(name).to_wire(messages, (), request_hints).body)


@pytest.mark.row("K-001", "K-101", "K-134")
def test_adapters_accept_and_return_messages() -> None:
    """There is no intermediate type between messages and wire bytes."""
    request_hints, read = (
        get_type_hints(Adapter.to_wire),
        get_type_hints(Adapter.from_wire_response),
    )
    assert request_hints["messages"] == Sequence[Message]
    assert read["return"] is Message
    assert MessageComplete.__annotations__["message"] is Message


@pytest.mark.row("K-002")
@pytest.mark.parametrize("name", PROTOCOLS.values())
def test_each_protocol_encodes_requests_and_decodes_streams(name: str) -> None:
    judged = {"anthropic", "openai", "openai-responses", "gemini", "bedrock-converse", "ollama"}
    assert set(PROTOCOLS.values()) == judged
    assert complaints(name, body_of(name, TALK)) == []
    adapter = adapters.get(name)
    writer, reader = adapter.stream_encoder(CONTEXT), adapter.stream_decoder(CONTEXT)
    answer = adapters.get("openai").from_wire_response(
        {"choices": [{"message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}]},
        CONTEXT,
    )
    source = adapters.get("openai").stream_decoder(CONTEXT)
    chunk = {"choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": "stop"}]}
    events = source.feed(f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode())
    wire = b"".join([*(writer.encode(event) for event in events), writer.finish()])
    ends = [e for e in (*reader.feed(wire), *reader.finish()) if isinstance(e, MessageComplete)]
    assert [end.message.content for end in ends] == [answer.content]


class IterationCounter(list[Message]):
    """A list of messages that counts its iterations."""

    walks = 0

    def __iter__(self) -> Iterator[Message]:
        self.walks += 1
        return super().__iter__()


@pytest.mark.row("K-023", "K-024", "K-133")
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_encoder_iterates_messages_once(protocol: str) -> None:
    """Messages are encoded in list order without grouping them first."""
    whole, single, options = CODECS[protocol].history(), CODECS[protocol].history(), CLAUDE
    turns = IterationCounter(TALK)
    whole.add(turns)
    assert turns.walks == (
        0 if protocol == "openai_responses" else 1
    )  # copied without being decoded
    for message in TALK:
        single.add([message])
    assert whole.body((), options) == single.body((), options)


@pytest.mark.row("K-104", "K-127")
def test_message_grouping_helper_is_removed() -> None:
    for path in SOURCE.rglob("*.py"):
        assert "parse_message_groups" not in path.read_text(), path
    for path in (SOURCE / "wire" / "openai_chat").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.ImportFrom):
                names = [a.name for a in getattr(node, "names", [])] or [getattr(node, "name", "")]
                assert not [name for name in names if "group" in name], path


@pytest.mark.row("K-106", "K-107", "K-108", "A-018", "A-020", "A-023")
def test_anthropic_body_with_thinking_call_result_and_cache_marks() -> None:
    """Sealed thinking, a call, its result, and marks on exactly the hinted blocks."""
    thought = thinking("why", signature="c2ln", issuer="anthropic")
    called = call("read_file", tool_id(1), path="a")
    talk = [
        hinted(system("one", "two"), 1),
        hinted(user("go", "now")),
        assistant(thought, text("I look."), called),
        hinted(tool("hello", answers=called.id)),
    ]
    own = called.id.replace("tu_", "toolu_")
    body = body_of("anthropic", talk)
    assert complaints("anthropic", body) == []
    # Tools used in the history are defined even if the request has none (T36).
    assert [tool["name"] for tool in body.pop("tools")] == ["read_file"]
    assert body.pop("tool_choice") == {"type": "none"}
    assert body == {
        "model": "claude-sonnet-4-6",
        "max_tokens": 100,
        "system": [
            {"type": "text", "text": "one"},
            {"type": "text", "text": "two", "cache_control": MARK},
        ],
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "go", "cache_control": MARK},
                    {"type": "text", "text": "now"},
                ],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "why", "signature": "c2ln"},
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": own, "name": "read_file", "input": {"path": "a"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": own,
                        "content": [{"type": "text", "text": "hello"}],
                        "cache_control": MARK,
                    }
                ],
            },
        ],
    }


def chunk(delta: dict[str, Any], reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return f"data: {json.dumps({'id': 'c', 'model': 'm', 'choices': [choice]})}\n\n".encode()


@pytest.mark.row("K-112")
def test_a_stream_of_chat_completions_adds_up_to_parts_of_every_kind() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aWY="}}
    function = {"name": "f", "arguments": '{"a"'}
    use = {"index": 0, "id": "call_1", "type": "function", "function": function}
    more = {"index": 0, "function": {"arguments": ": 1}"}}
    decoder = adapters.get("openrouter").stream_decoder(CONTEXT)
    stream = [
        chunk({"role": "assistant", "reasoning": "hm"}),
        chunk({"content": "a"}),
        chunk({"content": "b"}),
        chunk({"images": [picture]}),
        chunk({"tool_calls": [use]}),
        chunk({"tool_calls": [more]}),
        chunk({}, "tool_calls"),
        b"data: [DONE]\n\n",
    ]
    events = [event for piece in stream for event in decoder.feed(piece)] + decoder.finish()
    end = events[-1]
    assert isinstance(end, MessageComplete)
    wire_message: dict[type, object] = {}
    for block in end.message.content:
        match block:
            case TextBlock() | ThinkingBlock():
                wire_message[type(block)] = block.text
            case ToolUseBlock():
                wire_message[type(block)] = block.input
            case ArtifactBlock():
                wire_message[type(block)] = block.source.data
            case _:
                wire_message[type(block)] = block
    assert wire_message == {
        ThinkingBlock: "hm",
        TextBlock: "ab",
        ArtifactBlock: "aWY=",
        ToolUseBlock: {"a": 1},
    }
    total = Accumulator()
    for event in events:
        total.add(event)
    assert {type(block) for block in total.content} == set(wire_message)


@pytest.mark.row("K-125")
def test_display_text_is_derived_from_blocks() -> None:
    called = call("read_file", tool_id(1), path="a.txt")
    talk = (user("go"), assistant("I look.", called), tool("hello", answers=called.id))
    shown = "\n".join(unstyled(render_message(each)) for each in talk)
    assert shown.splitlines() == [
        "user  2026-05-08 12:00:00",
        "  go",
        "assistant  2026-05-08 12:00:00 · anthropic:claude-sonnet-4-6 · default: workspace default",
        "  I look.",
        '  → read_file(path="a.txt")',
        "  8 in · 42 out · $0.000654 at prices of 2026-05-08 · 820 ms",
        "tool  2026-05-08 12:00:00",
        "  ← hello",
    ]


def reasoned(key: str, value: Any) -> dict[str, Any]:
    wire_message = {"role": "assistant", "content": "x", key: value}
    return {
        "id": "r",
        "model": "deepseek/deepseek-r1",
        "choices": [{"index": 0, "message": wire_message, "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": 10,
            "completion_tokens": 1,
            "prompt_tokens_details": {"cached_tokens": 4},
        },
    }


def test_openrouter_reasoning_and_cached_tokens_are_decoded() -> None:
    answer = adapters.get("openrouter").from_wire_response(reasoned("reasoning", "why"), CONTEXT)
    assert isinstance(answer.content[0], ThinkingBlock)
    assert answer.content[0].text == "why"
    dumped = json.loads(interchange.dump("attocode-response", [answer]).data)
    assert dumped["thinking"] == "why"
    assert dumped["usage"]["cacheReadTokens"] == 4


DETAILS = [{"type": "reasoning.text", "text": "why", "signature": "c2ln", "index": 0}]


@pytest.mark.row("KX-02")
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("reasoning_content", "why"),
        ("reasoning", "why"),
        ("reasoning_text", "why"),
        ("reasoning_details", DETAILS),
    ],
)
def test_reasoning_is_sent_back_under_its_original_key(key: str, value: Any) -> None:
    answer = adapters.get("openrouter").from_wire_response(reasoned(key, value), CONTEXT)
    talk = [user("q"), answer, user("on")]
    sent = body_of("openrouter", talk, model="deepseek/deepseek-r1")["messages"][1]
    assert {name: sent[name] for name in sent if name.startswith("reasoning")} == {key: value}


@pytest.mark.row("A-037")
def test_one_function_encodes_tools_for_all_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    given = [ToolDefinition("f", "Does it.", schema, SideEffects.READ)]

    def tools_of(name: str) -> Any:
        return json.loads(adapters.get(name).to_wire([user("go")], given).body)["tools"]

    def other(tools: Sequence[ToolDefinition]) -> list[dict[str, Any]]:
        return [
            {"type": "function", "function": {"name": f"{tool.name}_patched"}} for tool in tools
        ]

    assert tools_of("openai") == tools_of("openrouter")
    assert tools_of("openai")[0]["function"]["parameters"] == schema
    monkeypatch.setattr("metis.wire.function_tools.encode_functions", other)
    for name in ("openai", "openrouter"):
        assert [each["function"]["name"] for each in tools_of(name)] == ["f_patched"]


@pytest.mark.row("KX-01", "KX-04")
def test_phase_and_both_ids_are_sent_back_to_responses() -> None:
    output: list[dict[str, Any]] = [
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "phase": "commentary",
            "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
        },
        {
            "type": "function_call",
            "id": "fc_1",
            "call_id": "call_1",
            "name": "f",
            "arguments": "{}",
            "status": "completed",
        },
    ]
    body = {"id": "resp_1", "object": "response", "model": "gpt-5", "status": "completed"}
    adapter = adapters.get("openai-responses")
    answer = adapter.from_wire_response(body | {"output": output}, CONTEXT)
    called = next(block for block in answer.content if isinstance(block, ToolUseBlock))
    sent = body_of("openai-responses", [user("go"), answer, tool("ok", answers=called.id)])["input"]
    assert sent[1]["phase"] == "commentary"
    assert (sent[2]["id"], sent[2]["call_id"]) == ("fc_1", "call_1")
    assert sent[3]["call_id"] == "call_1"


@pytest.mark.row("KX-06")
@pytest.mark.parametrize("name", PROTOCOLS.values())
def test_unanswered_call_gets_error_result(name: str) -> None:
    wire = adapters.get(name).to_wire([user("go"), assistant(call("f", tool_id(1))), user("on")])
    assert complaints(name, json.loads(wire.body)) == []
    assert "No result of this call is available" in wire.body.decode()
    assert "synthesised" in [loss.change for loss in wire.losses]


@pytest.mark.row("KX-13", "AX-01")
def test_strict_chat_hosts_get_results_directly_after_calls() -> None:
    talk = numbered(
        user("go"),
        assistant(call("f", tool_id(1)), call("g", tool_id(2))),
        tool(image(), "see", answers=tool_id(1)),
        user("between"),
        tool("r2", answers=tool_id(2)),
        tool("orphan", answers=tool_id(9)),
    )
    body = body_of("openai", talk)
    assert complaints("openai", body) == []
    roles = [message["role"] for message in body["messages"]]
    assert roles == ["user", "assistant", "tool", "tool", "user", "user", "user"]
    ids = [each["id"] for each in body["messages"][1]["tool_calls"]]
    assert [each["tool_call_id"] for each in body["messages"][2:4]] == ids
    assert body["messages"][4]["content"][1]["type"] == "image_url"
    assert body["messages"][5]["content"] == "between"


@pytest.mark.row("AX-07")
def test_truncated_stream_still_has_its_calls() -> None:
    function = {"name": "f", "arguments": '{"a": 1}'}
    use = {"index": 0, "id": "call_1", "type": "function", "function": function}
    decoder = adapters.get("openai").stream_decoder(CONTEXT)
    events = [*decoder.feed(chunk({"tool_calls": [use]})), *decoder.finish()]
    kinds = [event.type for event in events]
    assert kinds.count("tool_use_start") == kinds.count("tool_use_end") == 1
    (called,) = decoder.message.content
    assert isinstance(called, ToolUseBlock)
    assert (called.input, called.invalid) == ({"a": 1}, None)
