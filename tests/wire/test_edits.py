"""An edit of one block keeps every key of the other blocks."""

import json
import logging
from typing import Any

import pytest
from msgspec.structs import replace

from corpus import CORPUS, needs_corpus
from metis import adapters
from metis.canonical import MetisError, TextBlock
from metis.verify import adapter_of, read_recording
from metis.verify.edits import edit_faults
from metis.verify.seals import conversation_with
from metis.wire.original_form import aligned
from test_stream_round_trip import RECORDINGS, responses

ALL = tuple(RECORDINGS.values())


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="metis.adapters")


def request_faults(recordings: str, step: int) -> dict[str, list[str]]:
    faults: dict[str, list[str]] = {}
    lines = (CORPUS / f"{recordings}.jsonl").read_bytes().splitlines()
    for line in lines[::step]:
        recording = read_recording(line)
        adapter = adapter_of(recording)
        if adapter is None or recording.request is None:
            continue
        try:
            request = adapter.from_wire_request(recording.request)
        except MetisError:
            continue
        edited = edit_faults(adapter, request.messages, request.tools, request.options)
        faults[recording.id] = list(edited)[:3]
    return {key: each for key, each in faults.items() if each}


def response_faults(recordings: str, step: int) -> dict[str, list[str]]:
    faults = {
        each.id: list(
            edit_faults(each.adapter, conversation_with([each.message]), places=range(1, 2))
        )[:3]
        for each in responses(recordings)[::step]
        if each.message is not None
    }
    return {key: each for key, each in faults.items() if each}


@needs_corpus
@pytest.mark.parametrize("recordings", ALL)
def test_edit_of_one_block_keeps_keys_of_others(recordings: str) -> None:
    assert request_faults(recordings, 20) == {}
    assert response_faults(recordings, 10) == {}


@needs_corpus
@pytest.mark.slow
@pytest.mark.parametrize("recordings", ALL)
def test_every_edit_of_one_block_keeps_keys_of_others(recordings: str) -> None:
    assert request_faults(recordings, 1) == {}
    assert response_faults(recordings, 1) == {}


def test_keys_of_equal_blocks_stay_in_order() -> None:
    assert aligned({0: "a", 2: "a"}, ["a", "b", "a"]) == {0: 0, 2: 2}
    assert aligned({0: "a", 2: "a"}, ["b", "a"]) == {0: 1}
    assert aligned({1: "a"}, ["a", "b", "a"]) == {1: 0}
    assert aligned({0: "x", 1: "a"}, ["new", "x", "a", "a"]) == {0: 1, 1: 2}
    assert aligned({0: "x"}, []) == {}


def test_cache_mark_stays_with_its_block_after_edit() -> None:
    marked = {"type": "text", "text": "long", "cache_control": {"type": "ephemeral"}}
    body: dict[str, Any] = {
        "model": "claude-sonnet-4-6",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": [marked, {"type": "text", "text": "short"}]}],
    }
    adapter = adapters.get("anthropic")
    request = adapter.from_wire_request(body)
    message = request.messages[0]
    edited = replace(message, content=(TextBlock("new"), *message.content))
    sent = json.loads(adapter.preview([edited], (), request.options).body)
    new, *others = sent["messages"][0]["content"]
    assert new == {"type": "text", "text": "new"}
    assert others == body["messages"][0]["content"]
