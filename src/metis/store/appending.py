"""Appending: a message with everything that follows from it: its place, its calls, its answers."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from metis.canonical.blocks import ToolResultBlock, ToolUseBlock
from metis.canonical.codec import Parts
from metis.canonical.errors import InvalidMessageError, MetisError
from metis.canonical.ids import is_ulid, new_ulid_after
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageStatus, OutcomeStatus
from metis.canonical.problem import Problem
from metis.canonical.rules import check_parts
from metis.canonical.value import made
from metis.store.database import Transaction
from metis.store.entries import MessageEntry
from metis.store.rows import MessageRow, to_row, whole_of
from metis.store.tables import Head, Tables
from metis.wire.spelling import provider_tool_ids

_make_entry: Callable[..., MessageEntry] = made(MessageEntry)


class Prepared(NamedTuple):
    """A message that keeps the rules, ready to be written."""

    message: Message
    row: MessageRow
    whole: str | None
    """All of the message, where the columns cannot hold it."""
    calls: Sequence[ToolUseBlock]
    results: Sequence[ToolResultBlock]
    size: int
    """How many bytes its texts have."""


def prepare(message: Message) -> Prepared:
    """Check a message and turn it into rows.

    Raises:
        InvalidMessageError: the message breaks rules of the canonical form.
    """
    return _prepared(message, check_parts(message))


def _prepared(message: Message, parts: Parts) -> Prepared:
    calls: Sequence[ToolUseBlock] = ()
    results: Sequence[ToolResultBlock] = ()
    if message.metadata.status is not MessageStatus.PARTIAL:
        if message.role is Role.ASSISTANT:
            calls = [block for block in message.content if type(block) is ToolUseBlock]
        elif message.role is Role.TOOL:
            results = [block for block in message.content if type(block) is ToolResultBlock]
    size = len(parts.content) + len(parts.metadata)
    return Prepared(message, to_row(message, parts), whole_of(message), calls, results, size)


class Append:
    """Messages to be appended together, all or none."""

    def __init__(self, prepared: Sequence[Prepared], *, renew_ids: bool = False) -> None:
        self._prepared = prepared
        self._renew_ids = renew_ids
        self.session_ids = [one.row.session_id for one in prepared]
        self.size = sum([one.size for one in prepared])

    def write(self, tables: Tables) -> list[MessageEntry]:
        """Give each message its place and write what follows from it."""
        return [self._append(one, tables) for one in self._prepared]

    def _append(self, one: Prepared, tables: Tables) -> MessageEntry:
        session_id = one.row.session_id
        head = tables.head(session_id)
        if one.row.id <= head.newest_id:
            one = self._renewed(one, head)
        message, row = one.message, one.row
        previous_id, seq = head.newest_id, head.seq + 1
        if message.metadata.parents:
            add_parents(one, tables)
        head.seq, head.newest_id = seq, row.id
        tables.messages.append(row)
        tables.journal.append((session_id, seq, row.id, one.whole))
        if message.metadata.status is MessageStatus.PARTIAL:
            tables.opened.append((row.id, session_id))
        elif one.calls or one.results:
            add_calls(one, tables)
        if head.bookmarks:
            _move_bookmarks(message, previous_id, head, tables)
        tables.touch(session_id, head)
        return _make_entry(
            created_at=message.created_at,
            id=row.id,
            message=message,
            seq=seq,
            session_id=session_id,
        )

    def _renewed(self, one: Prepared, head: Head) -> Prepared:
        if not (self._renew_ids and is_ulid(head.newest_id)):
            raise _invalid(one, "$.id", "M-165", f"it does not come after {head.newest_id!r}")
        parts = Parts(one.row.content_json.encode(), one.row.metadata_json.encode())
        return _prepared(replace(one.message, id=new_ulid_after(head.newest_id)), parts)

    def explain(self, transaction: Transaction, *, is_there: bool = False) -> MetisError | None:
        """Which message did not fit to what is there, and how."""
        own = self._own_calls()
        for one in self._prepared:
            problems = [] if is_there else list(_id_problems(one, transaction))
            problems += _problems(one, transaction, own)
            if problems:
                return InvalidMessageError(f"message {one.row.id} does not fit", problems)
        return None

    def _own_calls(self) -> set[str]:
        return {call.id for one in self._prepared for call in one.calls}


def add_parents(one: Prepared, tables: Tables) -> None:
    """Write which messages a message follows; they must be there already, so no ring can close."""
    row = one.row
    parents = one.message.metadata.parents
    waiting = {values[0] for values in tables.messages if values[1] == row.session_id}
    for position, parent in enumerate(parents):
        if parent not in waiting and not _has_message(tables, row.session_id, parent, row.id):
            path = f"$.metadata.parents[{position}]"
            raise _invalid(one, path, "G-026", f"no earlier message has the id {parent!r}")
    tables.parents += [
        (row.id, position, parent, row.session_id) for position, parent in enumerate(parents)
    ]


def _has_message(tables: Tables, session_id: str, message_id: str, own_id: str) -> bool:
    sql = "SELECT 1 FROM messages WHERE id = ? AND session_id = ? AND id <> ?"
    return bool(tables.run(sql, (message_id, session_id, own_id)))


def add_calls(one: Prepared, tables: Tables) -> None:
    """Write the calls of a message, and that others are answered by it."""
    row, metadata = one.row, one.message.metadata
    if one.calls:
        theirs = provider_tool_ids(one.message)
        is_complete = metadata.status == MessageStatus.COMPLETE
        status = "pending" if is_complete else "cancelled"
        ended = None if is_complete else row.created_at
        provider = metadata.provider
        for call in one.calls:
            their = theirs.get(call.id)
            at = row.created_at
            values = (
                call.id,
                row.session_id,
                row.id,
                call.name,
                status,
                their,
                provider,
                at,
                ended,
            )
            tables.calls.append(values)
            if their is not None:
                tables.ids.append((row.session_id, call.id, provider or "", their))
    for result in one.results:
        status = _status_of(result, one.message)
        values = (row.id, status, row.created_at, result.tool_use_id, row.session_id)
        tables.results.append(values)


def _status_of(result: ToolResultBlock, message: Message) -> str:
    outcome = message.metadata.outcome
    if outcome is not None and outcome.status == OutcomeStatus.ABORTED:
        return "cancelled"
    if result.is_error or (outcome is not None and outcome.status == OutcomeStatus.ERROR):
        return "failed"
    return "cancelled" if message.metadata.status == MessageStatus.CANCELLED else "succeeded"


def _move_bookmarks(message: Message, previous_id: str, head: Head, tables: Tables) -> None:
    """A bookmark goes with its thread: to whatever follows the message that it names."""
    parents = message.metadata.parents
    followed = parents[-1] if parents else previous_id
    for name, at in head.bookmarks.items():
        if at == followed:
            head.bookmarks[name] = message.id
            tables.bookmarks.append((message.session_id, name, message.id))


def _invalid(one: Prepared, path: str, rule: str, text: str) -> InvalidMessageError:
    problem = Problem(path=path, rule=rule, text=text)
    return InvalidMessageError(f"message {one.row.id} does not fit", [problem])


def _id_problems(one: Prepared, transaction: Transaction) -> Iterator[Problem]:
    sql = "SELECT session_id FROM messages WHERE id = ?"
    for (session_id,) in transaction.run(sql, (one.row.id,)):
        text = f"a message of session {session_id!r} has this id already"
        yield Problem(path="$.id", rule="M-164", text=text)


def _problems(one: Prepared, transaction: Transaction, own: set[str]) -> Iterator[Problem]:
    """What of a message is at odds with the calls that are there."""
    for place, block in enumerate(one.message.content):
        if isinstance(block, ToolUseBlock) and one.calls:
            yield from _call_problems(block, one.row, f"$.content[{place}].id", transaction)
        elif isinstance(block, ToolResultBlock) and one.results and block.tool_use_id not in own:
            path = f"$.content[{place}].tool_use_id"
            yield from _result_problems(block, one.row, path, transaction)


def _call_problems(
    call: ToolUseBlock, row: MessageRow, path: str, transaction: Transaction
) -> Iterator[Problem]:
    for (owner,) in transaction.run("SELECT session_id FROM tool_calls WHERE id = ?", (call.id,)):
        if owner == row.session_id:
            text = f"{call.id!r} was used before; a retry gets a new id"
            yield Problem(path=path, rule="M-141", text=text)
        else:
            text = f"{call.id!r} belongs to session {owner!r}"
            yield Problem(path=path, rule="M-139", text=text)


def _result_problems(
    result: ToolResultBlock, row: MessageRow, path: str, transaction: Transaction
) -> Iterator[Problem]:
    call = result.tool_use_id
    sql = "SELECT session_id, result_message_id FROM tool_calls WHERE id = ?"
    found = transaction.run(sql, (call,))
    if not found:
        yield Problem(path=path, rule="M-138", text=f"no earlier call has the id {call!r}")
    for owner, answer in found:
        if owner != row.session_id:
            text = f"{call!r} belongs to session {owner!r}"
            yield Problem(path=path, rule="M-139", text=text)
        elif answer is not None:
            text = f"{call!r} was answered by message {answer!r} already"
            yield Problem(path=path, rule="M-140", text=text)
