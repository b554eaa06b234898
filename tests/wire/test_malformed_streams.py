"""Streams with extra, missing or repeated events: the text keeps its order."""

import json
from typing import Any

import pytest

from metis import adapters
from metis.canonical import Message, TextBlock, ToolUseBlock
from metis.streaming import (
    StreamError,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseStart,
)

START = {"type": "message_start", "message": {"id": "msg_1", "model": "m", "role": "assistant"}}
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
