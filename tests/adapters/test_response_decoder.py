"""Tool calls in responses get canonical names, and one block per call."""

import json
from typing import Any

import pytest

from build import tool, user
from metis import adapters
from metis.canonical import Message, ToolDefinition, ToolUseBlock
from metis.canonical.tools import SideEffects
from metis.projection.tool_calls import wire_tool_name
from metis.streaming import MessageComplete, StreamEvent, ToolUseEnd, ToolUseStart
from metis.streaming.accumulator import Accumulator
from metis.wire.call import RequestContext

OPENAI = adapters.get("openai")
OURS = "mcp.files/read"
CONTEXT = RequestContext(session_id="sess_calls", tools=(OURS, "write"))


def answer(name: str, arguments: str) -> dict[str, Any]:
    message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}
        ],
    }
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    return {"id": "r", "object": "chat.completion", "model": "gpt-5", "choices": [choice]}


def streamed(name: str, arguments: str) -> bytes:
    half = len(arguments) // 2
    first = {"index": 0, "id": "c1", "function": {"name": name, "arguments": arguments[:half]}}
    rest = {"index": 0, "function": {"arguments": arguments[half:]}}
    deltas: list[dict[str, Any]] = [
        {"content": "so"},
        {"tool_calls": [first]},
        {"tool_calls": [rest]},
    ]
    chunks: list[dict[str, Any]] = [
        {"id": "r", "model": "gpt-5", "choices": [{"index": 0, "delta": delta}]} for delta in deltas
    ]
    end: dict[str, Any] = {"index": 0, "delta": {}, "finish_reason": "tool_calls"}
    chunks.append({"id": "r", "model": "gpt-5", "choices": [end]})
    data = b"".join(b"data: %b\n\n" % json.dumps(chunk).encode() for chunk in chunks)
    return data + b"data: [DONE]\n\n"


def calls(message: Message) -> list[tuple[str, Any]]:
    return [(b.name, b.input) for b in message.content if isinstance(b, ToolUseBlock)]


def events_of(data: bytes) -> list[StreamEvent]:
    decoder = OPENAI.stream_decoder(CONTEXT)
    events = [event for byte in data for event in decoder.feed(bytes([byte]))] + decoder.finish()
    last = events[-1]
    assert isinstance(last, MessageComplete)
    assert decoder.message == last.message
    return events


CASES: dict[str, tuple[str, str, list[tuple[str, Any]]]] = {
    "our name": (wire_tool_name(OURS), '{"a":1}', [(OURS, {"a": 1})]),
    "glued": (
        "write",
        '{"a":1}{"b":2} {"c":3}',
        [("write", {"a": 1}), ("write", {"b": 2}), ("write", {"c": 3})],
    ),
    "glued to nothing": ("write", '{}{"a":1}', [("write", {"a": 1})]),
    "wrapped": (
        "multi_tool_use.parallel",
        json.dumps(
            {
                "tool_uses": [
                    {"recipient_name": "functions.write", "parameters": {"a": 1}},
                    {"recipient_name": f"functions.{wire_tool_name(OURS)}", "parameters": {}},
                ]
            }
        ),
        [("write", {"a": 1}), (OURS, {})],
    ),
    "not wrapped": (
        "parallel",
        '{"tool_uses":[{"recipient_name":"functions.unheard_of"}]}',
        [("parallel", {"tool_uses": [{"recipient_name": "functions.unheard_of"}]})],
    ),
}


@pytest.mark.row("M-041", "T35", "T111", "T140")
@pytest.mark.parametrize("case", CASES)
def test_response_has_the_intended_calls(case: str) -> None:
    name, arguments, expected = CASES[case]
    message = OPENAI.from_wire_response(answer(name, arguments), CONTEXT)
    assert calls(message) == expected
    ids = [block.id for block in message.content if isinstance(block, ToolUseBlock)]
    assert len(set(ids)) == len(expected)
    results = [tool("ok", answers=each) for each in ids]
    tools = [
        ToolDefinition(each, "", {"type": "object"}, SideEffects.READ) for each in CONTEXT.tools
    ]
    wire = OPENAI.to_wire([user("go"), message, *results], tools)
    sent = json.loads(wire.body)["messages"]
    assert [call["id"] for call in sent[1]["tool_calls"]] == [m["tool_call_id"] for m in sent[2:]]
    assert sent[1]["tool_calls"][0]["id"] == "c1"
    assert {call["function"]["name"] for call in sent[1]["tool_calls"]} <= {
        wire_tool_name(each) for each, _ in expected
    }


@pytest.mark.row("M-201", "T35", "T111", "T140")
@pytest.mark.parametrize("case", CASES)
def test_stream_has_the_same_calls(case: str) -> None:
    name, arguments, expected = CASES[case]
    events = events_of(streamed(name, arguments))
    last = events[-1]
    assert isinstance(last, MessageComplete)
    assert calls(last.message) == expected
    starts = [event for event in events if isinstance(event, ToolUseStart)]
    ends = [event for event in events if isinstance(event, ToolUseEnd)]
    assert [event.tool_name for event in starts] == [each for each, _ in expected]
    assert [event.final_input for event in ends] == [given for _, given in expected]
    assert [e.tool_use_id for e in starts] == [e.tool_use_id for e in ends]
    assert len({event.content_block_index for event in starts}) == len(expected)
    total = Accumulator()
    for event in events:
        total.add(event)
    assert total.content == last.message.content


@pytest.mark.row("T35")
def test_concatenated_arguments_in_history_stay_one_call() -> None:
    (message,) = (choice["message"] for choice in answer("write", '{"a":1}{"b":2}')["choices"])
    prompt: dict[str, Any] = {"role": "user", "content": "go"}
    answered: dict[str, Any] = {"role": "tool", "tool_call_id": "c1", "content": "ok"}
    body: dict[str, Any] = {"messages": [prompt, message, answered]}
    request = OPENAI.from_wire_request(body, CONTEXT)
    assert json.loads(OPENAI.to_wire(request.messages, (), request.options).body) == body
    write = ToolDefinition("write", "Writes.", {"type": "object"}, SideEffects.WRITE)
    away = adapters.get("anthropic").to_wire(request.messages, (write,))
    assert [loss.path for loss in away.losses] == ["$.content[0].input", "$.content[0]"]


_CHOICE = {"index": 0, "message": {"role": "assistant", "content": "so"}, "finish_reason": "stop"}
_ITEM: dict[str, Any] = {
    "type": "message",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "so", "annotations": []}],
}
_CANDIDATE = {"content": {"role": "model", "parts": [{"text": "so"}]}, "finishReason": "STOP"}
RESPONSES: dict[str, tuple[str, dict[str, Any]]] = {
    "anthropic": ("model", {"role": "assistant", "content": [{"type": "text", "text": "so"}]}),
    "openai": ("model", {"choices": [_CHOICE]}),
    "openai-responses": ("model", {"status": "completed", "output": [_ITEM]}),
    "gemini": ("modelVersion", {"candidates": [_CANDIDATE]}),
    "ollama": ("model", {"message": {"role": "assistant", "content": "so"}, "done": True}),
}


@pytest.mark.parametrize("name", RESPONSES)
@pytest.mark.parametrize("stated", ["m-1", "", None, 5, "absent"])
def test_model_of_response_is_that_of_request_or_the_stated_one(name: str, stated: Any) -> None:
    key, body = RESPONSES[name]
    if stated != "absent":
        body = {**body, key: stated}
    adapter = adapters.get(name)
    message = adapter.from_wire_response(body, RequestContext(session_id="s"))
    is_stated = stated == "m-1"
    context = RequestContext(session_id="s", model=f"{name}:requested")
    model = adapter.from_wire_response(body, context).metadata.model
    if name.startswith("openai"):
        # A gateway of this protocol may choose the model; the response states which.
        assert message.metadata.model == (f"{name}:m-1" if is_stated else None)
        assert model == f"{name}:{'m-1' if is_stated else 'requested'}"
    else:
        assert message.metadata.model == f"{name}:{'m-1' if is_stated else 'unknown'}"
        assert model == f"{name}:requested"
