"""`metis demo` and `metis sim`."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner

from metis.cli.main import cli
from metis.cli.simulator import DemoScreen, show_demo
from metis.cli.text import cell_width
from metis.wire.call import SIMULATED


def test_sim_prints_its_address_and_ends_on_signal() -> None:
    command = [sys.executable, "-m", "metis", "sim", "--port", "0"]
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:  # noqa: S603 - our own interpreter
        assert process.stdout is not None
        greeting = process.stdout.readline()
        address = re.search(r"http://127\.0\.0\.1:\d+", greeting)
        assert address is not None
        with urllib.request.urlopen(f"{address[0]}/v1/models") as answer:  # noqa: S310 - loopback
            assert b"sim-small" in answer.read()
        process.send_signal(signal.SIGTERM)
        greeting = greeting + process.stdout.read()
        assert process.wait() == 0
    assert f"OPENAI_BASE_URL={address[0]}/v1" in greeting
    assert "it is not an AI" in greeting


def test_port_in_use_is_one_sentence() -> None:
    with socket.socket() as blocker:
        blocker.bind(("127.0.0.1", 0))
        blocker.listen()
        done = CliRunner().invoke(cli, ["sim", "--port", str(blocker.getsockname()[1])])
    assert done.exit_code == 1
    assert "cannot listen on port" in done.output


def test_demo_runs(user: Path) -> None:
    done = CliRunner().invoke(cli, ["demo", "--fast"])
    assert done.exit_code == 0
    assert done.stderr == ""
    for title in ("1. Ask", "2. Use a tool", "3. Switch", "4. What it", "5. Try another", "6. See"):
        assert title in done.stdout
    assert '→ read_file(path="owls.txt")' in done.stdout
    assert "not sent, but kept: 3 thinking (" in done.stdout
    assert "the first conversation: 9 messages" in done.stdout
    assert "anthropic:claude-sonnet-4-6 → openai:gpt-5" in done.stdout
    assert max(map(cell_width, done.stdout.splitlines())) <= 80
    assert not (user / "metis.db").exists()


def test_tour_is_an_alias_of_demo(user: Path) -> None:
    assert "6. See" in CliRunner().invoke(cli, ["tour"]).stdout
    assert "\n  tour " not in CliRunner().invoke(cli, ["--help"]).stdout


def test_demo_at_terminal_takes_about_two_minutes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    asyncio.run(show_demo(DemoScreen(sleep), tmp_path))
    assert 75 < sum(waits) < 150


@pytest.mark.usefixtures("user")
def test_answers_of_the_simulator_are_marked_wherever_they_are_shown() -> None:
    def run(*arguments: str) -> str:
        return CliRunner().invoke(cli, list(arguments)).stdout

    run("-m", "sim:gpt-5", "hello")
    assert "simulated" in run("trace")
    assert "simulated" in json.loads(run("trace", "--json").splitlines()[-1])["facts"]
    assert "simulated, free" in run("show")
    assert "Simulated, at no cost: openai:gpt-5" in run("cost")
    assert "## Assistant (openai:gpt-5, simulated)" in run("export", "--format", "markdown")
    assert "simulated" in run("export", "--format", "html")
    assert SIMULATED in run("export")
