"""The official Ollama SDK with the simulator over loopback."""

from collections.abc import AsyncGenerator
from typing import Any

import ollama
import pytest

from metis.sim import Settings, Simulator
from simulated import READ_SCHEMA, png_base64, requires_adapter

pytestmark = [pytest.mark.anyio, requires_adapter("ollama")]

MODEL = "llama3.2"
TOOLS: Any = [
    {
        "type": "function",
        "function": {"name": "read_file", "description": "x", "parameters": READ_SCHEMA},
    }
]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def llama() -> AsyncGenerator[Any]:
    async with Simulator(settings=Settings(chunk_bytes=11)) as sim:
        client: Any = ollama.AsyncClient(host=sim.base_url)
        try:
            yield client
        finally:
            await client._client.aclose()


async def test_thinking_call_and_response(llama: Any) -> None:
    history: Any = [{"role": "user", "content": "Read a.txt and b.txt"}]
    shared: Any = {"model": MODEL, "tools": TOOLS, "think": True}
    first = await llama.chat(messages=history, **shared)
    assert first.message.thinking
    assert first.model == f"sim-{MODEL}"
    calls = first.message.tool_calls
    assert [call.function.arguments for call in calls] == [{"path": "a.txt"}, {"path": "b.txt"}]
    history.append(first.message.model_dump(exclude_none=True))
    history += [{"role": "tool", "content": "text", "tool_name": "read_file"} for _ in calls]
    second = await llama.chat(messages=history, **shared)
    assert "read_file gave" in second.message.content
    assert second.prompt_eval_count > 0


async def test_stream_equals_plain_response(llama: Any) -> None:
    messages: Any = [{"role": "user", "content": "30 words"}]
    stream = await llama.chat(model=MODEL, messages=messages, stream=True)
    pieces = [part.message.content or "" async for part in stream]
    plain = await llama.chat(model=MODEL, messages=messages)
    assert "".join(pieces) == plain.message.content
    assert len(pieces) > 20


async def test_image_input(llama: Any) -> None:
    messages: Any = [{"role": "user", "content": "", "images": [png_base64(7, 5)]}]
    answer = await llama.chat(model=MODEL, messages=messages)
    assert "7 by 5 pixels" in answer.message.content


async def test_structured_output(llama: Any) -> None:
    messages: Any = [{"role": "user", "content": "the file src/a.py"}]
    answer = await llama.chat(model=MODEL, messages=messages, format=READ_SCHEMA)
    assert answer.message.content == '{"path":"src/a.py"}'


@pytest.mark.parametrize("status", [401, 429, 500, 503])
async def test_sdk_raises_its_error_classes(llama: Any, status: int) -> None:
    messages: Any = [{"role": "user", "content": f"sim: {status}"}]
    with pytest.raises(ollama.ResponseError) as caught:
        await llama.chat(model=MODEL, messages=messages)
    assert caught.value.status_code == status


async def test_sdk_raises_stream_error(llama: Any) -> None:
    messages: Any = [{"role": "user", "content": "40 words, sim: error"}]
    stream = await llama.chat(model=MODEL, messages=messages, stream=True)
    assert (await anext(stream)).message.content == "this"
    with pytest.raises(ollama.ResponseError, match="fail in the middle"):
        [part async for part in stream]


async def test_models_are_listed(llama: Any) -> None:
    assert "sim-small" in [model.model for model in (await llama.list()).models]
