"""Recovery: what a crash left open is closed before anybody goes on.

A partial message ends as failed; a call of a complete message that nobody answered gets an aborted
result. This happens when a store is opened that nobody else has open, and only if somebody wrote to
it and did not close it.
"""

import logging
from collections.abc import Callable
from datetime import datetime
from typing import Any

from metis.canonical.blocks import TextBlock, ToolResultBlock
from metis.canonical.ids import is_ulid, new_ulid, new_ulid_after
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageMetadata, Outcome, OutcomeStatus
from metis.canonical.rules import as_failed
from metis.projection.exchanges import NO_RESULT
from metis.store.appending import Append, prepare
from metis.store.entries import RecoveryEntry
from metis.store.reading import read_message
from metis.store.recording import Record
from metis.store.saving import Save
from metis.store.tables import Tables

log = logging.getLogger("metis.store")

_PENDING = (
    "SELECT session_id, id, name FROM tool_calls WHERE status = 'pending' "
    "ORDER BY session_id, created_at, id"
)
_OPEN = "SELECT session_id, message_id FROM open_messages ORDER BY session_id, message_id"


class Recovery:
    """Everything that is open, by session."""

    def __init__(self, tables: Tables, now: Callable[[], datetime]) -> None:
        self._tables = tables
        self._now = now
        self._failed: dict[str, list[str]] = {}
        self._aborted: dict[str, list[str]] = {}

    def run(self) -> list[RecoveryEntry]:
        """Close it all, and give an entry for each session."""
        tables = self._tables
        for session_id, message_id in tables.run(_OPEN):
            message = read_message(tables, session_id, message_id)
            Save(prepare(as_failed(message))).write(tables)
            self._failed.setdefault(session_id, []).append(message_id)
        for session_id, call_id, name in tables.run(_PENDING):
            self._abort(session_id, call_id, name)
            self._aborted.setdefault(session_id, []).append(call_id)
        tables.change("DELETE FROM writers")
        return [self._entry(each) for each in sorted({*self._failed, *self._aborted})]

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
        Append([prepare(message)]).write(self._tables)

    def _next_id(self, session_id: str) -> str:
        newest = self._tables.head(session_id).newest_id
        return new_ulid_after(newest) if is_ulid(newest) else new_ulid()

    def _entry(self, session_id: str) -> RecoveryEntry:
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
            "session %s was left open: %d messages ended as failed, %d calls as aborted",
            session_id,
            len(failed),
            len(aborted),
            extra=facts,
        )
        Record(entry).write(self._tables)
        return entry
