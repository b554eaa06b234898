"""Rows of the source texts that belong to no room alone."""

import json
from importlib import import_module
from pathlib import Path

import pytest
from msgspec.structs import replace

from build import assistant, call, system, tool, tool_id, user
from metis import adapters
from metis.canonical import CacheHint, Message
from metis.wire.call import AdapterOptions

TESTS = Path(__file__).parents[1]


def hinted(message: Message) -> Message:
    metadata = replace(message.metadata, hints=(CacheHint(after=0),))
    return replace(message, metadata=metadata)


@pytest.mark.row("M-310")
@pytest.mark.parametrize(
    "name",
    [
        "metis.wire.anthropic",
        "metis.wire.openai_chat",
        "metis.canonical.ids",
        "metis.events",
        "metis.streaming",
        "metis.routing",
        "metis.session.prompt",
    ],
)
def test_everything_that_the_text_refers_to_has_a_module(name: str) -> None:
    assert (import_module(name).__doc__ or "").strip()


@pytest.mark.row("K-128")
@pytest.mark.parametrize(
    "suite",
    [
        "canonical/test_codec.py",
        "wire/test_laws.py",
        "tools/test_dispatch.py",
        "session/test_history.py",
        "interchange",
    ],
)
def test_there_is_a_suite_for_each_part(suite: str) -> None:
    place = TESTS / suite
    assert place.is_file() or list(place.glob("test_*.py"))


@pytest.mark.row("A-028")
def test_marked_content_is_a_plain_string_for_openai_and_nothing_is_told() -> None:
    wire = adapters.get("openai").to_wire([hinted(system("Be short.")), hinted(user("Hi."))])
    body = json.loads(wire.body)
    assert [turn["content"] for turn in body["messages"]] == ["Be short.", "Hi."]
    assert b"cache_control" not in wire.body
    assert wire.losses == []


@pytest.mark.row("A-028")
def test_several_texts_stay_parts_for_openai_because_a_string_has_no_boundary() -> None:
    wire = adapters.get("openai").to_wire([hinted(user("Be", "short."))])
    parts = [{"type": "text", "text": "Be"}, {"type": "text", "text": "short."}]
    assert json.loads(wire.body)["messages"] == [{"role": "user", "content": parts}]
    assert wire.losses == []


@pytest.mark.row("A-024")
def test_the_example_body_of_the_text_comes_out_of_the_unified_form() -> None:
    one = call("read_file", tool_id(1), path="src/main.ts")
    talk = [
        system("You are a coding assistant..."),
        user("Read the file"),
        assistant(one),
        tool("file contents here...", answers=one.id),
    ]
    options = AdapterOptions(model="claude-sonnet-4-20250514")
    body = json.loads(adapters.get("anthropic").to_wire(talk, (), options).body)
    own = f"toolu_{one.id[3:]}"
    assert body["model"] == "claude-sonnet-4-20250514"
    assert _plain(body["system"]) == "You are a coding assistant..."
    first, second, third = body["messages"]
    assert (first["role"], _plain(first["content"])) == ("user", "Read the file")
    (made,) = second["content"]
    assert {key: made[key] for key in ("type", "id", "name", "input")} == {
        "type": "tool_use",
        "id": own,
        "name": "read_file",
        "input": {"path": "src/main.ts"},
    }
    (result,) = third["content"]
    assert (third["role"], result["type"]) == ("user", "tool_result")
    assert (result["tool_use_id"], _plain(result["content"])) == (own, "file contents here...")


def _plain(content: str | list[dict[str, str]]) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)
