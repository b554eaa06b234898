"""Retention: what may go, and when: old sessions, and large or old raw parts of providers."""

import logging
from collections.abc import Sequence
from datetime import datetime

import msgspec
from msgspec import Raw, Struct

from metis.store.database import Transaction
from metis.store.rows import to_micros
from metis.store.tables import Tables

log = logging.getLogger("metis.store")

RAW_FIELD = "provider_raw"
_AT_ONCE = 500
_split_object = msgspec.json.Decoder(dict[str, Raw]).decode
_write_json = msgspec.json.Encoder(order="sorted").encode


class Policy(Struct, frozen=True, kw_only=True):
    """What is let go; None keeps everything."""

    sessions_before: datetime | None = None
    """Sessions that have not changed since are deleted."""
    raw_before: datetime | None = None
    """Raw parts of messages older than this are dropped."""
    raw_bytes: int | None = None
    """Raw parts larger than this are dropped."""
    events_before: datetime | None = None
    """Events older than this are deleted."""


class Eviction(Struct, frozen=True, kw_only=True):
    """A raw part that goes."""

    session_id: str
    message_id: str
    size_bytes: int


class Sweep(Struct, frozen=True, kw_only=True):
    """What a sweep takes away, or would take away."""

    sessions: tuple[str, ...]
    evictions: tuple[Eviction, ...]
    event_count: int
    is_dry_run: bool


def old_sessions(transaction: Transaction, policy: Policy) -> tuple[str, ...]:
    """The sessions that a policy lets go."""
    if policy.sessions_before is None:
        return ()
    sql = "SELECT id FROM sessions WHERE updated_at < ? ORDER BY id"
    return tuple(row[0] for row in transaction.run(sql, (to_micros(policy.sessions_before),)))


def event_count(transaction: Transaction, policy: Policy) -> int:
    """The number of events that a policy lets go."""
    if policy.events_before is None:
        return 0
    sql = "SELECT count(*) FROM events WHERE timestamp_us < ?"
    return transaction.run(sql, (to_micros(policy.events_before),))[0][0]


def raw_parts(
    transaction: Transaction, policy: Policy, leaving: Sequence[str]
) -> tuple[Eviction, ...]:
    """The raw parts that a policy lets go, in sessions that stay."""
    if policy.raw_before is None and policy.raw_bytes is None:
        return ()
    before = None if policy.raw_before is None else to_micros(policy.raw_before)
    gone = set(leaving)
    found: list[Eviction] = []
    sql = (
        "SELECT session_id, id, created_at, metadata_json FROM messages "
        "WHERE metadata_json LIKE ? ORDER BY id"
    )
    for session_id, message_id, created_at, metadata in transaction.stream(
        sql, (f'%"{RAW_FIELD}":%',)
    ):
        size = len(bytes(_split_object(metadata).get(RAW_FIELD, b"")))
        is_old = before is not None and created_at < before
        is_large = policy.raw_bytes is not None and size > policy.raw_bytes
        is_due = size and (is_old or is_large) and session_id not in gone
        if is_due and not _is_kept_whole(transaction, session_id, message_id):
            evicted = Eviction(session_id=session_id, message_id=message_id, size_bytes=size)
            found.append(evicted)
    return tuple(found)


def _is_kept_whole(transaction: Transaction, session_id: str, message_id: str) -> bool:
    """Whether a newer version wrote more of a message than its columns hold; that stays exact."""
    sql = (
        "SELECT 1 FROM journal WHERE session_id = ? AND message_id = ? "
        "AND entry_json IS NOT NULL LIMIT 1"
    )
    return bool(transaction.run(sql, (session_id, message_id)))


def evict(tables: Tables, evictions: Sequence[Eviction]) -> None:
    """Drop raw parts; what a message means does not change by it."""
    for eviction in evictions:
        sql = "SELECT metadata_json FROM messages WHERE id = ?"
        for (metadata,) in tables.run(sql, (eviction.message_id,)):
            fields = _split_object(metadata)
            if fields.pop(RAW_FIELD, None) is None:
                continue
            text = _write_json(fields).decode()
            tables.change(
                "UPDATE messages SET metadata_json = ? WHERE id = ?", (text, eviction.message_id)
            )
            log.info(
                "message %s: %d raw bytes were dropped",
                eviction.message_id,
                eviction.size_bytes,
                extra={"session_id": eviction.session_id, "message_id": eviction.message_id},
            )


def let_go(tables: Tables, policy: Policy, found: Sweep) -> None:
    """Take away what a sweep found beside the sessions."""
    evict(tables, found.evictions)
    if policy.events_before is not None:
        sql = "DELETE FROM events WHERE timestamp_us < ?"
        tables.change(sql, (to_micros(policy.events_before),))
    log.info(
        "swept: %d sessions, %d raw parts, %d events",
        len(found.sessions),
        len(found.evictions),
        found.event_count,
    )
