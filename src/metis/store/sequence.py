"""Sequence numbers: the position of every message and journal entry in its session.

Message ids increase along a session, so the ids alone give the order. Journal entries store their
sequence number; messages take the numbers between them, one by one. Some messages also have a
journal row: at least one in 64, and every message whose time is not later than all before it.
A reader of the end of a long session can therefore start behind any journal row: everything after
it has a later time than everything before, or has a journal row itself.
"""

from collections.abc import Container, Iterator
from operator import attrgetter
from typing import NamedTuple

from metis.canonical.message import Message
from metis.store.database import Rows, Transaction
from metis.store.records import from_row, to_microseconds
from metis.store.tables import BEFORE_ANY_TIME, INSERT_JOURNAL, Tables

_COLUMNS = "id, session_id, role, content_json, metadata_json, created_at, schema_version"
_MESSAGES = (
    f"SELECT {_COLUMNS} FROM messages "  # noqa: S608 - no input
    "WHERE session_id = ? AND created_at > ? ORDER BY created_at"
)
_MESSAGE = f"SELECT {_COLUMNS} FROM messages WHERE id = ? AND session_id = ?"  # noqa: S608 - no input
_JOURNAL = (
    "SELECT seq, message_id, entry_json FROM journal WHERE session_id = ? AND seq > ? ORDER BY seq"
)
_MARK = (
    "SELECT seq, latest_at FROM journal WHERE session_id = ? AND seq <= ? ORDER BY seq DESC LIMIT 1"
)
_COUNT_AFTER = "SELECT count(*) FROM messages WHERE session_id = ? AND created_at > ?"
_MAX_SEQ = (1 << 62) - 1
_by_id = attrgetter("id")


class JournalMark(NamedTuple):
    """A journal row from which reading can start: its number, and the latest time up to it."""

    seq: int
    latest_at: int


START = JournalMark(0, BEFORE_ANY_TIME)


class HistorySlice(NamedTuple):
    """The messages and journal rows after a mark."""

    start: JournalMark
    messages: list[Message]
    journal: Rows
    """Number, message id and JSON of each journal row."""

    def with_numbers(self) -> Iterator[tuple[int, Message | str]]:
        """Yield each sequence number with its message, or with the JSON of its entry."""
        entries = {row[0]: row[2] for row in self.journal if row[1] is None}
        seq = self.start.seq
        for message in self.messages:
            seq += 1
            while seq in entries:
                yield seq, entries.pop(seq)
                seq += 1
            yield seq, message
        yield from entries.items()


def mark_before(transaction: Transaction, session_id: str, seq: int) -> JournalMark:
    """Return the last mark up to a sequence number."""
    rows = transaction.run(_MARK, (session_id, seq))
    return JournalMark(*rows[0]) if rows else START


def last_sequence_number(transaction: Transaction, session_id: str) -> int:
    """Return the number of the last message or entry; 0 if there is none."""
    mark = mark_before(transaction, session_id, _MAX_SEQ)
    return mark.seq + transaction.run(_COUNT_AFTER, (session_id, mark.latest_at))[0][0]


def read_slice(
    transaction: Transaction, session_id: str, start: JournalMark = START
) -> HistorySlice:
    """Read what follows a mark, or everything."""
    journal = transaction.run(_JOURNAL, (session_id, start.seq))
    rows = transaction.stream(_MESSAGES, (session_id, start.latest_at))
    full_texts = _full_texts(journal)
    if full_texts:
        messages = [from_row(row, full_texts.get(row[0])) for row in rows]
    else:
        messages = [from_row(row) for row in rows]
    if start.seq:
        # Messages with an early time come after the mark only by their journal row.
        read_ids = {message.id for message in messages}
        messages += _backdated_messages(transaction, session_id, journal, read_ids)
    messages.sort(key=_by_id)
    return HistorySlice(start, messages, journal)


def _full_texts(journal: Rows) -> dict[str, str]:
    """Return the JSON of messages that their columns cannot hold, by message id."""
    return {row[1]: row[2] for row in journal if row[1] is not None and row[2] is not None}


def _backdated_messages(
    transaction: Transaction, session_id: str, journal: Rows, read_ids: Container[str]
) -> Iterator[Message]:
    for _, message_id, full_json in journal:
        if message_id is not None and message_id not in read_ids:
            for row in transaction.run(_MESSAGE, (message_id, session_id)):
                yield from_row(row, full_json)


def read_newest_slice(
    transaction: Transaction, session_id: str, count: int, after: int = 0
) -> HistorySlice:
    """Read the end of a session: at least `count` messages and entries, or all after a number."""
    seq = max(last_sequence_number(transaction, session_id) - count, after)
    return read_slice(transaction, session_id, mark_before(transaction, session_id, seq))


def rewrite_journal(tables: Tables, session_id: str) -> None:
    """Give every message of a session a journal row, after the time or form of one changed."""
    part = read_slice(tables, session_id)
    full_texts, latest_at = _full_texts(part.journal), BEFORE_ANY_TIME
    rows: Rows = []
    for seq, item in part.with_numbers():
        if isinstance(item, str):
            rows.append((session_id, seq, None, item, latest_at))
        else:
            latest_at = max(latest_at, to_microseconds(item.created_at))
            rows.append((session_id, seq, item.id, full_texts.get(item.id), latest_at))
    # With a row for every message no number depends on times any more.
    tables.change("DELETE FROM journal WHERE session_id = ?", (session_id,))
    tables.change_many(INSERT_JOURNAL, rows)
    tables.forget_head(session_id)
