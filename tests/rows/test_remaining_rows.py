"""Requirement rows that belong to no single package."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from build import system, user
from metis import adapters
from metis.canonical import CacheHint, Message, TextBlock
from metis.canonical.ids import ulid_to_int
from metis.events import Bus, Event
from metis.events.turn_events import TurnCancelled
from metis.routing import parse_override
from metis.session.prompt import find_skills
from metis.streaming import Accumulator, TextDelta


def hinted(message: Message) -> Message:
    metadata = replace(message.metadata, hints=(CacheHint(after=0),))
    return replace(message, metadata=metadata)


@pytest.mark.row("M-310")
def test_referenced_protocols_and_specifications_are_implemented(tmp_path: Path) -> None:
    """Two wire protocols and the ULID specification by examples; companion formats by use."""
    talk = [user("hi")]
    assert adapters.get("anthropic").to_wire(talk).path == "/v1/messages"
    assert adapters.get("openai").to_wire(talk).path == "/v1/chat/completions"
    # The example of the ULID specification: 2016-07-30T22:36:16.385Z.
    assert ulid_to_int("01ARYZ6S41TSV4RRFFQ69G5FAV") >> 80 == 1469918176385
    bus_events: list[Event] = []
    bus = Bus()
    bus.subscribe_fast(bus_events.append, name="test")
    bus.emit(TurnCancelled(reason="user_cancel"), session_id="sess_1")
    assert [event.type for event in bus_events] == ["turn.cancelled"]
    total = Accumulator()
    total.add(TextDelta("m", 0, "so"))
    assert tuple(total.content) == (TextBlock("so"),)
    routed = parse_override("@sonnet go")
    assert (routed.override, routed.text) == ("sonnet", "go")
    skill = tmp_path / "skills" / "deploy" / "SKILL.md"
    skill.parent.mkdir(parents=True)
    skill.write_text("---\nname: deploy\ndescription: Ships it.\n---\nRun it.\n")
    (loaded,) = find_skills(tmp_path, None)
    assert (loaded.name, loaded.description, loaded.body()) == ("deploy", "Ships it.", "Run it.")


@pytest.mark.row("KX-18")
@pytest.mark.parametrize(
    ("protocol", "name"),
    [
        ("openai", "openai"),
        ("responses", "openai-responses"),
        ("openrouter", "openrouter"),
        ("anthropic", "anthropic"),
        ("bedrock", "bedrock"),
        ("google", "gemini"),
        ("google_vertex", "vertex"),
        ("xai_oauth", "xai"),
        ("codex_oauth", "openai-responses"),
    ],
)
def test_every_protocol_of_klaude_code_has_an_adapter(protocol: str, name: str) -> None:
    """The two logins differ from their provider only in the token, which is the API key here."""
    place = "projects/p/locations/global" if name == "vertex" else None
    wire = adapters.get(name, place=place).to_wire([user("hi")])
    assert b"hi" in wire.body, protocol


@pytest.mark.row("A-028")
def test_cache_marked_content_is_a_plain_string_for_openai_without_loss() -> None:
    wire = adapters.get("openai").to_wire([hinted(system("Be short.")), hinted(user("Hi."))])
    body = json.loads(wire.body)
    assert [turn["content"] for turn in body["messages"]] == ["Be short.", "Hi."]
    assert b"cache_control" not in wire.body
    assert wire.losses == []


@pytest.mark.row("A-028")
def test_several_texts_stay_separate_parts_for_openai() -> None:
    wire = adapters.get("openai").to_wire([hinted(user("Be", "short."))])
    parts = [{"type": "text", "text": "Be"}, {"type": "text", "text": "short."}]
    assert json.loads(wire.body)["messages"] == [{"role": "user", "content": parts}]
    assert wire.losses == []
