"""An answer of one provider, given to a client of another protocol."""

import json
import logging
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from build import assistant, provenance
from metis import adapters
from metis.canonical import Citation, Message, OpaqueBlock, TextBlock

PAGE = Citation(
    "web_search_result_location", url="https://example.org", title="Page", start=0, end=2
)
PLACE = Citation("char_location", cited_text="words", raw={"type": "char_location"})


def answer() -> Message:
    return assistant(
        TextBlock("One. ", (PAGE, PLACE)),
        OpaqueBlock("anthropic", Raw(b'{"type":"server_tool_use"}'), "server_tool_use"),
        TextBlock("Two.", (PAGE,)),
        metadata=replace(provenance(), provider="anthropic", origin="anthropic"),
    )


def served(name: str) -> Any:
    return json.loads(adapters.get(name).to_wire_response(answer()))


@pytest.mark.row("T210")
def test_texts_are_one_string_for_a_client_of_chat() -> None:
    message = served("openai")["choices"][0]["message"]
    assert message["content"] == "One. Two."


def test_cited_pages_reach_clients_that_know_such() -> None:
    notes = served("openai")["choices"][0]["message"]["annotations"]
    assert [note["url_citation"]["url"] for note in notes] == ["https://example.org"] * 2
    assert [note["url_citation"]["start_index"] for note in notes] == [0, 5]
    parts = [part for item in served("openai-responses")["output"] for part in item["content"]]
    assert [len(part["annotations"]) for part in parts] == [1, 1]


@pytest.mark.parametrize("name", ["openai", "openai-responses", "gemini", "ollama"])
def test_what_has_no_place_in_an_answer_is_told(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "metis.adapters"):
        body = served(name)
    assert "server_tool_use" not in json.dumps(body)
    told = [record.message for record in caplog.records]
    assert any("server_tool_use" in line for line in told)
    assert any("char_location" in line for line in told)


def test_an_answer_of_the_same_protocol_is_left_as_it_is() -> None:
    content = served("anthropic")["content"]
    assert [block["type"] for block in content] == ["text", "server_tool_use", "text"]
