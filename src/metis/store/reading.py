"""Reading: the questions that the store answers, each one query."""

from collections.abc import Iterator
from typing import Any

from metis.canonical.errors import UnknownMessageError, UnknownSessionError
from metis.canonical.message import Message
from metis.canonical.value import made
from metis.store.database import Transaction
from metis.store.entries import AnyEntry, MessageEntry, decode_entry
from metis.store.records import (
    CALL_COLUMNS,
    SESSION_COLUMNS,
    SessionRecord,
    ToolCallRecord,
    call_record,
    session_record,
)
from metis.store.rows import from_row
from metis.store.saving import MESSAGE_COLUMNS

_MESSAGES = (
    f"SELECT {MESSAGE_COLUMNS} FROM journal j JOIN messages m ON m.id = j.message_id "  # noqa: S608 - no input
    "WHERE j.session_id = ? AND j.seq > ? ORDER BY j.seq"
)
_HISTORY = (
    f"SELECT {MESSAGE_COLUMNS}, j.seq FROM journal j LEFT JOIN messages m ON m.id = j.message_id "  # noqa: S608 - no input
    "WHERE j.session_id = ? AND j.seq > ? ORDER BY j.seq"
)
_make_entry: Any = made(MessageEntry)


def read_session(transaction: Transaction, session_id: str) -> SessionRecord:
    """A session by its id."""
    sql = f"SELECT {SESSION_COLUMNS} FROM sessions WHERE id = ?"  # noqa: S608 - no input
    found = transaction.run(sql, (session_id,))
    if not found:
        raise UnknownSessionError(session_id)
    return session_record(found[0])


def read_sessions(
    transaction: Transaction, limit: int, workspace_path: str | None = None
) -> list[SessionRecord]:
    """The sessions that changed last; of one folder, or of all."""
    here = "" if workspace_path is None else "WHERE workspace_path = ?"
    sql = f"SELECT {SESSION_COLUMNS} FROM sessions {here} ORDER BY updated_at DESC, id DESC LIMIT ?"  # noqa: S608 - no input
    values = (limit,) if workspace_path is None else (workspace_path, limit)
    return [session_record(row) for row in transaction.run(sql, values)]


def read_messages(
    transaction: Transaction, session_id: str, newest: int | None = None
) -> list[Message]:
    """The messages of a session in order; all, or only the newest."""
    if newest is not None:
        sql = f"{_MESSAGES} DESC LIMIT ?"
        rows = transaction.run(sql, (session_id, 0, newest))
        messages = [from_row(row) for row in reversed(rows)]
    else:
        messages = [from_row(row) for row in transaction.stream(_MESSAGES, (session_id, 0))]
    if not messages:
        read_session(transaction, session_id)
    return messages


def read_history(
    transaction: Transaction, session_id: str, newest: int | None = None, after: int = 0
) -> list[AnyEntry]:
    """The entries of a session in order."""
    if newest is not None:
        rows = transaction.run(f"{_HISTORY} DESC LIMIT ?", (session_id, after, newest))
        entries = [_entry(row) for row in reversed(rows)]
    else:
        entries = [_entry(row) for row in transaction.stream(_HISTORY, (session_id, after))]
    if not entries:
        read_session(transaction, session_id)
    return entries


def stream_history(transaction: Transaction, session_id: str) -> Iterator[AnyEntry]:
    """The same, one by one."""
    return (_entry(row) for row in transaction.stream(_HISTORY, (session_id, 0)))


def _entry(row: Any) -> AnyEntry:
    if row[0] is None:
        return decode_entry(row[7])
    message = from_row(row[:8])
    return _make_entry(
        created_at=message.created_at,
        id=message.id,
        message=message,
        seq=row[8],
        session_id=message.session_id,
    )


def read_message(transaction: Transaction, session_id: str, message_id: str) -> Message:
    """One message of a session."""
    sql = (
        f"SELECT {MESSAGE_COLUMNS} FROM messages m LEFT JOIN journal j "  # noqa: S608 - no input
        "ON j.session_id = m.session_id AND j.message_id = m.id AND j.entry_json IS NOT NULL "
        "WHERE m.id = ? AND m.session_id = ?"
    )
    found = transaction.run(sql, (message_id, session_id))
    if not found:
        raise UnknownMessageError(session_id, message_id)
    return from_row(found[0])


def read_calls(
    transaction: Transaction, session_id: str, status: str | None
) -> list[ToolCallRecord]:
    """The calls of a session, all or of one status."""
    sql = f"SELECT {CALL_COLUMNS} FROM tool_calls WHERE session_id = ?"  # noqa: S608 - no input
    values = [session_id]
    if status is not None:
        sql, values = f"{sql} AND status = ?", [session_id, status]
    return [call_record(row) for row in transaction.run(f"{sql} ORDER BY created_at, id", values)]
