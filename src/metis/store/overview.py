"""Overview: what a list of conversations tells of each, read without opening any of them."""

import re
from decimal import Decimal

import msgspec
from msgspec import Struct

from metis.canonical.blocks import ContentBlock, DocumentBlock, ImageBlock, TextBlock
from metis.store.database import Transaction
from metis.store.reading import read_message, read_sessions
from metis.store.records import SessionRecord

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
