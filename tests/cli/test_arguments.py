"""Shell completion, and which modules a command loads."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import metis
from metis.cli.main import cli


def run(*arguments: str, stdin: bytes = b"") -> Result:
    return CliRunner().invoke(cli, list(arguments), input=stdin)


@pytest.fixture(autouse=True)
def home(user: Path) -> Path:
    return user


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_get_their_script(shell: str) -> None:
    done = run("completion", shell)
    assert done.exit_code == 0
    assert "_METIS_COMPLETE" in done.stdout


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("metis mod", "models"),
        ("metis -m hai", "haiku"),
        ("metis ask --model son", "sonnet"),
        ("metis config s", "set"),
    ],
)
def test_command_line_is_completed(typed: str, expected: str) -> None:
    environment = {
        "_METIS_COMPLETE": "bash_complete",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(typed.split()) - 1),
    }
    done = CliRunner().invoke(cli, [], env=environment, prog_name="metis")
    assert f"plain,{expected}" in done.stdout.splitlines()


def test_sessions_are_completed(home: Path) -> None:
    run("say hi")
    session = run("sessions").stdout.split()[0]
    environment = {
        "_METIS_COMPLETE": "bash_complete",
        "COMP_WORDS": f"metis trace {session[:6]}",
        "COMP_CWORD": "2",
    }
    done = CliRunner().invoke(cli, [], env=environment, prog_name="metis")
    assert f"plain,{session}" in done.stdout


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["models"], ["config"]])
def test_commands_load_only_what_they_need(arguments: list[str]) -> None:
    code = (
        "import atexit, sys\n"
        "heavy = ('aiohttp', 'prompt_toolkit', 'rich')\n"
        "atexit.register(lambda: print([n for n in heavy if n in sys.modules], file=sys.stderr))\n"
        f"from metis.cli.main import cli\ncli.main({arguments!r})\n"
    )
    source = Path(metis.__file__).parent.parent
    environment = {**os.environ, "PYTHONPATH": str(source)}
    done = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stderr.splitlines()[-1] == "[]", done.stderr


def test_closed_output_pipe_is_not_an_error() -> None:
    shown = f"{sys.executable} -m metis models --all | head -1"
    done = subprocess.run(shown, shell=True, capture_output=True, text=True, check=False)  # noqa: S602 - a pipe is what is tried
    assert done.stdout.startswith("anthropic")
    assert done.stderr == ""


def test_chat_starts_before_http_client_is_loaded() -> None:
    code = (
        "import sys, metis.cli.chat, metis.cli.startup, metis.session.library\n"
        "from metis.transport import Transport\n"
        "print('aiohttp' in sys.modules)\n"
    )
    source = Path(metis.__file__).parent.parent
    environment = {**os.environ, "PYTHONPATH": str(source)}
    done = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout == "False\n"
