"""Drawing long text takes work proportional to its length."""

import itertools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from metis.cli.chat import markdown
from metis.cli.chat.markdown import MarkdownStream
from metis.cli.chat.rows import split_full, table_rows, wrap
from metis.cli.chat.turn_parts import RowStream, ThinkingStream
from metis.cli.text import fold, visible_controls

WIDTH = 80
SIZES = (4_000, 8_000, 16_000)
# Twice the text may take twice the work, plus a margin for constructs cut in the middle.
MAX_RATIO = 2.6
UNITS = (
    "x",
    "word ",
    "[",
    "![a](",
    "*a_ ",
    "`` ` ",
    "~~a",
    "|a",
    "> ",
    "- some words of an item\n",
    "\x1b[1m",
    "\u6f22",
    "some words of a line\n",
)


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markdown, "MAX_PIECE", 1_000)
    monkeypatch.setattr("metis.cli.chat.turn_parts.MAX_THINKING_PIECE", 1_000)


def _work(function: Callable[[], object]) -> int:
    """Return how many calls a function makes, in Python and in C."""
    count = 0

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        del frame, argument
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


def _draw(stream: RowStream, text: str) -> None:
    """Draw a text as it arrives: in small pieces, with occasional redraws."""
    for start in range(0, len(text), 1_000):
        stream.feed(text[start : start + 1_000], WIDTH)
        stream.tail(WIDTH)
    stream.end(WIDTH)


def _assert_linear(work: Callable[[str], object], unit: str) -> None:
    work(unit * 100)  # first use loads modules and fills caches
    counts = [_work(lambda size=size: work((unit * size)[:size])) for size in SIZES]
    ratios = [second / first for first, second in itertools.pairwise(counts)]
    # A large constant is no growth: few calls are not compared.
    assert counts[-1] < 2_000 or max(ratios) <= MAX_RATIO, (counts, ratios)


@pytest.mark.parametrize("unit", UNITS)
def test_endless_response_is_linear(unit: str) -> None:
    _assert_linear(lambda text: _draw(MarkdownStream(), text), unit)


@pytest.mark.parametrize("unit", ["x", "word ", "\x1b"])
def test_endless_thinking_is_linear(unit: str) -> None:
    _assert_linear(lambda text: _draw(ThinkingStream(), text), unit)


@pytest.mark.parametrize("unit", ["x = 1 ", "'", "(", "/*"])
@pytest.mark.parametrize("language", ["", "python", "c"])
def test_one_long_line_of_code_is_linear(unit: str, language: str) -> None:
    _assert_linear(lambda text: _draw(MarkdownStream(), f"```{language}\n{text}"), unit)


@pytest.mark.parametrize("unit", ["x", "word ", "\u6f22", " ", "\x1b"])
def test_one_long_line_on_screen_is_linear(unit: str) -> None:
    _assert_linear(lambda text: fold(text, WIDTH), unit)
    _assert_linear(lambda text: wrap(Text(text), WIDTH), unit)
    _assert_linear(lambda text: split_full(Text(text), WIDTH), unit)
    _assert_linear(visible_controls, unit)


def test_table_with_very_wide_cell_is_linear() -> None:
    _assert_linear(lambda text: table_rows([[Text("a"), Text(text)]], WIDTH), "x")


@pytest.mark.parametrize("separator", ["\n", "\n\n", " "])
def test_a_long_text_gives_the_same_rows_however_it_was_split(separator: str) -> None:
    text = separator.join(f"word{number} and [some](link) text" for number in range(500))
    assert len(text) > 3 * markdown.MAX_PIECE

    def rows(size: int) -> list[str]:
        stream = MarkdownStream()
        drawn: list[Text] = []
        for start in range(0, len(text), size):
            drawn += stream.feed(text[start : start + size], WIDTH)
        return [row.plain for row in [*drawn, *stream.end(WIDTH)]]

    expected = rows(len(text))
    assert rows(7) == rows(999) == expected
    words = " ".join(expected).split()
    assert [word for word in words if word.startswith("word")] == [f"word{n}" for n in range(500)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "unit",
    [
        "-\n", "# a\n", "x\n", "x\n\n", "* a\n", "1. a\n", "[a](http://b)\n\n", "---\n", "\r\n",
        "```\nx\n```\n", "|a" * 300 + "|\n" + "|-" * 300 + "|\n\n", "> " * 19 + "a\n",
    ],
    ids=ascii,
)  # fmt: skip
def test_lines_after_limit_are_drawn_without_markdown(unit: str) -> None:
    """Half a megabyte of markup would take ten seconds to parse and style."""
    count = 500_000 // len(unit)
    stream = MarkdownStream()
    text = unit * count + "the end\n"
    rows = [row for start in range(0, len(text), 4_000) for row in _fed(stream, text, start)]
    assert len(rows + stream.end(WIDTH)) < 30_000
    assert rows[-1].plain.endswith("the end")


def _fed(stream: MarkdownStream, text: str, start: int) -> list[Text]:
    return stream.feed(text[start : start + 4_000], WIDTH)


def test_lines_beyond_limit_are_complete_and_sanitised() -> None:
    stream = MarkdownStream()
    stream.feed("x\n" * 30_000, WIDTH)
    rows = stream.feed("one\r\n\ntwo \x1b[2J\nthr", WIDTH) + stream.feed("ee", WIDTH)
    assert "\n".join(row.plain for row in rows) == "one\n\ntwo ␛[2J"
    assert [row.plain for row in stream.tail(WIDTH)] == ["three"]
    assert [row.plain for row in stream.end(WIDTH)] == ["three"]


def test_many_lines_of_thinking_are_linear() -> None:
    stream = ThinkingStream()
    rows = stream.feed("a\n" * 100_000 + "b\x07\n", WIDTH)
    assert len(rows) < 20_000
    assert rows[-1].plain.endswith("│ a\n│ b␇")


@given(st.text("abcé ─  \n世-", max_size=80), st.integers(2, 20))
def test_fast_path_for_one_style_gives_equal_rows(text: str, width: int) -> None:
    styled = Text(text)
    styled.stylize("bold", 0, len(text))
    rows = [row.plain for row in wrap(styled, width) if row.plain]
    assert [row.plain for row in wrap(Text(text), width) if row.plain] == rows
