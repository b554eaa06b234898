"""Read queries of the store: sessions, messages, history, tool calls and overviews for lists."""

import re
from collections.abc import Callable, Iterator, Sequence
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
from metis.store.sequence import (
    START,
    mark_before,
    read_newest_slice,
    read_slice,
    read_slice_before,
)

TITLE_LENGTH = 200
"""The longest title in characters; a screen cuts it to its width."""

_MESSAGE = (
    "SELECT m.id, m.session_id, m.role, m.content_json, m.metadata_json, m.created_at, "
    "m.schema_version, j.entry_json FROM messages m LEFT JOIN journal j "
    "ON j.session_id = m.session_id AND j.message_id = m.id AND j.entry_json IS NOT NULL "
    "WHERE m.id = ? AND m.session_id = ?"
)
_MESSAGE_COUNT = (
    "SELECT count(*) FROM messages WHERE session_id = ? AND role NOT IN ('system', 'developer')"
)
_FIRST_USER_MESSAGE = (
    "SELECT id FROM messages WHERE session_id = ? AND role = 'user' ORDER BY id LIMIT 1"
)
_RESPONSE_METADATA = (
    "SELECT metadata_json FROM messages WHERE session_id = ? AND role = 'assistant' ORDER BY id"
)
_OTHER_ENTRIES = "SELECT entry_json FROM journal WHERE session_id = ? AND message_id IS NULL"
_MARKDOWN_PREFIX = re.compile(r"^\s*(?:#+|>|[*-])\s+")
# The text of an attached file begins with a line with its name; it is not used as a title.
_ATTACHED_FILE = re.compile(r"[^\n]+:\n\n")
_make_entry: Any = raw_constructor(MessageEntry)


def read_session(transaction: Transaction, session_id: str) -> SessionRecord:
    """Return a session by its id."""
    sql = f"SELECT {SESSION_COLUMNS} FROM sessions WHERE id = ?"  # noqa: S608 - no input
    rows = transaction.run(sql, (session_id,))
    if not rows:
        raise UnknownSessionError(session_id)
    return session_record(rows[0])


def read_sessions(
    transaction: Transaction, limit: int, workspace_path: str | None = None
) -> list[SessionRecord]:
    """Return the sessions that changed last; of one workspace, or of all."""
    # Without a condition the query uses the index on time, with one that on the workspace.
    where = "" if workspace_path is None else "WHERE workspace_path = ?"
    sql = (
        f"SELECT {SESSION_COLUMNS} FROM sessions {where} "  # noqa: S608 - no input
        "ORDER BY updated_at DESC, id DESC LIMIT ?"
    )
    values = (limit,) if workspace_path is None else (workspace_path, limit)
    return [session_record(row) for row in transaction.run(sql, values)]


def read_messages(
    transaction: Transaction, session_id: str, newest: int | None = None
) -> list[Message]:
    """Return the messages of a session in order; all, or only the newest."""
    if newest is None:
        messages = read_slice(transaction, session_id).messages
    else:
        messages = _newest_messages(transaction, session_id, newest)
    if not messages:
        read_session(transaction, session_id)  # raises for an unknown session
    return messages


def _newest_messages(transaction: Transaction, session_id: str, count: int) -> list[Message]:
    # The newest entries may contain few messages, so four times as many are read each time.
    entry_count = count
    while True:
        part = read_newest_slice(transaction, session_id, entry_count)
        if len(part.messages) >= count or not part.start.seq:
            return part.messages[max(0, len(part.messages) - count) :]
        entry_count *= 4


def read_history(
    transaction: Transaction, session_id: str, newest: int | None = None, after: int = 0
) -> list[AnyEntry]:
    """Return the entries of a session in order; all, the newest, or those after a number."""
    if newest is not None:
        part = read_newest_slice(transaction, session_id, newest, after)
    else:
        mark = mark_before(transaction, session_id, after) if after else START
        part = read_slice(transaction, session_id, mark)
    numbered = [(seq, item) for seq, item in part.with_numbers() if seq > after]
    if newest is not None:
        numbered = numbered[max(0, len(numbered) - newest) :]
    if not numbered:
        read_session(transaction, session_id)  # raises for an unknown session
    return [_entry(seq, item) for seq, item in numbered]


def read_reduced_history(
    transaction: Transaction, session_id: str, reduce: Callable[[Message], Message]
) -> Iterator[AnyEntry]:
    """Yield the entries of a session in order, each message as `reduce` returns it.

    `reduce` saves memory: the messages of a session take five times the memory of their JSON.
    """
    part = read_slice(transaction, session_id, reduce=reduce)
    return (_entry(seq, item) for seq, item in part.with_numbers())


def read_history_before(
    transaction: Transaction, session_id: str, before: int, count: int
) -> list[AnyEntry]:
    """Return the last `count` entries of a session before a sequence number, in order."""
    part = read_slice_before(transaction, session_id, before, count)
    numbered = [(seq, item) for seq, item in part.with_numbers() if seq < before]
    return [_entry(seq, item) for seq, item in numbered[max(0, len(numbered) - count) :]]


def _entry(seq: int, item: Message | str) -> AnyEntry:
    if isinstance(item, str):
        return decode_entry(item)
    return _make_entry(
        created_at=item.created_at,
        id=item.id,
        message=item,
        seq=seq,
        session_id=item.session_id,
    )


def read_message(transaction: Transaction, session_id: str, message_id: str) -> Message:
    """Return one message of a session."""
    rows = transaction.run(_MESSAGE, (message_id, session_id))
    if not rows:
        raise UnknownMessageError(session_id, message_id)
    return from_row(rows[0][:7], rows[0][7])


def read_tool_calls(
    transaction: Transaction, session_id: str, status: str | None
) -> list[ToolCallRecord]:
    """Return the tool calls of a session, all or those with one status."""
    sql = f"SELECT {CALL_COLUMNS} FROM tool_calls WHERE session_id = ?"  # noqa: S608 - no input
    values = [session_id]
    if status is not None:
        sql, values = f"{sql} AND status = ?", [session_id, status]
    return [call_record(row) for row in transaction.run(f"{sql} ORDER BY created_at, id", values)]


class Overview(Struct, frozen=True, kw_only=True):
    """The summary of a session for lists, read without loading its messages."""

    session: SessionRecord
    title: str
    """The title that the user set, or the first prompt on one line; empty if there is none."""
    model: str | None
    """The active model, or the model of the last response."""
    message_count: int
    """The number of messages without system and developer messages."""
    cost_usd: Decimal
    tags: tuple[str, ...] = ()
    """The labels that the user gave the session."""


LABEL_KIND = "session.label"
"""The kind of the sidecar entry with the title or the tags that a user gives a session."""


class _Label(Struct):
    title: str | None = None
    tags: tuple[str, ...] | None = None


class _LabelEntry(Struct):
    data: _Label
    kind: str = ""


class _Usage(Struct):
    cost_usd: Decimal = Decimal(0)


class _ResponseMetadata(Struct):
    """The part of a response's metadata that a list needs."""

    model: str | None = None
    usage: _Usage | None = None


class _PricedEntry(Struct):
    """The parts of a journal entry that may have a cost: a summary, a failed model call."""

    data: _ResponseMetadata | None = None
    details: _ResponseMetadata | None = None


_read_metadata = msgspec.json.Decoder(_ResponseMetadata).decode
_read_entry = msgspec.json.Decoder(_PricedEntry).decode
_read_label = msgspec.json.Decoder(_LabelEntry).decode


def read_overviews(
    transaction: Transaction, limit: int, workspace_path: str | None
) -> list[Overview]:
    """Return overviews of the sessions that changed last; of one workspace, or of all."""
    records = read_sessions(transaction, limit, workspace_path)
    return [_overview(transaction, record) for record in records]


def _overview(transaction: Transaction, record: SessionRecord) -> Overview:
    key = (record.id,)
    first = transaction.run(_FIRST_USER_MESSAGE, key)
    responses = [_read_metadata(row[0]) for row in transaction.run(_RESPONSE_METADATA, key)]
    entries = [row[0] for row in transaction.run(_OTHER_ENTRIES, key)]
    others = [part for text in entries for part in _priced(text)]
    label = _label(entries)
    models = [response.model for response in responses if response.model]
    # Summaries and failed calls have a cost, but are not messages.
    costs = (part.usage.cost_usd for part in (*responses, *others) if part.usage)
    return Overview(
        session=record,
        title=label.title or (_first_title(transaction, record.id, first[0][0]) if first else ""),
        model=record.active_model or (models[-1] if models else None),
        message_count=transaction.run(_MESSAGE_COUNT, key)[0][0],
        cost_usd=sum(costs, Decimal(0)),
        tags=label.tags or (),
    )


def _first_title(transaction: Transaction, session_id: str, message_id: str) -> str:
    return title_of(read_message(transaction, session_id, message_id).content)


def _label(entries: Sequence[str]) -> _Label:
    """Return the title and the tags that were set last."""
    label = _Label()
    for text in entries:
        if f'"{LABEL_KIND}"' not in text:
            continue
        try:
            entry = _read_label(text)
        except msgspec.ValidationError:
            continue
        if entry.kind == LABEL_KIND:
            label = _Label(
                title=label.title if entry.data.title is None else entry.data.title,
                tags=label.tags if entry.data.tags is None else entry.data.tags,
            )
    return label


def _priced(text: str) -> list[_ResponseMetadata]:
    # Entries of other programs may have any value under these keys; most have no cost.
    if '"cost_usd"' not in text:
        return []
    try:
        entry = _read_entry(text)
    except msgspec.ValidationError:
        return []
    return [part for part in (entry.data, entry.details) if part is not None]


def title_of(content: tuple[ContentBlock, ...]) -> str:
    r"""Return a title for a conversation from its first prompt: the text on one line.

    >>> title_of((TextBlock("# Why is\nthe sky blue?"),))
    'Why is the sky blue?'
    """
    texts = [block.text for block in content if isinstance(block, TextBlock)]
    without_files = (text for text in texts if not _ATTACHED_FILE.match(text))
    text = next(without_files, None) or "".join(texts[:1])
    lines = (_MARKDOWN_PREFIX.sub("", line) for line in text[: 4 * TITLE_LENGTH].splitlines())
    title = " ".join(word for line in lines for word in line.split())
    if not title:
        return next((_media_title(block) for block in content), "")
    return title if len(title) <= TITLE_LENGTH else f"{title[: TITLE_LENGTH - 1]}…"


def _media_title(block: ContentBlock) -> str:
    match block:
        case ImageBlock():
            return "an image"
        case DocumentBlock():
            return block.name or "a document"
        case _:
            return "no text"
