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

MESSAGE_COLUMNS = "id, session_id, role, content_json, metadata_json, created_at, schema_version"
_MESSAGES = (
    f"SELECT {MESSAGE_COLUMNS} FROM messages "  # noqa: S608 - no input
    "WHERE session_id = ? AND created_at > ? ORDER BY created_at"
)
_MESSAGE = f"SELECT {MESSAGE_COLUMNS} FROM messages WHERE id = ? AND session_id = ?"  # noqa: S608 - no input
_JOURNAL = (
    "SELECT seq, message_id, entry_json FROM journal WHERE session_id = ? AND seq > ? ORDER BY seq"
)
_MARK = (
    "SELECT seq, latest_at FROM journal WHERE session_id = ? AND seq <= ? ORDER BY seq DESC LIMIT 1"
)
_BEHIND = "SELECT count(*) FROM messages WHERE session_id = ? AND created_at > ?"
_LAST = (1 << 62) - 1
_by_id = attrgetter("id")


class JournalMark(NamedTuple):
    """A number that stands in the journal, and the latest time up to there."""

    seq: int
    latest_at: int


START = JournalMark(0, BEFORE_ANY_TIME)


class HistorySlice(NamedTuple):
    """What follows a mark."""

    start: JournalMark
    messages: list[Message]
    journal: Rows
    """Number, message and JSON of each row of the journal."""

    def with_numbers(self) -> Iterator[tuple[int, Message | str]]:
        """Each number with its message, or with the JSON of its entry."""
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
    """The last mark up to a number."""
    found = transaction.run(_MARK, (session_id, seq))
    return JournalMark(*found[0]) if found else START


def last_sequence_number(transaction: Transaction, session_id: str) -> int:
    """The number of the last message or entry; 0 if there is none."""
    mark = mark_before(transaction, session_id, _LAST)
    return mark.seq + transaction.run(_BEHIND, (session_id, mark.latest_at))[0][0]


def read_slice(
    transaction: Transaction, session_id: str, mark: JournalMark = START
) -> HistorySlice:
    """What follows a mark, or everything."""
    journal = transaction.run(_JOURNAL, (session_id, mark.seq))
    rows = transaction.stream(_MESSAGES, (session_id, mark.latest_at))
    wholes = _wholes(journal)
    if wholes:
        messages = [from_row(row, wholes.get(row[0])) for row in rows]
    else:
        messages = [from_row(row) for row in rows]
    if mark.seq:
        messages += _late(transaction, session_id, journal, {each.id for each in messages})
    messages.sort(key=_by_id)
    return HistorySlice(mark, messages, journal)


def _wholes(journal: Rows) -> dict[str, str]:
    """The JSON of messages that their columns cannot hold."""
    return {row[1]: row[2] for row in journal if row[1] is not None and row[2] is not None}


def _late(
    transaction: Transaction, session_id: str, journal: Rows, there: Container[str]
) -> Iterator[Message]:
    """Messages behind a mark that say that they are older."""
    for _, message_id, whole in journal:
        if message_id is not None and message_id not in there:
            for row in transaction.run(_MESSAGE, (message_id, session_id)):
                yield from_row(row, whole)


def read_newest_slice(
    transaction: Transaction, session_id: str, count: int, after: int = 0
) -> HistorySlice:
    """The end of a session with at least so many messages and entries, or all behind a number."""
    seq = max(last_sequence_number(transaction, session_id) - count, after)
    return read_slice(transaction, session_id, mark_before(transaction, session_id, seq))


def rewrite_journal(tables: Tables, session_id: str) -> None:
    """Write down every place of a session, after the time or the form of a message changed."""
    part = read_slice(tables, session_id)
    wholes, latest_at = _wholes(part.journal), BEFORE_ANY_TIME
    rows: Rows = []
    for seq, found in part.with_numbers():
        if isinstance(found, str):
            rows.append((session_id, seq, None, found, latest_at))
        else:
            latest_at = max(latest_at, to_microseconds(found.created_at))
            rows.append((session_id, seq, found.id, wholes.get(found.id), latest_at))
    tables.change("DELETE FROM journal WHERE session_id = ?", (session_id,))
    tables.change_many(INSERT_JOURNAL, rows)
    tables.forget_head(session_id)
