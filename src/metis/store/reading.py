"""Reading: the questions that the store answers, each one query."""

from typing import Any

from metis.canonical.errors import UnknownMessageError, UnknownSessionError
from metis.canonical.message import Message
from metis.canonical.value import made
from metis.store.database import Transaction
from metis.store.entries import AnyEntry, MessageEntry, decode_entry
from metis.store.places import START, mark_before, newest_part, read_part
from metis.store.records import (
    CALL_COLUMNS,
    SESSION_COLUMNS,
    SessionRecord,
    ToolCallRecord,
    call_record,
    session_record,
)
from metis.store.rows import from_row

_MESSAGE = (
    "SELECT m.id, m.session_id, m.role, m.content_json, m.metadata_json, m.created_at, "
    "m.schema_version, j.entry_json FROM messages m LEFT JOIN journal j "
    "ON j.session_id = m.session_id AND j.message_id = m.id AND j.entry_json IS NOT NULL "
    "WHERE m.id = ? AND m.session_id = ?"
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
    if newest is None:
        messages = read_part(transaction, session_id).messages
    else:
        messages = _newest_messages(transaction, session_id, newest)
    if not messages:
        read_session(transaction, session_id)
    return messages


def _newest_messages(transaction: Transaction, session_id: str, count: int) -> list[Message]:
    """So many messages; more is read while there are too few of them among the entries."""
    wanted = count
    while True:
        part = newest_part(transaction, session_id, wanted)
        if len(part.messages) >= count or not part.mark.seq:
            return part.messages[max(0, len(part.messages) - count) :]
        wanted *= 4


def read_history(
    transaction: Transaction, session_id: str, newest: int | None = None, after: int = 0
) -> list[AnyEntry]:
    """The entries of a session in order; all, the newest, or those behind a number."""
    if newest is not None:
        part = newest_part(transaction, session_id, newest, after)
    else:
        mark = mark_before(transaction, session_id, after) if after else START
        part = read_part(transaction, session_id, mark)
    found = [each for each in part.numbered() if each[0] > after]
    if newest is not None:
        found = found[max(0, len(found) - newest) :]
    if not found:
        read_session(transaction, session_id)
    return [_entry(*each) for each in found]


def _entry(seq: int, found: Message | str) -> AnyEntry:
    if isinstance(found, str):
        return decode_entry(found)
    return _make_entry(
        created_at=found.created_at,
        id=found.id,
        message=found,
        seq=seq,
        session_id=found.session_id,
    )


def read_message(transaction: Transaction, session_id: str, message_id: str) -> Message:
    """One message of a session."""
    found = transaction.run(_MESSAGE, (message_id, session_id))
    if not found:
        raise UnknownMessageError(session_id, message_id)
    return from_row(found[0][:7], found[0][7])


def read_calls(
    transaction: Transaction, session_id: str, status: str | None
) -> list[ToolCallRecord]:
    """The calls of a session, all or of one status."""
    sql = f"SELECT {CALL_COLUMNS} FROM tool_calls WHERE session_id = ?"  # noqa: S608 - no input
    values = [session_id]
    if status is not None:
        sql, values = f"{sql} AND status = ?", [session_id, status]
    return [call_record(row) for row in transaction.run(f"{sql} ORDER BY created_at, id", values)]
