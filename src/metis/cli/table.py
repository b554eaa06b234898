"""Table: rows under headings, as wide as they need to be, and a bar for a number."""

from collections.abc import Collection, Sequence
from decimal import Decimal

import click

from metis.cli.columns import cells, printable

_GAP = "  "
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_PLAIN_EIGHTHS = 8


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Collection[int] = (),
    width: int | None = None,
) -> list[str]:
    """Lines of a table; the columns in `right` are flush right, the last is cut at `width`."""
    shown = [[printable(cell) for cell in row] for row in (head, *rows)]
    sizes = [max(cells(row[place]) for row in shown) for place in range(len(head))]
    lines = [_line(row, sizes, right, width) for row in shown]
    return [click.style(lines[0], dim=True), *lines[1:]]


def _line(
    row: Sequence[str], sizes: Sequence[int], right: Collection[int], width: int | None
) -> str:
    padded: list[str] = []
    for place, (cell, size) in enumerate(zip(row, sizes, strict=True)):
        blank = " " * (size - cells(cell))
        padded.append(blank + cell if place in right else cell + blank)
    return cut(_GAP.join(padded).rstrip(), width)


def cut(text: str, width: int | None) -> str:
    """A text that is not wider than a screen; what is missing is an ellipsis."""
    if width is None or cells(text) <= width:
        return text
    while cells(text) > width - 1:
        text = text[:-1]
    return text.rstrip() + "…"


def bar(part: Decimal, whole: Decimal, size: int) -> str:
    """A bar for a part of a whole, in eighths of a column; something is never nothing."""
    if not whole or part <= 0:
        return ""
    eighths = max(1, int(part / whole * size * _PLAIN_EIGHTHS))
    full, rest = divmod(eighths, _PLAIN_EIGHTHS)
    return _EIGHTHS[-1] * full + (_EIGHTHS[rest] if rest else "")


def short(number: int) -> str:
    """A count in a few characters.

    >>> short(950), short(12_300), short(200_000), short(1_048_576)
    ('950', '12.3k', '200k', '1.05M')
    """
    for limit, sign in ((1_000_000, "M"), (1_000, "k")):
        if number >= limit:
            return f"{number / limit:.3g}{sign}"
    return str(number)


def dollars(amount: Decimal) -> str:
    """An amount with as many places as it needs to say something: $12.30, $0.0421, $0.000123."""
    if not amount:
        return "$0"
    if amount >= 1:
        return f"${amount:.2f}"
    places = max(4, -amount.adjusted() + 2)
    return f"${amount:.{places}f}"
