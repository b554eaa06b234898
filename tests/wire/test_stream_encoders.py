"""Streams encoded for clients: foreign, unfinished, cancelled and failed responses."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from build import assistant, call, text, tool_id
from metis import adapters
from metis.canonical import InvalidInput, StopReason
from metis.canonical.errors import EncodeError
from metis.streaming import (
    MessageComplete,
    MessageStart,
    StreamError,
    StreamEvent,
    TextDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
)
from metis.wire.call import RequestContext

NAMES = ["anthropic", "bedrock-converse", "openai"]
CONTEXT = RequestContext(session_id="sess_enc", model="m")
START = MessageStart("01", "m", "r_1")
HI = TextDelta("01", 0, "hi")


def write(name: str, *events: StreamEvent) -> bytes:
    encoder = adapters.get(name).stream_encoder(CONTEXT)
    return b"".join(map(encoder.encode, events)) + encoder.finish()


def read(name: str, data: bytes) -> list[StreamEvent]:
    decoder = adapters.get(name).stream_decoder(CONTEXT)
    return decoder.feed(data) + decoder.finish()


def payloads(data: bytes) -> list[dict[str, Any]]:
    lines = [line[6:] for line in data.splitlines() if line.startswith(b"data: ")]
    return [json.loads(line) for line in lines if line != b"[DONE]"]


def end_of(name: str, body: dict[str, Any]) -> Any:
    """Return the stop reason in an encoded stream."""
    if name == "openai":
        return body["choices"][0]["finish_reason"]
    return body["stop_reason" if name == "anthropic" else "stopReason"]


def ended(reason: StopReason) -> MessageComplete:
    message = assistant(text("hi"))
    metadata = replace(message.metadata, stop_reason=reason)
    return MessageComplete("01", reason, replace(message, metadata=metadata))


@pytest.mark.row("T131", "T132")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("events", [(), (START,), (START, HI)])
def test_truncated_stream_ends_in_error(name: str, events: tuple[StreamEvent, ...]) -> None:
    data = write(name, *events)
    last = read(name, data)[-1]
    assert isinstance(last, StreamError)
    assert last.text == "the stream ended before the response was complete"
    assert b"[DONE]" not in data
    assert b"message_stop" not in data


@pytest.mark.row("T162", "T164")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("reason", [StopReason.ERROR, StopReason.CANCELLED])
def test_failed_or_cancelled_response_has_no_normal_stop_reason(
    name: str, reason: StopReason
) -> None:
    last = read(name, write(name, START, HI, ended(reason)))[-1]
    assert isinstance(last, StreamError)
    body = json.loads(adapters.get(name).to_wire_response(ended(reason).message))
    encoded_reason = end_of(name, body)
    assert encoded_reason in (None, "error")


@pytest.mark.row("T164")
@pytest.mark.parametrize("name", NAMES)
def test_response_cancelled_later_has_no_normal_stop_reason(name: str) -> None:
    adapter = adapters.get(name)
    decoder = adapter.stream_decoder(CONTEXT)
    decoder.feed(write(name, START, HI, ended(StopReason.END_TURN)))
    message = decoder.message
    metadata = replace(message.metadata, stop_reason=StopReason.CANCELLED)
    body = json.loads(adapter.to_wire_response(replace(message, metadata=metadata)))
    encoded_reason = end_of(name, body)
    assert encoded_reason in (None, "error")


@pytest.mark.row("T131", "T164")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("reason", [StopReason.UNKNOWN, StopReason("brand_new")])
def test_unknown_stop_reason_is_not_encoded_as_stop(name: str, reason: StopReason) -> None:
    last = read(name, write(name, START, HI, ended(reason)))[-1]
    assert isinstance(last, MessageComplete)
    assert last.stop_reason is StopReason.UNKNOWN
    body = json.loads(adapters.get(name).to_wire_response(ended(reason).message))
    encoded_reason = end_of(name, body)
    assert encoded_reason is None


@pytest.mark.row("T158")
def test_pause_is_not_encoded_as_end_in_other_protocols() -> None:
    *_, last = payloads(write("openai", START, HI, ended(StopReason.PAUSE)))
    assert any(
        choice["finish_reason"] == "length"
        for chunk in payloads(write("openai", START, HI, ended(StopReason.PAUSE)))
        for choice in chunk["choices"]
    )
    assert last["choices"] == []


@pytest.mark.row("T132", "T188")
def test_error_keeps_its_class() -> None:
    failed = StreamError("01", "RateLimitError", "slow down")
    (anthropic,) = payloads(write("anthropic", failed))
    (openai,) = payloads(write("openai", failed))
    assert anthropic["error"] == {"type": "rate_limit_error", "message": "slow down"}
    assert openai["error"]["type"] == "rate_limit_error"


@pytest.mark.row("M-230")
@pytest.mark.parametrize("name", NAMES)
def test_a_stream_without_a_start_gets_one(name: str) -> None:
    events = read(name, write(name, HI, ended(StopReason.END_TURN)))
    assert [event.text for event in events if isinstance(event, TextDelta)] == ["hi"]
    assert isinstance(events[-1], MessageComplete)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "event", [ToolUseInputDelta("01", 0, "tu_1", "{"), ToolUseEnd("01", 0, "tu_1", {})]
)
def test_delta_of_unopened_call_is_refused(name: str, event: StreamEvent) -> None:
    encoder = adapters.get(name).stream_encoder(CONTEXT)
    encoder.encode(START)
    with pytest.raises(EncodeError, match="tu_1 is not open"):
        encoder.encode(event)


@pytest.mark.parametrize("name", NAMES)
def test_event_after_end_is_refused(name: str) -> None:
    encoder = adapters.get(name).stream_encoder(CONTEXT)
    encoder.encode(START)
    encoder.encode(ended(StopReason.END_TURN))
    assert encoder.encode(HI) == encoder.encode(ended(StopReason.END_TURN)) == b""


@pytest.mark.row("T32")
@pytest.mark.parametrize("name", NAMES)
def test_invalid_arguments_are_encoded_unchanged(name: str) -> None:
    tool_call = call("f", tool_id())
    invalid = InvalidInput('{"a":', "unexpected end")
    events = read(
        name,
        write(
            name,
            START,
            ToolUseStart("01", 0, tool_call.id, "f"),
            ToolUseEnd("01", 0, tool_call.id, {}, invalid),
            ended(StopReason.TOOL_USE),
        ),
    )
    (end,) = (event for event in events if isinstance(event, ToolUseEnd))
    assert end.invalid is not None
    assert end.invalid.raw == '{"a":'


@pytest.mark.row("M-050", "M-169")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("other", NAMES)
def test_call_keeps_wire_id_in_its_own_protocol(name: str, other: str) -> None:
    source = write(
        name,
        replace(START, protocol=adapters.get(name).profile.protocol),
        ToolUseStart("01", 0, tool_id(), "f", "their_id"),
        ToolUseEnd("01", 0, tool_id(), {"a": 1}),
        ended(StopReason.TOOL_USE),
    )
    assert b"their_id" in source
    events = read(name, source)
    assert (b"their_id" in write(other, *events)) == (name == other)
