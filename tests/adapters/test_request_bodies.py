"""Request and response bodies of any type: bytes, Python objects, and invalid values."""

import copy
import json
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, cast

import pytest

from build import user
from folded import for_every
from metis import adapters
from metis.adapters import Adapter
from metis.canonical import ToolUseBlock, decode, encode
from metis.canonical.errors import DecodeError, InvalidValueError, MetisError
from metis.wire.call import AdapterOptions, RequestContext

NAMES = adapters.names()
ONE_PER_PROTOCOL = list({adapters.get(name).profile.protocol: name for name in NAMES}.values())
"""One provider of each protocol, for what does not depend on the host."""
NAMING = [name for name in NAMES if "{model}" not in adapters.get(name).profile.path]
"""The providers that are told the model in the body, not in the path."""
CONTEXT = RequestContext(session_id="sess_bodies")
COUNTS = (
    "output_tokens",
    "completion_tokens",
    "cache_read_input_tokens",
    "candidatesTokenCount",
    "outputTokens",
    "cacheWriteInputTokens",
    "cachedContentTokenCount",
    "eval_count",
)
"""The keys of token counts in all protocols."""
REQUEST = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "go"}]}
_OWN_REQUESTS: dict[str, dict[str, Any]] = {
    "bedrock_converse": {
        "messages": [{"role": "user", "content": [{"text": "go"}]}],
        "requestMetadata": {"a": "b"},
    },
    "gemini": {"contents": [{"role": "user", "parts": [{"text": "go"}]}], "labels": {"a": "b"}},
    "ollama": {
        "model": "m",
        "messages": [{"role": "user", "content": "go"}],
        "options": {"x": [1]},
    },
    "openai_responses": {"model": "m", "input": [{"role": "user", "content": "go"}], "store": True},
}


def request_body(adapter: Adapter) -> dict[str, Any]:
    """Return a request as a client of a provider would send it."""
    return copy.deepcopy(_OWN_REQUESTS.get(adapter.profile.protocol, REQUEST))


def response(adapter: Adapter, **usage: Any) -> dict[str, Any]:
    """Return a response with a call, as a provider would send it."""
    return _RESPONSES[adapter.profile.protocol](usage)


def _anthropic(usage: dict[str, Any]) -> dict[str, Any]:
    call = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": [1]}}
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-6",
        "content": [call],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 1, "output_tokens": 1} | usage,
    }


def _openai_chat(usage: dict[str, Any]) -> dict[str, Any]:
    arguments = '{"a":[1]}'
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    message = {"role": "assistant", "content": None, "tool_calls": [call], "odd": {"x": [1]}}
    return {
        "id": "r",
        "model": "gpt-5",
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1} | usage,
    }


def _openai_responses(usage: dict[str, Any]) -> dict[str, Any]:
    call = {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "f", "arguments": "{}"}
    return {
        "id": "resp_1",
        "model": "gpt-5",
        "status": "completed",
        "output": [call, {"type": "odd", "x": [1]}],
        "usage": {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2} | usage,
    }


def _gemini(usage: dict[str, Any]) -> dict[str, Any]:
    call = {"functionCall": {"name": "f", "args": {"a": [1]}}}
    content = {"role": "model", "parts": [call, {"odd": {"x": [1]}}]}
    counts = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
    return {
        "candidates": [{"content": content, "finishReason": "STOP", "index": 0}],
        "usageMetadata": counts | usage,
    }


def _ollama(usage: dict[str, Any]) -> dict[str, Any]:
    call = {"function": {"name": "f", "arguments": {"a": [1]}}}
    message = {"role": "assistant", "content": "", "tool_calls": [call], "odd": {"x": [1]}}
    counts = {"prompt_eval_count": 1, "eval_count": 1}
    return {
        "model": "m",
        "message": message,
        "done": True,
        "done_reason": "stop",
        **counts,
        **usage,
    }


def _converse(usage: dict[str, Any]) -> dict[str, Any]:
    call = {"toolUse": {"toolUseId": "tooluse_1", "name": "f", "input": {"a": [1]}}}
    message = {"role": "assistant", "content": [call, {"odd": {"x": [1]}}]}
    counts = {"inputTokens": 1, "outputTokens": 1, "totalTokens": 2}
    return {
        "metrics": {"latencyMs": 1},
        "output": {"message": message},
        "stopReason": "tool_use",
        "usage": counts | usage,
    }


_RESPONSES: Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "anthropic": _anthropic,
    "bedrock_converse": _converse,
    "gemini": _gemini,
    "ollama": _ollama,
    "openai_chat": _openai_chat,
    "openai_responses": _openai_responses,
}


def deep(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


@pytest.mark.row("M-200")
@for_every(NAMES, [bytes, bytearray, memoryview])
def test_any_bytes_like_body_is_decoded(name: str, kind: Any) -> None:
    adapter = adapters.get(name)
    sent = kind(json.dumps(request_body(adapter)).encode())
    assert len(adapter.from_wire_request(sent, CONTEXT).messages) == 1
    body = kind(json.dumps(response(adapter)).encode())
    assert adapter.from_wire_response(body, CONTEXT).content


@for_every(NAMES, [None, 3, "{}", [], b"", b"null", b"[1]", b'{"a":NaN}'])
def test_invalid_body_type_is_refused(name: str, body: Any) -> None:
    adapter = adapters.get(name)
    for read in (adapter.from_wire_request, adapter.from_wire_response):
        with pytest.raises(MetisError):
            read(body, CONTEXT)


@pytest.mark.parametrize("name", ONE_PER_PROTOCOL)
@pytest.mark.parametrize("levels", [900, 3000, 100_000])
def test_a_body_that_is_nested_too_deeply_is_refused(name: str, levels: int) -> None:
    adapter = adapters.get(name)
    bodies: list[Any] = [{**REQUEST, "metadata": deep(levels)}]
    bodies.append(b'{"messages":[],"a":' + b'{"a":' * levels + b"1" + b"}" * levels + b"}")
    for body in bodies:
        for read in (adapter.from_wire_request, adapter.from_wire_response):
            try:
                read(body, CONTEXT)
            except MetisError as error:
                assert isinstance(error, DecodeError)  # noqa: PT017 - fewer levels may pass


@pytest.mark.row("M-016")
@for_every(NAMES)
def test_changing_the_body_does_not_change_the_message(name: str) -> None:
    adapter = adapters.get(name)
    body = response(adapter)
    message = adapter.from_wire_response(body, CONTEXT)
    before = encode(message)
    _mutate(body)
    assert encode(message) == before
    own = request_body(adapter)
    request = adapter.from_wire_request(own, CONTEXT)
    _mutate(own)
    sent = adapter.to_wire(request.messages, (), request.options).body
    assert json.loads(sent) == request_body(adapter)


def _mutate(value: Any) -> None:
    if isinstance(value, dict):
        for inner in list(cast("dict[str, Any]", value).values()):
            _mutate(inner)
        value["spoiled"] = True
    elif isinstance(value, list):
        for inner in cast("list[Any]", value):
            _mutate(inner)
        value.append("spoiled")  # pyright: ignore[reportUnknownMemberType] - any list


@pytest.mark.row("T147", "T153")
@for_every(NAMES)
def test_invalid_counts_and_costs_are_ignored(name: str) -> None:
    adapter = adapters.get(name)
    for count in (2**63, 2**70, -1, 1.5, "3", True, None):
        body = response(adapter, **dict.fromkeys(COUNTS, count))
        message = adapter.from_wire_response(json.dumps(body).encode(), CONTEXT)
        usage = message.metadata.usage
        assert usage is not None
        assert (usage.output_tokens, usage.cached_input_tokens) == (0, 0)
        assert decode(encode(message)) == message
    for cost in (-1, -0.5, 10**400):
        body = response(adapter, cost=cost)
        usage = adapter.from_wire_response(json.dumps(body).encode(), CONTEXT).metadata.usage
        assert usage is not None
        assert usage.reported_cost_usd in (None, Decimal(10**400))


@for_every(NAMING, [3, ["m"], {"a": 1}, True])
def test_model_that_is_not_a_string_is_refused(name: str, model: Any) -> None:
    adapter = adapters.get(name)
    request = adapter.from_wire_request({**REQUEST, "model": model}, CONTEXT)
    assert request.options.model is None
    assert json.loads(adapter.to_wire(request.messages, (), request.options).body)["model"] == model
    with pytest.raises(InvalidValueError, match="must be a string"):
        adapter.to_wire([user("go")], (), AdapterOptions(model=model))


@for_every(NAMING)
def test_last_of_duplicate_keys_wins_and_is_sent(name: str) -> None:
    adapter = adapters.get(name)
    body = json.dumps(REQUEST)[:-1] + ',"model":"other"}'
    request = adapter.from_wire_request(body.encode(), CONTEXT)
    assert request.options.model == "other"
    sent = adapter.to_wire(request.messages, (), request.options).body
    assert sent.count(b'"model"') == 1
    assert json.loads(sent)["model"] == "other"


@pytest.mark.parametrize(
    ("name", "tools", "key", "choice"),
    [
        ("anthropic", [{"name": "f", "input_schema": 0}], "tool_choice", {"type": "any"}),
        (
            "openai",
            [{"type": "function", "function": {"name": "f", "parameters": 0}}],
            "tool_choice",
            "required",
        ),
        ("openai-responses", True, "tool_choice", "required"),
        ("gemini", [1.5], "toolConfig", {"functionCallingConfig": {"mode": "ANY"}}),
    ],
)
def test_tool_choice_stays_with_opaque_tools(name: str, tools: Any, key: str, choice: Any) -> None:
    adapter = adapters.get(name)
    turns = {"contents": [{"role": "user", "parts": [{"text": "go"}]}]}
    body = {"tools": tools, key: choice, **(turns if name == "gemini" else REQUEST)}
    request = adapter.from_wire_request(body, CONTEXT)
    sent = json.loads(adapter.to_wire(request.messages, request.tools, request.options).body)
    assert (sent["tools"], sent[key]) == (tools, choice)


def test_gemini_result_without_name_is_sent_without_name() -> None:
    call: dict[str, Any] = {"functionCall": {"id": "c1", "name": "f", "args": {}}}
    result = {"functionResponse": {"name": "f", "response": {"output": "1"}}}
    contents = [
        {"role": "user", "parts": [{"text": "go"}]},
        {"role": "model", "parts": [call]},
        {"role": "user", "parts": [result]},
    ]
    adapter = adapters.get("gemini")
    request = adapter.from_wire_request({"contents": contents}, CONTEXT)
    block = request.messages[1].content[0]
    assert isinstance(block, ToolUseBlock)
    assert request.messages[2].metadata.parent_tool_use_id == block.id
    sent = json.loads(adapter.to_wire(request.messages, (), request.options).body)
    assert sent["contents"] == contents


def test_prefill_of_mistral_client_is_unchanged() -> None:
    turns = [{"role": "user", "content": "go"}, {"role": "assistant", "content": "We"}]
    adapter = adapters.get("mistral")
    request = adapter.from_wire_request({"model": "mistral-large-latest", "messages": turns})
    sent = json.loads(adapter.to_wire(request.messages, (), request.options).body)
    assert sent["messages"] == turns
    other = adapters.get("openai").from_wire_request({"model": "gpt-5", "messages": turns})
    sent = json.loads(adapter.to_wire(other.messages).body)
    assert sent["messages"][-1]["prefix"] is True
