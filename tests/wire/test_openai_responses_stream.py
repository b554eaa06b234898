"""OpenAI Responses streams in both directions."""

import json
import random
from itertools import pairwise
from typing import Any

import msgspec
import openai.types.responses as sdk
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import corpus
from build import assistant, call, text, thinking, tool_id
from corpus import Exchange, needs_corpus, needs_whole_corpus
from metis import adapters
from metis.canonical import Message, StopReason, validate
from metis.canonical.blocks import (
    ContentBlock,
    OpaqueBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from metis.canonical.metadata import MessageStatus
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
from metis.wire.openai_responses.fast import FastResponsesStreamDecoder
from metis.wire.openai_responses.response import decode_response
from metis.wire.seals import read_envelope
from openai_responses_cases import CALL, CITED, CUSTOM, FEATURES, MESSAGE, REASONING, SEALED, Wire

CONTEXT = RequestContext(session_id="sess_1", status=200)
USAGE: Wire = {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7}
_FLAT = MessageStart | MessageComplete | StreamError | UsageUpdate


def thinking_texts(*pieces: Wire) -> list[str]:
    """Return the thinking deltas of a reasoning item that arrives in the given pieces."""
    decoder = FastResponsesStreamDecoder(CONTEXT)
    item: Wire = {"type": "reasoning", "id": "rs_1", "summary": []}
    added: Wire = {"type": "response.output_item.added", "output_index": 0, "item": item}
    events = [*start_events(), added, *({"output_index": 0, **piece} for piece in pieces)]
    events_of_stream = [event for event_body in events for event in decoder.feed(frame(event_body))]
    return [event.text for event in events_of_stream if isinstance(event, ThinkingDelta)]


def test_each_thinking_delta_is_reported_once() -> None:
    def summary(index: int, delta: str) -> Wire:
        kind = "response.reasoning_summary_text.delta"
        return {"type": kind, "summary_index": index, "delta": delta}

    def clear(delta: str) -> Wire:
        return {"type": "response.reasoning_text.delta", "content_index": 0, "delta": delta}

    assert thinking_texts(summary(0, "a"), summary(0, "b"), summary(1, "c"), summary(1, "d")) == [
        "a",
        "b",
        "\n\nc",
        "d",
    ]
    assert thinking_texts(clear("a"), summary(0, "s"), clear("b")) == ["a", "b"]
    # The reasoning text replaces a summary; the part that was reported is not reported again.
    assert thinking_texts(summary(0, "abc"), clear("wo"), clear("rds")) == ["abc", "ds"]
    many = [summary(0, str(number)) for number in range(500)]
    assert thinking_texts(*many) == [str(number) for number in range(500)]


def frame(event: Wire) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), json.dumps(event).encode())


def response(*output: Wire, **rest: Any) -> Wire:
    return {"id": "resp_1", "model": "gpt-x", "status": "completed", "output": [*output], **rest}


def start_events() -> list[Wire]:
    envelope = response(status="in_progress")
    return [{"type": f"response.{n}", "response": envelope} for n in ("created", "in_progress")]


def end_event(*output: Wire, kind: str = "completed", **rest: Any) -> Wire:
    return {"type": f"response.{kind}", "response": response(*output, usage=USAGE, **rest)}


def item_events(index: int, item: Wire) -> list[Wire]:
    """Return the events in which a provider could have sent an item."""
    keys: Wire = {"output_index": index, "item_id": item.get("id")}
    bare: Wire = {**item, "status": "in_progress"} if "status" in item else dict(item)
    deltas: list[Wire] = []
    match item["type"]:
        case "message":
            bare["content"] = []
            deltas = part_events(keys, item["content"])
        case "reasoning":
            bare |= {"summary": list[Wire](), "encrypted_content": "early"}
            for number, part in enumerate(item["summary"]):
                part_keys = {**keys, "summary_index": number}
                deltas += [
                    {**part_keys, "type": "response.reasoning_summary_text.delta", "delta": piece}
                    for piece in halves(part["text"])
                ]
            for part in item.get("content") or ():
                deltas += [
                    {**keys, "type": "response.reasoning_text.delta", "delta": piece}
                    for piece in halves(part["text"])
                ]
        case "function_call":
            bare["arguments"] = ""
            kind = "response.function_call_arguments.delta"
            deltas = [{**keys, "type": kind, "delta": p} for p in halves(item["arguments"])]
        case "custom_tool_call":
            bare["input"] = ""
            kind = "response.custom_tool_call_input.delta"
            deltas = [{**keys, "type": kind, "delta": p} for p in halves(item["input"])]
        case _:
            pass
    added = {"type": "response.output_item.added", "output_index": index, "item": bare}
    done = {"type": "response.output_item.done", "output_index": index, "item": item}
    return [added, *deltas, done]


def part_events(keys: Wire, parts: list[Wire]) -> list[Wire]:
    events: list[Wire] = []
    for number, part in enumerate(parts):
        part_keys = {**keys, "content_index": number}
        key = "refusal" if part["type"] == "refusal" else "text"
        kind = "refusal" if key == "refusal" else "output_text"
        events.append(
            {**part_keys, "type": "response.content_part.added", "part": {**part, key: ""}}
        )
        events += [
            {**part_keys, "type": f"response.{kind}.delta", "delta": piece}
            for piece in halves(part[key])
        ]
        events += [
            {**part_keys, "type": "response.output_text.annotation.added", "annotation": note}
            for note in part.get("annotations", ())
        ]
        events.append({**part_keys, "type": "response.content_part.done", "part": part})
    return events


def halves(text: str) -> list[str]:
    middle = len(text) // 2
    return [text[:middle], text[middle:]] if text else []


def play(*pieces: bytes, context: RequestContext = CONTEXT) -> tuple[list[StreamEvent], Message]:
    decoder = FastResponsesStreamDecoder(context)
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


def stream_of(*events: Wire) -> list[bytes]:
    return [frame({**event, "sequence_number": n}) for n, event in enumerate(events)]


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


def without_ids(events: list[StreamEvent]) -> list[Any]:
    """Return the events without values that differ from decoder to decoder."""
    bodies: list[Any] = []
    for event in events:
        wire = msgspec.to_builtins(event, enc_hook=_shown)
        message_id = wire.pop("message_id")
        bodies.append(json.loads(json.dumps(wire, default=str).replace(message_id, "ID")))
    return bodies


def _shown(value: Any) -> str:
    return bytes(value).decode() if isinstance(value, msgspec.Raw) else str(value)


# Laws on the recordings


def streams() -> list[Exchange]:
    return [exchange for exchange in corpus.exchanges("openai_responses") if exchange["sse"]]


@needs_whole_corpus
@pytest.mark.row("K-116", "K-118", "K-119", "K-129", "T65", "T121", "T122", "T131", "T136")
def test_recorded_stream_deltas_add_up_to_message() -> None:
    assert len(streams()) == 47
    for exchange in streams():
        context = RequestContext(status=200, provider=exchange["provider"])
        events, message = play(exchange["sse"].encode(), context=context)
        assert comparable(accumulated(events)) == comparable(message.content), exchange["id"]
        assert validate(message) == []
        last = events[-1]
        assert isinstance(last, MessageComplete), exchange["id"]
        assert last.message == message
        assert message.metadata.usage is not None
        assert message.metadata.response_id


@needs_corpus
@pytest.mark.row("T121", "T122")
def test_recorded_streams_give_equal_events_for_any_chunking() -> None:
    chance = random.Random(7)  # noqa: S311 - cuts, no secrets
    for exchange in streams():
        data: bytes = exchange["sse"].encode()
        all_events = without_ids(read(data, []))
        for count in (1, 60):
            cuts = sorted(chance.randrange(len(data)) for _ in range(count))
            assert without_ids(read(data, cuts)) == all_events, exchange["id"]


@needs_corpus
@pytest.mark.row("T121", "T122")
def test_short_recorded_stream_gives_equal_events_cut_at_every_byte() -> None:
    exchange = min(streams(), key=lambda found: len(found["sse"]))
    data: bytes = exchange["sse"].encode()[:6000]
    all_events = without_ids(read(data, []))
    for position in range(1, len(data), 3):
        assert without_ids(read(data, [position])) == all_events, (exchange["id"], position)
    assert without_ids(read(data, list(range(1, len(data))))) == all_events


def read(data: bytes, cuts: list[int]) -> list[StreamEvent]:
    decoder = FastResponsesStreamDecoder(CONTEXT)
    pieces = [data[start:end] for start, end in pairwise([0, *cuts, len(data)])]
    return [event for piece in pieces for event in decoder.feed(piece)] + decoder.finish()


@needs_corpus
@pytest.mark.row("T65")
def test_recorded_responses_decode_equally_when_streamed() -> None:
    for exchange in corpus.responses("openai_responses"):
        body = exchange["response"]
        if not body.get("output") or body["status"] != "completed":
            continue
        events: list[Wire] = [
            {"type": "response.created", "response": {**body, "output": []}},
            *(event for n, item in enumerate(body["output"]) for event in item_events(n, item)),
            {"type": "response.completed", "response": body},
        ]
        reported, message = play(*stream_of(*events))
        expected = decode_response(body, CONTEXT)
        assert message.content == expected.content, exchange["id"]
        assert message.metadata == expected.metadata
        assert message.metadata.provider_raw == expected.metadata.provider_raw
        assert comparable(accumulated(reported)) == comparable(expected.content)


@needs_corpus
def test_recorded_streams_round_trip_through_stream_encoder() -> None:
    for exchange in streams():
        context = RequestContext(status=200, provider="openai-responses")
        events, message = play(exchange["sse"].encode(), context=context)
        written = encode_all(events, context)
        again = play(written, context=context)[1]
        assert [b.type for b in again.content] == [b.type for b in message.content], exchange["id"]
        assert again.metadata.stop_reason == message.metadata.stop_reason


def encode_all(events: list[StreamEvent], context: RequestContext = CONTEXT) -> bytes:
    encoder = adapters.get("openai-responses").stream_encoder(context)
    return b"".join(encoder.encode(event) for event in events) + encoder.finish()


# Features


@pytest.mark.row("K-116", "T65", "T123", "T201", "T202")
@pytest.mark.parametrize("name", FEATURES)
def test_items_of_every_kind_are_streamed(name: str) -> None:
    output = [item for item in FEATURES[name] if _is_answered(item)]
    if not output:
        pytest.skip("nothing that a model says")
    events = [event for n, item in enumerate(output) for event in item_events(n, item)]
    reported, message = play(*stream_of(*start_events(), *events, end_event(*output)))
    expected = decode_response(response(*output, usage=USAGE), CONTEXT)
    assert message.content == expected.content
    assert comparable(accumulated(reported)) == comparable(expected.content)
    assert message.metadata == expected.metadata


def _is_answered(item: Wire) -> bool:
    kind = item.get("type", "")
    if kind == "message":
        return isinstance(item.get("content"), list) and item["role"] == "assistant"
    named = kind.endswith("_call") or kind in ("reasoning", "compaction", "mcp_list_tools")
    return named and isinstance(item.get("summary", []), list) and _has_text(item)


def _has_text(item: Wire) -> bool:
    return item["type"] != "function_call" or isinstance(item.get("arguments"), str)


@pytest.mark.row("K-116", "K-129", "M-230", "M-232")
def test_stream_decodes_to_message_of_plain_response() -> None:
    output = [REASONING, MESSAGE, CALL]
    events = [event for n, item in enumerate(output) for event in item_events(n, item)]
    reported, message = play(*stream_of(*start_events(), *events, end_event(*output)))
    one = message.content[2]
    assert isinstance(one, ToolUseBlock)
    message_id = message.id
    first, second = halves(CALL["arguments"])
    plain = [
        event if not hasattr(event, "original_form") else replace(event, original_form=None)
        for event in reported
    ]
    assert [
        event
        for event in plain
        if not isinstance(event, _FLAT) and event != TextDelta(message_id, 1, "")
    ] == [
        ThinkingDelta(message_id, 0, "Look "),
        ThinkingDelta(message_id, 0, "it up."),
        ThinkingDelta(message_id, 0, "", "gAAAA1", id=REASONING["id"]),
        TextDelta(message_id, 1, "Nothing"),
        TextDelta(message_id, 1, " is new."),
        ToolUseStart(message_id, 2, one.id, "look_up", "call_1"),
        ToolUseInputDelta(message_id, 2, one.id, first),
        ToolUseInputDelta(message_id, 2, one.id, second),
        ToolUseEnd(message_id, 2, one.id, {"word": "new", "deep": True}),
    ]
    model, protocol = "openai-responses:gpt-x", "openai_responses"
    assert plain[0] == MessageStart(message_id, model, "resp_1", protocol=protocol)
    assert isinstance(reported[-2], UsageUpdate)
    assert message == replace(
        decode_response(end_event(*output)["response"], CONTEXT), id=message_id
    )


@pytest.mark.row("T126", "K-129")
def test_interleaved_items_are_reported_sequentially() -> None:
    other = {**CALL, "id": "fc_2", "call_id": "call_2", "arguments": '{"b":2}'}
    first, second = item_events(0, CALL), item_events(1, other)
    message_events = item_events(2, MESSAGE)
    mixed = [
        first[0],
        second[0],
        message_events[0],
        second[1],
        first[1],
        *message_events[1:],
        *second[2:],
        *first[2:],
    ]
    reported, message = play(*stream_of(*start_events(), *mixed, end_event(CALL, other, MESSAGE)))
    assert [block.type for block in message.content] == ["tool_use", "tool_use", "text"]
    assert comparable(accumulated(reported)) == comparable(message.content)


@pytest.mark.row("T136")
@pytest.mark.parametrize("keep", range(6))
def test_stream_with_omitted_events_gives_same_message(keep: int) -> None:
    """The message is the same as long as one form of each part is complete."""
    output = [SEALED, MESSAGE, CALL]
    events = [event for n, item in enumerate(output) for event in item_events(n, item)]
    nothing = [*start_events()[:1], end_event(*output)]
    ways: list[list[Wire]] = [
        [*start_events(), *events, end_event()],
        [*events, end_event(*output)],
        nothing,
        [
            *start_events(),
            *(e for e in events if "item.added" not in e["type"]),
            end_event(*output),
        ],
        [*start_events(), *(e for e in events if "item.done" not in e["type"]), end_event(*output)],
        [*start_events(), *(e for e in events if "delta" not in e["type"]), end_event(*output)],
    ]
    reported, message = play(*stream_of(*ways[keep]))
    expected = decode_response(response(*output), CONTEXT)
    if keep == 1:  # without the first event an id is made before that of the response is there
        (call,) = [block for block in message.content if isinstance(block, ToolUseBlock)]
        expected = replace(expected, content=(*expected.content[:2], call))
        assert (call.name, call.input) == ("look_up", {"word": "new", "deep": True})
    assert comparable(message.content) == comparable(expected.content)
    assert [b.type for b in message.content] == ["redacted_thinking", "text", "tool_use"]
    assert comparable(accumulated(reported)) == comparable(message.content)


def test_stream_of_deltas_only_is_assembled() -> None:
    keys: Wire = {"item_id": "msg_1", "output_index": 0}
    events: list[Wire] = [
        {**keys, "type": "response.output_text.delta", "delta": "a"},
        {**keys, "type": "response.output_text.delta", "delta": "b", "content_index": 1},
        {
            **keys,
            "type": "response.output_text.annotation.added",
            "content_index": 1,
            "annotation": CITED,
        },
        {"type": "response.refusal.delta", "item_id": "msg_2", "output_index": 1, "delta": "no"},
        {"type": "response.function_call_arguments.delta", "output_index": 2, "delta": "{}"},
    ]
    reported, message = play(*stream_of(*events), b"data: [DONE]\n\n")
    texts = [block for block in message.content if isinstance(block, TextBlock)]
    assert [block.text for block in texts] == ["a", "b", "no"]
    assert [note.raw for note in texts[1].citations] == [CITED]
    assert message.metadata.stop_reason is StopReason.REFUSAL
    assert isinstance(message.content[3], OpaqueBlock)
    assert isinstance(reported[-1], MessageComplete)


@pytest.mark.row("T136", "T169")
@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("max_output_tokens", StopReason.MAX_TOKENS),
        ("content_filter", StopReason.CONTENT_FILTER),
        ("new", StopReason.UNKNOWN),
    ],
)
def test_an_incomplete_response_is_a_response(reason: str, expected: StopReason) -> None:
    end = end_event(kind="incomplete", status="incomplete", incomplete_details={"reason": reason})
    reported, message = play(*stream_of(*start_events(), end))
    assert message.metadata.stop_reason is expected
    assert message.metadata.usage is not None
    assert message.content == ()
    assert isinstance(reported[-1], MessageComplete)


@pytest.mark.row("T132", "T136", "T188")
@pytest.mark.parametrize(
    ("bad", "kind", "message_events"),
    [
        (
            end_event(
                kind="failed", status="failed", error={"code": "server_error", "message": "oops"}
            ),
            "ServerError",
            "oops",
        ),
        (
            {"type": "error", "code": "rate_limit_exceeded", "message": "slow", "param": None},
            "RateLimitError",
            "slow",
        ),
        (
            {"type": "error", "error": {"message": "slow", "code": "x"}},
            "OtherProviderError",
            "slow",
        ),
        (end_event(kind="cancelled", status="cancelled"), "OtherProviderError", "cancelled"),
    ],
)
def test_error_event_ends_stream_and_keeps_partial_message(
    bad: Wire, kind: str, message_events: str
) -> None:
    reported, message = play(*stream_of(*start_events(), *item_events(0, MESSAGE)[:-1], bad))
    last = reported[-1]
    assert isinstance(last, StreamError)
    assert last.error_class == kind
    assert message_events in last.text
    assert message.metadata.status is MessageStatus.ERROR
    assert [getattr(block, "text", "") for block in message.content] == ["Nothing is new."]


@pytest.mark.row("M-078", "T131")
def test_truncated_stream_is_an_error_with_partial_message() -> None:
    reported, message = play(*stream_of(*start_events(), *item_events(0, CALL)[:2]))
    last = reported[-1]
    assert isinstance(last, StreamError)
    assert (last.error_class, last.is_retryable) == ("NetworkError", True)
    one = message.content[0]
    assert isinstance(one, ToolUseBlock)
    assert one.invalid is not None


@pytest.mark.row("T189")
def test_plain_response_in_place_of_stream_is_decoded() -> None:
    reported, message = play(json.dumps(response(REASONING, MESSAGE, usage=USAGE)).encode())
    assert isinstance(reported[-1], MessageComplete)
    assert [block.type for block in message.content] == ["thinking", "text"]
    reported, _ = play(json.dumps({"error": {"message": "no", "code": "invalid_api_key"}}).encode())
    last = reported[-1]
    assert isinstance(last, StreamError)
    assert last.error_class == "AuthenticationError"


def test_queued_response_starts_when_in_progress() -> None:
    queued = {"type": "response.queued", "response": response(status="queued")}
    reported, message = play(
        *stream_of(queued, *start_events(), *item_events(0, MESSAGE), end_event(MESSAGE))
    )
    assert isinstance(reported[0], MessageStart)
    assert len(message.content) == 1


def test_partial_message_is_available_at_any_time() -> None:
    decoder = FastResponsesStreamDecoder(CONTEXT)
    counts: list[int] = []
    for piece in stream_of(
        *start_events(),
        *item_events(0, REASONING),
        *item_events(1, MESSAGE),
        end_event(REASONING, MESSAGE),
    ):
        decoder.feed(piece)
        counts.append(len(decoder.message.content))
    assert counts == sorted(counts)
    assert counts[-1] == 2


def test_custom_calls_are_streamed_without_deltas_of_json() -> None:
    reported, message = play(
        *stream_of(*start_events(), *item_events(0, CUSTOM), end_event(CUSTOM))
    )
    one = message.content[0]
    assert isinstance(one, ToolUseBlock)
    assert one.input == {"input": "SELECT 1"}
    assert not any(isinstance(event, ToolUseInputDelta) for event in reported)


# Encoded streams


EVENT = pydantic.TypeAdapter[Any](sdk.ResponseStreamEvent)


def frames_of(data: bytes) -> list[Wire]:
    lines = [line[6:] for line in data.split(b"\n") if line.startswith(b"data: ")]
    return [json.loads(line) for line in lines]


@pytest.mark.row("M-201", "K-113")
def test_encoded_stream_has_full_event_sequence() -> None:
    one = call("f", tool_id(1), a=1)
    message = assistant(thinking("hm", signature="s", issuer="anthropic"), text("hi"), one)
    message_id = message.id
    events: list[StreamEvent] = [
        MessageStart(message_id, "anthropic:claude", None),
        ThinkingDelta(message_id, 0, "hm"),
        ThinkingDelta(message_id, 0, "", "s"),
        TextDelta(message_id, 1, "h"),
        TextDelta(message_id, 1, "i"),
        ToolUseStart(message_id, 2, one.id, "f"),
        ToolUseInputDelta(message_id, 2, one.id, '{"a":1}'),
        ToolUseEnd(message_id, 2, one.id, {"a": 1}),
        MessageComplete(message_id, StopReason.TOOL_USE, message),
    ]
    written = frames_of(encode_all(events))
    for event in written:
        EVENT.validate_python(event)
    assert [event["sequence_number"] for event in written] == list(range(len(written)))
    kinds = [event["type"].removeprefix("response.") for event in written]
    assert kinds == [
        "created",
        "in_progress",
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    done = [event["item"] for event in written if event["type"] == "response.output_item.done"]
    assert written[-1]["response"]["output"] == done
    final = sdk.Response.model_validate(written[-1]["response"], strict=True)
    assert final.output_text == "hi"
    _, again = play(encode_all(events))
    sealed = again.content[0]
    assert isinstance(sealed, ThinkingBlock)
    seal = read_envelope(sealed.signature or "")
    assert seal is not None
    assert seal.block(sealed.text) == message.content[0]
    assert again.metadata.stop_reason is StopReason.TOOL_USE


@pytest.mark.parametrize(
    ("reason", "kind", "status"),
    [
        (StopReason.MAX_TOKENS, "response.incomplete", "incomplete"),
        (StopReason.CONTENT_FILTER, "response.incomplete", "incomplete"),
        (StopReason.END_TURN, "response.completed", "completed"),
        (StopReason.REFUSAL, "response.completed", "completed"),
    ],
)
def test_how_a_response_ended_is_reported(reason: StopReason, kind: str, status: str) -> None:
    message = assistant(text("hi"))
    written = frames_of(encode_all([MessageComplete(message.id, reason, message)]))
    assert (written[-1]["type"], written[-1]["response"]["status"]) == (kind, status)
    items = [event["item"]["type"] for event in written if "output_item.done" in event["type"]]
    assert items == ["message"]


def test_an_error_is_written_as_a_failed_response() -> None:
    events: list[StreamEvent] = [
        TextDelta("m1", 0, "half"),
        StreamError("m1", "ServerError", "oops"),
    ]
    written = encode_all(events)
    last = frames_of(written)[-1]
    EVENT.validate_python(last)
    assert last["type"] == "response.failed"
    reported, message = play(written)
    assert isinstance(reported[-1], StreamError)
    assert message.content == (TextBlock("half"),)


def test_stream_without_end_event_is_closed() -> None:
    assert frames_of(encode_all([TextDelta("m1", 0, "half")]))[-1]["type"] == "response.incomplete"
    assert encode_all([]) == b""


def test_whole_blocks_are_encoded_as_items() -> None:
    image = decode_response(response(FEATURES["a picture"][0]), CONTEXT).content[0]
    blocks: list[ContentBlock] = [
        RedactedThinkingBlock("sealed", issuer="anthropic"),
        RedactedThinkingBlock("gAAAA", "rs_1", issuer="openai_responses"),
        OpaqueBlock("openai_responses", msgspec.Raw(b'{"type":"web_search_call","id":"ws_1"}')),
        OpaqueBlock("anthropic", msgspec.Raw(b'{"type":"server_tool_use"}')),
        image,
    ]
    events: list[StreamEvent] = [
        MessageStart("m1", provider="openai-responses"),
        *(BlockAdded("m1", n, block) for n, block in enumerate(blocks)),
    ]
    items = [
        event["item"]
        for event in frames_of(encode_all(events))
        if event["type"] == "response.output_item.done"
    ]
    assert [item["type"] for item in items] == [
        "reasoning",
        "reasoning",
        "web_search_call",
        "image_generation_call",
    ]
    assert items[1]["encrypted_content"] == "gAAAA"
    assert "sealed" not in json.dumps(items[0])


@pytest.mark.row("T71")
def test_thinking_without_an_issuer_gets_no_envelope() -> None:
    events: list[StreamEvent] = [ThinkingDelta("m1", 0, "hm", "s")]
    item = frames_of(encode_all(events))[-1]["response"]["output"][0]
    assert "encrypted_content" not in item
    thought = ThinkingBlock("hm", "s", issuer="anthropic")
    message = replace(assistant(thought), id="m1")
    events.append(MessageComplete("m1", StopReason.END_TURN, message))
    _, again = play(encode_all(events))
    assert again.content == (ThinkingBlock("hm", id="rs_m1_0", issuer="openai_responses"),)


# Any input


KEY_NAMES = (
    "type response output item output_index item_id content_index delta part annotation summary "
    "id call_id name arguments status message function_call reasoning error code text content"
)
KEYS = st.sampled_from(KEY_NAMES.split())
LEAVES = st.none() | st.booleans() | st.integers(-2, 3) | st.text(max_size=3) | KEYS
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4)
)
TYPES = st.sampled_from(
    [
        *("response.created", "response.completed", "response.failed", "response.queued", "error"),
        *("response.output_item.added", "response.output_item.done", "response.incomplete"),
        *("response.content_part.added", "response.content_part.done"),
        *("response.output_text.delta", "response.refusal.delta", "response.new"),
        *("response.reasoning_summary_text.delta", "response.reasoning_text.delta"),
        *("response.function_call_arguments.delta", "response.custom_tool_call_input.delta"),
        "response.output_text.annotation.added",
    ]
)


def _event(kind: str, rest: Wire) -> Wire:
    return {**rest, "type": kind}


ORDERLY = [
    *start_events(),
    *(e for n, item in enumerate([REASONING, MESSAGE, CALL, CUSTOM]) for e in item_events(n, item)),
]
EVENTS = st.builds(_event, TYPES, st.dictionaries(KEYS, VALUES, max_size=5)) | st.sampled_from(
    ORDERLY
)


@given(st.lists(st.binary(max_size=30), max_size=4))
def test_any_bytes_give_events(pieces: list[bytes]) -> None:
    play(*pieces)


@given(st.lists(EVENTS, max_size=12))
def test_any_events_give_events_in_order(wires: list[Wire]) -> None:
    reported, message = play(*stream_of(*wires))
    assert isinstance(reported[-1], MessageComplete | StreamError)
    assert len(accumulated(reported)) == len(message.content)
    encode_all(reported)


def test_items_missing_in_final_response_keep_their_position() -> None:
    other = {**CALL, "id": "fc_2", "call_id": "call_2"}
    pieces = [*start_events(), *item_events(0, CALL), *item_events(1, MESSAGE)]
    pieces += [*item_events(2, other), end_event(MESSAGE)]
    events, message = play(*stream_of(*pieces))
    assert [block.type for block in message.content] == ["tool_use", "text", "tool_use"]
    assert comparable(accumulated(events)) == comparable(message.content)


def test_call_with_other_type_in_final_response_is_one_call() -> None:
    final: Wire = {"type": "tool_search_call", "call_id": CALL["call_id"], "id": "tsc_1"}
    _, message = play(*stream_of(*start_events(), *item_events(0, CALL), end_event(final)))
    assert len(message.content) == 1
