"""Write jobs that add to a session.

append messages, finish partial messages, record journal entries.
"""

from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from metis.canonical.blocks import ToolResultBlock, ToolUseBlock
from metis.canonical.codec import EncodedParts
from metis.canonical.errors import (
    InvalidMessageError,
    InvalidValueError,
    MetisError,
    Problem,
    StoreError,
    UnknownMessageError,
)
from metis.canonical.ids import is_ulid, new_ulid_after
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageStatus, OutcomeStatus
from metis.canonical.rules import check_and_encode
from metis.canonical.value import raw_constructor
from metis.store.database import Transaction
from metis.store.entries import (
    AnyEntry,
    BookmarkEntry,
    CompactionEntry,
    MessageEntry,
    RetractionEntry,
    RewindEntry,
    SwapEntry,
    encode_entry,
    place_entry,
)
from metis.store.queries import read_message
from metis.store.records import MessageRow, full_json_of, to_row
from metis.store.sequence import rewrite_journal
from metis.store.tables import TOUCH_INTERVAL_US, SessionHead, Tables
from metis.store.writer import WriteJob
from metis.wire.original_form import provider_tool_ids

_MARK_EVERY = 64
# To look up a member of an enumeration takes ten times as long as to look up a name.
_ASSISTANT, _TOOL, _USER = Role.ASSISTANT, Role.TOOL, Role.USER
_PARTIAL, _COMPLETE = MessageStatus.PARTIAL, MessageStatus.COMPLETE
_make_entry: Callable[..., MessageEntry] = raw_constructor(MessageEntry)


class PreparedMessage(Struct, frozen=True, gc=False):
    """A message that keeps the rules, ready to be written."""

    message: Message
    row: MessageRow
    created_at: int
    """When it was made, in microseconds."""
    full_json: str | None
    """All of the message, where the columns cannot hold it."""
    calls: Sequence[ToolUseBlock]
    results: Sequence[ToolResultBlock]
    size: int
    """How many bytes its texts have."""


def prepare_message(message: Message) -> PreparedMessage:
    """Check a message and turn it into rows.

    Raises:
        InvalidMessageError: the message breaks rules of the canonical form.
    """
    return _prepared(message, check_and_encode(message))


def _prepared(message: Message, parts: EncodedParts) -> PreparedMessage:
    calls: Sequence[ToolUseBlock] = ()
    results: Sequence[ToolResultBlock] = ()
    role = message.role
    if role is not _USER and message.metadata.status is not _PARTIAL:
        if role is _ASSISTANT:
            calls = [block for block in message.content if type(block) is ToolUseBlock]
        elif role is _TOOL:
            results = [block for block in message.content if type(block) is ToolResultBlock]
    size = len(parts.content) + len(parts.metadata)
    row = to_row(message, parts)
    return PreparedMessage(message, row, row[5], full_json_of(message), calls, results, size)


class AppendJob(WriteJob):
    """Messages to be appended together, all or none."""

    def __init__(self, prepared: Sequence[PreparedMessage], *, renew_ids: bool = False) -> None:
        self._prepared = prepared
        self._renew_ids = renew_ids
        if len(prepared) == 1:
            self.session_ids = (prepared[0].message.session_id,)
            self.size = prepared[0].size
        else:
            self.session_ids = [one.message.session_id for one in prepared]
            self.size = sum([one.size for one in prepared])

    def write(self, tables: Tables) -> list[MessageEntry]:
        """Give each message its place and write what follows from it."""
        if len(self._prepared) == 1:  # nearly always, and quicker than a loop
            return [self._append(self._prepared[0], tables)]
        return [self._append(one, tables) for one in self._prepared]

    def _append(self, one: PreparedMessage, tables: Tables) -> MessageEntry:
        message = one.message
        session_id = message.session_id
        head = tables.heads.get(session_id) or tables.head(session_id)
        if message.id <= head.newest_id:
            one = self._renewed(one, head)
            message = one.message
        metadata = message.metadata
        if metadata.parents:
            add_parents(one, tables)
        if head.bookmarks:
            _move_bookmarks(message, head, tables)
        tables.messages.append(one.row)
        seq = _place(one, head, tables)
        if metadata.status is _PARTIAL:
            tables.open_messages.append((message.id, session_id))
        elif one.calls or one.results:
            add_calls(one, tables)
        if tables.now_us - head.touched_us >= TOUCH_INTERVAL_US:
            tables.touch(session_id, head)
        return _make_entry(
            created_at=message.created_at,
            id=message.id,
            message=message,
            seq=seq,
            session_id=session_id,
        )

    def _renewed(self, one: PreparedMessage, head: SessionHead) -> PreparedMessage:
        if not (self._renew_ids and is_ulid(head.newest_id)):
            raise _invalid(one, "$.id", "M-165", f"it does not come after {head.newest_id!r}")
        parts = EncodedParts(one.row[3].encode(), one.row[4].encode())
        return _prepared(replace(one.message, id=new_ulid_after(head.newest_id)), parts)

    def explain(self, transaction: Transaction, *, is_there: bool = False) -> MetisError | None:
        """Which message did not fit to what is there, and how."""
        own = self._own_calls()
        for one in self._prepared:
            problems = [] if is_there else list(_id_problems(one, transaction))
            problems += _problems(one, transaction, own)
            if problems:
                return InvalidMessageError(f"message {one.message.id} does not fit", problems)
        return None

    def _own_calls(self) -> set[str]:
        return {call.id for one in self._prepared for call in one.calls}


def _place(one: PreparedMessage, head: SessionHead, tables: Tables) -> int:
    """Give a message its number, and write it down where its row alone does not tell it."""
    message = one.message
    head.newest_id = message.id
    head.seq = seq = head.seq + 1
    is_told = seq - head.last_journaled_seq < _MARK_EVERY and one.full_json is None
    if one.created_at > head.latest_at:
        head.latest_at = one.created_at
    else:
        is_told = False
    if not is_told or message.metadata.status is _PARTIAL:
        head.last_journaled_seq = seq
        values = (message.session_id, seq, message.id, one.full_json, head.latest_at)
        tables.journal.append(values)
    return seq


def add_parents(one: PreparedMessage, tables: Tables) -> None:
    """Write which messages a message follows; they must be there already, so no ring can close."""
    message_id, session_id = one.message.id, one.message.session_id
    parents = one.message.metadata.parents
    waiting = {values[0] for values in tables.messages if values[1] == session_id}
    for position, parent in enumerate(parents):
        if parent not in waiting and not _has_message(tables, session_id, parent, message_id):
            path = f"$.metadata.parents[{position}]"
            raise _invalid(one, path, "G-026", f"no earlier message has the id {parent!r}")
    tables.parents += [
        (message_id, position, parent, session_id) for position, parent in enumerate(parents)
    ]


def _has_message(tables: Tables, session_id: str, message_id: str, own_id: str) -> bool:
    sql = "SELECT 1 FROM messages WHERE id = ? AND session_id = ? AND id <> ?"
    return bool(tables.run(sql, (message_id, session_id, own_id)))


def add_calls(one: PreparedMessage, tables: Tables) -> None:
    """Write the calls of a message, and that others are answered by it."""
    message, at = one.message, one.created_at
    message_id, session_id = message.id, message.session_id
    for result in one.results:
        values = (message_id, _status_of(result, message), at, result.tool_use_id, session_id)
        tables.results.append(values)
    if not one.calls:
        return
    theirs = provider_tool_ids(message)
    is_complete = message.metadata.status is _COMPLETE
    status, ended = ("pending", None) if is_complete else ("cancelled", at)
    provider = message.metadata.provider
    for call in one.calls:
        their = theirs.get(call.id)
        row = (call.id, session_id, message_id, call.name, status, their, provider, at, ended)
        tables.calls.append(row)
        if their is not None:
            tables.ids.append((session_id, call.id, provider or "", their))


def _status_of(result: ToolResultBlock, message: Message) -> str:
    outcome = message.metadata.outcome
    if outcome is not None and outcome.status == OutcomeStatus.ABORTED:
        return "cancelled"
    if result.is_error or (outcome is not None and outcome.status == OutcomeStatus.ERROR):
        return "failed"
    return "cancelled" if message.metadata.status == MessageStatus.CANCELLED else "succeeded"


def _move_bookmarks(message: Message, head: SessionHead, tables: Tables) -> None:
    """A bookmark goes with its thread: to whatever follows the message that it names."""
    parents = message.metadata.parents
    followed = parents[-1] if parents else head.newest_id
    for name, at in head.bookmarks.items():
        if at == followed:
            head.bookmarks[name] = message.id
            tables.bookmarks.append((message.session_id, name, message.id))


def _invalid(one: PreparedMessage, path: str, rule: str, text: str) -> InvalidMessageError:
    problem = Problem(path=path, rule=rule, text=text)
    return InvalidMessageError(f"message {one.message.id} does not fit", [problem])


def _id_problems(one: PreparedMessage, transaction: Transaction) -> Iterator[Problem]:
    sql = "SELECT session_id FROM messages WHERE id = ?"
    for (session_id,) in transaction.run(sql, (one.message.id,)):
        text = f"a message of session {session_id!r} has this id already"
        yield Problem(path="$.id", rule="M-164", text=text)


def _problems(one: PreparedMessage, transaction: Transaction, own: set[str]) -> Iterator[Problem]:
    """What of a message is at odds with the calls that are there."""
    session_id = one.message.session_id
    for place, block in enumerate(one.message.content):
        if isinstance(block, ToolUseBlock) and one.calls:
            yield from _call_problems(block, session_id, f"$.content[{place}].id", transaction)
        elif isinstance(block, ToolResultBlock) and one.results and block.tool_use_id not in own:
            path = f"$.content[{place}].tool_use_id"
            yield from _result_problems(block, session_id, path, transaction)


def _call_problems(
    call: ToolUseBlock, session_id: str, path: str, transaction: Transaction
) -> Iterator[Problem]:
    for (owner,) in transaction.run("SELECT session_id FROM tool_calls WHERE id = ?", (call.id,)):
        if owner == session_id:
            text = f"{call.id!r} was used before; a retry gets a new id"
            yield Problem(path=path, rule="M-141", text=text)
        else:
            text = f"{call.id!r} belongs to session {owner!r}"
            yield Problem(path=path, rule="M-139", text=text)


def _result_problems(
    result: ToolResultBlock, session_id: str, path: str, transaction: Transaction
) -> Iterator[Problem]:
    call = result.tool_use_id
    sql = "SELECT session_id, result_message_id FROM tool_calls WHERE id = ?"
    found = transaction.run(sql, (call,))
    if not found:
        yield Problem(path=path, rule="M-138", text=f"no earlier call has the id {call!r}")
    for owner, answer in found:
        if owner != session_id:
            text = f"{call!r} belongs to session {owner!r}"
            yield Problem(path=path, rule="M-139", text=text)
        elif answer is not None:
            text = f"{call!r} was answered by message {answer!r} already"
            yield Problem(path=path, rule="M-140", text=text)


_PLACED = "UPDATE journal SET entry_json = ? WHERE session_id = ? AND message_id = ?"
_UPDATE = (
    "UPDATE messages SET role = ?, content_json = ?, metadata_json = ?, created_at = ?, "
    "schema_version = ? WHERE id = ?"
)


class SaveJob(WriteJob):
    """A message that is in the store already, in its new form."""

    def __init__(self, prepared: PreparedMessage) -> None:
        self._prepared = prepared
        self.session_ids = [prepared.message.session_id]
        self.size = prepared.size

    def write(self, tables: Tables) -> Message:
        """Write the new form, if the old one was partial or says the same."""
        one = self._prepared
        message_id, session_id = one.message.id, one.message.session_id
        tables.head(session_id)
        old = read_message(tables, session_id, message_id)
        was_open = old.metadata.status == MessageStatus.PARTIAL
        if not was_open and old != one.message:
            raise _finished(message_id)
        tables.change(_UPDATE, (*one.row[2:], message_id))
        self._place(old, tables)
        if was_open:
            self._finish(old, tables)
        return one.message

    def _place(self, old: Message, tables: Tables) -> None:
        """Keep what the columns cannot hold, and the place if the row no longer tells it."""
        one = self._prepared
        values = (one.full_json, one.message.session_id, one.message.id)
        if one.message.created_at != old.created_at:
            rewrite_journal(tables, one.message.session_id)
        if not tables.change(_PLACED, values) and one.full_json is not None:
            rewrite_journal(tables, one.message.session_id)
            tables.change(_PLACED, values)

    def _finish(self, old: Message, tables: Tables) -> None:
        one = self._prepared
        if one.message.metadata.parents != old.metadata.parents:
            tables.change("DELETE FROM message_parents WHERE message_id = ?", (one.message.id,))
            add_parents(one, tables)
        if one.message.metadata.status != MessageStatus.PARTIAL:
            tables.change("DELETE FROM open_messages WHERE message_id = ?", (one.message.id,))
            add_calls(one, tables)

    def explain(self, transaction: Transaction) -> MetisError | None:
        """Which of its calls or results did not fit to what is there."""
        return AppendJob([self._prepared]).explain(transaction, is_there=True)


def _finished(message_id: str) -> StoreError:
    hint = "what changes a conversation afterwards is an entry behind it"
    return StoreError(f"message {message_id} is finished and cannot be rewritten", hint=hint)


_ID_LENGTHS = (25, 26)
_LONGEST_NAME = 200


class RecordJob(WriteJob):
    """An entry to be put at the end of its session."""

    def __init__(self, entry: AnyEntry) -> None:
        if isinstance(entry, MessageEntry):
            raise InvalidValueError("messages are appended, not recorded", path="$.type")
        if isinstance(entry, BookmarkEntry):
            check_bookmark_name(entry.name)
        self._entry = entry
        self.session_ids = [entry.session_id]

    def write(self, tables: Tables) -> AnyEntry:
        """Give the entry its place and write what follows from it."""
        entry = self._entry
        head = tables.head(entry.session_id)
        for message_id in referenced_message_ids(entry):
            _check_message(tables, entry.session_id, message_id)
        placed = place_entry(entry, session_id=entry.session_id, seq=head.seq + 1)
        if isinstance(placed, SwapEntry):
            sql = "UPDATE sessions SET active_model = ? WHERE id = ?"
            tables.change(sql, (placed.to_model, placed.session_id))
        elif isinstance(placed, BookmarkEntry):
            _set_bookmark(placed, head, tables)
        head.seq = head.last_journaled_seq = head.seq + 1
        text = encode_entry(placed).decode()
        tables.journal.append((placed.session_id, head.seq, None, text, head.latest_at))
        tables.touch(placed.session_id, head)
        return placed


def referenced_message_ids(entry: AnyEntry) -> Iterator[str]:
    """The messages that an entry rests on."""
    match entry:
        case CompactionEntry():
            named = (entry.first_kept_id, entry.head_id)
        case RewindEntry():
            named = (entry.to_id, entry.head_id)
        case RetractionEntry() | BookmarkEntry():
            named = (entry.message_id,)
        case _:
            named = ()
    return (each for each in named if each is not None)


def check_bookmark_name(name: str) -> None:
    """Refuse names of bookmarks that nobody could read, or that look like an id (G-044, G-045)."""
    if not name.strip() or not name.isprintable() or len(name) > _LONGEST_NAME:
        raise InvalidValueError(f"{name!r} is no name for a bookmark", path="$.name")
    if is_ulid(name.upper()) or (len(name) in _ID_LENGTHS and name.isalnum()):
        raise InvalidValueError(f"{name!r} looks like an id", path="$.name")


def _check_message(tables: Tables, session_id: str, message_id: str) -> None:
    sql = "SELECT 1 FROM messages WHERE id = ? AND session_id = ?"
    if not tables.run(sql, (message_id, session_id)):
        raise UnknownMessageError(session_id, message_id)


def _set_bookmark(entry: BookmarkEntry, head: SessionHead, tables: Tables) -> None:
    if entry.message_id is None:
        head.bookmarks.pop(entry.name, None)
        sql = "DELETE FROM bookmarks WHERE session_id = ? AND name = ?"
        tables.change(sql, (entry.session_id, entry.name))
        return
    head.bookmarks[entry.name] = entry.message_id
    tables.bookmarks.append((entry.session_id, entry.name, entry.message_id))
