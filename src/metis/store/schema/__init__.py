"""The numbered SQL files of the store, applied in order and never edited."""

from functools import cache
from pathlib import Path

Step = tuple[int, str]


@cache
def steps(dialect: str) -> list[Step]:
    """The number and the text of every file for a kind of database, in order."""
    files = sorted((Path(__file__).parent / dialect).glob("*.sql"))
    return [(int(file.name.partition("_")[0]), file.read_text("utf-8")) for file in files]


def newest(dialect: str) -> int:
    """The version that this metis writes."""
    return steps(dialect)[-1][0]


def statements(text: str) -> list[str]:
    """The statements of a file; a semicolon at the end of a line ends one."""
    lines = [line for line in text.splitlines() if not line.startswith("--")]
    return [part.strip() for part in "\n".join(lines).split(";\n") if part.strip()]
