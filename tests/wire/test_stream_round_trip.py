"""Recorded responses encoded for clients: streams, plain responses, truncated calls."""

import json
import logging
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple, cast

import pytest

from corpus import CORPUS, needs_corpus, needs_whole_corpus
from metis import adapters
from metis.adapters import Adapter, RequestContext
from metis.canonical import Message, MetisError, ToolUseBlock
from metis.canonical.metadata import MessageStatus
from metis.streaming import MessageComplete, StreamError, StreamEvent
from metis.verify import adapter_of, differences, read_recording
from metis.verify.served import (
    broken_call_faults,
    read_stream,
    served_faults,
    translated_faults,
    write_stream,
    written_stream_faults,
)
from metis.wire.original_form import response_events

RECORDINGS = {
    "anthropic": "anthropic_messages",
    "bedrock-converse": "bedrock_converse",
    "gemini": "gemini",
    "ollama": "ollama",
    "openai": "openai_chat",
    "openai-responses": "openai_responses",
}
CONTEXT = RequestContext(session_id="sess_served")
NONE = dict.fromkeys(RECORDINGS, 0)
UNWRITTEN = NONE
"""How many recorded streams of each provider are not encoded as they were decoded."""
UNEQUAL = NONE
"""How many responses differ for clients of each protocol between stream and plain response."""
UNBROKEN = NONE
"""In how many responses a client would read a truncated call as a complete one."""


class Response(NamedTuple):
    """One recorded response."""

    id: str
    adapter: Adapter
    message: Message | None
    events: tuple[StreamEvent, ...]
    is_stream: bool


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="metis.adapters")


@cache
def responses(recordings: str) -> list[Response]:
    return list(_responses(recordings))


def _responses(recordings: str) -> Iterator[Response]:
    path = CORPUS / f"{recordings}.jsonl"
    for line in path.read_bytes().splitlines() if path.exists() else ():
        recording = read_recording(line)
        adapter = adapter_of(recording)
        if adapter is None:
            continue
        if recording.body is None and recording.stream is not None:
            events = tuple(read_stream(adapter, CONTEXT, recording.stream))
            end = events[-1]
            message = end.message if isinstance(end, MessageComplete) else None
            yield Response(recording.id, adapter, message, events, is_stream=True)
        elif recording.body is not None and recording.status in (None, 200):
            try:
                message = adapter.from_wire_response(recording.body, CONTEXT)
            except MetisError:
                continue
            events = tuple(response_events(message))
            yield Response(recording.id, adapter, message, events, is_stream=False)


def summary(faults: Iterable[tuple[str, list[str]]], expected: int) -> None:
    broken = {key: each[:3] for key, each in faults if each}
    assert len(broken) <= expected, f"{len(broken)} are broken: {dict(list(broken.items())[:20])}"


@needs_corpus
@pytest.mark.row("M-010")
@pytest.mark.parametrize("name", RECORDINGS)
def test_stream_round_trip(name: str) -> None:
    """Decoded, encoded and decoded again: the same message, ids, usage and keys."""
    recorded = [each for each in responses(RECORDINGS[name]) if each.is_stream]
    faults = (
        (each.id, list(written_stream_faults(each.adapter, CONTEXT, each.events)))
        for each in recorded
    )
    summary(faults, UNWRITTEN[name])


@pytest.mark.slow
@needs_corpus
@pytest.mark.parametrize("name", RECORDINGS)
def test_stream_and_plain_response_give_clients_equal_messages(name: str) -> None:
    """Responses of every provider, for clients of one."""
    client = adapters.get(name)
    faults = (
        (each.id, list(served_faults(client, CONTEXT, each.message, each.events)))
        for recordings in RECORDINGS.values()
        for each in responses(recordings)
        if each.message is not None
    )
    summary(faults, UNEQUAL[name])


@needs_corpus
@pytest.mark.parametrize("name", RECORDINGS)
def test_clients_receive_everything_except_reported_losses(name: str) -> None:
    """Responses of every provider, for clients of one."""
    client = adapters.get(name)
    faults = (
        (each.id, list(translated_faults(client, CONTEXT, each.message)))
        for recordings in RECORDINGS.values()
        for each in responses(recordings)
        if each.message is not None
    )
    summary(faults, UNEQUAL[name])


DEFAULTS = frozenset({"closed", "index", "tool_choice", "tools", "temperature", "top_p", "type"})
"""Keys that a stream may state or omit with the same meaning."""


def meaningful(value: Any) -> Any:
    """Return JSON without empty values and keys with default values."""
    if isinstance(value, dict):
        items = {
            key: meaningful(each)
            for key, each in cast("dict[str, Any]", value).items()
            if key not in DEFAULTS
        }
        return {key: each for key, each in items.items() if each not in (None, "", [], {})}
    if isinstance(value, list):
        return [meaningful(each) for each in cast("list[Any]", value)]
    return value


@needs_corpus
@pytest.mark.parametrize("name", RECORDINGS)
def test_plain_response_encoded_as_stream_has_every_key(name: str) -> None:
    """A client that requests a stream from a provider that answered without one."""
    faults: dict[str, Any] = {}
    for each in responses(RECORDINGS[name]):
        if each.message is None or each.message.metadata.status is not MessageStatus.COMPLETE:
            continue
        data, losses = write_stream(
            each.adapter, CONTEXT, each.adapter.response_events(each.message, CONTEXT)
        )
        end = read_stream(each.adapter, CONTEXT, data)[-1]
        assert isinstance(end, MessageComplete), each.id
        before, after = (
            meaningful(json.loads(each.adapter.encode_response(message, CONTEXT).body))
            for message in (each.message, end.message)
        )
        if losses or before != after:
            faults[each.id] = [*losses, *differences(before, after)][:2]
    assert faults == {}


def test_other_candidates_of_gemini_stream_are_preserved() -> None:
    def chunk(*candidates: tuple[int, str], reason: str | None = None) -> bytes:
        wire = [
            {
                "index": index,
                "content": {"role": "model", "parts": [{"text": text}]},
                **({} if reason is None else {"finishReason": reason}),
            }
            for index, text in candidates
        ]
        usage = {"promptTokenCount": 1, "candidatesTokenCount": 2, "totalTokenCount": 3}
        body = {"candidates": wire, "responseId": "r", "modelVersion": "m", "usageMetadata": usage}
        return b"data: " + json.dumps(body).encode() + b"\n\n"

    stream = chunk((0, "a"), (1, "x")) + chunk((1, "y")) + chunk((0, "b"), (1, "z"), reason="STOP")
    gemini = adapters.get("gemini")
    events = read_stream(gemini, CONTEXT, stream)
    end = events[-1]
    assert isinstance(end, MessageComplete)
    body = json.loads(gemini.encode_response(end.message, CONTEXT).body)
    texts = [each["content"]["parts"][0]["text"] for each in body["candidates"]]
    assert texts == ["ab", "xyz"]
    assert list(written_stream_faults(gemini, CONTEXT, events)) == []
    _, losses = write_stream(adapters.get("anthropic"), CONTEXT, events)
    assert "$.candidates[1]" in {loss.path for loss in losses}


def test_host_specific_keys_are_losses() -> None:
    body = {
        "id": "c1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "system_fingerprint": "fp_1",
        "service_tier": "flex",
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "logprobs": {"content": [{"token": "x", "logprob": -1}]},
                "message": {"role": "assistant", "content": "x"},
            },
            {"index": 1, "finish_reason": "stop", "message": {"content": "y"}},
        ],
        "usage": {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3, "cost": 0.5},
    }
    message = adapters.get("openrouter").from_wire_response(body, CONTEXT)
    expected = {
        "$.system_fingerprint",
        "$.choices[0].logprobs",
        "$.choices[1]",
        "$.metadata.usage.reported_cost_usd",
        "$.metadata.usage.service_tier",
    }
    for name in ("anthropic", "openai"):
        client = adapters.get(name)
        plain = client.encode_response(message, CONTEXT)
        assert {loss.path for loss in plain.losses} == expected
        encoder = client.stream_encoder(CONTEXT)
        for event in response_events(message):
            encoder.encode(event)
        assert {loss.path for loss in encoder.losses} == expected
    own = adapters.get("openrouter").encode_response(message, CONTEXT)
    assert (own.losses, json.loads(own.body)) == ([], body)


@needs_corpus
@pytest.mark.slow
@pytest.mark.row("T32", "T161")
@pytest.mark.parametrize("name", RECORDINGS)
def test_truncated_call_is_never_encoded_as_complete(name: str) -> None:
    """Calls of every provider, truncated in the middle, for clients of one."""
    client = adapters.get(name)
    faults = (
        (each.id, list(broken_call_faults(each.adapter, client, CONTEXT, each.message)))
        for recordings in RECORDINGS.values()
        for each in responses(recordings)
        if each.message is not None
        and any(type(block) is ToolUseBlock for block in each.message.content)
    )
    summary(faults, UNBROKEN[name])


@needs_whole_corpus
def test_every_protocol_has_recorded_streams() -> None:
    for recordings in RECORDINGS.values():
        assert any(each.is_stream for each in responses(recordings)), recordings


Body = dict[str, Any]


def sse(*bodies: Body, named: bool = False) -> bytes:
    lines = (
        (f"event: {body['type']}\n" if named else "") + f"data: {json.dumps(body)}\n\n"
        for body in bodies
    )
    return "".join(lines).encode()


def chat(*deltas: Body, **keys: Any) -> bytes:
    envelope = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", **keys}
    chunks = [
        {**envelope, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        for delta in ({"role": "assistant", "content": ""}, *deltas)
    ]
    end: Body = {**envelope, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    return sse(*chunks, end) + b"data: [DONE]\n\n"


def content(*parts: Body) -> Body:
    return {"content": [*parts]}


def thought(text: str, **keys: Any) -> Body:
    return {"type": "thinking", "thinking": [{"type": "text", "text": text}], **keys}


def claude(*blocks: Body, stop: Body | None = None) -> bytes:
    usage = {"input_tokens": 3, "output_tokens": 2}
    start: Body = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
    }
    return sse(
        {"type": "message_start", "message": {**start, "usage": usage}},
        *blocks,
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage},
        {"type": "message_stop", **(stop or {})},
        named=True,
    )


def parts_of(start: Body, *deltas: Body) -> list[Body]:
    return [
        {"type": "content_block_start", "index": 0, "content_block": start},
        *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": 0},
    ]


def item_stream(done: Body, final: Body | None = None) -> bytes:
    """Return a Responses stream of a message with the deltas `Hi.` and any final item."""
    response = {"id": "resp_1", "object": "response", "model": "m", "status": "in_progress"}
    opened: Body = {"type": "message", "id": "msg_1", "role": "assistant", "content": []}
    part: Body = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    place = {"output_index": 0, "item_id": "msg_1", "content_index": 0}
    end = {**response, "status": "completed", "output": [done if final is None else final]}
    return sse(
        {"type": "response.created", "response": {**response, "output": []}},
        {"type": "response.output_item.added", "output_index": 0, "item": opened},
        {"type": "response.content_part.added", **place, "part": part},
        {"type": "response.output_text.delta", **place, "delta": "Hi"},
        {"type": "response.output_text.delta", **place, "delta": "."},
        {"type": "response.output_item.done", "output_index": 0, "item": done},
        {"type": "response.completed", "response": end},
        named=True,
    )


def message_item(text: str, **keys: Any) -> Body:
    part: Body = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed"}
    return {**item, "content": [part], **keys}


UNUSUAL = {
    "references between texts": (
        "mistral",
        chat(
            content(thought("hm", closed=True, signature="s"), {"type": "text", "text": "Paris"}),
            content({"type": "reference", "reference_ids": [1, 2]}),
            content({"type": "text", "text": " is"}),
            content({"type": "tool_reference", "tool": "web_search", "title": "x"}),
        ),
        [b"reference_ids", b"tool_reference", b'"closed"', b'"signature"'],
    ),
    "references in thinking": (
        "mistral",
        chat(
            content(thought("hm")),
            content({"type": "thinking", "thinking": [{"type": "reference", "x": 1}]}),
            content(thought(" so")),
        ),
        [b'"reference"', b"hm so"],
    ),
    "a seal without text": (
        "openrouter",
        chat(
            {"reasoning_details": [{"type": "reasoning.text", "index": 0, "signature": "sealed"}]},
            {"content": "ready"},
        ),
        [b"sealed"],
    ),
    "keys of a function": (
        "openai",
        chat(
            {
                "tool_calls": [
                    {"index": 0, "id": "c", "function": {"name": "f", "arguments": "", "x": [1]}}
                ]
            },
            {"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]},
        ),
        [b'"x":[1]'],
    ),
    "measures of Bedrock": (
        "bedrock",
        claude(
            *parts_of({"type": "text", "text": ""}, {"type": "text_delta", "text": "Hi."}),
            stop={"amazon-bedrock-invocationMetrics": {"inputTokenCount": 3}},
        ),
        [b"inputTokenCount"],
    ),
    "keys of deltas": (
        "anthropic",
        claude(
            *parts_of(
                {"type": "thinking", "thinking": "", "signature": ""},
                {"type": "thinking_delta", "thinking": "hm", "tokens": {"n": 7}},
                {"type": "signature_delta", "signature": "s", "key": "k7"},
            )
        ),
        [b'"n":7', b'"k7"'],
    ),
    "keys of arguments": (
        "anthropic",
        claude(
            *parts_of(
                {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}},
                {"type": "input_json_delta", "partial_json": "{}", "hint": {"n": 7}},
            )
        ),
        [b'"n":7'],
    ),
    "keys of redacted thinking": (
        "anthropic",
        claude(*parts_of({"type": "redacted_thinking", "data": "sealed", "kind": "k7"})),
        [b"sealed", b"k7"],
    ),
    "deltas that contradict their end": (
        "openai-responses",
        item_stream(message_item("Ho.")),
        [b"Ho."],
    ),
    "an item that ends with another id": (
        "openai-responses",
        item_stream(message_item("Hi.", id="msg_2")),
        [b"msg_2"],
    ),
    "keys that only the final response has": (
        "openai-responses",
        item_stream(message_item("Hi."), message_item("Hi.", phase="final_answer")),
        [b"final_answer"],
    ),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_stream_is_encoded_with_every_key(name: str) -> None:
    provider, stream, values = UNUSUAL[name]
    adapter = adapters.get(provider)
    if adapter.profile.aws_framed:
        adapter = adapters.get("anthropic")  # equal events, as parsed frames
    events = read_stream(adapter, CONTEXT, stream)
    end = events[-1]
    assert isinstance(end, MessageComplete)
    body = adapter.encode_response(end.message, CONTEXT).body
    assert [value for value in values if value not in body] == []
    assert list(written_stream_faults(adapter, CONTEXT, events)) == []
    if name == "deltas that contradict their end":
        return  # deltas that a client has received cannot be retracted
    clients = [adapters.get(each) for each in RECORDINGS]
    served = [served_faults(client, CONTEXT, end.message, events) for client in clients]
    assert [list(faults) for faults in served] == [[]] * len(clients)


def test_stream_that_ends_in_error_has_everything_before_it() -> None:
    part = {"type": "reasoning.text", "text": "hm", "format": "anthropic-claude-v1", "index": 0}
    cut = chat({"reasoning": "hm", "reasoning_details": [part]}).split(b"data: [DONE]")[0]
    cut = cut.rsplit(b"data: ", 1)[0] + sse({"error": {"code": 502, "message": "gone"}})
    search: Body = {"type": "server_tool_use", "id": "s_1", "name": "web_search", "input": {}}
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}
    server_call = claude(*parts_of(search)[:1]).split(b"event: message_delta")[0]
    for name, stream in (
        ("openrouter", cut),
        ("anthropic", server_call + sse(error, named=True)),
    ):
        adapter = adapters.get(name)
        events = read_stream(adapter, CONTEXT, stream)
        end = events[-1]
        assert isinstance(end, StreamError)
        assert end.message is not None
        assert len(end.message.content) == 1
        assert list(written_stream_faults(adapter, CONTEXT, events)) == []
