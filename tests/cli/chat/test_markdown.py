"""Incremental Markdown drawing: equal for any chunking, safe, and complete."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from metis.cli.chat.markdown import MarkdownDrawer, MarkdownSplitter, Piece

LINES = st.lists(
    st.sampled_from(
        (
            "",
            "# Title",
            "words that go on for more than the forty columns that there are here",
            "**bold** and `code` and [a link](https://example.com)",
            "- one",
            "  - inside",
            "- two",
            "1. first",
            "10) tenth",
            "   more of it",
            "> quoted",
            "```python",
            "def f():",
            '    """doc',
            "```",
            "~~~",
            "| a | b |",
            "|---|---|",
            "| 1 | 2 |",
            "---",
            "===",
            "<b>html</b>",
            "    indented",
            "\x1b[31mred\x07",
            "tab\there",
            "日本語のテキストも折り返される、とても長い行です。",
            "[x]: https://example.com",
        )
    ),
    max_size=14,
)


def cut(text: str, places: list[int]) -> list[str]:
    edges = sorted({min(index, len(text)) for index in places} | {0, len(text)})
    return [text[start:end] for start, end in pairwise(edges)]


def pieces_of(chunks: list[str]) -> list[Piece]:
    pieces = MarkdownSplitter()
    pieces_found = [piece for chunk in chunks for piece in pieces.feed(chunk)]
    return pieces_found + pieces.end()


def drawn(pieces: list[Piece], width: int = 40) -> list[Text]:
    markdown = MarkdownDrawer()
    return [row for piece in pieces for row in markdown.rows(piece, width)]


@given(LINES, st.lists(st.integers(0, 400)))
def test_any_chunking_gives_the_same_rows_and_colours(lines: list[str], places: list[int]) -> None:
    text = "\n".join(lines)
    complete = drawn(pieces_of([text]))
    chopped = drawn(pieces_of(cut(text, places)))
    assert [row.markup for row in chopped] == [row.markup for row in complete]


@given(st.text(max_size=300), st.lists(st.integers(0, 300)))
def test_any_text_is_drawn_sanitised(text: str, places: list[int]) -> None:
    rows = drawn(pieces_of(cut(text, places)))
    assert rows == drawn(pieces_of([text]))
    letters = {ord(letter) for row in rows for letter in row.plain}
    assert not any(code < 0x20 or 0x7F <= code < 0xA0 for code in letters)


@given(LINES, st.lists(st.integers(0, 400)))
def test_preview_changes_nothing(lines: list[str], places: list[int]) -> None:
    text = "\n".join(lines)
    pieces, markdown = MarkdownSplitter(), MarkdownDrawer()
    rows: list[Text] = []
    for chunk in cut(text, places):
        rows += [row for piece in pieces.feed(chunk) for row in markdown.rows(piece, 40)]
        markdown.preview(pieces.tail(), 40)
    rows += [row for piece in pieces.end() for row in markdown.rows(piece, 40)]
    assert [row.markup for row in rows] == [row.markup for row in drawn(pieces_of([text]))]


@given(LINES)
def test_last_preview_equals_final_drawing(lines: list[str]) -> None:
    text = "\n".join(lines)
    pieces, markdown = MarkdownSplitter(), MarkdownDrawer()
    rows = [row for piece in pieces.feed(text) for row in markdown.rows(piece, 40)]
    rows += markdown.preview(pieces.tail(), 40)
    assert [row.markup for row in rows] == [row.markup for row in drawn(pieces_of([text]))]


def test_blocks_are_emitted_once_final() -> None:
    pieces = MarkdownSplitter()
    assert pieces.feed("# Title\nSome wo") == [Piece(kind="block", text="# Title")]
    assert pieces.feed("rds\n") == []
    assert pieces.feed("\n- one\n") == [Piece(kind="block", text="Some words")]
    assert pieces.feed("- two\n") == [Piece(kind="item", text="- one")]
    assert pieces.tail() == [Piece(kind="item", text="- two")]
    pieces_found = pieces.feed("\nend\n```py\nx = 1\n")
    assert [piece.text for piece in pieces_found] == ["- two", "end", "x = 1"]
    assert pieces_found[-1] == Piece(kind="code", text="x = 1", language="py", number=0)


def test_every_word_is_drawn() -> None:
    text = (
        "# A title\n\nA *paragraph* with `code`.\n\n- one\n- two\n  - deeper\n\n1. first\n\n"
        "> quote\n\n```sh\nls -la\n```\n\n| head | tail |\n|---|---|\n| left | right |\n\nEnd"
    )
    plain = " ".join(row.plain for row in drawn(pieces_of([text])))
    for word in ("title", "paragraph", "code", "one", "two", "deeper", "first", "quote"):
        assert word in plain
    for word in ("ls -la", "head", "tail", "left", "right", "End"):
        assert word in plain
