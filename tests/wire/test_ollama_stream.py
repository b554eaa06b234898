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


def one(name: str, index: int = 0, **rest: Any) -> Wire:
    return {**rest, "function": {"index": index, "name": name, "arguments": {"n": 1}}}


def says(content: str = "", **rest: Any) -> Wire:
    message = {"role": "assistant", "content": content, **rest}
    return {**HEAD, "message": message, "done": False}


def completes(response: str, **rest: Any) -> Wire:
    return {**HEAD, "response": response, **rest, "done": False}


def ended(content: str = "", **rest: Any) -> Wire:
    return {**LAST, "message": {"role": "assistant", "content": content, **rest}}


CHAT = [
    says(thinking="let "),
    says(thinking="me see"),
    says("I "),
    says("look."),
    says(tool_calls=[one("f", id="call_a")]),
    says(tool_calls=[one("f"), one("g")]),
    ended(),
]
STREAMS: dict[str, tuple[list[Wire], Wire]] = {
    "chat": (
        CHAT,
        ended("I look.", thinking="let me see")
        | {
            "message": {
                "role": "assistant",
                "content": "I look.",
                "thinking": "let me see",
                "tool_calls": [one("f", id="call_a"), one("f"), one("g")],
            }
        },
    ),
    "text in the last line": ([says("a"), ended("b")], ended("ab")),
    "one line": ([ended("all")], ended("all")),
    "nothing": ([ended()], ended()),
    "no reason": (
        [says("a"), {**ended(), "done_reason": None}],
        {key: value for key, value in ended("a").items() if key != "done_reason"},
    ),
    "log probabilities": (
        [says("a") | {"logprobs": [1]}, says("b") | {"logprobs": [2]}, ended()],
        ended("ab") | {"logprobs": [1, 2]},
    ),
    "completion": (
        [
            completes("", thinking="hm"),
            completes("a"),
            completes("b"),
            {**LAST, "response": "", "context": [1, 2]},
        ],
        {**LAST, "response": "ab", "thinking": "hm", "context": [1, 2]},
    ),
    "picture": (
        [completes("") | {"completed": 1}, {**LAST, "response": "", "image": PNG, "completed": 2}],
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


def bare(events: list[StreamEvent]) -> list[Any]:
    """Events without the ids that each reading mints."""
    ids: dict[str, str] = {}
    found: list[Any] = []
    for event in events:
        fields = {name: getattr(event, name) for name in event.__struct_fields__[1:]}
        if "tool_use_id" in fields:
            own = fields["tool_use_id"]
            fields["tool_use_id"] = ids.setdefault(own, f"#{len(ids)}")
        message = fields.get("message")
        if isinstance(message, Message):
            fields["message"] = (message.content_digest(), message.metadata.stop_reason)
        found.append((event.type, fields))
    return found


def end_of(events: list[StreamEvent]) -> Message:
    last = events[-1]
    assert isinstance(last, MessageComplete)
    return last.message


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_gives_the_message_of_the_plain_response(name: str) -> None:
    sent, plain = STREAMS[name]
    events = read(lines(sent))
    message, expected = end_of(events), decode_response(plain, CONTEXT)
    assert message.content_digest() == expected.content_digest()
    assert message.metadata.usage == expected.metadata.usage
    assert message.metadata.stop_reason == expected.metadata.stop_reason
    told, wanted = message.metadata.provider_raw, expected.metadata.provider_raw
    assert told is not None
    assert wanted is not None
    assert told["ollama"]["response"] == wanted["ollama"]["response"]
    added = Accumulator()
    for event in events:
        added.add(event)
    assert [block.type for block in added.content] == [block.type for block in message.content]
    assert added.usage == message.metadata.usage


@pytest.mark.row("T10", "T124")
def test_the_events_of_a_chat() -> None:
    events = read(lines(CHAT))
    kinds = [type(event) for event in events]
    whole = [ToolUseStart, ToolUseInputDelta, ToolUseEnd]
    assert kinds == [
        MessageStart,
        *[ThinkingDelta, ThinkingDelta, TextDelta, TextDelta],
        *(whole * 3),
        *[UsageUpdate, MessageComplete],
    ]
    starts = [event for event in events if isinstance(event, ToolUseStart)]
    assert [event.tool_name for event in starts] == ["f", "f", "g"]
    called = [block for block in end_of(events).content if isinstance(block, ToolUseBlock)]
    assert [event.tool_use_id for event in starts] == [block.id for block in called]
    assert len({block.id for block in called}) == 3
    indexes = [getattr(event, "content_block_index", 0) for event in events]
    assert indexes == [0, 0, 0, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 0, 0]


@pytest.mark.parametrize("name", STREAMS)
def test_any_cut_gives_the_same_events(name: str) -> None:
    data = lines(STREAMS[name][0])
    whole = bare(read(data))
    for cut in range(len(data)):
        assert bare(read(data, cut)) == whole


@needs_corpus
def test_recorded_streams_can_be_cut_anywhere() -> None:
    for key, data in streams("ollama"):
        whole = read(data)
        assert isinstance(whole[-1], MessageComplete), key
        texts = (event.text for event in whole if isinstance(event, TextDelta))
        (block,) = end_of(whole).content
        assert getattr(block, "text", None) == "".join(texts), key
        for cut in range(0, len(data), 97):
            assert bare(read(data, cut, cut + 1)) == bare(whole), (key, cut)


@pytest.mark.row("T131")
def test_a_stream_that_breaks_off_is_an_error_that_keeps_what_came() -> None:
    events = read(lines([says("a"), says("b")]))
    last = events[-1]
    assert isinstance(last, StreamError)
    assert (last.error_class, last.is_retryable) == ("NetworkError", True)
    assert last.message is not None
    assert last.message.metadata.status is MessageStatus.ERROR
    assert getattr(last.message.content[0], "text", "") == "ab"


@pytest.mark.parametrize(
    ("data", "status", "error_class", "words"),
    [
        (
            lines([says("a"), {"error": "an error was encountered"}]),
            200,
            "OtherProviderError",
            "an",
        ),
        (b'{"error":"model \'x\' not found"}', 404, "InvalidRequestError", "not found"),
        (b'{\n "error": "model \'x\' not found"\n}\n', 404, "InvalidRequestError", "not found"),
        (b"<h1>Bad gateway</h1>", 502, "ServerError", "Bad gateway"),
        (lines([says("a")]) + b"nonsense\n", 200, "NetworkError", "not JSON"),
        (b"nonsense", 200, "NetworkError", "ended before"),
        (b"", 200, "NetworkError", "ended before"),
    ],
)
def test_a_stream_that_fails_ends_in_one_error(
    data: bytes, status: int, error_class: str, words: str
) -> None:
    events = read(data, context=replace(CONTEXT, status=status))
    assert [type(event) for event in events].count(StreamError) == 1
    last = events[-1]
    assert isinstance(last, StreamError)
    assert last.error_class == error_class
    assert words in last.text


def test_a_plain_response_over_several_lines_is_read_all_the_same() -> None:
    data = json.dumps(ended("whole"), indent=2).encode()
    assert getattr(end_of(read(data, 5)).content[0], "text", "") == "whole"


def test_nothing_is_read_behind_the_end() -> None:
    events = read(lines([ended("a"), says("b")]) + b"nonsense")
    assert getattr(end_of(events).content[0], "text", "") == "a"


def test_a_message_can_be_asked_for_at_any_time() -> None:
    decoder = FastOllamaStreamDecoder(CONTEXT)
    assert decoder.message.content == ()
    decoder.feed(lines(CHAT[:3]))
    assert [block.type for block in decoder.message.content] == ["thinking", "text"]
    assert decoder.message.metadata.status is MessageStatus.PARTIAL


def test_a_call_that_is_none_is_kept() -> None:
    events = read(lines([says(tool_calls=[{"function": {}}]), ended()]))
    assert any(isinstance(event, BlockAdded) for event in events)
    assert [block.type for block in end_of(events).content] == ["opaque"]


@given(st.lists(st.one_of(st.binary(max_size=30), st.sampled_from(CHAT).map(body_of))))
def test_any_bytes_give_events_that_end_once(chunks: list[bytes]) -> None:
    decoder = FastOllamaStreamDecoder(CONTEXT)
    events = [event for chunk in chunks for event in decoder.feed(chunk + b"\n")]
    events += decoder.finish()
    ends = [event for event in events if isinstance(event, MessageComplete | StreamError)]
    assert ends == events[-1:]
    assert [type(event) for event in events].count(MessageStart) == 1


def written(events: Iterable[StreamEvent], context: RequestContext = CONTEXT) -> bytes:
    encoder = OllamaStreamEncoder(context)
    return b"".join(encoder.encode(event) for event in events) + encoder.finish()


@pytest.mark.parametrize("name", ["chat", "text in the last line", "nothing"])
def test_what_is_written_is_read_again(name: str) -> None:
    events = read(lines(STREAMS[name][0]))
    again = read(written(events))
    assert end_of(again).content_digest() == end_of(events).content_digest()
    assert end_of(again).metadata.usage == end_of(events).metadata.usage


def test_a_written_stream_is_one_for_the_sdk() -> None:
    data = written(read(lines(CHAT)))
    parts = [ChatResponse(**json.loads(line)) for line in data.splitlines()]
    assert "".join(part.message.content or "" for part in parts) == "I look."
    assert "".join(part.message.thinking or "" for part in parts) == "let me see"
    calls = [one for part in parts for one in part.message.tool_calls or ()]
    assert [one.function.name for one in calls] == ["f", "f", "g"]
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert (parts[-1].eval_count, parts[-1].total_duration) == (5, 2_000_000_000)


def test_a_completion_is_written_for_who_asked_for_one() -> None:
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
    parts = [GenerateResponse(**json.loads(x)) for x in written(events, prompted).splitlines()]
    assert [(part.thinking, part.response) for part in parts] == [
        ("hm", ""),
        (None, "hi"),
        (None, ""),
    ]
    assert (parts[0].model, parts[-1].done_reason) == ("gpt-5", "length")


def test_a_picture_is_written_with_the_last_line() -> None:
    events = read(lines(STREAMS["picture"][0]))
    last = written(events, replace(CONTEXT, path="/api/generate")).splitlines()[-1]
    assert GenerateResponse(**json.loads(last)).image == PNG


def test_an_error_is_a_line_of_its_own() -> None:
    events = read(lines([says("a"), {"error": "out of memory"}]))
    assert written(events).splitlines()[-1] == b'{"error":"out of memory"}'
