"""Mistakes of callers give errors with the expected value and a remedy."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

import metis
from metis import Options, TextBlock
from metis.canonical.errors import (
    InvalidValueError,
    MetisError,
    NoModelError,
    RefusedChoiceError,
)
from metis.session import SyncSession


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    monkeypatch.setenv("METIS_HOME", str(tmp_path))
    return f"sqlite:///{tmp_path}/chats.db"


CALLS: list[tuple[Callable[[Any], object], str]] = [
    (lambda s: s.ask(3), "$.prompt: expected a text or a list of texts and content blocks"),
    (lambda s: s.ask({"role": "user"}), "got dict"),
    (lambda s: s.ask([3]), "$.prompt[0]: expected a text"),
    (lambda s: s.ask(""), "$.prompt: the prompt is empty"),
    (lambda s: s.ask([TextBlock(" ")]), "the prompt is empty"),
    (lambda s: s.ask("x", model=3), "$.model: expected the name of a model, got int"),
    (lambda s: s.ask("x", model="sonet"), "did you mean sonnet?"),
    (lambda s: s.ask("x", model="opnai:x"), "no provider 'opnai'; did you mean openai"),
    (lambda s: s.ask("x", model="zzz:x"), "there is no provider 'zzz'; anthropic, openai,"),
    (lambda s: s.ask_json("x", 3), "expected a JSON Schema (dict) or a type, got int"),
    (lambda s: s.ask("x", options={"temperature": 1}), "a turn has no option 'temperature'"),
]


@pytest.mark.parametrize(("call", "text"), CALLS)
def test_wrong_argument_error_names_expected_type(
    url: str, call: Callable[[Any], object], text: str
) -> None:
    with metis.open_sync(url, Options(simulate=True)) as m:
        session: SyncSession = m.session()
        with pytest.raises(MetisError) as raised:
            call(session)
        assert text in str(raised.value)
        assert session.ask("say done").text == "done"  # the session continues


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"tools": 3}, "$.tools: expected a list of functions, or a Registry, got int"),
        ({"budget": 3}, "$.budget: expected a Budget"),
        ({"keys": "sk-1"}, "$.keys: expected a mapping by provider, got str"),
        ({"workspace": 3}, "$.workspace: expected the path of a directory, got int"),
        ({"options": {}}, "$.options: expected an AdapterOptions, got dict"),
        ({"simulate": "yes"}, "$.simulate: expected True or False, got str"),
    ],
)
def test_wrong_option_error_names_expected_value(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidValueError) as raised:
        Options(**fields)
    assert text in str(raised.value)


def test_options_are_no_dict_and_a_tool_is_a_function(url: str) -> None:
    wrong: Any = {"keys": {"openai": "sk-secret"}}
    with pytest.raises(InvalidValueError, match=r"expected an Options, .* got dict$"):
        metis.ask("hello", url=url, options=wrong)
    with pytest.raises(InvalidValueError, match="expected a function, got dict"):
        metis.tool(wrong)


def test_missing_key_error_names_variable_and_command(url: str) -> None:
    with pytest.raises(RefusedChoiceError) as raised:
        metis.ask("hello", model="sonnet", url=url)
    assert "set ANTHROPIC_API_KEY, run `metis keys set anthropic`" in str(raised.value)


def test_key_file_of_the_cli_is_read(url: str, tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.touch(mode=0o600)
    file.write_text('[keys]\nanthropic = "sk-1"\n')

    async def is_available() -> bool:
        async with metis.open(url) as m:
            return m.models.is_available("anthropic")

    assert asyncio.run(is_available())


def test_turn_without_model_error_explains_how_to_set_one(url: str) -> None:
    with pytest.raises(NoModelError, match=r"pass `model`, or set Options.default_model"):
        metis.ask("hello", url=url)


def test_missing_workspace_error_names_the_path(url: str) -> None:
    with pytest.raises(InvalidValueError, match=r"\$.workspace: /none cannot be opened"):
        metis.ask("hello", url=url, options=Options(simulate=True, workspace="/none"))


def test_wrong_with_statement_error_names_the_right_one(url: str) -> None:
    with pytest.raises(TypeError, match="open_sync"), cast("Any", metis.open(url)):
        pass


def test_nothing_is_printed_unless_the_program_handles_the_log(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = logging.getLogger("metis")
    monkeypatch.setattr(log, "propagate", False)  # the handlers of pytest are at the root
    with metis.open_sync(url, Options(simulate=True)) as m:
        m.session(model="sonnet").ask_json("give", dict[str, int])
    assert log.handlers
    assert capsys.readouterr().err == ""


def test_a_blocking_call_works_while_a_loop_runs(url: str) -> None:
    async def notebook_cell() -> str:
        reply: Any = metis.ask("say **done**", url=url, options=Options(simulate=True))
        return reply._repr_html_()

    assert "<strong>done</strong>" in asyncio.run(notebook_cell())
