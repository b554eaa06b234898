"""Instructions in sections, and cache marks at section boundaries."""

import json
from typing import Any

import pytest

from build import NOW, SESSION, user
from judges import complaints
from metis import adapters
from metis.canonical import Message, TextBlock, validate
from metis.catalog import catalog
from metis.projection.cache_marks import Boundary, Section, system_message
from metis.wire.call import AdapterOptions

LONG_TEXT = "You have these tools and know how to use each of them. " * 400
SECTIONS = [
    Section(text=LONG_TEXT),
    Section(text="read_file reads a file.", ends=Boundary.TOOLS_END, ttl="1h"),
    Section(text="The user likes tea.", ends=Boundary.MEMORY_END),
    Section(text="Be brief."),
    Section(text="Today is Sunday.", ends=Boundary.SYSTEM_END),
]

CLAUDE = next(
    info.id
    for info in catalog().models("openrouter")
    if "claude" in info.id and info.capabilities.supports_prompt_caching
)


def message_of(*sections: Section, **fields: Any) -> Message:
    return system_message(sections, SESSION, NOW, **fields)


def marks(message: Message) -> list[str]:
    """Return the texts with a cache mark in a request to Anthropic."""
    body = json.loads(adapters.get("anthropic").to_wire([message, user("hi")]).body)
    assert complaints("anthropic", body) == []
    return [part["text"] for part in body["system"] if "cache_control" in part]


@pytest.mark.row("AX-04")
def test_cache_marks_are_at_named_boundaries() -> None:
    message = message_of(*SECTIONS)
    assert validate(message) == []
    assert marks(message) == ["read_file reads a file.", "The user likes tea.", "Today is Sunday."]
    body = json.loads(adapters.get("anthropic").to_wire([message, user("hi")]).body)
    marks_found = [part.get("cache_control") for part in body["system"]]
    short = {"type": "ephemeral"}
    assert marks_found == [None, {**short, "ttl": "1h"}, short, None, short]


@pytest.mark.row("AX-04")
def test_only_requested_boundaries_are_marked() -> None:
    message = message_of(*SECTIONS, marked={Boundary.SYSTEM_END})
    assert marks(message) == ["Today is Sunday."]
    assert message_of(*SECTIONS, marked=()).metadata.hints == ()


def test_openrouter_gets_marks_and_others_get_text_only() -> None:
    message = message_of(*SECTIONS)
    options = AdapterOptions(model=CLAUDE)
    router = json.loads(adapters.get("openrouter").to_wire([message, user("hi")], (), options).body)
    parts = router["messages"][0]["content"]
    assert [part["text"] for part in parts if "cache_control" in part] == marks(message)
    for name in ("openai", "gemini", "ollama"):
        wire = adapters.get(name).to_wire([message, user("hi")])
        assert b"cache_control" not in wire.body
        assert b"Today is Sunday." in wire.body


def test_empty_section_moves_mark_to_previous_section() -> None:
    memory = Section(text=" ", ends=Boundary.MEMORY_END)
    message = message_of(SECTIONS[0], memory, SECTIONS[3])
    assert message.content == (TextBlock(LONG_TEXT), TextBlock("Be brief."))
    assert [hint.after for hint in message.metadata.hints] == [0]
    assert message_of(memory).content == ()
    twice = [Section(text=word, ends=Boundary.TOOLS_END) for word in ("one", "two")]
    assert [hint.after for hint in message_of(*twice).metadata.hints] == [1]
