"""Markdown as rows of a terminal: few colours, nothing boxed, every word kept."""

from collections.abc import Iterable, Sequence
from functools import cache

from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode
from rich.text import Text

from metis.cli.chat.code import Code
from metis.cli.chat.pieces import Piece, Pieces
from metis.cli.chat.rows import beside, wrapped
from metis.cli.chat.table import table_rows

RULE_WIDTH = 40
_INLINE = {"strong": "bold", "em": "italic", "s": "strike", "link": "underline"}


@cache
def _parser() -> MarkdownIt:
    return MarkdownIt("commonmark").enable(["table", "strikethrough"])


class Markdown:
    """Draws pieces one after the other, with a blank row where one is due."""

    def __init__(self) -> None:
        self._before: Piece | None = None
        self._code = Code()

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


class MarkdownFlow:
    """Words that are markdown."""

    def __init__(self) -> None:
        self._pieces = Pieces()
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
    return _rows(SyntaxTreeNode(_parser().parse(text)).children, width)


def _rows(nodes: Sequence[SyntaxTreeNode], width: int, *, is_tight: bool = False) -> list[Text]:
    rows: list[Text] = []
    for node in nodes:
        if rows and not is_tight:
            rows.append(Text())
        rows += _block(node, max(width, 8))
    return rows


def _block(node: SyntaxTreeNode, width: int) -> list[Text]:  # noqa: PLR0911 - one short case a kind
    match node.type:
        case "heading":
            return wrapped(_inline(node, "bold"), width)
        case "paragraph":
            return wrapped(_inline(node), width)
        case "bullet_list" | "ordered_list":
            return _list(node, width)
        case "blockquote":
            return beside("│ ", _rows(node.children, width - 2), style="dim")
        case "fence" | "code_block":
            language = node.info.split()[0] if node.info.strip() else ""
            return Code().block(node.content, language)
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
        rows += _hanging(mark, _rows(item.children, width - len(mark), is_tight=_is_tight(item)))
    return rows


def _is_tight(item: SyntaxTreeNode) -> bool:
    """Whether the words of an item stand directly upon the list inside of it."""
    return all(child.type != "paragraph" or child.hidden for child in item.children)


def _hanging(mark: str, rows: list[Text]) -> list[Text]:
    """Rows behind the mark of a list: the first beside it, the others below."""
    first, *others = rows or [Text()]
    return [Text.assemble((mark, "dim"), first), *beside(" " * len(mark), others)]


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
