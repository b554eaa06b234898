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
from metis.cli.text import SINGLE_CELLS, visible_controls

CODE_INDENT = "  "
# The colours of a line depend on the lines before it, back to the last multiple of this: so a line
# of long code costs no more than one of short code.
HIGHLIGHT_CONTEXT = 16
RULE_WIDTH = 40
_MIN_WIDTH = 8

# Text without an end of line or block is drawn in pieces of this many characters: a redraw of one
# endless paragraph would take longer with each word.
MAX_PIECE = 16_000
# How far a piece may be shortened to end at a space.
_CUT_WINDOW = 200
# A block with more Markdown characters is drawn as plain text: the parser takes 0.15 ms for each
# bracket.
_MAX_BRACKETS = 200
_MAX_PIPES = 2_000
_MAX_SIGNS = 1_000
# Parsing that many lines of one paragraph takes 15 ms, and each redraw parses them again.
_MAX_LINES = 500
# Longer code is drawn without colours: a lexer may take any time for a line.
_MAX_HIGHLIGHTED_LINE = 1_000
_MAX_HIGHLIGHTED = 2_000
# How many characters of a response a lexer may process, counting repetitions: a thousand take 3
# milliseconds or more, and so does starting thirty lexers. Code after that has no colours.
_MAX_LEXED = 250_000
_LEXER_START = 100

# How much drawing time a response may take, in units of about 15 microseconds. Later lines are
# written as plain text: 500,000 lines of one character would take 15 seconds. 500 kB of ordinary
# Markdown stay below the limit.
_COST_LIMIT = 50_000
_LINE_COST = 2
_BLOCK_COST = 8
_CELL_COST = 3
_BRACKET_COST = 8

# A paragraph, heading, table or quote; one item of a list; one line of a fenced code block; a part
# of a line that is too long for Markdown; lines beyond the limit of costs.
Kind = Literal["block", "item", "code", "plain", "lines"]

_FENCE = re.compile(r" {0,3}(`{3,}(?=[^`]*$)|~{3,})\s*(\S*)")
_HEADING = re.compile(r" {0,3}#{1,6}(\s|$)")
_RULE = re.compile(r" {0,3}([-*_])\s*(?:\1\s*){2,}$")
_ITEM = re.compile(r"( {0,3})([-*+]|\d{1,9}[.)])(?= |$)")
_QUOTE = re.compile(r" {0,3}>")
_HEADING_UNDERLINE = re.compile(r" {0,3}(=+|-+)\s*$")
_SIGN = re.compile(r"[*_~`<>&\\!]")
_INLINE_STYLES = {"strong": "bold", "em": "italic", "s": "strike", "link": "underline"}


class Piece(Struct, frozen=True, kw_only=True):
    """A part of the text that is drawn at once."""

    kind: Kind
    text: str
    language: str = ""
    """The language of a line of code."""
    number: int = 0
    """The number of a line of code in its block, from 0."""


class MarkdownSplitter:
    """Splits text into finished pieces as it arrives."""

    def __init__(self) -> None:
        self._partial_line = ""
        self._is_cut = False
        self._lines: list[str] = []
        self._block_length = 0
        self._is_item = False
        self._fence: str | None = None
        self._language = ""
        self._code_line_count = 0
        self._cost = 0

    def feed(self, text: str) -> list[Piece]:
        """Add text, and return the pieces that it finishes."""
        # Never more than a piece and the new text is copied, however long the line is.
        *lines, partial_line = (self._partial_line + text).split("\n")
        pieces: list[Piece] = []
        for index, line in enumerate(lines):
            if self._cost > _COST_LIMIT:
                pieces += self._unparsed(lines[index:])
                break
            pieces += self._end_line(line)
        self._partial_line, cut = self._cut(partial_line)
        return pieces + cut

    def _unparsed(self, lines: list[str]) -> list[Piece]:
        """Return complete lines as they are."""
        pieces = self._close()
        self._fence, self._is_cut = None, False
        text = "\n".join(line.removesuffix("\r") for line in lines)
        return [*pieces, Piece(kind="lines", text=visible_controls(text))]

    def end(self) -> list[Piece]:
        """Return the remaining pieces: the text is complete."""
        pieces: list[Piece] = []
        if self._partial_line:
            is_parsed = self._cost <= _COST_LIMIT
            line = self._partial_line
            pieces += self._end_line(line) if is_parsed else self._unparsed([line])
        pieces += self._close()
        self.__init__()
        return pieces

    def tail(self) -> list[Piece]:
        """Return what is not finished, as if the text ended here."""
        copy = MarkdownSplitter()
        # `_lines` is copied because `end` changes it; the other fields are immutable.
        copy.__dict__.update(self.__dict__, _lines=[*self._lines])
        return copy.end()

    def _cut(self, line: str) -> tuple[str, list[Piece]]:
        """Return the end of a line, and the pieces before it if it is too long for one.

        Only the first characters decide, so that it does not matter how the text was split.
        """
        pieces: list[Piece] = []
        if self._fence is None and self._lines and self._block_length + len(line) > MAX_PIECE:
            pieces += self._close()
        start = 0
        while len(line) - start > MAX_PIECE:
            end = start + MAX_PIECE
            end = line.rfind(" ", end - _CUT_WINDOW, end) + 1 or end
            pieces.append(self._long_piece(line[start:end]))
            start = end
            self._is_cut = True
        return line[start:], pieces

    def _end_line(self, line: str) -> list[Piece]:
        """Add a complete line, or the end of one whose beginning was drawn."""
        self._cost += _LINE_COST
        line, pieces = self._cut(line.removesuffix("\r"))
        if self._is_cut:
            self._is_cut = False
            return [*pieces, self._long_piece(line)]
        pieces += self._add_line(visible_controls(line))
        length = self._block_length if len(self._lines) > 1 else 0
        self._block_length = length + len(line) + 1 if self._lines else 0
        return pieces

    def _long_piece(self, text: str) -> Piece:
        if self._fence is None:
            return Piece(kind="plain", text=visible_controls(text))
        number = self._code_line_count
        self._code_line_count += 1
        return Piece(kind="code", text=visible_controls(text), number=number)

    def _add_line(self, line: str) -> list[Piece]:
        if self._fence is not None:
            return self._add_code_line(line)
        if self._is_item and self._belongs_to_item(line):
            self._lines.append(line)
            return []
        if not line.strip():
            return self._close()
        return self._add_text_line(line)

    def _add_text_line(self, line: str) -> list[Piece]:
        """Add a line that may begin a new piece."""
        fence = _FENCE.match(line)
        if fence is not None:
            pieces = self._close()
            self._fence, self._language, self._code_line_count = fence[1], fence[2], 0
            return pieces
        # A line of dashes under a paragraph makes it a heading; it is not a rule.
        if self._lines and not self._is_item and _HEADING_UNDERLINE.match(line):
            self._lines.append(line)
            return self._close()
        if _HEADING.match(line) or _RULE.match(line):
            self._cost += _block_cost(line)
            return [*self._close(), Piece(kind="block", text=line)]
        if _ITEM.match(line):
            pieces = self._close()
            self._is_item, self._lines = True, [line]
            return pieces
        pieces = self._close() if self._begins_block(line) else []
        self._lines.append(line)
        return pieces

    def _begins_block(self, line: str) -> bool:
        """Return whether a line cannot continue the lines before it."""
        if not self._lines:
            return False
        if self._is_item:
            return not self._lines[-1].strip()
        return bool(_QUOTE.match(line)) != bool(_QUOTE.match(self._lines[0]))

    def _belongs_to_item(self, line: str) -> bool:
        """Return whether a line is part of the list item: empty, or indented like its text."""
        if not line.strip():
            return True
        marker = _ITEM.match(self._lines[0])
        depth = len(marker[1]) + len(marker[2]) + 1 if marker else 0
        indent = len(line) - len(line.lstrip())
        # Models often indent by less than CommonMark requires.
        return indent >= min(depth, 2 if _is_bullet(self._lines[0]) else 3)

    def _add_code_line(self, line: str) -> list[Piece]:
        fence = self._fence or ""
        stripped = line.strip()
        if stripped.startswith(fence) and not stripped.strip(fence[0]):
            self._fence = None
            return []
        number = self._code_line_count
        self._code_line_count += 1
        return [Piece(kind="code", text=line, language=self._language, number=number)]

    def _close(self) -> list[Piece]:
        """Finish the piece that was begun."""
        lines, kind = self._lines, "item" if self._is_item else "block"
        self._lines, self._is_item = [], False
        text = "\n".join(lines).rstrip()
        if not text:
            return []
        self._cost += _block_cost(text)
        return [Piece(kind=kind, text=text)]


def _block_cost(text: str) -> int:
    """Return what a block costs to draw, without its lines."""
    brackets = min(text.count("["), _MAX_BRACKETS) * _BRACKET_COST
    cells = min(text.count("|"), _MAX_PIPES) * _CELL_COST
    return _BLOCK_COST + brackets + cells + min(len(_SIGN.findall(text)), _MAX_SIGNS)


def _is_bullet(line: str) -> bool:
    return line.lstrip()[:1] in "-*+"


class CodeHighlighter:
    """Draws the lines of code blocks one after the other; each is final once it is drawn."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._length = 0
        self._lexed = 0

    def copy(self) -> "CodeHighlighter":
        """Return a copy that can go on without changing this one."""
        other = CodeHighlighter()
        other._lines, other._length = [*self._lines], self._length
        other._lexed = self._lexed
        return other

    def line(self, piece: Piece) -> Text:
        """Return the next line of a code block."""
        if len(piece.text) > _MAX_HIGHLIGHTED_LINE or self._lexed > _MAX_LEXED:
            return Text(CODE_INDENT + piece.text)
        self._length += len(piece.text)
        if piece.number % HIGHLIGHT_CONTEXT == 0 or self._length > _MAX_HIGHLIGHTED:
            self._lines, self._length = [], len(piece.text)
        self._lines.append(piece.text)
        if piece.language:
            self._lexed += self._length + _LEXER_START
        return _highlighted(self._lines, piece.language)[-1]


def _highlighted(lines: Sequence[str], language: str) -> list[Text]:
    if not language:
        return [Text(CODE_INDENT + line if line else "") for line in lines]
    syntax = Syntax("", language, theme="ansi_dark", background_color="default")
    coloured = syntax.highlight("\n".join(lines)).split("\n", allow_blank=True)
    rows: list[Text] = []
    for plain, row in zip(lines, coloured, strict=False):
        # A lexer may change whitespace or add lines; text that differs is shown without colours.
        text = row if row.plain == plain else Text(plain)
        rows.append(Text.assemble(CODE_INDENT, text) if plain else Text())
    rows += [Text(CODE_INDENT + plain if plain else "") for plain in lines[len(rows) :]]
    return rows


class MarkdownDrawer:
    """Draws pieces one after the other, with an empty row between blocks."""

    def __init__(self) -> None:
        self._previous: Piece | None = None
        self._code = CodeHighlighter()

    def rows(self, piece: Piece, width: int) -> list[Text]:
        """Return the rows of the next piece."""
        gap = [Text()] if self._needs_gap(piece) else []
        self._previous = piece
        if piece.kind == "code":
            return [*gap, self._code.line(piece)]
        if piece.kind == "plain" and SINGLE_CELLS.fullmatch(piece.text):
            return gap + wrap(Text(piece.text), width)
        if piece.kind in {"plain", "lines"}:
            # One text of many rows, which the terminal breaks: a text for each takes some
            # microseconds, and the width of each wide character two.
            return [*gap, Text(piece.text)]
        return gap + block_rows(piece.text, width)

    def preview(self, pieces: Iterable[Piece], width: int) -> list[Text]:
        """Return the rows of unfinished pieces, without remembering them."""
        copy = MarkdownDrawer()
        copy._previous, copy._code = self._previous, self._code.copy()
        return [row for piece in pieces for row in copy.rows(piece, width)]

    def _needs_gap(self, piece: Piece) -> bool:
        previous = self._previous
        if previous is None:
            return False
        if piece.kind == "code":
            return piece.number == 0
        if piece.kind == previous.kind and piece.kind in {"plain", "lines"}:
            return False
        is_same_list = _is_numbered(piece) == _is_numbered(previous)
        return not (piece.kind == previous.kind == "item" and is_same_list)


def _is_numbered(item: Piece) -> bool:
    return item.text.lstrip()[:1].isdigit()


class MarkdownStream:
    """Markdown text as a stream of rows."""

    def __init__(self) -> None:
        self._splitter = MarkdownSplitter()
        self._drawer = MarkdownDrawer()

    def feed(self, text: str, width: int) -> list[Text]:
        """Add text, and return the rows that it finishes."""
        return self._rows(self._splitter.feed(text), width)

    def tail(self, width: int) -> list[Text]:
        """Return the rows that are not finished, as they look now."""
        return self._drawer.preview(self._splitter.tail(), width)

    def end(self, width: int) -> list[Text]:
        """Return all remaining rows."""
        return self._rows(self._splitter.end(), width)

    def _rows(self, pieces: Iterable[Piece], width: int) -> list[Text]:
        return [row for piece in pieces for row in self._drawer.rows(piece, width)]


@cache
def _parser() -> MarkdownIt:
    return MarkdownIt("commonmark").enable(["table", "strikethrough"])


def block_rows(text: str, width: int) -> list[Text]:
    """Return a block of Markdown as rows."""
    is_costly = text.count("[") > _MAX_BRACKETS or text.count("|") > _MAX_PIPES
    if is_costly or text.count("\n") > _MAX_LINES or len(_SIGN.findall(text)) > _MAX_SIGNS:
        return wrap(Text(text), max(width, _MIN_WIDTH))
    return _node_rows(SyntaxTreeNode(_parser().parse(text)).children, width)


def _node_rows(
    nodes: Sequence[SyntaxTreeNode], width: int, *, is_tight: bool = False
) -> list[Text]:
    rows: list[Text] = []
    for node in nodes:
        if rows and not is_tight:
            rows.append(Text())
        rows += _rows_of(node, max(width, _MIN_WIDTH))
    return rows


def _rows_of(node: SyntaxTreeNode, width: int) -> list[Text]:  # noqa: PLR0911 - one short case a kind
    match node.type:
        case "heading":
            return wrap(_inline(node, "bold"), width)
        case "paragraph":
            return wrap(_inline(node), width)
        case "bullet_list" | "ordered_list":
            return _list_rows(node, width)
        case "blockquote":
            return prefix_rows("│ ", _node_rows(node.children, width - 2), style="dim")
        case "fence" | "code_block":
            language = node.info.split()[0] if node.info.strip() else ""
            return _highlighted(node.content.rstrip("\n").split("\n"), language)
        case "hr":
            return [Text("─" * min(width, RULE_WIDTH), "dim")]
        case "table":
            return table_rows(_table_cells(node), width)
        case _:
            return [Text(line, "dim") for line in node.content.rstrip("\n").split("\n")]


def _list_rows(node: SyntaxTreeNode, width: int) -> list[Text]:
    rows: list[Text] = []
    start = int(node.attrs.get("start", 1))
    for number, item in enumerate(node.children, start):
        mark = f"{number}. " if node.type == "ordered_list" else "• "
        is_tight = all(child.type != "paragraph" or child.hidden for child in item.children)
        first, *others = _node_rows(item.children, width - len(mark), is_tight=is_tight) or [Text()]
        rows += [Text.assemble((mark, "dim"), first), *prefix_rows(" " * len(mark), others)]
    return rows


def _table_cells(node: SyntaxTreeNode) -> list[list[Text]]:
    return [
        [_inline(cell, "bold" if cell.type == "th" else "") for cell in row.children]
        for part in node.children
        for row in part.children
    ]


def _inline(node: SyntaxTreeNode, style: str = "") -> Text:
    text = Text(style=style)
    for child in node.children:
        _append(child, text, "")
    return text


def _append(node: SyntaxTreeNode, text: Text, style: str) -> None:
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
            inner_style = f"{style} {_INLINE_STYLES.get(node.type, '')}".strip()
            for child in node.children:
                _append(child, text, inner_style)
            _append_address(node, text)
        case _:
            text.append(node.content, style)


def _append_address(node: SyntaxTreeNode, text: Text) -> None:
    """Add the address of a link, unless its text is the address."""
    address = str(node.attrs.get("href", "")) if node.type == "link" else ""
    if address and not text.plain.endswith(address):
        text.append(f" ({address})", "dim")
