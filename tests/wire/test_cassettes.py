"""Exchanges that were recorded over real HTTP with servers that we did not write."""

import json
import re

import pytest

from cassette import FOLDER, NOWHERE, cassette
from golden import golden
from judges import complaints
from metis.canonical import MessageStatus, StopReason, TextBlock, ThinkingBlock, ToolUseBlock
from metis.canonical.errors import RateLimitError
from scenario import Played, play, scenarios

SCENARIOS = scenarios()
SECRETS = re.compile(r"(?i)authorization|api-key|bearer|127\.0\.0\.1|localhost|/home/|/tmp/")


def played(name: str) -> Played:
    """Play a scenario back; a request that is not the recorded one is refused."""
    with cassette(name) as tape:
        done = play(SCENARIOS[name], NOWHERE)
        assert tape.all_played
    return done


@pytest.mark.row("M-282")
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_recorded_conversation_gives_the_golden_messages(name: str) -> None:
    """Canonical, wire, cassette, canonical: byte for byte what was written down."""
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
    thought, said = played(name).answers[0].content
    assert isinstance(thought, ThinkingBlock)
    assert isinstance(said, TextBlock)
    assert (thought.text, said.text) == ("340 and 51 make 391.", "391")


@pytest.mark.parametrize("name", those("schema"))
def test_structured_output(name: str) -> None:
    (answer,) = played(name).answers
    (said,) = answer.content
    assert isinstance(said, TextBlock)
    assert json.loads(said.text)["place"] in ("Bergen", "Oslo")


@pytest.mark.parametrize("name", those("limit"))
def test_an_answer_that_is_too_long(name: str) -> None:
    (answer,) = played(name).answers
    assert answer.metadata.stop_reason is StopReason.MAX_TOKENS


@pytest.mark.parametrize("name", those("too-often"))
def test_too_many_requests(name: str) -> None:
    done = played(name)
    assert isinstance(done.error, RateLimitError)
    assert done.error.status == 429


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_official_types_take_what_was_recorded(name: str) -> None:
    if SCENARIOS[name].adapter not in ("anthropic", "openai"):
        return
    with cassette(name) as tape:
        for request in tape.requests:
            body = json.loads(request.body)
            body.pop("stream", None)
            assert complaints(SCENARIOS[name].adapter, body) == []


@pytest.mark.row("M-289", "M-293")
def test_cassettes_hold_no_keys_and_no_places() -> None:
    files = [*FOLDER.glob("*.yaml"), *FOLDER.glob("*.jsonl")]
    assert {path.stem for path in files} == set(SCENARIOS)
    assert [path.name for path in files if SECRETS.search(path.read_text())] == []
