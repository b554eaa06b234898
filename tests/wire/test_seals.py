"""Seals are enveloped for clients of other protocols and return to their issuer unchanged."""

import base64
import json
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from corpus import needs_corpus
from metis import adapters
from metis.adapters import Adapter, CanonicalRequest, RequestContext, SealRecord
from metis.adapters.seals import restore_seals, sealed_record
from metis.canonical import Message, RedactedThinkingBlock, TextBlock, ThinkingBlock
from metis.verify.seals import echoed, seal_faults, seals_of, sent_back
from metis.wire.original_form import response_events
from metis.wire.seals import (
    MAX_ENVELOPE_CHARS,
    Seal,
    is_envelope,
    may_have_envelope,
    read_envelope,
    write_envelope,
)
from test_stream_round_trip import RECORDINGS, Response, responses

CONTEXT = RequestContext(session_id="sess_seals")
SIGNATURE, HIDDEN = "c2lnbmF0dXJlIG9mIEFudGhyb3BpYw==", "cmVkYWN0ZWQgYnkgQW50aHJvcGlj"
CLAUDE: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-4-6",
    "content": [
        {"type": "thinking", "thinking": "First.", "signature": SIGNATURE},
        {"type": "text", "text": "So "},
        {"type": "redacted_thinking", "data": HIDDEN},
        {"type": "text", "text": "be it."},
        {"type": "tool_use", "id": "toolu_1", "name": "go", "input": {"n": 1}},
    ],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {"input_tokens": 1, "output_tokens": 1},
}


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="metis.adapters")


def claude() -> Message:
    return adapters.get("anthropic").from_wire_response(CLAUDE, CONTEXT)


def sealed_responses(step: int) -> Iterator[Response]:
    for recordings in RECORDINGS.values():
        found = [
            each
            for each in responses(recordings)
            if each.message is not None and seals_of(each.message)
        ]
        yield from found[::step]


def broken(client: Adapter, step: int) -> dict[str, list[str]]:
    faults = {
        each.id: list(seal_faults(each.adapter, client, CONTEXT, each.message, each.events))
        for each in sealed_responses(step)
        if each.message is not None
    }
    return {key: each for key, each in faults.items() if each}


@needs_corpus
@pytest.mark.row("T71")
@pytest.mark.parametrize("name", RECORDINGS)
def test_seals_return_from_clients_of_every_protocol(name: str) -> None:
    assert broken(adapters.get(name), 10) == {}


@needs_corpus
@pytest.mark.slow
@pytest.mark.parametrize("name", RECORDINGS)
def test_all_recorded_seals_return(name: str) -> None:
    assert broken(adapters.get(name), 1) == {}


@pytest.mark.parametrize("second", RECORDINGS)
@pytest.mark.parametrize("first", RECORDINGS)
def test_seals_return_through_two_gateways(first: str, second: str) -> None:
    """A gateway whose provider is another gateway, which Anthropic answers."""
    inner, outer = adapters.get(first), adapters.get(second, account="of the client")
    if "ollama" in (first, second):
        return
    middle = inner.from_wire_response(inner.encode_response(claude(), CONTEXT).body, CONTEXT)
    received = outer.from_wire_response(outer.encode_response(middle, CONTEXT).body, CONTEXT)
    request = echoed(outer, CONTEXT, received)
    assert request is not None
    again = [message for message in request.messages if seals_of(message)]
    forwarded = echoed(inner, CONTEXT, replace(again[0], metadata=middle.metadata))
    assert forwarded is not None
    back = sent_back(adapters.get("anthropic"), forwarded.messages)
    assert sorted(back) == sorted((SIGNATURE, HIDDEN))


def test_thinking_after_call_keeps_position_when_client_moves_the_call() -> None:
    """Chat has calls after all text: thinking between a call and a text splits the joined text."""
    call = CLAUDE["content"][-1]
    parts = [
        {"type": "text", "text": "One "},
        call,
        {"type": "redacted_thinking", "data": HIDDEN},
        {"type": "redacted_thinking", "data": SIGNATURE},
        {"type": "text", "text": "two"},
    ]
    answer = adapters.get("anthropic").from_wire_response({**CLAUDE, "content": parts}, CONTEXT)
    record = sealed_record(answer, adapters.get("openai").profile)
    assert record is not None
    joined = replace(answer, content=(TextBlock("One two"), answer.content[1]))
    request = restore_seals(
        CanonicalRequest(messages=(joined,)), dict.fromkeys(record.keys, record.value)
    )
    content = request.messages[0].content
    assert [block.type for block in content] == [
        "text",
        "redacted_thinking",
        "redacted_thinking",
        "text",
        "tool_use",
    ]
    texts = [block.text for block in content if isinstance(block, TextBlock)]
    assert texts == ["One ", "two"]


@pytest.mark.parametrize("name", ["openai", "ollama"])
@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("has_calls", [False, True])
def test_seals_dropped_by_client_are_looked_up(
    name: str, *, is_stream: bool, has_calls: bool
) -> None:
    stored: dict[str, str] = {}

    def store(record: SealRecord) -> None:
        stored.update(dict.fromkeys(record.keys, record.value))

    client = adapters.get(name)
    context = replace(CONTEXT, on_seals=store)
    parts = CLAUDE["content"] if has_calls else CLAUDE["content"][:-1]
    answer = adapters.get("anthropic").from_wire_response({**CLAUDE, "content": parts}, CONTEXT)
    if is_stream:
        encoder = client.stream_encoder(context)
        losses = encoder.losses
        for event in response_events(answer):
            encoder.encode(event)
    else:
        losses = client.encode_response(answer, context).losses
    assert [loss for loss in losses if loss.block_type == "seal"] == []
    body = json.loads(client.encode_response(answer, CONTEXT).body)
    message = body["message"] if name == "ollama" else body["choices"][0]["message"]
    plain = {key: message[key] for key in ("role", "content", "tool_calls") if key in message}
    history = {"messages": [{"role": "user", "content": "go"}, plain]}

    def find(keys: Sequence[str]) -> dict[str, str]:
        return {key: stored[key] for key in keys if key in stored}

    request = client.from_wire_request(history, replace(CONTEXT, find_seals=find))
    content = request.messages[1].content
    assert content[0] == ThinkingBlock("First.", SIGNATURE, issuer="anthropic")
    assert content[2] == RedactedThinkingBlock(HIDDEN, issuer="anthropic")
    assert sent_back(adapters.get("anthropic"), request.messages) == [SIGNATURE, HIDDEN]
    assert seals_of(client.from_wire_request(history, CONTEXT).messages[1]) == []


def test_seals_of_one_account_are_not_sent_for_another() -> None:
    first, second = (adapters.get("anthropic", account=name) for name in ("one", "two"))
    answer = first.from_wire_response(CLAUDE, CONTEXT)
    face = adapters.get("anthropic")
    scoped = replace(CONTEXT, issuer=first.profile.issuer)
    raw = face.encode_response(answer, scoped).body
    assert SIGNATURE.encode() in raw
    assert SIGNATURE.encode() not in face.encode_response(answer, CONTEXT).body
    for context in (scoped, CONTEXT):
        body = face.encode_response(answer, context).body
        turns = [{"role": "user", "content": "go"}]
        turns.append({"role": "assistant", "content": json.loads(body)["content"]})
        request = face.from_wire_request({"messages": turns, "max_tokens": 9}, context)
        assert sent_back(first, request.messages) == [SIGNATURE, HIDDEN]
        assert sent_back(second, request.messages) == []
        assert sent_back(face, request.messages) == []


@given(st.text(), st.text(), st.sampled_from(["signature", "data"]), st.none() | st.text())
def test_any_seal_fits_an_envelope(issuer: str, value: str, kind: Any, item: str | None) -> None:
    seal = Seal(issuer, value, kind, item, None, 3, (1, 2))
    envelope = write_envelope(seal)
    assert envelope is not None
    assert is_envelope(envelope)
    assert base64.b64decode(envelope, validate=True)
    assert read_envelope(envelope) == seal
    urlsafe = envelope.translate(str.maketrans("+/", "-_")).rstrip("=")
    assert read_envelope(urlsafe) == seal


@given(st.binary(max_size=80), st.integers(0, 200))
def test_damaged_envelope_is_refused(data: bytes, place: int) -> None:
    envelope = write_envelope(Seal("anthropic", "x" * 50)) or ""
    index = 16 + place % (len(envelope) - 16)
    other = envelope[:index] + ("A" if envelope[index] != "A" else "B") + envelope[index + 1 :]
    # The last character may have bits after the end, which no byte depends on.
    is_same = base64.b64decode(other) == base64.b64decode(envelope)
    assert read_envelope(other) == (read_envelope(envelope) if is_same else None)
    assert read_envelope(envelope[:16] + base64.b64encode(data).decode()) is None


def test_oversized_envelope_is_refused() -> None:
    assert write_envelope(Seal("anthropic", "x" * MAX_ENVELOPE_CHARS)) is None


def test_forged_envelope_gives_only_its_own_bytes() -> None:
    client = adapters.get("openai")
    forged = write_envelope(Seal("anthropic", "forged by the client"))
    detail = {"type": "reasoning.text", "text": "mine", "signature": forged}
    answer = {"role": "assistant", "content": "yes", "reasoning_details": [detail]}
    request = client.from_wire_request({"messages": [{"role": "user", "content": "?"}, answer]})
    sent = adapters.get("anthropic").preview([*request.messages, request.messages[0]])
    block = json.loads(sent.body)["messages"][1]["content"][0]
    assert block == {"type": "thinking", "thinking": "mine", "signature": "forged by the client"}
    assert sent_back(adapters.get("gemini"), request.messages) == []


@pytest.mark.parametrize("lost", ["reasoning_details", "extra_content", None])
def test_clients_of_gemini_over_chat_bring_back_the_signature_of_a_call(lost: str | None) -> None:
    """Google's host has it beside the call; others in typed parts. Clients keep one, or both."""
    gemini, chat = adapters.get("gemini"), adapters.get("openai")
    context, signature = RequestContext(session_id="sess_seals"), "c2lnbmF0dXJlLW9mLWdlbWluaQ=="
    calls: list[dict[str, Any]] = [
        {"functionCall": {"name": "f", "args": {}}, "thoughtSignature": signature},
        {"functionCall": {"name": "g", "args": {}}},
    ]
    candidate = {"content": {"role": "model", "parts": calls}, "finishReason": "STOP"}
    answer = gemini.from_wire_response({"candidates": [candidate], "responseId": "r"}, context)
    served = chat.encode_response(answer, context)
    assert served.losses == []
    assert signature.encode() not in served.body
    message = json.loads(served.body)["choices"][0]["message"]
    assert [is_envelope(_extra(call)) for call in message["tool_calls"]] == [True, False]
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": "1"}
        for call in message["tool_calls"]
    ]
    for holder in (message, *message["tool_calls"]):
        holder.pop(lost, None)
    history = [{"role": "user", "content": "go"}, message, *results]
    request = chat.from_wire_request({"model": "m", "messages": history}, context)
    body = json.loads(gemini.preview(request.messages, request.tools).body)
    assert body["contents"][1]["parts"] == calls
    # No other provider gets it, neither raw nor in its envelope.
    other = chat.preview(request.messages, request.tools)
    assert b"extra_content" not in other.body
    assert not may_have_envelope(other.body)


def _extra(call: dict[str, Any]) -> str | None:
    return call.get("extra_content", {}).get("google", {}).get("thought_signature")


GOOGLE_CALL: dict[str, Any] = {
    "id": "call_a",
    "type": "function",
    "function": {"name": "go", "arguments": "{}"},
    "extra_content": {"google": {"thought_signature": SIGNATURE}},
}


@pytest.mark.row("T61")
def test_google_signature_of_a_chat_call_returns_from_clients_of_every_protocol() -> None:
    """Gemini behind Chat Completions answers 400 to a call without its signature."""
    host = adapters.get("openai-compatible", base_url="https://host.example/v1")
    message = {"role": "assistant", "content": None, "tool_calls": [GOOGLE_CALL]}
    choice = {"index": 0, "finish_reason": "tool_calls", "message": message}
    body = {"id": "r", "object": "chat.completion", "model": "m", "choices": [choice]}
    response = host.from_wire_response(body, CONTEXT)
    assert sent_back(host, [response]) == [SIGNATURE]
    delta = {"role": "assistant", "tool_calls": [{"index": 0, **GOOGLE_CALL}]}
    chunk = {**body, "choices": [{"index": 0, "delta": delta, "finish_reason": "tool_calls"}]}
    decoder = host.stream_decoder(CONTEXT)
    stream = b"data: %b\n\ndata: [DONE]\n\n" % json.dumps(chunk).encode()
    streamed = [*decoder.feed(stream), *decoder.finish()]
    assert decoder.message.content_digest() == response.content_digest()
    plain = host.response_events(response, CONTEXT)
    for name in ("anthropic", "bedrock-converse", "gemini", "ollama", "openai", "openai-responses"):
        client = adapters.get(name)
        for events in (plain, streamed):
            assert list(seal_faults(host, client, CONTEXT, response, events)) == []


def test_every_fragment_of_a_signed_call_has_its_function_for_chat_clients() -> None:
    """The SDK of OpenAI, LangChain, llm and the AI SDK fail on a fragment without one."""
    call = {"functionCall": {"name": "look", "args": {"x": 1}}, "thoughtSignature": SIGNATURE}
    candidate = {"content": {"role": "model", "parts": [call]}, "finishReason": "STOP"}
    decoder = adapters.get("gemini").stream_decoder(CONTEXT)
    chunk = json.dumps({"candidates": [candidate], "modelVersion": "m"}).encode()
    events = [*decoder.feed(b"data: %b\n\n" % chunk), *decoder.finish()]
    encoder = adapters.get("openai").stream_encoder(CONTEXT)
    lines = b"".join([*map(encoder.encode, events), encoder.finish()]).split(b"\n")
    chunks = [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]
    fragments = [
        fragment
        for each in chunks
        for choice in each["choices"]
        for fragment in choice["delta"].get("tool_calls", ())
    ]
    assert [fragment for fragment in fragments if "extra_content" in fragment]
    assert [fragment for fragment in fragments if "function" not in fragment] == []
    assert "".join(fragment["function"]["arguments"] for fragment in fragments) == '{"x":1}'
