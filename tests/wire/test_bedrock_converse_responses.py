"""Bedrock Converse responses, from the service and of other providers; botocore parses them."""

import base64
import json
import logging
from typing import Any

import pytest
from msgspec.structs import replace

import converse_shape
from build import assistant, user
from corpus import body_of, exchanges, needs_corpus
from exchange import handwritten
from metis import adapters
from metis.canonical import (
    ArtifactBlock,
    Citation,
    MediaSource,
    Message,
    RedactedThinkingBlock,
    SideEffects,
    StopReason,
    TextBlock,
    ThinkingBlock,
    ToolDefinition,
    ToolUseBlock,
)
from metis.canonical.errors import ProviderError
from metis.streaming import MessageComplete, StreamError, StreamEvent
from metis.streaming.aws_event_stream import EventStreamParser
from metis.wire.bedrock_converse.response import encode_error
from metis.wire.call import AdapterOptions, RequestContext
from test_exchanges import OUT_OF_ORDER, PROTOCOLS

CONVERSE = adapters.get("bedrock-converse")
CONTEXT = RequestContext(session_id="sess_converse")
CLAUDE, NOVA = "us.anthropic.claude-sonnet-4-5-20250929-v1:0", "us.amazon.nova-pro-v1:0"
PNG = "iVBORw0KGgo="
WEATHER = ToolDefinition("weather", "Tells it.", {"type": "object"}, SideEffects.READ)
OTHERS = [name for name in PROTOCOLS if name != "bedrock-converse"]


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="metis.adapters")


# Encoded responses.


@pytest.mark.row("M-224")
@pytest.mark.parametrize("name", OTHERS)
def test_botocore_parses_every_encoded_response(name: str) -> None:
    adapter = adapters.get(name)
    for key, exchange in handwritten(PROTOCOLS[name]).items():
        if exchange.response is None or exchange.is_failure:
            continue
        message = adapter.from_wire_response(exchange.body(), CONTEXT)
        served = CONVERSE.to_wire_response(message, CONTEXT)
        body = json.loads(served)
        assert unread(body) == [], key
        parsed = converse_shape.read_answer(served)
        assert bytes_as_text(parsed["output"]) == body["output"], key
        assert parsed["usage"] == body["usage"], key


def unread(body: dict[str, Any]) -> list[str]:
    """Return parts unknown to botocore's model; unknown stop reasons have no word there (T164)."""
    found = converse_shape.answer_complaints(body)
    return [each for each in found if "stopReason, value: None" not in each]


def bytes_as_text(value: Any) -> Any:
    """Return what botocore parsed as JSON; it gives bytes for base64."""
    match value:
        case bytes():
            return base64.b64encode(value).decode()
        case dict():
            return {key: bytes_as_text(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType] - JSON
        case list():
            return [bytes_as_text(item) for item in value]  # pyright: ignore[reportUnknownVariableType] - JSON
        case _:
            return value


@pytest.mark.row("M-224", "M-230")
@pytest.mark.parametrize("name", PROTOCOLS)
def test_botocore_parses_every_encoded_stream(name: str) -> None:
    """botocore accepts the frames, and their events add up to the same message."""
    adapter = adapters.get(name)
    for key, exchange in handwritten(PROTOCOLS[name]).items():
        if exchange.stream is None or exchange.is_failure or exchange.dialect is not None:
            continue
        if exchange.feature == OUT_OF_ORDER:
            continue
        decoder = adapter.stream_decoder(CONTEXT)
        events = [*decoder.feed(exchange.stream_bytes()), *decoder.finish()]
        last = events[-1]
        assert isinstance(last, MessageComplete)
        data = written(events)
        for event in converse_shape.read_stream(data):
            assert event, key
        for frame in EventStreamParser().feed(data):
            assert unread({frame.name: json.loads(frame.payload)}) == [], key
        again = read(data)[-1]
        if last.stop_reason is not StopReason.ERROR:
            assert isinstance(again, MessageComplete), key
            assert words(again.message) == words(last.message), key


def words(message: Message) -> list[object]:
    return [
        (type(block), getattr(block, "text", None), getattr(block, "name", None))
        for block in message.content
        if isinstance(block, TextBlock | ToolUseBlock | ThinkingBlock)
    ]


def written(events: list[StreamEvent]) -> bytes:
    encoder = CONVERSE.stream_encoder(CONTEXT)
    return b"".join(map(encoder.encode, events)) + encoder.finish()


def read(data: bytes) -> list[StreamEvent]:
    decoder = CONVERSE.stream_decoder(CONTEXT)
    return decoder.feed(data) + decoder.finish()


@pytest.mark.row("T135")
@pytest.mark.parametrize(
    ("kind", "exception"),
    [
        ("RateLimitError", "throttlingException"),
        ("InvalidRequestError", "validationException"),
        ("AuthenticationError", "validationException"),
        ("NetworkError", "serviceUnavailableException"),
        ("ServerError", "internalServerException"),
    ],
)
def test_failed_stream_ends_in_exception_defined_by_botocore(kind: str, exception: str) -> None:
    data = written([StreamError("01", kind, "so it is")])
    frames = converse_shape.boto("eventstream").EventStreamBuffer()
    frames.add_data(data)
    (event,) = list(frames)
    parsed_event = event.to_response_dict()
    assert (parsed_event["status_code"], parsed_event["headers"][":exception-type"]) == (
        400,
        exception,
    )
    assert (
        exception
        in converse_shape.operation("ConverseStream").output_shape.members["stream"].members
    )
    (end,) = read(data)
    assert isinstance(end, StreamError)
    assert end.text == "so it is"


@pytest.mark.row("T188")
@pytest.mark.parametrize("key", handwritten("bedrock_converse"))
def test_error_bodies_match_botocore_exceptions(key: str) -> None:
    exchange = handwritten("bedrock_converse")[key]
    if exchange.response is None or not exchange.is_failure:
        return
    context = replace(CONTEXT, status=exchange.status)
    with pytest.raises(ProviderError) as caught:
        CONVERSE.from_wire_response(exchange.body(), context)
    status, body = encode_error(caught.value)
    parsed = converse_shape.read_answer(body, status)
    assert parsed["Error"]["Message"] == caught.value.text
    assert parsed["Error"]["Code"].endswith("Exception")
    context = replace(CONTEXT, status=status)
    with pytest.raises(type(caught.value)):
        CONVERSE.from_wire_response(body, context)


@pytest.mark.row("T198")
def test_citations_of_other_providers_are_encoded() -> None:
    cited = Citation("url_citation", "Rain.", "https://example.org", "News", raw={"x": 1})
    message = assistant(TextBlock("It rains.", (cited,)))
    body = json.loads(CONVERSE.to_wire_response(message, CONTEXT))
    (part,) = body["output"]["message"]["content"]
    assert part["citationsContent"]["citations"] == [
        {
            "title": "News",
            "sourceContent": [{"text": "Rain."}],
            "location": {"web": {"url": "https://example.org"}},
        }
    ]
    assert unread(body) == []


def test_foreign_redacted_thinking_is_encoded_as_bytes() -> None:
    sealed = RedactedThinkingBlock("not base64!", issuer="anthropic")
    body = json.loads(CONVERSE.to_wire_response(assistant(sealed, "hi"), CONTEXT))
    assert unread(body) == []
    made = ArtifactBlock(MediaSource("base64", PNG), "image/png")
    body = json.loads(CONVERSE.to_wire_response(assistant(made), CONTEXT))
    assert body["output"]["message"]["content"] == [
        {"image": {"format": "png", "source": {"bytes": PNG}}}
    ]


@pytest.mark.row("T09")
def test_wire_id_repeated_in_every_response_is_another_call() -> None:
    def answer(wire_id: str) -> str:
        part: dict[str, Any] = {"toolUse": {"toolUseId": wire_id, "name": "f", "input": {}}}
        body = {"output": {"message": {"role": "assistant", "content": [part]}}}
        (block,) = CONVERSE.from_wire_response(body_of(body), CONTEXT).content
        assert isinstance(block, ToolUseBlock)
        return block.id

    assert answer("functions.f:0") != answer("functions.f:0")
    assert answer("tooluse_0123456789abcdefgh") == answer("tooluse_0123456789abcdefgh")


@pytest.mark.row("T197")
def test_incomplete_provider_run_call_is_not_sent() -> None:
    exchange = handwritten("bedrock_converse")["tools: the provider runs code"]
    message = CONVERSE.from_wire_response(exchange.body(), CONTEXT)
    whole = json.loads(CONVERSE.to_wire([user("go"), message, user("on")]).body)
    assert len(whole["messages"][1]["content"]) == 3
    half = replace(message, content=message.content[1:])
    wire = CONVERSE.to_wire([user("go"), half, user("on")])
    assert json.loads(wire.body)["messages"][1]["content"] == [{"text": "42"}]
    assert [loss.path for loss in wire.losses] == ["$.content[0]"]


@pytest.mark.row("T40", "T203")
def test_sealed_thinking_is_not_sent_to_model_of_another_vendor() -> None:
    exchange = handwritten("bedrock_converse")["thinking: a signed thought"]
    context = replace(CONTEXT, model=f"bedrock-converse:{CLAUDE}")
    answer = CONVERSE.from_wire_response(exchange.body(), context)
    talk = [user("go"), answer, user("on")]
    for model in (CLAUDE, "global.anthropic.claude-opus-4-6-v1", "arn:aws:bedrock:x/profile"):
        wire = CONVERSE.to_wire(talk, (), AdapterOptions(model=model))
        assert "reasoningContent" in json.loads(wire.body)["messages"][1]["content"][0]
        assert wire.losses == []
    for model in (NOVA, "openai.gpt-oss-120b-1:0"):
        wire = CONVERSE.to_wire(talk, (), AdapterOptions(model=model))
        assert json.loads(wire.body)["messages"][1]["content"] == [{"text": "Hi."}]
        assert [loss.reason for loss in wire.losses] == ["it was sealed by a model of anthropic"]


@pytest.mark.row("T41")
def test_unsigned_thinking_goes_back_to_models_that_accept_it() -> None:
    exchange = handwritten("bedrock_converse")["thinking: a thought without a seal"]
    for model, is_taken in ((NOVA, True), ("minimax.minimax-m2", True), (CLAUDE, False)):
        context = replace(CONTEXT, model=f"bedrock-converse:{model}")
        answer = CONVERSE.from_wire_response(exchange.body(), context)
        wire = CONVERSE.to_wire([user("go"), answer, user("on")], (), AdapterOptions(model=model))
        first = json.loads(wire.body)["messages"][1]["content"][0]
        assert ("reasoningContent" in first) is is_taken
        assert bool(wire.losses) is not is_taken


@pytest.mark.row("M-010")
def test_json_tool_results_are_text_in_other_protocols() -> None:
    exchange = handwritten("bedrock_converse")["tools: a result that is an object"]
    request = CONVERSE.from_wire_request(body_of(exchange.request), CONTEXT)
    options = replace(request.options, model=None)
    wire = adapters.get("anthropic").to_wire(request.messages, request.tools, options)
    (part,) = json.loads(wire.body)["messages"][2]["content"][0]["content"]
    assert json.loads(part["text"]) == {"rain": True, "mm": [1, 2.5]}
    assert wire.losses == []


# Recordings.


@needs_corpus
def test_recorded_streams_give_equal_events_for_any_chunking() -> None:
    for exchange in exchanges("bedrock_converse"):
        if not exchange.get("raw_b64"):
            continue
        data = base64.b64decode(exchange["raw_b64"])
        whole = CONVERSE.stream_decoder(CONTEXT)
        events = whole.feed(data) + whole.finish()
        for size in (1, 7, 100):
            decoder = CONVERSE.stream_decoder(CONTEXT)
            cut = [
                event
                for start in range(0, len(data), size)
                for event in decoder.feed(data[start : start + size])
            ] + decoder.finish()
            assert [type(event) for event in cut] == [type(event) for event in events]
        assert isinstance(events[-1], MessageComplete)


@needs_corpus
def test_encoded_history_equals_parts_sent_by_real_clients() -> None:
    """Clients that store a whole response send the parts that metis encodes, with signatures."""
    recorded = {each["id"]: each for each in exchanges("bedrock_converse")}
    for exchange in recorded.values():
        earlier = recorded.get(exchange.get("echo_of") or "")
        if earlier is None or exchange["echo"] not in ("verbatim", "full"):
            continue
        answer = answer_of(earlier)
        wire = CONVERSE.to_wire([user("go"), answer, user("on")])
        ours = json.loads(wire.body)["messages"][1]["content"]
        sent = [
            part
            for turn in exchange["request"]["messages"]
            if turn["role"] == "assistant"
            for part in turn["content"]
        ]
        assert [part for part in ours if part not in sent] == [], exchange["id"]


def answer_of(exchange: dict[str, Any]) -> Message:
    if exchange["response"]:
        return CONVERSE.from_wire_response(body_of(exchange["response"]), CONTEXT)
    decoder = CONVERSE.stream_decoder(CONTEXT)
    decoder.feed(base64.b64decode(exchange["raw_b64"]))
    decoder.finish()
    return decoder.message


@needs_corpus
def test_recorded_requests_pass_validation() -> None:
    """The validator is not stricter than the service: accepted requests pass."""
    for exchange in exchanges("bedrock_converse"):
        if exchange["request"] and exchange["status"] == 200:
            found = converse_shape.complaints(exchange["request"])
            # One client sent a media type as format, which the service accepted.
            assert [each for each in found if "'video/mp4' is none of" not in each] == []


@needs_corpus
def test_recorded_errors_are_typed() -> None:
    for exchange in exchanges("bedrock_converse"):
        if exchange["status"] != 200 and exchange["response"]:
            context = replace(CONTEXT, status=exchange["status"])
            with pytest.raises(ProviderError):
                CONVERSE.from_wire_response(body_of(exchange["response"]), context)
