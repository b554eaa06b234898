"""Tables: columns under their names, without lines around them."""

from collections.abc import Sequence
from itertools import zip_longest

from rich.cells import cell_len
from rich.text import Text

from metis.cli.chat.rows import wrapped

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
    rows = [*_row(head, widths, right), rule]
    for row in body:
        rows += _row(row, widths, right)
    return rows


def columns(
    cells: Sequence[Sequence[Text | str]], width: int, *, right: Sequence[int] = ()
) -> list[Text]:
    """Cells under each other, without a head; some columns end at the right."""
    texts = [[Text(cell) if isinstance(cell, str) else cell for cell in row] for row in cells]
    widths = _widths(texts, max((len(row) for row in texts), default=0), width)
    return [line for row in texts for line in _row(row, widths, right)]


def _widths(cells: Sequence[Sequence[Text]], count: int, width: int) -> list[int]:
    """How wide each column is; wide ones give way until everything fits."""
    widths = [
        max((cell_len(row[place].plain) for row in cells if place < len(row)), default=0)
        for place in range(count)
    ]
    while sum(widths) + GAP * (count - 1) > width and max(widths) > _NARROWEST:
        widths[widths.index(max(widths))] -= 1
    return widths


def _row(row: Sequence[Text], widths: Sequence[int], right: Sequence[int] = ()) -> list[Text]:
    parts = [
        wrapped(cell, size) if cell.plain else [Text()]
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
