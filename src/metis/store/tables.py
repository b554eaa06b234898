"""Tables: the rows that one transaction writes, gathered and then written table by table."""

import time
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from msgspec import Struct

from metis.canonical.errors import UnknownSessionError
from metis.store.database import Database, Rows, Transaction

_HEADS_KEPT = 10_000
TOUCH_INTERVAL_US = 1_000_000
"""How old the time of a session's last change gets before it is written again."""
BEFORE_ANY_TIME = -(1 << 62)
"""The latest time of a session without messages."""

# Columns are named, so that a newer version may have added others.
_MESSAGES = (
    "INSERT INTO messages (id, session_id, role, content_json, metadata_json, created_at, "
    "schema_version) VALUES (?, ?, ?, ?, ?, ?, ?)"
)
INSERT_JOURNAL = (
    "INSERT INTO journal (session_id, seq, message_id, entry_json, latest_at) "
    "VALUES (?, ?, ?, ?, ?)"
)
_OPEN = "INSERT INTO open_messages (message_id, session_id) VALUES (?, ?)"
_CALLS = (
    "INSERT INTO tool_calls (id, session_id, message_id, name, status, provider_id, provider, "
    "created_at, completed_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_RESULTS = (
    "UPDATE tool_calls SET result_message_id = ?, status = ?, completed_at = ? "
    "WHERE id = ? AND session_id = ? AND result_message_id IS NULL"
)
_IDS = (
    "INSERT INTO tool_id_map (session_id, tool_use_id, provider, provider_id) "
    "VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
)
_PARENTS = (
    "INSERT INTO message_parents (message_id, position, parent_id, session_id) VALUES (?, ?, ?, ?)"
)
_BOOKMARKS = (
    "INSERT INTO bookmarks (session_id, name, message_id) VALUES (?, ?, ?) "
    "ON CONFLICT (session_id, name) DO UPDATE SET message_id = excluded.message_id"
)
_TOUCH = "UPDATE sessions SET updated_at = ? WHERE id = ? AND updated_at < ?"
_HEADS = f"""
SELECT s.id, s.updated_at, j.seq,
  (SELECT count(*) FROM messages WHERE session_id = s.id
   AND created_at > coalesce(j.latest_at, {BEFORE_ANY_TIME})),
  (SELECT max(created_at) FROM messages WHERE session_id = s.id),
  (SELECT id FROM messages WHERE session_id = s.id ORDER BY created_at DESC LIMIT 1),
  (SELECT message_id FROM journal WHERE session_id = s.id AND message_id IS NOT NULL
   ORDER BY seq DESC LIMIT 1),
  EXISTS (SELECT 1 FROM bookmarks WHERE session_id = s.id)
FROM sessions s LEFT JOIN journal j ON j.session_id = s.id
  AND j.seq = (SELECT max(seq) FROM journal WHERE session_id = s.id)
WHERE s.id IN """  # noqa: S608 - no input


class SessionHead(Struct, gc=False):
    """Where a session ends: what the next entry needs to know."""

    seq: int
    newest_id: str
    latest_at: int
    """The latest time of its messages."""
    last_journaled_seq: int
    """The last number that is written down; those behind it are counted."""
    touched_us: int
    bookmarks: dict[str, str]
    """The message of each bookmark."""


class WritesSessions(Protocol):
    """Something that will be written to sessions."""

    session_ids: Sequence[str]


class UnmatchedResultError(Exception):
    """A result found no call that waits for it; the one who wrote it says what is wrong."""


class Tables:
    """What one transaction writes; each table is written once, in the order of their keys."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.heads: dict[str, SessionHead] = {}
        """The ends of the sessions that were written to."""
        self.now_us = 0
        self._transaction: Transaction
        self.messages: list[Sequence[Any]] = []
        self.journal: list[Sequence[Any]] = []
        self.open_messages: list[Sequence[Any]] = []
        self.calls: list[Sequence[Any]] = []
        self.results: list[Sequence[Any]] = []
        self.ids: list[Sequence[Any]] = []
        self.parents: list[Sequence[Any]] = []
        self.bookmarks: list[Sequence[Any]] = []
        self._touched: dict[str, int] = {}
        self._in_order = (
            (_MESSAGES, self.messages),
            (INSERT_JOURNAL, self.journal),
            (_OPEN, self.open_messages),
            (_CALLS, self.calls),
            (_IDS, self.ids),
            (_PARENTS, self.parents),
            (_BOOKMARKS, self.bookmarks),
        )

    def begin(self, transaction: Transaction, jobs: Sequence[WritesSessions]) -> None:
        """Start with an empty sheet, and with the heads of the sessions that are written to."""
        self._transaction = transaction
        self.now_us = time.time_ns() // 1000
        if self._database.has_changed(transaction) or len(self.heads) > _HEADS_KEPT:
            self.heads.clear()
        heads = self.heads
        missing = [each for job in jobs for each in job.session_ids if each not in heads]
        if missing:
            self._load(sorted(set(missing)))

    def reset(self) -> None:
        """Drop everything, after the transaction failed."""
        self.heads.clear()
        self._touched.clear()
        self.results.clear()
        for _, rows in self._in_order:
            rows.clear()

    def head(self, session_id: str) -> SessionHead:
        """The end of a session."""
        head = self.heads.get(session_id)
        if head is None:
            self.flush()
            self._load([session_id])
            head = self.heads.get(session_id)
        if head is None:
            raise UnknownSessionError(session_id)
        return head

    def _load(self, session_ids: Sequence[str]) -> None:
        self._database.lock_sessions(self._transaction, session_ids)
        marks = f"({', '.join('?' * len(session_ids))})"
        for found in self._transaction.run(_HEADS + marks, session_ids):
            session_id, updated_at, placed, behind, latest_at, latest_id, placed_id = found[:7]
            self.heads[session_id] = SessionHead(
                seq=(placed or 0) + behind,
                # The newest has the latest time, unless its place is written down.
                newest_id=max(latest_id or "", placed_id or ""),
                latest_at=BEFORE_ANY_TIME if latest_at is None else latest_at,
                last_journaled_seq=placed or 0,
                touched_us=updated_at,
                bookmarks=self._named(session_id) if found[7] else {},
            )

    def _named(self, session_id: str) -> dict[str, str]:
        sql = "SELECT name, message_id FROM bookmarks WHERE session_id = ?"
        return {row[0]: row[1] for row in self._transaction.run(sql, (session_id,))}

    def forget_head(self, session_id: str) -> None:
        """Forget the end of a session that is gone."""
        self.heads.pop(session_id, None)

    def touch(self, session_id: str, head: SessionHead) -> None:
        """Note when a session changed last; to the second, so that not every append writes it."""
        if self.now_us - head.touched_us >= TOUCH_INTERVAL_US:
            head.touched_us = self._touched[session_id] = self.now_us

    def run(self, sql: str, values: Sequence[Any] = ()) -> Rows:
        """Write what waits, then run one statement."""
        self.flush()
        return self._transaction.run(sql, values)

    def change(self, sql: str, values: Sequence[Any] = ()) -> int:
        """Write what waits, then run one statement and give the number of changed rows."""
        self.flush()
        return self._transaction.change(sql, values)

    def change_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> int:
        """Write what waits, then run one statement for each row of values."""
        self.flush()
        return self._transaction.change_many(sql, rows) if rows else 0

    def stream(self, sql: str, values: Sequence[Any] = ()) -> Iterable[Any]:
        """Write what waits, then run one query and give its rows as they come."""
        self.flush()
        return self._transaction.stream(sql, values)

    def flush(self) -> None:
        """Write what waits."""
        change_many = self._transaction.change_many
        for sql, rows in self._in_order:
            if rows:
                change_many(sql, rows)
                rows.clear()
        if self.results:
            if change_many(_RESULTS, self.results) != len(self.results):
                raise UnmatchedResultError
            self.results.clear()
        if self._touched:
            change_many(_TOUCH, [(at, each, at) for each, at in self._touched.items()])
            self._touched.clear()
