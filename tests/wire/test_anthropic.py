"""Anthropic Messages: requests, responses, streams and errors in both directions."""

import contextlib
import json
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from build import assistant, call, image, system, text, tool, user
from corpus import body_of, needs_corpus, requests, responses, streams
from encoding import encode_request
from metis import adapters
from metis.canonical import (
    DocumentBlock,
    ImageBlock,
    Message,
    MessageStatus,
    MetisError,
    OpaqueBlock,
    Role,
    SideEffects,
    StopReason,
    TextBlock,
    ThinkingBlock,
    ToolDefinition,
    ToolResultBlock,
    ToolUseBlock,
    decode,
    encode,
    validate,
)
from metis.canonical.errors import (
    AuthenticationError,
    ContextOverflowError,
    InvalidRequestError,
    ProviderError,
    RateLimitError,
    ServerError,
)
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
)
from metis.wire.anthropic.codec import CODEC
from metis.wire.anthropic.errors import decode_error, encode_error
from metis.wire.anthropic.fast import FastAnthropicStreamDecoder, decode_request
from metis.wire.anthropic.response import decode_response, encode_response
from metis.wire.anthropic.stream_encoder import AnthropicStreamEncoder
from metis.wire.call import AdapterOptions, RequestContext, ToolChoice
from metis.wire.json_access import Wire

CORPUS = "anthropic_messages"
CONTEXT = RequestContext(session_id="sess_test")


def round_trip_body(request: Any) -> Any:
    read = decode_request(body_of(request), CONTEXT)
    stored = [decode(encode(message)) for message in read.messages]
    return json.loads(encode_request(CODEC, stored, read.tools, read.options))


def sent(*messages: dict[str, Any], **options: Any) -> dict[str, Any]:
    return {"model": "claude-sonnet-4-6", "max_tokens": 9, "messages": list(messages), **options}


TEXT = {"type": "text", "text": "hi"}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1"}
PROMPT = {"role": "user", "content": "go"}
CALLED = {"role": "assistant", "content": [CALL]}

REQUESTS: dict[str, dict[str, Any]] = {
    "string content": sent({"role": "user", "content": "hi"}),
    "list content": sent({"role": "user", "content": [TEXT]}),
    "system string": sent(PROMPT, system="be brief"),
    "system blocks": sent(PROMPT, system=[TEXT, {**TEXT, "cache_control": {"type": "ephemeral"}}]),
    "empty system": sent(PROMPT, system=[]),
    "system in the middle": sent(PROMPT, CALLED, {"role": "system", "content": [TEXT]}, PROMPT),
    "results and text in one turn": sent(
        PROMPT, CALLED, {"role": "user", "content": [{**RESULT, "content": "ok"}, TEXT]}
    ),
    "results and text in two turns": sent(
        PROMPT, CALLED, {"role": "user", "content": [{**RESULT, "content": [TEXT]}]}, PROMPT
    ),
    "result without content": sent(PROMPT, CALLED, {"role": "user", "content": [RESULT]}),
    "explicit success": sent(
        PROMPT, CALLED, {"role": "user", "content": [{**RESULT, "content": [], "is_error": False}]}
    ),
    "failure": sent(
        PROMPT, CALLED, {"role": "user", "content": [{**RESULT, "content": "x", "is_error": True}]}
    ),
    "the same id twice": sent(
        PROMPT,
        CALLED,
        {"role": "user", "content": [{**RESULT, "content": "1"}]},
        CALLED,
        {"role": "user", "content": [{**RESULT, "content": "2"}]},
    ),
    "prefill": sent(PROMPT, {"role": "assistant", "content": "{"}),
    "empty turn": sent(PROMPT, {"role": "assistant", "content": []}),
    "unknown block": sent({"role": "user", "content": [{"type": "hologram", "x": [1.5, None]}]}),
    "unknown key in a block": sent({"role": "user", "content": [{**TEXT, "mood": "calm"}]}),
    "unknown key in a message": sent({**PROMPT, "name": "ann"}),
    "unknown key in a request": sent(PROMPT, speed="fast", metadata={"user_id": "u"}),
    "image by file id": sent(
        {
            "role": "user",
            "content": [{"type": "image", "source": {"type": "file", "file_id": "file_1"}}],
        }
    ),
    "document with citations": sent(
        {
            "role": "user",
            "content": [
                {
                    "type": "document",
                    "source": {"type": "text", "media_type": "text/plain", "data": "abc"},
                    "title": "notes",
                    "citations": {"enabled": True},
                }
            ],
        }
    ),
    "thinking": sent(
        PROMPT,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "", "signature": "sig"},
                {"type": "redacted_thinking", "data": "xyz"},
                CALL,
            ],
        },
    ),
    "citations": sent(
        PROMPT,
        {
            "role": "assistant",
            "content": [
                {**TEXT, "citations": [{"type": "char_location", "cited_text": "a", "x": 1}]},
                {**TEXT, "citations": None},
            ],
        },
    ),
    "tools": sent(
        PROMPT,
        tools=[
            {"name": "f", "description": "d", "input_schema": {"type": "object"}, "strict": True},
            {"type": "web_search_20250305", "name": "web_search"},
        ],
        tool_choice={"type": "tool", "name": "f", "disable_parallel_tool_use": True},
    ),
    "no tools": sent(PROMPT, tools=[]),
    "options": sent(
        PROMPT, temperature=0, top_p=0.5, top_k=3, stop_sequences=["a"], stream=True, thinking=None
    ),
}


@pytest.mark.row("M-008", "M-193", "T08", "T09", "T24", "T39", "T43", "T195", "T198", "T210")
@pytest.mark.parametrize("name", REQUESTS)
def test_request_round_trip_keeps_every_key(name: str) -> None:
    assert round_trip_body(REQUESTS[name]) == REQUESTS[name]


@needs_corpus
@pytest.mark.row("M-008", "M-193")
def test_recorded_requests_round_trip_with_every_key() -> None:
    wrong = [name for name, request in requests(CORPUS) if round_trip_body(request) != request]
    assert wrong == []


@needs_corpus
@pytest.mark.row("M-020")
def test_recorded_requests_decode_to_valid_messages() -> None:
    for name, request in requests(CORPUS):
        messages = decode_request(body_of(request), CONTEXT).messages
        problems = [str(problem) for message in messages for problem in validate(message)]
        assert (problems == []) is not _has_empty_turn(request), (name, problems)


def _has_empty_turn(request: Any) -> bool:
    return any(message["content"] in ([], "") for message in request["messages"])


@pytest.mark.row("M-020", "M-049", "M-050", "M-169", "M-172")
def test_turn_decodes_to_canonical_messages() -> None:
    pictures = [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}},
        {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}},
    ]
    request = sent(
        {"role": "user", "content": pictures},
        {"role": "assistant", "content": [TEXT, CALL]},
        {"role": "user", "content": [{**RESULT, "content": "ok"}, TEXT]},
    )
    first, second, third, fourth = decode_request(body_of(request), CONTEXT).messages
    assert [m.role for m in (first, second, third, fourth)] == ["user", "assistant", "tool", "user"]
    assert [(b.source.kind, b.source.data) for b in first.content if isinstance(b, ImageBlock)] == [
        ("base64", "AA=="),
        ("url", "https://example.org/a.png"),
    ]
    call, result = second.content[1], third.content[0]
    assert isinstance(call, ToolUseBlock)
    assert isinstance(result, ToolResultBlock)
    assert call.id == result.tool_use_id == third.metadata.parent_tool_use_id
    assert call.id.startswith("tu_")
    again = decode_request(body_of(request), CONTEXT).messages[1].content[1]
    assert again == call


@pytest.mark.row("T09")
def test_repeated_wire_id_names_another_call() -> None:
    messages = decode_request(body_of(REQUESTS["the same id twice"]), CONTEXT).messages
    calls = [b.id for m in messages for b in m.content if isinstance(b, ToolUseBlock)]
    results = [b.tool_use_id for m in messages for b in m.content if isinstance(b, ToolResultBlock)]
    assert calls == results
    assert len(set(calls)) == 2


@pytest.mark.row("M-021", "M-025", "M-170", "M-171", "T15")
def test_messages_of_other_protocols_are_encoded() -> None:
    messages = [
        system("be brief"),
        user("go"),
        assistant(text("yes"), call("f", a=1), call("g")),
        tool("1"),
    ]
    body = json.loads(
        encode_request(CODEC, messages, (), AdapterOptions(model="claude-sonnet-4-6"))
    )
    assert body["system"] == [{"type": "text", "text": "be brief"}]
    assert body["max_tokens"] == 4096
    assert [turn["role"] for turn in body["messages"]] == ["user", "assistant", "user"]
    ids = [block["id"] for block in body["messages"][1]["content"] if block["type"] == "tool_use"]
    assert all(wire_id.startswith("toolu_") and len(wire_id) == 32 for wire_id in ids)


@pytest.mark.row("T113", "T114")
def test_changed_option_overrides_original_form() -> None:
    read = decode_request(body_of(REQUESTS["tools"]), CONTEXT)
    assert read.options.tool_choice == ToolChoice("tool", "f")
    assert read.options.parallel_tool_calls is False
    options = msgspec.structs.replace(
        read.options, tool_choice=ToolChoice("required"), parallel_tool_calls=None, temperature=0.0
    )
    body = json.loads(encode_request(CODEC, read.messages, read.tools, options))
    assert body["tool_choice"] == {"type": "any"}
    assert body["temperature"] == 0
    assert body["tools"] == REQUESTS["tools"]["tools"]
    without = json.loads(encode_request(CODEC, read.messages, (), options))
    assert without["tools"] == REQUESTS["tools"]["tools"][1:]


@needs_corpus
@pytest.mark.row("M-008", "M-192", "M-193", "T38", "T45", "T158", "T160", "T164")
def test_recorded_responses_round_trip_with_every_key() -> None:
    for exchange in responses(CORPUS):
        context = RequestContext(session_id="s", status=exchange["status"])
        if exchange["status"] >= 400:
            with pytest.raises(InvalidRequestError):
                decode_response(body_of(exchange["response"]), context)
            continue
        message = decode_response(body_of(exchange["response"]), context)
        assert validate(message) == [], exchange["id"]
        stored = decode(encode(message))
        assert json.loads(encode_response(stored, context)) == exchange["response"], exchange["id"]


USAGE = {
    "input_tokens": 5,
    "output_tokens": 7,
    "cache_read_input_tokens": 11,
    "cache_creation_input_tokens": 13,
    "cache_creation": {"ephemeral_5m_input_tokens": 3, "ephemeral_1h_input_tokens": 10},
    "server_tool_use": {"web_search_requests": 2, "web_fetch_requests": 0},
    "service_tier": "batch",
}


def answered(*content: Any, **fields: Any) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-6",
        "content": list(content),
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": USAGE,
        **fields,
    }


@pytest.mark.row("M-106", "T142", "T149", "T152", "T154")
def test_usage_is_read_into_disjoint_buckets() -> None:
    usage = decode_response(answered(TEXT), CONTEXT).metadata.usage
    assert usage is not None
    assert usage.prompt_tokens == 5 + 11 + 13
    assert (usage.cached_input_tokens, usage.cache_creation_1h_input_tokens) == (11, 10)
    assert usage.server_tool_requests == {"web_search": 2}
    assert usage.service_tier == "batch"


@pytest.mark.row("T153")
@pytest.mark.parametrize("usage", [None, {}, {"output_tokens": 3}])
def test_unknown_usage_is_not_zero(usage: Any) -> None:
    assert decode_response(answered(TEXT, usage=usage), CONTEXT).metadata.usage is None


STOPS = {
    "end_turn": StopReason.END_TURN,
    "max_tokens": StopReason.MAX_TOKENS,
    "model_context_window_exceeded": StopReason.MAX_TOKENS,
    "stop_sequence": StopReason.STOP_SEQUENCE,
    "tool_use": StopReason.TOOL_USE,
    "pause_turn": StopReason.PAUSE,
    "refusal": StopReason.REFUSAL,
    "something_new": StopReason.UNKNOWN,
}


@pytest.mark.row("M-192", "T158", "T159", "T160", "T164")
@pytest.mark.parametrize("word", STOPS)
def test_stop_reason_is_mapped_and_original_word_preserved(word: str) -> None:
    message = decode(encode(decode_response(answered(TEXT, stop_reason=word), CONTEXT)))
    assert message.metadata.stop_reason is STOPS[word]
    assert json.loads(encode_response(message, CONTEXT))["stop_reason"] == word


@pytest.mark.row("T42", "T141", "T195")
def test_response_parts_keep_order_and_signatures() -> None:
    server: Wire = {
        "type": "server_tool_use",
        "id": "srvtoolu_1",
        "name": "web_search",
        "input": {},
    }
    message = decode_response(
        answered({"type": "thinking", "thinking": "hm", "signature": "s"}, server, TEXT, CALL),
        CONTEXT,
    )
    thought, opaque, text_block, called = message.content
    assert thought == ThinkingBlock("hm", "s", issuer="anthropic")
    assert isinstance(opaque, OpaqueBlock)
    assert (opaque.kind, opaque.data) == ("server_tool_use", server)
    assert text_block == TextBlock("hi")
    assert isinstance(called, ToolUseBlock)


def test_response_of_another_provider_is_encoded() -> None:
    message = assistant(text("hi"), call("f", a=1))
    body = json.loads(encode_response(message, RequestContext(model="anthropic:claude-x")))
    assert body["model"] == "claude-x"
    assert [block["type"] for block in body["content"]] == ["text", "tool_use"]


def events_of(chunks: list[bytes]) -> tuple[list[StreamEvent], Message]:
    decoder = FastAnthropicStreamDecoder(CONTEXT)
    events = [event for chunk in chunks for event in decoder.feed(chunk)] + decoder.finish()
    return events, decoder.message


def bare(events: list[StreamEvent]) -> list[Any]:
    """Return events without the ids that every decoder makes anew."""
    return [
        (event.type, {k: v for k, v in msgspec.structs.asdict(event).items() if "message" not in k})
        for event in events
    ]


@needs_corpus
@pytest.mark.row("K-114", "M-201", "M-229", "M-233", "M-234", "T45", "T121", "T122", "T141")
def test_recorded_streams_give_equal_events_for_any_chunking() -> None:
    chance = random.Random(1)  # noqa: S311 - the same cuts in every run
    for name, stream in streams(CORPUS):
        events, message = events_of([stream])
        cuts = sorted(chance.sample(range(len(stream)), min(40, len(stream))))
        pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
        for other in (pieces, [bytes([byte]) for byte in stream]):
            assert bare(events_of(other)[0]) == bare(events), name
        assert isinstance(events[0], MessageStart)
        assert [isinstance(event, MessageComplete) for event in events].count(True) == 1
        assert isinstance(events[-1], MessageComplete)
        assert validate(message) == []
        summed = Accumulator()
        for event in events:
            summed.add(event)
        assert [block.type for block in summed.content] == [block.type for block in message.content]


@needs_corpus
@pytest.mark.row("M-201")
def test_recorded_streams_round_trip_through_stream_encoder() -> None:
    for name, stream in streams(CORPUS):
        events, message = events_of([stream])
        encoder = AnthropicStreamEncoder(CONTEXT)
        written = b"".join(encoder.encode(event) for event in events) + encoder.finish()
        again = events_of([written])[1]
        assert len(again.content) == len(message.content), name
        assert again.metadata.stop_reason == message.metadata.stop_reason


def frames(*events: dict[str, Any]) -> bytes:
    return b"".join(
        b"event: %b\ndata: %b\n\n" % (event["type"].encode(), body_of(event)) for event in events
    )


STARTED = {"type": "message_start", "message": answered(stop_reason=None)}
ENDED = (
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}},
    {"type": "message_stop"},
)


def block_events(
    index: int, block: dict[str, Any], *deltas: dict[str, Any]
) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": block},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


@pytest.mark.row("M-230", "M-231", "M-232", "M-235", "T42", "T123", "T130", "T155")
def test_stream_decodes_to_message_of_plain_response() -> None:
    stream = frames(
        STARTED,
        {"type": "ping"},
        *block_events(
            0,
            {"type": "thinking", "thinking": "", "signature": ""},
            {"type": "thinking_delta", "thinking": "h"},
            {"type": "thinking_delta", "thinking": "m"},
            {"type": "signature_delta", "signature": "s"},
        ),
        *block_events(1, {**TEXT, "text": ""}, {"type": "text_delta", "text": "hi"}),
        *block_events(
            2,
            {**CALL, "input": {}},
            {"type": "input_json_delta", "partial_json": '{"a"'},
            {"type": "input_json_delta", "partial_json": ": 1}"},
        ),
        *ENDED,
    )
    plain = answered(
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        TEXT,
        CALL,
        stop_reason="tool_use",
        usage={**USAGE, "output_tokens": 9},
    )
    events, message = events_of([stream])
    whole = decode_response(plain, CONTEXT)
    assert message.content == whole.content
    assert message.metadata == whole.metadata
    call = whole.content[2]
    assert isinstance(call, ToolUseBlock)
    kinds = (TextDelta, ThinkingDelta, ToolUseStart, ToolUseInputDelta, ToolUseEnd)
    ids = [event.message_id for event in events]
    shown = [event for event in events if isinstance(event, kinds)]
    assert shown == [
        ThinkingDelta(ids[0], 0, "h"),
        ThinkingDelta(ids[0], 0, "m"),
        ThinkingDelta(ids[0], 0, "", "s"),
        TextDelta(ids[0], 1, "hi"),
        ToolUseStart(ids[0], 2, call.id, "f", "toolu_1"),
        ToolUseInputDelta(ids[0], 2, call.id, '{"a"'),
        ToolUseInputDelta(ids[0], 2, call.id, ": 1}"),
        ToolUseEnd(ids[0], 2, call.id, {"a": 1}),
    ]


@pytest.mark.row("M-236", "T132", "T188")
def test_error_event_ends_stream_and_keeps_partial_message() -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    start = block_events(0, TEXT, {"type": "text_delta", "text": " there"})
    events, message = events_of([frames(STARTED, *start, error, *ENDED)])
    last = events[-1]
    assert isinstance(last, StreamError)
    assert (last.error_class, last.text, last.is_retryable) == (
        "RateLimitError",
        "Overloaded",
        True,
    )
    assert message.metadata.status is MessageStatus.ERROR
    assert message.content == (TextBlock("hi there"),)


@pytest.mark.row("T133")
def test_second_message_start_is_ignored_or_an_error() -> None:
    hi = block_events(0, {**TEXT, "text": ""}, {"type": "text_delta", "text": "hi"})
    decoder = FastAnthropicStreamDecoder(CONTEXT)
    events = decoder.feed(frames(STARTED, *hi, STARTED))
    assert sum(isinstance(event, MessageStart) for event in events) == 1
    other: dict[str, Any] = {"type": "message_start", "message": {"id": "msg_other"}}
    (last,) = decoder.feed(frames(other))
    assert isinstance(last, StreamError)
    assert decoder.message.content == (TextBlock("hi"),)


@pytest.mark.row("M-078", "T131")
def test_truncated_stream_is_an_error_with_partial_message() -> None:
    events, message = events_of([frames(STARTED, *block_events(0, TEXT)[:1])])
    assert isinstance(events[-1], StreamError)
    assert events[-1].error_class == "NetworkError"
    assert message.content == (TextBlock("hi"),)


@pytest.mark.row("M-042", "T32", "T123")
def test_malformed_streamed_arguments_are_stored_as_invalid() -> None:
    broken = block_events(
        0, {**CALL, "input": {}}, {"type": "input_json_delta", "partial_json": '{"path":"/a'}
    )
    events, message = events_of([frames(STARTED, *broken, *ENDED)])
    (called,) = message.content
    assert isinstance(called, ToolUseBlock)
    assert called.input == {}
    assert called.invalid is not None
    assert called.invalid.raw == '{"path":"/a'
    (end,) = (event for event in events if isinstance(event, ToolUseEnd))
    assert end.invalid == called.invalid


@pytest.mark.row("T09")
def test_wire_id_reused_in_another_response_is_another_call() -> None:
    first = decode_response(answered(CALL, id="msg_1"), CONTEXT)
    second = decode_response(answered(CALL, id="msg_2"), CONTEXT)
    calls = [b.id for m in (first, second) for b in m.content if isinstance(b, ToolUseBlock)]
    assert len(set(calls)) == 2


@pytest.mark.row("M-065", "T211")
def test_trimmed_or_edited_history_is_encoded() -> None:
    turns = [
        PROMPT,
        CALLED,
        {"role": "user", "content": [{**RESULT, "content": "ok"}, TEXT]},
        {"role": "assistant", "content": "plain"},
        PROMPT,
    ]
    messages = decode_request(body_of(sent(*turns)), CONTEXT).messages
    trimmed = [messages[0], messages[4], messages[3], messages[5]]
    body = json.loads(encode_request(CODEC, trimmed, (), AdapterOptions()))
    assert [turn["role"] for turn in body["messages"]] == ["user", "assistant", "user", "user"]
    shown = msgspec.structs.replace(messages[0], content=(image(),))
    body = json.loads(encode_request(CODEC, [shown], (), AdapterOptions()))
    assert body["messages"][0]["content"][0]["type"] == "image"


@pytest.mark.row("T181")
def test_required_max_tokens_is_always_sent() -> None:
    options = AdapterOptions(native={"openai_chat": {"model": "gpt-5"}})
    assert json.loads(encode_request(CODEC, [user("hi")], (), options))["max_tokens"] == 4096


@pytest.mark.parametrize(("status", "expected"), [(502, ServerError), (429, RateLimitError)])
def test_proxy_error_page_gives_error_class_of_its_status(
    status: int, expected: type[ProviderError]
) -> None:
    for body in (b"<html>bad gateway</html>", b"", b'"oops"'):
        with pytest.raises(expected):
            decode_response(body, RequestContext(status=status))


@pytest.mark.row("T132", "T194")
def test_error_body_in_place_of_stream_gives_that_error() -> None:
    body = {"type": "error", "error": {"type": "authentication_error", "message": "invalid key"}}
    decoder = FastAnthropicStreamDecoder(RequestContext(status=401))
    events = decoder.feed(body_of(body)) + decoder.finish()
    (last,) = events
    assert isinstance(last, StreamError)
    assert (last.error_class, last.text, last.status) == ("AuthenticationError", "invalid key", 401)
    page = FastAnthropicStreamDecoder(RequestContext(status=502))
    (last,) = page.feed(b"<html>bad gateway</html>") + page.finish()
    assert isinstance(last, StreamError)
    assert (last.error_class, last.is_retryable) == ("ServerError", True)


ERRORS: list[tuple[int, str, str, type[ProviderError]]] = [
    (429, "rate_limit_error", "slow down", RateLimitError),
    (529, "overloaded_error", "Overloaded", RateLimitError),
    (401, "authentication_error", "invalid x-api-key", AuthenticationError),
    (403, "permission_error", "no", AuthenticationError),
    (400, "invalid_request_error", "messages: bad", InvalidRequestError),
    (
        400,
        "invalid_request_error",
        "prompt is too long: 9 tokens > 8",
        ContextOverflowError,
    ),
    (413, "request_too_large", "too large", ContextOverflowError),
    (500, "api_error", "Internal server error", ServerError),
    (404, "not_found_error", "model: x", InvalidRequestError),
]


@pytest.mark.row("T185", "T188", "T194")
@pytest.mark.parametrize(("status", "kind", "text", "expected"), ERRORS)
def test_error_body_decodes_to_typed_error_and_round_trips(
    status: int, kind: str, text: str, expected: type[ProviderError]
) -> None:
    wire = {"type": "error", "error": {"type": kind, "message": text}, "request_id": "req_1"}
    error = decode_error(wire, status)
    assert type(error) is expected
    assert (error.status, error.kind, error.text, error.request_id) == (status, kind, text, "req_1")
    assert encode_error(error) == (
        status,
        body_of(wire).replace(b": ", b":").replace(b", ", b","),
    ) or (json.loads(encode_error(error)[1]) == wire)
    with pytest.raises(expected):
        decode_response(wire, RequestContext(status=status))


@pytest.mark.parametrize("body", [b"<html>bad gateway</html>", b"", b"[]", b"null"])
def test_body_that_is_not_a_json_object_is_a_typed_error(body: bytes) -> None:
    with pytest.raises(MetisError):
        decode_response(body, RequestContext(status=502))
    with pytest.raises(MetisError):
        decode_request(body, CONTEXT)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=12,
)
KEYS = st.sampled_from(
    ["type", "text", "content", "source", "id", "name", "input", "role", "index"]
)
WORDS = st.sampled_from(["text", "tool_use", "tool_result", "image", "user", "assistant", "base64"])
SHAPED = st.recursive(
    JSON | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner | WORDS, max_size=5),
    max_leaves=15,
)


@pytest.mark.row("T210")
@given(SHAPED)
def test_any_json_gives_a_value_or_a_typed_error(value: Any) -> None:
    for body in (value, {"messages": value}, {"messages": [{"role": "user", "content": [value]}]}):
        with contextlib.suppress(MetisError):
            decode_request(body_of(body), CONTEXT)
    for body in (value, {"content": value}, {"content": [value], "usage": value}):
        with contextlib.suppress(MetisError):
            decode_response(body_of(body), CONTEXT)


@given(st.lists(SHAPED, max_size=4), st.binary(max_size=20))
def test_any_stream_gives_exactly_one_end_event(values: list[Any], rest: bytes) -> None:
    kinds = ["message_start", "content_block_start", "content_block_delta", "message_delta"]
    stream = b"".join(
        b"data: %b\n\n" % body_of({"type": kind, "message": value, "delta": value, "index": 0})
        for value, kind in zip(values, kinds, strict=False)
    )
    events, _ = events_of([stream, rest])
    ends = [event for event in events if isinstance(event, MessageComplete | StreamError)]
    assert events[-1:] == ends


def test_document_titles_round_trip() -> None:
    (message,) = decode_request(body_of(REQUESTS["document with citations"]), CONTEXT).messages
    (document,) = message.content
    assert isinstance(document, DocumentBlock)
    assert (document.name, document.source.data) == ("notes", "abc")
    assert message.role is Role.USER


def test_system_messages_between_turns_keep_their_place() -> None:
    """Also in first place, and with settings instead of text."""
    adapter = adapters.get("anthropic")
    body = {
        "model": "claude-sonnet-4-5",
        "max_tokens": 10,
        "system": "Be brief.",
        "messages": [
            {"role": "system", "content": "Today is Monday.", "clear_at": "next_user_message"},
            {"role": "system", "output_config": {"effort": "low"}},
            {"role": "user", "content": "hi"},
        ],
    }
    request = adapter.from_wire_request(body)
    wire = adapter.to_wire(request.messages, request.tools, request.options)
    assert json.loads(wire.body) == body
    assert wire.losses == []


def test_tool_choice_none_omits_parallel_tool_use() -> None:
    options = AdapterOptions(
        model="claude-sonnet-4-5", tool_choice=ToolChoice("none"), parallel_tool_calls=False
    )
    definition = ToolDefinition(
        name="f", description="d", input_schema={"type": "object"}, side_effects=SideEffects.READ
    )
    wire = adapters.get("anthropic").to_wire([user("hi")], [definition], options)
    assert json.loads(wire.body)["tool_choice"] == {"type": "none"}


@pytest.mark.row("M-129")
def test_tool_result_in_assistant_turn_is_not_a_result() -> None:
    used: Wire = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}
    misplaced = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "x"}
    turns = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": [used, misplaced]},
        {"role": "user", "content": "on"},
    ]
    adapter = adapters.get("anthropic")
    request = {"model": "claude-sonnet-4-6", "max_tokens": 9, "messages": turns}
    messages = adapter.from_wire_request(request, CONTEXT).messages
    assert [block.type for block in messages[1].content] == ["tool_use", "opaque"]
    assert [validate(message) for message in messages] == [[], [], []]
    assert json.loads(adapter.to_wire(messages).body)["messages"][1] == turns[1]
    elsewhere = adapters.get("openai").to_wire(messages)
    assert [loss.path for loss in elsewhere.losses if loss.block_type == "opaque"] == [
        "$.content[1]"
    ]
