"""The clients that were tried: the lock, the page about them and the harness name the same."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HARNESS = ROOT.parent / "shared" / "clients" / "real_clients.py"
_PACKAGE = re.compile(r"(?P<name>@?[\w./-]+)(?:\[[^]]*\])?(?:==|@)(?P<version>[\d.]+)")


def locked() -> tuple[str, dict[str, str]]:
    """Return the date of the lock and its versions by package."""
    lines = (ROOT / "tests" / "gateway" / "clients.lock").read_text().splitlines()
    date = next(line.split()[-1] for line in lines if line.startswith("# date"))
    packages = (_PACKAGE.fullmatch(line) for line in lines if not line.startswith("#"))
    return date, {match["name"]: match["version"] for match in packages if match is not None}


def test_the_page_names_every_client_of_the_lock_with_its_version_and_date() -> None:
    date, versions = locked()
    page = (ROOT / "docs" / "gateway-clients.md").read_text()
    assert f"on {date}" in page.replace("On", "on")
    rows = dict(re.findall(r"^\| `([^`]+)` \| ([\d.]+) \|", page, re.MULTILINE))
    assert rows == versions


def test_the_harness_installs_what_the_lock_names() -> None:
    if not HARNESS.exists():
        pytest.skip("the harness is not beside this repository")
    done = subprocess.run(  # noqa: S603 - fixed arguments
        [sys.executable, str(HARNESS), "--list"], capture_output=True, text=True, check=True
    )
    pinned = {match["name"]: match["version"] for match in _PACKAGE.finditer(done.stdout)}
    _, versions = locked()
    assert {name: pinned.get(name) for name in versions} == versions
