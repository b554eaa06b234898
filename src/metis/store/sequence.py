"""Sequence numbers: the position of every message and journal entry in its session.

Message ids increase in a session, so the ids alone determine the order of messages. Journal entries
store their sequence number; messages have the numbers between them. Some messages also have a
journal row: at least one in 64, and every message whose time is not later than all before it. So a
reader of the end of a long session can start after any journal row: every message after it has a
later time than all messages before it, or its own journal row.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from itertools import islice
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple
from zlib import crc32

from metis.canonical.errors import DecodeError
from metis.canonical.message import Message
from metis.store.database import Rows, Transaction
from metis.store.records import (
    damaged,
    digests_of_rows,
    entry_key,
    from_row,
    read_digests,
    to_microseconds,
)
from metis.store.tables import BEFORE_ANY_TIME, INSERT_JOURNAL, Tables

_COLUMNS = "id, session_id, role, {}, {}, created_at, schema_version"
_AFTER = "session_id = ? AND created_at > ? ORDER BY created_at"
_BETWEEN = "session_id = ? AND created_at > ? AND created_at <= ? ORDER BY created_at"
_ONE = "id = ? AND session_id = ?"
# The errors of decoding a damaged row.
_DAMAGE = (DecodeError, ValueError, TypeError, AttributeError, OverflowError)
_JOURNAL = (
    "SELECT seq, message_id, entry_json FROM journal WHERE session_id = ? AND seq > ? ORDER BY seq"
)
_MARK = (
    "SELECT seq, latest_at FROM journal WHERE session_id = ? AND seq <= ? ORDER BY seq DESC LIMIT 1"
)
_NEXT_MARK = (
    "SELECT seq, latest_at FROM journal WHERE session_id = ? AND seq >= ? ORDER BY seq LIMIT 1"
)
_COUNT_AFTER = "SELECT count(*) FROM messages WHERE session_id = ? AND created_at > ?"
_CHUNK = 64
_MAX_SEQ = (1 << 62) - 1
_by_id = attrgetter("id")
_id_column = itemgetter(0)


class JournalMark(NamedTuple):
    """A journal row after which reading can start: its number, and the latest time up to it."""

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
    transaction: Transaction,
    session_id: str,
    start: JournalMark = START,
    *,
    reduce: Callable[[Message], Message] | None = None,
) -> HistorySlice:
    """Read all messages and entries after a mark; `reduce` is applied to each message.

    Raises:
        StoreCorruptError: a row is damaged or missing.
    """
    journal = transaction.run(_JOURNAL, (session_id, start.seq))
    select, values = _select(transaction.binary_text, _AFTER), (session_id, start.latest_at)
    rows: Iterable[Any]
    if start.seq:
        rows = transaction.run(select, values)
        # Messages after the mark with an earlier time than it are read by their journal rows.
        rows += _backdated_rows(transaction, session_id, journal, {row[0] for row in rows})
        digests = read_digests(transaction, session_id, len(rows) + len(journal))
    else:
        digests = read_digests(transaction, session_id)
        rows = transaction.stream(select, values)
    full_texts = _full_texts(journal)
    messages: list[Message] = []
    # In chunks: the bytes of a long session would not stay in the processor cache between checksum
    # and decoder, which takes a fifth longer.
    remaining = iter(rows)
    while chunk := list(islice(remaining, _CHUNK)):
        if digests:
            _check_rows(session_id, chunk, full_texts, digests)
        decoded = _messages(session_id, chunk, full_texts)
        messages += decoded if reduce is None else map(reduce, decoded)
    if digests:
        _check_entries(session_id, journal, digests)
        if not start.seq:
            _check_completeness(session_id, messages, journal, digests)
    messages.sort(key=_by_id)
    return HistorySlice(start, messages, journal)


@cache
def _select(binary_text: str, where: str) -> str:
    columns = _COLUMNS.format(
        binary_text.format("content_json"), binary_text.format("metadata_json")
    )
    return f"SELECT {columns} FROM messages WHERE {where}"  # noqa: S608 - no input


def _check_rows(
    session_id: str, rows: Rows, full_texts: Mapping[str, str], digests: Mapping[str, int]
) -> None:
    """Compare rows with their digests.

    Raises:
        StoreCorruptError: a row was changed.
    """
    expected = list(map(digests.get, map(_id_column, rows)))
    try:
        actual = digests_of_rows(rows, full_texts)
    except _DAMAGE:  # a column has the wrong type; the loop below names its message
        actual = [_digest_or_none(row, full_texts) for row in rows]
    if actual == expected:
        return
    for row, digest, expected_digest in zip(rows, actual, expected, strict=True):
        if expected_digest is not None and digest != expected_digest:
            text = f"message {row[0]} is not what was written (its digest differs)"
            raise damaged(session_id, text)


def _digest_or_none(row: tuple[Any, ...], full_texts: Mapping[str, str]) -> int | None:
    try:
        return digests_of_rows([row], full_texts)[0]
    except _DAMAGE:
        return None


def _messages(session_id: str, rows: Rows, full_texts: Mapping[str, str]) -> list[Message]:
    try:
        if full_texts:
            return [from_row(row, full_texts.get(row[0])) for row in rows]
        return [from_row(row) for row in rows]
    except _DAMAGE:
        for row in rows:
            try:
                from_row(row, full_texts.get(row[0]))
            except _DAMAGE as error:
                raise damaged(session_id, f"message {row[0]} cannot be read ({error})") from None
        raise


def _check_entries(session_id: str, journal: Rows, digests: Mapping[str, int]) -> None:
    for seq, message_id, text in journal:
        if message_id is None:
            expected = digests.get(entry_key(seq))
            if expected is not None and crc32(text.encode()) != expected:
                problem = f"entry {seq} is not what was written (its digest differs)"
                raise damaged(session_id, problem)


def _check_completeness(
    session_id: str, messages: list[Message], journal: Rows, digests: Mapping[str, int]
) -> None:
    """Check that every message and entry with a digest was read.

    Raises:
        StoreCorruptError: one is missing.
    """
    present = {message.id for message in messages}
    present.update(entry_key(row[0]) for row in journal if row[1] is None)
    if not digests.keys() <= present:
        missing = sorted(digests.keys() - present)
        kind = "entry" if missing[0].startswith("#") else "message"
        text = f"{kind} {missing[0].removeprefix('#')} is missing ({len(missing)} in all)"
        raise damaged(session_id, text)


def _full_texts(journal: Rows) -> dict[str, str]:
    """Return the full JSON of messages with unknown fields, by message id."""
    return {row[1]: row[2] for row in journal if row[1] is not None and row[2] is not None}


def _backdated_rows(
    transaction: Transaction, session_id: str, journal: Rows, read_ids: set[str]
) -> Iterator[tuple[Any, ...]]:
    select = _select(transaction.binary_text, _ONE)
    for _, message_id, _ in journal:
        if message_id is not None and message_id not in read_ids:
            yield from transaction.run(select, (message_id, session_id))


def read_newest_slice(
    transaction: Transaction, session_id: str, count: int, after: int = 0
) -> HistorySlice:
    """Read the end of a session: at least `count` messages and entries, none before `after`."""
    seq = max(last_sequence_number(transaction, session_id) - count, after)
    return read_slice(transaction, session_id, mark_before(transaction, session_id, seq))


def read_slice_before(
    transaction: Transaction, session_id: str, before: int, count: int
) -> HistorySlice:
    """Read at least `count` messages and entries before a number, and a few after it."""
    rows = transaction.run(_NEXT_MARK, (session_id, before))
    if not rows:
        return read_newest_slice(transaction, session_id, max(count, _CHUNK) + count)
    start = mark_before(transaction, session_id, max(0, before - count - 1))
    # No message up to a mark has a later time than the mark, so that later messages of a long
    # session are not read.
    end = JournalMark(*rows[0])
    journal = [
        row for row in transaction.run(_JOURNAL, (session_id, start.seq)) if row[0] <= end.seq
    ]
    values = (session_id, start.latest_at, end.latest_at)
    rows = transaction.run(_select(transaction.binary_text, _BETWEEN), values)
    rows += _backdated_rows(transaction, session_id, journal, {row[0] for row in rows})
    messages = _messages(session_id, rows, _full_texts(journal))
    messages.sort(key=_by_id)
    return HistorySlice(start, messages, journal)


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
    # With a row for every message, the numbers do not depend on times.
    tables.change("DELETE FROM journal WHERE session_id = ?", (session_id,))
    tables.change_many(INSERT_JOURNAL, rows)
    tables.forget_head(session_id)
