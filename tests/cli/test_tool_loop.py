"""Several turns with tools on the command line, with the simulator."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from metis.cli.main import cli


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


@pytest.mark.row("K-135")
@pytest.mark.usefixtures("user")
def test_consecutive_turns_with_tools_have_no_error() -> None:
    Path("owl.txt").write_text("hoot hoot")
    Path("sea.txt").write_text("calm")
    first = run("read owl.txt and sea.txt")
    assert (first.exit_code, "hoot hoot" in first.stdout, "calm" in first.stdout) == (0, True, True)
    written = run("-c", "--yes", "write_file path new.txt content owl")
    assert written.exit_code == 0
    assert Path("new.txt").exists()
    listed = run("-c", "grep for `hoot`")
    assert listed.exit_code == 0
    assert "owl.txt" in listed.stdout
    swapped = run("-c", "-m", "sim", "read sea.txt")
    assert (swapped.exit_code, "calm" in swapped.stdout) == (0, True)
    assert len(run("sessions").stdout.splitlines()) == 1
