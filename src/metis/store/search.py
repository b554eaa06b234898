"""Search: the text of a message that can be found, and the full-text index of a SQLite store."""

import os
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
from metis.store.records import from_row
from metis.store.sqlite_file import translate_errors

_write_json = msgspec.json.Encoder().encode


def text_of_row(row: Sequence[Any]) -> str | None:
    """The words of a row of `messages`; None while the message is being written."""
    message = from_row(row)
    if message.metadata.status == MessageStatus.PARTIAL:
        return None
    return searchable_text(message)


def searchable_text(message: Message) -> str:
    """Text, and what tools were asked and answered."""
    parts = (part for block in message.content for part in _parts(block))
    return "\n".join(part for part in parts if part).replace("\x00", " ")


def _parts(block: ContentBlock) -> Iterator[str | None]:
    match block:
        case TextBlock() | ThinkingBlock():
            yield block.text
        case ToolUseBlock():
            yield block.name
            yield block.invalid.raw if block.invalid else _write_json(block.input).decode()
        case ToolResultBlock():
            for inner in block.content:
                yield from _parts(inner)
        case DocumentBlock():
            yield block.name
            yield block.context
            yield block.source.data if block.source.kind == "text" else None
        case AudioBlock() | ArtifactBlock():
            yield block.transcript
        case _:
            return


_VERSION = 2
# `session` holds the id of the session as one word, so that the index itself can look for it.
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
_AT_ONCE = 2000
_RANKED = 500
Read = Callable[[], AbstractContextManager[Transaction]]


class SqliteSearch:
    """Words of messages, taken in when somebody searches; no append waits for it."""

    def __init__(self, path: Path, read: Read) -> None:
        self._name = str(path)
        self._read = read
        self._lock = threading.Lock()
        with translate_errors(self._name):
            # It holds the words of messages, so it is for the same eyes only.
            with suppress(OSError):
                os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
            self._connection = sqlite3.connect(
                path, isolation_level=None, check_same_thread=False, timeout=30
            )
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = NORMAL")
            self._make_tables()

    def _make_tables(self) -> None:
        """Make the tables, also in place of those that an older metis made."""
        execute = self._connection.execute
        if execute("PRAGMA user_version").fetchone()[0] == _VERSION:
            return
        execute("BEGIN IMMEDIATE")
        if execute("PRAGMA user_version").fetchone()[0] != _VERSION:
            for statement in _TABLES.strip().split(";\n"):
                execute(statement)
        execute("COMMIT")

    def catch_up(self, words_of: TextOfRow) -> int:
        """Take in what was stored since, and give the number of messages."""
        taken = 0
        with self._lock, translate_errors(self._name), self._read() as messages:
            while True:
                self._connection.execute("BEGIN IMMEDIATE")
                try:
                    count, is_done = self._take(messages, words_of)
                    self._connection.execute("COMMIT")
                except BaseException:
                    self._connection.execute("ROLLBACK")
                    raise
                taken += count
                if is_done:
                    return taken

    def _take(self, messages: Transaction, words_of: TextOfRow) -> tuple[int, bool]:
        """One batch: messages behind the last one, and those that were still being written."""
        last = self._connection.execute("SELECT max(last) FROM progress").fetchone()[0] or 0
        fresh = messages.run(
            f"SELECT {_COLUMNS} FROM messages WHERE rowid > ? ORDER BY rowid LIMIT ?",  # noqa: S608 - no input
            (last, _AT_ONCE),
        )
        waiting = [row[0] for row in self._connection.execute("SELECT number FROM waiting")]
        again = [
            row
            for number in waiting
            for row in messages.run(f"SELECT {_COLUMNS} FROM messages WHERE rowid = ?", (number,))  # noqa: S608 - no input
        ]
        execute = self._connection.execute
        execute("DELETE FROM waiting")
        found = [(row, words_of(row[1:])) for row in (*again, *fresh)]
        ready = [
            (row[0], words, session_token(row[2]), row[2], row[1])
            for row, words in found
            if words is not None
        ]
        self._connection.executemany(_INSERT, ready)
        later = [(row[0],) for row, words in found if words is None]
        self._connection.executemany("INSERT OR IGNORE INTO waiting VALUES (?)", later)
        if fresh:
            execute("DELETE FROM progress")
            execute("INSERT INTO progress VALUES (?)", (fresh[-1][0],))
        return len(ready), len(fresh) < _AT_ONCE

    def find(self, words: str, session_id: str | None, limit: int) -> Rows:
        """Session, message and snippet of the best matches."""
        wanted = words.split()
        query = "body : (" + " AND ".join(map(_quoted, wanted)) + ")"
        if session_id is not None:
            query += f" AND session : {_quoted(session_token(session_id))}"
        with self._lock, translate_errors(self._name):
            execute = self._connection.execute
            found = [
                row
                for row in execute(_CANDIDATES, (query, max(_RANKED, limit)))
                if session_id in (None, row[1])
            ]
            best = rank_matches(found, wanted)[:limit]
            return [
                (row[1], row[2], execute(_SNIPPET, (query, row[0])).fetchone()[0]) for row in best
            ]

    def remove_sessions(self, session_ids: Sequence[str], newest: int) -> None:
        """Drop what belongs to sessions; numbers behind `newest` will go to other messages."""
        of_session = "SELECT rowid FROM words WHERE words MATCH ?"
        with self._lock, translate_errors(self._name):
            execute = self._connection.execute
            for session_id in session_ids:
                query = f"session : {_quoted(session_token(session_id))}"
                numbers = execute(of_session, (query,)).fetchall()
                sql = "DELETE FROM words WHERE rowid = ? AND session_id = ?"
                self._connection.executemany(sql, [(number, session_id) for (number,) in numbers])
            execute("DELETE FROM waiting WHERE number > ?", (newest,))
            execute("UPDATE progress SET last = ? WHERE last > ?", (newest, newest))

    def clear(self) -> None:
        """Drop everything."""
        with self._lock, translate_errors(self._name):
            for table in ("words", "waiting", "progress"):
                self._connection.execute(f"DELETE FROM {table}")  # noqa: S608 - three words

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self._connection.close()


def session_token(session_id: str) -> str:
    """The id of a session as one word; others may have the same, so the id itself is compared."""
    return "".join(filter(str.isalnum, session_id)) or "none"


def _quoted(word: str) -> str:
    return '"' + word.replace('"', '""') + '"'


def rank_matches(found: Rows, words: Sequence[str]) -> Rows:
    """Candidates by how much of them is about the words, best first, of equals the newest.

    This is BM25 over the candidates. That of SQLite counts every message that holds any of the
    words, so that a search for common ones would take longer the more is stored.
    """
    if not found:
        return found
    bodies = [row[3].casefold() for row in found]
    usual = sum(map(len, bodies)) / len(bodies) or 1
    folded = [word.casefold() for word in words]
    weights: list[float] = []
    for body in bodies:
        dampening = 1.2 * (0.25 + 0.75 * len(body) / usual)
        counts = [body.count(word) for word in folded]
        weights.append(sum(count / (count + dampening) for count in counts))
    order = sorted(range(len(found)), key=lambda number: -weights[number])
    return [found[number] for number in order]
