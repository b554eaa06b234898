"""Which rows of the requirements and of the interop cases have a test, and which do not.

Run as a program it prints the list; `make rows` does that.
"""

import contextlib
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
SHARED = TESTS.parent.parent / "shared"
GROUPS = {"M": 310, "K": 137, "A": 50, "G": 52, "T": 212, "KX": 18, "AX": 7, "GX": 12}
SHAPES = {"T": "T{:02}", "KX": "KX-{:02}", "AX": "AX-{:02}", "GX": "GX-{:02}"}
ROW = re.compile(r"^\| ([MKAG]-\d{3}|[KAG]X-\d{2}|T\d{2,3}) \|(.*)$", re.MULTILINE)


def known_rows() -> list[str]:
    """Every id there is, in order."""
    return [
        SHAPES.get(group, group + "-{:03}").format(number)
        for group, count in GROUPS.items()
        for number in range(1, count + 1)
    ]


class _Collector:
    """Writes down the marks of every test that pytest collects."""

    def __init__(self) -> None:
        self.claims: dict[str, list[str]] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            for mark in item.iter_markers("row"):
                for row in mark.args:
                    self.claims.setdefault(str(row), []).append(item.nodeid)


def collect() -> dict[str, list[str]]:
    """The ids that tests claim, each with the tests that claim it; for a process of its own."""
    collector = _Collector()
    with contextlib.redirect_stdout(io.StringIO()):
        pytest.main(["--collect-only", "-qq", str(TESTS)], plugins=[collector])
    return collector.claims


def claims() -> dict[str, list[str]]:
    """The same, asked of another process, so that a running test may ask."""
    done = subprocess.run(  # noqa: S603 - our own interpreter, our own program
        [sys.executable, __file__, "--json"], check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout)


def titles() -> dict[str, str]:
    """What each row is about, where the requirements are at hand."""
    found: dict[str, str] = {}
    for name, column in (("requirements.md", 1), ("interop-cases.md", 0)):
        path = SHARED / name
        if path.exists():
            for row, rest in ROW.findall(path.read_text()):
                found[row] = rest.split(" | ")[0 if "X" in row else column].strip()
    return found


def report() -> list[str]:
    """The rows without a test, those with one, and a line a group."""
    claimed, about = collect(), titles()
    rows = known_rows()
    lines = [f"{row}  no test   {about.get(row, '')[:100]}" for row in rows if row not in claimed]
    lines += [f"{row}  {len(claimed[row])} tests" for row in rows if row in claimed]
    for group, count in GROUPS.items():
        done = sum(1 for row in rows if row.rstrip("0123456789-") == group and row in claimed)
        lines.append(f"{group}: {done} of {count} rows have a test")
    return lines


if __name__ == "__main__":
    text = json.dumps(collect()) if "--json" in sys.argv else "\n".join(report())
    sys.stdout.write(text + "\n")
