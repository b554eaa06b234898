"""Common mistakes give one sentence with a remedy, never a traceback."""

import asyncio
import os
import resource
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import metis
from metis.canonical import errors
from metis.cli.error_text import error_line as cli_error_line
from metis.cli.error_text import exit_code
from metis.cli.main import cli, main
from metis.sim import Settings, Simulator

RULES = """\
schema_version = 1

[[rules]]
name = "x"
when = { mesage_contains_any = ["a"] }
use = "haiku"
"""


@pytest.fixture(autouse=True)
def home(user: Path) -> Path:
    return user


def run(*arguments: str, stdin: bytes = b"") -> Result:
    return CliRunner().invoke(cli, list(arguments), input=stdin)


def error_line(done: Result, code: int) -> str:
    """Return the single line of a failed command."""
    assert done.exit_code == code, done.output
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("metis: ")
    assert "Traceback" not in done.output
    assert done.stdout == ""
    return line


@contextmanager
def strict_server(key: str) -> Generator[str]:
    """Run a loopback provider that accepts one key only."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = Simulator(settings=Settings(key=key))
    asyncio.run_coroutine_threadsafe(server.start(), loop).result()
    try:
        yield server.base_url
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_no_key() -> None:
    message = error_line(run("-m", "gpt-5", "hi"), 3)
    assert "set OPENAI_API_KEY" in message
    assert "-m sim:gpt-5" in message


def test_a_wrong_key(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-wrong")
    with strict_server("right") as url:
        (home / "config.toml").write_text(f'[base_urls]\nopenai = "{url}"\n')
        message = error_line(run("-m", "gpt-5", "hi"), 3)
    assert "openai rejected the API key" in message
    assert "metis doctor" in message
    assert "secret" not in message


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidRequestError("no such field", status=400), 6),
        (errors.ContextOverflowError("too long", status=400), 6),
        (errors.RedirectError("http://other", status=307), 6),
        (errors.NetworkError("no connection"), 4),
        (errors.WebPageError("a web page"), 4),
        (errors.ServerError("broken", status=500), 4),
        (errors.RateLimitError("slow down", status=429), 4),
        (errors.NetworkError("the stream ended", response_began=True), 1),
        (errors.ResponseLimitError("too much", code="events"), 1),
    ],
)
def test_exit_code_states_whether_retry_can_help(error: errors.ProviderError, code: int) -> None:
    assert exit_code(error) == code


def test_a_broken_response_is_not_reported_as_a_provider_that_was_not_reached() -> None:
    broken = errors.NetworkError("no response in time", provider="openai", response_began=True)
    assert "broke off in the middle" in cli_error_line(broken)
    long = errors.ResponseLimitError("more than 9 events", provider="openai", code="events")
    assert "the response of openai was ended: more than 9 events" in cli_error_line(long)
    unreached = errors.NetworkError("the stream of cars", provider="openai")
    assert "could not reach openai" in cli_error_line(unreached)


@pytest.mark.parametrize("name", ["gtp-5", "nobody:at-all", "claude"])
def test_an_unknown_model(name: str) -> None:
    message = error_line(run("-m", name, "hi"), 2)
    assert name in message


def test_typo_in_rule_is_reported_and_response_is_printed() -> None:
    Path(".metis").mkdir()
    Path(".metis/routing.toml").write_text(RULES)
    done = run("say hi")
    assert (done.exit_code, done.stdout) == (0, "hi\n")
    assert "The routing rules are not used: " in done.stderr
    assert "mesage_contains_any" in done.stderr
    assert "$.rules[0]" in done.stderr


def test_no_network(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    (home / "config.toml").write_text('[base_urls]\nopenai = "http://127.0.0.1:9"\n')
    message = error_line(run("-m", "gpt-5", "hi"), 4)
    assert "could not reach openai" in message
    assert "metis -m sim" in message


def test_a_local_server_that_is_off() -> None:
    assert "start the server" in error_line(run("-m", "ollama", "hi"), 4)


def test_a_local_model_that_was_not_fetched() -> None:
    assert "metis local setup" in error_line(run("-m", "local", "hi"), 4)


def test_full_disk(home: Path) -> None:
    """A file size limit has the same effect as a full disk."""
    environment = {**os.environ, "PYTHONPATH": str(Path(metis.__file__).parent.parent)}
    done = subprocess.run(
        [sys.executable, "-m", "metis", "-m", "sim", "say hi"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000)),
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("metis: ")


def test_data_directory_cannot_be_created(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("file").write_text("in the way")
    monkeypatch.setenv("METIS_HOME", str(Path("file").resolve() / "home"))
    for command in (["say hi"], ["sessions"], ["config", "set", "model", "haiku"]):
        done = run(*command)
        assert done.exit_code == 2
        assert "Traceback" not in done.output
        assert done.stderr.strip().splitlines()[-1].startswith("metis: ")


def test_the_database_of_another_version(home: Path) -> None:
    run("say hi")
    with sqlite3.connect(home / "metis.db") as database:
        database.execute("PRAGMA user_version = 999")
    database.close()
    message = error_line(run("say hi"), 2)
    assert "999" in message


def test_a_database_of_another_program(home: Path) -> None:
    with sqlite3.connect(home / "metis.db") as database:
        database.execute("CREATE TABLE birds (name TEXT)")
    database.close()
    assert "metis.db" in error_line(run("say hi"), 2)


def test_a_binary_file_attached() -> None:
    Path("a.bin").write_bytes(bytes(range(256)))
    assert "(text, images and PDF only)" in error_line(run("-a", "a.bin", "what?"), 2)
    assert "(text, images and PDF only)" in error_line(run("what?", stdin=b"\0\xff" * 10), 2)
    assert "cannot attach" in error_line(run("-a", "nowhere.txt", "what?"), 2)


def test_a_fault_in_the_settings(home: Path) -> None:
    (home / "config.toml").write_text("\nmodel = sonnet\n")
    assert f"{home}/config.toml:2: invalid TOML" in error_line(run("hi"), 2)


def test_a_key_file_that_others_can_read(home: Path) -> None:
    (home / "keys.toml").write_text('[keys]\nopenai = "sk-secret"\n')
    (home / "keys.toml").chmod(0o644)
    message = error_line(run("hi"), 2)
    assert "chmod 600" in message
    assert "secret" not in message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nope", "hi"], "no such option '--nope'"),
        (["sesions"], "there is no command 'sesions'; did you mean 'sessions'?"),
        (["cost", "--by", "year"], "invalid value for '--by': 'year' is not one of"),
        (["fork"], "missing argument 'SESSION'"),
        (["ask", "-m"], "option '-m' requires an argument"),
        (["config", "nope"], "no such command 'nope'"),
    ],
)
def test_invalid_arguments(arguments: list[str], message: str) -> None:
    line = error_line(run(*arguments), 2)
    assert line.startswith(f"metis: {message}")
    hints = ("--help`", "did you mean", "requires")
    assert any(hint in line for hint in hints)


def test_empty_prompt() -> None:
    assert "no question given" in error_line(run(), 2)


def test_exhausted_budget(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-none")
    with strict_server("sk-none") as url:
        text = f'[base_urls]\nanthropic = "{url}"\n[budget]\nsession_usd = 0\n'
        (home / "config.toml").write_text(text)
        message = error_line(run("-m", "sonnet", "hi"), 5)
    assert "metis config set budget.session_usd" in message


def test_unknown_session() -> None:
    run("say hi")
    assert "no session has 'sess_none' in its id or title" in error_line(
        run("-s", "sess_none", "hi"), 2
    )
    assert "2 sessions match" in error_line_of_two()


def error_line_of_two() -> str:
    run("say ho")
    return error_line(run("-s", "sess_", "hi"), 2)


def test_continue_without_conversation() -> None:
    for arguments in (("-c", "hi"), ("show",), ("trace",)):
        assert "no conversation is stored yet" in error_line(run(*arguments), 2)


def test_instructions_for_an_old_conversation() -> None:
    done = run("-c", "--system", "be brief", "hi")
    assert done.exit_code == 2
    assert "--system is for new conversations" in done.stderr


def test_internal_error(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def broken(*_: object, **__: object) -> int:
        raise ZeroDivisionError("nobody thought of this")

    monkeypatch.setattr("metis.cli.models.print_models", broken)
    monkeypatch.setattr(sys, "argv", ["metis", "models"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 70
    message = capsys.readouterr().err
    assert message.startswith("metis: internal error: ZeroDivisionError: nobody thought")
    monkeypatch.setenv("METIS_DEBUG", "1")
    with pytest.raises(SystemExit) as debugged:
        main()
    assert debugged.value.code == 70
    assert capsys.readouterr().err.startswith("Traceback (most recent call last):")
