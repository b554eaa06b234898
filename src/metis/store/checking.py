"""Checking: whether what is stored still keeps the rules, and whether its tables agree."""

from collections.abc import Iterator, Sequence

from metis.canonical.blocks import ToolResultBlock, ToolUseBlock
from metis.canonical.errors import MetisError
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageStatus
from metis.canonical.session_rules import validate_session
from metis.store.database import Transaction
from metis.store.entries import AnyEntry, MessageEntry
from metis.store.reading import read_history
from metis.store.rows import to_micros
from metis.store.tables import NEVER

_MOST = 1000


def problems_of(transaction: Transaction) -> list[str]:
    """Every problem of every session, up to a thousand."""
    found: list[str] = []
    for (session_id,) in transaction.run("SELECT id FROM sessions ORDER BY id"):
        for problem in _session_problems(transaction, session_id):
            found.append(f"session {session_id}: {problem}")
            if len(found) >= _MOST:
                return found
    return found


def _session_problems(transaction: Transaction, session_id: str) -> Iterator[str]:
    try:
        entries = read_history(transaction, session_id)
    except MetisError as error:
        yield str(error)
        return
    numbers = [entry.seq for entry in entries]
    if numbers != list(range(1, len(numbers) + 1)):
        yield "the entries are not numbered one by one"
    yield from _place_problems(transaction, session_id, entries)
    messages = [entry.message for entry in entries if isinstance(entry, MessageEntry)]
    yield from map(str, validate_session(messages))
    yield from _call_problems(transaction, session_id, messages)


def _place_problems(
    transaction: Transaction, session_id: str, entries: Sequence[AnyEntry]
) -> Iterator[str]:
    """Where the journal does not say what the messages do."""
    told: dict[int, tuple[str | None, int]] = {}
    latest_at = NEVER
    for entry in entries:
        is_message = isinstance(entry, MessageEntry)
        if is_message:
            latest_at = max(latest_at, to_micros(entry.created_at))
        told[entry.seq] = (entry.id if is_message else None, latest_at)
    sql = "SELECT seq, message_id, latest_at FROM journal WHERE session_id = ? ORDER BY seq"
    for seq, message_id, latest in transaction.run(sql, (session_id,)):
        if told.get(seq) != (message_id, latest):
            yield f"number {seq}: the journal says {message_id}, the messages {told.get(seq)}"
            return


def _call_problems(
    transaction: Transaction, session_id: str, messages: list[Message]
) -> Iterator[str]:
    """Where `tool_calls` and the messages disagree."""
    answers: dict[str, str] = {}
    calls: dict[str, str] = {}
    for message in messages:
        if message.metadata.status == MessageStatus.PARTIAL:
            continue
        for block in message.content:
            if isinstance(block, ToolUseBlock) and message.role == Role.ASSISTANT:
                calls[block.id] = message.id
            elif isinstance(block, ToolResultBlock) and message.role == Role.TOOL:
                answers[block.tool_use_id] = message.id
    sql = "SELECT id, message_id, result_message_id FROM tool_calls WHERE session_id = ?"
    rows = {row[0]: (row[1], row[2]) for row in transaction.run(sql, (session_id,))}
    told = {call: (message, answers.get(call)) for call, message in calls.items()}
    for call in sorted({*rows, *told}):
        if rows.get(call) != told.get(call):
            yield f"call {call}: the table says {rows.get(call)}, the messages {told.get(call)}"
