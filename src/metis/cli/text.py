"""Text for a terminal: its width in cells, control characters, tables and numbers."""

import shutil
import sys
import unicodedata
from collections.abc import Collection, Sequence
from decimal import Decimal

import click

DEFAULT_WIDTH = 80
"""How wide a terminal is that does not say."""
MIN_WIDTH = 40
"""A terminal is taken for at least so wide."""
_CONTINUED = 2
"""How much deeper the rest of a broken line is indented."""


def terminal_width() -> int | None:
    """How wide the terminal is that is printed to; None if it is a file or a pipe."""
    return screen_width() if sys.stdout.isatty() else None


def screen_width() -> int:
    """How many columns there are to print to; 80 if nobody knows."""
    return max(shutil.get_terminal_size((DEFAULT_WIDTH, 24)).columns, MIN_WIDTH)


def cell_width(text: str) -> int:
    """How many columns a text takes; letters of East Asia take two, accents none."""
    if text.isascii():
        return len(text)
    return sum(map(_char_width, text))


def _char_width(letter: str) -> int:
    if unicodedata.combining(letter):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def escape_controls(text: str) -> str:
    """The text with everything escaped that would move the cursor or turn the writing around."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)


def fold(line: str, width: int) -> list[str]:
    """A line as rows of at most `width` columns, broken at blanks where there are some."""
    text = escape_controls(line)
    if cell_width(text) <= width:
        return [text]
    rest = text.lstrip()
    indent = min(len(text) - len(rest), width // 2)
    rows: list[str] = []
    while rest:
        room = max(width - indent, 2)
        taken = _fitting_length(rest, room)
        rows.append(" " * indent + rest[:taken].rstrip())
        rest = rest[taken:].lstrip()
        if len(rows) == 1:
            indent = min(indent + _CONTINUED, width // 2)
    return rows


def _fitting_length(text: str, room: int) -> int:
    """How many characters of a text fit into a row."""
    used = 0
    for place, letter in enumerate(text):
        used += _char_width(letter)
        if used > room:
            blank = text.rfind(" ", 0, place + 1)
            return blank if blank > 0 else place
    return len(text)


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
    shown = [[escape_controls(cell) for cell in row] for row in (head, *rows)]
    sizes = [max(cell_width(row[place]) for row in shown) for place in range(len(head))]
    lines = [_line(row, sizes, right, width) for row in shown]
    return [click.style(lines[0], dim=True), *lines[1:]]


def _line(
    row: Sequence[str], sizes: Sequence[int], right: Collection[int], width: int | None
) -> str:
    padded: list[str] = []
    for place, (cell, size) in enumerate(zip(row, sizes, strict=True)):
        blank = " " * (size - cell_width(cell))
        padded.append(blank + cell if place in right else cell + blank)
    return truncate(_GAP.join(padded).rstrip(), width)


def truncate(text: str, width: int | None) -> str:
    """A text that is not wider than a screen; what is missing is an ellipsis."""
    if width is None or cell_width(text) <= width:
        return text
    while cell_width(text) > width - 1:
        text = text[:-1]
    return text.rstrip() + "…"


def bar(part: Decimal, whole: Decimal, size: int) -> str:
    """A bar for a part of a whole, in eighths of a column; something is never nothing."""
    if not whole or part <= 0:
        return ""
    eighths = max(1, int(part / whole * size * _PLAIN_EIGHTHS))
    full, rest = divmod(eighths, _PLAIN_EIGHTHS)
    return _EIGHTHS[-1] * full + (_EIGHTHS[rest] if rest else "")


def short_count(number: int) -> str:
    """A count in a few characters.

    >>> short(950), short(12_300), short(200_000), short(1_048_576)
    ('950', '12.3k', '200k', '1.05M')
    """
    for limit, sign in ((1_000_000, "M"), (1_000, "k")):
        if number >= limit:
            return f"{number / limit:.3g}{sign}"
    return str(number)


def format_usd(amount: Decimal) -> str:
    """An amount with as many places as it needs to say something: $12.30, $0.0421, $0.000123."""
    if not amount:
        return "$0"
    if amount >= 1:
        return f"${amount:.2f}"
    places = max(4, -amount.adjusted() + 2)
    return f"${amount:.{places}f}"


_BIDI = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""Letters that turn the direction of writing around."""

_TABLE: dict[int, str] = {
    **{code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"},
    **{code: f"\\x{code:02x}" for code in range(0x7F, 0xA0)},
    **{code: f"\\u{code:04x}" for code in (*_BIDI, 0x2028, 0x2029)},
    **dict.fromkeys(range(0xD800, 0xE000), "\ufffd"),
    ord("\r"): "",
    ord("\t"): "    ",
}


def visible_controls(text: str) -> str:
    r"""The text with everything made visible that would steer the terminal.

    >>> harmless("a\x1b[31mb\tc")
    'a␛[31mb    c'
    """
    return text if text.isprintable() else text.translate(_TABLE)


def cut_line(text: str, length: int) -> str:
    """A line cut to a length; its end says so."""
    line = visible_controls(text[: length + 1])
    return line if len(line) <= length else f"{line[: length - 1]}…"


def one_line(text: str, length: int) -> str:
    """A text on one line, cut to a length."""
    flat = " ".join(text[: 4 * length].split())
    return cut_line(flat if len(text) <= 4 * length else f"{flat}{'…' * length}", length)
