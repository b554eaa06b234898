"""Regular expressions in rules: RE2 matches like the standard library, in linear time."""

import re
import time
import warnings
from datetime import UTC, datetime

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from metis.canonical.errors import Problem
from metis.routing import TurnFacts
from metis.routing.predicates import all_hold, read_conditions

NOW = datetime(2026, 5, 8, 12, tzinfo=UTC)
ATOMS = st.sampled_from(
    [
        "a",
        "b",
        "A",
        ".",
        r"\d",
        r"\w",
        r"\s",
        r"\W",
        "[ab]",
        "[^a]",
        "[a-c1]",
        r"\b",
        r"\B",
        "^",
        "$",
    ]
)
REPEATS = st.sampled_from(["", "", "", "*", "+", "?", "{2}", "{1,2}", "{0,}", "*?", "+?"])


def grow(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    several = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        several.map("".join),
        several.map(lambda parts: f"(?:{'|'.join(parts)})"),
        st.tuples(inner, REPEATS).map(lambda pair: f"({pair[0]}){pair[1]}"),
    )


PATTERNS = st.recursive(ATOMS, grow, max_leaves=8)


def matches(pattern: str, text: str) -> bool:
    problems: list[Problem] = []
    conditions = read_conditions({"message_matches": pattern}, "$", problems)
    if problems:
        raise ValueError(problems[0].text)
    return all_hold(conditions, TurnFacts(now=NOW, message=text))


@given(st.sampled_from(["", "(?i)", "(?m)", "(?s)"]), PATTERNS, st.text("aAb1 \n_", max_size=8))
def test_matches_equal_those_of_standard_library(flags: str, pattern: str, text: str) -> None:
    assume(text or r"\B" not in pattern)  # the standard library changed its result between versions
    assume("$" not in pattern or not text.endswith("\n"))  # `$` is only the end of the text here
    assert matches(flags + pattern, text) == bool(re.search(flags + pattern, text))


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"\b(?:fix|typo)\b", "please fix it"),
        (r"^\s*#", "  # title"),
        (r"[\]\\^-]+", "a-b"),
        (r"[]a]", "]"),
        (r"x{a}", "x{a}"),
        (r"\.py$", "main.py"),
        (r"\Aab\z", "ab"),
        (r"(?i)\t|É", "café"),
        (r"(?P<name>a)", "a"),
        (r"", ""),
    ],
)
def test_patterns_of_rules_files(pattern: str, text: str) -> None:
    assert matches(pattern, text)


TOO_MUCH = ["((((a{9}){9}){9}){9}){9}", "a{9999}"]
UNKNOWN = ["(?=a)", r"\1", "(?x)a", r"\q", "a*+"]
BROKEN = ["(", ")", "a)", "[a", "*", "a**", "a{2,1}", "\\", "[b-a]"]


@pytest.mark.parametrize("pattern", [*TOO_MUCH, *UNKNOWN, *BROKEN])
def test_unsupported_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="invalid regular expression"):
        matches(pattern, "a")


def test_catastrophic_pattern_is_linear() -> None:
    text, started_s = "a" * 1_000_000, time.monotonic()
    assert not matches("(a*)*(a|aa)+(a?){30}b", text)
    assert matches("a$", "b" * 1_000_000 + "a")
    assert time.monotonic() - started_s < 10


def test_any_text_can_be_searched() -> None:
    assert matches("a.b", "a\udc80b")


@given(st.text(max_size=12))
def test_any_text_is_a_pattern_or_an_error(pattern: str) -> None:
    try:
        result = matches(pattern, "some text")
    except ValueError:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # future warnings about character sets
        try:
            expected = bool(re.search(pattern, "some text"))
        except re.error:
            return  # RE2 has some syntax that the standard library lacks
    assert result == expected
