"""Tests carry the ids of the rows that they prove; every id is explained in docs/cases.md."""

import re

import pytest

from project.rows import CASES, CLAIMED_ROWS, claims, meanings

ROOT = CASES.parent.parent
CITED = re.compile(r"\b(T\d{2,3}|[MKAG]-\d{3}|[KAG]X-\d{2}|GW-\d{2})\b")
# Rows of the canonical form that wait for a package which does not exist yet.
WAITING: dict[str, str] = {}


@pytest.fixture(scope="module")
def claimed(request: pytest.FixtureRequest) -> set[str]:
    config = request.config
    if config.args == config.getini("testpaths"):
        return config.stash[CLAIMED_ROWS]  # every test was collected by this process
    return set(claims())


def canonical_rows() -> list[str]:
    rows = list(meanings())
    first = rows[rows.index("M-001") : rows.index("M-198") + 1]
    return first + rows[rows.index("M-275") : rows.index("M-281") + 1]


def test_every_claimed_row_exists(claimed: set[str]) -> None:
    assert claimed <= set(meanings())


def test_every_row_of_the_canonical_form_has_a_test_or_waits_for_a_package(
    claimed: set[str],
) -> None:
    assert [row for row in canonical_rows() if row not in claimed and row not in WAITING] == []


def test_no_row_waits_that_has_a_test(claimed: set[str]) -> None:
    assert sorted(set(WAITING) & claimed) == []


def test_every_id_in_source_tests_and_docs_is_explained() -> None:
    files = [path for part in ("src", "tests", "docs") for path in (ROOT / part).rglob("*.*")]
    texts = [path for path in files if path.suffix in (".py", ".md") and path != CASES]
    cited = {row for path in texts for row in CITED.findall(path.read_text(encoding="utf-8"))}
    assert sorted(cited - set(meanings())) == []
    assert len(cited) > 500  # otherwise the pattern no longer matches how ids are written
