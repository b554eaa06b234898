"""Tests carry the ids of the rows that they prove; every id is explained in docs/cases.md."""

import re

import pytest

from project.rows import CASES, CLAIMED_ROWS, claims, meanings, text_only

ROOT = CASES.parent.parent
CITED = re.compile(r"\b(T\d{2,3}|[MKAG]-\d{3}|[KAG]X-\d{2}|GW-\d{2})\b")


@pytest.fixture(scope="module")
def claimed(request: pytest.FixtureRequest) -> set[str]:
    config = request.config
    if config.args == config.getini("testpaths"):
        return config.stash[CLAIMED_ROWS]  # every test was collected by this process
    return set(claims())


def test_every_claimed_row_exists(claimed: set[str]) -> None:
    assert claimed <= set(meanings())


def test_every_row_has_a_test_or_the_reason_why_none_can_prove_it(claimed: set[str]) -> None:
    rows = [row for row in meanings() if not row.startswith("GW-")]
    assert [row for row in rows if row not in claimed and row not in text_only()] == []


def test_no_row_is_text_only_that_has_a_test(claimed: set[str]) -> None:
    assert sorted(set(text_only()) & claimed) == []
    assert set(text_only()) <= set(meanings())


def test_every_id_in_source_tests_and_docs_is_explained() -> None:
    files = [path for part in ("src", "tests", "docs") for path in (ROOT / part).rglob("*.*")]
    texts = [path for path in files if path.suffix in (".py", ".md") and path != CASES]
    cited = {row for path in texts for row in CITED.findall(path.read_text(encoding="utf-8"))}
    assert sorted(cited - set(meanings())) == []
    assert len(cited) > 500  # otherwise the pattern no longer matches how ids are written
