"""Responses of one provider, encoded for a client of another protocol."""

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from build import assistant, provenance
from metis import adapters
from metis.canonical import (
    Citation,
    ContentBlock,
    Message,
    OpaqueBlock,
    StopReason,
    TextBlock,
)
from metis.streaming import BlockAdded, MessageComplete, MessageStart, StreamEvent, TextDelta

PAGE = Citation(
    "web_search_result_location",
    url="https://example.org",
    title="Page",
    start=0,
    end=2,
    raw={"type": "web_search_result_location", "url": "https://example.org"},
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
def test_texts_are_one_string_for_chat_clients() -> None:
    message = served("openai")["choices"][0]["message"]
    assert message["content"] == "One. Two."


def test_citations_reach_clients_whose_protocol_has_them() -> None:
    notes = served("openai")["choices"][0]["message"]["annotations"]
    assert [note["url_citation"]["url"] for note in notes] == ["https://example.org"] * 2
    assert [note["url_citation"]["start_index"] for note in notes] == [0, 5]
    parts = [part for item in served("openai-responses")["output"] for part in item["content"]]
    assert [len(part["annotations"]) for part in parts] == [1, 1]


@pytest.mark.parametrize("name", ["openai", "openai-responses", "gemini", "ollama"])
def test_content_without_place_in_response_is_a_loss(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "metis.adapters"):
        body = served(name)
    assert "server_tool_use" not in json.dumps(body)
    logged = [record.message for record in caplog.records]
    assert any("server_tool_use" in line for line in logged)
    assert any("char_location" in line for line in logged)


def test_response_of_same_protocol_is_unchanged() -> None:
    content = served("anthropic")["content"]
    assert [block["type"] for block in content] == ["text", "server_tool_use", "text"]


def streamed(name: str, message: Message) -> tuple[Message, bytes]:
    """Return a response as the client of a stream assembles it, and the bytes it received."""
    adapter = adapters.get(name)
    encoder, decoder = adapter.stream_encoder(), adapter.stream_decoder()
    events = [*events_of(message), MessageComplete(message.id, StopReason.END_TURN, message)]
    body = b"".join(encoder.encode(event) for event in events) + encoder.finish()
    *_, end = [*decoder.feed(body), *decoder.finish()]
    assert isinstance(end, MessageComplete)
    if name == "openai-responses":
        # The last event has the whole response, which clients store.
        *_, last = [line[6:] for line in body.splitlines() if line.startswith(b"data: ")]
        return adapter.from_wire_response(json.loads(last)["response"]), body
    return end.message, body


def events_of(message: Message) -> Iterator[StreamEvent]:
    metadata = message.metadata
    yield MessageStart(message.id, metadata.model, protocol=None)
    for index, block in enumerate(message.content):
        if isinstance(block, TextBlock):
            yield TextDelta(message.id, index, block.text)
        else:
            yield BlockAdded(message.id, index, block)


def from_anthropic() -> Message:
    message = answer()
    return replace(message, metadata=replace(message.metadata, model="anthropic:claude-sonnet-4-6"))


@pytest.mark.row("T198", "T212")
@pytest.mark.parametrize(("name", "count"), [("openai", 2), ("openai-responses", 2)])
def test_citations_of_streamed_response_reach_client(name: str, count: int) -> None:
    message, body = streamed(name, from_anthropic())
    cited = [note for b in message.content if isinstance(b, TextBlock) for note in b.citations]
    assert [note.url for note in cited] == ["https://example.org"] * count
    assert b"server_tool_use" not in body


@pytest.mark.row("T198", "T212")
@pytest.mark.parametrize("name", ["anthropic", "openai", "openai-responses", "gemini", "ollama"])
def test_content_that_a_stream_lacks_is_a_loss(name: str, caplog: pytest.LogCaptureFixture) -> None:
    message = from_anthropic()
    with caplog.at_level(logging.WARNING, "metis.adapters"):
        got, _ = streamed(name, message)
    given = [*message.content, *(n for b in message.content for n in _notes(b))]
    texts = "".join(b.text for b in got.content if isinstance(b, TextBlock))
    assert texts == "One. Two."
    blocks = [*got.content, *(n for b in got.content for n in _notes(b))]
    parts = sum(1 for each in blocks if not isinstance(each, TextBlock))
    lost = [record for record in caplog.records if record.name == "metis.adapters"]
    assert parts + len(lost) == sum(1 for each in given if not isinstance(each, TextBlock))
    assert all(record.__dict__["adapter"] == name for record in lost)


def _notes(block: ContentBlock) -> tuple[Citation, ...]:
    return block.citations if isinstance(block, TextBlock) else ()


def test_opaque_part_of_one_chat_host_is_not_sent_to_client_of_another(
    caplog: pytest.LogCaptureFixture,
) -> None:
    part = OpaqueBlock("openrouter", Raw(b'{"new":1}'), "new")
    message = assistant(
        "hi", part, metadata=replace(provenance(), provider="openrouter", origin="openrouter")
    )
    with caplog.at_level(logging.WARNING, "metis.adapters"):
        assert b'"new"' not in adapters.get("groq").to_wire_response(message)
        _, body = streamed("groq", message)
    assert b'"new"' not in body
    assert [record.__dict__["block_type"] for record in caplog.records] == ["opaque", "opaque"]
