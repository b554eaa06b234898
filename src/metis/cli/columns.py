"""Columns of a terminal: how wide text is there, and where it has to break."""

import shutil
import sys
import unicodedata

WIDTH = 80
"""How wide a terminal is that does not say."""
NARROWEST = 40
"""A terminal is taken for at least so wide."""
_CONTINUED = 2
"""How much deeper the rest of a broken line is indented."""


def terminal_width() -> int | None:
    """How wide the terminal is that is printed to; None if it is a file or a pipe."""
    return columns() if sys.stdout.isatty() else None


def columns() -> int:
    """How many columns there are to print to; 80 if nobody knows."""
    return max(shutil.get_terminal_size((WIDTH, 24)).columns, NARROWEST)


def cells(text: str) -> int:
    """How many columns a text takes; letters of East Asia take two, accents none."""
    if text.isascii():
        return len(text)
    return sum(map(_cells_of, text))


def _cells_of(letter: str) -> int:
    if unicodedata.combining(letter):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def printable(text: str) -> str:
    """The text with everything escaped that would move the cursor or turn the writing around."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)


def fold(line: str, width: int) -> list[str]:
    """A line as rows of at most `width` columns, broken at blanks where there are some."""
    text = printable(line)
    if cells(text) <= width:
        return [text]
    rest = text.lstrip()
    indent = min(len(text) - len(rest), width // 2)
    rows: list[str] = []
    while rest:
        room = max(width - indent, 2)
        taken = _taken(rest, room)
        rows.append(" " * indent + rest[:taken].rstrip())
        rest = rest[taken:].lstrip()
        if len(rows) == 1:
            indent = min(indent + _CONTINUED, width // 2)
    return rows


def _taken(text: str, room: int) -> int:
    """How many characters of a text fit into a row."""
    used = 0
    for place, letter in enumerate(text):
        used += _cells_of(letter)
        if used > room:
            blank = text.rfind(" ", 0, place + 1)
            return blank if blank > 0 else place
    return len(text)
