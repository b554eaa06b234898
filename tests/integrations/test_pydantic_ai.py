"""The model of pydantic-ai: text, streams, tools, typed output, usage, and stored histories."""

import asyncio
from importlib import import_module
from typing import Any

import pytest
from pydantic import BaseModel

from metis import Options
from metis.canonical.errors import InvalidValueError
from metis.integrations import pydantic_ai

pytest.importorskip("pydantic_ai", reason="needs the extra pydantic-ai")
AI: Any = import_module("pydantic_ai")
MESSAGES: Any = import_module("pydantic_ai.messages")


class Forecast(BaseModel):
    """A forecast."""

    town: str
    degrees: int


@pytest.fixture(scope="module")
def model() -> Any:
    return pydantic_ai.MetisModel("sonnet", Options(simulate=True))


@pytest.fixture
def agent(model: Any) -> Any:
    made = AI.Agent(model, instructions="Be brief.")

    @made.tool_plain
    def plus(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    assert plus(1, 1) == 2
    return made


def test_a_prompt_is_answered_with_its_cost_and_usage(model: Any) -> None:
    result = AI.Agent(model).run_sync("say hello", model_settings={"temperature": 0.5})
    assert result.output == "hello"
    assert result.usage.output_tokens == 1
    response = result.all_messages()[-1]
    assert response.model_name == "anthropic:claude-sonnet-4-6"
    assert float(response.provider_details["cost_usd"]) > 0


def test_tools_are_called_and_history_is_sent_to_another_provider(agent: Any) -> None:
    result = agent.run_sync("use the tool plus")
    assert result.output == 'plus gave: "2".'
    kinds = [part.part_kind for message in result.all_messages() for part in message.parts]
    assert kinds == ["user-prompt", "text", "tool-call", "tool-return", "text"]
    history = MESSAGES.ModelMessagesTypeAdapter.validate_json(result.all_messages_json())
    other = AI.Agent(pydantic_ai.MetisModel("gpt-5", Options(simulate=True)))
    assert other.run_sync("say goodbye", message_history=history).output == "goodbye"


def test_typed_output(model: Any) -> None:
    output = AI.Agent(model, output_type=Forecast).run_sync("forecast").output
    assert isinstance(output, Forecast)


def test_streams(model: Any) -> None:
    async def read() -> tuple[list[str], Any, Any]:
        async with AI.Agent(model).run_stream("count to 3") as stream:
            texts = [text async for text in stream.stream_text(delta=True, debounce_by=None)]
        async with AI.Agent(model, output_type=Forecast).run_stream("forecast") as stream:
            return texts, await stream.get_output(), stream.usage

    texts, forecast, usage = asyncio.run(read())
    assert "".join(texts) == "1, 2, 3"
    assert len(texts) > 3
    assert isinstance(forecast, Forecast)
    assert usage.output_tokens > 0


def test_images_are_sent_and_unsupported_content_is_refused(model: Any) -> None:
    image = AI.BinaryContent(data=b"\x89PNG\r\n\x1a\n", media_type="image/png")
    assert "PNG image" in AI.Agent(model).run_sync(["look", image]).output
    video = AI.VideoUrl(url="https://example.org/a.mp4")
    with pytest.raises(InvalidValueError, match="VideoUrl cannot be sent"):
        AI.Agent(model).run_sync(["look", video])


def test_missing_key_error_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    monkeypatch.setenv("METIS_HOME", str(tmp_path))
    with pytest.raises(InvalidValueError, match="ANTHROPIC_API_KEY"):
        AI.Agent(pydantic_ai.MetisModel("sonnet")).run_sync("hello")
