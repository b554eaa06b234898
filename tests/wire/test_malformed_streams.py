"""Streams with extra, missing or repeated events: the text keeps its order."""

import json
from typing import Any

import pytest

from metis import adapters
from metis.canonical import Message, TextBlock, ThinkingBlock, ToolUseBlock
from metis.streaming import (
    MessageComplete,
    StreamError,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseStart,
)
from metis.streaming.aws_event_stream import encode_event_frame
from metis.verify.served import read_stream, written_stream_faults
from metis.wire.anthropic.stream_decoder import AnthropicStreamDecoder
from metis.wire.call import RequestContext

START: dict[str, Any] = {
    "type": "message_start",
    "message": {"id": "msg_1", "model": "m", "role": "assistant"},
}
TEXT = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
CALL: dict[str, Any] = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}
STOP = {"type": "content_block_stop", "index": 0}
END = (
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
    {"type": "message_stop"},
)


def delta(text: str, **more: Any) -> dict[str, Any]:
    return {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "text_delta", "text": text, **more},
    }


def without(event: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in event.items() if name != key}


def read(name: str, *events: dict[str, Any]) -> tuple[list[StreamEvent], Message]:
    decoder = adapters.get(name).stream_decoder()
    collected = [decoder.feed(b"data: %b\n\n" % json.dumps(event).encode()) for event in events]
    return [*(event for each in collected for event in each), *decoder.finish()], decoder.message


@pytest.mark.parametrize(
    "odd",
    [
        delta("two ", score=1),
        {**delta("two "), "unheard_of": True},
        without(delta("two "), "index"),
        {**delta("two "), "index": True},
        {**delta("two "), "delta": {"type": "words_delta", "text": "two "}},
    ],
    ids=["key of the delta", "key of the event", "no index", "index no number", "other kind"],
)
def test_an_odd_delta_stands_in_its_place(odd: dict[str, Any]) -> None:
    events, message = read("anthropic", START, TEXT, delta("one "), odd, delta("three"), STOP, *END)
    collected = "".join(event.text for event in events if isinstance(event, TextDelta))
    assert collected == "one two three"
    block = message.content[0]
    assert isinstance(block, TextBlock)
    assert block.text == "one two three"


def test_a_delta_without_an_index_belongs_to_the_newest_block() -> None:
    second = {**TEXT, "index": 1}
    late = without(delta("late"), "index")
    _, message = read("anthropic", START, TEXT, delta("early"), STOP, second, late, *END)
    texts = [block.text for block in message.content if isinstance(block, TextBlock)]
    assert texts == ["early", "late"]


def test_two_blocks_with_one_index_are_two_blocks() -> None:
    events, message = read(
        "anthropic", START, TEXT, delta("early"), STOP, TEXT, delta("late"), STOP, *END
    )
    texts = [block.text for block in message.content if isinstance(block, TextBlock)]
    assert texts == ["early", "late"]
    shown = [(e.content_block_index, e.text) for e in events if isinstance(e, TextDelta)]
    assert shown == [(0, "early"), (1, "late")]


def test_text_before_the_start_of_a_response_is_not_replaced_by_it() -> None:
    events, message = read("anthropic", delta("shown"), START, TEXT, delta("late"), STOP, *END)
    assert isinstance(events[-1], StreamError)
    assert [block.text for block in message.content if isinstance(block, TextBlock)] == ["shown"]


def test_call_that_ends_twice_is_reported_once() -> None:
    begin = {"type": "content_block_start", "index": 0, "content_block": CALL}
    events, message = read("anthropic", START, begin, STOP, STOP, *END)
    assert len([event for event in events if isinstance(event, ToolUseEnd)]) == 1
    assert len(message.content) == 1


def test_item_that_is_done_twice_is_reported_once() -> None:
    item = {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "call_1",
        "name": "look",
        "arguments": "{}",
    }
    done = {"type": "response.output_item.done", "output_index": 0, "item": item}
    end = {"type": "response.completed", "response": {"id": "r", "output": [item]}}
    events, message = read("openai-responses", done, done, end)
    assert len([event for event in events if isinstance(event, ToolUseStart)]) == 1
    assert len([block for block in message.content if isinstance(block, ToolUseBlock)]) == 1


def test_text_and_thinking_of_one_index_are_separate_items() -> None:
    encoder = adapters.get("openai-responses").stream_encoder()
    expected_deltas = (
        ThinkingDelta("m", 0, "hm"),
        TextDelta("m", 0, "yes"),
        ThinkingDelta("m", 0, "more"),
    )
    written = b"".join(map(encoder.encode, expected_deltas))
    bodies = [
        json.loads(line.removeprefix(b"data: "))
        for line in written.splitlines()
        if line.startswith(b"data: ")
    ]
    added = [body["item"] for body in bodies if body["type"] == "response.output_item.added"]
    assert [item["type"] for item in added] == ["reasoning", "message", "reasoning"]


def test_deltas_without_a_start_begin_a_block_of_their_kind() -> None:
    think = {"type": "thinking_delta", "thinking": "hm"}
    seal = {"type": "signature_delta", "signature": "c2VhbA=="}
    first = {"type": "content_block_delta", "index": 0, "delta": think}
    second = {"type": "content_block_delta", "index": 0, "delta": seal}
    _, message = read("anthropic", START, first, second, STOP, *END)
    block = message.content[0]
    assert isinstance(block, ThinkingBlock)
    assert (block.text, block.signature) == ("hm", "c2VhbA==")


def test_block_that_continues_after_another_one_is_written_once() -> None:
    other = {"type": "content_block_start", "index": 1, "content_block": TEXT["content_block"]}
    more = {**delta("two"), "index": 1}
    usage = {"input_tokens": 1, "output_tokens": 1}
    first = {**START, "message": {**START["message"], "type": "message", "usage": usage}}
    end = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage}
    events = [first, TEXT, delta("one "), other, more, delta("and more"), STOP, end, END[1]]
    assert_written_again("anthropic", events)


def test_call_that_begins_twice_is_one_call() -> None:
    begin = {"type": "content_block_start", "index": 0, "content_block": CALL}
    events, message = read("anthropic", START, begin, begin, STOP, *END)
    assert len([event for event in events if isinstance(event, ToolUseStart)]) == 1
    assert len(message.content) == 1


def test_fragments_of_a_call_after_the_next_one_are_written() -> None:
    def chunk(index: int, **call: Any) -> dict[str, Any]:
        calls = [{"index": index, **call}]
        choice = {"index": 0, "delta": {"tool_calls": calls}, "finish_reason": None}
        return {"id": "c", "model": "m", "choices": [choice]}

    events: list[dict[str, Any]] = [
        chunk(0, id="call_a", type="function", function={"name": "f", "arguments": "{}"}),
        chunk(1, id="call_b", type="function", function={"name": "g", "arguments": "{}"}),
        chunk(0, function={"arguments": " "}),
        {"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
    ]
    assert_written_again("openai", events)


def test_texts_around_thinking_are_written_as_ollama_joins_them() -> None:
    def line(**message: str) -> dict[str, Any]:
        keys = {"role": "assistant", "content": "", **message}
        return {"model": "m", "created_at": "2026-01-02T03:04:05Z", "message": keys, "done": False}

    lines = [line(content="one "), line(thinking="hm"), line(content="two")]
    lines.append({**line(), "done": True})
    stream = b"".join(json.dumps(each).encode() + b"\n" for each in lines)
    assert_stream_written_again("ollama", stream)


def test_converse_block_without_an_end_ends_with_the_next_one() -> None:
    start = {"toolUse": {"toolUseId": "tooluse_1", "name": "look", "type": "server_tool_use"}}
    bodies: dict[str, dict[str, Any]] = {
        "contentBlockStart": {"contentBlockIndex": 0, "start": start},
        "contentBlockDelta": {"contentBlockIndex": 1, "delta": {"text": "words"}},
        "messageStop": {"stopReason": "end_turn"},
    }
    events = {name: json.dumps(body).encode() for name, body in bodies.items()}
    stream = b"".join(
        encode_event_frame({":event-type": name, ":message-type": "event"}, body)
        for name, body in events.items()
    )
    assert_stream_written_again("bedrock-converse", stream)


def assert_written_again(name: str, events: list[dict[str, Any]]) -> None:
    stream = b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in events)
    assert_stream_written_again(name, stream)


def assert_stream_written_again(name: str, stream: bytes) -> None:
    adapter, context = adapters.get(name), RequestContext(session_id="sess_odd")
    events = read_stream(adapter, context, stream)
    assert isinstance(events[-1], MessageComplete)
    assert list(written_stream_faults(adapter, context, events)) == []


def test_stream_that_is_nested_deeper_than_python_calls_functions_ends_with_a_typed_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoder = AnthropicStreamDecoder(RequestContext())
    for event in (START, TEXT, delta("one")):
        decoder.feed(b"data: %b\n\n" % json.dumps(event).encode())

    def decode_too_deep(*_: object) -> None:
        raise RecursionError

    monkeypatch.setattr(decoder, "_decode_bytes", decode_too_deep)
    (error,) = decoder.feed(b"data: {}\n\n")
    assert isinstance(error, StreamError)
    assert "nested too deeply" in error.text
    assert decoder.message.content == (TextBlock("one"),)
