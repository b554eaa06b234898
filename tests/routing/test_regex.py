import re
import warnings

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from metis.routing.regex import MAX_TEXT, Regex

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


@given(st.sampled_from(["", "(?i)", "(?m)", "(?s)"]), PATTERNS, st.text("aAb1 \n_", max_size=8))
def test_it_finds_what_the_standard_library_finds(flags: str, pattern: str, text: str) -> None:
    assume(text or r"\B" not in pattern)  # the library's answer changed with its version
    assert Regex(flags + pattern).search(text) == bool(re.search(flags + pattern, text))


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"\b(?:fix|typo)\b", "please fix it"),
        (r"^\s*#", "  # title"),
        (r"[\]\\^-]+", "a-b"),
        (r"[]a]", "]"),
        (r"a{,2}b{", "b{"),
        (r"x{a}", "x{a}"),
        (r"\.py$", "main.py\n"),
        (r"\Aab\Z", "ab"),
        (r"\t|é", "café"),
        (r"", ""),
    ],
)
def test_patterns_of_rules_files(pattern: str, text: str) -> None:
    assert Regex(pattern).search(text) == bool(re.search(pattern, text)) is True


TOO_MUCH = ["a" * 501, "((((a{9}){9}){9}){9}){9}", "(" * 60 + ")" * 60, "a{9999}"]
UNKNOWN = ["(?=a)", "(?P<n>a)", r"\1", "(?x)a", r"\q", "a*+"]
BROKEN = ["(", ")", "a)", "[a", "*", "a**", "a{2,1}", "\\", "[b-a]"]


@pytest.mark.parametrize("pattern", [*TOO_MUCH, *UNKNOWN, *BROKEN])
def test_what_it_cannot_do_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Regex(pattern)


def test_a_pattern_that_runs_away_elsewhere_takes_no_time_here() -> None:
    assert not Regex("(a*)*(a|aa)+(a?){30}b").search("a" * MAX_TEXT)
    assert Regex("a").search("b" * (MAX_TEXT - 1) + "a")
    assert not Regex("a").search("b" * MAX_TEXT + "a")


@given(st.text(max_size=12))
def test_any_text_is_a_pattern_or_an_error(pattern: str) -> None:
    try:
        found = Regex(pattern).search("some text")
    except ValueError:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of sets that may once mean more
        assert found == bool(re.search(pattern, "some text"))
