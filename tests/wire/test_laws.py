"""The laws that every protocol keeps; a new protocol adds a row to ADAPTERS and nothing else."""

import base64
import contextlib
import itertools
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

import anthropic_shape
import converse_shape
import gemini_shape
import ollama_shape
import openai_chat_shape
import openai_responses_shape
from corpus import body_of
from exchange import requests
from judges import complaints
from metis import adapters
from metis.canonical import (
    ContentBlock,
    ImageBlock,
    Message,
    OpaqueBlock,
    TextBlock,
    ToolDefinition,
    ToolResultBlock,
    ToolUseBlock,
    decode,
    encode,
)
from metis.canonical.errors import InvalidValueError
from metis.projection import Loss
from metis.wire.call import AdapterOptions, CanonicalRequest, RequestContext, WireRequest


class Row(NamedTuple):
    """One protocol: where its recordings are, the key of its turns, and what may be wrong there."""

    recordings: str
    turns: str
    faults: Callable[[dict[str, Any]], Iterator[str]]


ADAPTERS = {
    "anthropic": Row("anthropic_messages", anthropic_shape.TURNS, anthropic_shape.faults),
    "bedrock-converse": Row("bedrock_converse", converse_shape.TURNS, converse_shape.faults),
    "gemini": Row("gemini", gemini_shape.TURNS, gemini_shape.faults),
    "ollama": Row("ollama", ollama_shape.TURNS, ollama_shape.faults),
    "openai": Row("openai_chat", openai_chat_shape.TURNS, openai_chat_shape.faults),
    "openai-responses": Row(
        "openai_responses", openai_responses_shape.TURNS, openai_responses_shape.faults
    ),
}
PAIRS = list(itertools.permutations(ADAPTERS, 2))
CONTEXT = RequestContext(session_id="sess_laws")
JOINING = {"bedrock-converse"}
"""Where turns alternate, so that neighbours share one."""


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="metis.adapters")


def recorded(name: str) -> Iterator[tuple[str, Any]]:
    """The requests on which the laws are tried: written by hand, and recorded where there are."""
    row = ADAPTERS[name]
    return (
        (key, body)
        for key, body in requests(row.recordings)
        if row.turns in body or "prompt" in body
    )


class Decoded(NamedTuple):
    """A recorded request, its canonical form, and the messages of that as bytes."""

    key: str
    body: Any
    request: CanonicalRequest
    encoded: list[bytes]


@cache
def decoded(name: str) -> list[Decoded]:
    """The recorded requests in their canonical form, which every target gets."""
    adapter, requests_decoded = adapters.get(name), list[Decoded]()
    for key, body in recorded(name):
        request = adapter.from_wire_request(body, CONTEXT)
        encoded = [encode(message) for message in request.messages]
        requests_decoded.append(Decoded(key, body, request, encoded))
    return requests_decoded


def sent(
    adapter: adapters.Adapter,
    messages: Sequence[Message],
    tools: Sequence[ToolDefinition] = (),
    options: AdapterOptions = AdapterOptions(),  # noqa: B008 - an immutable value
) -> WireRequest | None:
    """The request to a provider; None where an error says that nothing is left to be sent."""
    try:
        return adapter.to_wire(messages, tools, options)
    except InvalidValueError as error:
        assert error.reason.startswith("nothing of the messages can be sent"), error  # noqa: PT017 - other requests pass
        assert not any(has_text(message) for message in messages if message.role == "user")
        return None


def has_text(message: Message) -> bool:
    return any(type(block) is TextBlock and block.text for block in message.content)


@pytest.mark.row("M-008", "M-010", "M-193")
@pytest.mark.parametrize("name", ADAPTERS)
def test_round_trip(name: str) -> None:
    """Request, canonical, stored, read, the same protocol: the same JSON, and nothing is lost."""
    adapter = adapters.get(name)
    for key, body, request, encoded in decoded(name):
        stored = [decode(message) for message in encoded]
        wire = adapter.to_wire(stored, request.tools, request.options)
        assert json.loads(wire.body) == body, key
        assert wire.losses == [], key


@pytest.mark.row("M-010")
@pytest.mark.parametrize("name", ADAPTERS)
def test_a_key_that_nobody_knows_changes_nothing_else(name: str) -> None:
    """Common requests are read on a shorter road than others; both lead to the same place."""
    adapter = adapters.get(name)
    for key, body, usual, _ in decoded(name):
        strange = body | {"x_nobody_knows": 1}
        other = adapter.from_wire_request(strange, CONTEXT)
        said = [(message.role, message.content) for message in usual.messages]
        assert said == [(message.role, message.content) for message in other.messages], key
        wire = adapter.to_wire(other.messages, other.tools, other.options)
        assert json.loads(wire.body) == strange, key


@pytest.mark.row("M-021", "M-054", "M-055", "M-063", "M-065", "M-138", "M-170", "M-224")
@pytest.mark.row("T15", "T19", "T20", "T87", "T183", "T210", "T211", "T212")
@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_requests_of_other_protocols_are_whole_and_valid(source: str, target: str) -> None:
    """Body and losses account for every block; the SDK and the rules of the target let it pass."""
    adapter = adapters.get(target)
    for key, _, request, before in decoded(source):
        options = replace(request.options, model=None, stream=None)
        wire = sent(adapter, request.messages, request.tools, options)
        assert [encode(message) for message in request.messages] == before
        if wire is None:
            continue
        body = json.loads(wire.body)
        assert complaints(target, body) == [], key
        assert faults(target, body) == [], key
        texts = set(strings(body))
        for message in request.messages:
            for index, block in enumerate(message.content):
                assert is_carried(block, texts) or is_told(message, index, wire.losses), (
                    key,
                    message.id,
                    block,
                )


@pytest.mark.row("T115", "T117", "T210")
@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_no_silent_loss_of_the_form_of_the_answer(source: str, target: str) -> None:
    """What an answer shall be is asked of the target, too, or told as lost; so is each part."""
    for key, _, request, _ in decoded(source):
        wanted = request.options.output
        if wanted is None:
            continue
        options = replace(request.options, model=None)
        wire = adapters.get(target).to_wire(request.messages, request.tools, options)
        found = adapters.get(target).from_wire_request(wire.body, CONTEXT).options.output
        told = {loss.path for loss in wire.losses}
        assert found is not None or "$.output" in told, key
        said = set(strings(json.loads(wire.body)))
        for place in ("name", "description"):
            part = getattr(wanted, place)
            assert not part or any(part in text for text in said) or f"$.output.{place}" in told
        if "$.output" in told or found is None:
            continue
        assert found.strict is wanted.strict or "$.output.strict" in told, key
        schema = dict(found.schema or {})
        for place, part in (("title", wanted.name), ("description", wanted.description)):
            if schema.get(place) == part and place not in (wanted.schema or {}):
                schema.pop(place, None)
        assert schema == (wanted.schema or {}) or "$.output.schema" in told, key


@pytest.mark.row("T115")
@pytest.mark.parametrize("source", ADAPTERS)
def test_there_are_requests_that_ask_for_a_form_of_the_answer(source: str) -> None:
    assert any(each.request.options.output is not None for each in decoded(source))


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
        case OpaqueBlock(kind="additional_tools"):
            # Tools that a message defines are sent among the tools of the request.
            return {tool["name"] for tool in json.loads(bytes(block.raw))["tools"]} <= said
        case _:
            data = getattr(getattr(block, "source", None), "data", None)
            return data is not None and any(one in text for one in told(data) for text in said)


def told(data: str) -> list[str]:
    """How media can be told: as it is, or as the text that it is."""
    try:
        return [data, base64.b64decode(data, validate=True).decode()]
    except ValueError:
        return [data]


def is_told(message: Message, index: int, losses: list[Loss]) -> bool:
    mine = [loss for loss in losses if loss.message_id == message.id]
    return any(loss.path == "$" or loss.path.startswith(f"$.content[{index}]") for loss in mine)


@pytest.mark.parametrize(
    ("target", "damage"),
    [
        ("anthropic", {"messages": [{"role": "user", "content": [{"type": "text"}]}]}),
        ("anthropic", {"messages": [{"role": "tool", "content": "x"}]}),
        ("anthropic", {"surprise": 1}),
        ("openai", {"messages": [{"role": "user", "content": "x", "is_error": True}]}),
        ("openai", {"messages": [{"role": "tool", "content": "x"}]}),
        ("openai", {"top_k": 3}),
        ("openai-responses", {"input": [{"role": "tool", "content": "x"}]}),
        ("openai-responses", {"input": [{"type": "reasoning", "id": "rs_1"}]}),
        ("openai-responses", {"stop": ["x"]}),
        ("bedrock-converse", {"messages": [{"role": "user", "content": [{"words": "x"}]}]}),
        ("bedrock-converse", {"messages": [{"role": "tool", "content": [{"text": "x"}]}]}),
        ("bedrock-converse", {"messages": [{"role": "user", "content": "x"}]}),
        ("bedrock-converse", {"toolConfig": {"toolChoice": {"auto": {}}}}),
        ("bedrock-converse", {"inferenceConfig": {"topK": 3}}),
        ("bedrock-converse", {"model": "m"}),
        ("gemini", {"contents": [{"role": "user", "parts": [{"text": 1}]}]}),
        ("gemini", {"contents": [{"role": "user", "parts": [{"words": "x"}]}]}),
        ("gemini", {"generationConfig": {"top_k_k": 3}}),
        ("gemini", {"tools": [{"functionDeclarations": [{"name": "f", "schema": "x"}]}]}),
        ("gemini", {"model": "m"}),
        ("ollama", {"top_k": 3}),
        ("ollama", {"options": {"max_tokens": 3}}),
        ("ollama", {"messages": [{"role": "user", "content": [{"type": "text"}]}]}),
        ("ollama", {"messages": [{"role": "user", "content": "x", "is_error": True}]}),
    ],
)
def test_the_judges_refuse_what_is_wrong(target: str, damage: dict[str, Any]) -> None:
    asked: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
    good: dict[str, Any] = {"model": "m", ADAPTERS[target].turns: asked}
    if target == "anthropic":
        good["max_tokens"] = 9
    if target == "bedrock-converse":
        good = {"messages": [{"role": "user", "content": [{"text": "hi"}]}]}
    if target == "gemini":
        good = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
    assert complaints(target, good) == []
    assert complaints(target, good | damage) != []


def faults(target: str, body: dict[str, Any]) -> list[str]:
    return list(ADAPTERS[target].faults(body))


@pytest.mark.row("T176")
@pytest.mark.parametrize("source", ADAPTERS)
@pytest.mark.parametrize("target", ADAPTERS)
def test_prefix_stable(source: str, target: str) -> None:
    """The request of an earlier turn is a prefix of that of a later one."""
    for key, _, request, _ in decoded(source):
        adapter = adapters.get(target)
        whole = sent(adapter, request.messages)
        if whole is None:
            continue
        for count in turn_ends(request.messages):
            has_room = is_unasked(request.messages[:count]) or target in JOINING
            if has_room and is_gone(request.messages[count], whole):
                continue  # what stood before the answer is joined by what stands behind it
            part = sent(adapter, request.messages[:count])
            assert part is None or whole.body.startswith(stem(target, part.body)), (key, count)


def is_unasked(messages: tuple[Message, ...]) -> bool:
    """Whether nobody has asked anything: there are instructions only."""
    return all(message.role in ("system", "developer") for message in messages)


def is_gone(message: Message, wire: WireRequest) -> bool:
    """Whether nothing of a message was sent."""
    return any((loss.message_id, loss.path) == (message.id, "$") for loss in wire.losses)


def stem(target: str, body: bytes) -> bytes:
    """A request up to the bracket that closes its turns; its keys are sorted."""
    turns = ADAPTERS[target].turns
    later = min((key for key in json.loads(body) if key > turns), default=None)
    return body[: body.rindex(b"]}" if later is None else b'],"%b":' % later.encode())]


@pytest.mark.row("M-224", "T176")
@pytest.mark.parametrize("source", ADAPTERS)
@pytest.mark.parametrize("target", ADAPTERS)
def test_what_was_sent_before_is_reused_and_changes_nothing(source: str, target: str) -> None:
    """A conversation that grows gives the same requests and losses as one that is sent at once."""
    profile = adapters.get(target).profile
    for key, _, request, _ in decoded(source):
        growing = adapters.Adapter(profile)
        for count in (*turn_ends(request.messages), len(request.messages)):
            part = request.messages[:count]
            grown = sent(growing, part, request.tools)
            fresh = sent(adapters.Adapter(profile), part, request.tools)
            assert (grown is None) == (fresh is None), (key, count)
            if grown is not None and fresh is not None:
                assert grown.body == fresh.body, (key, count)
                assert grown.losses == fresh.losses, (key, count)


def turn_ends(messages: tuple[Message, ...]) -> Iterator[int]:
    """Where a request could have been sent: before each answer."""
    for index, message in enumerate(messages):
        if message.role == "assistant" and index and messages[index - 1].role != "assistant":
            yield index


@pytest.mark.row("M-171", "T13")
@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_the_same_call_always_has_the_same_id(source: str, target: str) -> None:
    """Ids do not change from one reading to the next, nor from one writing to the next."""
    for (_, _, first, _), second in zip(decoded(source), decoded_again(source), strict=True):
        wires = [sent(adapters.get(target), request.messages) for request in (first, second)]
        bodies = [wire and wire.body for wire in wires]
        assert bodies[0] == bodies[1]


@cache
def decoded_again(name: str) -> list[CanonicalRequest]:
    """The recorded requests once more, from bytes and by another adapter."""
    adapter = adapters.get(name)
    return [adapter.from_wire_request(body_of(body), CONTEXT) for _, body in recorded(name)]
