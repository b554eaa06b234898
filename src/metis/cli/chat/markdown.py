"""Markdown as rows of a terminal, drawn while it arrives.

Text is cut where a part of it can no longer change. A finished piece is drawn once and never
touched again, so only complete lines count: however the text was split on its way, the same rows
come out.
"""

import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Literal

from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode
from msgspec import Struct
from rich.syntax import Syntax
from rich.text import Text

from metis.cli.chat.rows import prefix_rows, table_rows, wrap
from metis.cli.text import visible_controls

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


class MarkdownSplitter:
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
        *lines, self._rest = (self._rest + visible_controls(text)).split("\n")
        return [piece for line in lines for piece in self._line(line)]

    def end(self) -> list[Piece]:
        """The text is over; everything that is left is finished."""
        found = list(self._line(self._rest)) if self._rest else []
        found += self._close()
        self.__init__()
        return found

    def tail(self) -> list[Piece]:
        """What is not finished yet, as it looks now."""
        again = MarkdownSplitter()
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


HIGHLIGHT_CONTEXT = 50
"""Colours depend on the lines before, back to the last multiple of this, so that long code is as
quick as short."""

CODE_INDENT = "  "


class CodeHighlighter:
    """Draws the lines of fences one after the other."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def copy(self) -> "CodeHighlighter":
        """The same, to look ahead with."""
        other = CodeHighlighter()
        other._lines = [*self._lines]
        return other

    def line(self, piece: Piece) -> Text:
        """The next line of a fence."""
        if piece.number % HIGHLIGHT_CONTEXT == 0:
            self._lines = []
        self._lines.append(piece.text)
        return _coloured(self._lines, piece.language)[-1]

    def block(self, text: str, language: str) -> list[Text]:
        """All lines of a fence that is whole."""
        return _coloured(text.rstrip("\n").split("\n"), language)


def _coloured(lines: Sequence[str], language: str) -> list[Text]:
    if not language:
        return [Text(CODE_INDENT + line if line else "") for line in lines]
    syntax = Syntax("", language, theme="ansi_dark", background_color="default")
    found = syntax.highlight("\n".join(lines)).split("\n", allow_blank=True)
    rows: list[Text] = []
    for plain, row in zip(lines, found, strict=False):
        same = row if row.plain == plain else Text(plain)
        rows.append(Text.assemble(CODE_INDENT, same) if plain else Text())
    rows += [Text(CODE_INDENT + plain if plain else "") for plain in lines[len(rows) :]]
    return rows


RULE_WIDTH = 40
_INLINE = {"strong": "bold", "em": "italic", "s": "strike", "link": "underline"}


@cache
def _parser() -> MarkdownIt:
    return MarkdownIt("commonmark").enable(["table", "strikethrough"])


class Markdown:
    """Draws pieces one after the other, with a blank row where one is due."""

    def __init__(self) -> None:
        self._before: Piece | None = None
        self._code = CodeHighlighter()

    def rows(self, piece: Piece, width: int) -> list[Text]:
        """The rows of the next piece."""
        gap = [Text()] if self._is_gap_due(piece) else []
        self._before = piece
        if piece.kind == "code":
            return [*gap, self._code.line(piece)]
        return gap + block_rows(piece.text, width)

    def preview(self, pieces: Iterable[Piece], width: int) -> list[Text]:
        """The rows of pieces that are not finished; they leave no trace."""
        again = Markdown()
        again._before, again._code = self._before, self._code.copy()
        return [row for piece in pieces for row in again.rows(piece, width)]

    def _is_gap_due(self, piece: Piece) -> bool:
        before = self._before
        if before is None:
            return False
        if piece.kind == "code":
            return piece.number == 0
        return not (piece.kind == before.kind == "item" and _mark(piece) == _mark(before))


def _mark(item: Piece) -> bool:
    """Whether an item has a number."""
    return item.text.lstrip()[:1].isdigit()


class MarkdownStream:
    """Words that are markdown."""

    def __init__(self) -> None:
        self._pieces = MarkdownSplitter()
        self._markdown = Markdown()

    def feed(self, text: str, width: int) -> list[Text]:
        """Take more words, and give what is finished by them."""
        return [
            row for piece in self._pieces.feed(text) for row in self._markdown.rows(piece, width)
        ]

    def tail(self, width: int) -> list[Text]:
        """What is not finished, as it looks now."""
        return self._markdown.preview(self._pieces.tail(), width)

    def end(self, width: int) -> list[Text]:
        """Give all that is left."""
        return [row for piece in self._pieces.end() for row in self._markdown.rows(piece, width)]


def block_rows(text: str, width: int) -> list[Text]:
    """A block of markdown as rows."""
    return _node_rows(SyntaxTreeNode(_parser().parse(text)).children, width)


def _node_rows(
    nodes: Sequence[SyntaxTreeNode], width: int, *, is_tight: bool = False
) -> list[Text]:
    rows: list[Text] = []
    for node in nodes:
        if rows and not is_tight:
            rows.append(Text())
        rows += _block(node, max(width, 8))
    return rows


def _block(node: SyntaxTreeNode, width: int) -> list[Text]:  # noqa: PLR0911 - one short case a kind
    match node.type:
        case "heading":
            return wrap(_inline(node, "bold"), width)
        case "paragraph":
            return wrap(_inline(node), width)
        case "bullet_list" | "ordered_list":
            return _list(node, width)
        case "blockquote":
            return prefix_rows("│ ", _node_rows(node.children, width - 2), style="dim")
        case "fence" | "code_block":
            language = node.info.split()[0] if node.info.strip() else ""
            return CodeHighlighter().block(node.content, language)
        case "hr":
            return [Text("─" * min(width, RULE_WIDTH), "dim")]
        case "table":
            return table_rows(_cells(node), width)
        case _:
            return [Text(line, "dim") for line in node.content.rstrip("\n").split("\n")]


def _list(node: SyntaxTreeNode, width: int) -> list[Text]:
    rows: list[Text] = []
    first = int(node.attrs.get("start", 1))
    for number, item in enumerate(node.children, first):
        mark = f"{number}. " if node.type == "ordered_list" else "• "
        rows += _hanging(
            mark, _node_rows(item.children, width - len(mark), is_tight=_is_tight(item))
        )
    return rows


def _is_tight(item: SyntaxTreeNode) -> bool:
    """Whether the words of an item stand directly upon the list inside of it."""
    return all(child.type != "paragraph" or child.hidden for child in item.children)


def _hanging(mark: str, rows: list[Text]) -> list[Text]:
    """Rows behind the mark of a list: the first beside it, the others below."""
    first, *others = rows or [Text()]
    return [Text.assemble((mark, "dim"), first), *prefix_rows(" " * len(mark), others)]


def _cells(node: SyntaxTreeNode) -> list[list[Text]]:
    return [
        [_inline(cell, "bold" if cell.type == "th" else "") for cell in row.children]
        for part in node.children
        for row in part.children
    ]


def _inline(node: SyntaxTreeNode, style: str = "") -> Text:
    text = Text(style=style)
    for child in node.children:
        _write(child, text, "")
    return text


def _write(node: SyntaxTreeNode, text: Text, style: str) -> None:
    match node.type:
        case "softbreak":
            text.append(" ", style)
        case "hardbreak":
            text.append("\n", style)
        case "code_inline":
            text.append(node.content, f"{style} cyan".strip())
        case "image":
            text.append(f"[image {node.content}] ({node.attrs.get('src', '')})", style)
        case _ if node.children:
            deeper = f"{style} {_INLINE.get(node.type, '')}".strip()
            for child in node.children:
                _write(child, text, deeper)
            _write_address(node, text)
        case _:
            text.append(node.content, style)


def _write_address(node: SyntaxTreeNode, text: Text) -> None:
    """A link says where it leads, unless its words do."""
    address = str(node.attrs.get("href", "")) if node.type == "link" else ""
    if address and not text.plain.endswith(address):
        text.append(f" ({address})", "dim")
