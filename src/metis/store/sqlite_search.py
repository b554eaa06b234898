"""The search index of a SQLite store: a file of its own, which can be deleted and made anew."""

import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from metis.store.database import Rows, Transaction, WordsOf
from metis.store.sqlite_file import told

_TABLES = """
CREATE VIRTUAL TABLE IF NOT EXISTS words
USING fts5(body, session_id UNINDEXED, message_id UNINDEXED);
CREATE TABLE IF NOT EXISTS waiting (number INTEGER PRIMARY KEY);
CREATE TABLE IF NOT EXISTS progress (last INTEGER NOT NULL);
"""
_COLUMNS = "rowid, id, session_id, role, content_json, metadata_json, created_at, schema_version"
_AT_ONCE = 500
Read = Callable[[], AbstractContextManager[Transaction]]


class SqliteSearch:
    """Words of messages, taken in when somebody searches; no append waits for it."""

    def __init__(self, path: Path, read: Read) -> None:
        self._name = str(path)
        self._read = read
        self._lock = threading.Lock()
        with told(self._name):
            self._connection = sqlite3.connect(
                path, isolation_level=None, check_same_thread=False, timeout=30
            )
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = NORMAL")
            self._connection.executescript(_TABLES)

    def catch_up(self, words_of: WordsOf) -> int:
        """Take in what was stored since, and give the number of messages."""
        taken = 0
        with self._lock, told(self._name), self._read() as messages:
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

    def _take(self, messages: Transaction, words_of: WordsOf) -> tuple[int, bool]:
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
        self._connection.execute("DELETE FROM waiting")
        count = 0
        for row in [*again, *fresh]:
            words = words_of(row[1:])
            if words is None:
                self._connection.execute("INSERT OR IGNORE INTO waiting VALUES (?)", (row[0],))
                continue
            sql = "INSERT INTO words (rowid, body, session_id, message_id) VALUES (?, ?, ?, ?)"
            self._connection.execute("DELETE FROM words WHERE rowid = ?", (row[0],))
            self._connection.execute(sql, (row[0], words, row[2], row[1]))
            count += 1
        if fresh:
            self._connection.execute("DELETE FROM progress")
            self._connection.execute("INSERT INTO progress VALUES (?)", (fresh[-1][0],))
        return count, len(fresh) < _AT_ONCE

    def find(self, words: str, session_id: str | None, limit: int) -> Rows:
        """Session, message and snippet of the best matches."""
        query = " ".join('"' + word.replace('"', '""') + '"' for word in words.split())
        sql = (
            "SELECT session_id, message_id, snippet(words, 0, '[', ']', '…', 12) "
            "FROM words WHERE words MATCH ? AND (? IS NULL OR session_id = ?) "
            "ORDER BY rank LIMIT ?"
        )
        with self._lock, told(self._name):
            values = (query, session_id, session_id, limit)
            return self._connection.execute(sql, values).fetchall()

    def forget(self, session_ids: Sequence[str], newest: int) -> None:
        """Drop what belongs to sessions; numbers behind `newest` will go to other messages."""
        with self._lock, told(self._name):
            execute = self._connection.execute
            for session_id in session_ids:
                execute("DELETE FROM words WHERE session_id = ?", (session_id,))
            execute("DELETE FROM waiting WHERE number > ?", (newest,))
            execute("UPDATE progress SET last = ? WHERE last > ?", (newest, newest))

    def clear(self) -> None:
        """Drop everything."""
        with self._lock, told(self._name):
            for table in ("words", "waiting", "progress"):
                self._connection.execute(f"DELETE FROM {table}")  # noqa: S608 - three words

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self._connection.close()
