"""Pieces: markdown that comes bit by bit, cut where a part of it can change no more.

A finished piece is drawn once and never touched again, so everything depends on whole lines only:
however the text was chopped on its way, the same pieces come out.
"""

import re
from typing import Literal

from msgspec import Struct

from metis.cli.chat.letters import harmless

Kind = Literal["block", "item", "code"]
"""A paragraph, heading, table or quote; one item of a list; one line inside of a fence."""

_FENCE = re.compile(r" {0,3}(`{3,}(?=[^`]*$)|~{3,})\s*(\S*)")
_HEADING = re.compile(r" {0,3}#{1,6}(\s|$)")
_RULE = re.compile(r" {0,3}([-*_])\s*(?:\1\s*){2,}$")
_ITEM = re.compile(r"( {0,3})([-*+]|\d{1,9}[.)])(?= |$)")
_QUOTE = re.compile(r" {0,3}>")
_UNDERLINE = re.compile(r" {0,3}(=+|-+)\s*$")


class Piece(Struct, frozen=True, kw_only=True):
    """A part of the text that is drawn at once."""

    kind: Kind
    text: str
    language: str = ""
    """What the fence says of a line of code."""
    number: int = 0
    """Which line of its fence a line of code is, from 0."""


class Pieces:
    """Takes text as it comes and gives the pieces that are finished."""

    def __init__(self) -> None:
        self._rest = ""
        self._lines: list[str] = []
        self._is_item = False
        self._fence: str | None = None
        self._language = ""
        self._number = 0

    def feed(self, text: str) -> list[Piece]:
        """Take more text."""
        *lines, self._rest = (self._rest + harmless(text)).split("\n")
        return [piece for line in lines for piece in self._line(line)]

    def end(self) -> list[Piece]:
        """The text is over; everything that is left is finished."""
        found = list(self._line(self._rest)) if self._rest else []
        found += self._close()
        self.__init__()
        return found

    def tail(self) -> list[Piece]:
        """What is not finished yet, as it looks now."""
        again = Pieces()
        again.__dict__.update(self.__dict__, _lines=[*self._lines])
        return again.end()

    def _line(self, line: str) -> list[Piece]:
        if self._fence is not None:
            return self._code_line(line)
        if self._is_item and self._belongs_to_item(line):
            self._lines.append(line)
            return []
        if not line.strip():
            return self._close()
        return self._start(line)

    def _start(self, line: str) -> list[Piece]:
        """A line that may begin something new."""
        fence = _FENCE.match(line)
        if fence is not None:
            found = self._close()
            self._fence, self._language, self._number = fence[1], fence[2], 0
            return found
        if self._lines and not self._is_item and _UNDERLINE.match(line):
            self._lines.append(line)
            return self._close()
        if _HEADING.match(line) or _RULE.match(line):
            return [*self._close(), Piece(kind="block", text=line)]
        if _ITEM.match(line):
            found = self._close()
            self._is_item, self._lines = True, [line]
            return found
        found = self._close() if self._begins_anew(line) else []
        self._lines.append(line)
        return found

    def _begins_anew(self, line: str) -> bool:
        """Whether a line cannot go on with the lines before it."""
        if not self._lines:
            return False
        if self._is_item:
            return not self._lines[-1].strip()
        return bool(_QUOTE.match(line)) != bool(_QUOTE.match(self._lines[0]))

    def _belongs_to_item(self, line: str) -> bool:
        """Whether a line is inside of the item: it is blank, or as deep as the item's words."""
        if not line.strip():
            return True
        marker = _ITEM.match(self._lines[0])
        depth = len(marker[1]) + len(marker[2]) + 1 if marker else 0
        indent = len(line) - len(line.lstrip())
        return indent >= min(depth, 2 if _is_bullet(self._lines[0]) else 3)

    def _code_line(self, line: str) -> list[Piece]:
        fence = self._fence or ""
        bare = line.strip()
        if bare.startswith(fence) and not bare.strip(fence[0]):
            self._fence = None
            return []
        piece = Piece(kind="code", text=line, language=self._language, number=self._number)
        self._number += 1
        return [piece]

    def _close(self) -> list[Piece]:
        lines, kind = self._lines, "item" if self._is_item else "block"
        self._lines, self._is_item = [], False
        text = "\n".join(lines).rstrip()
        return [Piece(kind=kind, text=text)] if text else []


def _is_bullet(line: str) -> bool:
    return line.lstrip()[:1] in "-*+"
