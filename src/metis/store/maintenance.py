"""Maintenance: integrity checks, recovery after a crash, and retention of old data."""

import logging
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any
from zlib import crc32

import msgspec
from msgspec import Raw, Struct

from metis.canonical.blocks import TextBlock, ToolResultBlock, ToolUseBlock
from metis.canonical.errors import MetisError
from metis.canonical.ids import is_ulid, new_ulid, new_ulid_after
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageMetadata, MessageStatus, Outcome, OutcomeStatus
from metis.canonical.rules import as_failed, validate_session
from metis.projection.tool_calls import NO_RESULT
from metis.store.append import AppendJob, RecordJob, SaveJob, prepare_message
from metis.store.database import Transaction
from metis.store.entries import AnyEntry, MessageEntry, RecoveryEntry
from metis.store.queries import read_history, read_message
from metis.store.records import (
    BLOCK,
    INSERT_DIGESTS,
    damage_of_bytes,
    entry_key,
    insert_values,
    message_digest,
    read_digests,
    to_microseconds,
)
from metis.store.tables import BEFORE_ANY_TIME, Tables

log = logging.getLogger("metis.store")

RAW_FIELD = "provider_raw"
# A damaged store can have a problem in every message.
_MAX_PROBLEMS = 1000
# Calls of imported sessions are not aborted, because the other program may still run them.
_OURS = (
    "AND NOT EXISTS (SELECT 1 FROM messages WHERE messages.id = tool_calls.message_id "
    "AND CAST(metadata_json AS TEXT) LIKE '%\"origin\":%import:%')"
)
_PENDING_CALLS = (
    f"SELECT session_id, id, name FROM tool_calls WHERE status = 'pending' {_OURS} "  # noqa: S608 - no input
    "ORDER BY session_id, created_at, id"
)
PENDING_CALL = (
    f"SELECT 1 FROM tool_calls WHERE session_id = ? AND status = 'pending' {_OURS} LIMIT 1"  # noqa: S608 - no input
)
"""Selects a call of a session that has no result yet."""
_OPEN_MESSAGES = "SELECT session_id, message_id FROM open_messages ORDER BY session_id, message_id"
_split_object = msgspec.json.Decoder(dict[str, Raw]).decode
_write_json = msgspec.json.Encoder(order="sorted").encode


class CheckResult(Struct, frozen=True):
    """The result of a check of all sessions."""

    problems: list[str]
    """Damage, broken rules and contradictions between tables; at most a thousand."""
    without_digests: list[str]
    """Sessions with messages or entries that have no digest yet."""


def find_problems(transaction: Transaction) -> CheckResult:
    """Check every message and entry of every session."""
    result = CheckResult([], [])
    try:
        sessions = transaction.run("SELECT id FROM sessions ORDER BY id")
    except sqlite3.DatabaseError as error:
        result.problems.append(f"the list of sessions cannot be read ({error})")
        return result
    for (session_id,) in sessions:
        try:
            for problem in _session_problems(transaction, session_id, result):
                result.problems.append(f"session {session_id}: {problem}")
                if len(result.problems) >= _MAX_PROBLEMS:
                    return result
        # SQLite reports a damaged page for each session whose rows are on it.
        except sqlite3.DatabaseError as error:
            result.problems.append(f"session {session_id}: a page cannot be read ({error})")
    return result


def _session_problems(
    transaction: Transaction, session_id: str, result: CheckResult
) -> Iterator[str]:
    damages = list(_damages(transaction, session_id, result))
    if damages:
        yield from damages
        return
    try:
        entries = read_history(transaction, session_id)
    except MetisError as error:
        yield str(error)
        return
    numbers = [entry.seq for entry in entries]
    if numbers != list(range(1, len(numbers) + 1)):
        yield "the entries are not numbered one by one"
    yield from _journal_problems(transaction, session_id, entries)
    messages = [entry.message for entry in entries if isinstance(entry, MessageEntry)]
    yield from map(str, validate_session(messages))
    yield from _call_problems(transaction, session_id, messages)


def _damages(transaction: Transaction, session_id: str, result: CheckResult) -> Iterator[str]:
    """Yield the messages and entries whose stored bytes changed, with the evidence."""
    digests = read_digests(transaction, session_id)
    missing = dict(digests)
    has_all = True
    for key, digest, parts in stored_digests(transaction, session_id):
        expected = missing.pop(key, None)
        has_all = has_all and expected is not None
        name = f"entry {key[1:]}" if key.startswith("#") else f"message {key}"
        cause = next(filter(None, (damage_of_bytes(*part) for part in parts)), None)
        if cause is None and digest != (digest if expected is None else expected):
            size = sum(len(part[1]) for part in parts)
            cause = f"the digest of its {size} bytes is {digest:08x} instead of {expected:08x}"
        if cause is not None:
            yield f"{name}: {cause}"
    for key in sorted(missing):
        yield f"{f'entry {key[1:]}' if key.startswith('#') else f'message {key}'} is missing"
    if not has_all:
        result.without_digests.append(session_id)


def add_digests(tables: Tables, *, session_id: str) -> None:
    """Write digests for rows without one, such as messages of an older version."""
    present = read_digests(tables, session_id)
    added = {
        key: digest for key, digest, _ in stored_digests(tables, session_id) if key not in present
    }
    keys = list(added)
    for start in range(0, len(keys), BLOCK):
        block = {key: added[key] for key in keys[start : start + BLOCK]}
        tables.change(INSERT_DIGESTS, insert_values(session_id, block))


def stored_digests(
    transaction: Transaction, session_id: str
) -> Iterator[tuple[str, int, list[tuple[str, bytes]]]]:
    """Yield key, digest and named bytes of every complete message and every entry."""
    binary = transaction.binary_text
    texts: dict[str, bytes] = {}
    sql = f"SELECT seq, message_id, {binary.format('entry_json')} FROM journal WHERE session_id = ?"  # noqa: S608 - no input
    for seq, message_id, text in transaction.run(sql, (session_id,)):
        data = text.encode() if isinstance(text, str) else text
        if message_id is None:
            yield entry_key(seq), crc32(data), [("entry", data)]
        elif data is not None:
            texts[message_id] = data
    sql = "SELECT message_id FROM open_messages WHERE session_id = ?"
    open_ids = {row[0] for row in transaction.run(sql, (session_id,))}
    columns = f"{binary.format('content_json')}, {binary.format('metadata_json')}"
    sql = f"SELECT id, role, {columns}, created_at FROM messages WHERE session_id = ?"  # noqa: S608 - no input
    for message_id, role, content, metadata, created_at in transaction.run(sql, (session_id,)):
        if message_id in open_ids:
            continue  # a partial message may still change
        parts = [
            (name, text.encode() if isinstance(text, str) else text)
            for name, text in (("content", content), ("metadata", metadata))
        ]
        digest = message_digest(role, parts[0][1], parts[1][1], created_at, texts.get(message_id))
        yield message_id, digest, parts


def _journal_problems(
    transaction: Transaction, session_id: str, entries: Sequence[AnyEntry]
) -> Iterator[str]:
    """Yield the first contradiction between the journal and the messages."""
    expected: dict[int, tuple[str | None, int]] = {}
    latest_at = BEFORE_ANY_TIME
    for entry in entries:
        is_message = isinstance(entry, MessageEntry)
        if is_message:
            latest_at = max(latest_at, to_microseconds(entry.created_at))
        expected[entry.seq] = (entry.id if is_message else None, latest_at)
    sql = "SELECT seq, message_id, latest_at FROM journal WHERE session_id = ? ORDER BY seq"
    for seq, message_id, latest in transaction.run(sql, (session_id,)):
        if expected.get(seq) != (message_id, latest):
            yield f"number {seq}: the journal has {message_id}, the messages {expected.get(seq)}"
            return


def _call_problems(
    transaction: Transaction, session_id: str, messages: list[Message]
) -> Iterator[str]:
    """Yield the contradictions between `tool_calls` and the messages."""
    results: dict[str, str] = {}
    calls: dict[str, str] = {}
    for message in messages:
        if message.metadata.status == MessageStatus.PARTIAL:
            continue
        for block in message.content:
            if isinstance(block, ToolUseBlock) and message.role == Role.ASSISTANT:
                calls[block.id] = message.id
            elif isinstance(block, ToolResultBlock) and message.role == Role.TOOL:
                results[block.tool_use_id] = message.id
    sql = "SELECT id, message_id, result_message_id FROM tool_calls WHERE session_id = ?"
    rows = {row[0]: (row[1], row[2]) for row in transaction.run(sql, (session_id,))}
    expected = {call: (message, results.get(call)) for call, message in calls.items()}
    for call in sorted({*rows, *expected}):
        if rows.get(call) != expected.get(call):
            yield f"call {call}: the table has {rows.get(call)}, the messages {expected.get(call)}"


class Recovery:
    """Closes messages and calls that a crash left open.

    A partial message ends as failed; a pending call of a complete message gets an aborted result.
    This runs when a store is opened, if no other process has it open and the last writer did not
    close it.
    """

    def __init__(self, tables: Tables, now: Callable[[], datetime]) -> None:
        self._tables = tables
        self._now = now
        self._failed: dict[str, list[str]] = {}
        self._aborted: dict[str, list[str]] = {}

    def run(self) -> list[RecoveryEntry]:
        """Close all open messages and calls; return an entry for each changed session."""
        tables = self._tables
        for session_id, message_id in tables.run(_OPEN_MESSAGES):
            message = read_message(tables, session_id, message_id)
            SaveJob(prepare_message(as_failed(message))).write(tables)
            self._failed.setdefault(session_id, []).append(message_id)
        for session_id, call_id, name in tables.run(_PENDING_CALLS):
            self._abort(session_id, call_id, name)
            self._aborted.setdefault(session_id, []).append(call_id)
        # The next start has nothing to recover, unless another writer registers.
        tables.change("DELETE FROM writers")
        return [self._record(name) for name in sorted({*self._failed, *self._aborted})]

    def _abort(self, session_id: str, call_id: str, name: str) -> None:
        result = ToolResultBlock(
            tool_use_id=call_id, content=(TextBlock(NO_RESULT),), is_error=True
        )
        message = Message(
            id=self._next_id(session_id),
            session_id=session_id,
            role=Role.TOOL,
            content=(result,),
            metadata=MessageMetadata(
                parent_tool_use_id=call_id,
                outcome=Outcome(status=OutcomeStatus.ABORTED, tool_name=name),
            ),
            created_at=self._now(),
        )
        AppendJob([prepare_message(message)]).write(self._tables)

    def _next_id(self, session_id: str) -> str:
        newest = self._tables.head(session_id).newest_id
        return new_ulid_after(newest) if is_ulid(newest) else new_ulid()

    def _record(self, session_id: str) -> RecoveryEntry:
        failed = tuple(self._failed.get(session_id, ()))
        aborted = tuple(self._aborted.get(session_id, ()))
        entry = RecoveryEntry(
            id=self._next_id(session_id),
            session_id=session_id,
            created_at=self._now(),
            aborted_calls=aborted,
            failed_messages=failed,
        )
        facts: dict[str, Any] = {"session_id": session_id, "messages": failed, "calls": aborted}
        log.warning(
            "session %s was not closed: %d messages ended as failed, %d calls as aborted",
            session_id,
            len(failed),
            len(aborted),
            extra=facts,
        )
        RecordJob(entry).write(self._tables)
        return entry


class Policy(Struct, frozen=True, kw_only=True):
    """What a sweep deletes; with None nothing of that kind is deleted."""

    sessions_before: datetime | None = None
    """Sessions that have not changed since this time are deleted."""
    raw_before: datetime | None = None
    """Raw parts of messages older than this are dropped."""
    raw_bytes: int | None = None
    """Raw parts larger than this are dropped."""
    events_before: datetime | None = None
    """Events older than this are deleted."""


class Eviction(Struct, frozen=True, kw_only=True):
    """The raw part of a message that is dropped: the original form of a provider."""

    session_id: str
    message_id: str
    size_bytes: int


class Sweep(Struct, frozen=True, kw_only=True):
    """The result of a sweep: what it deletes, or would delete in a dry run."""

    sessions: tuple[str, ...]
    evictions: tuple[Eviction, ...]
    event_count: int
    is_dry_run: bool


def plan_sweep(transaction: Transaction, policy: Policy, *, is_dry_run: bool) -> Sweep:
    """Return what a policy would delete now."""
    sessions = _expired_sessions(transaction, policy)
    return Sweep(
        sessions=sessions,
        evictions=_evictable_raw_parts(transaction, policy, sessions),
        event_count=_expired_event_count(transaction, policy),
        is_dry_run=is_dry_run,
    )


def _expired_sessions(transaction: Transaction, policy: Policy) -> tuple[str, ...]:
    if policy.sessions_before is None:
        return ()
    sql = "SELECT id FROM sessions WHERE updated_at < ? ORDER BY id"
    rows = transaction.run(sql, (to_microseconds(policy.sessions_before),))
    return tuple(row[0] for row in rows)


def _expired_event_count(transaction: Transaction, policy: Policy) -> int:
    if policy.events_before is None:
        return 0
    sql = "SELECT count(*) FROM events WHERE timestamp_us < ?"
    return transaction.run(sql, (to_microseconds(policy.events_before),))[0][0]


def _evictable_raw_parts(
    transaction: Transaction, policy: Policy, expired: Sequence[str]
) -> tuple[Eviction, ...]:
    """Return the raw parts that a policy drops, except in sessions that it deletes."""
    if policy.raw_before is None and policy.raw_bytes is None:
        return ()
    before = None if policy.raw_before is None else to_microseconds(policy.raw_before)
    deleted = set(expired)
    evictions: list[Eviction] = []
    sql = (
        "SELECT session_id, id, created_at, metadata_json FROM messages "
        "WHERE metadata_json LIKE ? ORDER BY id"
    )
    for session_id, message_id, created_at, metadata in transaction.stream(
        sql, (f'%"{RAW_FIELD}":%',)
    ):
        # LIKE also matches the key inside of texts, so the metadata is parsed.
        size = len(bytes(_split_object(metadata).get(RAW_FIELD, b"")))
        is_old = before is not None and created_at < before
        is_large = policy.raw_bytes is not None and size > policy.raw_bytes
        is_due = size and (is_old or is_large) and session_id not in deleted
        if is_due and not _has_full_json(transaction, session_id, message_id):
            evictions.append(
                Eviction(session_id=session_id, message_id=message_id, size_bytes=size)
            )
    return tuple(evictions)


def _has_full_json(transaction: Transaction, session_id: str, message_id: str) -> bool:
    # A newer version wrote fields of this message that have no column; it must not be changed.
    sql = (
        "SELECT 1 FROM journal WHERE session_id = ? AND message_id = ? "
        "AND entry_json IS NOT NULL LIMIT 1"
    )
    return bool(transaction.run(sql, (session_id, message_id)))


def delete_expired(tables: Tables, policy: Policy, sweep: Sweep) -> None:
    """Delete the raw parts and events of a sweep; `Database.erase` deletes its sessions."""
    for eviction in sweep.evictions:
        _drop_raw_part(tables, eviction)
    if policy.events_before is not None:
        sql = "DELETE FROM events WHERE timestamp_us < ?"
        tables.change(sql, (to_microseconds(policy.events_before),))
    log.info(
        "swept: %d sessions, %d raw parts, %d events",
        len(sweep.sessions),
        len(sweep.evictions),
        sweep.event_count,
    )


def _drop_raw_part(tables: Tables, eviction: Eviction) -> None:
    """Drop the raw part of a message; its meaning and its equality do not change."""
    sql = "SELECT role, content_json, metadata_json, created_at FROM messages WHERE id = ?"
    for role, content, metadata, created_at in tables.run(sql, (eviction.message_id,)):
        fields = _split_object(metadata)
        if fields.pop(RAW_FIELD, None) is None:
            continue
        text = _write_json(fields).decode()
        update = "UPDATE messages SET metadata_json = ? WHERE id = ?"
        tables.change(update, (text, eviction.message_id))
        # Only messages without full JSON are evicted, so the digest covers the columns only.
        digest = message_digest(role, content.encode(), text.encode(), created_at)
        tables.replace_digests(eviction.session_id, {eviction.message_id: digest})
        log.info(
            "message %s: %d raw bytes were dropped",
            eviction.message_id,
            eviction.size_bytes,
            extra={"session_id": eviction.session_id, "message_id": eviction.message_id},
        )
