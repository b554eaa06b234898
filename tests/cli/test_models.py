"""`metis models`."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from metis.cli.main import cli
from metis.cli.text import cell_width


def run(*arguments: str, stdin: bytes = b"") -> Result:
    return CliRunner().invoke(cli, list(arguments), input=stdin)


@pytest.fixture(autouse=True)
def home(user: Path) -> Path:
    return user


def test_models_are_listed_and_filtered(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = run("models")
    assert shown.exit_code == 0
    assert "claude-haiku-4-5   haiku" in shown.stdout
    assert "no key: set ANTHROPIC_API_KEY" in shown.stdout
    assert "●" not in shown.stdout
    assert max(map(cell_width, shown.stdout.splitlines())) <= 80
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-secret")
    mine = run("models", "--configured", "haiku")
    assert "key from $ANTHROPIC_API_KEY" in mine.stdout
    assert "●" in mine.stdout
    assert "sk-secret" not in mine.output
    report = json.loads(run("models", "--json", "--can", "video").stdout)
    assert report
    assert all("video" in model["can"] for model in report)
    assert run("models", "nothing-like-this").exit_code == 1
