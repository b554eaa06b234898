"""Thinking between tags in the text of a response: decoded, and sent back."""

import json
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from build import user
from metis import adapters
from metis.canonical import Message, TextBlock, ThinkingBlock
from metis.canonical.codec import decode, encode
from metis.streaming import Accumulator, MessageComplete, StreamError, ThinkingDelta
from metis.verify.laws import SERVING_LAWS, check_laws
from metis.verify.recordings import Recording
from metis.wire.call import RequestContext

CONTEXT = RequestContext(session_id="sess_tags")
HOSTS = ["vllm", "llamacpp", "lmstudio", "ollama-openai", "openai-compatible"]
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="metis.adapters")


def answer(content: str | None, **fields: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": content, **fields}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return {"id": "chatcmpl-1", "object": "chat.completion", "model": "m", "choices": [choice]}


def stream(*pieces: str, calls: bool = False, end: bool = True) -> bytes:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": piece} for piece in pieces]
    if calls:
        deltas.append({"tool_calls": [{"index": 0, **CALL}]})
    choices: list[dict[str, Any]] = [{"index": 0, "delta": delta} for delta in deltas]
    if end:
        choices.append({"index": 0, "delta": {}, "finish_reason": "stop"})
    chunks = [{"id": "chatcmpl-1", "model": "m", "choices": [choice]} for choice in choices]
    lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
    return "".join([*lines, "data: [DONE]\n\n" if end else ""]).encode()


def blocks_of(message: Message) -> list[tuple[str, str]]:
    return [
        (block.type, block.text)
        for block in message.content
        if isinstance(block, TextBlock | ThinkingBlock)
    ]


CASES: dict[str, list[tuple[str, str]]] = {
    "<think>Hm.</think>Yes.": [("thinking", "Hm."), ("text", "Yes.")],
    "<think>\nHm.\n</think>\n\nYes.": [("thinking", "\nHm.\n"), ("text", "\n\nYes.")],
    "\n <think>Hm.</think>Yes.": [("text", "\n "), ("thinking", "Hm."), ("text", "Yes.")],
    "<think></think>Yes.": [("thinking", ""), ("text", "Yes.")],
    "<think>Hm.</think>": [("thinking", "Hm.")],
    "<think>Hm. But": [("thinking", "Hm. But")],
    "<think>a</thin": [("thinking", "a</thin")],
    "<think>a < b </ c</think>Yes.": [("thinking", "a < b </ c"), ("text", "Yes.")],
    "<think>a</think>b<think>c</think>": [("thinking", "a"), ("text", "b<think>c</think>")],
    "Write <think> first.": [("text", "Write <think> first.")],
    "<thinking>no</thinking>": [("text", "<thinking>no</thinking>")],
    "<thi": [("text", "<thi")],
    "a</think>b": [("text", "a</think>b")],
}


@pytest.mark.row("T70")
@pytest.mark.parametrize("name", HOSTS)
@pytest.mark.parametrize("text", CASES)
def test_tagged_text_becomes_thinking(name: str, text: str) -> None:
    host = adapters.get(name)
    message = host.from_wire_response(answer(text), CONTEXT)
    assert blocks_of(message) == CASES[text]
    stored = decode(encode(message))
    assert json.loads(host.to_wire_response(stored, CONTEXT)) == answer(text)
    wire = host.to_wire([user("go"), stored, user("more")])
    assert json.loads(wire.body)["messages"][1] == {"role": "assistant", "content": text}
    assert wire.losses == []


@pytest.mark.row("T70")
@pytest.mark.parametrize("text", CASES)
@pytest.mark.parametrize("calls", [True, False])
def test_stream_gives_equal_blocks_for_any_chunking(text: str, calls: bool) -> None:  # noqa: FBT001 - a case
    host = adapters.get("vllm")
    fields = {"tool_calls": [CALL]} if calls else {}
    plain = host.from_wire_response(answer(text, **fields), CONTEXT)
    for size in (1, 2, 3, 5, 1000):
        pieces = [text[n : n + size] for n in range(0, len(text), size)]
        decoder = host.stream_decoder(CONTEXT)
        events = [*decoder.feed(stream(*pieces, calls=calls)), *decoder.finish()]
        end = events[-1]
        assert isinstance(end, MessageComplete)
        assert blocks_of(end.message) == blocks_of(plain) == CASES[text]
        accumulator = Accumulator()
        places: list[int] = []
        for event in events:
            accumulator.add(event)
            places += [getattr(event, "content_block_index", places[-1] if places else 0)]
        assert places == sorted(places)
        summed = replace(end.message, content=accumulator.content)
        assert blocks_of(summed) == CASES[text]
        assert len(summed.content) == len(end.message.content)


@pytest.mark.row("T70")
@given(
    text=st.lists(st.sampled_from(["<think>", "</think>", "<", "/", "think>", "a", " ", "\n"])).map(
        "".join
    ),
    cuts=st.lists(st.integers(1, 4), max_size=8),
)
def test_any_text_decodes_equally_streamed_and_whole_and_round_trips(
    text: str, cuts: list[int]
) -> None:
    host = adapters.get("openai-compatible")
    pieces: list[str] = []
    rest = text
    for cut in cuts:
        pieces.append(rest[:cut])
        rest = rest[cut:]
    body = stream(*(piece for piece in (*pieces, rest) if piece))
    findings = check_laws(Recording(sse=body.decode()), host)
    read = (verdict for verdict in findings.verdicts if verdict.law not in SERVING_LAWS)
    assert [verdict.faults for verdict in read if verdict.faults] == []
    plain = host.from_wire_response(answer(text), CONTEXT)
    assert findings.response is not None
    assert blocks_of(findings.response) == [one for one in blocks_of(plain) if one != ("text", "")]
    assert json.loads(host.to_wire_response(plain, CONTEXT)) == answer(text)


@pytest.mark.row("T70")
@pytest.mark.parametrize("text", CASES)
def test_stream_encoded_for_client_of_host_has_tags(text: str) -> None:
    host = adapters.get("vllm")
    reading, writing = host.stream_decoder(CONTEXT), host.stream_encoder(CONTEXT)
    events = [*reading.feed(stream(text[:3], text[3:])), *reading.finish()]
    body = b"".join(map(writing.encode, events)) + writing.finish()
    chunks = [json.loads(line[6:]) for line in body.splitlines() if line.startswith(b"data: {")]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == text
    assert not any("reasoning_content" in delta for delta in deltas)


@pytest.mark.row("T70")
def test_truncated_stream_keeps_thinking() -> None:
    decoder = adapters.get("vllm").stream_decoder(CONTEXT)
    events = decoder.feed(stream("<thi", "nk>Hm", ". </th", end=False))
    assert blocks_of(decoder.message) == [("thinking", "Hm. </th")]
    events += decoder.finish()
    assert isinstance(events[-1], StreamError)
    thought = "".join(event.text for event in events if isinstance(event, ThinkingDelta))
    assert thought == "Hm. </th"


@pytest.mark.row("T70")
def test_other_providers_receive_text_without_thinking_with_loss() -> None:
    message = adapters.get("vllm").from_wire_response(answer("<think>Hm.</think>Yes."), CONTEXT)
    wire = adapters.get("openai").to_wire([user("go"), message, user("more")])
    assert json.loads(wire.body)["messages"][1]["content"] == "Yes."
    assert [loss.block_type for loss in wire.losses] == ["thinking"]


@pytest.mark.row("T70")
def test_tags_sent_by_client_decode_to_same_message() -> None:
    host = adapters.get("vllm")
    given = host.from_wire_response(answer("<think>Hm.</think>Yes."), CONTEXT)
    turns = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": "<think>Hm.</think>Yes."},
        {"role": "user", "content": "more"},
    ]
    body = {"model": "m", "messages": turns}
    request = host.from_wire_request(body, CONTEXT)
    assert request.messages[1].content_digest() == given.content_digest()
    assert json.loads(host.to_wire(request.messages, (), request.options).body) == body


@pytest.mark.row("T70")
@pytest.mark.parametrize("name", ["openai", "groq", "openrouter", "mistral", "deepseek"])
def test_tags_are_text_at_hosts_with_separate_reasoning(name: str) -> None:
    message = adapters.get(name).from_wire_response(answer("<think>Hm.</think>Yes."), CONTEXT)
    assert blocks_of(message) == [("text", "<think>Hm.</think>Yes.")]
