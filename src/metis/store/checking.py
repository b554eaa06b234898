"""Checking: whether what is stored still keeps the rules, and whether its tables agree."""

from collections.abc import Iterator

from metis.canonical.blocks import ToolResultBlock, ToolUseBlock
from metis.canonical.errors import MetisError
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageStatus
from metis.canonical.session_rules import validate_session
from metis.store.database import Transaction
from metis.store.entries import MessageEntry
from metis.store.reading import read_history

_MOST = 1000


def problems_of(transaction: Transaction) -> list[str]:
    """Every problem of every session, up to a thousand."""
    found: list[str] = []
    for (session_id,) in transaction.run("SELECT id FROM sessions ORDER BY id"):
        for problem in _session_problems(transaction, session_id):
            found.append(f"session {session_id}: {problem}")
            if len(found) >= _MOST:
                return found
    found += _strays(transaction)
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
    messages = [entry.message for entry in entries if isinstance(entry, MessageEntry)]
    yield from map(str, validate_session(messages))
    yield from _call_problems(transaction, session_id, messages)


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


def _strays(transaction: Transaction) -> list[str]:
    """Messages that no journal names."""
    sql = (
        "SELECT m.id FROM messages m WHERE NOT EXISTS (SELECT 1 FROM journal j "
        "WHERE j.session_id = m.session_id AND j.message_id = m.id) LIMIT 100"
    )
    count = transaction.run(
        "SELECT (SELECT count(*) FROM messages) - "
        "(SELECT count(*) FROM journal WHERE message_id IS NOT NULL)"
    )[0][0]
    return [f"message {row[0]} has no place" for row in transaction.run(sql)] if count else []
