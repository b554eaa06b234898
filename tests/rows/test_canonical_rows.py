"""Requirement rows of the canonical format that involve several packages."""

import ast
import json
import logging
from functools import cache
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from build import (
    EVERY_BLOCK,
    assistant,
    call,
    provenance,
    system,
    text,
    thinking,
    tool,
    tool_id,
    usage,
    user,
)
from judges import complaints
from metis import adapters
from metis.canonical import (
    Role,
    SideEffects,
    StopReason,
    ToolDefinition,
    ToolSet,
    ToolUseBlock,
    UnknownBlock,
)
from metis.canonical.ids import is_ulid
from metis.canonical.schema.subset import FORMATS, KEYWORDS, TYPES
from metis.streaming import (
    BlockAdded,
    MessageComplete,
    MessageStart,
    StreamError,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
    UsageUpdate,
)
from metis.wire.call import AdapterOptions, RequestContext

SOURCE = Path(__file__).parent.parent.parent / "src" / "metis"
SDKS = {"anthropic", "google", "openai", "ollama"}
CONTEXT = RequestContext(session_id="sess_42")


@cache
def imported(path: Path) -> set[str]:
    """Return the full names of what a module imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.row("M-005", "A-001")
def test_only_wire_and_adapters_have_provider_formats() -> None:
    protocols = {f"metis.wire.{path.name}" for path in (SOURCE / "wire").iterdir() if path.is_dir()}
    protocols.discard("metis.wire.__pycache__")
    assert {"metis.wire.anthropic", "metis.wire.openai_chat"} <= protocols
    for path in SOURCE.rglob("*.py"):
        names = imported(path)
        assert not {name.partition(".")[0] for name in names} & SDKS, path
        room = path.relative_to(SOURCE).parts[0]
        known = {one for one in protocols for name in names if f"{name}.".startswith(f"{one}.")}
        if room == "wire":
            own = ".".join(("metis", *path.relative_to(SOURCE).parts[:2]))
            assert known <= {own}, path
        # Session files of other programs have items of their provider's protocol.
        elif room not in ("adapters", "interchange"):
            assert not known, path


@pytest.mark.row("M-166")
def test_adapters_take_ids_only_from_canonical() -> None:
    sources = {"uuid", "random", "secrets", "ulid", "os"}
    for room in ("wire", "adapters", "projection"):
        for path in (SOURCE / room).rglob("*.py"):
            assert not {name.partition(".")[0] for name in imported(path)} & sources, path


CALLED: dict[str, dict[str, Any]] = {
    "anthropic": {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-6",
        "content": [{"type": "tool_use", "id": "toolu_own", "name": "f", "input": {"n": 1}}],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 1, "output_tokens": 1},
    },
    "openai": {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": "gpt-5",
        "choices": [
            {
                "index": 0,
                "finish_reason": "tool_calls",
                "message": {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {
                            "id": "call_own",
                            "type": "function",
                            "function": {"name": "f", "arguments": '{"n":1}'},
                        }
                    ],
                },
            }
        ],
    },
}
OWN_IDS = {"anthropic": "toolu_own", "openai": "call_own"}


@pytest.mark.row("M-166", "M-301")
@pytest.mark.parametrize("name", CALLED)
def test_ids_are_generated_and_provider_receives_its_wire_ids(name: str) -> None:
    """Ids are generated with a message; wire ids are stored for requests to their provider."""
    adapter = adapters.get(name)
    answers = [adapter.from_wire_response(CALLED[name], CONTEXT) for _ in range(2)]
    assert all(is_ulid(answer.id) for answer in answers)
    assert answers[0].id < answers[1].id
    (called,) = answers[0].content
    assert isinstance(called, ToolUseBlock)
    assert called.id.startswith("tu_")
    assert is_ulid(called.id.removeprefix("tu_"))
    history = [user("go"), answers[0], tool("ok", answers=called.id)]
    own = adapter.to_wire(history).body.decode()
    assert own.count(OWN_IDS[name]) == 2
    assert own == adapter.to_wire(history).body.decode()
    for other in adapters.names():
        protocol = adapters.get(other).profile.protocol
        if protocol != adapter.profile.protocol:
            assert OWN_IDS[name] not in adapters.get(other).to_wire(history).body.decode()


def whole_subset() -> dict[str, Any]:
    """Return a schema with every keyword, type and format of the tool subset."""
    properties: dict[str, Any] = {f"as_{kind}": {"type": kind} for kind in TYPES}
    properties |= {f"at_{name}": {"type": "string", "format": name} for name in FORMATS}
    properties["either"] = {"type": ["string", "null"], "description": "or nothing"}
    properties["word"] = {"type": "string", "enum": ["a", "b"]}
    properties["list"] = {"type": "array", "items": {"type": "integer"}}
    properties["inner"] = {
        "type": "object",
        "properties": {"n": {"type": "number"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    return {
        "type": "object",
        "properties": properties,
        "required": ["word"],
        "additionalProperties": False,
    }


def keywords(schema: dict[str, Any]) -> set[str]:
    found = set(schema)
    for inner in (*schema.get("properties", {}).values(), schema.get("items")):
        found |= keywords(inner) if inner else set()
    return found


@pytest.mark.row("M-162")
def test_every_schema_keyword_of_the_subset_is_sent_unchanged() -> None:
    schema = whole_subset()
    assert keywords(schema) == set(KEYWORDS)
    definition = ToolDefinition("f", "Does it.", schema, SideEffects.READ)
    ToolSet([definition])
    bodies = {
        name: json.loads(adapters.get(name).to_wire([user("go")], [definition]).body)
        for name in ("anthropic", "openai")
    }
    assert bodies["anthropic"]["tools"][0]["input_schema"] == schema
    assert bodies["openai"]["tools"][0]["function"]["parameters"] == schema
    assert {name: complaints(name, body) for name, body in bodies.items()} == {
        "anthropic": [],
        "openai": [],
    }


@pytest.mark.row("M-204")
@pytest.mark.parametrize(
    ("model", "thinks"), [("claude-sonnet-4-6", True), ("claude-3-5-haiku-latest", False)]
)
def test_thinking_is_sent_to_reasoning_models(model: str, *, thinks: bool) -> None:
    anthropic = adapters.get("anthropic")
    assert anthropic.capabilities(model).supports_thinking is thinks
    about = provenance(model=f"anthropic:{model}")
    thought = thinking("hm", signature="c2ln", issuer="anthropic")
    history = [user("go"), assistant(thought, text("yes"), metadata=about), user("on")]
    wire = anthropic.to_wire(history, (), AdapterOptions(model=model))
    kinds = [block["type"] for block in json.loads(wire.body)["messages"][1]["content"]]
    assert kinds == (["thinking", "text"] if thinks else ["text"])
    assert [loss.block_type for loss in wire.losses] == ([] if thinks else ["thinking"])


EVENTS: dict[str, StreamEvent] = {
    "message_start": MessageStart("m", model="a:b", response_id="r"),
    "text_delta": TextDelta("m", 0, "hi"),
    "thinking_delta": ThinkingDelta("m", 0, "hm", "c2ln"),
    "tool_use_start": ToolUseStart("m", 1, tool_id(1), "f", "call_1"),
    "tool_use_input_delta": ToolUseInputDelta("m", 1, tool_id(1), '{"a'),
    "tool_use_end": ToolUseEnd("m", 1, tool_id(1), {"a": 1}),
    "block_added": BlockAdded("m", 2, EVERY_BLOCK["redacted_thinking"]),
    "usage_update": UsageUpdate("m", usage()),
    "message_complete": MessageComplete("m", StopReason.END_TURN, assistant("hi")),
    "error": StreamError("m", "ServerError", "down", assistant("h"), 500, is_retryable=True),
}


@pytest.mark.row("M-228")
@pytest.mark.parametrize("tag", EVENTS)
def test_stream_event_types_have_their_fields(tag: str) -> None:
    event = EVENTS[tag]
    event_json = json.loads(msgspec.json.encode(event))
    assert event_json["type"] == tag == event.type
    others = {name for name, other in EVENTS.items() if type(other) is type(event)}
    assert others == {tag}
    assert set(event_json) <= {"type", *event.__struct_fields__}


@pytest.mark.row("M-228")
def test_events_are_decoded_by_their_type() -> None:
    decoder: msgspec.json.Decoder[StreamEvent] = msgspec.json.Decoder(StreamEvent)
    for event in EVENTS.values():
        assert decoder.decode(msgspec.json.encode(event)) == event
    assert {type(event) for event in EVENTS.values()} == set(get_args(StreamEvent))
    with pytest.raises(msgspec.ValidationError):
        decoder.decode(b'{"type":"sound_delta","message_id":"m"}')
    with pytest.raises(msgspec.ValidationError):
        decoder.decode(b'{"type":"text_delta","message_id":"m","partial_json":"{"}')


@pytest.mark.row("M-299")
def test_tool_result_is_a_separate_message_in_every_protocol() -> None:
    called = call("f", tool_id(1))
    history = [user("go"), assistant(called), tool("ok", answers=called.id)]
    anthropic, openai = adapters.get("anthropic"), adapters.get("openai")
    wires = {each.name: each.to_wire(history).body for each in (anthropic, openai)}
    anthropic_message = json.loads(wires["anthropic"])["messages"][2]
    assert (anthropic_message["role"], anthropic_message["content"][0]["type"]) == (
        "user",
        "tool_result",
    )
    assert json.loads(wires["openai"])["messages"][2]["role"] == "tool"
    for each in (anthropic, openai):
        read = each.from_wire_request(wires[each.name], CONTEXT).messages
        assert [message.role for message in read] == [Role.USER, Role.ASSISTANT, Role.TOOL]
        assert [block.type for message in read for block in message.content] == [
            "text",
            "tool_use",
            "tool_result",
        ]


@pytest.mark.row("M-306")
@pytest.mark.parametrize("name", adapters.names())
@pytest.mark.parametrize("tag", sorted(EVERY_BLOCK))
def test_unsupported_blocks_give_warnings_and_no_error(
    name: str, tag: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Every kind of block, to every provider: no error, and a warning for each loss."""
    given = EVERY_BLOCK[tag]
    assert not isinstance(given, UnknownBlock)
    block = msgspec.structs.replace(given, critical=False)
    carrier = user(block) if tag not in ("tool_use", "tool_result") else assistant(text("x"), block)
    history = [system("s"), user("go"), carrier, user("on")]
    with caplog.at_level(logging.DEBUG, logger="metis"):
        wire = adapters.get(name).to_wire(history)
    warned = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [getattr(record, "block_type", "") for record in warned] == [
        loss.block_type for loss in wire.losses
    ]
    json.loads(wire.body)


@pytest.mark.row("M-306")
def test_adapters_and_projection_do_not_import_events() -> None:
    for room in ("canonical", "projection", "wire", "adapters"):
        for path in (SOURCE / room).rglob("*.py"):
            assert not [name for name in imported(path) if name.startswith("metis.events")], path
