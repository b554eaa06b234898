"""The plugin of `llm`: its models answer, stream, call tools and fill schemas."""

import asyncio
import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from metis.integrations import llm_plugin

pytest.importorskip("llm", reason="needs the extra llm")
LLM: Any = import_module("llm")
PLUGINS: Any = import_module("llm.plugins")


@pytest.fixture(scope="module", autouse=True)
def registered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    PLUGINS.load_plugins()
    is_installed = PLUGINS.pm.is_registered(llm_plugin)
    if not is_installed:
        PLUGINS.pm.register(llm_plugin)
    yield
    if not is_installed:
        PLUGINS.pm.unregister(llm_plugin)


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path))
    return LLM.get_model("metis/sim")


def test_aliases_are_models(model: Any) -> None:
    assert LLM.get_model("metis/sonnet").model_id == "metis/sonnet"


def test_a_prompt_is_answered_with_its_usage(model: Any) -> None:
    response = model.prompt("say hello", system="Be brief.", temperature=0.5)
    assert response.text() == "hello"
    assert response.usage().output == 1
    assert response.response_json["model"] == "anthropic:sim-small"


def test_text_is_streamed_and_history_is_sent(model: Any) -> None:
    conversation = model.conversation()
    assert len(list(conversation.prompt("count to 3"))) > 3
    assert "2 messages" not in conversation.prompt("say done").text()
    history = llm_plugin._history(conversation.responses[-1].prompt.messages)  # pyright: ignore[reportPrivateUsage] - what is sent
    assert [message.role for message in history] == ["user", "assistant", "user"]
    assert history[1].metadata.response_id  # its canonical message came back


def test_tools_are_called(model: Any) -> None:
    def plus(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    assert model.chain("use the tool plus", tools=[plus]).text().endswith('plus gave: "2".')


def test_a_schema_is_filled(model: Any) -> None:
    properties = {"name": {"type": "string"}, "age": {"type": "integer"}}
    schema = {"type": "object", "properties": properties, "required": ["name", "age"]}
    value = json.loads(model.prompt("a person", schema=schema).text())
    assert isinstance(value["age"], int)


def test_images_are_sent(model: Any) -> None:
    image = LLM.Attachment(type="image/png", content=b"\x89PNG\r\n\x1a\n")
    assert "PNG image" in model.prompt("look", attachments=[image]).text()


def test_async_models(model: Any) -> None:
    async def read() -> str:
        return await LLM.get_async_model("metis/sim").prompt("say hi").text()

    assert asyncio.run(read()) == "hi"
