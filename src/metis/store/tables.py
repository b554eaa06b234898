"""Tables: the rows that one transaction writes, buffered and then written table by table."""

import time
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from msgspec import Struct

from metis.canonical.errors import UnknownSessionError
from metis.store.database import Database, Rows, Transaction
from metis.store.records import BLOCK, INSERT_DIGESTS, insert_values

# Bounds the memory of the cache, which is then cleared.
_MAX_HEADS = 10_000
TOUCH_INTERVAL_US = 1_000_000
"""By how much `updated_at` of a session may be late, so that not every append writes it."""
BEFORE_ANY_TIME = -(1 << 62)
"""A time before that of any message; the latest time of an empty session."""

# Columns are named, because a newer version may have added others.
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
_EXCHANGES = (
    "INSERT INTO exchanges (id, session_id, tenant, record_json) VALUES (?, ?, ?, ?) "
    "ON CONFLICT DO NOTHING"
)
# Of two equal histories, the newer one is the one that the client continues.
_HISTORY_ENDS = (
    "INSERT INTO history_ends (scope, digest, session_id, message_id, call_ids) "
    "VALUES (?, ?, ?, ?, ?) ON CONFLICT (scope, digest) DO UPDATE SET "
    "session_id = excluded.session_id, message_id = excluded.message_id, "
    "call_ids = excluded.call_ids"
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
    """The end of a session, with the values that the next append needs."""

    seq: int
    newest_id: str
    latest_at: int
    """The latest time of its messages in microseconds."""
    last_journaled_seq: int
    """The last number with a journal row; the messages after it are counted."""
    touched_us: int
    bookmarks: dict[str, str]
    """Message ids by bookmark name."""


class WritesSessions(Protocol):
    """A job that names the sessions it writes to."""

    session_ids: Sequence[str]


class UnmatchedResultError(Exception):
    """A tool result matches no pending call; `WriteJob.explain` determines the reason."""


class Tables:
    """A transaction that buffers inserts and writes each table once, in foreign key order."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.heads: dict[str, SessionHead] = {}
        """The ends of the sessions that were written to, cached between transactions."""
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
        self.exchanges: list[Sequence[Any]] = []
        self.history_ends: list[Sequence[Any]] = []
        self.digests: list[tuple[str, str, int]] = []
        """Session, message id or entry key, and digest of each row of this transaction."""
        # The digests of earlier transactions, by session, until a row with them is committed.
        self._pending_digests: dict[str, dict[str, int]] = {}
        self._written_digests: dict[str, dict[str, int]] = {}
        self._touched: dict[str, int] = {}
        self._inserts = (
            (_MESSAGES, self.messages),
            (INSERT_JOURNAL, self.journal),
            (_OPEN, self.open_messages),
            (_CALLS, self.calls),
            (_IDS, self.ids),
            (_PARENTS, self.parents),
            (_BOOKMARKS, self.bookmarks),
            (_EXCHANGES, self.exchanges),
            (_HISTORY_ENDS, self.history_ends),
        )

    def begin(self, transaction: Transaction, jobs: Sequence[WritesSessions]) -> None:
        """Start a transaction and load the heads of the sessions that jobs write to."""
        self._transaction = transaction
        self._written_digests.clear()
        if self.digests:
            self._collect_digests()
        self.now_us = time.time_ns() // 1000
        # After a write of another process, the cached heads would assign the same numbers again.
        if self._database.has_changed(transaction) or len(self.heads) > _MAX_HEADS:
            self.heads.clear()
        heads = self.heads
        # One query loads the heads of all jobs of the batch.
        missing = [name for job in jobs for name in job.session_ids if name not in heads]
        if missing:
            self._load(sorted(set(missing)))

    def reset(self) -> None:
        """Drop buffers and heads, after the transaction failed."""
        self.heads.clear()
        self._touched.clear()
        self.results.clear()
        self.digests.clear()
        for session_id, digests in self._written_digests.items():
            digests.update(self._pending_digests.get(session_id, {}))
            self._pending_digests[session_id] = digests
        self._written_digests.clear()
        for _, rows in self._inserts:
            rows.clear()

    def head(self, session_id: str) -> SessionHead:
        """Return the end of a session."""
        head = self.heads.get(session_id)
        if head is None:
            self.flush()
            self._load([session_id])
            head = self.heads.get(session_id)
        if head is None:
            raise UnknownSessionError(session_id)
        return head

    def _load(self, session_ids: Sequence[str]) -> None:
        # Locked, because two machines that append to one session must not read the same head.
        self._database.lock_sessions(self._transaction, session_ids)
        marks = f"({', '.join('?' * len(session_ids))})"
        for row in self._transaction.run(_HEADS + marks, session_ids):
            session_id, updated_at, last_seq, newer, latest_at, latest_id, journaled_id = row[:7]
            self.heads[session_id] = SessionHead(
                seq=(last_seq or 0) + newer,
                # The newest message has the latest time, unless it has a journal row.
                newest_id=max(latest_id or "", journaled_id or ""),
                latest_at=BEFORE_ANY_TIME if latest_at is None else latest_at,
                last_journaled_seq=last_seq or 0,
                touched_us=updated_at,
                bookmarks=self._bookmarks_of(session_id) if row[7] else {},
            )

    def _bookmarks_of(self, session_id: str) -> dict[str, str]:
        sql = "SELECT name, message_id FROM bookmarks WHERE session_id = ?"
        return {row[0]: row[1] for row in self._transaction.run(sql, (session_id,))}

    def forget_head(self, session_id: str) -> None:
        """Drop the cached end of a session, after its rows were rewritten."""
        self.heads.pop(session_id, None)

    def touch(self, session_id: str, head: SessionHead) -> None:
        """Update the time of the last change of a session, to the second."""
        if self.now_us - head.touched_us >= TOUCH_INTERVAL_US:
            head.touched_us = self._touched[session_id] = self.now_us

    def _collect_digests(self) -> None:
        """Collect the digests of the previous transaction, and write every full block."""
        pending = self._pending_digests
        full: list[str] = []
        for session_id, key, digest in self.digests:
            digests = pending.get(session_id)
            if digests is None:
                digests = pending[session_id] = {}
            digests[key] = digest
            if len(digests) == BLOCK:
                full.append(session_id)
        self.digests.clear()
        if full:
            self._write_digests(full)

    def _write_digests(self, session_ids: Iterable[str]) -> None:
        rows: list[Sequence[Any]] = []
        for session_id in session_ids:
            digests = self._pending_digests.pop(session_id)
            self._written_digests[session_id] = digests
            rows.append(insert_values(session_id, digests))
        if rows:
            self._transaction.change_many(INSERT_DIGESTS, rows)

    def write_digests(self) -> None:
        """Write every digest that has no row yet."""
        self._write_digests(list(self._pending_digests))

    def forget_digests(self, session_ids: Iterable[str]) -> None:
        """Drop the digests in memory of sessions that are about to be deleted."""
        for session_id in session_ids:
            self._pending_digests.pop(session_id, None)

    @property
    def has_pending_digests(self) -> bool:
        """Whether there are stored rows whose digests are only in memory."""
        return bool(self.digests or self._pending_digests)

    def replace_digests(self, session_id: str, digests: dict[str, int]) -> None:
        """Write the digests of rewritten messages, in the transaction that rewrites them."""
        self.change(INSERT_DIGESTS, insert_values(session_id, digests, is_rewrite=True))

    @property
    def binary_text(self) -> str:
        """The format of an SQL expression that selects a text column as bytes."""
        return self._transaction.binary_text

    def run(self, sql: str, values: Sequence[Any] = ()) -> Rows:
        """Write the buffers, then run one statement and return its rows."""
        self.flush()
        return self._transaction.run(sql, values)

    def change(self, sql: str, values: Sequence[Any] = ()) -> int:
        """Write the buffers, then run one statement and return the number of changed rows."""
        self.flush()
        return self._transaction.change(sql, values)

    def change_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> int:
        """Write the buffers, then run one statement for each row of values."""
        self.flush()
        return self._transaction.change_many(sql, rows) if rows else 0

    def stream(self, sql: str, values: Sequence[Any] = ()) -> Iterable[Any]:
        """Write the buffers, then run one query and return its rows without loading them all."""
        self.flush()
        return self._transaction.stream(sql, values)

    def flush(self) -> None:
        """Write the buffers."""
        change_many = self._transaction.change_many
        for sql, rows in self._inserts:
            if rows:
                change_many(sql, rows)
                rows.clear()
        if self.results:
            # Each result must complete exactly one pending call of the same session (M-138 to
            # M-140).
            if change_many(_RESULTS, self.results) != len(self.results):
                raise UnmatchedResultError
            self.results.clear()
        if self._touched:
            change_many(_TOUCH, [(at, name, at) for name, at in self._touched.items()])
            self._touched.clear()
