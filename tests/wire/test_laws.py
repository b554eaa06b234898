"""The laws of every protocol; a new protocol only adds a row to ADAPTERS."""

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
    """One protocol: its recordings, the key of its turns, and its turn rules."""

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
"""Protocols whose turns alternate, so that adjacent messages of a role share one."""


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="metis.adapters")


def recorded(name: str) -> Iterator[tuple[str, Any]]:
    """Yield the requests for the laws: handwritten, and recorded where available."""
    row = ADAPTERS[name]
    return (
        (key, body)
        for key, body in requests(row.recordings)
        if row.turns in body or "prompt" in body
    )


class Decoded(NamedTuple):
    """A recorded request, its canonical form, and the canonical messages as bytes."""

    key: str
    body: Any
    request: CanonicalRequest
    encoded: list[bytes]


@cache
def decoded(name: str) -> list[Decoded]:
    """Return the recorded requests in canonical form, which every target receives."""
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
    """Return the request to a provider, or None if nothing is left to send."""
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
    """Decode, store, load and encode a request in its protocol: the same JSON, no loss."""
    adapter = adapters.get(name)
    for key, body, request, encoded in decoded(name):
        stored = [decode(message) for message in encoded]
        wire = adapter.to_wire(stored, request.tools, request.options)
        assert json.loads(wire.body) == body, key
        assert wire.losses == [], key


@pytest.mark.row("M-010")
@pytest.mark.parametrize("name", ADAPTERS)
def test_unknown_key_changes_nothing_else(name: str) -> None:
    """An unknown key disables the fast path; the general path must give the same result."""
    adapter = adapters.get(name)
    for key, body, usual, _ in decoded(name):
        strange = body | {"x_nobody_knows": 1}
        other = adapter.from_wire_request(strange, CONTEXT)
        sent_texts = [(message.role, message.content) for message in usual.messages]
        assert sent_texts == [(message.role, message.content) for message in other.messages], key
        wire = adapter.to_wire(other.messages, other.tools, other.options)
        assert json.loads(wire.body) == strange, key


@pytest.mark.slow
@pytest.mark.row("M-021", "M-054", "M-055", "M-063", "M-065", "M-138", "M-170", "M-224")
@pytest.mark.row("T15", "T19", "T20", "T87", "T183", "T210", "T211", "T212")
@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_requests_of_other_protocols_are_complete_and_valid(source: str, target: str) -> None:
    """Body and losses account for every block; the SDK types and target rules accept it."""
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
                assert is_carried(block, texts) or is_reported_loss(message, index, wire.losses), (
                    key,
                    message.id,
                    block,
                )


@pytest.mark.row("T115", "T117", "T210")
@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_no_silent_loss_of_response_format(source: str, target: str) -> None:
    """The response format and each of its keys is sent to the target or reported as a loss."""
    for key, _, request, _ in decoded(source):
        wanted = request.options.output
        if wanted is None:
            continue
        options = replace(request.options, model=None)
        wire = adapters.get(target).to_wire(request.messages, request.tools, options)
        found = adapters.get(target).from_wire_request(wire.body, CONTEXT).options.output
        loss_paths = {loss.path for loss in wire.losses}
        assert found is not None or "$.output" in loss_paths, key
        sent_texts = set(strings(json.loads(wire.body)))
        for place in ("name", "description"):
            part = getattr(wanted, place)
            assert (
                not part
                or any(part in text for text in sent_texts)
                or f"$.output.{place}" in loss_paths
            )
        if "$.output" in loss_paths or found is None:
            continue
        assert found.strict is wanted.strict or "$.output.strict" in loss_paths, key
        schema = dict(found.schema or {})
        for place, part in (("title", wanted.name), ("description", wanted.description)):
            if schema.get(place) == part and place not in (wanted.schema or {}):
                schema.pop(place, None)
        assert schema == (wanted.schema or {}) or "$.output.schema" in loss_paths, key


@pytest.mark.row("T115")
@pytest.mark.parametrize("source", ADAPTERS)
def test_some_recorded_requests_have_a_response_format(source: str) -> None:
    assert any(each.request.options.output is not None for each in decoded(source))


def strings(value: Any) -> Iterator[str]:
    """Yield every string in a JSON value, and in JSON inside of strings."""
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


def is_carried(block: ContentBlock, sent_texts: set[str]) -> bool:
    match block:
        case TextBlock():
            return not block.text or any(block.text in text for text in sent_texts)
        case ToolUseBlock():
            return block.name in sent_texts and set(strings(block.input)) <= sent_texts
        case ToolResultBlock():
            return all(is_carried(inner, sent_texts) for inner in block.content)
        case ImageBlock():
            return any(block.source.data in text for text in sent_texts)
        case OpaqueBlock(kind="additional_tools"):
            # Tools defined by a message are sent among the tools of the request.
            return {tool["name"] for tool in json.loads(bytes(block.raw))["tools"]} <= sent_texts
        case _:
            data = getattr(getattr(block, "source", None), "data", None)
            return data is not None and any(
                one in text for one in media_encodings(data) for text in sent_texts
            )


def media_encodings(data: str) -> list[str]:
    """Return the accepted encodings of media: as data, or as its text."""
    try:
        return [data, base64.b64decode(data, validate=True).decode()]
    except ValueError:
        return [data]


def is_reported_loss(message: Message, index: int, losses: list[Loss]) -> bool:
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
def test_validators_refuse_invalid_requests(target: str, damage: dict[str, Any]) -> None:
    prompt_messages: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
    good: dict[str, Any] = {"model": "m", ADAPTERS[target].turns: prompt_messages}
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
    """The request of an earlier turn is a prefix of the request of a later one."""
    for key, _, request, _ in decoded(source):
        adapter = adapters.get(target)
        whole = sent(adapter, request.messages)
        if whole is None:
            continue
        for count in turn_ends(request.messages):
            has_room = is_unasked(request.messages[:count]) or target in JOINING
            if has_room and is_gone(request.messages[count], whole):
                continue  # the messages before and after the response are joined
            part = sent(adapter, request.messages[:count])
            if part is not None:
                assert whole.body.startswith(stem(target, part.body)), (key, count)


def is_unasked(messages: tuple[Message, ...]) -> bool:
    """Return whether there is no prompt, only instructions."""
    return all(message.role in ("system", "developer") for message in messages)


def is_gone(message: Message, wire: WireRequest) -> bool:
    """Return whether nothing of a message was sent."""
    return any((loss.message_id, loss.path) == (message.id, "$") for loss in wire.losses)


def stem(target: str, body: bytes) -> bytes:
    """Return a request up to the bracket that closes its turns; its keys are sorted."""
    turns = ADAPTERS[target].turns
    later = min((key for key in json.loads(body) if key > turns), default=None)
    return body[: body.rindex(b"]}" if later is None else b'],"%b":' % later.encode())]


@pytest.mark.slow
@pytest.mark.row("M-224", "T176")
@pytest.mark.parametrize("source", ADAPTERS)
@pytest.mark.parametrize("target", ADAPTERS)
def test_reused_encoded_history_changes_nothing(source: str, target: str) -> None:
    """A growing conversation gives the same requests and losses as one that is sent at once."""
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
    """Return the positions at which a request could have been sent: before each response."""
    for index, message in enumerate(messages):
        if message.role == "assistant" and index and messages[index - 1].role != "assistant":
            yield index


@pytest.mark.slow
@pytest.mark.row("M-171", "T13")
@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_ids_of_calls_are_deterministic(source: str, target: str) -> None:
    """Decoding twice and encoding twice give equal ids."""
    for (_, _, first, _), second in zip(decoded(source), decoded_again(source), strict=True):
        wires = [sent(adapters.get(target), request.messages) for request in (first, second)]
        bodies = [wire and wire.body for wire in wires]
        assert bodies[0] == bodies[1]


@cache
def decoded_again(name: str) -> list[CanonicalRequest]:
    """Return the recorded requests decoded again, from bytes and by another adapter."""
    adapter = adapters.get(name)
    return [adapter.from_wire_request(body_of(body), CONTEXT) for _, body in recorded(name)]
