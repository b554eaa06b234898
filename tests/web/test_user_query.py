"""Patterns of queries of the viewer: those of SQLite, in linear time."""

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from metis.canonical.errors import InvalidValueError
from metis.web.user_query import replace_patterns, run_query


@pytest.fixture
def database() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as opened:
        replace_patterns(opened)
        yield opened


def test_patterns_match_what_those_of_sqlite_match(database: sqlite3.Connection) -> None:
    chance = random.Random(14)  # noqa: S311 - the same patterns every time
    with closing(sqlite3.connect(":memory:")) as plain:
        for operator, signs in (("LIKE", "aAb%_é[.\n"), ("GLOB", "aAb*?é[]^-.\n")):
            sql = f"SELECT ? {operator} ?"
            for _ in range(2_000):
                text = "".join(chance.choices("aAbéÉ.[]^-\n", k=chance.randint(0, 8)))
                pattern = "".join(chance.choices(signs, k=chance.randint(0, 6)))
                values = (text, pattern)
                expected = plain.execute(sql, values).fetchone()
                assert database.execute(sql, values).fetchone() == expected, (operator, values)
        for values in ((None, "a"), ("a", None), (12, "1_"), (1.5, "%.5")):
            expected = plain.execute("SELECT ? LIKE ?", values).fetchone()
            assert database.execute("SELECT ? LIKE ?", values).fetchone() == expected
        escaped = "SELECT 'a%b' LIKE 'a!%b' ESCAPE '!', 'axb' LIKE 'a!%b' ESCAPE '!'"
        assert database.execute(escaped).fetchone() == plain.execute(escaped).fetchone()


@pytest.mark.parametrize("operator", ["LIKE", "GLOB"])
def test_many_wildcards_over_a_long_text_end(database: sqlite3.Connection, operator: str) -> None:
    # SQLite itself would compare for years, in one step that nothing stops.
    sign = "%" if operator == "LIKE" else "*"
    pattern = f"{sign}0" * 40 + f"{sign}b"
    sql = f"SELECT hex(zeroblob(100000)) {operator} '{pattern}'"
    assert run_query(database, sql)[1] == [(0,)]


def test_a_long_pattern_is_refused(database: sqlite3.Connection) -> None:
    with pytest.raises(InvalidValueError):
        run_query(database, f"SELECT 'a' LIKE '{'_%' * 200}'")
