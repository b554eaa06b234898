"""Text layout for terminals: widths equal those of rich, and rows fit the width."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.text import Text

from metis.cli.chat.rows import split_full, wrap
from metis.cli.text import SINGLE_CELLS, cell_width, fold, format_usd, one_line, table, truncate

LINES = st.text(alphabet="ab 漢é字\u0301…●→😀\t\x1b\n", max_size=60)


def test_characters_of_the_fast_path_take_one_cell() -> None:
    """`cell_width` does not look these up in rich."""
    shortcut = [chr(code) for code in range(0x3000) if SINGLE_CELLS.fullmatch(chr(code))]
    assert len(shortcut) > 900
    assert [character for character in shortcut if cell_len(character) != 1] == []


@given(LINES)
def test_widths_are_those_of_rich(line: str) -> None:
    assert cell_width(line) == cell_len(line)


@given(LINES, st.integers(min_value=2, max_value=40))
def test_no_row_is_wider_than_requested(line: str, width: int) -> None:
    assert cell_width(truncate(line, width)) <= width
    assert cell_width(one_line(line, width)) <= width
    assert "\n" not in one_line(line, width)
    assert all(cell_width(row) <= max(width, 4) for row in fold(line, width))


def test_columns_are_aligned_by_cells() -> None:
    lines = table(("name", "n"), [("漢字", "1"), ("ab", "23")], right=(1,))
    assert [line.rstrip() for line in lines[1:]] == ["漢字   1", "ab    23"]


@pytest.mark.parametrize(
    ("amount", "shown"),
    [("0", "$0"), ("0.5", "$0.50"), ("0.018", "$0.0180"), ("1234.5", "$1234.50")],
)
def test_amounts_have_the_decimals_that_they_need(amount: str, shown: str) -> None:
    assert format_usd(Decimal(amount)) == shown


@pytest.mark.parametrize("width", [-5, 0, 1, 2])
@pytest.mark.parametrize("text", ["abc def ghi", "世界世界", "a" * 50 + "   ", "   x  " * 9])
def test_no_width_is_too_small_for_a_text(text: str, width: int) -> None:
    # With less than one column these did not end.
    assert len(truncate(text, width)) <= max(width, 1)
    assert one_line(text, width)
    assert fold(text, width)
    assert wrap(Text(text), width)
    assert split_full(Text(text), width)
