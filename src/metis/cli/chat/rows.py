"""Styled rows of a terminal: wrapping, prefixes and tables."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import zip_longest

from rich.console import Console
from rich.style import Style
from rich.text import Text

from metis.cli.text import SINGLE_CELLS, cell_width

GAP = 2
_MIN_COLUMN_WIDTH = 6
_console = Console(file=None, width=80, color_system=None, legacy_windows=False)


def wrap(text: Text, width: int) -> list[Text]:
    """Break a text into rows at spaces; a word that is too long is broken anywhere."""
    width = max(width, 1)  # a very narrow terminal may leave no cell for a column
    if not text.spans:
        return _wrap_unstyled(text.plain, width, text.style)
    rows: list[Text] = []
    for line in text.split("\n", allow_blank=True):
        rows += _wrap_styled(line, width) if line.plain.strip() else [Text()]
    return rows


def _wrap_styled(line: Text, width: int) -> list[Text]:
    rows = list(line.wrap(_console, width, overflow="fold"))
    for row in rows:
        row.rstrip()
    return rows


def _wrap_unstyled(text: str, width: int, style: str | Style) -> list[Text]:
    """Break a text of one style; rich takes twenty times as long for a short line."""
    rows: list[Text] = []
    for line in text.split("\n"):
        stripped = line.rstrip()
        if not stripped:
            rows.append(Text())
        elif stripped[0] == " " or not SINGLE_CELLS.fullmatch(stripped):
            rows += _wrap_styled(Text(line, style), width)
        else:
            rows += [Text(part, style) for part in _parts(stripped, width)]
    return rows


def _parts(line: str, width: int) -> Iterator[str]:
    """Yield the rows of a line that does not begin with a space, whose characters take one cell."""
    start, length = 0, len(line)
    while length - start > width:
        space = line.rfind(" ", start, start + width + 1)
        end = space if space > start else start + width
        yield line[start:end].rstrip()
        start = end
        while line[start] == " ":
            start += 1
    yield line[start:]


def split_full(text: Text, width: int) -> list[Text]:
    """Break a line into rows that are full to the last column, as a terminal does."""
    if cell_width(text.plain) <= width:
        return [text]
    offsets: list[int] = []
    used = 0
    for offset, character in enumerate(text.plain):
        used += cell_width(character)
        if used > width:
            offsets.append(offset)
            used = cell_width(character)
    return list(text.divide(offsets))


def prefix_rows(prefix: str, rows: Iterable[Text], style: str = "") -> list[Text]:
    """Return rows with a prefix before each; a prefix of spaces leaves empty rows empty."""
    return [
        Text.assemble((prefix, style), row) if prefix.strip() or row else Text() for row in rows
    ]


def table_rows(
    cells: Sequence[Sequence[Text]],
    width: int,
    *,
    right: Collection[int] = (),
    unbroken: Collection[int] = (),
) -> list[Text]:
    """Return the rows of a table with its head; the columns in `right` are right-aligned.

    A cell of a column in `unbroken`, such as an id to copy, is not wrapped: if it is too long, it
    gets a separate line.
    """
    head, *body = cells or [[]]
    widths = _column_widths(cells, width)
    rule = Text((" " * GAP).join("─" * size for size in widths), "dim")
    return [
        *_aligned(head, widths, right),
        rule,
        *(line for row in body for line in _row_lines(row, widths, right, unbroken)),
    ]


def _row_lines(
    row: Sequence[Text], widths: Sequence[int], right: Collection[int], unbroken: Collection[int]
) -> list[Text]:
    too_long = {n for n in unbroken if n < len(row) and cell_width(row[n].plain) > widths[n]}
    others = [Text() if column in too_long else cell for column, cell in enumerate(row)]
    return [*(row[column] for column in sorted(too_long)), *_aligned(others, widths, right)]


def column_rows(
    cells: Sequence[Sequence[Text | str]], width: int, *, right: Collection[int] = ()
) -> list[Text]:
    """Return cells in aligned columns, without a head."""
    texts = [[Text(cell) if isinstance(cell, str) else cell for cell in row] for row in cells]
    widths = _column_widths(texts, width)
    return [line for row in texts for line in _aligned(row, widths, right)]


def _column_widths(cells: Sequence[Sequence[Text]], width: int) -> list[int]:
    """Return the width of each column; the widest are narrowed until everything fits."""
    column_count = max((len(row) for row in cells), default=0)
    widths = [
        max((cell_width(row[column].plain) for row in cells if column < len(row)), default=0)
        for column in range(column_count)
    ]
    available = width - GAP * (column_count - 1)
    if sum(widths) <= available:
        return widths
    # The largest width that all columns can have, by bisection: a cell may be megabytes wide.
    low, high = _MIN_COLUMN_WIDTH, max(widths)
    while low < high:
        middle = (low + high + 1) // 2
        if sum(min(size, middle) for size in widths) <= available:
            low = middle
        else:
            high = middle - 1
    narrowed = [min(size, low) for size in widths]
    remaining = available - sum(narrowed)
    # Remaining cells go to the last of the narrowed columns, one each.
    for column in reversed(range(column_count)):
        if remaining > 0 and widths[column] > low:
            narrowed[column] += 1
            remaining -= 1
    return narrowed


def _aligned(row: Sequence[Text], widths: Sequence[int], right: Collection[int]) -> list[Text]:
    """Return the lines of one row; a cell that does not fit continues in the next line."""
    cells = [
        wrap(cell, width) if cell.plain else [Text()]
        for cell, width in zip(row, widths, strict=False)
    ]
    lines: list[Text] = []
    for parts in zip_longest(*cells, fillvalue=Text()):
        line = Text()
        for column, (part, width) in enumerate(zip(parts, widths, strict=False)):
            padding = " " * max(width - cell_width(part.plain), 0)
            pieces = (padding, part) if column in right else (part, padding)
            line += Text.assemble(*pieces, " " * GAP)
        line.rstrip()
        lines.append(line)
    return lines
