"""Conversations with independent servers over HTTP: recorded once, replayed in the tests.

`play` builds each request with `to_wire`, sends it, reads the response, answers its tool calls and
sends the next prompt. Recording and replay run the same code.
"""

import http.client
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace

from build import image, text, tool, user
from metis import adapters
from metis.adapters import Adapter
from metis.canonical import Message, MetisError, SideEffects, ToolDefinition, ToolUseBlock
from metis.canonical.errors import ProviderError
from metis.wire.call import AdapterOptions, RequestContext, ToolChoice

CALL_TOKEN, END_TOKEN = "5", "4"
"""The tokens of the tiny model that open a tool call and end a response."""
UNSUPPORTED_BY_AIMOCK = {
    ("ollama", "reasoning"),
    ("ollama", "limit"),
    ("openai-responses", "limit"),
}
"""Features of a protocol that aimock does not implement as the provider does."""
_PIECE = 61
_WEATHER = ToolDefinition(
    name="weather",
    description="The weather at a place.",
    input_schema={
        "type": "object",
        "properties": {"place": {"type": "string", "enum": ["Bergen", "Oslo"]}},
        "required": ["place"],
    },
    side_effects=SideEffects.READ,
)


class Scenario(Struct, frozen=True, kw_only=True):
    """The prompts and options that one server receives in one protocol."""

    server: str
    adapter: str
    topic: str
    questions: tuple[str, ...]
    has_tools: bool = False
    has_picture: bool = False
    """Whether the first prompt has an image."""
    options: AdapterOptions = AdapterOptions()
    is_streamed: bool = False

    @property
    def name(self) -> str:
        """Return the name of the cassette."""
        way = "stream" if self.is_streamed else "plain"
        return f"{self.server}-{self.adapter}-{self.topic}-{way}"


class Played(Struct, frozen=True):
    """The outcome of a scenario: the responses, and the error if it ended in one."""

    answers: list[Message]
    error: MetisError | None = None


PICTURE = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYAAAAAYAAjCB0C8AAAAASUVORK5CYII="
)


def _of_llama(adapter: str, native: Mapping[str, Any]) -> Iterator[Scenario]:
    short = AdapterOptions(model="tiny", max_output_tokens=12)
    schema = {"type": "json_schema", "json_schema": {"name": "w", "schema": _WEATHER.input_schema}}
    called = {"logit_bias": {CALL_TOKEN: 90, END_TOKEN: 100}}
    for is_streamed in (False, True):
        base = replace(short, stream=is_streamed)
        common: dict[str, Any] = {
            "server": "llama",
            "adapter": adapter,
            "is_streamed": is_streamed,
        }
        questions = ("the lamp", "the sea")
        yield Scenario(topic="text", questions=questions, options=base, **common)
        if native:
            own = replace(base, max_output_tokens=120)
            formed = _with_native(own, {**native, "response_format": schema})
            yield Scenario(topic="schema", questions=questions[:1], options=formed, **common)
            forced = replace(own, tool_choice=ToolChoice("required"))
            calling = _with_native(forced, {**native, **called, "tool_choice": "required"})
            yield Scenario(
                topic="call", questions=questions[:1], has_tools=True, options=calling, **common
            )


def _with_native(options: AdapterOptions, keys: Mapping[str, Any]) -> AdapterOptions:
    own = {"model": options.model, "max_tokens": options.max_output_tokens, **keys}
    if options.stream is not None:
        own["stream"] = options.stream
    return replace(options, native={"openai_chat": own})


def _of_aimock(adapter: str, model: str) -> Iterator[Scenario]:
    return (
        scenario
        for scenario in _all_of_aimock(adapter, model)
        if (adapter, scenario.topic) not in UNSUPPORTED_BY_AIMOCK
    )


def _all_of_aimock(adapter: str, model: str) -> Iterator[Scenario]:
    for is_streamed in (False, True):
        options = AdapterOptions(model=model, max_output_tokens=400, stream=is_streamed)
        common: dict[str, Any] = {
            "server": "aimock",
            "adapter": adapter,
            "is_streamed": is_streamed,
            "options": options,
        }
        yield Scenario(topic="text", questions=("Hello", "Hello again. Hello"), **common)
        rain = ("Is it raining in Bergen?", "Hello")
        yield Scenario(topic="call", questions=rain, has_tools=True, **common)
        both = ("Bergen and Oslo?", "Hello")
        yield Scenario(topic="two-calls", questions=both, has_tools=True, **common)
        yield Scenario(topic="reasoning", questions=("What is 17 times 23?", "Hello"), **common)
        seen = ("What is in the picture?", "Hello")
        yield Scenario(topic="picture", questions=seen, has_picture=True, **common)
        yield Scenario(topic="limit", questions=("Say more than fits.",), **common)
        yield Scenario(topic="too-often", questions=("Ask too often.",), **common)


def _prompts_of_ollama(model: str) -> Iterator[Scenario]:
    """Return the scenarios of Ollama's generate endpoint: one prompt, which is completed."""
    for is_streamed in (False, True):
        native = {"prompt": "", "model": model, "stream": is_streamed}
        yield Scenario(
            server="aimock",
            adapter="ollama",
            topic="prompt",
            questions=("Hello",),
            options=AdapterOptions(model=model, stream=is_streamed, native={"ollama": native}),
            is_streamed=is_streamed,
        )


def scenarios() -> dict[str, Scenario]:
    """Return every scenario by name."""
    found = [
        *_of_llama("openai-compatible", {"seed": 7}),
        *_of_llama("anthropic", {}),
        *_of_llama("openai-responses", {}),
        *_of_aimock("openai", "gpt-5"),
        *_of_aimock("anthropic", "claude-sonnet-4-6"),
        *_of_aimock("openai-responses", "gpt-5"),
        *_of_aimock("gemini", "gemini-3.5-flash"),
        *_of_aimock("bedrock-converse", "us.anthropic.claude-sonnet-4-6"),
        *_of_aimock("ollama", "qwen3-vl"),
        *_prompts_of_ollama("qwen3-vl"),
    ]
    return {scenario.name: scenario for scenario in found}


def context(adapter: Adapter, status: int | None = None) -> RequestContext:
    """Return a context with fixed ids and times, so that each replay gives equal bytes."""
    when = datetime(2026, 5, 8, tzinfo=UTC)
    return RequestContext(
        session_id="sess_cassette", provider=adapter.name, status=status, created_at=when
    )


def play(scenario: Scenario, base_url: str) -> Played:
    """Run the conversation of a scenario."""
    adapter = adapters.get(scenario.adapter)
    tools = [_WEATHER] if scenario.has_tools else []
    history: list[Message] = []
    answers: list[Message] = []
    for number, question in enumerate(scenario.questions):
        shown = [image(PICTURE)] if scenario.has_picture and not number else []
        history.append(user(text(question), *shown))
        while True:
            wire = adapter.to_wire(history, tools, scenario.options)
            status, body = _post(base_url + wire.path, wire.headers, wire.body)
            try:
                answer = _read(adapter, scenario, status, body)
            except ProviderError as error:
                return Played(answers, error)
            answers.append(answer)
            history.append(answer)
            calls = [block for block in answer.content if isinstance(block, ToolUseBlock)]
            history += [_result(call) for call in calls]
            if not calls:
                break
            if scenario.server == "llama":
                return Played(answers)
    return Played(answers)


def _result(call: ToolUseBlock) -> Message:
    return tool(text(f"rain in {call.input['place']}"), answers=call.id)


def _read(adapter: Adapter, scenario: Scenario, status: int, body: bytes) -> Message:
    own = context(adapter, status)
    if not scenario.is_streamed or status >= http.client.BAD_REQUEST:
        return adapter.from_wire_response(body, own)
    decoder = adapter.stream_decoder(own)
    for start in range(0, len(body), _PIECE):
        decoder.feed(body[start : start + _PIECE])
    decoder.finish()
    return decoder.message


def _post(url: str, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=60)
    try:
        path = f"{place.path}?{place.query}" if place.query else place.path
        connection.request("POST", path, body, dict(headers))
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()
