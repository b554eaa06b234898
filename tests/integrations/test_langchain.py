"""The chat model of LangChain: text, streams, tools, typed output, usage, and sealed parts."""

import asyncio
import json
from functools import reduce
from importlib import import_module
from operator import add
from typing import Any

import pytest
from pydantic import BaseModel

from metis import Options
from metis.integrations import langchain

pytest.importorskip("langchain_core", reason="needs the extra langchain")
MESSAGES: Any = import_module("langchain_core.messages")
TOOLS: Any = import_module("langchain_core.tools")


class Forecast(BaseModel):
    """A forecast."""

    town: str
    degrees: int


def plus(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@pytest.fixture(scope="module")
def model() -> Any:
    return langchain.MetisChatModel(model="sonnet", options=Options(simulate=True))


def test_a_prompt_is_answered_with_its_cost_and_usage(model: Any) -> None:
    reply = model.invoke([("system", "Be brief."), ("user", "say hello")])
    assert reply.content == "hello"
    assert reply.usage_metadata["output_tokens"] == 1
    assert reply.response_metadata["model_name"] == "anthropic:claude-sonnet-4-6"
    assert float(reply.response_metadata["cost_usd"]) > 0
    assert reply.response_metadata["finish_reason"] == "stop"


def test_stream_equals_whole_response(model: Any) -> None:
    chunks = list(model.stream("count to 3"))
    assert len(chunks) > 3
    assert reduce(add, chunks).content == model.invoke("count to 3").content

    async def read() -> list[Any]:
        return [chunk async for chunk in model.astream("count to 3")]

    assert reduce(add, asyncio.run(read())).content == "1, 2, 3"


@pytest.mark.parametrize("is_streamed", [False, True])
def test_tools_are_called_and_their_results_read(model: Any, *, is_streamed: bool) -> None:
    bound = model.bind_tools([TOOLS.tool(plus)])
    prompt = MESSAGES.HumanMessage("use the tool plus")
    reply = reduce(add, bound.stream([prompt])) if is_streamed else bound.invoke([prompt])
    (call,) = reply.tool_calls
    assert (call["name"], call["args"]) == ("plus", {"a": 1, "b": 1})
    assert reply.usage_metadata["input_tokens"] > 0
    result = MESSAGES.ToolMessage("2", tool_call_id=call["id"])
    assert bound.invoke([prompt, reply, result]).content == 'plus gave: "2".'


def test_the_history_of_another_model_is_read(model: Any) -> None:
    call = {"name": "plus", "args": {"a": 1, "b": 1}, "id": "call_of_another"}
    history = [
        MESSAGES.HumanMessage("use the tool plus"),
        MESSAGES.AIMessage("", tool_calls=[call]),
        MESSAGES.ToolMessage("2", tool_call_id="call_of_another"),
    ]
    bound = model.bind_tools([TOOLS.tool(plus)])
    assert bound.invoke(history).content == 'plus gave: "2".'


def test_typed_output(model: Any) -> None:
    assert isinstance(model.with_structured_output(Forecast).invoke("forecast"), Forecast)


def test_images_are_sent(model: Any) -> None:
    url = "data:image/png;base64,iVBORw0KGgo="
    parts = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": url}}]
    assert "PNG image" in model.invoke([MESSAGES.HumanMessage(parts)]).content


def test_thinking_is_sent_back_with_signature_after_json_round_trip(model: Any) -> None:
    thinking = langchain.MetisChatModel(
        model="sonnet", options=Options(simulate=True), max_tokens=4000
    )
    prompt = MESSAGES.HumanMessage("think, then say done")
    reply = thinking.invoke([prompt], reasoning_effort="high")
    (stored,) = MESSAGES.messages_from_dict(
        json.loads(json.dumps(MESSAGES.messages_to_dict([reply])))
    )
    history = langchain._history([prompt, stored])  # pyright: ignore[reportPrivateUsage] - what is sent
    kinds = [block.type for block in history[1].content]
    assert kinds == ["thinking", "text"]
    assert history[1].content[0].signature


def test_a_response_that_the_framework_changed_is_sent_as_changed(model: Any) -> None:
    reply = model.invoke("say hello")
    reply.content = "goodbye"
    (message,) = langchain._history([reply])  # pyright: ignore[reportPrivateUsage] - what is sent
    assert [block.text for block in message.content] == ["goodbye"]
