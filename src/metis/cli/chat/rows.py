"""Rows: text broken to the width of a terminal."""

from collections.abc import Iterable

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

_console = Console(file=None, width=80, color_system=None, legacy_windows=False)


def wrapped(text: Text, width: int) -> list[Text]:
    """A text as rows, broken at blanks; a word that is too long is broken anywhere."""
    rows: list[Text] = []
    for line in text.split("\n", allow_blank=True):
        rows += line.wrap(_console, width, overflow="fold") if line.plain.strip() else [Text()]
    for row in rows:
        row.rstrip()
    return rows


def folded(text: Text, width: int) -> list[Text]:
    """A line as rows that are full to the last column, as a terminal would break it."""
    if cell_len(text.plain) <= width:
        return [text]
    places: list[int] = []
    used = 0
    for place, letter in enumerate(text.plain):
        used += cell_len(letter)
        if used > width:
            places.append(place)
            used = cell_len(letter)
    return list(text.divide(places))


def beside(mark: str, rows: Iterable[Text], style: str = "") -> list[Text]:
    """Rows with a mark before each."""
    return [Text.assemble((mark, style), row) if mark.strip() or row else Text() for row in rows]
