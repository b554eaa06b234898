"""Chat Completions streams in both directions."""

import json
import random
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from build import assistant, call, text, tool_id, usage
from corpus import needs_whole_corpus
from metis.canonical import Message, StopReason, ToolUseBlock
from metis.canonical.blocks import ContentBlock, RedactedThinkingBlock, TextBlock, ThinkingBlock
from metis.canonical.errors import MetisError
from metis.canonical.metadata import MessageStatus
from metis.streaming import (
    Accumulator,
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
from metis.wire.call import AdapterOptions, RequestContext
from metis.wire.openai_chat.blocks import PROTOCOL
from metis.wire.openai_chat.codec import CODEC
from metis.wire.openai_chat.fast import FastChatStreamDecoder
from metis.wire.openai_chat.response import decode_response, encode_response
from metis.wire.openai_chat.stream_encoder import ChatStreamEncoder
from wire.encoding import encode_request
from wire.openai_chat_corpus import Exchange, answers, needs_corpus, streams

CONTEXT = RequestContext(session_id="sess_1", status=200)
Wire = dict[str, Any]


def encode_messages(messages: list[Message]) -> list[Wire]:
    return json.loads(encode_request(CODEC, messages, (), AdapterOptions()))["messages"]


def frame(wire: Any) -> bytes:
    return b"data: " + json.dumps(wire).encode() + b"\n\n"


def chunk(delta: Wire, **choice: Any) -> bytes:
    first = {"index": 0, "delta": delta, "finish_reason": None, **choice}
    return frame(
        {"id": "c1", "object": "chat.completion.chunk", "model": "gpt-5", "choices": [first]}
    )


DONE = b"data: [DONE]\n\n"
STOP = chunk({}, finish_reason="stop") + DONE


def fragment(
    index: int | None, wire_id: str | None, name: str | None, arguments: str | None
) -> bytes:
    function = {"name": name, "arguments": arguments}
    call_wire = {"index": index, "id": wire_id, "type": None, "function": function}
    return chunk({"tool_calls": [call_wire]})


def play(*pieces: bytes, context: RequestContext = CONTEXT) -> tuple[list[StreamEvent], Message]:
    decoder = FastChatStreamDecoder(context)
    events = [event for piece in pieces for event in decoder.feed(piece)] + decoder.finish()
    check_order(events)
    return events, decoder.message


def check_order(events: list[StreamEvent]) -> None:
    kinds = [event.type for event in events]
    assert kinds[0] == "message_start"
    assert kinds.count("message_start") == 1
    assert [kind for kind in kinds if kind in ("message_complete", "error")] == kinds[-1:]
    indexes = [event.content_block_index for event in events if not isinstance(event, _FLAT)]
    assert indexes == sorted(indexes)
    for kind in ("tool_use_start", "tool_use_end"):
        ids = [getattr(event, "tool_use_id", "") for event in events if event.type == kind]
        assert len(ids) == len(set(ids))
    assert kinds.count("tool_use_start") == kinds.count("tool_use_end")


_FLAT = MessageStart | MessageComplete | StreamError | UsageUpdate


def accumulated(events: list[StreamEvent]) -> list[ContentBlock]:
    accumulator = Accumulator()
    for event in events:
        accumulator.add(event)
    return list(accumulator.content)


def comparable(blocks: Any) -> list[Any]:
    """Return the content of blocks that a user sees."""
    return [
        (block.id, block.name, block.input)
        if isinstance(block, ToolUseBlock)
        else (block.type, getattr(block, "text", None) or getattr(block, "data", None))
        for block in blocks
    ]


def calls_of(message: Message) -> list[tuple[str, Any]]:
    return [(b.name, b.input) for b in message.content if isinstance(b, ToolUseBlock)]


def without_ids(events: list[StreamEvent]) -> list[Any]:
    """Return the events without values that differ from decoder to decoder."""
    return [_without_id(msgspec.to_builtins(event, enc_hook=str)) for event in events]


def _without_id(event: Wire) -> Wire:
    message_id = event.pop("message_id")
    return json.loads(json.dumps(event, default=str).replace(message_id, "ID"))


# Laws on the recordings


@needs_whole_corpus
@pytest.mark.row("K-112", "T121", "T122", "T123", "T128", "T129", "T131", "T132")
def test_recorded_stream_deltas_add_up_to_message() -> None:
    assert len(streams()) == 59
    ends: dict[str, int] = {}
    for exchange in streams():
        context = RequestContext(status=200, provider=exchange["provider"])
        events, message = play(exchange["sse"].encode(), context=context)
        assert comparable(accumulated(events)) == comparable(message.content), exchange["id"]
        last = events[-1]
        assert isinstance(last, MessageComplete | StreamError)
        assert last.message == message
        ends[last.type] = ends.get(last.type, 0) + 1
    assert ends == {"message_complete": 56, "error": 3}


@needs_corpus
@pytest.mark.row("T121", "T122")
def test_recorded_streams_give_equal_events_for_any_chunking() -> None:
    chance = random.Random(7)  # noqa: S311 - cuts, no secrets
    for exchange in streams():
        data: bytes = exchange["sse"].encode()
        all_events = without_ids(_read(data, [], exchange))
        for count in (1, 7, 200):
            cuts = sorted(chance.randrange(len(data)) for _ in range(count))
            assert without_ids(_read(data, cuts, exchange)) == all_events, exchange["id"]


@needs_corpus
@pytest.mark.row("T121", "T122")
def test_short_recorded_stream_gives_equal_events_cut_at_every_byte() -> None:
    short = sorted(streams(), key=lambda exchange: len(exchange["sse"]))[:4]
    for exchange in short:
        data: bytes = exchange["sse"].encode()[:6000]
        all_events = without_ids(_read(data, [], exchange))
        for position in range(1, len(data)):
            assert without_ids(_read(data, [position], exchange)) == all_events, (
                exchange["id"],
                position,
            )
        assert without_ids(_read(data, list(range(1, len(data))), exchange)) == all_events


def _read(data: bytes, cuts: list[int], exchange: Exchange) -> list[StreamEvent]:
    context = replace(CONTEXT, provider=exchange["provider"])
    decoder = FastChatStreamDecoder(context)
    edges = [0, *cuts, len(data)]
    pieces = [data[start:end] for start, end in pairwise(edges)]
    return [event for piece in pieces for event in decoder.feed(piece)] + decoder.finish()


@needs_corpus
def test_recorded_responses_decode_equally_when_streamed() -> None:
    for exchange in answers():
        body = exchange["response"]
        context = replace(CONTEXT, provider=exchange["provider"])
        expected = decode_response(body, context)
        events, message = play(*stream_of(body), context=context)
        if body.get("id") and not _has_bare_calls(body):
            assert message.content == expected.content, exchange["id"]
        assert calls_of(message) == calls_of(expected)
        assert message.metadata.usage == expected.metadata.usage
        assert message.metadata.stop_reason == expected.metadata.stop_reason
        assert message.metadata.response_id == expected.metadata.response_id
        if not _differs(body):
            assert encode_messages([message]) == encode_messages([expected])
        assert len(events) > 1


def stream_of(body: Wire) -> list[bytes]:
    """Return the chunks in which a host could have sent a response."""
    head = {key: value for key, value in body.items() if key not in ("choices", "usage")}
    head["object"] = "chat.completion.chunk"
    choice = dict(body["choices"][0])
    message, reason = choice.pop("message"), choice.pop("finish_reason", None)
    pieces = [frame({**head, "choices": [{**choice, "delta": delta}]}) for delta in deltas(message)]
    pieces.append(frame({**head, "choices": [{**choice, "delta": {}, "finish_reason": reason}]}))
    return [*pieces, frame({**head, "choices": [], "usage": body.get("usage")}), DONE]


def deltas(message: Wire) -> list[Wire]:
    rest = dict(message)
    pieces: list[Wire] = [{"role": rest.pop("role"), "content": ""}]
    content, calls = rest.pop("content", None), rest.pop("tool_calls", None)
    for name in ("reasoning_content", "reasoning"):
        if not rest.get("reasoning_details"):
            pieces += [{name: piece} for piece in halves(rest.pop(name, None))]
    pieces.append(rest)
    if isinstance(content, str):
        pieces += [{"content": piece} for piece in halves(content)]
    elif content is not None:
        pieces.append({"content": content})
    for index, wire_call in enumerate(calls or ()):
        function: Wire = wire_call["function"]
        first, second = (*halves(function.get("arguments")), "", "")[:2]
        named: Wire = {**function, "arguments": first}
        pieces.append({"tool_calls": [{**wire_call, "index": index, "function": named}]})
        pieces.append({"tool_calls": [{"index": index, "function": {"arguments": second}}]})
    return pieces


def halves(text: str | None) -> list[str]:
    if not text:
        return []
    middle = len(text) // 2
    return [text[:middle], text[middle:]]


def _has_bare_calls(body: Wire) -> bool:
    """Return whether call ids are generated in each decoding."""
    calls = body["choices"][0]["message"].get("tool_calls") or ()
    return any(not call_wire.get("id") for call_wire in calls)


def _differs(body: Wire) -> bool:
    """Return whether a stream cannot express a response: index, missing type, null for empty."""
    message = body["choices"][0]["message"]
    calls = message.get("tool_calls") or ()
    return bool(calls) or not message.get("content")


# Calls


@pytest.mark.row("T124")
def test_parallel_calls_may_all_have_index_0() -> None:
    _, message = play(
        fragment(0, "a", "write", '{"a":1}'), fragment(0, "b", "write", '{"b":2}'), STOP
    )
    assert calls_of(message) == [("write", {"a": 1}), ("write", {"b": 2})]


@pytest.mark.row("T124")
def test_a_new_name_without_an_id_is_a_new_call() -> None:
    _, message = play(
        fragment(0, None, "write", '{"a":1}'),
        fragment(0, None, "write", '{"b":'),
        fragment(0, None, "write", "2}"),
        fragment(0, "", "read", "{}"),
        STOP,
    )
    assert calls_of(message) == [("write", {"a": 1}), ("write", {"b": 2}), ("read", {})]
    assert len({b.id for b in message.content if isinstance(b, ToolUseBlock)}) == 3


@pytest.mark.row("T125")
def test_indexes_may_be_missing_or_sparse() -> None:
    _, message = play(
        fragment(None, "a", "f", '{"a":'),
        fragment(None, None, None, "1}"),
        fragment(7, "b", "g", "{}"),
        STOP,
    )
    assert calls_of(message) == [("f", {"a": 1}), ("g", {})]


@pytest.mark.row("T126")
def test_fragments_of_two_calls_may_be_interleaved() -> None:
    events, message = play(
        fragment(0, "a", "f", ""),
        fragment(1, "b", "g", ""),
        fragment(0, None, None, '{"a":'),
        fragment(1, None, None, '{"b":'),
        fragment(0, None, None, "1}"),
        fragment(1, None, None, "2}"),
        STOP,
    )
    assert calls_of(message) == [("f", {"a": 1}), ("g", {"b": 2})]
    assert comparable(accumulated(events)) == comparable(message.content)


@pytest.mark.row("T123")
def test_a_call_ends_with_the_stream_and_not_when_its_arguments_parse() -> None:
    decoder = FastChatStreamDecoder(CONTEXT)
    events = decoder.feed(fragment(0, "a", "f", '{"a":1}'))
    assert not any(isinstance(event, ToolUseEnd) for event in events)
    events += decoder.feed(fragment(0, None, None, " ")) + decoder.feed(STOP)
    assert [event.type for event in events[-2:]] == ["tool_use_end", "message_complete"]


@pytest.mark.row("T127")
def test_a_name_may_come_after_the_arguments() -> None:
    events, message = play(
        chunk({"role": "", "content": None}),
        fragment(0, "a", None, '{"a":'),
        fragment(0, None, "f", "1}"),
        STOP,
    )
    assert calls_of(message) == [("f", {"a": 1})]
    assert comparable(accumulated(events)) == comparable(message.content)


def test_repeated_id_continues_its_call() -> None:
    _, message = play(fragment(0, "a", "f", '{"a":'), fragment(0, "a", "f", "1}"), STOP)
    assert calls_of(message) == [("f", {"a": 1})]


@pytest.mark.row("T32", "T139")
def test_truncated_arguments_are_invalid() -> None:
    cut = chunk({}, finish_reason="length") + DONE
    events, message = play(fragment(0, "a", "f", '{"a":'), cut)
    (block,) = message.content
    assert isinstance(block, ToolUseBlock)
    assert block.invalid is not None
    assert block.invalid.raw == '{"a":'
    assert message.metadata.stop_reason is StopReason.MAX_TOKENS
    (end,) = [event for event in events if isinstance(event, ToolUseEnd)]
    assert end.invalid == block.invalid


def test_legacy_and_custom_calls_are_streamed() -> None:
    _, old = play(
        chunk({"function_call": {"name": "f", "arguments": '{"a"'}}),
        chunk({"function_call": {"arguments": ":1}"}}),
        chunk({}, finish_reason="function_call") + DONE,
    )
    assert calls_of(old) == [("f", {"a": 1})]
    custom = {"index": 0, "id": "a", "type": "custom", "custom": {"name": "sql", "input": "SEL"}}
    events, free = play(
        chunk({"tool_calls": [custom]}),
        chunk({"tool_calls": [{"index": 0, "custom": {"input": "ECT"}}]}),
        STOP,
    )
    assert calls_of(free) == [("sql", {"input": "SELECT"})]
    assert comparable(accumulated(events)) == comparable(free.content)


@pytest.mark.row("T61")
def test_unknown_keys_of_calls_and_deltas_are_preserved() -> None:
    extra = {"google": {"thought_signature": "s"}}
    wire = {"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}
    _, message = play(
        chunk({"tool_calls": [{**wire, "extra_content": extra}], "executed_tools": [{"index": 0}]}),
        chunk({"executed_tools": [{"index": 0, "output": "x"}]}),
        STOP,
    )
    (sent,) = encode_messages([message])
    assert sent["tool_calls"][0]["extra_content"] == extra
    assert sent["executed_tools"] == [{"index": 0, "output": "x"}]


# Text, thinking and the end


@pytest.mark.row("T128")
def test_first_chunk_with_all_fields_is_decoded() -> None:
    wire = {"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}
    delta = {"content": "hi", "reasoning": "hm", "tool_calls": [wire]}
    last = chunk({"content": "!"})
    events, message = play(chunk(delta, finish_reason="tool_calls"), last, DONE)
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use"]
    assert message.content[1] == TextBlock("hi!")
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "hi!"


@pytest.mark.row("T128")
def test_later_chunk_with_all_fields_is_decoded() -> None:
    wire = {"index": 0, "function": {"arguments": "1}"}}
    _, message = play(
        chunk({"content": "a"}),
        chunk({"content": "b", "reasoning_content": "h", "reasoning": "h"}),
        chunk({"content": "c", "reasoning_content": "m", "reasoning": "m"}),
        fragment(0, "x", "f", '{"a":'),
        chunk({"content": "d", "tool_calls": [wire]}),
        STOP,
    )
    assert comparable(message.content)[:2] == [("thinking", "hm"), ("text", "abcd")]
    assert calls_of(message) == [("f", {"a": 1})]
    (sent,) = encode_messages([message])
    assert (sent["reasoning_content"], sent["reasoning"]) == ("hm", "hm")


@pytest.mark.row("T129", "T155")
def test_usage_is_read_from_any_chunk() -> None:
    early = frame({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1}})
    late = frame({"choices": None, "usage": {"completion_tokens": 2, "prompt_tokens": None}})
    events, message = play(
        chunk({"content": "a"}), early, chunk({}, finish_reason="stop"), late, DONE
    )
    usage_of_message = message.metadata.usage
    assert usage_of_message is not None
    assert (usage_of_message.input_tokens, usage_of_message.output_tokens) == (3, 2)
    assert [event.usage for event in events if isinstance(event, UsageUpdate)][
        -1
    ] == usage_of_message


@pytest.mark.row("T131")
def test_an_end_without_a_reason_is_complete_only_if_it_was_announced() -> None:
    _, complete = play(chunk({"content": "a"}), DONE)
    assert complete.metadata.stop_reason is StopReason.UNKNOWN
    assert complete.metadata.status is MessageStatus.COMPLETE
    _, unmarked = play(chunk({"content": "a"}), chunk({}, finish_reason="stop"))
    assert unmarked.metadata.stop_reason is StopReason.END_TURN
    events, cut = play(chunk({"content": "a"}))
    last = events[-1]
    assert isinstance(last, StreamError)
    assert (last.error_class, last.is_retryable) == ("NetworkError", True)
    assert cut.content == (TextBlock("a"),)
    assert cut.metadata.status is MessageStatus.ERROR
    assert last.message == cut


@pytest.mark.row("T132", "T188")
@pytest.mark.parametrize(
    ("bad", "kind"),
    [
        (
            b'event: error\ndata: {"error":{"message":"m","status_code":400}}\n\n',
            "InvalidRequestError",
        ),
        (b'event: error\ndata: {"message":"m","type":"overloaded_error"}\n\n', "RateLimitError"),
        (frame({"error": {"message": "m", "code": 502}}), "ServerError"),
        (frame({"error": {"message": "m", "code": 529}, "choices": []}), "RateLimitError"),
        (frame({"object": "error", "message": "m", "code": 400}), "InvalidRequestError"),
        (chunk({}, error={"message": "m", "code": 401}), "AuthenticationError"),
        (b"data: {broken\n\n", "NetworkError"),
    ],
)
def test_an_error_inside_a_stream_ends_it(bad: bytes, kind: str) -> None:
    for before in ((), (chunk({"content": "par"}),)):
        events, message = play(*before, bad, chunk({"content": "after"}), DONE)
        last = events[-1]
        assert isinstance(last, StreamError)
        assert last.error_class == kind
        assert message.metadata.status is MessageStatus.ERROR
        assert message.content == ((TextBlock("par"),) if before else ())


@pytest.mark.row("T162")
def test_finish_reason_error_is_an_error() -> None:
    events, _ = play(chunk({"content": "a"}), chunk({}, finish_reason="error"), DONE)
    assert isinstance(events[-1], StreamError)


@pytest.mark.row("T189")
def test_plain_response_in_place_of_stream_is_decoded() -> None:
    events, _ = play(b'{"error": {"message": "busy",\n', b'"code": 429}}')
    last = events[-1]
    assert isinstance(last, StreamError)
    assert (last.error_class, last.status) == ("RateLimitError", 429)
    message = {"role": "assistant", "content": "hi"}
    body = {"id": "c", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    _, message = play(json.dumps(body).encode())
    assert message.content == (TextBlock("hi"),)
    assert message.metadata.stop_reason is StopReason.END_TURN


@pytest.mark.row("T138")
def test_whole_message_in_last_chunk_does_not_duplicate_text() -> None:
    message = {"role": "assistant", "content": "hi"}
    last = frame({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
    _, message = play(chunk({"content": "hi"}), last, DONE)
    assert message.content == (TextBlock("hi"),)


@pytest.mark.row("T119")
def test_a_refusal_is_streamed() -> None:
    events, message = play(chunk({"refusal": "I can"}), chunk({"refusal": "not."}), STOP)
    assert message.content == (TextBlock("I cannot."),)
    assert message.metadata.stop_reason is StopReason.REFUSAL
    assert comparable(accumulated(events)) == comparable(message.content)


def test_several_choices_and_logprobs_are_folded() -> None:
    def piece(index: int, text: str) -> bytes:
        logprobs = {"content": [{"token": text}], "refusal": None}
        return chunk({"content": text}, index=index, logprobs=logprobs)

    _, message = play(piece(0, "a"), piece(1, "x"), piece(0, "b"), piece(1, "y"), STOP)
    assert message.content == (TextBlock("ab"),)
    first, second = json.loads(encode_response(message, CONTEXT))["choices"]
    assert first["logprobs"]["content"] == [{"token": "a"}, {"token": "b"}]
    assert second["message"]["content"] == "xy"


@pytest.mark.row("T55")
def test_typed_reasoning_is_merged_by_index_and_type() -> None:
    def detail(**fields: Any) -> bytes:
        return chunk({"content": "", "reasoning_details": [fields]})

    events, message = play(
        detail(type="reasoning.text", text="h", index=0, format="a"),
        detail(type="reasoning.text", text="m", index=0, format="a"),
        detail(type="reasoning.text", signature="s", index=0, format="a"),
        detail(type="reasoning.encrypted", data="gAAA", index=1, id="rs_1", format="o"),
        chunk({"content": "4"}),
        STOP,
    )
    assert message.content == (
        ThinkingBlock("hm", "s", format="a", issuer=PROTOCOL),
        RedactedThinkingBlock("gAAA", "rs_1", "o", PROTOCOL),
        TextBlock("4"),
    )
    (sent,) = encode_messages([message])
    assert sent["reasoning_details"] == [
        {"type": "reasoning.text", "text": "hm", "signature": "s", "index": 0, "format": "a"},
        {"type": "reasoning.encrypted", "data": "gAAA", "index": 1, "id": "rs_1", "format": "o"},
    ]
    signatures = [event.signature for event in events if isinstance(event, ThinkingDelta)]
    assert signatures == [None, None, "s"]
    assert comparable(accumulated(events)) == comparable(message.content)


@pytest.mark.row("T54")
def test_thinking_chunks_are_streamed() -> None:
    def thought(text: str) -> bytes:
        inner = [{"type": "text", "text": text}]
        return chunk({"content": [{"type": "thinking", "thinking": inner}]})

    _, message = play(
        thought("h"), thought("m"), chunk({"content": "4"}), chunk({"content": "2"}), STOP
    )
    assert encode_messages([message])[0]["content"] == [
        {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
        {"type": "text", "text": "42"},
    ]


def test_audio_is_assembled_from_deltas() -> None:
    _, message = play(
        chunk({"audio": {"id": "audio_1", "transcript": "h"}}),
        chunk({"audio": {"data": "aGk=", "transcript": "i"}}),
        chunk({"audio": {"data": "aGk=", "expires_at": 1}}),
        STOP,
    )
    assert encode_messages([message])[0]["audio"] == {
        "id": "audio_1",
        "transcript": "hi",
        "data": "aGloaQ==",
        "expires_at": 1,
    }


def test_partial_message_is_available_at_any_time() -> None:
    decoder = FastChatStreamDecoder(CONTEXT)
    assert decoder.message.content == ()
    decoder.feed(chunk({"content": "a"}))
    assert decoder.message.content == (TextBlock("a"),)
    assert decoder.message.metadata.status is MessageStatus.PARTIAL


# Writing


def test_encoded_chunks_decode_to_equal_events() -> None:
    source = [
        MessageStart("m1", "anthropic:claude", "msg_1"),
        ThinkingDelta("m1", 0, "hm"),
        TextDelta("m1", 1, "hi"),
        ToolUseStart("m1", 2, tool_id(1), "f"),
        ToolUseInputDelta("m1", 2, tool_id(1), '{"a"'),
        ToolUseInputDelta("m1", 2, tool_id(1), ":1}"),
        ToolUseEnd("m1", 2, tool_id(1), {"a": 1}),
        ToolUseStart("m1", 3, tool_id(2), "g"),
        ToolUseEnd("m1", 3, tool_id(2), {"b": 2}),
    ]
    final = assistant(text("hi"), call("f", a=1))
    metadata = replace(final.metadata, usage=usage(), stop_reason=StopReason.TOOL_USE)
    end = MessageComplete("m1", StopReason.TOOL_USE, replace(final, metadata=metadata))
    encoder = ChatStreamEncoder(CONTEXT)
    data = b"".join(encoder.encode(event) for event in (*source, end)) + encoder.finish()
    assert data.endswith(DONE)
    _, message = play(data)
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert calls_of(message) == [("f", {"a": 1}), ("g", {"b": 2})]
    assert message.metadata.stop_reason is StopReason.TOOL_USE
    assert message.metadata.response_id == "msg_1"
    decoded_usage = message.metadata.usage
    assert decoded_usage is not None
    assert decoded_usage.prompt_tokens == usage().prompt_tokens
    assert decoded_usage.output_tokens == usage().output_tokens


@needs_corpus
def test_recorded_streams_round_trip_through_stream_encoder() -> None:
    for exchange in streams():
        events, message = play(exchange["sse"].encode())
        encoder = ChatStreamEncoder(CONTEXT)
        data = b"".join(encoder.encode(event) for event in events) + encoder.finish()
        _, again = play(data)
        assert comparable(again.content) == comparable(message.content)


@pytest.mark.row("T33")
def test_arguments_sent_as_object_are_accepted() -> None:
    call: Wire = {"index": 0, "id": "a", "function": {"name": "f", "arguments": {"x": 1}}}
    _, message = play(chunk({"tool_calls": [call]}), chunk({}, finish_reason="tool_calls"))
    (block,) = message.content
    assert isinstance(block, ToolUseBlock)
    assert (block.input, block.invalid) == ({"x": 1}, None)


# Any input


@given(st.lists(st.binary(max_size=60), max_size=4))
def test_any_bytes_give_events(pieces: list[bytes]) -> None:
    play(*pieces)


NAMES = (
    "role content refusal reasoning reasoning_content reasoning_details tool_calls function_call "
    "audio annotations index id function name arguments type text thinking custom input"
)
DELTA_KEYS = st.sampled_from(NAMES.split())
LEAVES = (
    st.none() | st.booleans() | st.integers(-1, 3) | st.sampled_from(["", "a", '{"a":1}', "text"])
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(DELTA_KEYS, inner, max_size=4),
)
DELTAS = st.dictionaries(DELTA_KEYS, VALUES, max_size=5)


@given(st.lists(DELTAS, max_size=5), st.booleans())
def test_any_deltas_give_events_in_order(drawn_deltas: list[Wire], is_marked: bool) -> None:  # noqa: FBT001 - drawn
    pieces = [chunk(delta) for delta in drawn_deltas]
    try:
        play(*pieces, STOP if is_marked else b"")
    except MetisError:
        return
