"""Read queries of the store: sessions, messages, history, tool calls and overviews for lists."""

import re
from decimal import Decimal
from typing import Any

import msgspec
from msgspec import Struct

from metis.canonical.blocks import ContentBlock, DocumentBlock, ImageBlock, TextBlock
from metis.canonical.errors import UnknownMessageError, UnknownSessionError
from metis.canonical.message import Message
from metis.canonical.value import raw_constructor
from metis.store.database import Transaction
from metis.store.entries import AnyEntry, MessageEntry, decode_entry
from metis.store.records import (
    CALL_COLUMNS,
    SESSION_COLUMNS,
    SessionRecord,
    ToolCallRecord,
    call_record,
    from_row,
    session_record,
)
from metis.store.sequence import START, mark_before, read_newest_slice, read_slice

_MESSAGE = (
    "SELECT m.id, m.session_id, m.role, m.content_json, m.metadata_json, m.created_at, "
    "m.schema_version, j.entry_json FROM messages m LEFT JOIN journal j "
    "ON j.session_id = m.session_id AND j.message_id = m.id AND j.entry_json IS NOT NULL "
    "WHERE m.id = ? AND m.session_id = ?"
)
_make_entry: Any = raw_constructor(MessageEntry)


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
        messages = read_slice(transaction, session_id).messages
    else:
        messages = _newest_messages(transaction, session_id, newest)
    if not messages:
        read_session(transaction, session_id)
    return messages


def _newest_messages(transaction: Transaction, session_id: str, count: int) -> list[Message]:
    """So many messages; more is read while there are too few of them among the entries."""
    wanted = count
    while True:
        part = read_newest_slice(transaction, session_id, wanted)
        if len(part.messages) >= count or not part.start.seq:
            return part.messages[max(0, len(part.messages) - count) :]
        wanted *= 4


def read_history(
    transaction: Transaction, session_id: str, newest: int | None = None, after: int = 0
) -> list[AnyEntry]:
    """The entries of a session in order; all, the newest, or those behind a number."""
    if newest is not None:
        part = read_newest_slice(transaction, session_id, newest, after)
    else:
        mark = mark_before(transaction, session_id, after) if after else START
        part = read_slice(transaction, session_id, mark)
    found = [each for each in part.with_numbers() if each[0] > after]
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


def read_tool_calls(
    transaction: Transaction, session_id: str, status: str | None
) -> list[ToolCallRecord]:
    """The calls of a session, all or of one status."""
    sql = f"SELECT {CALL_COLUMNS} FROM tool_calls WHERE session_id = ?"  # noqa: S608 - no input
    values = [session_id]
    if status is not None:
        sql, values = f"{sql} AND status = ?", [session_id, status]
    return [call_record(row) for row in transaction.run(f"{sql} ORDER BY created_at, id", values)]


TITLE_LENGTH = 200
"""A title is at most so long; a screen shows what it has room for."""

_COUNT = (
    "SELECT count(*) FROM messages WHERE session_id = ? AND role NOT IN ('system', 'developer')"
)
_FIRST = "SELECT id FROM messages WHERE session_id = ? AND role = 'user' ORDER BY id LIMIT 1"
_ANSWERS = (
    "SELECT metadata_json FROM messages WHERE session_id = ? AND role = 'assistant' ORDER BY id"
)
_OTHERS = "SELECT entry_json FROM journal WHERE session_id = ? AND message_id IS NULL"
_MARK = re.compile(r"^\s*(?:#+|>|[*-])\s+")
"""What begins a line of markdown and says nothing in a title."""
_ATTACHED = re.compile(r"[^\n]+:\n\n")
"""How the text of a file begins: under its name."""


class Overview(Struct, frozen=True, kw_only=True):
    """A session as a list tells of it."""

    session: SessionRecord
    title: str
    """What was asked first, on one line; empty if nothing was."""
    model: str | None
    """Who answered last, or would answer first."""
    message_count: int
    """Without what the model was told first."""
    cost_usd: Decimal


class _Spent(Struct):
    cost_usd: Decimal = Decimal(0)


class _Answer(Struct):
    """As much of the metadata of an answer as a list needs."""

    model: str | None = None
    usage: _Spent | None = None


class _Entry(Struct):
    """As much of an entry that is no message: a summary or a call without an answer has a price."""

    data: _Answer | None = None
    details: _Answer | None = None


_read_answer = msgspec.json.Decoder(_Answer).decode
_read_entry = msgspec.json.Decoder(_Entry).decode


def read_overviews(
    transaction: Transaction, limit: int, workspace_path: str | None
) -> list[Overview]:
    """The sessions that changed last; of one folder, or of all."""
    records = read_sessions(transaction, limit, workspace_path)
    return [_overview(transaction, record) for record in records]


def _overview(transaction: Transaction, record: SessionRecord) -> Overview:
    own = (record.id,)
    first = transaction.run(_FIRST, own)
    answers = [_read_answer(row[0]) for row in transaction.run(_ANSWERS, own)]
    told = [each for row in transaction.run(_OTHERS, own) for each in _told(row[0])]
    last = next((each.model for each in reversed(answers) if each.model), None)
    return Overview(
        session=record,
        title=title_of(read_message(transaction, record.id, first[0][0]).content) if first else "",
        model=record.active_model or last,
        message_count=transaction.run(_COUNT, own)[0][0],
        cost_usd=sum((each.usage.cost_usd for each in (*answers, *told) if each.usage), Decimal(0)),
    )


def _told(text: str) -> list[_Answer]:
    """What an entry says of a call; notes of programs may hold anything, and most no price."""
    if '"cost_usd"' not in text:
        return []
    try:
        entry = _read_entry(text)
    except msgspec.ValidationError:
        return []
    return [each for each in (entry.data, entry.details) if each is not None]


def title_of(content: tuple[ContentBlock, ...]) -> str:
    r"""A title for what begins with a message: its words on one line, or what was shown.

    >>> title_of((TextBlock("# Why is\nthe sky blue?"),))
    'Why is the sky blue?'
    """
    texts = [block.text for block in content if isinstance(block, TextBlock)]
    said = (text for text in texts if not _ATTACHED.match(text))
    words = next(said, None) or "".join(texts[:1])
    lines = (_MARK.sub("", line) for line in words[: 4 * TITLE_LENGTH].splitlines())
    title = " ".join(word for line in lines for word in line.split())
    if not title:
        return next((_shown(block) for block in content), "")
    return title if len(title) <= TITLE_LENGTH else f"{title[: TITLE_LENGTH - 1]}…"


def _shown(block: ContentBlock) -> str:
    match block:
        case ImageBlock():
            return "a picture"
        case DocumentBlock():
            return block.name or "a document"
        case _:
            return "something that is no text"
