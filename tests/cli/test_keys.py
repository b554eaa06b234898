"""API keys in a file, never shown."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from metis import adapters
from metis.cli.main import cli
from metis.settings import UserPaths
from metis.transport.keys import Keys

KEY = "sk-blorb-0815"


@pytest.fixture(autouse=True)
def home(user: Path) -> Path:
    return user


def run(*arguments: str, stdin: str = "") -> Result:
    done = CliRunner().invoke(cli, list(arguments), input=stdin)
    assert KEY not in done.output
    return done


def test_key_file_is_private(home: Path) -> None:
    assert run("keys").exit_code == 1
    assert run("keys", "set", "openai", stdin=f"{KEY}\n").exit_code == 0
    file = home / "keys.toml"
    assert file.stat().st_mode & 0o777 == 0o600
    assert Keys(file=UserPaths.from_environment().keys).lookup(adapters.profile_of("openai")) == (
        [KEY],
        str(file),
    )
    assert Keys(file=file).lookup(adapters.profile_of("openai-responses"))[0] == [KEY]
    assert Keys(file=file).lookup(adapters.profile_of("groq"))[0] == []
    listed = run("keys")
    assert listed.exit_code == 0
    assert f"openai            {file}" in listed.stdout
    assert run("keys", "set", "anthropic", stdin="other").exit_code == 0
    assert run("keys", "remove", "openai").exit_code == 0
    assert run("keys", "remove", "openai").exit_code == 1
    assert Keys(file=file).lookup(adapters.profile_of("anthropic"))[0] == ["other"]


def test_overriding_variable_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    done = run("keys", "set", "openai", stdin=KEY)
    assert "$OPENAI_API_KEY is also set and takes precedence over the file." in done.stderr


@pytest.mark.parametrize(
    ("provider", "key", "expected"),
    [
        ("nobody", KEY, "nobody"),
        ("ollama", KEY, "ollama"),
        ("openai", "", "not an API key"),
        ("openai", f"{KEY} {KEY}", "not an API key"),
    ],
)
def test_invalid_key_is_one_sentence(provider: str, key: str, expected: str) -> None:
    done = run("keys", "set", provider, stdin=key)
    assert done.exit_code == 2
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("metis: ")
    assert expected in line


def test_a_broken_file_is_not_shown(home: Path) -> None:
    (home / "keys.toml").write_text(f'[keys]\nopenai = "{KEY}\n')
    done = run("keys", "set", "anthropic", stdin="x")
    assert done.exit_code == 2
    assert "is not valid TOML; fix it, or delete it" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [("openai", KEY), (KEY,), (f"openai={KEY}",), ("openai", "--key", KEY), ("openai", f"-{KEY}")],
)
def test_a_key_as_an_argument_is_refused_and_not_repeated(
    home: Path, arguments: tuple[str, ...]
) -> None:
    assert run("keys", "set", *arguments, stdin="other\n").exit_code != 0
    assert not (home / "keys.toml").exists()


def test_a_login_in_a_url_is_never_shown(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"http://me:{KEY}@127.0.0.1:9/v1"
    assert run("config", "set", "base_urls.ollama", url).exit_code == 0
    file = home / "config.toml"
    assert KEY in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    for command in ("config", "config get base_urls.ollama", "config path", "doctor", "models"):
        run(*command.split())
    assert "[login]@127.0.0.1:9" in run("config", "get", "base_urls.ollama").stdout
    assert run("config", "set", "base_urls.openai", f"http://me:{KEY}/x@host").exit_code != 0
    assert run("ask", "-m", "ollama:llama3", "hello").exit_code != 0
    # Written by hand, and open to others.
    file.chmod(0o644)
    run("config")
    assert file.stat().st_mode & 0o777 == 0o600
    monkeypatch.setenv("METIS_STORE", f"postgresql://me:{KEY}@127.0.0.1:9/metis")
    for command in ("config", "config path", "doctor", "sessions"):
        run(*command.split())
