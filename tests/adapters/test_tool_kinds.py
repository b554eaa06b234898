"""Client tools that are not functions become functions elsewhere, and return as declared."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from metis import adapters
from metis.adapters import Adapter, RequestContext
from metis.canonical import InvalidInput, Message, TextBlock, ToolUseBlock
from metis.canonical.metadata import StopReason
from metis.streaming.events import StreamEvent, events_of_message
from metis.wire.call import CanonicalRequest

GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start: begin end"}
PATCH = {"type": "custom", "name": "apply_patch", "description": "Edits.", "format": GRAMMAR}
SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}}
TOOLS: list[dict[str, Any]] = [
    PATCH,
    {"type": "function", "name": "read", "parameters": SCHEMA, "strict": False},
    {
        "type": "namespace",
        "name": "mcp__mail",
        "description": "Mail.",
        "tools": [
            {"type": "function", "name": "search", "parameters": SCHEMA},
            {"type": "function", "name": "send", "parameters": SCHEMA},
            {"type": "custom", "name": "script", "description": "Runs."},
        ],
    },
    {
        "type": "namespace",
        "name": "mcp__web",
        "tools": [{"type": "function", "name": "search", "parameters": SCHEMA}],
    },
    {"type": "local_shell"},
    {"type": "shell"},
    {"type": "tool_search", "execution": "client", "parameters": SCHEMA, "description": "Finds."},
]
LOADED = {"type": "function", "name": "loaded", "parameters": SCHEMA, "defer_loading": True}
OTHERS = ["anthropic", "bedrock-converse", "gemini", "ollama", "openai", "mistral"]
FUNCTIONS = {
    "apply_patch",
    "local_shell",
    "mcp__mail__search",
    "mcp__web__search",
    "read",
    "script",
    "send",
    "shell",
    "tool_search",
}
CALLS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "apply_patch": (
        {"input": "*** Begin"},
        {"type": "custom_tool_call", "name": "apply_patch", "input": "*** Begin"},
    ),
    "script": (
        {"input": ""},
        {"type": "custom_tool_call", "namespace": "mcp__mail", "name": "script", "input": ""},
    ),
    "mcp__web__search": (
        {"q": "a"},
        {"type": "function_call", "namespace": "mcp__web", "name": "search"},
    ),
    "send": (
        {"q": "b"},
        {"type": "function_call", "namespace": "mcp__mail", "name": "send"},
    ),
    "read": ({"q": "c"}, {"type": "function_call", "name": "read", "arguments": '{"q":"c"}'}),
    "local_shell": (
        {"type": "exec", "command": ["ls"], "env": {}},
        {"type": "local_shell_call", "action": {"type": "exec", "command": ["ls"], "env": {}}},
    ),
    "shell": (
        {"commands": ["ls"]},
        {"type": "shell_call", "action": {"commands": ["ls"]}},
    ),
    "tool_search": (
        {"q": "mail"},
        {"type": "tool_search_call", "execution": "client", "arguments": {"q": "mail"}},
    ),
}


def client_request(*items: Any, tools: list[Any] | None = None, **keys: Any) -> CanonicalRequest:
    body = {"model": "gpt-5", "input": [{"role": "user", "content": "Go."}, *items], **keys}
    if tools is not None:
        body["tools"] = tools
    client = adapters.get("openai-responses")
    return client.from_wire_request(body, RequestContext(session_id="sess_kinds"))


def sent(
    name: str, request: CanonicalRequest, model: str | None = None
) -> tuple[dict[str, Any], list[Any]]:
    options = replace(request.options, model=model)
    wire = adapters.get(name).preview(request.messages, request.tools, options)
    return json.loads(wire.body), wire.losses


def tool_names(body: dict[str, Any]) -> set[str]:
    names: set[str] = set()
    for tool in body.get("tools") or body.get("toolConfig", {}).get("tools", []):
        entries = tool.get("functionDeclarations") or [
            tool.get("function") or tool.get("toolSpec") or tool
        ]
        names |= {entry["name"] for entry in entries}
    return names


def response_with(calls: dict[str, dict[str, Any]]) -> Message:
    content = [
        {"type": "tool_use", "id": f"toolu_{n}", "name": name, "input": value}
        for n, (name, value) in enumerate(calls.items())
    ]
    body = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-5",
        "content": [{"type": "text", "text": "So."}, *content],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }
    return adapters.get("anthropic").from_wire_response(body)


def streamed(client: Adapter, events: list[StreamEvent], context: RequestContext) -> bytes:
    encoder = client.stream_encoder(context)
    return b"".join([*map(encoder.encode, events), encoder.finish()])


def completed_items(stream: bytes) -> list[dict[str, Any]]:
    lines = [line[6:] for line in stream.split(b"\n") if line.startswith(b"data: ")]
    events = [json.loads(line) for line in lines if line != b"[DONE]"]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    final = next(event for event in events if event["type"] == "response.completed")
    assert final["response"]["output"] == done
    return done


@pytest.mark.row("T219")
@pytest.mark.parametrize("name", OTHERS)
def test_every_kind_of_tool_becomes_a_function(name: str) -> None:
    body, losses = sent(name, client_request(tools=TOOLS))
    assert tool_names(body) == FUNCTIONS
    assert "start: begin end" in json.dumps(body)
    paths = {loss.path for loss in losses if loss.change == "altered"}
    assert {f"$.tools.{tool}" for tool in FUNCTIONS - {"read"}} <= paths
    assert not [loss for loss in losses if loss.change == "dropped" and "tools" in loss.path]


@pytest.mark.row("T219")
def test_host_with_same_tool_kinds_receives_them_as_declared() -> None:
    body, losses = sent("azure-responses", client_request(tools=TOOLS))
    kinds = [tool["type"] for tool in body["tools"]]
    assert sorted(kinds) == sorted(
        ["custom", "function", "namespace", "namespace", "local_shell", "shell"]
    )
    assert PATCH in body["tools"]
    assert not [loss for loss in losses if "apply_patch" in loss.reason]


@pytest.mark.row("T219")
@pytest.mark.parametrize("name", OTHERS)
def test_tools_that_the_input_declares_are_sent_too(name: str) -> None:
    declared = {"type": "additional_tools", "role": "developer", "tools": [PATCH, LOADED]}
    body, losses = sent(name, client_request(declared))
    assert tool_names(body) == {"apply_patch", "loaded"}
    assert not [loss for loss in losses if loss.block_type == "opaque"]
    search: list[dict[str, Any]] = [
        {"type": "tool_search_call", "call_id": "c1", "execution": "client", "arguments": {}},
        {
            "type": "tool_search_output",
            "call_id": "c1",
            "execution": "client",
            "status": "completed",
            "tools": [LOADED],
        },
    ]
    body, _ = sent(name, client_request(*search, tools=[TOOLS[-1]]))
    assert tool_names(body) == {"loaded", "tool_search"}


@pytest.mark.row("T219")
@pytest.mark.parametrize("is_stream", [False, True])
def test_call_has_kind_that_client_declared(*, is_stream: bool) -> None:
    client, request = adapters.get("openai-responses"), client_request(tools=TOOLS)
    context = client.response_context(request, RequestContext(session_id="sess_kinds"))
    message = response_with({name: value for name, (value, _) in CALLS.items()})
    if is_stream:
        items = completed_items(streamed(client, [*events_of_message(message)], context))
    else:
        items = json.loads(client.to_wire_response(message, context))["output"]
    calls = [item for item in items if item["type"] != "message"]
    for call, (_, expected) in zip(calls, CALLS.values(), strict=True):
        assert {key: call.get(key) for key in expected} == expected
        assert ("namespace" in call) == ("namespace" in expected)
        assert call["call_id"].startswith("call_")
        assert call["status"] == "completed"


@pytest.mark.row("T219")
@pytest.mark.parametrize("name", OTHERS)
def test_next_request_has_calls_under_function_names(name: str) -> None:
    client, request = adapters.get("openai-responses"), client_request(tools=TOOLS)
    context = client.response_context(request, RequestContext(session_id="sess_kinds"))
    message = response_with({name: value for name, (value, _) in CALLS.items()})
    items = json.loads(client.to_wire_response(message, context))["output"]
    outputs = {
        "function_call": "function_call_output",
        "custom_tool_call": "custom_tool_call_output",
    }
    results: list[Any] = []
    for item in items:
        kind = outputs.get(item["type"])
        if kind is not None:
            results.append({"type": kind, "call_id": item["call_id"], "output": "fine"})
        elif item["type"] == "local_shell_call":
            results.append(
                {"type": "local_shell_call_output", "id": item["call_id"], "output": "x"}
            )
        elif item["type"] == "shell_call":
            output = [{"stdout": "x", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]
            results.append(
                {"type": "shell_call_output", "call_id": item["call_id"], "output": output}
            )
        elif item["type"] == "tool_search_call":
            results.append(
                {
                    "type": "tool_search_output",
                    "call_id": item["call_id"],
                    "execution": "client",
                    "tools": [LOADED],
                }
            )
    body, _ = sent(name, client_request(*items, *results, tools=TOOLS))
    text = json.dumps(body)
    for function in CALLS:
        assert text.count(f'"name": "{function}"') >= 2, function
    assert "*** Begin" in text


@pytest.mark.row("T219", "T161")
@pytest.mark.parametrize("name", ["apply_patch", "shell", "mcp__web__search"])
def test_truncated_call_of_another_kind_is_incomplete(name: str) -> None:
    client, request = adapters.get("openai-responses"), client_request(tools=TOOLS)
    context = client.response_context(request, RequestContext(session_id="sess_kinds"))
    whole = response_with({name: {}})
    broken = InvalidInput(raw='{"input": "*** Be', error="cut off")
    content = tuple(
        replace(block, invalid=broken) if isinstance(block, ToolUseBlock) else block
        for block in whole.content
    )
    metadata = replace(whole.metadata, stop_reason=StopReason.MAX_TOKENS)
    message = replace(whole, content=content, metadata=metadata)
    plain = json.loads(client.to_wire_response(message, context))["output"][-1]
    stream = streamed(client, [*events_of_message(message)], context)
    assert plain["status"] == "incomplete"
    assert '"status":"incomplete"' in stream.decode()
    assert json.dumps('{"input": "*** Be')[1:-1] in stream.decode()


@pytest.mark.row("T219")
@pytest.mark.parametrize("is_stream", [False, True])
def test_chat_custom_tools_return_as_custom_calls(*, is_stream: bool) -> None:
    client = adapters.get("openai")
    custom = {"name": "apply_patch", "description": "Edits.", "format": {"type": "text"}}
    body = {
        "model": "gpt-5",
        "messages": [{"role": "user", "content": "Go."}],
        "tools": [{"type": "custom", "custom": custom}],
    }
    request = client.from_wire_request(body)
    for name in ("anthropic", "mistral", "gemini"):
        assert tool_names(sent(name, request)[0]) == {"apply_patch"}
    context = client.response_context(request)
    message = response_with({"apply_patch": {"input": "*** Begin"}})
    if is_stream:
        stream = streamed(client, [*events_of_message(message)], context)
        decoder = client.stream_decoder()
        decoder.feed(stream)
        decoder.finish()
        block = decoder.message.content[-1]
        assert '"custom":{"input":"*** Begin"}' in stream.decode()
        assert '"usage"' not in stream.decode()  # the client did not request it
    else:
        wire = client.to_wire_response(message, context)
        call = json.loads(wire)["choices"][0]["message"]["tool_calls"][0]
        assert call["custom"] == {"name": "apply_patch", "input": "*** Begin"}
        block = client.from_wire_response(wire).content[-1]
    assert isinstance(block, ToolUseBlock)
    assert dict(block.input) == {"input": "*** Begin"}


@pytest.mark.row("T129")
@pytest.mark.parametrize("asks", [False, True])
def test_chat_stream_has_usage_only_on_request(*, asks: bool) -> None:
    client = adapters.get("openai")
    body: dict[str, Any] = {"model": "my-alias", "messages": [{"role": "user", "content": "Go."}]}
    if asks:
        body["stream_options"] = {"include_usage": True}
    context = client.response_context(client.from_wire_request(body))
    message = response_with({})
    stream = streamed(client, [*events_of_message(message)], context).decode()
    assert ('"usage"' in stream) is asks
    assert '"model":"my-alias"' in stream
    plain = json.loads(client.to_wire_response(message, context))
    assert "usage" in plain  # a plain response always has it
    assert plain["model"] == "my-alias"
    assert isinstance(message.content[0], TextBlock)
