"""Which rows of the requirements and of the interop cases have a test, and which do not.

Run as a program it prints the list; `make rows` does that.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent.parent
SHARED = TESTS.parent.parent / "shared"
GROUPS = {"M": 310, "K": 137, "A": 50, "G": 52, "T": 212}
ROW = re.compile(r"^\| ((?:[MKAG]-\d{3})|(?:T\d{2,3})) \|(.*)$", re.MULTILINE)


def known_rows() -> list[str]:
    """Every id there is, in order."""
    return [
        f"T{number:02}" if group == "T" else f"{group}-{number:03}"
        for group, count in GROUPS.items()
        for number in range(1, count + 1)
    ]


def claims() -> dict[str, list[str]]:
    """The ids that tests claim, each with the tests that claim it."""
    found: dict[str, list[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        for row, name in _marks(path):
            found.setdefault(row, []).append(f"{path.relative_to(TESTS)}::{name}")
    return found


def _marks(path: Path) -> Iterator[tuple[str, str]]:
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for decorator in node.decorator_list:
                for row in _ids(decorator):
                    yield row, node.name


def _ids(node: ast.AST) -> Iterator[str]:
    """The ids in `pytest.mark.row(...)`, also where it stands inside `pytest.param(marks=...)`."""
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.row":
            for argument in call.args:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield argument.value


def titles() -> dict[str, str]:
    """What each row is about, where the requirements are at hand."""
    found: dict[str, str] = {}
    for name, column in (("requirements.md", 1), ("interop-cases.md", 0)):
        path = SHARED / name
        if path.exists():
            for row, rest in ROW.findall(path.read_text()):
                found[row] = rest.split(" | ")[column].strip()
    return found


def main() -> None:
    """Print the rows without a test, then a line a group."""
    claimed, about = claims(), titles()
    for row in known_rows():
        if row not in claimed:
            print(f"{row}  no test   {about.get(row, '')[:100]}")  # noqa: T201 - it is a program
    for row in known_rows():
        if row in claimed:
            print(f"{row}  {len(claimed[row])} tests")  # noqa: T201 - it is a program
    for group, count in GROUPS.items():
        done = sum(1 for row in known_rows() if row[0] == group and row in claimed)
        print(f"{group}: {done} of {count} rows have a test")  # noqa: T201 - it is a program


if __name__ == "__main__":
    main()
