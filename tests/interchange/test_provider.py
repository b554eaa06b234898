"""Providers as gpt2099 calls them: contexts in, requests out, and response streams.

`matrix/` has the contexts and, for each provider, the expected body with its losses or an error.
`streams.json` has the expected display and aggregate of recorded streams.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import pytest
from jsonschema_rs import Draft202012Validator

from build import image, tool_id
from judges import complaints
from metis.canonical import SideEffects, ToolDefinition
from metis.canonical.errors import (
    DecodeError,
    ForeignDocumentError,
    MetisError,
    NetworkError,
    RateLimitError,
)
from metis.canonical.schema.widen import widen_schema
from metis.interchange.gpt2099.provider import SEPARATOR, Provider
from metis.streaming import (
    BlockAdded,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
)
from metis.wire.call import WireRequest

yaml: Any = import_module("yaml")
MATRIX = Path(__file__).parent / "matrix"
CASSETTES = Path(__file__).parent.parent / "cassettes"
MODELS = {
    "anthropic": "claude-sonnet-4-6",
    "gemini": "gemini-2.5-flash",
    "ollama": "llama3.2",
    "openai": "gpt-5",
    "openai-responses": "gpt-5",
}


@cache
def read(name: str) -> Mapping[str, Any]:
    return json.loads((MATRIX / f"{name}.json").read_text())


def tools_of(case: str) -> list[ToolDefinition]:
    """Return the tools of a context in canonical form."""
    return [
        ToolDefinition(
            tool["name"], tool["description"], widen_schema(tool["inputSchema"]), SideEffects.READ
        )
        for tool in read("windows")[case].get("tools", ())
    ]


def prepared(provider: str, case: str) -> WireRequest:
    window = read("windows")[case]["window"]
    return Provider(provider).prepare_request(window, tools_of(case), model=MODELS[provider])


def replayed(cassette: str) -> bytes:
    """Return the first response of a recording."""
    recorded = yaml.safe_load((CASSETTES / f"{cassette}.yaml").read_text())
    return recorded["interactions"][0]["response"]["body"]["string"].encode()


PAIRS = [(provider, case) for provider in MODELS for case in read("windows")]


# Requests.


@pytest.mark.row("GX-12")
def test_every_context_has_an_expectation_for_every_provider() -> None:
    assert len(read("windows")) == 14
    for provider in MODELS:
        assert list(read(provider)) == list(read("windows"))


@pytest.mark.row("GX-12", "GX-01", "G-010", "G-016", "G-017", "G-018")
@pytest.mark.parametrize(("provider", "case"), PAIRS, ids=[f"{p}-{c}" for p, c in PAIRS])
def test_context_becomes_expected_body_or_error(provider: str, case: str) -> None:
    expected = read(provider)[case]
    if "error" in expected:
        with pytest.raises(MetisError) as caught:
            prepared(provider, case)
        assert type(caught.value).__name__ == expected["error"]
        assert getattr(caught.value, "path", None) == expected["path"]
        assert str(caught.value) == expected["text"]
        return
    request = prepared(provider, case)
    body = json.loads(request.body)
    assert body == expected["body"]
    reasons = [[str(loss.change), loss.block_type, loss.path] for loss in request.losses]
    assert reasons == expected.get("losses", [])
    assert prepared(provider, case).body == request.body


@pytest.mark.row("GX-12")
@pytest.mark.parametrize(("provider", "case"), PAIRS, ids=[f"{p}-{c}" for p, c in PAIRS])
def test_sdk_types_accept_every_expected_body(provider: str, case: str) -> None:
    body = dict(read(provider)[case].get("body", {}))
    body.pop("stream", None)
    body.pop("stream_options", None)
    if body:
        assert complaints(provider, body) == []


@pytest.mark.row("GX-10")
def test_system_messages_are_one_text_for_anthropic_and_parts_for_gemini() -> None:
    one = json.loads(prepared("anthropic", "two-systems").body)["system"]
    assert one == [{"type": "text", "text": f"You watch the sea.{SEPARATOR}Answer in one line."}]
    assert SEPARATOR.strip() == "----"
    parts = json.loads(prepared("gemini", "two-systems").body)["systemInstruction"]["parts"]
    assert parts == [{"text": "You watch the sea."}, {"text": "Answer in one line."}]


@pytest.mark.row("GX-10")
def test_cache_mark_of_system_message_is_kept() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    conversation = [
        {"type": "text", "text": "Be kind."},
        {"type": "text", "text": "Be brief.", **mark},
    ]
    prompt = {"role": "user", "content": [{"type": "text", "text": "go"}]}
    several = [{"role": "system", "content": [block]} for block in conversation]

    def system(*messages: Any) -> Any:
        window: dict[str, Any] = {"messages": [*messages, prompt], "options": {}}
        request = Provider("anthropic").prepare_request(window, model="sonnet")
        return json.loads(request.body)["system"]

    assert system(*several) == [{"type": "text", "text": f"Be kind.{SEPARATOR}Be brief.", **mark}]
    assert system({"role": "system", "content": conversation}) == conversation


@pytest.mark.row("GX-07")
@pytest.mark.parametrize("provider", MODELS)
def test_server_schema_is_fitted_and_accepts_the_same_values(provider: str) -> None:
    """Unsupported keywords are removed, names map back, and the SDK types accept it."""
    (listed,) = read("windows")["tools"]["tools"]
    body = prepared(provider, "tools").body.decode()
    for refused in ("$schema", "outputSchema", "annotations", "readOnlyHint", "inputSchema"):
        assert refused not in body
    sent = json.loads(body)["tools"][0]
    sent = sent.get("functionDeclarations", [sent])[0]
    sent = sent.get("function", sent)
    assert sent["name"] == listed["name"]
    keys = ("input_schema", "parameters", "parametersJsonSchema")
    schema = next(sent[key] for key in keys if key in sent)
    for value in ({"place": "Bergen"}, {"place": "Oslo", "at": "2026-05-08T00:00:00Z"}, {"at": 1}):
        accepted = Draft202012Validator(listed["inputSchema"]).is_valid(value)
        assert Draft202012Validator(schema).is_valid(value) is accepted


def test_invalid_context_is_refused() -> None:
    provider = Provider("anthropic")
    with pytest.raises(ForeignDocumentError):
        provider.prepare_request("[]", model="sonnet")
    window = {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "go"}]}],
        "options": {"search": "yes"},
    }
    with pytest.raises(DecodeError) as caught:
        provider.prepare_request(window, model="sonnet")
    assert caught.value.path == "$.options.search"


# Streams.


class FiveFunctions(Protocol):
    """The interface that gpt2099 requires of a provider."""

    def models(self) -> list[str]: ...

    def prepare_request(
        self, window: Mapping[str, Any], tools: list[ToolDefinition], *, model: str
    ) -> WireRequest: ...

    def call(
        self, request: WireRequest, send: Any, tools: list[ToolDefinition], *, model: str
    ) -> Iterator[StreamEvent]: ...

    def response_stream_streamer(
        self, events: Iterable[StreamEvent]
    ) -> Iterator[dict[str, Any]]: ...

    def response_stream_aggregate(self, events: Iterable[StreamEvent]) -> dict[str, Any]: ...


@pytest.mark.row("GX-01", "G-048", "G-051")
@pytest.mark.parametrize("name", MODELS)
def test_a_provider_is_five_functions(name: str) -> None:
    provider: FiveFunctions = Provider(name)
    assert MODELS[name] in provider.models()
    tools = tools_of("tools")
    window = read("windows")["tools"]["window"]
    request = provider.prepare_request(window, tools, model=MODELS[name])
    sent: list[WireRequest] = []

    def send(given: WireRequest) -> Iterator[bytes]:
        sent.append(given)
        data = replayed(f"aimock-{name}-call-stream")
        yield from (data[at : at + 7] for at in range(0, len(data), 7))

    events = list(provider.call(request, send, tools, model=MODELS[name]))
    assert sent == [request]
    shown = list(provider.response_stream_streamer(events))
    assert {"type": "tool_use", "name": "weather"} in shown
    message = provider.response_stream_aggregate(events)["message"]
    assert set(message) >= {"role", "content", "model", "stop_reason"}
    assert message["stop_reason"] == "tool_use"
    # The response goes into a context with a result, and into the next request.
    call = next(block for block in message["content"] if block["type"] == "tool_use")
    result = {
        "type": "tool_result",
        "name": "weather",
        "tool_use_id": call["id"],
        "content": [{"type": "text", "text": "rain"}],
    }
    more: dict[str, Any] = {
        "messages": [
            *window["messages"],
            {"role": "assistant", "content": message["content"]},
            {"role": "user", "content": [result]},
        ],
        "options": {},
    }
    body = json.loads(provider.prepare_request(more, tools, model=MODELS[name]).body)
    body.pop("stream", None)
    body.pop("stream_options", None)
    assert complaints(name, body) == []


@pytest.mark.row("GX-02", "GX-12", "G-048", "G-049")
@pytest.mark.parametrize("cassette", read("streams"))
def test_recorded_stream_display_and_aggregate(cassette: str) -> None:
    expected = read("streams")[cassette]
    provider = Provider(expected["provider"])
    data = replayed(cassette)
    request = WireRequest(path="/", body=b"")
    events = list(provider.call(request, lambda _: [data], model=expected["model"]))
    assert list(provider.response_stream_streamer(events)) == expected["streamer"]
    summed = provider.response_stream_aggregate(events)
    for block in summed["message"]["content"]:
        assert ("id" in block) == (block["type"] == "tool_use")
        block.pop("id", None)
    assert summed == expected["aggregate"]


@pytest.mark.row("GX-02")
def test_streamer_reports_block_starts_and_deltas() -> None:
    one, two = tool_id(1), tool_id(2)
    spelled: list[tuple[StreamEvent, list[dict[str, Any]]]] = [
        (ThinkingDelta("m", 0, "hm"), [{"type": "thinking"}, {"content": "hm"}]),
        (ThinkingDelta("m", 0, "", signature="s"), []),
        (TextDelta("m", 1, "a"), [{"type": "text"}, {"content": "a"}]),
        (TextDelta("m", 1, "b"), [{"content": "b"}]),
        (ToolUseStart("m", 2, one, "f"), [{"type": "tool_use", "name": "f"}]),
        (ToolUseInputDelta("m", 2, one, '{"a"'), [{"content": '{"a"'}]),
        (ToolUseInputDelta("m", 2, one, ":1}"), [{"content": ":1}"}]),
        (ToolUseEnd("m", 2, one, {"a": 1}), []),
        (ToolUseStart("m", 3, two, "g"), [{"type": "tool_use", "name": "g"}]),
        (ToolUseEnd("m", 3, two, {"b": 2}), [{"content": '{"b":2}'}]),
        (BlockAdded("m", 4, image()), [{"type": "image"}]),
        (TextDelta("m", 5, "c"), [{"type": "text"}, {"content": "c"}]),
    ]
    events = [event for event, _ in spelled]
    shown = list(Provider("anthropic").response_stream_streamer(events))
    assert shown == [record for _, records in spelled for record in records]


@pytest.mark.row("GX-01")
def test_failed_or_unfinished_response_is_an_error() -> None:
    provider = Provider("anthropic")
    error = {"type": "error", "error": {"type": "rate_limit_error", "message": "slow down"}}
    data = f"event: error\ndata: {json.dumps(error)}\n\n".encode()
    events = provider.call(WireRequest(path="/", body=b""), lambda _: [data])
    with pytest.raises(RateLimitError, match="slow down"):
        provider.response_stream_aggregate(events)
    with pytest.raises(NetworkError, match="did not end"):
        provider.response_stream_aggregate([])
