"""The tour: it runs, and what it tells has happened."""

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner

from metis.cli.main import cli
from metis.cli.simulator import DemoScreen, show_demo
from metis.cli.text import cell_width


def test_the_tour_really_runs(user: Path) -> None:
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


def test_the_command_tour_is_the_demo(user: Path) -> None:
    assert "6. See" in CliRunner().invoke(cli, ["tour"]).stdout
    assert "\n  tour " not in CliRunner().invoke(cli, ["--help"]).stdout


def test_at_a_terminal_it_takes_about_two_minutes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    asyncio.run(show_demo(DemoScreen(sleep), tmp_path))
    assert 75 < sum(waits) < 150
