"""MCP servers in the settings: add, list, test, and use in a conversation."""

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from metis.cli.main import cli

SERVER = Path(__file__).parents[1] / "tools" / "mcp_server.py"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("METIS_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


def test_a_server_is_added_listed_and_removed() -> None:
    assert run("mcp").exit_code == 1
    assert run("mcp", "add", "docs", "https://example.com/mcp", "X-Key: secret").exit_code == 0
    assert run("mcp", "add", "files", "npx", "-y", "server", ".").exit_code == 0
    listed = run("mcp", "list").stdout
    assert "npx -y server ." in listed
    assert "https://example.com" in listed
    assert "secret" not in listed
    assert run("mcp", "remove", "files").exit_code == 0
    assert "npx" not in run("mcp", "list").stdout
    assert run("mcp", "add", "a b", "x").exit_code != 0


def test_a_server_is_tested() -> None:
    assert run("mcp", "add", "demo", sys.executable, str(SERVER)).exit_code == 0
    tested = run("mcp", "test")
    assert tested.exit_code == 0
    assert "✓ demo: " in tested.stdout
    assert run("mcp", "add", "broken", "/nowhere/at/all").exit_code == 0
    broken = run("mcp", "test", "broken")
    assert broken.exit_code == 1
    assert "✗ broken" in broken.stdout
    assert run("mcp", "test", "nobody").exit_code != 0


def test_unset_variable_error_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("METIS_TEST_TOKEN", raising=False)
    assert run("mcp", "add", "demo", "$METIS_TEST_TOKEN", "server").exit_code == 0
    tested = run("mcp", "test")
    assert tested.exit_code == 1
    assert "METIS_TEST_TOKEN is not set" in tested.stdout


def test_prompt_is_answered_although_a_server_does_not_start() -> None:
    assert run("mcp", "add", "broken", "/nowhere/at/all").exit_code == 0
    answer = run("-m", "sim", "--json", "say hello")
    assert answer.exit_code == 0, answer.output
    assert json.loads(answer.stdout)["text"] == "hello"
