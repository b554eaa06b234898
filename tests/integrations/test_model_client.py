"""The model client that the integrations share, and missing optional packages."""

import asyncio

import pytest

from metis import Options, Role, ToolUseBlock
from metis.canonical.errors import InvalidRequestError, InvalidValueError, UnknownModelError
from metis.integrations.model_client import History, ModelClient, OptionalPackage


def test_missing_package_error_names_the_extra() -> None:
    package = OptionalPackage("nothing_of_this_name.models", "some-extra")
    with pytest.raises(ImportError, match=r"pip install 'metis-llm\[some-extra\]'"):
        _ = package.Model


def test_one_client_serves_many_loops_and_blocking_code() -> None:
    client, history = ModelClient("haiku", Options(simulate=True)), History()
    history.add(Role.USER, "say done")

    async def ask() -> str:
        return (await client.acomplete(history.messages, {})).text

    assert [asyncio.run(ask()), asyncio.run(ask())] == ["done", "done"]
    assert client.complete(history.messages, {}).text == "done"


def test_losses_and_errors_reach_the_caller() -> None:
    client, history = ModelClient("sonnet", Options(simulate=True)), History()
    history.add(Role.USER, "say done")
    response = client.complete(history.messages, {"logit_bias": {"1": 1}})
    assert any("logit_bias" in str(loss) for loss in response.losses)
    history.add(Role.USER, "sim: 400")
    with pytest.raises(InvalidRequestError):
        client.complete(history.messages, {})
    with pytest.raises(InvalidRequestError):
        list(client.stream(history.messages, {}))


def test_unknown_model_error_names_the_model() -> None:
    with pytest.raises(UnknownModelError, match="sonnet"):
        _ = ModelClient("sonet").model
    with pytest.raises(InvalidValueError, match="no model is named"):
        _ = ModelClient().model


def test_non_object_arguments_are_preserved() -> None:
    history = History()
    history.add_response("", [("call_1", "plus", '{"a": 1'), ("call_2", "plus", '{"a": 1}')])
    first, second = (block for block in history.messages[0].content)
    assert isinstance(first, ToolUseBlock)
    assert isinstance(second, ToolUseBlock)
    assert first.invalid is not None
    assert (first.invalid.raw, second.input) == ('{"a": 1', {"a": 1})
    assert first.id != second.id
