"""Templates, fragments, schema notations, and conversations without storage."""

import json
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from metis.canonical.errors import InvalidValueError
from metis.cli.main import cli
from metis.cli.schemas import fields_schema, read_schema


@pytest.fixture(autouse=True)
def home(user: Path) -> Path:
    return user


def run(*arguments: str, stdin: bytes = b"") -> Result:
    return CliRunner().invoke(cli, list(arguments), input=stdin)


def write_template(home: Path, name: str, text: str) -> None:
    (home / "templates").mkdir(exist_ok=True)
    (home / "templates" / f"{name}.toml").write_text(text)


def test_a_template_fills_in_variables_and_sets_options(home: Path) -> None:
    write_template(
        home, "greet", 'prompt = "say $word $input"\nmodel = "sim"\n[defaults]\nword = "hi"'
    )
    assert run("-t", "greet", "Bob").stdout == "hi Bob\n"
    assert run("-t", "greet", "-p", "word=hello", "Bob").stdout == "hello Bob\n"
    assert run("-t", str(home / "templates" / "greet.toml"), "Bob").stdout == "hi Bob\n"
    assert "greet  say $word $input" in run("templates").stdout
    assert json.loads(run("templates", "--json").stdout)[0]["name"] == "greet"
    assert run("templates", "show", "greet").stdout.startswith('prompt = "say')


def test_a_question_is_added_where_a_template_has_no_place_for_it(home: Path) -> None:
    write_template(home, "plain", 'prompt = "say"\nmodel = "sim"')
    assert "the owl" in run("-t", "plain", "the owl").stdout


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("-t", "nope", "x"), "there is no template 'nope'; templates: need, wrong"),
        (("-t", "../keys", "x"), "there is no template '../keys'"),
        (("-t", "a/../../b.toml", "x"), "there is no template 'a/../../b.toml'"),
        (
            ("templates", "show", "../keys"),
            "there is no template '../keys'; templates: need, wrong",
        ),
        (("templates", "edit", "../keys"), "'../keys' is not a valid template name"),
        (("-t", "wrong", "x"), "`prompts`"),
        (("-t", "need", "x"), "the template need needs word; add -p word=VALUE"),
        (("-t", "need", "-p", "word=a", "-p", "other=b", "x"), "has no variable 'other'"),
        (("-t", "need", "-p", "word"), "write NAME=VALUE"),
        (("-p", "word=a", "x"), "add -t NAME"),
    ],
)
def test_invalid_template_error_names_the_problem(
    home: Path, arguments: tuple[str, ...], text: str
) -> None:
    write_template(home, "need", 'prompt = "$word"')
    write_template(home, "wrong", 'prompts = "typo"')
    done = run(*arguments)
    assert done.exit_code == 2
    assert text in done.stderr


def test_a_template_is_edited_and_checked(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = iter(['prompt = "say $input"\nmodel = "sim"\n', "prompt = 5"])

    def edit(_text: str, **_options: str) -> str:
        return next(texts)

    monkeypatch.setattr(click, "edit", edit)
    assert run("templates", "edit", "echo").exit_code == 0
    assert run("-t", "echo", "well").stdout == "well\n"
    done = run("templates", "edit", "echo")
    assert done.exit_code == 2
    assert "not saved" in done.stderr
    assert run("-t", "echo", "well").stdout == "well\n"


def test_fragments_are_files_and_patterns(tmp_path: Path) -> None:
    tmp_path = tmp_path / "notes"
    tmp_path.mkdir()
    (tmp_path / "a.txt").write_text("the owl")
    (tmp_path / "b.txt").write_bytes("café".encode("latin-1"))
    done = run("-m", "sim", "-f", str(tmp_path / "*.txt"), "what is this")
    assert "the owl" in done.stdout
    assert "café" in done.stdout
    assert run("-m", "sim", "-f", str(tmp_path), "what is this").stdout == done.stdout
    missing = run("-m", "sim", "-f", str(tmp_path / "none.txt"), "what")
    assert "no such file" in missing.stderr
    assert missing.exit_code == 2
    refused = run("-m", "sim", "-f", "http://127.0.0.1:9/x", "what")
    assert "cannot add http://127.0.0.1:9/x" in refused.stderr  # not a public address


def test_conversation_without_storage_leaves_nothing(home: Path) -> None:
    done = run("-m", "sim", "--no-log", "say hello")
    assert done.stdout == "hello\n"
    assert run("sessions").stdout == ""
    assert not (home / "trace.db").exists()
    assert run("-c", "--no-log", "x").exit_code == 2


def test_a_schema_can_be_a_list_of_fields() -> None:
    done = run("-m", "sim", "--schema", "name, age int, tags str[]: short words", "a person")
    assert set(json.loads(done.stdout)) == {"name", "age", "tags"}
    assert fields_schema("name\nage int: in years")["properties"]["age"] == {
        "type": "integer",
        "description": "in years",
    }


def test_a_schema_can_be_a_python_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shapes_of_test.py").write_text(
        "from typing import TypedDict\nclass Person(TypedDict):\n    name: str\n    age: int\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    done = run("-m", "sim", "--schema", "shapes_of_test:Person", "a person")
    assert set(json.loads(done.stdout)) == {"name", "age"}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "--schema is empty"),
        ("name what", "unknown type 'what' of name"),
        ("1name", "is not a field"),
        ("no_such_module_of_ours:Type", "cannot import"),
        ("json:Nothing", "json has no Nothing"),
        ("missing.json", "No such file or directory"),
        ('{"type": ', "not valid JSON"),
    ],
)
def test_invalid_schema_is_refused(text: str, fault: str) -> None:
    with pytest.raises(InvalidValueError, match=fault):
        read_schema(text)


def test_help_version_and_chat_are_commands() -> None:
    assert run("version").stdout == run("--version").stdout
    assert run("help").stdout == run("--help").stdout
    assert "Show what conversations have cost." in run("help", "cost").stdout
    assert "there is no command 'x'" in run("help", "x").stderr
    assert "a chat starts without a question" in run("chat", "hello").stderr


@pytest.mark.parametrize("suffix", ["", "/v1", "/v1/"])
def test_addresses_of_providers_come_from_their_own_variables(
    suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:9{suffix}")
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:9")
    shown = run("config").stdout
    assert 'base_urls.openai = "http://127.0.0.1:9"' in shown
    assert 'base_urls.ollama = "http://127.0.0.1:9"' in shown
    assert "$OPENAI_BASE_URL" in shown
