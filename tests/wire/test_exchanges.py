"""Handwritten exchanges of every protocol: valid for the SDK types, and decoded as expected."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import anthropic.types.beta as anthropic_types
import ollama._types as ollama_types
import openai.types.chat as openai_types
import openai.types.responses as responses_types
import pydantic
import pytest
from msgspec.structs import asdict, replace

import converse_shape
from build import text, user
from corpus import body_of
from exchange import Exchange, handwritten
from folded import as_test, check_all
from judges import complaints, gemini_answer
from metis import adapters
from metis.adapters import Adapter
from metis.canonical import (
    ContentBlock,
    Message,
    MetisError,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
    decode,
    encode,
    validate,
)
from metis.streaming import Accumulator, MessageComplete, StreamError, StreamEvent
from metis.wire.call import AdapterOptions, RequestContext
from metis.wire.gemini.request import parse_path

PROTOCOLS = {
    "anthropic": "anthropic_messages",
    "bedrock-converse": "bedrock_converse",
    "gemini": "gemini",
    "ollama": "ollama",
    "openai": "openai_chat",
    "openai-responses": "openai_responses",
}
ANSWERS: dict[str, pydantic.TypeAdapter[Any]] = {
    "anthropic": pydantic.TypeAdapter(anthropic_types.BetaMessage),
    "ollama": pydantic.TypeAdapter(ollama_types.ChatResponse),
    "ollama prompt": pydantic.TypeAdapter(ollama_types.GenerateResponse),
    "openai": pydantic.TypeAdapter(openai_types.ChatCompletion),
    "openai-responses": pydantic.TypeAdapter(responses_types.Response),
}
EVENTS: dict[str, pydantic.TypeAdapter[Any]] = {
    **ANSWERS,
    "anthropic": pydantic.TypeAdapter(anthropic_types.BetaRawMessageStreamEvent),
    "openai": pydantic.TypeAdapter(openai_types.ChatCompletionChunk),
    "openai-responses": pydantic.TypeAdapter(responses_types.ResponseStreamEvent),
}
FEATURES = {
    "tool use",
    "parallel tool use",
    "images",
    "structured output",
    "errors",
    "broken streams",
}
OF_THE_CLOUD = {
    "forced tool use",
    "disabled tool use",
    "documents",
    "citations",
    "refusals",
    "service tiers",
}
OWN_FEATURES = {
    "anthropic": {
        *OF_THE_CLOUD,
        "system messages in mid-conversation",
        "thinking",
        "redacted thinking",
        "adaptive thinking",
        "server-side tools",
        "context management",
        "cache marks",
        "stop sequences",
        "prefill",
        "containers",
    },
    "bedrock-converse": {
        *(OF_THE_CLOUD - {"disabled tool use"}),
        "adaptive thinking",
        "additional fields",
        "audio input",
        "cache marks",
        "guardrails",
        "made pictures",
        "padding",
        "performance",
        "prefill",
        "redacted thinking",
        "request metadata",
        "results of JSON",
        "results with media",
        "search results",
        "server-side tools",
        "stop sequences",
        "system messages in mid-conversation",
        "system prompts",
        "thinking",
        "unknown parts",
        "videos",
    },
    "gemini": {
        *OF_THE_CLOUD,
        "hosts",
        "snake_case",
        "array streams",
        "calls without ids",
        "partial arguments",
        "results with media",
        "schema dialect",
        "integer enums",
        "JSON Schema",
        "thinking",
        "signatures",
        "system instructions",
        "safety",
        "block reasons",
        "grounding",
        "code execution",
        "server-side tools",
        "cached content",
        "audio input",
        "video input",
    },
    "ollama": {
        "calls without ids",
        "prompts",
        "thinking",
        "durations",
        "options",
        "limits",
        "system messages in mid-conversation",
    },
    "openai": {
        *OF_THE_CLOUD,
        "system messages in mid-conversation",
        "audio input",
        "cache marks",
        "stop sequences",
        "prefill",
        "logprobs",
        "several choices",
        "legacy function_call",
        "cache usage",
        "reasoning",
        "reasoning_content",
        "reasoning_details",
        "<think> text",
    },
    "openai-responses": {
        *OF_THE_CLOUD,
        "system messages in mid-conversation",
        "instructions",
        "reasoning",
        "server-side tools",
        "cache usage",
        "kept answers",
        "limits",
        "phases",
    },
}
CITING = {"anthropic", "bedrock-converse"}
"""Streams with citations between text deltas; elsewhere citations come with the message."""
OUT_OF_ORDER = "order of a stream"
"""Streams whose block order a plain response of the protocol cannot express."""


def exchange_of(name: str, key: str) -> Exchange:
    return handwritten(PROTOCOLS[name])[key]


def for_each(part: str | None = None, *, failures: bool | None = False) -> Callable[..., Any]:
    """Make one test per protocol of a check of exchanges: of all, or of those with a part.

    `failures` selects exchanges that fail, or those that succeed; None selects both.
    """

    def keys(name: str) -> Iterator[str]:
        for key, exchange in handwritten(PROTOCOLS[name]).items():
            has_part = part is None or getattr(exchange, part) is not None
            if has_part and failures in (None, exchange.is_failure):
                yield key

    def decorate(check: Callable[[str, str], None]) -> Callable[..., None]:
        def run(name: str) -> None:
            check_all(check, ((name, key) for key in keys(name)))

        names = [name for name in PROTOCOLS if any(keys(name))]
        return pytest.mark.parametrize("name", names)(as_test(check, run))

    return decorate


def adapter_of(name: str, exchange: Exchange) -> Adapter:
    return adapters.get(exchange.adapter or name)


def context(exchange: Exchange) -> RequestContext:
    return RequestContext(session_id="sess_hand", status=exchange.status)


def is_nameless(name: str, exchange: Exchange) -> bool:
    """Return whether calls have no stable wire id, so that each decoding makes a new one."""
    return name == "ollama" or exchange.feature == "legacy function_call"


def judged(name: str, exchange: Exchange) -> str:
    """Return the validator of an exchange: Ollama's generate endpoint has another request type."""
    return "ollama prompt" if exchange.path == "/api/generate" else name


def read_stream(adapter: Adapter, exchange: Exchange, size: int = 1 << 20) -> list[StreamEvent]:
    decoder = adapter.stream_decoder(context(exchange))
    data = exchange.stream_bytes()
    events = [
        event
        for start in range(0, len(data), size)
        for event in decoder.feed(data[start : start + size])
    ]
    return [*events, *decoder.finish()]


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_feature_has_an_exchange(name: str) -> None:
    exchanges = handwritten(PROTOCOLS[name]).values()
    assert len(exchanges) >= 60
    assert (FEATURES | OWN_FEATURES[name]) - {exchange.feature for exchange in exchanges} == set()


@for_each(failures=None)
def test_sdk_types_accept_request(name: str, key: str) -> None:
    exchange = exchange_of(name, key)
    if exchange.dialect is None and exchange.request is not None:
        body = {key: value for key, value in exchange.request.items() if key != "stream"}
        assert complaints(judged(name, exchange), body) == []


@for_each(failures=None)
def test_sdk_types_accept_response(name: str, key: str) -> None:
    exchange = exchange_of(name, key)
    if exchange.dialect is not None:
        return
    if exchange.response is not None and not exchange.is_failure:
        take(ANSWERS, name, exchange, exchange.response)
    known = (event for event in exchange.stream or () if isinstance(event, dict))
    for event in known:
        if event.get("type") not in ("ping", "error", "weather_report") and "error" not in event:
            take(EVENTS, name, exchange, event)


def take(
    types: dict[str, pydantic.TypeAdapter[Any]], name: str, exchange: Exchange, body: Any
) -> None:
    if name == "gemini":
        gemini_answer(body)
    elif name == "bedrock-converse":
        assert converse_shape.answer_complaints(body) == []
    else:
        types[judged(name, exchange)].validate_python(body)


@for_each("path")
def test_request_path_is_expected_path(name: str, key: str) -> None:
    exchange = exchange_of(name, key)
    assert exchange.path is not None
    if name == "gemini":
        is_streamed = exchange.stream is not None
        assert parse_path(exchange.path)[1] is is_streamed
        return
    adapter = adapter_of(name, exchange)
    read = adapter.from_wire_request(body_of(exchange.request), context(exchange))
    assert adapter.to_wire(read.messages, read.tools, read.options).path == exchange.path


@for_each("request", failures=None)
def test_request_decodes_as_expected(name: str, key: str) -> None:
    exchange = exchange_of(name, key)
    assert exchange.request is not None
    read = adapter_of(name, exchange).from_wire_request(exchange.request, context(exchange))
    assert [str(p) for message in read.messages for p in validate(message)] == []
    if exchange.expect.roles is not None:
        assert [message.role for message in read.messages] == exchange.expect.roles
    if exchange.expect.sent is not None:
        assert [block.type for block in read.messages[-1].content] == exchange.expect.sent


@for_each("response")
def test_response_decodes_as_expected(name: str, key: str) -> None:
    exchange = exchange_of(name, key)
    message = adapter_of(name, exchange).from_wire_response(exchange.body(), context(exchange))
    assert [problem.rule for problem in validate(message)] == []
    check(message, exchange)


@pytest.mark.row("M-010", "M-193")
@for_each("response")
def test_response_round_trip_gives_equal_json(name: str, key: str) -> None:
    """Decode, store, load and encode a response: the same JSON."""
    exchange = exchange_of(name, key)
    adapter = adapter_of(name, exchange)
    message = adapter.from_wire_response(exchange.body(), context(exchange))
    stored = decode(encode(message))
    assert json.loads(adapter.to_wire_response(stored, context(exchange))) == exchange.response


@for_each("stream")
def test_stream_decodes_as_expected(name: str, key: str) -> None:
    exchange = exchange_of(name, key)
    last = read_stream(adapter_of(name, exchange), exchange)[-1]
    assert isinstance(last, MessageComplete)
    check(last.message, exchange)


@for_each("stream")
def test_deltas_add_up_to_content(name: str, key: str) -> None:
    exchange = exchange_of(name, key)
    events = read_stream(adapter_of(name, exchange), exchange)
    total = Accumulator()
    for event in events:
        total.add(event)
    last = events[-1]
    assert isinstance(last, MessageComplete)
    whole: dict[str, Any] = content_facts(last.message.content)
    summed = content_facts(total.content)
    if name not in CITING:
        assert summed["citations"] == []
        whole["citations"] = []
    if exchange.feature == OUT_OF_ORDER:
        summed["thoughts"] = ["".join(summed["thoughts"])] if summed["thoughts"] else []
    else:
        assert [block.type for block in total.content] == [b.type for b in last.message.content]
    assert summed == whole


@for_each("stream")
def test_stream_gives_message_of_plain_response(name: str, key: str) -> None:
    exchange = exchange_of(name, key)
    adapter = adapter_of(name, exchange)
    if exchange.response is None:
        return
    plain = adapter.from_wire_response(exchange.body(), context(exchange))
    last = read_stream(adapter, exchange)[-1]
    assert isinstance(last, MessageComplete)
    assert without_ids(last.message.content) == without_ids(plain.content)
    if not is_nameless(name, exchange):
        assert last.message.content == plain.content
    assert last.message.metadata.stop_reason == plain.metadata.stop_reason
    assert last.message.metadata.usage == plain.metadata.usage
    assert last.message.metadata.response_id == plain.metadata.response_id


@for_each("stream", failures=None)
def test_stream_gives_equal_events_for_any_chunking(name: str, key: str) -> None:
    exchange = exchange_of(name, key)
    adapter = adapter_of(name, exchange)
    whole = [shape(event) for event in read_stream(adapter, exchange)]
    for size in (1, 7, 64):
        assert [shape(event) for event in read_stream(adapter, exchange, size)] == whole


@for_each("response", failures=True)
def test_error_has_expected_class(name: str, key: str) -> None:
    exchange = exchange_of(name, key)
    with pytest.raises(MetisError) as caught:
        adapter_of(name, exchange).from_wire_response(exchange.body(), context(exchange))
    assert type(caught.value).__name__ == exchange.expect.error


@for_each("stream", failures=True)
def test_broken_stream_ends_in_error_with_partial_message(name: str, key: str) -> None:
    exchange = exchange_of(name, key)
    adapter = adapter_of(name, exchange)
    events = read_stream(adapter, exchange)
    last = events[-1]
    assert isinstance(last, StreamError)
    assert last.error_class == exchange.expect.error
    assert not any(isinstance(event, MessageComplete | StreamError) for event in events[:-1])
    if last.message is not None:
        check(last.message, exchange)
        follow_up(adapter, exchange, last.message)


@for_each("response")
def test_the_next_turn_is_valid(name: str, key: str) -> None:
    """The response goes back to its provider with results for its calls, without a loss."""
    exchange = exchange_of(name, key)
    adapter = adapter_of(name, exchange)
    follow_up(adapter, exchange, adapter.from_wire_response(exchange.body(), context(exchange)))


def follow_up(adapter: Adapter, exchange: Exchange, answer: Message) -> None:
    prompt_message = user(text("And then?"))
    wire = adapter.to_wire([prompt_message, answer, prompt_message], (), AdapterOptions())
    if exchange.dialect is None:
        judge = "gemini" if adapter.name == "vertex" else adapter.name
        assert complaints(judge, json.loads(wire.body)) == []


def check(message: Message, exchange: Exchange) -> None:
    """Compare a message with every fact that an exchange states."""
    facts = asdict(exchange.expect)
    usage = message.metadata.usage
    found: dict[str, Any] = content_facts(message.content) | {
        "blocks": [block.type for block in message.content],
        "stop_reason": message.metadata.stop_reason,
        "usage": {key: getattr(usage, key) for key in facts["usage"]},
    }
    stated = {key: value for key, value in facts.items() if value is not None and key in found}
    assert {key: found[key] for key in stated} == stated


def content_facts(content: tuple[ContentBlock, ...]) -> dict[str, Any]:
    texts = [block for block in content if isinstance(block, TextBlock)]
    thoughts = [block for block in content if isinstance(block, ThinkingBlock)]
    calls = [block for block in content if isinstance(block, ToolUseBlock)]
    return {
        "text": "".join(block.text for block in texts),
        "citations": [citation.kind for block in texts for citation in block.citations],
        "thoughts": [block.text for block in thoughts],
        "signatures": [block.signature for block in thoughts if block.signature],
        "calls": [(call.name, call.input) for call in calls],
        "invalid": [call.invalid.raw for call in calls if call.invalid],
    }


def shape(event: StreamEvent) -> Any:
    """Return an event without the ids that are new in every decoding."""
    message = getattr(event, "message", None)
    event_fields = {key: value for key, value in asdict(event).items() if key not in _NEW}
    return type(event), event_fields, message and without_ids(message.content)


def without_ids(content: tuple[ContentBlock, ...]) -> list[ContentBlock]:
    return [
        replace(block, id="") if isinstance(block, ToolUseBlock) else block for block in content
    ]


_NEW = {"message_id", "message", "tool_use_id"}
