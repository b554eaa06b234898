"""A conversation through all protocols: signatures and ids return only to their issuer.

Between the turns it is stored as JSON and loaded again, like a resumed session.
"""

import json
from typing import Any

import pytest

from build import image, text, tool, user
from judges import complaints
from metis import adapters
from metis.canonical import Message, ToolDefinition, ToolUseBlock, decode, encode
from metis.canonical.tools import SideEffects
from metis.wire.call import AdapterOptions, RequestContext, WireRequest
from metis.wire.json_access import maybe_list, maybe_object
from test_laws import faults

Wire = dict[str, Any]
CONTEXT = RequestContext(session_id="sess_walk", status=200)
_IDS = ("id", "tool_call_id")
PICTURE = "iVBORw0KGgo="
TOOL = ToolDefinition(
    "look_up",
    "Looks a word up.",
    {"type": "object", "properties": {"word": {"type": "string"}}},
    SideEffects.READ,
)


def function(arguments: Any) -> Wire:
    return {"name": "look_up", "arguments": arguments}


FIRST: Wire = {
    "id": "msg_01",
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-4-6",
    "content": [
        {"type": "thinking", "thinking": "Two words.", "signature": "c2VhbC1vZi1hbnRocm9waWM="},
        {"type": "redacted_thinking", "data": "aGlkZGVuLWJ5LWFudGhyb3BpYw=="},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "toolu_01A", "name": "look_up", "input": {"word": "x"}},
        {"type": "tool_use", "id": "toolu_01B", "name": "look_up", "input": {"word": "y"}},
    ],
    "stop_reason": "tool_use",
    "usage": {"input_tokens": 3, "output_tokens": 4},
}
ANSWERS: dict[str, Wire] = {
    "anthropic": FIRST,
    "openai": {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt-5",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {
                            "id": "call_openai_1",
                            "type": "function",
                            "function": function('{"word":"a"}'),
                        }
                    ],
                },
                "finish_reason": "tool_calls",
            }
        ],
    },
    "gemini": {
        "candidates": [
            {
                "content": {
                    "role": "model",
                    "parts": [
                        {"text": "Hm.", "thought": True},
                        {
                            "functionCall": {
                                "id": "gemini_1",
                                "name": "look_up",
                                "args": {"word": "b"},
                            },
                            "thoughtSignature": "c2VhbC1vZi1nZW1pbmk=",
                        },
                    ],
                },
                "finishReason": "STOP",
                "index": 0,
            }
        ],
        "modelVersion": "gemini-3.5-flash",
        "responseId": "g1",
    },
    "bedrock-converse": {
        "metrics": {"latencyMs": 1},
        "output": {
            "message": {
                "role": "assistant",
                "content": [
                    {
                        "reasoningContent": {
                            "reasoningText": {
                                "text": "Well.",
                                "signature": "c2VhbC1vZi1iZWRyb2Nr",
                            }
                        }
                    },
                    {"reasoningContent": {"redactedContent": "aGlkZGVuLWJ5LWJlZHJvY2s="}},
                    {
                        "toolUse": {
                            "toolUseId": "tooluse_01",
                            "name": "look_up",
                            "input": {"word": "e"},
                        }
                    },
                ],
            }
        },
        "stopReason": "tool_use",
        "usage": {"inputTokens": 1, "outputTokens": 2, "totalTokens": 3},
    },
    "openai-responses": {
        "id": "resp_1",
        "object": "response",
        "model": "gpt-5",
        "status": "completed",
        "output": [
            {
                "type": "reasoning",
                "id": "rs_1",
                "summary": [{"type": "summary_text", "text": "So."}],
                "encrypted_content": "c2VhbC1vZi1vcGVuYWk=",
            },
            {
                "type": "function_call",
                "id": "fc_1",
                "call_id": "call_responses_1",
                "name": "look_up",
                "arguments": '{"word":"c"}',
                "status": "completed",
            },
        ],
    },
    "ollama": {
        "model": "qwen3",
        "created_at": "2026-05-08T12:00:00Z",
        "message": {
            "role": "assistant",
            "content": "",
            "thinking": "Thought at home.",
            "tool_calls": [{"id": "ollama_1", "function": function({"word": "d"})}],
        },
        "done": True,
        "done_reason": "stop",
    },
}
"""The response of each provider in its turn; every response calls a tool."""
ISSUED: dict[str, set[str]] = {
    "anthropic": {
        "c2VhbC1vZi1hbnRocm9waWM=",
        "aGlkZGVuLWJ5LWFudGhyb3BpYw==",
        "toolu_01A",
        "toolu_01B",
    },
    "bedrock-converse": {
        "c2VhbC1vZi1iZWRyb2Nr",
        "aGlkZGVuLWJ5LWJlZHJvY2s=",
        "tooluse_01",
    },
    "openai": {"call_openai_1"},
    "gemini": {"c2VhbC1vZi1nZW1pbmk=", "gemini_1"},
    "openai-responses": {"c2VhbC1vZi1vcGVuYWk=", "rs_1", "call_responses_1"},
    "ollama": {"Thought at home.", "ollama_1"},
}
"""The signatures and ids of each provider, which no other provider may receive."""


def stored(messages: list[Message]) -> list[Message]:
    return [decode(encode(message)) for message in messages]


def sent(name: str, talk: list[Message]) -> WireRequest:
    """Return a request that the SDK's types accept and in which every call has a result."""
    options = AdapterOptions(
        max_output_tokens=1000, model="qwen3" if name == "ollama" else None, stream=False
    )
    wire = adapters.get(name).to_wire(talk, [TOOL], options)
    body = json.loads(wire.body)
    assert faults(name, body) == []
    if name == "ollama":
        body = without_ids(body)
    assert complaints(name, {k: v for k, v in body.items() if k != "stream"}) == []
    return wire


def without_ids(value: Any) -> Any:
    """Return an Ollama body without ids, which newer servers accept and the SDK's types lack."""
    if isinstance(value, list):
        return [without_ids(item) for item in maybe_list(value)]
    if not isinstance(value, dict):
        return value
    kept = {key: item for key, item in maybe_object(value).items() if key not in _IDS}
    return {key: without_ids(item) for key, item in kept.items()}


def foreign(name: str, body: bytes) -> set[str]:
    """Return the signatures and ids of other providers in a request."""
    body_text = body.decode()
    return {
        one
        for other, all_ in ISSUED.items()
        if other != name
        for one in all_
        if f'"{one}"' in body_text
    }


def conversation_through_all() -> list[Message]:
    """Return the conversation after a turn with each provider."""
    talk = [user("What is on it?", image(PICTURE))]
    for name, body in ANSWERS.items():
        wire = sent(name, talk)
        assert foreign(name, wire.body) == set(), name
        answer = adapters.get(name).from_wire_response(json.dumps(body).encode(), CONTEXT)
        calls = [block for block in answer.content if isinstance(block, ToolUseBlock)]
        results = [tool(text("Found."), image(PICTURE), answers=one.id) for one in calls]
        talk = stored([*talk, answer, *results, user("And on?")])
    return talk


@pytest.mark.row("T204")
def test_t204_anthropic_receives_its_signatures_and_ids_after_turns_with_all_providers() -> None:
    talk = conversation_through_all()
    wire = sent("anthropic", talk)
    turns = json.loads(wire.body)["messages"]
    assert turns[1]["content"] == FIRST["content"]
    answered = [part["tool_use_id"] for part in turns[2]["content"] if "tool_use_id" in part]
    assert answered == ["toolu_01A", "toolu_01B"]
    assert all(f'"{one}"' in wire.body.decode() for one in ISSUED["anthropic"])
    assert foreign("anthropic", wire.body) == set()


@pytest.mark.row("T38", "T204")
@pytest.mark.parametrize("name", ANSWERS)
def test_signatures_and_ids_are_sent_only_to_their_issuer(name: str) -> None:
    wire = sent(name, conversation_through_all())
    assert [one for one in ISSUED[name] if f'"{one}"' not in wire.body.decode()] == []
    assert foreign(name, wire.body) == set()
    # The picture of the prompt and those of seven results; the model of Ollama sees no images.
    assert wire.body.count(PICTURE.encode()) == (0 if name == "ollama" else 8)
