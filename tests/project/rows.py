"""List the requirement and interop rows with and without a test.

Run as a program it prints the list; `make rows` does that.
"""

import contextlib
import io
import itertools
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
CASES = TESTS.parent / "docs" / "cases.md"
ROW = re.compile(r"^\| ([MKAG]-\d{3}|[KAG]X-\d{2}|GW-\d{2}|T\d{2,3}) \| (.*) \|$", re.MULTILINE)


TEXT_ONLY = re.compile(r"^- \*\*([MKAG]X?-\d{2,3})\*\* \*text only\*: (.+)$", re.MULTILINE)


CLAIMED_ROWS = pytest.StashKey[set[str]]()
"""The ids that all collected tests claim, slow ones included."""


def meanings() -> dict[str, str]:
    """Return every id with its meaning, in the order of `docs/cases.md`."""
    return dict(ROW.findall(CASES.read_text(encoding="utf-8")))


def text_only() -> dict[str, str]:
    """Return the ids that no test can prove, each with the reason."""
    return dict(TEXT_ONLY.findall(CASES.read_text(encoding="utf-8")))


def group_of(row: str) -> str:
    """Return the letters of an id: `M`, `KX`, `T`."""
    return row.rstrip("0123456789-")


class _Collector:
    """Records the row marks of every collected test."""

    def __init__(self) -> None:
        self.claims: dict[str, list[str]] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            for mark in item.iter_markers("row"):
                for row in mark.args:
                    self.claims.setdefault(str(row), []).append(item.nodeid)


def collect() -> dict[str, list[str]]:
    """Return the ids that tests claim, each with its tests; needs a separate process."""
    collector = _Collector()
    with contextlib.redirect_stdout(io.StringIO()):
        pytest.main(["--collect-only", "-qq", "-m", "", str(TESTS)], plugins=[collector])
    return collector.claims


def claims() -> dict[str, list[str]]:
    """Return the claims, collected in another process so that a running test can call it."""
    done = subprocess.run(  # noqa: S603 - our own interpreter, our own program
        [sys.executable, __file__, "--json"], check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout)


def report() -> list[str]:
    """Return the rows without a test, those with one, and a line per group."""
    claimed, rows, unprovable = collect(), meanings(), text_only()
    missing = [row for row in rows if row not in claimed]
    lines = [f"{row}  no test   {rows[row][:100]}" for row in missing if row not in unprovable]
    lines += [f"{row}  text only  {unprovable[row]}" for row in missing if row in unprovable]
    lines += [f"{row}  {len(claimed[row])} tests" for row in rows if row in claimed]
    for group, members in itertools.groupby(rows, group_of):
        listed = list(members)
        tested = sum(row in claimed for row in listed)
        stated = sum(row in unprovable and row not in claimed for row in listed)
        aside = f", {stated} are text only" if stated else ""
        lines.append(f"{group}: {tested} of {len(listed)} rows have a test{aside}")
    return lines


if __name__ == "__main__":
    text = json.dumps(collect()) if "--json" in sys.argv else "\n".join(report())
    sys.stdout.write(text + "\n")
