"""Fills a store with a great many sessions by SQL alone, row by row what the store itself writes.

Every session is a copy of one short conversation under ids of its own, made by the database. The
search index gets the same words that the store would take in.
"""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from typing import Any, Protocol

import psycopg

from canonical import make_messages
from metis.canonical import Message
from metis.canonical.blocks import TextBlock, ToolResultBlock, ToolUseBlock
from metis.canonical.value import raw_constructor
from metis.store.append import prepare_message
from metis.store.connection import sqlite_path
from metis.store.search import searchable_text, session_token

SESSION_SIZE = 10
_AT_ONCE = 20_000
_WORDS = 12
_START_US = 1_778_241_600_000_000
_ULID_DIGITS = 24

_NUMBERS = (
    "WITH RECURSIVE s(n) AS "
    "(SELECT CAST({first} AS BIGINT) UNION ALL SELECT n + 1 FROM s WHERE n < {last}) "
)
_SESSIONS = (
    "SELECT {session}, '', NULL, NULL, 1, {start} + n * 20000000, {start} + n * 20000000 FROM s"
)
_MESSAGES = (
    "SELECT {message}, {session}, t.role, replace(t.content, t.marker, {call}), "
    "replace(t.metadata, t.marker, {call}), {start} + n * 20000000 + t.k * 1000000, 1 "
    "FROM s CROSS JOIN template t ORDER BY n, t.k"
)
_CALLS = (
    "SELECT {call}, {session}, {message}, {answer}, 'read_file', 'succeeded', NULL, 'anthropic', "
    "{start} + n * 20000000 + t.k * 1000000, {start} + n * 20000000 + t.k * 1000000 + 1000000 "
    "FROM s CROSS JOIN template t WHERE t.is_call = 1 ORDER BY n, t.k"
)


def short_session() -> list[Message]:
    """Ten messages of a few words: two calls with their results, and answers."""
    turns = make_messages(SESSION_SIZE + 2)
    return [_short(message) for message in [*turns[: SESSION_SIZE - 1], turns[-1]]]


def _short(message: Message) -> Message:
    blocks: list[Any] = []
    for block in message.content:
        if type(block) is TextBlock:
            blocks.append(_few_words(block))
        elif type(block) is ToolResultBlock:
            inner = tuple(_few_words(each) for each in block.content if type(each) is TextBlock)
            blocks.append(
                raw_constructor(ToolResultBlock)(tool_use_id=block.tool_use_id, content=inner)
            )
        elif type(block) is ToolUseBlock:
            blocks.append(block)
    return raw_constructor(Message)(
        id=message.id,
        session_id=message.session_id,
        role=message.role,
        content=tuple(blocks),
        created_at=message.created_at,
        metadata=message.metadata,
    )


def _few_words(block: TextBlock) -> TextBlock:
    return TextBlock(" ".join(["traced table", *block.text.split()[:_WORDS]]))


def template_rows() -> list[tuple[Any, ...]]:
    """For each message: place, role, JSON, the call it speaks of, whether it makes it, words."""
    rows: list[tuple[Any, ...]] = []
    call, marker = 0, "-"
    for place, message in enumerate(short_session(), 1):
        last = message.content[-1]
        if type(last) is ToolUseBlock:
            call, marker = place, last.id
        row = prepare_message(message).row
        is_call = int(type(last) is ToolUseBlock)
        rows.append(
            (place, row[2], row[3], row[4], marker, call, is_call, searchable_text(message))
        )
    return rows


class Dialect(Protocol):
    """How a database says what others say otherwise."""

    def ulid(self, number: str) -> str:
        """SQL for an id with a number in it."""
        ...

    def run(self, statement: str, rows: Sequence[Sequence[Any]] | None = None) -> None:
        """Run a statement, once or for each row."""
        ...

    def index(self, numbers: str) -> None:
        """Take the words of new messages into the search index."""
        ...


def fill(database: Dialect, first: int, count: int) -> None:
    """Add sessions, beginning with a number."""
    template = "CREATE TEMPORARY TABLE template (k INTEGER, role TEXT, content TEXT, metadata TEXT,"
    database.run("DROP TABLE IF EXISTS template")
    database.run(f"{template} marker TEXT, call INTEGER, is_call INTEGER, words TEXT)")
    database.run("INSERT INTO template VALUES (?, ?, ?, ?, ?, ?, ?, ?)", template_rows())
    names = {
        "session": f"'sess_' || {database.ulid('n')}",
        "message": database.ulid("n * 10 + t.k"),
        "answer": database.ulid("n * 10 + t.k + 1"),
        "call": f"'tu_' || {database.ulid('n * 10 + t.call')}",
        "start": _START_US,
    }
    for start in range(first, first + count, _AT_ONCE):
        last = min(start + _AT_ONCE, first + count) - 1
        numbers = _NUMBERS.format(first=start, last=last)
        database.run("BEGIN")
        for table, select in (
            ("sessions", _SESSIONS),
            ("messages", _MESSAGES),
            ("tool_calls", _CALLS),
        ):
            database.run(f"{numbers}INSERT INTO {table} {select.format(**names)}")
        database.run("COMMIT")
        database.index(numbers)


def session_id(number: int) -> str:
    """The id of a session that was filled in."""
    return f"sess_01{number:0{_ULID_DIGITS}}"


class Sqlite:
    """The file of a store and its search index, which the store has made."""

    def __init__(self, url: str) -> None:
        path = sqlite_path(url)
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA synchronous = NORMAL")
        self._connection.execute("PRAGMA cache_size = -200000")
        self._connection.execute("ATTACH ? AS search", (f"{path}-search",))

    def ulid(self, number: str) -> str:
        """SQL for an id with a number in it."""
        return f"printf('01%0{_ULID_DIGITS}d', {number})"

    def run(self, statement: str, rows: Sequence[Sequence[Any]] | None = None) -> None:
        """Run a statement, once or for each row."""
        if rows is None:
            self._connection.execute(statement)
        else:
            self._connection.executemany(statement, rows)

    def index(self, numbers: str) -> None:
        """Take the words of new messages into the search index."""
        message, session = self.ulid("n * 10 + t.k"), self.ulid("n")
        execute = self._connection.execute
        execute("BEGIN")
        execute(
            f"{numbers}INSERT INTO search.words (rowid, body, session, session_id, message_id) "  # noqa: S608 - no input
            f"SELECT m.rowid, t.words, ? || {session}, m.session_id, m.id "
            f"FROM s CROSS JOIN template t JOIN main.messages m ON m.id = {message} "
            "ORDER BY m.rowid",
            (session_token("sess_"),),
        )
        execute("DELETE FROM search.progress")
        execute("INSERT INTO search.progress SELECT max(rowid) FROM main.messages")
        execute("COMMIT")

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()


class Postgres:
    """A database at a server with the tables of a store."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)

    def ulid(self, number: str) -> str:
        """SQL for an id with a number in it."""
        return f"'01' || lpad(({number})::text, {_ULID_DIGITS}, '0')"

    def run(self, statement: str, rows: Sequence[Sequence[Any]] | None = None) -> None:
        """Run a statement, once or for each row."""
        if rows is None:
            self._connection.execute(statement.encode())
        else:
            with self._connection.cursor() as cursor:
                cursor.executemany(statement.replace("?", "%s").encode(), rows)

    def index(self, numbers: str) -> None:
        """Take the words of new messages into the search index."""
        message, session = self.ulid("n * 10 + t.k"), self.ulid("n")
        self.run(
            f"{numbers}INSERT INTO search_index (message_id, session_id, body) "  # noqa: S608 - no input
            f"SELECT {message}, 'sess_' || {session}, t.words "
            "FROM s CROSS JOIN template t ORDER BY 1"
        )
        self.run("TRUNCATE search_pending")

    def close(self) -> None:
        """Let go of the connection."""
        self._connection.close()


def fill_store(url: str, first: int, count: int) -> None:
    """Add sessions to the store at an address."""
    with closing(Sqlite(url) if url.startswith("sqlite") else Postgres(url)) as database:
        fill(database, first, count)
        database.run("ANALYZE")
