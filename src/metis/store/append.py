"""Write jobs that add to a session: append messages, finish partial messages, record entries."""

from collections.abc import Callable, Iterator, Sequence
from zlib import crc32

from msgspec import Struct
from msgspec.structs import replace

from metis.canonical.blocks import ToolResultBlock, ToolUseBlock
from metis.canonical.codec import EncodedParts, verified_parts
from metis.canonical.errors import (
    InvalidMessageError,
    InvalidValueError,
    MetisError,
    Problem,
    StoreError,
    UnknownMessageError,
)
from metis.canonical.fast import is_surely_valid
from metis.canonical.ids import is_ulid, new_ulid_after
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageStatus, OutcomeStatus
from metis.canonical.rules import as_failed, check
from metis.canonical.value import canonical_bytes, raw_constructor
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
from metis.store.records import MessageRow, entry_key, full_json_of, message_digest, to_row
from metis.store.sequence import rewrite_journal
from metis.store.tables import TOUCH_INTERVAL_US, SessionHead, Tables
from metis.store.threads import bookmark_problem
from metis.store.writer import WriteJob
from metis.wire.original_form import provider_tool_ids

# A reader of the end of a session reads at most this number of messages too many; see `sequence`.
_JOURNAL_EVERY = 64
_SET_FULL_JSON = "UPDATE journal SET entry_json = ? WHERE session_id = ? AND message_id = ?"
_UPDATE_MESSAGE = (
    "UPDATE messages SET role = ?, content_json = ?, metadata_json = ?, created_at = ?, "
    "schema_version = ? WHERE id = ?"
)
# Every append compares these; a global name is looked up ten times as fast as an enum member.
_ASSISTANT, _TOOL, _USER = Role.ASSISTANT, Role.TOOL, Role.USER
_PARTIAL, _COMPLETE = MessageStatus.PARTIAL, MessageStatus.COMPLETE
_make_entry: Callable[..., MessageEntry] = raw_constructor(MessageEntry)


class PreparedMessage(Struct, frozen=True, gc=False):
    """A valid message with the rows to write for it."""

    message: Message
    row: MessageRow
    created_at: int
    """Creation time in microseconds."""
    full_json: str | None
    """The whole message as JSON, if it has fields without a column."""
    calls: Sequence[ToolUseBlock]
    results: Sequence[ToolResultBlock]
    size: int
    """The bytes of its JSON texts."""
    digest: int
    """The checksum of the row."""


def prepare_message(message: Message) -> PreparedMessage:
    """Check a message and return it with its rows.

    Raises:
        InvalidMessageError: the message breaks rules of the canonical form.
    """
    return _prepare(message, check_and_encode(message))


def check_and_encode(message: Message) -> EncodedParts:
    """Check a message and return the bytes of its content and metadata.

    A partial message is checked as a failed one, because recovery may end it so.

    Raises:
        InvalidMessageError: the message breaks rules of the profile `full`.
    """
    parts = verified_parts(message)
    # Both fast paths answer only for common messages; the full check also explains what is wrong.
    if parts is None or not is_surely_valid(message):
        check(as_failed(message) if message.metadata.status == _PARTIAL else message)
    return parts or EncodedParts(
        canonical_bytes(message.content), canonical_bytes(message.metadata)
    )


def _prepare(message: Message, parts: EncodedParts) -> PreparedMessage:
    calls: Sequence[ToolUseBlock] = ()
    results: Sequence[ToolResultBlock] = ()
    role = message.role
    # A partial message may still change, so its calls and results become rows when it is complete.
    if role is not _USER and message.metadata.status is not _PARTIAL:
        if role is _ASSISTANT:
            calls = [block for block in message.content if type(block) is ToolUseBlock]
        elif role is _TOOL:
            results = [block for block in message.content if type(block) is ToolResultBlock]
    size = len(parts.content) + len(parts.metadata)
    row = to_row(message, parts)
    full_json = full_json_of(message)
    digest = message_digest(
        row[2],
        parts.content,
        parts.metadata,
        row[5],
        None if full_json is None else full_json.encode(),
    )
    return PreparedMessage(message, row, row[5], full_json, calls, results, size, digest)


class AppendJob(WriteJob):
    """Append messages together, all or none."""

    def __init__(
        self,
        prepared: Sequence[PreparedMessage],
        *,
        renew_ids: bool = False,
        stored_parents: frozenset[str] = frozenset(),
    ) -> None:
        """Create a job; `stored_parents` has ids of messages that are already stored."""
        self._prepared = prepared
        self._renew_ids = renew_ids
        self._stored_parents = stored_parents
        if len(prepared) == 1:
            self.session_ids = (prepared[0].message.session_id,)
            self.size = prepared[0].size
        else:
            self.session_ids = [one.message.session_id for one in prepared]
            self.size = sum([one.size for one in prepared])

    def write(self, tables: Tables) -> list[MessageEntry]:
        """Number each message and write it with its calls, results and bookmarks."""
        if len(self._prepared) == 1:  # nearly always, and faster than a loop
            return [self._append(self._prepared[0], tables)]
        return [self._append(one, tables) for one in self._prepared]

    def _append(self, prepared: PreparedMessage, tables: Tables) -> MessageEntry:
        message = prepared.message
        session_id = message.session_id
        head = tables.heads.get(session_id) or tables.head(session_id)
        # Messages are ordered by id, so an id that is not the newest would change the order of
        # stored messages (M-165).
        if message.id <= head.newest_id:
            prepared = self._with_new_id(prepared, head)
            message = prepared.message
        metadata = message.metadata
        if metadata.parents:
            add_parents(prepared, tables, self._stored_parents)
        if head.bookmarks:
            _move_bookmarks(message, head, tables)
        tables.messages.append(prepared.row)
        seq = _assign_number(prepared, head, tables)
        if metadata.status is _PARTIAL:
            # A partial message has no digest, because every save may change it.
            tables.open_messages.append((message.id, session_id))
        else:
            tables.digests.append((session_id, message.id, prepared.digest))
            if prepared.calls or prepared.results:
                add_calls(prepared, tables)
        if tables.now_us - head.touched_us >= TOUCH_INTERVAL_US:
            tables.touch(session_id, head)
        return _make_entry(
            created_at=message.created_at,
            id=message.id,
            message=message,
            seq=seq,
            session_id=session_id,
        )

    def _with_new_id(self, prepared: PreparedMessage, head: SessionHead) -> PreparedMessage:
        if not (self._renew_ids and is_ulid(head.newest_id)):
            text = f"must be greater than {head.newest_id!r}, the newest id of the session"
            raise _invalid(prepared, "$.id", "M-165", text)
        parts = EncodedParts(prepared.row[3].encode(), prepared.row[4].encode())
        return _prepare(replace(prepared.message, id=new_ulid_after(head.newest_id)), parts)

    def explain(self, transaction: Transaction, *, is_stored: bool = False) -> MetisError | None:
        """Return the error for the first message that conflicts with stored rows."""
        batch_calls = {call.id for one in self._prepared for call in one.calls}
        for one in self._prepared:
            problems = [] if is_stored else list(_id_problems(one, transaction))
            problems += _problems(one, transaction, batch_calls)
            if problems:
                return InvalidMessageError(f"message {one.message.id} does not fit", problems)
        return None


def _assign_number(prepared: PreparedMessage, head: SessionHead, tables: Tables) -> int:
    """Assign a sequence number to a message, with a journal row where `sequence` needs one."""
    message = prepared.message
    head.newest_id = message.id
    head.seq = seq = head.seq + 1
    is_implied = seq - head.last_journaled_seq < _JOURNAL_EVERY and prepared.full_json is None
    if prepared.created_at > head.latest_at:
        head.latest_at = prepared.created_at
    else:
        is_implied = False
    if not is_implied or message.metadata.status is _PARTIAL:
        head.last_journaled_seq = seq
        row = (message.session_id, seq, message.id, prepared.full_json, head.latest_at)
        tables.journal.append(row)
    return seq


def add_parents(
    prepared: PreparedMessage, tables: Tables, stored: frozenset[str] = frozenset()
) -> None:
    """Write the parents of a message; they must be stored, so that there can be no cycle."""
    message_id, session_id = prepared.message.id, prepared.message.session_id
    parents = prepared.message.metadata.parents
    if not stored.issuperset(parents):
        # Parents may be in the same batch, whose rows are buffered, so that no query returns them.
        stored = stored.union(values[0] for values in tables.messages if values[1] == session_id)
    sql = "SELECT 1 FROM messages WHERE id = ? AND session_id = ? AND id <> ?"
    for position, parent in enumerate(parents):
        if parent not in stored and not tables.run(sql, (parent, session_id, message_id)):
            path = f"$.metadata.parents[{position}]"
            raise _invalid(prepared, path, "G-026", f"no earlier message has the id {parent!r}")
    tables.parents += [
        (message_id, position, parent, session_id) for position, parent in enumerate(parents)
    ]


def add_calls(prepared: PreparedMessage, tables: Tables) -> None:
    """Write the tool calls of a message, and mark those that its results complete."""
    message, at = prepared.message, prepared.created_at
    message_id, session_id = message.id, message.session_id
    for result in prepared.results:
        values = (message_id, _call_status(result, message), at, result.tool_use_id, session_id)
        tables.results.append(values)
    if not prepared.calls:
        return
    provider_ids = provider_tool_ids(message)
    # Calls of a cancelled or failed response are never run, so they are not pending.
    is_complete = message.metadata.status is _COMPLETE
    status, completed_at = ("pending", None) if is_complete else ("cancelled", at)
    provider = message.metadata.provider
    for call in prepared.calls:
        provider_id = provider_ids.get(call.id)
        tables.calls.append(
            (
                *(call.id, session_id, message_id, call.name, status),
                *(provider_id, provider, at, completed_at),
            )
        )
        if provider_id is not None:
            tables.ids.append((session_id, call.id, provider or "", provider_id))


def _call_status(result: ToolResultBlock, message: Message) -> str:
    outcome = message.metadata.outcome
    if outcome is not None and outcome.status == OutcomeStatus.ABORTED:
        return "cancelled"
    if result.is_error or (outcome is not None and outcome.status == OutcomeStatus.ERROR):
        return "failed"
    return "cancelled" if message.metadata.status == MessageStatus.CANCELLED else "succeeded"


def _move_bookmarks(message: Message, head: SessionHead, tables: Tables) -> None:
    """Move the bookmarks of the message that this one follows, so that they stay at the tip."""
    parents = message.metadata.parents
    predecessor = parents[-1] if parents else head.newest_id
    for name, bookmarked_id in head.bookmarks.items():
        if bookmarked_id == predecessor:
            head.bookmarks[name] = message.id
            tables.bookmarks.append((message.session_id, name, message.id))


def _invalid(prepared: PreparedMessage, path: str, rule: str, text: str) -> InvalidMessageError:
    problem = Problem(path=path, rule=rule, text=text)
    return InvalidMessageError(f"message {prepared.message.id} does not fit", [problem])


def _id_problems(prepared: PreparedMessage, transaction: Transaction) -> Iterator[Problem]:
    sql = "SELECT session_id FROM messages WHERE id = ?"
    for (session_id,) in transaction.run(sql, (prepared.message.id,)):
        text = f"a message of session {session_id!r} has this id already"
        yield Problem(path="$.id", rule="M-164", text=text)


def _problems(
    prepared: PreparedMessage, transaction: Transaction, batch_calls: set[str]
) -> Iterator[Problem]:
    """Yield the calls and results of a message that contradict stored calls."""
    session_id = prepared.message.session_id
    for index, block in enumerate(prepared.message.content):
        if isinstance(block, ToolUseBlock) and prepared.calls:
            yield from _call_problems(block, session_id, f"$.content[{index}].id", transaction)
        elif not isinstance(block, ToolResultBlock) or not prepared.results:
            continue
        elif block.tool_use_id not in batch_calls:
            path = f"$.content[{index}].tool_use_id"
            yield from _result_problems(block, session_id, path, transaction)


def _call_problems(
    call: ToolUseBlock, session_id: str, path: str, transaction: Transaction
) -> Iterator[Problem]:
    for (owner,) in transaction.run("SELECT session_id FROM tool_calls WHERE id = ?", (call.id,)):
        if owner == session_id:
            text = f"{call.id!r} is the id of an earlier call; a retry needs a new id"
            yield Problem(path=path, rule="M-141", text=text)
        else:
            text = f"{call.id!r} belongs to session {owner!r}"
            yield Problem(path=path, rule="M-139", text=text)


def _result_problems(
    result: ToolResultBlock, session_id: str, path: str, transaction: Transaction
) -> Iterator[Problem]:
    call_id = result.tool_use_id
    sql = "SELECT session_id, result_message_id FROM tool_calls WHERE id = ?"
    rows = transaction.run(sql, (call_id,))
    if not rows:
        yield Problem(path=path, rule="M-138", text=f"no earlier call has the id {call_id!r}")
    for owner, result_message_id in rows:
        if owner != session_id:
            text = f"{call_id!r} belongs to session {owner!r}"
            yield Problem(path=path, rule="M-139", text=text)
        elif result_message_id is not None:
            text = f"{call_id!r} already has a result in message {result_message_id!r}"
            yield Problem(path=path, rule="M-140", text=text)


class SaveJob(WriteJob):
    """Write a stored message again: a partial one with more content, or any in a newer form."""

    def __init__(self, prepared: PreparedMessage) -> None:
        self._prepared = prepared
        self.session_ids = [prepared.message.session_id]
        self.size = prepared.size

    def write(self, tables: Tables) -> Message:
        """Write the new form if the stored one is partial or equal."""
        prepared = self._prepared
        message_id, session_id = prepared.message.id, prepared.message.session_id
        tables.head(session_id)
        stored = read_message(tables, session_id, message_id)
        was_partial = stored.metadata.status == MessageStatus.PARTIAL
        if not was_partial and stored != prepared.message:
            text = f"message {message_id} is complete and cannot be rewritten"
            hint = "record a journal entry to change what the conversation shows"
            raise StoreError(text, hint=hint)
        tables.change(_UPDATE_MESSAGE, (*prepared.row[2:], message_id))
        self._update_journal(stored, tables)
        if was_partial:
            self._finish_partial(stored, tables)
        if prepared.message.metadata.status is not _PARTIAL:
            tables.replace_digests(session_id, {message_id: prepared.digest})
        return prepared.message

    def _update_journal(self, stored: Message, tables: Tables) -> None:
        """Store the full JSON if it is needed, and renumber if the time changed."""
        prepared = self._prepared
        values = (prepared.full_json, prepared.message.session_id, prepared.message.id)
        # Messages without a journal row are numbered by their time, so a new time needs new rows.
        if prepared.message.created_at != stored.created_at:
            rewrite_journal(tables, prepared.message.session_id)
        if not tables.change(_SET_FULL_JSON, values) and prepared.full_json is not None:
            rewrite_journal(tables, prepared.message.session_id)
            tables.change(_SET_FULL_JSON, values)

    def _finish_partial(self, stored: Message, tables: Tables) -> None:
        message = self._prepared.message
        if message.metadata.parents != stored.metadata.parents:
            tables.change("DELETE FROM message_parents WHERE message_id = ?", (message.id,))
            add_parents(self._prepared, tables)
        if message.metadata.status != MessageStatus.PARTIAL:
            tables.change("DELETE FROM open_messages WHERE message_id = ?", (message.id,))
            add_calls(self._prepared, tables)

    def explain(self, transaction: Transaction) -> MetisError | None:
        """Return the error for the first call or result that conflicts with stored rows."""
        return AppendJob([self._prepared]).explain(transaction, is_stored=True)


class RecordJob(WriteJob):
    """Append a journal entry that is not a message to its session."""

    def __init__(self, entry: AnyEntry) -> None:
        if isinstance(entry, MessageEntry):
            raise InvalidValueError("messages are appended, not recorded", path="$.type")
        if isinstance(entry, BookmarkEntry):
            problem = bookmark_problem(entry.name)
            if problem is not None:
                raise InvalidValueError(f"{problem}: {entry.name!r}", path="$.name")
        self._entry = entry
        self.session_ids = [entry.session_id]

    def write(self, tables: Tables) -> AnyEntry:
        """Number the entry and apply its change: an active model, or a bookmark."""
        entry = self._entry
        head = tables.head(entry.session_id)
        # A view would ignore an entry that refers to a message of another session.
        for message_id in referenced_message_ids(entry):
            _check_message(tables, entry.session_id, message_id)
        numbered = place_entry(entry, session_id=entry.session_id, seq=head.seq + 1)
        if isinstance(numbered, SwapEntry):
            sql = "UPDATE sessions SET active_model = ? WHERE id = ?"
            tables.change(sql, (numbered.to_model, numbered.session_id))
        elif isinstance(numbered, BookmarkEntry):
            _set_bookmark(numbered, head, tables)
        head.seq = head.last_journaled_seq = head.seq + 1
        text = encode_entry(numbered).decode()
        tables.journal.append((numbered.session_id, head.seq, None, text, head.latest_at))
        digest = crc32(text.encode())
        tables.digests.append((numbered.session_id, entry_key(head.seq), digest))
        tables.touch(numbered.session_id, head)
        return numbered


def referenced_message_ids(entry: AnyEntry) -> Iterator[str]:
    """Return the ids of the messages that an entry refers to."""
    match entry:
        case CompactionEntry():
            ids = (entry.first_kept_id, entry.head_id)
        case RewindEntry():
            ids = (entry.to_id, entry.head_id)
        case RetractionEntry() | BookmarkEntry():
            ids = (entry.message_id,)
        case _:
            ids = ()
    return (message_id for message_id in ids if message_id is not None)


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
