"""Text for a terminal: its width in cells, control characters, tables and numbers."""

import re
import shutil
import sys
from collections.abc import Collection, Sequence
from decimal import Decimal

import click

# The width of a terminal that does not report one.
DEFAULT_WIDTH = 80
# Narrower terminals are treated as this wide.
MIN_WIDTH = 40

_GAP = "  "
_CONTINUATION_INDENT = 2
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_EIGHTHS_PER_CELL = 8
_CENT = Decimal("0.01")

# Text of which every character takes one cell; a test compares it with the tables of rich.
SINGLE_CELLS = re.compile("[\x20-\x7e\xa1-\xac\xae-\u02ff\u2010-\u2027\u2190-\u2199\u2500-\u25fc]*")

# Characters that reverse the direction of writing can hide what a command or file name says.
_BIDI_CONTROLS = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
_VISIBLE: dict[int, str] = {
    **{code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"},
    **{code: f"\\x{code:02x}" for code in range(0x7F, 0xA0)},
    **{code: f"\\u{code:04x}" for code in (*_BIDI_CONTROLS, 0x2028, 0x2029)},
    # Lone surrogates cannot be encoded: printing one would raise an error.
    **dict.fromkeys(range(0xD800, 0xE000), "\ufffd"),
    ord("\r"): "",
    ord("\t"): "    ",
}


def terminal_width() -> int | None:
    """Return the width of the terminal on standard output; None for a file or a pipe."""
    return screen_width() if sys.stdout.isatty() else None


def screen_width() -> int:
    """Return how many columns to print to; 80 if nothing reports a width."""
    return max(shutil.get_terminal_size((DEFAULT_WIDTH, 24)).columns, MIN_WIDTH)


def cell_width(text: str) -> int:
    """Return how many columns a text takes: East Asian characters take two, accents none."""
    if SINGLE_CELLS.fullmatch(text):
        return len(text)
    # Importing rich takes longer than a whole `metis models`, and little text needs its tables.
    from rich.cells import cell_len  # noqa: PLC0415 - the reason stands above

    return cell_len(text)


def escape_controls(text: str) -> str:
    """Return a line in which everything is escaped that could move the cursor or reverse text."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)


def visible_controls(text: str) -> str:
    r"""Return text whose control characters are shown instead of obeyed; line breaks stay.

    >>> visible_controls("a\x1b[31mb\tc")
    'a␛[31mb    c'
    """
    return text if text.isprintable() else text.translate(_VISIBLE)


def truncate(text: str, width: int | None) -> str:
    """Cut a text to a width; an ellipsis marks the cut. Without a width nothing is cut."""
    if width is None or cell_width(text) <= width:
        return text
    # Bounds the loop below, since nearly every character takes at least one cell.
    text = text[: width - 1]
    while cell_width(text) > width - 1:
        text = text[:-1]
    return text.rstrip() + "…"


def one_line(text: str, width: int) -> str:
    """Return a text as one line without control characters, cut to a width."""
    head = text[: 4 * width]  # a result may have megabytes, and only one line of it is shown
    line = visible_controls(" ".join(head.split()))
    return truncate(line if len(head) == len(text) else f"{line}…", width)


def fold(line: str, width: int) -> list[str]:
    """Break a line into rows of at most `width` columns, at spaces where possible."""
    text = escape_controls(line)
    if cell_width(text) <= width:
        return [text]
    rest = text.lstrip()
    indent = min(len(text) - len(rest), width // 2)
    rows: list[str] = []
    while rest:
        length = _fitting_length(rest, max(width - indent, 2))
        rows.append(" " * indent + rest[:length].rstrip())
        rest = rest[length:].lstrip()
        # Only the first break indents, so that deep JSON does not run off the screen.
        if len(rows) == 1:
            indent = min(indent + _CONTINUATION_INDENT, width // 2)
    return rows


def _fitting_length(text: str, width: int) -> int:
    """Return how many characters of a text fit into a row."""
    used = 0
    for index, character in enumerate(text):
        used += cell_width(character)
        if used > width:
            space = text.rfind(" ", 0, index + 1)
            return space if space > 0 else index
    return len(text)


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Collection[int] = (),
    width: int | None = None,
) -> list[str]:
    """Return the lines of a table, cut at `width`; the columns in `right` are right-aligned."""
    cells = [[escape_controls(cell) for cell in row] for row in (head, *rows)]
    widths = [max(cell_width(row[column]) for row in cells) for column in range(len(head))]
    lines = [truncate(_aligned(row, widths, right), width) for row in cells]
    return [click.style(lines[0], dim=True), *lines[1:]]


def _aligned(row: Sequence[str], widths: Sequence[int], right: Collection[int]) -> str:
    padded: list[str] = []
    for column, (cell, width) in enumerate(zip(row, widths, strict=True)):
        padding = " " * (width - cell_width(cell))
        padded.append(padding + cell if column in right else cell + padding)
    return _GAP.join(padded).rstrip()


def bar(part: Decimal, total: Decimal, width: int) -> str:
    """Return a bar for a part of a total, in eighths of a cell; any positive part is visible."""
    if not total or part <= 0:
        return ""
    eighths = max(1, int(part / total * width * _EIGHTHS_PER_CELL))
    full, rest = divmod(eighths, _EIGHTHS_PER_CELL)
    return _EIGHTHS[-1] * full + (_EIGHTHS[rest] if rest else "")


def count(number: int, noun: str) -> str:
    """Return a number and its noun: 1 message, 2 messages."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def short_count(number: int) -> str:
    """Return a count in a few characters.

    >>> short_count(950), short_count(12_300), short_count(200_000), short_count(1_048_576)
    ('950', '12.3k', '200k', '1.05M')
    """
    for limit, sign in ((1_000_000, "M"), (1_000, "k")):
        if number >= limit:
            return f"{number / limit:.3g}{sign}"
    return str(number)


def format_usd(amount: Decimal) -> str:
    """Return an amount with as many decimals as it needs.

    >>> [format_usd(Decimal(text)) for text in ("0", "12.3", "0.5", "0.0421", "0.000123")]
    ['$0', '$12.30', '$0.50', '$0.0421', '$0.000123']
    """
    if not amount:
        return "$0"
    if amount >= 1 or not amount % _CENT:
        return f"${amount:.2f}"
    places = max(4, -amount.adjusted() + 2)
    return f"${amount:.{places}f}"
