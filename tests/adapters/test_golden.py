"""Golden requests of one conversation with a tool, and decoded responses, for two protocols."""

import json
import logging
from typing import Any

import pytest

from build import assistant, call, image, system, text, tool, tool_id, user
from metis import adapters
from metis.canonical import StopReason, ThinkingBlock, ToolDefinition, ToolUseBlock
from metis.canonical.tools import SideEffects
from metis.wire.call import AdapterOptions, RequestContext

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
TOOL = ToolDefinition("read_file", "Reads a file.", SCHEMA, SideEffects.READ)
CALL = call("read_file", tool_id(1), path="a.txt")
TALK = [
    system("Be brief."),
    user("What is in a.txt?"),
    assistant(text("I look."), CALL),
    tool("hello", answers=CALL.id),
]
ID_SUFFIX = CALL.id.removeprefix("tu_")


@pytest.mark.row("A-019", "A-021", "A-022", "A-034", "M-213")
def test_anthropic_request() -> None:
    options = AdapterOptions(model="claude-sonnet-4-6", max_output_tokens=100)
    body = json.loads(adapters.get("anthropic").to_wire(TALK, [TOOL], options).body)
    assert body == {
        "model": "claude-sonnet-4-6",
        "max_tokens": 100,
        "system": [{"type": "text", "text": "Be brief."}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "What is in a.txt?"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "I look."},
                    {
                        "type": "tool_use",
                        "id": f"toolu_{ID_SUFFIX}",
                        "name": "read_file",
                        "input": {"path": "a.txt"},
                    },
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": f"toolu_{ID_SUFFIX}",
                        "content": [{"type": "text", "text": "hello"}],
                    }
                ],
            },
        ],
        "tools": [{"name": "read_file", "description": "Reads a file.", "input_schema": SCHEMA}],
    }


@pytest.mark.row("A-025", "A-026", "A-027", "A-029", "A-033", "A-035", "A-036", "M-242", "M-243")
@pytest.mark.parametrize("name", ["openai", "openrouter", "groq", "together", "fireworks", "vllm"])
def test_chat_completions_request(name: str) -> None:
    request = adapters.get(name).to_wire(TALK, [TOOL], AdapterOptions(model="m"))
    assert request.losses == []
    assert json.loads(request.body) == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "What is in a.txt?"},
            {
                "role": "assistant",
                "content": "I look.",
                "tool_calls": [
                    {
                        "id": f"call_{ID_SUFFIX}",
                        "type": "function",
                        "function": {"name": "read_file", "arguments": '{"path":"a.txt"}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": f"call_{ID_SUFFIX}", "content": "hello"},
        ],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "read_file",
                    "description": "Reads a file.",
                    "parameters": SCHEMA,
                },
            }
        ],
    }


@pytest.mark.row("M-241")
def test_without_instructions_first_message_is_from_user() -> None:
    body = json.loads(adapters.get("openai").to_wire(TALK[1:]).body)
    assert body["messages"][0]["role"] == "user"


@pytest.mark.row("M-205", "M-216", "M-222", "M-226")
def test_image_for_model_without_vision_is_omitted_with_loss(
    caplog: pytest.LogCaptureFixture,
) -> None:
    options = AdapterOptions(model="deepseek-chat")
    with caplog.at_level(logging.WARNING, logger="metis.adapters"):
        request = adapters.get("deepseek").to_wire([user("look", image())], options=options)
    assert image().source.data not in request.body.decode()
    assert [loss.block_type for loss in request.losses][:1] == ["image"]
    assert "image" in [getattr(record, "block_type", "") for record in caplog.records]


@pytest.mark.row("M-206")
def test_a_model_without_tools_is_sent_none() -> None:
    deepseek = adapters.get("deepseek")
    assert not deepseek.capabilities("deepseek-reasoner").supports_tools
    options = AdapterOptions(model="deepseek-reasoner")
    request = deepseek.to_wire([user("hi")], [TOOL], options)
    assert "tools" not in json.loads(request.body)
    assert [loss.path for loss in request.losses] == ["$.tools"]


@pytest.mark.row("A-038", "A-039", "A-040", "A-041", "A-042", "A-044", "A-049", "M-200")
def test_response_of_any_host_is_a_canonical_message() -> None:
    output_text: dict[str, Any] = {
        "role": "assistant",
        "content": "done",
        "reasoning": "hm",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        ],
    }
    body = {
        "id": "r1",
        "model": "m",
        "choices": [{"index": 0, "message": output_text, "finish_reason": "tool_calls"}],
        "usage": {
            "prompt_tokens": 10,
            "completion_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 4},
        },
    }
    for name in ("openrouter", "groq", "vllm"):
        message = adapters.get(name).from_wire_response(body, RequestContext(session_id="s"))
        thought, text_block, called = message.content
        assert isinstance(thought, ThinkingBlock)
        assert thought.text == "hm"
        assert text_block == text("done")
        assert isinstance(called, ToolUseBlock)
        usage = message.metadata.usage
        assert usage is not None
        assert (usage.input_tokens, usage.cached_input_tokens, usage.output_tokens) == (6, 4, 5)
        assert message.metadata.model == f"{name}:m"


@pytest.mark.row("A-045", "A-046", "A-047", "A-048")
@pytest.mark.parametrize(
    ("choice", "reason"),
    [
        ({"finish_reason": "stop"}, StopReason.END_TURN),
        ({"finish_reason": "tool_calls"}, StopReason.TOOL_USE),
        ({"finish_reason": "length"}, StopReason.MAX_TOKENS),
        ({"finish_reason": "stop", "stop_reason": "END"}, StopReason.STOP_SEQUENCE),
    ],
)
def test_stop_reason_is_mapped(choice: dict[str, Any], reason: StopReason) -> None:
    body = {"choices": [{"message": {"role": "assistant", "content": "a"}, **choice}]}
    message = adapters.get("vllm").from_wire_response(body)
    assert message.metadata.stop_reason is reason
