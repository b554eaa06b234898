"""The laws that every protocol keeps; a new protocol adds a row to ADAPTERS and nothing else."""

import contextlib
import itertools
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

import ollama_shape
from corpus import body_of, needs_corpus, requests
from judges import complaints
from metis import adapters
from metis.canonical import (
    ContentBlock,
    ImageBlock,
    Message,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
    decode,
    encode,
)
from metis.projection import Loss
from metis.wire.call import AdapterOptions, RequestContext
from metis.wire.shape import maybe_list

ADAPTERS = {"anthropic": "anthropic_messages", "openai": "openai_chat", "ollama": "ollama"}
PAIRS = list(itertools.permutations(ADAPTERS, 2))
CONTEXT = RequestContext(session_id="sess_laws")


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="metis.adapters")


def recorded(name: str) -> Iterator[tuple[str, Any]]:
    return (
        (key, body)
        for key, body in requests(ADAPTERS[name])
        if "messages" in body or "prompt" in body
    )


@needs_corpus
@pytest.mark.row("M-008", "M-010", "M-193")
@pytest.mark.parametrize("name", ADAPTERS)
def test_round_trip(name: str) -> None:
    """Request, canonical, stored, read, the same protocol: the same JSON, and nothing is lost."""
    adapter = adapters.get(name)
    for key, body in recorded(name):
        request = adapter.from_wire_request(body, CONTEXT)
        stored = [decode(encode(message)) for message in request.messages]
        wire = adapter.to_wire(stored, request.tools, request.options)
        assert json.loads(wire.body) == body, key
        assert wire.losses == [], key


@needs_corpus
@pytest.mark.row("M-054", "M-055", "M-063", "M-065", "T210", "T211", "T212")
@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_no_silent_loss(source: str, target: str) -> None:
    """What came out and the losses account for every block that went in."""
    for key, body in recorded(source):
        request = adapters.get(source).from_wire_request(body, CONTEXT)
        before = [encode(message) for message in request.messages]
        wire = adapters.get(target).to_wire(
            request.messages, request.tools, replace(request.options, model=None)
        )
        assert [encode(message) for message in request.messages] == before
        said = set(strings(json.loads(wire.body)))
        for message in request.messages:
            for index, block in enumerate(message.content):
                assert is_carried(block, said) or is_told(message, index, wire.losses), (
                    key,
                    message.id,
                    block,
                )


def strings(value: Any) -> Iterator[str]:
    """Every string in a JSON value, and in the JSON inside of strings."""
    match value:
        case str():
            yield value
            if value[:1] in "{[":
                with contextlib.suppress(ValueError):
                    yield from strings(json.loads(value))
        case dict():
            for key, item in value.items():  # pyright: ignore[reportUnknownVariableType] - JSON
                yield str(key)  # pyright: ignore[reportUnknownArgumentType] - JSON
                yield from strings(item)
        case list():
            for item in value:  # pyright: ignore[reportUnknownVariableType] - JSON
                yield from strings(item)
        case _:
            return


def is_carried(block: ContentBlock, said: set[str]) -> bool:
    match block:
        case TextBlock():
            return not block.text or any(block.text in text for text in said)
        case ToolUseBlock():
            return block.name in said and set(strings(block.input)) <= said
        case ToolResultBlock():
            return all(is_carried(inner, said) for inner in block.content)
        case ImageBlock():
            return any(block.source.data in text for text in said)
        case _:
            data = getattr(getattr(block, "source", None), "data", None)
            return data is not None and any(data in text for text in said)


def is_told(message: Message, index: int, losses: list[Loss]) -> bool:
    mine = [loss for loss in losses if loss.message_id == message.id]
    return any(loss.path == "$" or loss.path.startswith(f"$.content[{index}]") for loss in mine)


@needs_corpus
@pytest.mark.row("M-021", "M-138", "M-170", "T15", "T19", "T20")
@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_every_call_is_answered_once_and_at_once(source: str, target: str) -> None:
    """The part of being valid for the target that types cannot say."""
    for key, body in recorded(source):
        request = adapters.get(source).from_wire_request(body, CONTEXT)
        wire = adapters.get(target).to_wire(
            request.messages, request.tools, replace(request.options, model=None)
        )
        assert faults(target, json.loads(wire.body)) == [], key


@needs_corpus
@pytest.mark.row("M-224", "T87", "T183")
@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_valid_for_the_target(source: str, target: str) -> None:
    """The official SDK of the target would let the request pass."""
    for key, body in recorded(source):
        request = adapters.get(source).from_wire_request(body, CONTEXT)
        options = replace(request.options, model=None, stream=None)
        wire = adapters.get(target).to_wire(request.messages, request.tools, options)
        assert complaints(target, json.loads(wire.body)) == [], key


@pytest.mark.parametrize(
    ("target", "damage"),
    [
        ("anthropic", {"messages": [{"role": "user", "content": [{"type": "text"}]}]}),
        ("anthropic", {"messages": [{"role": "tool", "content": "x"}]}),
        ("anthropic", {"surprise": 1}),
        ("openai", {"messages": [{"role": "user", "content": "x", "is_error": True}]}),
        ("openai", {"messages": [{"role": "tool", "content": "x"}]}),
        ("openai", {"top_k": 3}),
        ("ollama", {"top_k": 3}),
        ("ollama", {"options": {"max_tokens": 3}}),
        ("ollama", {"messages": [{"role": "user", "content": [{"type": "text"}]}]}),
        ("ollama", {"messages": [{"role": "user", "content": "x", "is_error": True}]}),
    ],
)
def test_the_judges_refuse_what_is_wrong(target: str, damage: dict[str, Any]) -> None:
    good: dict[str, Any] = {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        **({} if target == "ollama" else {"max_tokens": 9}),
    }
    assert complaints(target, good) == []
    assert complaints(target, good | damage) != []


def faults(target: str, body: dict[str, Any]) -> list[str]:
    return list(FAULTS[target](body))


def _anthropic_faults(body: dict[str, Any]) -> Iterator[str]:
    waiting: list[str] = []
    for turn in body["messages"]:
        blocks = maybe_list(turn["content"])
        results = [b["tool_use_id"] for b in blocks if b["type"] == "tool_result"]
        if turn["role"] == "user" and sorted(results) != sorted(waiting):
            yield f"calls {waiting} are followed by results {results}"
        if turn["role"] == "user":
            waiting = []
        waiting += [b["id"] for b in blocks if b["type"] == "tool_use"]
        if any(b["type"] == "text" and not b["text"].strip() for b in blocks):
            yield "a blank text"
    if waiting:
        yield f"calls {waiting} have no results"


def _openai_faults(body: dict[str, Any]) -> Iterator[str]:
    waiting: list[str] = []
    for turn in body["messages"]:
        if turn["role"] == "tool":
            if turn["tool_call_id"] not in waiting:
                yield f"a result of {turn['tool_call_id']}, which is not waited for"
            else:
                waiting.remove(turn["tool_call_id"])
            continue
        if waiting:
            yield f"calls {waiting} have no results"
        waiting = [call["id"] for call in turn.get("tool_calls") or ()]
    if waiting:
        yield f"calls {waiting} have no results"


FAULTS = {
    "anthropic": _anthropic_faults,
    "openai": _openai_faults,
    "ollama": ollama_shape.faults,
}


@needs_corpus
@pytest.mark.row("T176")
@pytest.mark.parametrize("source", ADAPTERS)
@pytest.mark.parametrize("target", ADAPTERS)
def test_prefix_stable(source: str, target: str) -> None:
    """The request of an earlier turn is a prefix of that of a later one."""
    for key, body in recorded(source):
        request = adapters.get(source).from_wire_request(body, CONTEXT)
        adapter = adapters.get(target)
        whole = adapter.to_wire(request.messages, (), AdapterOptions()).body
        for count in turn_ends(request.messages):
            part = adapter.to_wire(request.messages[:count], (), AdapterOptions()).body
            assert whole.startswith(part[: part.rindex(b'],"model":')]), (key, count)


def turn_ends(messages: tuple[Message, ...]) -> Iterator[int]:
    """Where a request could have been sent: before each answer."""
    for index, message in enumerate(messages):
        if message.role == "assistant" and index and messages[index - 1].role != "assistant":
            yield index


@needs_corpus
@pytest.mark.row("M-171", "T13")
@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_the_same_call_always_has_the_same_id(source: str, target: str) -> None:
    """Ids do not change from one reading to the next, nor from one writing to the next."""
    for _, body in recorded(source):
        bodies: list[bytes] = []
        for _ in range(2):
            request = adapters.get(source).from_wire_request(body_of(body), CONTEXT)
            wire = adapters.get(target).to_wire(request.messages, (), AdapterOptions())
            bodies.append(wire.body)
        assert bodies[0] == bodies[1]
