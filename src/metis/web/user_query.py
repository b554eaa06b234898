"""Queries that a user of the viewer writes: they read, and end soon, whatever they contain.

SQLite counts the steps of a query and stops after a number of them. One step can be long: `LIKE`
and `GLOB` of SQLite try every way in which several wildcards can match, so that one comparison of a
long text takes years. They are replaced by patterns that match in linear time.
"""

import re
import sqlite3
import threading
import time
from functools import lru_cache
from itertools import islice
from typing import Any

from metis.canonical.errors import InvalidValueError

_SQL_STEPS = 20_000
"""Virtual machine steps between two checks of whether a query has taken too long."""
_MAX_SQL_CHECKS = 2_000
_MAX_SQL_ROWS = 1_000
_MAX_SQL_BYTES = 10_000_000
_MAX_PATTERN = 200
"""How long a pattern may be: the time of a comparison grows with it."""
_MAX_PATTERN_S = 5.0
"""How long the comparisons of one query may take together."""


class _PatternTime(threading.local):
    """The time that comparisons of the query of a thread have taken."""

    seconds = 0.0


_pattern_time = _PatternTime()


def replace_patterns(database: sqlite3.Connection) -> None:
    """Replace `LIKE` and `GLOB` of a connection by functions that take linear time."""
    database.create_function("like", 2, _like, deterministic=True)
    database.create_function("like", 3, _like, deterministic=True)
    database.create_function("glob", 2, _glob, deterministic=True)


def _like(pattern: Any, text: Any, escape: str = "") -> int | None:
    return _matches(_like_pattern, pattern, text, escape)


def _glob(pattern: Any, text: Any) -> int | None:
    return _matches(_glob_pattern, pattern, text, "")


def _matches(make: Any, pattern: Any, text: Any, escape: str) -> int | None:
    if pattern is None or text is None:
        return None
    if isinstance(pattern, bytes) or isinstance(text, bytes):
        return 0
    if len(str(pattern)) > _MAX_PATTERN:
        raise ValueError(f"a pattern has more than {_MAX_PATTERN} characters")
    if _pattern_time.seconds > _MAX_PATTERN_S:
        raise TimeoutError
    start = time.perf_counter()
    is_match = make(str(pattern), escape).match(str(text)) is not None
    _pattern_time.seconds += time.perf_counter() - start
    return int(is_match)


@lru_cache(100)
def _like_pattern(pattern: str, escape: str) -> re.Pattern[str]:
    """Return a pattern of `LIKE` as a regular expression; letters of ASCII match in both cases."""
    pieces: list[list[str]] = [[]]
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            pieces[-1].append(re.escape(next(characters, "")))
        elif character == "%":
            pieces.append([])
        else:
            pieces[-1].append("." if character == "_" else re.escape(character))
    return re.compile(_joined(pieces), re.IGNORECASE | re.ASCII | re.DOTALL)


@lru_cache(100)
def _glob_pattern(pattern: str, _: str) -> re.Pattern[str]:
    """Return a pattern of `GLOB` as a regular expression."""
    pieces: list[list[str]] = [[]]
    position = 0
    while position < len(pattern):
        character = pattern[position]
        position += 1
        if character == "*":
            pieces.append([])
        elif character == "?":
            pieces[-1].append(".")
        elif character == "[":
            start = position + pattern.startswith("^", position)
            end = pattern.find("]", start + 1)
            if end < 0:
                return re.compile(r"(?!)")  # as SQLite has it: an open bracket matches nothing
            pieces[-1].append(_character_class(pattern[start:end], is_negated=start > position))
            position = end + 1
        else:
            pieces[-1].append(re.escape(character))
    return re.compile(_joined(pieces), re.DOTALL)


def _character_class(characters: str, *, is_negated: bool) -> str:
    """Return what stands between brackets of `GLOB`; a range from z to a holds nothing."""
    parts: list[str] = []
    before, position = "", 0
    while position < len(characters):
        character = characters[position]
        position += 1
        if character == "-" and before and position < len(characters):
            last = characters[position]
            position += 1
            if before <= last:
                parts.append(f"{re.escape(before)}-{re.escape(last)}")
            before = ""
        else:
            parts.append(re.escape(character))
            before = character
    return f"[{'^' if is_negated else ''}{''.join(parts)}]" if parts else "(?!)"


def _joined(pieces: list[list[str]]) -> str:
    """Join what stands between wildcards; the first place at which a piece fits is final."""
    first, *others = ("".join(piece) for piece in pieces)
    if not others:
        return rf"{first}\Z"
    middle = "".join(f"(?>.*?{piece})" for piece in others[:-1] if piece)
    last = others[-1]
    return rf"{first}{middle}.*{last}\Z" if last else first + middle


_ALLOWED = frozenset(
    (
        sqlite3.SQLITE_SELECT,
        sqlite3.SQLITE_READ,
        sqlite3.SQLITE_FUNCTION,
        sqlite3.SQLITE_RECURSIVE,
    )
)
_FORBIDDEN_FUNCTIONS = frozenset(
    {"load_extension", "readfile", "writefile", "edit", "fts3_tokenizer"}
)


def _authorize(action: int, first: str | None, second: str | None, *_: object) -> int:
    if action not in _ALLOWED:
        return sqlite3.SQLITE_DENY
    if action == sqlite3.SQLITE_FUNCTION and (second or first or "") in _FORBIDDEN_FUNCTIONS:
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK


def run_query(
    database: sqlite3.Connection, sql: str
) -> tuple[list[str], list[tuple[Any, ...]], bool]:
    """Run a query that can only read and not run for long.

    Returns the column names, the first rows, and whether there are more.

    Raises:
        InvalidValueError: the query is wrong, writes, or takes too long.
    """
    checks = 0
    _pattern_time.seconds = 0.0

    def is_too_long() -> bool:
        nonlocal checks
        checks += 1
        return checks > _MAX_SQL_CHECKS

    database.set_authorizer(_authorize)
    database.set_progress_handler(is_too_long, _SQL_STEPS)
    # A value of a gigabyte can be made in one step.
    limit = database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 1_000_000)
    try:
        cursor = database.execute(sql)
        rows, size = list[Any](), 0
        for row in islice(cursor, _MAX_SQL_ROWS + 1):
            rows.append(row)
            size += sum(len(value) for value in row if isinstance(value, str | bytes))
            if size > _MAX_SQL_BYTES:  # a thousand rows of values of a megabyte
                raise InvalidValueError(f"the result has more than {_MAX_SQL_BYTES:,} bytes")
        names = [column[0] for column in cursor.description or ()]
        cursor.close()
    except sqlite3.OperationalError as error:
        is_late = str(error) == "interrupted" or _pattern_time.seconds > _MAX_PATTERN_S
        reason = "the query takes too long" if is_late else str(error)
        raise InvalidValueError(reason) from None
    except (sqlite3.Error, sqlite3.Warning) as error:
        raise InvalidValueError(f"expected a single SELECT statement: {error}") from None
    finally:
        database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, limit)
        database.set_progress_handler(None, 0)
        database.set_authorizer(None)
    return names, [tuple(row) for row in rows[:_MAX_SQL_ROWS]], len(rows) > _MAX_SQL_ROWS
