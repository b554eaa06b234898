"""Search: the searchable text of a message, and the full-text index of a SQLite store."""

import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import msgspec

from metis.canonical.blocks import (
    ArtifactBlock,
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from metis.canonical.message import Message
from metis.canonical.metadata import MessageStatus
from metis.store.database import Rows, TextOfRow, Transaction
from metis.store.private_files import make_private_file
from metis.store.records import from_row
from metis.store.sqlite_file import translate_errors

_VERSION = 2
# `session` has the session id as one token, so that the index itself can filter by session.
_TABLES = f"""
DROP TABLE IF EXISTS words;
DROP TABLE IF EXISTS waiting;
DROP TABLE IF EXISTS progress;
CREATE VIRTUAL TABLE words
USING fts5(body, session, session_id UNINDEXED, message_id UNINDEXED);
CREATE TABLE waiting (number INTEGER PRIMARY KEY);
CREATE TABLE progress (last INTEGER NOT NULL);
PRAGMA user_version = {_VERSION};
"""
_INSERT = (
    "INSERT OR REPLACE INTO words (rowid, body, session, session_id, message_id) "
    "VALUES (?, ?, ?, ?, ?)"
)
_CANDIDATES = (
    "SELECT rowid, session_id, message_id, body FROM words WHERE words MATCH ? "
    "ORDER BY rowid DESC LIMIT ?"
)
_SNIPPET = (
    "SELECT snippet(words, 0, '[', ']', '…', 12) FROM words WHERE words MATCH ? AND rowid = ?"
)
_COLUMNS = "rowid, id, session_id, role, content_json, metadata_json, created_at, schema_version"
# Rows of one transaction, so that a first index of a large store does not fill the log.
_BATCH = 2000
# Ranking all matches of a common word would take longer as the store grows.
_MAX_CANDIDATES = 500
_write_json = msgspec.json.Encoder().encode


def text_of_row(row: Sequence[Any]) -> str | None:
    """Return the searchable text of a row of `messages`; None while the message is partial."""
    message = from_row(row)
    if message.metadata.status == MessageStatus.PARTIAL:
        return None
    return searchable_text(message)


def searchable_text(message: Message) -> str:
    """Return texts, thinking, tool calls and tool results of a message, one per line."""
    texts = (text for block in message.content for text in _texts(block))
    # PostgreSQL refuses NUL characters in text.
    return "\n".join(text for text in texts if text).replace("\x00", " ")


def _texts(block: ContentBlock) -> Iterator[str | None]:
    match block:
        case TextBlock() | ThinkingBlock():
            yield block.text
        case ToolUseBlock():
            yield block.name
            yield block.invalid.raw if block.invalid else _write_json(block.input).decode()
        case ToolResultBlock():
            for inner in block.content:
                yield from _texts(inner)
        case DocumentBlock():
            yield block.name
            yield block.context
            yield block.source.data if block.source.kind == "text" else None
        case AudioBlock() | ArtifactBlock():
            yield block.transcript
        case _:
            return


class SqliteSearch:
    """A full-text index that is updated by a search, so that appends do not wait for it.

    It is a separate file, which can be deleted and rebuilt.
    """

    def __init__(
        self, path: Path | None, read: Callable[[], AbstractContextManager[Transaction]]
    ) -> None:
        """Open the index at a path; None is a temporary file that is deleted with the index."""
        self._name = str(path or "a temporary search index")
        self._read = read
        self._lock = threading.Lock()
        with translate_errors(self._name):
            # The index contains texts of messages, so only its owner may read it.
            if path is not None:
                with suppress(OSError):
                    make_private_file(path)
            self._connection = sqlite3.connect(
                path or "", isolation_level=None, check_same_thread=False, timeout=30
            )
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = NORMAL")
            self._create_tables()

    def _create_tables(self) -> None:
        """Create the tables, replacing those of an older version."""
        execute = self._connection.execute
        if execute("PRAGMA user_version").fetchone()[0] == _VERSION:
            return
        # Two processes may open the index at the same time, so the version is read again under
        # the lock.
        execute("BEGIN IMMEDIATE")
        if execute("PRAGMA user_version").fetchone()[0] != _VERSION:
            for statement in _TABLES.strip().split(";\n"):
                execute(statement)
        execute("COMMIT")

    def catch_up(self, text_of: TextOfRow) -> int:
        """Index the messages stored since the last call; return their number."""
        indexed = 0
        with self._lock, translate_errors(self._name), self._read() as messages:
            while True:
                self._connection.execute("BEGIN IMMEDIATE")
                try:
                    count, is_done = self._index_batch(messages, text_of)
                    self._connection.execute("COMMIT")
                except BaseException:
                    self._connection.execute("ROLLBACK")
                    raise
                indexed += count
                if is_done:
                    return indexed

    def _index_batch(self, messages: Transaction, text_of: TextOfRow) -> tuple[int, bool]:
        """Index the next messages, and those that were partial the last time."""
        execute = self._connection.execute
        last = execute("SELECT max(last) FROM progress").fetchone()[0] or 0
        new_rows = messages.run(
            f"SELECT {_COLUMNS} FROM messages WHERE rowid > ? ORDER BY rowid LIMIT ?",  # noqa: S608 - no input
            (last, _BATCH),
        )
        # A partial message is indexed when it is complete; its row id does not change.
        partial_ids = [row[0] for row in execute("SELECT number FROM waiting")]
        partial_rows = [
            row
            for number in partial_ids
            for row in messages.run(f"SELECT {_COLUMNS} FROM messages WHERE rowid = ?", (number,))  # noqa: S608 - no input
        ]
        execute("DELETE FROM waiting")
        texts = [(row, text_of(row[1:])) for row in (*partial_rows, *new_rows)]
        complete = [
            (row[0], text, session_token(row[2]), row[2], row[1])
            for row, text in texts
            if text is not None
        ]
        self._connection.executemany(_INSERT, complete)
        partial = [(row[0],) for row, text in texts if text is None]
        self._connection.executemany("INSERT OR IGNORE INTO waiting VALUES (?)", partial)
        if new_rows:
            execute("DELETE FROM progress")
            execute("INSERT INTO progress VALUES (?)", (new_rows[-1][0],))
        return len(complete), len(new_rows) < _BATCH

    def find(self, query: str, session_id: str | None, limit: int) -> Rows:
        """Return session, message and snippet of the best of the newest few hundred matches."""
        words = query.split()
        match = "body : (" + " AND ".join(map(_quoted, words)) + ")"
        if session_id is not None:
            match += f" AND session : {_quoted(session_token(session_id))}"
        with self._lock, translate_errors(self._name):
            execute = self._connection.execute
            # Two session ids may have the same token, so the ids are compared, too.
            candidates = [
                row
                for row in execute(_CANDIDATES, (match, max(_MAX_CANDIDATES, limit)))
                if session_id in (None, row[1])
            ]
            best = rank_matches(candidates, words)[:limit]
            return [
                (row[1], row[2], execute(_SNIPPET, (match, row[0])).fetchone()[0]) for row in best
            ]

    def remove_sessions(self, session_ids: Sequence[str], newest: int) -> None:
        """Remove sessions; SQLite will reuse row ids above `newest` for other messages."""
        sql = "SELECT rowid FROM words WHERE words MATCH ?"
        with self._lock, translate_errors(self._name):
            execute = self._connection.execute
            for session_id in session_ids:
                match = f"session : {_quoted(session_token(session_id))}"
                numbers = execute(sql, (match,)).fetchall()
                self._connection.executemany(
                    "DELETE FROM words WHERE rowid = ? AND session_id = ?",
                    [(number, session_id) for (number,) in numbers],
                )
            # Otherwise a new message with a reused row id would count as indexed.
            execute("DELETE FROM waiting WHERE number > ?", (newest,))
            execute("UPDATE progress SET last = ? WHERE last > ?", (newest, newest))

    def clear(self) -> None:
        """Empty the index."""
        with self._lock, translate_errors(self._name):
            for table in ("words", "waiting", "progress"):
                self._connection.execute(f"DELETE FROM {table}")  # noqa: S608 - our own names

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()


def session_token(session_id: str) -> str:
    """Return a session id as one token of the index; several ids may have the same token."""
    return "".join(filter(str.isalnum, session_id)) or "none"


def _quoted(word: str) -> str:
    return '"' + word.replace('"', '""') + '"'


def rank_matches(candidates: Rows, words: Sequence[str]) -> Rows:
    """Sort candidates by relevance to the words, best first; equal ones stay newest first.

    This is BM25 over the candidates only. The ranking of SQLite counts every message with any of
    the words, so that a search for common words would become slower as the store grows.
    """
    if not candidates:
        return candidates
    bodies = [row[3].casefold() for row in candidates]
    mean_length = sum(map(len, bodies)) / len(bodies) or 1
    folded = [word.casefold() for word in words]
    weights: list[float] = []
    for body in bodies:
        damping = 1.2 * (0.25 + 0.75 * len(body) / mean_length)
        counts = [body.count(word) for word in folded]
        weights.append(sum(count / (count + damping) for count in counts))
    # `sorted` is stable, so candidates with equal weights stay in their order: newest first.
    order = sorted(range(len(candidates)), key=lambda number: -weights[number])
    return [candidates[number] for number in order]
