"""Styled rows of a terminal: wrapping, prefixes and tables."""

from collections.abc import Iterable, Sequence
from itertools import zip_longest

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

_console = Console(file=None, width=80, color_system=None, legacy_windows=False)


def wrap(text: Text, width: int) -> list[Text]:
    """A text as rows, broken at blanks; a word that is too long is broken anywhere."""
    rows: list[Text] = []
    for line in text.split("\n", allow_blank=True):
        rows += line.wrap(_console, width, overflow="fold") if line.plain.strip() else [Text()]
    for row in rows:
        row.rstrip()
    return rows


def split_full(text: Text, width: int) -> list[Text]:
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


def prefix_rows(mark: str, rows: Iterable[Text], style: str = "") -> list[Text]:
    """Rows with a mark before each."""
    return [Text.assemble((mark, style), row) if mark.strip() or row else Text() for row in rows]


GAP = 2
_NARROWEST = 6


def table_rows(
    cells: Sequence[Sequence[Text]], width: int, *, right: Sequence[int] = ()
) -> list[Text]:
    """The rows of a table whose first row names the columns; some of them end at the right."""
    count = max((len(row) for row in cells), default=0)
    widths = _widths(cells, count, width)
    head, *body = cells or [[]]
    rule = Text((" " * GAP).join("─" * size for size in widths), "dim")
    rows = [*_table_row(head, widths, right), rule]
    for row in body:
        rows += _table_row(row, widths, right)
    return rows


def column_rows(
    cells: Sequence[Sequence[Text | str]], width: int, *, right: Sequence[int] = ()
) -> list[Text]:
    """Cells under each other, without a head; some columns end at the right."""
    texts = [[Text(cell) if isinstance(cell, str) else cell for cell in row] for row in cells]
    widths = _widths(texts, max((len(row) for row in texts), default=0), width)
    return [line for row in texts for line in _table_row(row, widths, right)]


def _widths(cells: Sequence[Sequence[Text]], count: int, width: int) -> list[int]:
    """How wide each column is; wide ones give way until everything fits."""
    widths = [
        max((cell_len(row[place].plain) for row in cells if place < len(row)), default=0)
        for place in range(count)
    ]
    while sum(widths) + GAP * (count - 1) > width and max(widths) > _NARROWEST:
        widths[widths.index(max(widths))] -= 1
    return widths


def _table_row(row: Sequence[Text], widths: Sequence[int], right: Sequence[int] = ()) -> list[Text]:
    parts = [
        wrap(cell, size) if cell.plain else [Text()]
        for cell, size in zip(row, widths, strict=False)
    ]
    lines: list[Text] = []
    for beside in zip_longest(*parts, fillvalue=Text()):
        line = Text()
        for place, (part, size) in enumerate(zip(beside, widths, strict=False)):
            blank = " " * max(size - cell_len(part.plain), 0)
            line += Text.assemble(blank, part) if place in right else Text.assemble(part, blank)
            line += Text(" " * GAP)
        line.rstrip()
        lines.append(line)
    return lines
