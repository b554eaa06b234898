"""Tests carry the ids of the rows that they prove; here the ids are counted."""

import pytest

from project.rows import SHARED, claims, known_rows, titles

# Rows of the canonical part that wait for another room, each with the room.
WAITING: dict[str, str] = {
    "M-073": "gateway",
    "M-074": "gateway",
}


@pytest.fixture(scope="module")
def claimed(request: pytest.FixtureRequest) -> set[str]:
    config = request.config
    if config.args == config.getini("testpaths") and not config.option.keyword:
        # All tests are here already: nobody else has to be asked.
        marks = (mark for item in request.session.items for mark in item.iter_markers("row"))
        return {str(row) for mark in marks for row in mark.args}
    return set(claims())


def in_scope() -> list[str]:
    rows = known_rows()
    first = rows[rows.index("M-001") : rows.index("M-198") + 1]
    return first + rows[rows.index("M-275") : rows.index("M-281") + 1]


def test_every_claimed_row_exists(claimed: set[str]) -> None:
    assert claimed <= set(known_rows())


def test_every_row_of_the_canonical_part_has_a_test_or_waits_for_a_room(
    claimed: set[str],
) -> None:
    assert [row for row in in_scope() if row not in claimed and row not in WAITING] == []


def test_no_row_waits_that_has_a_test(claimed: set[str]) -> None:
    assert sorted(set(WAITING) & claimed) == []


@pytest.mark.skipif(not SHARED.exists(), reason="the requirements are not beside this checkout")
def test_the_ids_are_those_of_the_requirements() -> None:
    assert sorted(titles()) == sorted(known_rows())
