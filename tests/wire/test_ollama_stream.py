"""Ollama streams in both directions."""

import itertools
import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from ollama._types import ChatResponse, GenerateResponse

from build import assistant, call, text, thinking
from corpus import body_of, needs_corpus, streams
from metis.canonical import Message, MessageStatus, StopReason, ToolUseBlock
from metis.streaming import (
    Accumulator,
    BlockAdded,
    MessageComplete,
    MessageStart,
    StreamError,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
    UsageUpdate,
)
from metis.wire.call import RequestContext
from metis.wire.json_access import Wire
from metis.wire.ollama.fast import FastOllamaStreamDecoder
from metis.wire.ollama.response import decode_response
from metis.wire.ollama.stream_encoder import OllamaStreamEncoder

CONTEXT = RequestContext(session_id="sess_test")
HEAD = {"model": "qwen3", "created_at": "2026-05-08T12:00:00Z"}
COUNTS = {"total_duration": 2_000_000_000, "prompt_eval_count": 3, "eval_count": 5}
LAST = {**HEAD, "done": True, "done_reason": "stop", **COUNTS}
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ"


def tool_call(name: str, index: int = 0, **rest: Any) -> Wire:
    return {**rest, "function": {"index": index, "name": name, "arguments": {"n": 1}}}


def delta_line(content: str = "", **rest: Any) -> Wire:
    message = {"role": "assistant", "content": content, **rest}
    return {**HEAD, "message": message, "done": False}


def completion_line(response: str, **rest: Any) -> Wire:
    return {**HEAD, "response": response, **rest, "done": False}


def last_line(content: str = "", **rest: Any) -> Wire:
    return {**LAST, "message": {"role": "assistant", "content": content, **rest}}


CHAT = [
    delta_line(thinking="let "),
    delta_line(thinking="me see"),
    delta_line("I "),
    delta_line("look."),
    delta_line(tool_calls=[tool_call("f", id="call_a")]),
    delta_line(tool_calls=[tool_call("f"), tool_call("g")]),
    last_line(),
]
STREAMS: dict[str, tuple[list[Wire], Wire]] = {
    "chat": (
        CHAT,
        last_line("I look.", thinking="let me see")
        | {
            "message": {
                "role": "assistant",
                "content": "I look.",
                "thinking": "let me see",
                "tool_calls": [tool_call("f", id="call_a"), tool_call("f"), tool_call("g")],
            }
        },
    ),
    "text in the last line": ([delta_line("a"), last_line("b")], last_line("ab")),
    "one line": ([last_line("all")], last_line("all")),
    "nothing": ([last_line()], last_line()),
    "no reason": (
        [delta_line("a"), {**last_line(), "done_reason": None}],
        {key: value for key, value in last_line("a").items() if key != "done_reason"},
    ),
    "log probabilities": (
        [delta_line("a") | {"logprobs": [1]}, delta_line("b") | {"logprobs": [2]}, last_line()],
        last_line("ab") | {"logprobs": [1, 2]},
    ),
    "completion": (
        [
            completion_line("", thinking="hm"),
            completion_line("a"),
            completion_line("b"),
            {**LAST, "response": "", "context": [1, 2]},
        ],
        {**LAST, "response": "ab", "thinking": "hm", "context": [1, 2]},
    ),
    "picture": (
        [
            completion_line("") | {"completed": 1},
            {**LAST, "response": "", "image": PNG, "completed": 2},
        ],
        {**LAST, "response": "", "image": PNG, "completed": 2},
    ),
}


def lines(bodies: Iterable[Wire]) -> bytes:
    return b"".join(body_of(body) + b"\n" for body in bodies)


def read(data: bytes, *cuts: int, context: RequestContext = CONTEXT) -> list[StreamEvent]:
    decoder = FastOllamaStreamDecoder(context)
    places = [0, *sorted(cuts), len(data)]
    events: list[StreamEvent] = []
    for start, end in itertools.pairwise(places):
        events += decoder.feed(data[start:end])
    events += decoder.finish()
    assert decoder.finish() == []
    return events


def without_ids(events: list[StreamEvent]) -> list[Any]:
    """Return events without the ids that each decoding generates."""
    ids: dict[str, str] = {}
    fields_of_events: list[Any] = []
    for event in events:
        fields = {name: getattr(event, name) for name in event.__struct_fields__[1:]}
        if "tool_use_id" in fields:
            tool_use_id = fields["tool_use_id"]
            fields["tool_use_id"] = ids.setdefault(tool_use_id, f"#{len(ids)}")
        message = fields.get("message")
        if isinstance(message, Message):
            fields["message"] = (message.content_digest(), message.metadata.stop_reason)
        fields_of_events.append((event.type, fields))
    return fields_of_events


def final_message(events: list[StreamEvent]) -> Message:
    last = events[-1]
    assert isinstance(last, MessageComplete)
    return last.message


@pytest.mark.parametrize("name", STREAMS)
def test_stream_gives_message_of_plain_response(name: str) -> None:
    sent, plain = STREAMS[name]
    events = read(lines(sent))
    message, expected = final_message(events), decode_response(plain, CONTEXT)
    assert message.content_digest() == expected.content_digest()
    assert message.metadata.usage == expected.metadata.usage
    assert message.metadata.stop_reason == expected.metadata.stop_reason
    raw, expected_raw = message.metadata.provider_raw, expected.metadata.provider_raw
    assert raw is not None
    assert expected_raw is not None
    assert raw["ollama"]["response"] == expected_raw["ollama"]["response"]
    added = Accumulator()
    for event in events:
        added.add(event)
    assert [block.type for block in added.content] == [block.type for block in message.content]
    assert added.usage == message.metadata.usage


@pytest.mark.row("T10", "T124")
def test_the_events_of_a_chat() -> None:
    events = read(lines(CHAT))
    kinds = [type(event) for event in events]
    call_events = [ToolUseStart, ToolUseInputDelta, ToolUseEnd]
    assert kinds == [
        MessageStart,
        *[ThinkingDelta, ThinkingDelta, TextDelta, TextDelta],
        *(call_events * 3),
        *[UsageUpdate, MessageComplete],
    ]
    starts = [event for event in events if isinstance(event, ToolUseStart)]
    assert [event.tool_name for event in starts] == ["f", "f", "g"]
    called = [block for block in final_message(events).content if isinstance(block, ToolUseBlock)]
    assert [event.tool_use_id for event in starts] == [block.id for block in called]
    assert len({block.id for block in called}) == 3
    indexes = [getattr(event, "content_block_index", 0) for event in events]
    assert indexes == [0, 0, 0, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 0, 0]


@pytest.mark.parametrize("name", STREAMS)
def test_any_chunking_gives_equal_events(name: str) -> None:
    data = lines(STREAMS[name][0])
    all_events = without_ids(read(data))
    for cut in range(len(data)):
        assert without_ids(read(data, cut)) == all_events


@needs_corpus
def test_recorded_streams_give_equal_events_for_any_chunking() -> None:
    for key, data in streams("ollama"):
        all_events = read(data)
        assert isinstance(all_events[-1], MessageComplete), key
        texts = (event.text for event in all_events if isinstance(event, TextDelta))
        (block,) = final_message(all_events).content
        assert getattr(block, "text", None) == "".join(texts), key
        for cut in range(0, len(data), 97):
            assert without_ids(read(data, cut, cut + 1)) == without_ids(all_events), (key, cut)


@pytest.mark.row("T131")
def test_truncated_stream_is_an_error_with_partial_message() -> None:
    events = read(lines([delta_line("a"), delta_line("b")]))
    last = events[-1]
    assert isinstance(last, StreamError)
    assert (last.error_class, last.is_retryable) == ("NetworkError", True)
    assert last.message is not None
    assert last.message.metadata.status is MessageStatus.ERROR
    assert getattr(last.message.content[0], "text", "") == "ab"


@pytest.mark.parametrize(
    ("data", "status", "error_class", "text"),
    [
        (
            lines([delta_line("a"), {"error": "an error was encountered"}]),
            200,
            "OtherProviderError",
            "an",
        ),
        (b'{"error":"model \'x\' not found"}', 404, "InvalidRequestError", "not found"),
        (b'{\n "error": "model \'x\' not found"\n}\n', 404, "InvalidRequestError", "not found"),
        (b"<h1>Bad gateway</h1>", 502, "ServerError", "Bad gateway"),
        (lines([delta_line("a")]) + b"nonsense\n", 200, "NetworkError", "not JSON"),
        (b"nonsense", 200, "NetworkError", "ended before"),
        (b"", 200, "NetworkError", "ended before"),
    ],
)
def test_a_stream_that_fails_ends_in_one_error(
    data: bytes, status: int, error_class: str, text: str
) -> None:
    events = read(data, context=replace(CONTEXT, status=status))
    assert [type(event) for event in events].count(StreamError) == 1
    last = events[-1]
    assert isinstance(last, StreamError)
    assert last.error_class == error_class
    assert text in last.text


def test_plain_response_over_several_lines_is_decoded() -> None:
    data = json.dumps(last_line("whole"), indent=2).encode()
    assert getattr(final_message(read(data, 5)).content[0], "text", "") == "whole"


def test_lines_after_end_are_ignored() -> None:
    events = read(lines([last_line("a"), delta_line("b")]) + b"nonsense")
    assert getattr(final_message(events).content[0], "text", "") == "a"


def test_partial_message_is_available_at_any_time() -> None:
    decoder = FastOllamaStreamDecoder(CONTEXT)
    assert decoder.message.content == ()
    decoder.feed(lines(CHAT[:3]))
    assert [block.type for block in decoder.message.content] == ["thinking", "text"]
    assert decoder.message.metadata.status is MessageStatus.PARTIAL


def test_malformed_call_is_kept() -> None:
    events = read(lines([delta_line(tool_calls=[{"function": {}}]), last_line()]))
    assert any(isinstance(event, BlockAdded) for event in events)
    assert [block.type for block in final_message(events).content] == ["opaque"]


@given(st.lists(st.one_of(st.binary(max_size=30), st.sampled_from(CHAT).map(body_of))))
def test_any_bytes_give_exactly_one_end_event(chunks: list[bytes]) -> None:
    decoder = FastOllamaStreamDecoder(CONTEXT)
    events = [event for chunk in chunks for event in decoder.feed(chunk + b"\n")]
    events += decoder.finish()
    ends = [event for event in events if isinstance(event, MessageComplete | StreamError)]
    assert ends == events[-1:]
    assert [type(event) for event in events].count(MessageStart) == 1


def encode_all(events: Iterable[StreamEvent], context: RequestContext = CONTEXT) -> bytes:
    encoder = OllamaStreamEncoder(context)
    return b"".join(encoder.encode(event) for event in events) + encoder.finish()


@pytest.mark.parametrize("name", ["chat", "text in the last line", "nothing"])
def test_encoded_stream_round_trips(name: str) -> None:
    events = read(lines(STREAMS[name][0]))
    again = read(encode_all(events))
    assert final_message(again).content_digest() == final_message(events).content_digest()
    assert final_message(again).metadata.usage == final_message(events).metadata.usage


def test_encoded_stream_is_valid_for_sdk() -> None:
    data = encode_all(read(lines(CHAT)))
    parts = [ChatResponse(**json.loads(line)) for line in data.splitlines()]
    assert "".join(part.message.content or "" for part in parts) == "I look."
    assert "".join(part.message.thinking or "" for part in parts) == "let me see"
    calls = [tool_call for part in parts for tool_call in part.message.tool_calls or ()]
    assert [tool_call.function.name for tool_call in calls] == ["f", "f", "g"]
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert (parts[-1].eval_count, parts[-1].total_duration) == (5, 2_000_000_000)


def test_generate_request_gets_generate_stream() -> None:
    prompted = replace(CONTEXT, path="/api/generate")
    message = assistant(thinking("hm"), text("hi"), call("f"))
    events: list[StreamEvent] = [
        MessageStart("m", "openai:gpt-5"),
        ThinkingDelta("m", 0, "hm"),
        TextDelta("m", 1, "hi"),
        ToolUseStart("m", 2, "tu_1", "f"),
        ToolUseEnd("m", 2, "tu_1", {}),
        MessageComplete("m", StopReason.MAX_TOKENS, message),
    ]
    parts = [GenerateResponse(**json.loads(x)) for x in encode_all(events, prompted).splitlines()]
    assert [(part.thinking, part.response) for part in parts] == [
        ("hm", ""),
        (None, "hi"),
        (None, ""),
    ]
    assert (parts[0].model, parts[-1].done_reason) == ("gpt-5", "length")


def test_image_is_sent_with_last_line() -> None:
    events = read(lines(STREAMS["picture"][0]))
    last = encode_all(events, replace(CONTEXT, path="/api/generate")).splitlines()[-1]
    assert GenerateResponse(**json.loads(last)).image == PNG


def test_error_is_a_separate_line() -> None:
    events = read(lines([delta_line("a"), {"error": "out of memory"}]))
    assert encode_all(events).splitlines()[-1] == b'{"error":"out of memory"}'
