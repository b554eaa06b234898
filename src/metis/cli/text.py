"""Text for a terminal: its width in cells, control characters, styles, tables and numbers."""

import os
import re
import shutil
import sys
from collections.abc import Collection, Sequence
from decimal import Decimal

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
SINGLE_CELLS = re.compile(
    "[\x20-\x7e\xa1-\xac\xae-\u02ff\u2010-\u2027\u2190-\u2199\u2400-\u2426\u2500-\u25fc]*"
)

# Tag characters spell invisible text; only the flags of a few regions use them, after this sign.
_FLAG = "\U0001f3f4[\U000e0020-\U000e007f]{1,7}"
# Characters that a terminal may obey instead of showing: control characters, marks that reverse the
# direction of writing, line separators, tags, and lone surrogates, which no encoding can write.
_UNSAFE = (
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\U000e0000-\U000e007f]"
)
_CONTROLS = re.compile(f"{_FLAG}|\r\n|{_UNSAFE}")
# Printable by their category, and yet blank or invisible: fillers, joiners, variation selectors.
_BLANK = re.compile("[\u034f\u115f\u1160\u2800\u3164\ufe00-\ufe0d\uffa0\U000e0100-\U000e01ef]")
_SHOWN = {"\t": "    ", "\r\n": "\n"}

# Precedes the styles of metis in text that is not printed yet. It is random, so that no content can
# contain it: a model that writes its own escape sequences gets no colour and hides no text.
_STYLE_MARK = f"\x1b{os.urandom(8).hex()}"
_COLOURS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")


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
    from rich.cells import cell_len  # noqa: PLC0415 - see above

    return cell_len(text)


def escape_controls(text: str) -> str:
    r"""Return a line in which everything is escaped that is not visible or could reverse text.

    >>> escape_controls("a\u200bb\x1b[1m")
    'a\\u200bb\\u001b[1m'
    """
    if not text.isprintable():
        text = "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)
    return text if text.isascii() else _BLANK.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def visible_controls(text: str) -> str:
    r"""Return text whose control characters are visible and without effect; line breaks stay.

    >>> visible_controls("a\x1b[31mb\tc\x9b")
    'a␛[31mb    c\\x9b'
    """
    return text if text.isprintable() else _CONTROLS.sub(_shown, text)


def _shown(match: re.Match[str]) -> str:
    text = match[0]
    code = ord(text[-1])
    if text in _SHOWN:
        return _SHOWN[text]
    if len(text) > 1:
        return text  # a flag
    if code < 0x20:  # noqa: PLR2004 - the control characters of ASCII, which have pictures
        return chr(0x2400 + code)
    if 0xD800 <= code < 0xE000:  # noqa: PLR2004 - surrogates
        return "\ufffd"
    return f"\\x{code:02x}" if code <= 0xFF else f"\\u{code:04x}"  # noqa: PLR2004 - one byte


def style(text: str, *, fg: str | None = None, bold: bool = False, dim: bool = False) -> str:
    """Return a text with a style that `styled_text` turns into escape sequences."""
    codes = [str(30 + _COLOURS.index(fg))] if fg else []
    codes += ["1"] * bold + ["2"] * dim
    return f"{_STYLE_MARK}[{';'.join(codes)}m{text}{_STYLE_MARK}[0m" if codes else text


def styled_text(text: str, *, has_colour: bool) -> str:
    """Return text as a terminal may get it: visible control characters, styles of metis applied.

    Everything that commands print goes through here; the escape sequences in the result are those
    of `style`, or none without colour.
    """
    first, *others = text.split(_STYLE_MARK)
    parts = [visible_controls(first)]
    for part in others:
        codes, _, content = part.partition("m")
        parts += (f"\x1b{codes}m" if has_colour else "", visible_controls(content))
    return "".join(parts)


def unstyled(text: str) -> str:
    """Return text without the styles of metis; control characters stay for the screen to escape."""
    first, *others = text.split(_STYLE_MARK)
    return first + "".join(part.partition("m")[2] for part in others)


def truncate(text: str, width: int | None) -> str:
    """Cut a text to a width; an ellipsis marks the cut. Without a width nothing is cut."""
    if width is None or cell_width(text) <= width:
        return text
    width = max(width, 1)  # a very narrow terminal may leave no cell for a column
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
    position = len(text) - len(text.lstrip())
    indent = min(position, width // 2)
    rows: list[str] = []
    while position < len(text):
        end = _row_end(text, position, max(width - indent, 2))
        rows.append(" " * indent + text[position:end].rstrip())
        position = end
        # Slicing the text instead would copy a long line once per row.
        while position < len(text) and text[position].isspace():
            position += 1
        # Only the first break indents, so that deep JSON does not run off the screen.
        if len(rows) == 1:
            indent = min(indent + _CONTINUATION_INDENT, width // 2)
    return rows


def _row_end(text: str, start: int, width: int) -> int:
    """Return where a row ends that begins at a position of a text."""
    used = 0
    for index in range(start, len(text)):
        used += cell_width(text[index])
        if used > width:
            space = text.rfind(" ", start, index + 1)
            return space if space > start else max(index, start + 1)
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
    return [style(lines[0], dim=True), *lines[1:]]


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
    full_cells, partial = divmod(eighths, _EIGHTHS_PER_CELL)
    return _EIGHTHS[-1] * full_cells + (_EIGHTHS[partial] if partial else "")


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
