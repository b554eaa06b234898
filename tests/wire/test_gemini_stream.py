"""Gemini streams in both directions."""

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from build import assistant, call, thinking, usage
from corpus import body_of, exchanges, needs_corpus, needs_whole_corpus, streams
from gemini_build import ANSWER, CALL, CONTEXT, SIGNED, TEXT, answered, wire_turn
from metis import adapters
from metis.canonical import (
    Message,
    MessageStatus,
    StopReason,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
    encode,
    validate,
)
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
    ToolUseStart,
    UsageUpdate,
)
from metis.wire.call import RequestContext
from metis.wire.gemini.fast import FastGeminiStreamDecoder
from metis.wire.gemini.response import decode_response
from metis.wire.gemini.stream_encoder import Framing, GeminiStreamEncoder

CORPUS = "gemini"


def chunk(*parts: Any, finish: str | None = None, **keys: Any) -> dict[str, Any]:
    """Return a chunk of a stream; keyword arguments are keys of the candidate."""
    candidate: dict[str, Any] = {"content": wire_turn(*parts, role="model"), "index": 0, **keys}
    if finish:
        candidate["finishReason"] = finish
    return {**ANSWER, "candidates": [candidate]}


def sse(*chunks: Any) -> bytes:
    return b"".join(b"data: %b\r\n\r\n" % body_of(each) for each in chunks)


def array(*chunks: Any) -> bytes:
    return b"[" + b"\n,\r\n".join(json.dumps(each, indent=2).encode() for each in chunks) + b"\n]\n"


def events_of(
    pieces: list[bytes], context: RequestContext = CONTEXT
) -> tuple[list[StreamEvent], Message]:
    decoder = FastGeminiStreamDecoder(context)
    events = [event for piece in pieces for event in decoder.feed(piece)]
    return events + decoder.finish(), decoder.message


def bare(events: list[StreamEvent]) -> list[Any]:
    """Return events without the ids that every decoder makes anew."""
    return [
        type(event).__name__
        if isinstance(event, MessageComplete | StreamError)
        else replace(event, message_id="")
        for event in events
    ]


def meaning(message: Message) -> Any:
    """Return a message without its ids and times."""
    return (
        message.content,
        message.metadata.stop_reason,
        message.metadata.usage,
        message.metadata.status,
    )


STREAMS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "pieces of text are one text": (
        [chunk({"text": "he"}), chunk({"text": "llo"}), chunk({"text": ""}, finish="STOP")],
        answered({"text": "hello"}),
    ),
    "thoughts and text are two": (
        [
            chunk({"text": "h", "thought": True}),
            chunk({"text": "m", "thought": True}),
            chunk(TEXT, finish="STOP"),
        ],
        answered({"text": "hm", "thought": True}, TEXT),
    ),
    "a signed piece stays alone": (
        [
            chunk({"text": "a"}),
            chunk({"text": "b", "thoughtSignature": "MQ=="}),
            chunk({"text": "c"}),
            chunk({"text": "d"}),
            chunk({"text": "", "thoughtSignature": "Mg=="}, finish="STOP"),
        ],
        answered(
            {"text": "a"},
            {"text": "b", "thoughtSignature": "MQ=="},
            {"text": "cd"},
            {"text": "", "thoughtSignature": "Mg=="},
        ),
    ),
    "a signed thought stays alone": (
        [
            chunk({"text": "a", "thought": True}),
            chunk({"text": "b", "thought": True, "thoughtSignature": "MQ=="}, finish="STOP"),
        ],
        answered(
            {"text": "a", "thought": True},
            {"text": "b", "thought": True, "thoughtSignature": "MQ=="},
        ),
    ),
    "calls come whole": (
        [chunk(TEXT, SIGNED), chunk(CALL), chunk({"text": ""}, finish="STOP")],
        answered(TEXT, SIGNED, CALL),
    ),
    "arguments come in pieces": (
        [
            chunk(
                {"functionCall": {"name": "f", "willContinue": True}, "thoughtSignature": "MQ=="}
            ),
            *(
                chunk({"functionCall": {"partialArgs": [piece], "willContinue": True}})
                for piece in (
                    {"jsonPath": "$.place", "stringValue": "New ", "willContinue": True},
                    {"jsonPath": "$.place", "stringValue": "Delhi"},
                    {"jsonPath": "$.days[0].n", "numberValue": 3},
                    {"jsonPath": "$.days[1]['on']", "boolValue": True},
                    {"jsonPath": "$.none", "nullValue": "NULL_VALUE"},
                )
            ),
            chunk({"functionCall": {}}),
            chunk({"text": ""}, finish="STOP"),
        ],
        answered(
            {
                "functionCall": {
                    "name": "f",
                    "args": {"place": "New Delhi", "days": [{"n": 3}, {"on": True}], "none": None},
                },
                "thoughtSignature": "MQ==",
            }
        ),
    ),
    "code and its result": (
        [
            chunk({"executableCode": {"language": "PYTHON", "code": "1"}}, {"text": ""}),
            chunk({"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}}),
            chunk({"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "2"}}),
            chunk(TEXT, finish="STOP"),
        ],
        answered(
            {"executableCode": {"language": "PYTHON", "code": "1"}},
            {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}},
            {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "2"}},
            TEXT,
        ),
    ),
    "metadata before the end": (
        [
            chunk(
                TEXT,
                groundingMetadata={
                    "groundingChunks": [{"web": {"uri": "u"}}],
                    "groundingSupports": [
                        {"segment": {"text": "hi"}, "groundingChunkIndices": [0]}
                    ],
                },
            ),
            chunk({"text": "!"}, finish="STOP", groundingMetadata={}),
        ],
        answered(
            {"text": "hi!"},
            groundingMetadata={
                "groundingChunks": [{"web": {"uri": "u"}}],
                "groundingSupports": [{"segment": {"text": "hi"}, "groundingChunkIndices": [0]}],
            },
        ),
    ),
    "snake case": (
        [
            chunk({"text": "x", "thought_signature": "MQ=="}),
            chunk({"function_call": {"name": "f", "args": {}}}, finish="STOP"),
        ],
        answered(
            {"text": "x", "thought_signature": "MQ=="},
            {"function_call": {"name": "f", "args": {}}},
        ),
    ),
    "blocked": ([chunk(TEXT), chunk(finish="SAFETY")], answered(TEXT, finish="SAFETY")),
}


@pytest.mark.row("T57", "T123", "T200", "K-113", "K-115", "K-119", "K-129")
@pytest.mark.parametrize("name", STREAMS)
def test_stream_decodes_to_message_of_plain_response(name: str) -> None:
    chunks, plain = STREAMS[name]
    whole = decode_response(plain, CONTEXT)
    for stream in (sse(*chunks), array(*chunks)):
        events, message = events_of([stream])
        assert meaning(message) == meaning(whole)
        assert isinstance(events[0], MessageStart)
        assert isinstance(events[-1], MessageComplete)
        assert events[-1].message is message
        assert [event.usage for event in events if isinstance(event, UsageUpdate)] == [
            message.metadata.usage
        ]
        assert_adds_up(events, message)
        for size in (1, 7):
            pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
            assert bare(events_of(pieces)[0]) == bare(events)


def assert_adds_up(events: list[StreamEvent], message: Message) -> None:
    """Check that the deltas add up to the content, except citations, which come at the end."""
    summed = Accumulator()
    for event in events:
        summed.add(event)
    assert len(summed.content) == len(message.content)
    for mine, expected_block in zip(summed.content, message.content, strict=True):
        match expected_block:
            case TextBlock():
                assert mine == TextBlock(expected_block.text)
            case ThinkingBlock():
                assert isinstance(mine, ThinkingBlock)
                assert (mine.text, mine.signature) == (
                    expected_block.text,
                    expected_block.signature,
                )
            case _:
                assert mine == expected_block


@needs_whole_corpus
@pytest.mark.row("K-113", "K-115", "T123")
def test_recorded_streams_give_equal_events_for_any_chunking() -> None:
    chance = random.Random(1)  # noqa: S311 - the same cuts in every run
    count = 0
    for name, stream in streams(CORPUS):
        count += 1
        events, message = events_of([stream])
        cuts = sorted(chance.sample(range(len(stream)), min(40, len(stream))))
        pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
        for other in (pieces, [bytes([byte]) for byte in stream]):
            assert bare(events_of(other)[0]) == bare(events), name
        assert isinstance(events[-1], MessageComplete)
        assert validate(message) == []
        assert_adds_up(events, message)
    assert count == 33


@needs_corpus
@pytest.mark.row("T200")
def test_json_array_and_sse_with_equal_chunks_give_equal_events() -> None:
    for exchange in exchanges(CORPUS):
        if exchange["stream_format"] == "json_array":
            one, _ = events_of([exchange["sse"].encode()])
            two, _ = events_of([sse(*exchange["response"])])
            assert bare(one) == bare(two)


@needs_corpus
@pytest.mark.row("M-201")
@pytest.mark.parametrize("framing", ["sse", "array"])
def test_recorded_streams_round_trip_through_stream_encoder(framing: Framing) -> None:
    for name, stream in streams(CORPUS):
        events, message = events_of([stream])
        encoder = GeminiStreamEncoder(CONTEXT, framing)
        written = b"".join(encoder.encode(event) for event in events) + encoder.finish()
        again = events_of([written])[1]
        assert [encode_block(b) for b in again.content] == [
            encode_block(b) for b in message.content
        ], name
        assert again.metadata.stop_reason == message.metadata.stop_reason
        assert again.metadata.response_id == message.metadata.response_id


@pytest.mark.parametrize("framing", ["sse", "array"])
def test_keys_beside_text_are_written_again(framing: Framing) -> None:
    parts = [{"text": "a", "mood": "calm"}, {"text": "b"}, {"text": "c", "thought": True, "n": 1}]
    events, _ = events_of([sse(*(chunk(part) for part in parts), chunk(finish="STOP"))])
    encoder = GeminiStreamEncoder(CONTEXT, framing)
    written = b"".join(encoder.encode(event) for event in events) + encoder.finish()
    again = events_of([written])[0]
    assert bare(again)[1:] == bare(events)[1:]  # the first one has the keys of the first chunk
    assert written.count(b'"mood":"calm"') == 1
    assert written.count(b'"n":1') == 1


def encode_block(block: Any) -> Any:
    """Return a block without what a stream does not carry: citations, and our ids of calls."""
    if isinstance(block, TextBlock):
        return block.text
    return (block.name, block.input) if isinstance(block, ToolUseBlock) else block


def test_the_events_of_an_answer_in_order() -> None:
    events, message = events_of(
        [sse(chunk({"text": "t", "thought": True}), chunk(TEXT, SIGNED, finish="STOP"))]
    )
    kinds = [type(event) for event in events]
    assert kinds == [
        MessageStart,
        ThinkingDelta,
        TextDelta,
        BlockAdded,
        ToolUseStart,
        ToolUseEnd,
        UsageUpdate,
        MessageComplete,
    ]
    assert [getattr(event, "content_block_index", None) for event in events[1:6]] == [0, 1, 2, 3, 3]
    start = events[4]
    assert isinstance(start, ToolUseStart)
    assert start.tool_use_id == next(
        block.id for block in message.content if isinstance(block, ToolUseBlock)
    )
    assert message.metadata.stop_reason is StopReason.TOOL_USE


ERROR = {"error": {"code": 503, "message": "Overloaded", "status": "UNAVAILABLE"}}


@pytest.mark.row("M-078", "T131", "T194")
@pytest.mark.parametrize("write", [sse, array])
def test_error_event_ends_stream_and_keeps_partial_message(write: Any) -> None:
    events, message = events_of([write(chunk({"text": "he"}), chunk(TEXT), ERROR, chunk(TEXT))])
    last = events[-1]
    assert isinstance(last, StreamError)
    assert (last.error_class, last.text, last.is_retryable, last.status) == (
        "ServerError",
        "Overloaded",
        True,
        503,
    )
    assert message.metadata.status is MessageStatus.ERROR
    assert message.content == (TextBlock("hehi"),)


@pytest.mark.row("M-078", "T131")
@pytest.mark.parametrize(
    "stream",
    [
        sse(chunk(TEXT)),
        array(chunk(TEXT), chunk(TEXT))[:-60],
        sse(chunk(TEXT)) + b"data: {nonsense\n\n",
        b"",
        b" \r\n",
        b"\xef\xbb",
        b"event: ping\n\n",
    ],
)
def test_truncated_stream_is_an_error_with_partial_message(stream: bytes) -> None:
    events, message = events_of([stream])
    assert isinstance(events[-1], StreamError)
    assert events[-1].error_class == "NetworkError"
    assert message.metadata.status is MessageStatus.ERROR
    if TEXT["text"].encode() in stream:
        assert message.content == (TextBlock("hi"),)


@pytest.mark.row("T131")
def test_truncated_call_is_kept_as_incomplete() -> None:
    piece = {"jsonPath": "$.a", "stringValue": "x", "willContinue": True}
    broken = {"functionCall": {"name": "f", "partialArgs": [piece], "willContinue": True}}
    events, message = events_of([sse(chunk(broken))])
    assert isinstance(events[-1], StreamError)
    assert message.metadata.status is MessageStatus.ERROR
    assert [block.type for block in message.content] == ["tool_use"]


def test_text_after_an_unfinished_call_ends_the_call() -> None:
    open_call = {"functionCall": {"name": "f", "willContinue": True}}
    _, message = events_of([sse(chunk(open_call), chunk(TEXT, finish="STOP"))])
    assert [block.type for block in message.content] == ["tool_use", "text"]


@pytest.mark.row("T161")
def test_malformed_function_call_in_stream_is_an_error() -> None:
    ended = {**ANSWER, "candidates": [{"finishReason": "MALFORMED_FUNCTION_CALL", "index": 0}]}
    events, _ = events_of([sse(ended)])
    assert isinstance(events[-1], StreamError)
    assert (events[-1].error_class, events[-1].is_retryable) == ("ServerError", True)


@pytest.mark.row("T194")
@pytest.mark.parametrize(
    ("body", "words"),
    [
        (body_of(ERROR), "Overloaded"),
        (body_of([ERROR]), "Overloaded"),
        (sse(ERROR), "Overloaded"),
        (b"<html>bad gateway</html>", "bad gateway"),
        (b"", "an empty body"),
    ],
)
def test_error_body_in_place_of_stream_gives_that_error(body: bytes, words: str) -> None:
    for pieces in ([body], [body[at : at + 1] for at in range(len(body))]):
        events, _ = events_of(pieces, replace(CONTEXT, status=503))
        (only,) = events
        assert isinstance(only, StreamError)
        assert only.error_class == "ServerError"
        assert words in only.text


def test_plain_body_in_place_of_stream_is_one_chunk() -> None:
    body = b" \n" + body_of(answered(TEXT, CALL))
    events, message = events_of([body[:5], body[5:]])
    assert isinstance(events[-1], MessageComplete)
    assert [block.type for block in message.content] == ["text", "tool_use"]


def test_a_blocked_prompt_ends_the_stream() -> None:
    blocked = {"promptFeedback": {"blockReason": "SAFETY"}, "modelVersion": "m"}
    events, message = events_of([sse(blocked)])
    assert isinstance(events[-1], MessageComplete)
    assert message.metadata.stop_reason is StopReason.CONTENT_FILTER


def test_partial_message_is_available_at_any_time() -> None:
    decoder = FastGeminiStreamDecoder(CONTEXT)
    decoder.feed(sse(chunk({"text": "he"})))
    assert decoder.message.content == (TextBlock("he"),)
    assert decoder.message.metadata.status is MessageStatus.PARTIAL
    decoder.feed(sse(chunk({"text": "llo"}, finish="STOP")))
    decoder.finish()
    assert decoder.message.content == (TextBlock("hello"),)
    assert encode(decoder.message) == encode(decoder.message)


@pytest.mark.row("M-201")
@pytest.mark.parametrize("framing", ["sse", "array"])
def test_stream_of_another_provider_is_encoded(framing: Framing) -> None:
    message = assistant(thinking("hm"), "hi", call("f", a=1))
    here = message.id
    called = message.content[2]
    assert isinstance(called, ToolUseBlock)
    events: list[StreamEvent] = [
        MessageStart(here, "anthropic:m", "r1"),
        ThinkingDelta(here, 0, "h"),
        ThinkingDelta(here, 0, "m"),
        TextDelta(here, 1, "hi"),
        ToolUseStart(here, 2, called.id, "f"),
        ToolUseEnd(here, 2, called.id, {"a": 1}),
        UsageUpdate(here, usage()),
        MessageComplete(here, StopReason.TOOL_USE, message),
    ]
    encoder = GeminiStreamEncoder(RequestContext(), framing)
    written = b"".join(encoder.encode(event) for event in events) + encoder.finish()
    if framing == "array":
        assert len(json.loads(written)) == 5
    _, again = events_of([written])
    assert [block.type for block in again.content] == ["thinking", "text", "tool_use"]
    assert again.metadata.stop_reason is StopReason.TOOL_USE
    assert again.metadata.usage is not None
    assert again.metadata.usage.output_tokens == 42
    assert again.metadata.response_id == "r1"


@pytest.mark.parametrize("framing", ["sse", "array"])
def test_stream_without_end_is_never_complete(framing: Framing) -> None:
    nothing = GeminiStreamEncoder(CONTEXT, framing).finish()
    assert isinstance(events_of([nothing])[0][-1], StreamError)
    encoder = GeminiStreamEncoder(CONTEXT, framing)
    written = encoder.encode(TextDelta("m", 0, "hi")) + encoder.finish()
    events, message = events_of([written])
    assert isinstance(events[-1], StreamError)
    assert message.content == (TextBlock("hi"),)
    failing = GeminiStreamEncoder(CONTEXT, framing)
    written = failing.encode(StreamError("m", "NetworkError", "cut off")) + failing.finish()
    assert isinstance(events_of([written])[0][-1], StreamError)


def test_gemini_streams_are_encoded_for_other_protocols() -> None:
    events, _ = events_of([sse(*STREAMS["arguments come in pieces"][0])])
    for name in ("anthropic", "openai"):
        encoder = adapters.get(name).stream_encoder(CONTEXT)
        written = b"".join(encoder.encode(event) for event in events) + encoder.finish()
        decoder = adapters.get(name).stream_decoder(CONTEXT)
        decoder.feed(written)
        decoder.finish()
        calls = [b for b in decoder.message.content if isinstance(b, ToolUseBlock)]
        assert [block.input["place"] for block in calls] == ["New Delhi"]


PIECES = st.lists(
    st.fixed_dictionaries(
        {"jsonPath": st.sampled_from(["$.a", "$.a[0]", "$.a.b", "$.l[5]", "$", "x", "$['q'][0]"])},
        optional={
            "stringValue": st.text(max_size=3),
            "numberValue": st.integers(),
            "willContinue": st.booleans(),
        },
    ),
    max_size=6,
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["text", "thought", "functionCall", "name", "args", "content", "parts"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=10,
)


@pytest.mark.row("T210")
@given(st.lists(VALUES, max_size=4), PIECES, st.binary(max_size=20), st.booleans())
def test_any_stream_gives_exactly_one_end_event(
    values: list[Any],
    pieces: list[Any],
    rest: bytes,
    is_array: bool,  # noqa: FBT001 - made by the strategy
) -> None:
    partial = {"functionCall": {"name": "f", "partialArgs": pieces, "willContinue": True}}
    chunks = [chunk(*values), chunk(partial), {"candidates": values}, *values]
    stream = (array if is_array else sse)(*chunks)
    for given_bytes in ([stream, rest], [rest, stream], [bytes([b]) for b in stream + rest]):
        events, message = events_of(given_bytes)
        ends = [event for event in events if isinstance(event, MessageComplete | StreamError)]
        assert events[-1:] == ends
        assert encode(message)


@given(st.binary(max_size=60))
def test_any_bytes_give_exactly_one_end_event(data: bytes) -> None:
    for prefix in (b"", b"[", b"{", b"data: {", b"[{"):
        events, _ = events_of([prefix + data])
        assert sum(isinstance(event, MessageComplete | StreamError) for event in events) == 1
