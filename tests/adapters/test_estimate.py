"""Token estimates of requests."""

import base64
import json
import logging
import statistics

import pytest
from msgspec.structs import replace

from build import assistant, call, image, media, text, thinking, tool, user
from corpus import exchanges, needs_whole_corpus
from metis import adapters
from metis.canonical import ToolDefinition
from metis.canonical.blocks import AudioBlock, DocumentBlock
from metis.canonical.tools import SideEffects
from metis.wire.call import RequestContext
from metis.wire.json_access import maybe_object

TOOL = ToolDefinition("f", "Does it.", {"type": "object"}, SideEffects.READ)
SENTENCE = "The harbour was quiet when the ferry came in, and nobody was in a hurry. "


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="metis.adapters")


@pytest.mark.row("M-202")
@pytest.mark.parametrize("name", adapters.names())
def test_an_estimate_grows_with_what_is_sent(name: str) -> None:
    adapter = adapters.get(name)
    one = call("f", path="a/b")
    steps = [
        adapter.estimate_input_tokens([]),
        adapter.estimate_input_tokens([user("hi")]),
        adapter.estimate_input_tokens([user(SENTENCE)]),
        adapter.estimate_input_tokens([user(SENTENCE), assistant(text(SENTENCE), one)]),
        adapter.estimate_input_tokens(
            [user(SENTENCE), assistant(text(SENTENCE), one), tool(SENTENCE, answers=one.id)]
        ),
    ]
    assert steps == sorted(set(steps))
    assert adapter.estimate_input_tokens([user("hi")], [TOOL]) > steps[1]
    long = adapter.estimate_input_tokens([user(SENTENCE * 1000)])
    assert long / 1000 == pytest.approx(17, abs=6)


def test_estimate_depends_on_model() -> None:
    anthropic = adapters.get("anthropic")
    old = anthropic.estimate_input_tokens([user(SENTENCE * 50)], model="sonnet")
    new = anthropic.estimate_input_tokens([user(SENTENCE * 50)], model="claude-opus-5")
    assert new / old == pytest.approx(1.25, abs=0.1)


def test_omitted_content_is_not_estimated() -> None:
    anthropic, groq = adapters.get("anthropic"), adapters.get("groq")
    bare, thought = user("hi"), replace(thinking(SENTENCE * 9), signature="s", issuer="anthropic")
    talk, plain = [bare, assistant(thought, text("yes"))], [bare, assistant("yes")]
    assert groq.estimate_input_tokens(talk) == groq.estimate_input_tokens(plain)
    assert anthropic.estimate_input_tokens(talk) > anthropic.estimate_input_tokens(plain) + 90
    local = adapters.get("openai-compatible")
    assert local.estimate_input_tokens([user("hi", image())]) == local.estimate_input_tokens([bare])


def test_media_estimate_depends_on_size() -> None:
    openai, anthropic = adapters.get("openai"), adapters.get("anthropic")
    assert openai.estimate_input_tokens([user(image())]) > 500
    pages = base64.b64encode(b"/Type /Page /Type/Page /Type /Pages").decode()
    pdf = DocumentBlock(media(data=pages), "application/pdf")
    assert 3000 <= anthropic.estimate_input_tokens([user(pdf)]) < 3100
    note = DocumentBlock(media("text", SENTENCE * 10), "text/plain")
    assert 100 < anthropic.estimate_input_tokens([user(note)]) < 300
    sound = AudioBlock(media(data="A" * 64_000), "audio/wav")
    assert 20 < openai.estimate_input_tokens([user(sound)], model="gpt-4o") < 60


@needs_whole_corpus
@pytest.mark.row("M-202")
@pytest.mark.parametrize(
    ("protocol", "provider", "name", "worst"),
    [
        ("anthropic_messages", "anthropic", "anthropic", 0.20),
        ("openai_chat", "openai_chat", "openai", 0.20),
        ("openai_chat", "mistral", "mistral", 0.20),
    ],
)
def test_estimates_are_close_to_recorded_counts(
    protocol: str, provider: str, name: str, worst: float
) -> None:
    """Half of the recorded requests of plain text and tools have an error below `worst`."""
    adapter, ratios = adapters.get(name), list[float]()
    for exchange in exchanges(protocol):
        body = exchange["request"]
        usage = maybe_object(maybe_object(exchange["response"]).get("usage"))
        if exchange["provider"] != provider or not usage or "messages" not in (body or {}):
            continue
        spelled = json.dumps(body)
        if any(word in spelled for word in ("base64", "url", "file_id", "_search", "schema_")):
            continue
        counted = ("prompt_tokens", "input_tokens", "cache_read_input_tokens")
        counted_tokens = sum(usage.get(key) or 0 for key in counted)
        request = adapter.from_wire_request(body, RequestContext(session_id="s"))
        if counted_tokens and len(request.tools) == len(body.get("tools") or ()):
            model = f"{name}:{body['model']}"
            guess = adapter.estimate_input_tokens(request.messages, request.tools, model=model)
            ratios.append(abs(guess / counted_tokens - 1))
    assert len(ratios) > 20
    assert statistics.median(ratios) < worst
