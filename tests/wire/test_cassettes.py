"""Recorded HTTP exchanges with independent servers give the golden messages."""

import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from cassette import FOLDER, NOWHERE, cassette
from golden import golden
from judges import complaints
from metis.adapters import Adapter
from metis.adapters.codecs import CODECS
from metis.canonical import MessageStatus, StopReason, TextBlock, ThinkingBlock, ToolUseBlock
from metis.canonical.errors import RateLimitError
from metis.wire.call import WireRequest
from scenario import PICTURE, Played, play, scenarios

ROOT = Path(__file__).parent.parent.parent
SCENARIOS = scenarios()
NAMES = {
    "bedrock_converse": "bedrock-converse",
    "openai_chat": "openai",
    "openai_responses": "openai-responses",
}
OLDER: Any = import_module("vcr.errors").CannotOverwriteExistingCassetteException
"""Raised where a request differs from the recorded one."""
SECRETS = re.compile(r"(?i)authorization|api-key|bearer|127\.0\.0\.1|localhost|/home/|/tmp/")


def played(name: str) -> Played:
    """Replay a scenario; a request that differs from the recorded one is refused."""
    with cassette(name) as tape:
        done = play(SCENARIOS[name], NOWHERE)
        assert tape.all_played
    return done


@pytest.mark.row("M-282")
@pytest.mark.parametrize("name", SCENARIOS)
def test_recorded_conversation_gives_golden_messages(name: str) -> None:
    """Canonical to wire, cassette, wire to canonical: byte for byte the golden file."""
    assert golden(played(name)) == (FOLDER / f"{name}.jsonl").read_bytes()


def those(topic: str) -> list[str]:
    return [name for name, scenario in SCENARIOS.items() if scenario.topic == topic]


@pytest.mark.parametrize("name", those("text"))
def test_text(name: str) -> None:
    first, second = played(name).answers
    for answer in (first, second):
        assert answer.metadata.status is MessageStatus.COMPLETE
        assert [block.type for block in answer.content] == ["text"]


@pytest.mark.parametrize("name", those("call") + those("two-calls"))
def test_calls(name: str) -> None:
    first = played(name).answers[0]
    calls = [block for block in first.content if isinstance(block, ToolUseBlock)]
    assert len(calls) == (2 if SCENARIOS[name].topic == "two-calls" else 1)
    assert first.metadata.stop_reason is StopReason.TOOL_USE
    assert all(call.input["place"] in ("Bergen", "Oslo") for call in calls)


@pytest.mark.parametrize("name", those("reasoning"))
def test_reasoning(name: str) -> None:
    thought, text_block = played(name).answers[0].content
    assert isinstance(thought, ThinkingBlock)
    assert isinstance(text_block, TextBlock)
    assert (thought.text, text_block.text) == ("340 and 51 make 391.", "391")


@pytest.mark.parametrize("name", those("schema"))
def test_structured_output(name: str) -> None:
    (answer,) = played(name).answers
    (text_block,) = answer.content
    assert isinstance(text_block, TextBlock)
    assert json.loads(text_block.text)["place"] in ("Bergen", "Oslo")


@pytest.mark.parametrize("name", those("limit"))
def test_response_cut_at_token_limit(name: str) -> None:
    (answer,) = played(name).answers
    assert answer.metadata.stop_reason is StopReason.MAX_TOKENS


@pytest.mark.parametrize("name", those("too-often"))
def test_too_many_requests(name: str) -> None:
    done = played(name)
    assert isinstance(done.error, RateLimitError)
    assert done.error.status == 429


@pytest.mark.parametrize("name", those("picture"))
def test_image(name: str) -> None:
    first, _ = played(name).answers
    assert first.content == (TextBlock("A single dot."),)
    with cassette(name) as tape:
        assert all(PICTURE in request.body.decode() for request in tape.requests)


@pytest.mark.parametrize("name", SCENARIOS)
def test_sdk_types_accept_recorded_bodies(name: str) -> None:
    scenario = SCENARIOS[name]
    if scenario.adapter == "openai-compatible":
        return  # extensions of the server, unknown to OpenAI's types
    with cassette(name) as tape:
        for request in tape.requests:
            body = json.loads(request.body)
            body.pop("stream", None)
            judge = "ollama prompt" if scenario.topic == "prompt" else scenario.adapter
            assert complaints(judge, body) == []


@pytest.mark.row("M-282", "M-292")
def test_every_protocol_is_recorded_plain_and_streamed() -> None:
    """Every protocol has scenarios; a scenario without a cassette fails in the tests above."""
    text_block = {
        (s.adapter, s.is_streamed, s.topic) for s in SCENARIOS.values() if s.server == "aimock"
    }
    wanted = {"text", "call", "two-calls", "picture", "too-often"}
    for codec in CODECS:
        name = NAMES.get(codec, codec)
        for is_streamed in (False, True):
            assert {
                t for a, streamed, t in text_block if (a, streamed) == (name, is_streamed)
            } >= wanted


@pytest.mark.row("M-291")
@pytest.mark.parametrize("name", those("call"))
def test_outdated_cassette_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If an adapter now sends something else, its cassette must be recorded again."""
    send = Adapter.to_wire

    def changed(self: Adapter, *given: Any) -> WireRequest:
        wire = send(self, *given)
        return replace(wire, body=json.dumps({**json.loads(wire.body), "new": 1}).encode())

    monkeypatch.setattr(Adapter, "to_wire", changed)
    with pytest.raises(OLDER, match="new"):
        played(name)


@pytest.mark.row("M-290")
def test_recorded_server_versions_are_the_pinned_ones() -> None:
    """A new server version must be recorded again; `make cassettes` fetches the pinned ones."""
    recorded = json.loads((FOLDER / "servers.json").read_text())
    lock = (ROOT / "requirements-cassettes.lock").read_text()
    makefile = (ROOT / "Makefile").read_text()
    assert f"\nxllamacpp=={recorded['xllamacpp']} " in lock
    assert f"@copilotkit/aimock@{recorded['aimock']}\n" in makefile


@pytest.mark.row("M-290", "M-291", "M-292")
def test_contributing_explains_how_to_record() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text().partition("## Add an exchange or a cassette")[2]
    page_text = " ".join(page.split())
    assert "`make cassettes`" in page_text
    for when in ("a protocol changes", "meant to send something else", "a scenario is added"):
        assert when in page_text
    assert "\ncassettes:" in (ROOT / "Makefile").read_text()


@pytest.mark.row("M-289", "M-293")
def test_cassettes_have_no_keys_and_no_paths() -> None:
    files = [*FOLDER.glob("*.yaml"), *FOLDER.glob("*.jsonl")]
    assert {path.stem for path in files} == set(SCENARIOS)
    assert [path.name for path in files if SECRETS.search(path.read_text())] == []
