"""`metis config`."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from metis.cli.main import cli


def run(*arguments: str, stdin: bytes = b"") -> Result:
    return CliRunner().invoke(cli, list(arguments), input=stdin)


@pytest.fixture(autouse=True)
def home(user: Path) -> Path:
    return user


def test_settings_are_shown_with_their_origin_and_changed(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("config", "set", "model", "haiku").exit_code == 0
    assert run("config", "set", "budget.day_usd", "2.5").exit_code == 0
    assert run("config", "set", "fallbacks.haiku", "gpt-5, gpt-5-mini").exit_code == 0
    assert run("config", "set", "tools", "FALSE").exit_code == 0
    shown = run("config").stdout
    assert f'model = "haiku"   # file: {home}/config.toml:1' in shown
    assert "budget.day_usd = 2.5   # file" in shown
    assert 'fallbacks.haiku = ["gpt-5", "gpt-5-mini"]' in shown
    assert "tools = false" in shown
    assert run("config", "get", "model").stdout == "haiku\n"
    assert run("config", "get", "system").exit_code == 1
    monkeypatch.setenv("METIS_MODEL", "opus")
    assert "environment: $METIS_MODEL" in run("config", "show").stdout
    assert "takes precedence" in run("config", "set", "model", "sonnet").stderr
    assert run("config", "unset", "model").exit_code == 0
    assert run("config", "unset", "model").exit_code == 1
    assert str(home / "keys.toml") in run("config", "path").stdout


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("modle", "x", "did you mean model?"),
        ("model", "gtp-5", "did you mean gpt-5"),
        ("tools", "perhaps", "expected true or false"),
        ("budget.day_usd", "abc", "expected a number, got 'abc'"),
        ("budget.day_usd", "-1", "-1 is not a valid limit"),
        ("max_output_tokens", "1.5", "expected a whole number"),
        ("base_urls.nobody", "http://x", "unknown provider 'nobody'"),
    ],
)
def test_invalid_value_is_not_written(home: Path, name: str, value: str, expected: str) -> None:
    before = (home / "config.toml").read_text()
    done = run("config", "set", name, value)
    assert done.exit_code == 2
    assert expected in done.stderr
    assert (home / "config.toml").read_text() == before
