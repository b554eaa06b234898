"""Records: what the store tells about sessions, calls and matches."""

from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from metis.store.rows import from_micros, to_micros

SESSION_COLUMNS = (
    "id, workspace_path, active_model, routing_policy_json, schema_version, created_at, updated_at"
)
CALL_COLUMNS = (
    "id, session_id, message_id, result_message_id, name, status, provider_id, provider, "
    "created_at, completed_at"
)
EVENT_COLUMNS = (
    "id, timestamp_us, session_id, turn_id, parent_event_id, type, actor, sensitivity, payload_json"
)
_write_json = msgspec.json.Encoder(order="sorted").encode


class SessionRecord(Struct, frozen=True, kw_only=True):
    """A session: where it works, which model answers, and since when."""

    id: str
    workspace_path: str
    active_model: str | None = None
    routing_policy: Any = None
    """A snapshot of the policy under which models are picked."""
    schema_version: int
    created_at: datetime
    updated_at: datetime


class ToolCallRecord(Struct, frozen=True, kw_only=True):
    """A tool call, by whom it was asked for and how it ended."""

    id: str
    session_id: str
    message_id: str
    result_message_id: str | None
    name: str
    status: str
    provider_id: str | None
    provider: str | None
    created_at: datetime
    completed_at: datetime | None


class Match(Struct, frozen=True, kw_only=True):
    """A message that a search found, with the words around the match."""

    session_id: str
    message_id: str
    snippet: str


class EventRecord(Struct, frozen=True, kw_only=True):
    """A fact of the trace, as its table holds it."""

    id: str
    timestamp_us: int
    session_id: str | None = None
    turn_id: str | None = None
    parent_event_id: str | None = None
    type: str
    actor: str
    sensitivity: str
    payload_json: str


def session_row(record: SessionRecord) -> tuple[Any, ...]:
    """The column values of a session."""
    policy = record.routing_policy
    return (
        record.id,
        record.workspace_path,
        record.active_model,
        None if policy is None else _write_json(policy).decode(),
        record.schema_version,
        to_micros(record.created_at),
        to_micros(record.updated_at),
    )


def session_record(row: tuple[Any, ...]) -> SessionRecord:
    """The session of a row."""
    return SessionRecord(
        id=row[0],
        workspace_path=row[1],
        active_model=row[2],
        routing_policy=None if row[3] is None else msgspec.json.decode(row[3]),
        schema_version=row[4],
        created_at=from_micros(row[5]),
        updated_at=from_micros(row[6]),
    )


def call_record(row: tuple[Any, ...]) -> ToolCallRecord:
    """The call of a row."""
    return ToolCallRecord(
        id=row[0],
        session_id=row[1],
        message_id=row[2],
        result_message_id=row[3],
        name=row[4],
        status=row[5],
        provider_id=row[6],
        provider=row[7],
        created_at=from_micros(row[8]),
        completed_at=None if row[9] is None else from_micros(row[9]),
    )
