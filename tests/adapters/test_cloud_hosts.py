"""Claude on Bedrock and Vertex: the Anthropic protocol with other paths and framing."""

import base64
import json
import logging
from typing import Any

import pytest
from anthropic._models import FinalRequestOptions
from anthropic.lib.bedrock._client import (
    _prepare_options as for_bedrock,  # pyright: ignore[reportPrivateUsage] - the judge
)
from anthropic.lib.vertex._client import (
    _prepare_options as for_vertex,  # pyright: ignore[reportPrivateUsage] - the judge
)
from msgspec.structs import replace

from build import assistant, call, provenance, thinking, tool, tool_id, user
from corpus import exchanges, needs_whole_corpus
from metis import adapters
from metis.adapters.response_decoder import OUTPUT_TOOL
from metis.canonical import CacheHint, Message, StopReason, TextBlock, ThinkingBlock, ToolUseBlock
from metis.canonical.errors import InvalidValueError, WrongProviderError
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
from metis.streaming.aws_event_stream import EventStreamParser, encode_event_frame
from metis.wire.call import AdapterOptions, RequestContext
from metis.wire.output_format import OutputFormat
from metis.wire.reasoning import Reasoning

CONTEXT = RequestContext(session_id="sess_clouds")
BEDROCK, VERTEX = adapters.get("bedrock"), adapters.get("vertex-claude")
SONNET = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="metis.adapters")


@pytest.mark.parametrize("is_stream", [False, True])
def test_bedrock_request_equals_that_of_the_anthropic_sdk(*, is_stream: bool) -> None:
    options = AdapterOptions(model=SONNET, stream=is_stream, max_output_tokens=9)
    wire = BEDROCK.to_wire([user("hi")], (), options)
    home = adapters.get("anthropic").to_wire(
        [user("hi")], (), replace(options, model="claude-sonnet-4-5")
    )
    # The SDK requests a newer API version, which older models on Bedrock do not have.
    version = {"anthropic_version": "bedrock-2023-05-31"}
    plain = {**json.loads(home.body), "model": SONNET, **version}
    judged = for_bedrock(FinalRequestOptions(method="post", url="/v1/messages", json_data=plain))
    assert (wire.path, json.loads(wire.body)) == (judged.url, judged.json_data)
    assert wire.losses == []
    assert "anthropic-version" not in wire.headers


@pytest.mark.parametrize("is_stream", [False, True])
def test_vertex_request_equals_that_of_the_anthropic_sdk(*, is_stream: bool) -> None:
    model = "claude-sonnet-4-5@20250929"
    place = "projects/p/locations/europe-west1"
    adapter = adapters.get("vertex-claude", place=place)
    options = AdapterOptions(model=model, stream=is_stream, max_output_tokens=9)
    wire = adapter.to_wire([user("hi")], (), options)
    home = adapters.get("anthropic").to_wire(
        [user("hi")], (), replace(options, model="claude-sonnet-4-5")
    )
    version = {"anthropic_version": "vertex-2023-10-16"}
    plain = {**json.loads(home.body), "model": model, **version}
    judged = for_vertex(
        FinalRequestOptions(method="post", url="/v1/messages", json_data=plain),
        project_id="p",
        region="europe-west1",
    )
    assert wire.path == f"/v1{judged.url}"
    assert json.loads(wire.body) == judged.json_data
    assert adapter.profile.base_url == "https://europe-west1-aiplatform.googleapis.com"


def test_model_and_streaming_are_read_from_path() -> None:
    for adapter, model in ((BEDROCK, SONNET), (VERTEX, "claude-sonnet-4-5@20250929")):
        for is_stream in (False, True):
            options = AdapterOptions(model=model, stream=is_stream)
            wire = adapter.to_wire([user("hi")], (), options)
            context = replace(CONTEXT, path=wire.path)
            request = adapter.from_wire_request(wire.body, context)
            assert request.options.model == model
            again = adapter.to_wire(request.messages, request.tools, request.options)
            assert (again.path, again.body, again.losses) == (wire.path, wire.body, [])
            home = adapters.get("anthropic").to_wire(
                request.messages, (), replace(request.options, model=None)
            )
            assert [loss.path for loss in home.losses] == []
            assert "anthropic_version" not in json.loads(home.body)


def test_model_names_are_those_of_the_host() -> None:
    for name in (SONNET, f"bedrock:{SONNET}", "arn:aws:bedrock:us-east-1:1:inference-profile/x.y"):
        assert BEDROCK.wire_model(name) == name.removeprefix("bedrock:")
    arn = BEDROCK.to_wire([user("hi")], (), AdapterOptions(model="arn:aws:x/y")).path
    assert arn == "/model/arn:aws:x%2Fy/invoke"
    with pytest.raises(WrongProviderError):
        BEDROCK.wire_model("anthropic:claude-sonnet-4-5")
    with pytest.raises(InvalidValueError):
        BEDROCK.to_wire([user("hi")], (), AdapterOptions(model=".."))


def test_model_capabilities_are_equal_at_every_host() -> None:
    home = adapters.get("anthropic").capabilities("claude-sonnet-4-5")
    assert BEDROCK.capabilities(SONNET) == home
    assert BEDROCK.capabilities("anthropic.claude-sonnet-4-5-20250929-v1:0") == home
    assert VERTEX.capabilities("claude-sonnet-4-5@20250929") == home
    thought = AdapterOptions(
        model="eu.anthropic.claude-opus-4-8", reasoning=Reasoning("high"), temperature=0.5
    )
    wire = BEDROCK.to_wire([user("hi")], (), thought)
    assert json.loads(wire.body)["thinking"] == {"type": "adaptive"}
    assert [loss.path for loss in wire.losses] == ["$.temperature"]


@pytest.mark.row("T117")
@pytest.mark.parametrize(
    ("name", "model", "is_native"),
    [
        ("anthropic", "claude-sonnet-4-5", True),
        ("anthropic", "claude-sonnet-4-6", True),
        ("anthropic", "claude-haiku-4-5", True),
        ("anthropic", "claude-opus-4-1", True),
        ("anthropic", "claude-sonnet-4-20250514", False),
        ("anthropic", "claude-3-7-sonnet-20250219", False),
        ("bedrock", "us.anthropic.claude-sonnet-4-5-20250929-v1:0", True),
        ("bedrock", "global.anthropic.claude-opus-4-6-v1", True),
        ("bedrock", "us.anthropic.claude-sonnet-4-6", False),
        ("bedrock", "eu.anthropic.claude-haiku-4-5-20251001-v1:0", False),
        ("bedrock", "anthropic.claude-3-5-sonnet-20241022-v2:0", False),
        ("vertex-claude", "claude-sonnet-4-5@20250929", True),
        ("vertex-claude", "claude-opus-4-7", True),
        ("vertex-claude", "claude-opus-4-1@20250805", False),
        ("vertex-claude", "claude-sonnet-4@20250514", False),
        ("vertex-claude", "claude-3-5-haiku@20241022", False),
    ],
)
def test_output_schema_is_sent_as_host_and_model_support_it(
    name: str, model: str, *, is_native: bool
) -> None:
    options = AdapterOptions(model=model, output=OutputFormat(SCHEMA), reasoning=Reasoning("none"))
    wire = adapters.get(name).to_wire([user("hi")], (), options)
    body = json.loads(wire.body)
    assert ("output_config" in body) is is_native
    assert "output_format" not in body
    if is_native:
        form = {"type": "json_schema", "schema": SCHEMA}
        assert body["output_config"]["format"] == form
    else:
        assert [each["name"] for each in body["tools"]] == [OUTPUT_TOOL]
        assert "$.output" in [loss.path for loss in wire.losses]


@pytest.mark.row("T180")
@pytest.mark.parametrize("adapter", [BEDROCK, VERTEX], ids=lambda adapter: adapter.name)
def test_cache_ttl_is_sent(adapter: adapters.Adapter) -> None:
    part = {
        "type": "text",
        "text": "x" * 9000,
        "cache_control": {"type": "ephemeral", "ttl": "1h"},
    }
    body = {
        "model": "claude-sonnet-4-5",
        "max_tokens": 9,
        "system": [part],
        "messages": [
            {
                "role": "user",
                "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}],
            }
        ],
    }
    request = adapters.get("anthropic").from_wire_request(body, CONTEXT)
    options = replace(request.options, model=adapter.profile.default_model)
    wire = adapter.to_wire(request.messages, request.tools, options)
    sent = json.loads(wire.body)
    assert sent["system"] == body["system"]
    assert sent["messages"] == body["messages"]
    assert wire.losses == []
    hinted = replace(
        user("y" * 9000), metadata=replace(user("").metadata, hints=(CacheHint(after=0, ttl="1h"),))
    )
    marked = json.loads(adapter.to_wire([hinted, assistant("ok"), user("on")]).body)
    assert marked["messages"][0]["content"][0]["cache_control"]["ttl"] == "1h"


def test_signed_thinking_is_sent_to_every_anthropic_host() -> None:
    sealed = assistant(
        thinking("hm", signature="c2VhbA==", issuer="anthropic"),
        call("f", tool_id(1)),
        metadata=provenance(provider="anthropic"),
    )
    talk = [user("hi"), sealed, tool("1", answers=tool_id(1))]
    for adapter in (BEDROCK, VERTEX):
        sent = json.loads(adapter.to_wire(talk).body)["messages"][1]["content"]
        assert sent[0] == {"type": "thinking", "thinking": "hm", "signature": "c2VhbA=="}


# Streams in frames

ANSWER = assistant("so ", "it is", call("f", tool_id(7), a=1))


def events_of(message: Message) -> list[StreamEvent]:
    events: list[StreamEvent] = [MessageStart(message.id, "m")]
    for index, block in enumerate(message.content):
        if isinstance(block, TextBlock):
            events.append(TextDelta(message.id, index, block.text))
        if isinstance(block, ToolUseBlock):
            events += [
                ToolUseStart(message.id, index, block.id, block.name),
                ToolUseInputDelta(message.id, index, block.id, json.dumps(block.input)),
                ToolUseEnd(message.id, index, block.id, block.input),
            ]
    return [*events, MessageComplete(message.id, StopReason.END_TURN, message)]


def framed(events: list[StreamEvent]) -> bytes:
    encoder = BEDROCK.stream_encoder(CONTEXT)
    return b"".join(map(encoder.encode, events)) + encoder.finish()


@pytest.mark.row("T135")
@pytest.mark.parametrize("size", [1, 13, 1_000_000])
def test_aws_frames_and_sse_give_equal_messages(size: int) -> None:
    events = events_of(ANSWER)
    home = adapters.get("anthropic")
    encoder, decoder = home.stream_encoder(CONTEXT), home.stream_decoder(CONTEXT)
    lines = b"".join(map(encoder.encode, events)) + encoder.finish()
    plain = decoder.feed(lines) + decoder.finish()
    data = framed(events)
    reader = BEDROCK.stream_decoder(CONTEXT)
    decoded = [e for n in range(0, len(data), size) for e in reader.feed(data[n : n + size])]
    decoded += reader.finish()
    assert [event.type for event in decoded] == [event.type for event in plain]
    assert reader.message.content_digest() == decoder.message.content_digest()
    end = decoded[-1]
    assert isinstance(end, MessageComplete)
    assert end.message.metadata.provider == "bedrock"


@pytest.mark.row("T135")
@pytest.mark.parametrize(
    ("name", "error_class"),
    [
        ("throttlingException", "RateLimitError"),
        ("validationException", "InvalidRequestError"),
        ("internalServerException", "ServerError"),
        ("accessDeniedException", "AuthenticationError"),
    ],
)
def test_exception_frame_ends_stream(name: str, error_class: str) -> None:
    start = framed(events_of(assistant("begun")))
    frames = EventStreamParser().feed(start)
    first_headers = {key: str(value) for key, value in frames[0].headers.items()}
    first = encode_event_frame(first_headers, frames[0].payload)
    headers = {":message-type": "exception", ":exception-type": name}
    reader = BEDROCK.stream_decoder(CONTEXT)
    events = reader.feed(first + encode_event_frame(headers, b'{"message":"no"}')) + reader.finish()
    end = events[-1]
    assert isinstance(end, StreamError)
    assert (end.error_class, end.text) == (error_class, "no")
    encoder = BEDROCK.stream_encoder(CONTEXT)
    again = BEDROCK.stream_decoder(CONTEXT)
    encoded = b"".join(map(encoder.encode, events)) + encoder.finish()
    ended = (again.feed(encoded) + again.finish())[-1]
    assert isinstance(ended, StreamError)
    assert (ended.error_class, ended.text) == (error_class, "no")


@pytest.mark.row("T135")
def test_broken_stream_is_an_error() -> None:
    data = framed(events_of(ANSWER))
    broken_frame = encode_event_frame(
        {":message-type": "event", ":event-type": "chunk"}, b'{"bytes":"%%"}'
    )
    for broken in (data[:-1], data[:200] + b"\0" + data[201:], broken_frame):
        reader = BEDROCK.stream_decoder(CONTEXT)
        end = (reader.feed(broken) + reader.finish())[-1]
        assert isinstance(end, StreamError)
        assert end.error_class == "NetworkError"


def test_botocore_parses_encoded_frames() -> None:
    eventstream = pytest.importorskip("botocore.eventstream")
    buffer = eventstream.EventStreamBuffer()
    buffer.add_data(framed(events_of(ANSWER)))
    events = [json.loads(base64.b64decode(json.loads(each.payload)["bytes"])) for each in buffer]
    assert events[0]["type"] == "message_start"
    assert events[-1]["type"] == "message_stop"


@needs_whole_corpus
@pytest.mark.row("T117", "T180")
def test_recorded_bedrock_requests_round_trip_with_every_key() -> None:
    rows = exchanges("anthropic_messages")
    recorded = [row for row in rows if row["provider"] == "bedrock_anthropic"]
    assert recorded
    for row in recorded:
        context = replace(CONTEXT, path=row["url_path"], status=row["status"])
        request = BEDROCK.from_wire_request(row["request"], context)
        wire = BEDROCK.to_wire(request.messages, request.tools, request.options)
        assert json.loads(wire.body) == row["request"]
        assert (wire.path, wire.losses) == (row["url_path"], [])
        answer = BEDROCK.from_wire_response(row["response"], context)
        assert json.loads(BEDROCK.to_wire_response(answer, context)) == row["response"]
        assert answer.metadata.usage is not None
        assert isinstance(answer.content[-1], TextBlock | ThinkingBlock)


def test_text_deltas_are_emitted_as_received() -> None:
    reader = BEDROCK.stream_decoder(CONTEXT)
    events = reader.feed(framed(events_of(assistant("so it is"))))
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "so it is"
