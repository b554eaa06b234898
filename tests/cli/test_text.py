"""Text layout for terminals: widths equal those of rich, and rows fit the width."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

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
    assert cell_width(truncate(line, width)) <= width or cell_width(line) <= width
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
