"""Code: lines in the colours of their language, each final once it is drawn."""

from collections.abc import Sequence

from rich.syntax import Syntax
from rich.text import Text

from metis.cli.chat.pieces import Piece

CONTEXT = 50
"""Colours depend on the lines before, back to the last multiple of this, so that long code is as
quick as short."""

INDENT = "  "


class Code:
    """Draws the lines of fences one after the other."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def copy(self) -> "Code":
        """The same, to look ahead with."""
        other = Code()
        other._lines = [*self._lines]
        return other

    def line(self, piece: Piece) -> Text:
        """The next line of a fence."""
        if piece.number % CONTEXT == 0:
            self._lines = []
        self._lines.append(piece.text)
        return _coloured(self._lines, piece.language)[-1]

    def block(self, text: str, language: str) -> list[Text]:
        """All lines of a fence that is whole."""
        return _coloured(text.rstrip("\n").split("\n"), language)


def _coloured(lines: Sequence[str], language: str) -> list[Text]:
    if not language:
        return [Text(INDENT + line if line else "") for line in lines]
    syntax = Syntax("", language, theme="ansi_dark", background_color="default")
    found = syntax.highlight("\n".join(lines)).split("\n", allow_blank=True)
    rows: list[Text] = []
    for plain, row in zip(lines, found, strict=False):
        same = row if row.plain == plain else Text(plain)
        rows.append(Text.assemble(INDENT, same) if plain else Text())
    rows += [Text(INDENT + plain if plain else "") for plain in lines[len(rows) :]]
    return rows
