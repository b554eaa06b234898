"""Checks of many items in one test: every item is checked, and every failure is reported."""

import pytest

from folded import MAX_SHOWN, check_all


def test_every_failing_item_is_reported_and_every_item_is_checked() -> None:
    checked: list[int] = []

    def check(number: int) -> None:
        checked.append(number)
        assert number % 2 == 0, f"{number} is odd"
        if number == 4:
            raise KeyError("four")

    with pytest.raises(pytest.fail.Exception) as caught:
        check_all(check, ((number,) for number in range(6)))
    assert checked == [0, 1, 2, 3, 4, 5]
    text = str(caught.value)
    assert text.startswith("4 of 6 fail\n\n")
    assert [line for line in text.splitlines() if line.isdigit()] == ["1", "3", "4", "5"]
    assert [
        name for name in ("1 is odd", "3 is odd", "'four'", "5 is odd") if name not in text
    ] == []


def test_failures_beyond_those_shown_are_listed_and_no_item_is_a_failure() -> None:
    def check(number: int) -> None:
        raise ValueError(f"wrong: {number}")

    with pytest.raises(pytest.fail.Exception) as caught:
        check_all(check, ((number,) for number in range(MAX_SHOWN + 2)))
    assert str(caught.value).count("wrong: ") == MAX_SHOWN
    assert str(caught.value).endswith(f"\n\n{MAX_SHOWN}\n\n{MAX_SHOWN + 1}")
    with pytest.raises(AssertionError, match="nothing to check"):
        check_all(check, ())
