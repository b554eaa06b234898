"""Rows of the viewer's index, built from the entries of a conversation.

Amounts are integers of 10^-12 US dollars, so that sums in SQL are exact.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from metis.canonical.blocks import ToolResultBlock, ToolUseBlock
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageStatus, Usage
from metis.session.conversation import USAGE_KIND, recorded_usage
from metis.session.stored_calls import copied_entry_ids
from metis.store.entries import (
    PARENT_KIND,
    AnyEntry,
    CompactionEntry,
    ErrorEntry,
    ForkEntry,
    MessageEntry,
    SidecarEntry,
)
from metis.store.exchanges import EXTERNAL_KEY
from metis.store.queries import title_of
from metis.store.records import SessionRecord, to_microseconds

PICO = 10**12
"""Units of an amount in one US dollar."""
SCHEMA = """
CREATE TABLE conversations (
  id TEXT PRIMARY KEY, updated_us INTEGER NOT NULL, created_us INTEGER NOT NULL,
  title TEXT NOT NULL, project TEXT NOT NULL, program TEXT NOT NULL, key TEXT NOT NULL,
  tenant TEXT NOT NULL, model TEXT NOT NULL, models TEXT NOT NULL, messages INTEGER NOT NULL,
  errors INTEGER NOT NULL, losses INTEGER NOT NULL, pico_usd INTEGER NOT NULL,
  tail_seq INTEGER NOT NULL, read_us INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX by_update ON conversations (updated_us DESC, id DESC);
CREATE INDEX by_cost ON conversations (pico_usd DESC, id DESC);
CREATE INDEX by_tenant ON conversations (tenant, updated_us DESC, id DESC);
CREATE TABLE calls (
  conversation TEXT NOT NULL, id TEXT NOT NULL, at_us INTEGER NOT NULL, model TEXT NOT NULL,
  project TEXT NOT NULL, key TEXT NOT NULL, tenant TEXT NOT NULL,
  input INTEGER NOT NULL, cached INTEGER NOT NULL, written INTEGER NOT NULL,
  output INTEGER NOT NULL, pico_usd INTEGER NOT NULL,
  latency_ms INTEGER NOT NULL, first_ms INTEGER, PRIMARY KEY (conversation, id)
) WITHOUT ROWID;
CREATE INDEX calls_by_time ON calls (at_us);
CREATE TABLE tools (
  conversation TEXT NOT NULL, id TEXT NOT NULL, name TEXT NOT NULL, at_us INTEGER NOT NULL,
  tenant TEXT NOT NULL, is_done INTEGER NOT NULL, is_error INTEGER NOT NULL, took_ms INTEGER,
  PRIMARY KEY (conversation, id)
) WITHOUT ROWID;
CREATE TABLE errors (
  conversation TEXT NOT NULL, id TEXT NOT NULL, at_us INTEGER NOT NULL, tenant TEXT NOT NULL,
  cause TEXT NOT NULL, text TEXT NOT NULL, PRIMARY KEY (conversation, id)
) WITHOUT ROWID;
CREATE TABLE choices (
  tenant TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (tenant, name, value)
) WITHOUT ROWID;
CREATE TABLE links (
  parent TEXT NOT NULL, child TEXT NOT NULL, kind TEXT NOT NULL, place TEXT NOT NULL,
  PRIMARY KEY (parent, child)
) WITHOUT ROWID;
"""


class _Exchange(Struct):
    """The fields of a gateway exchange record that messages do not have."""

    losses: list[msgspec.Raw] = []
    timings: dict[str, float | None] = {}
    id: str = ""


class Draft:
    """A conversation's row while its entries are read."""

    def __init__(self, record: SessionRecord, old: sqlite3.Row | None) -> None:
        self.record = record
        self.title = str(old["title"]) if old else ""
        self.program = str(old["program"]) if old else ""
        self.key = str(old["key"]) if old else ""
        self.model = str(old["model"]) if old else ""
        self.models = set(str(old["models"]).split("\n")) - {""} if old else set[str]()
        self.messages = int(old["messages"]) if old else 0
        self.tail_seq = int(old["tail_seq"]) if old else 0
        self.calls: list[tuple[Any, ...]] = []
        self.tools: dict[str, list[Any]] = {}
        self.results: list[tuple[int, int, str]] = []
        self.errors: list[tuple[Any, ...]] = []
        self.copied: set[str] = set()
        self.links: list[tuple[str, str, str]] = []
        """The parent conversation, the kind of link, and the message or tool call it began at."""

    def add(self, entries: Iterable[AnyEntry]) -> None:
        """Read entries up to the first message that is still being written."""
        is_tail_open = False
        entries = list(entries)
        self.copied = copied_entry_ids(entries)
        for entry in entries:
            # A message that is still being written is read again the next time.
            is_partial = (
                isinstance(entry, MessageEntry)
                and entry.message.metadata.status is MessageStatus.PARTIAL
            )
            is_tail_open = is_tail_open or is_partial
            if is_tail_open:
                continue
            self.tail_seq = max(self.tail_seq, entry.seq)
            match entry:
                case MessageEntry():
                    self._add_message(entry.message)
                case SidecarEntry() if entry.kind == USAGE_KIND:
                    self._add_call(entry.id, entry.created_at, *recorded_usage(entry.data)[:2])
                case CompactionEntry() if entry.details and "usage" in entry.details:
                    self._add_call(entry.id, entry.created_at, *recorded_usage(entry.details)[:2])
                case SidecarEntry() if entry.kind == PARENT_KIND:
                    data = entry.data
                    place = str(data.get("tool_use_id") or "")
                    self.links.append((str(data.get("session_id")), "sub-agent", place))
                case ForkEntry():
                    place = entry.source_message_id or ""
                    self.links.append((entry.source_session_id, "fork", place))
                case ErrorEntry():
                    cause = entry.kind or entry.code or "error"
                    self._add_error(entry.id, entry.created_at, cause, entry.text)
                case _:
                    pass

    def _add_message(self, message: Message) -> None:
        metadata = message.metadata
        at_us = to_microseconds(message.created_at)
        if message.role not in (Role.SYSTEM, Role.DEVELOPER):
            self.messages += 1
        if not self.title and message.role is Role.USER:
            self.title = title_of(message.content)
        self.program = self.program or (metadata.origin or "")
        if metadata.user_id or metadata.team_id:
            self.key = "/".join(filter(None, (metadata.team_id, metadata.user_id)))
        if message.role is Role.ASSISTANT and metadata.model:
            self.model = metadata.model
            self.models.add(metadata.model)
        if metadata.usage is not None:
            model, exchange = metadata.model or "", (metadata.external or {}).get(EXTERNAL_KEY)
            self._add_call(message.id, message.created_at, model, metadata.usage, exchange)
        if metadata.status is MessageStatus.ERROR:
            self._add_error(message.id, message.created_at, "incomplete response", "")
        for block in message.content:
            if isinstance(block, ToolUseBlock):
                self.tools[block.id] = [block.name, at_us, 0, 0, None]
            elif isinstance(block, ToolResultBlock):
                self.results.append((int(block.is_error), at_us, block.tool_use_id))

    def _add_call(
        self, id_: str, at: datetime, model: str, usage: Usage, exchange: Any = None
    ) -> None:
        if id_ in self.copied:
            return
        self.calls.append(
            (
                *(id_, to_microseconds(at), model or "unknown"),
                *(usage.input_tokens, usage.cached_input_tokens),
                *(usage.cache_creation_input_tokens, usage.output_tokens),
                *(int(usage.cost_usd * PICO), usage.latency_ms, exchange),
            )
        )

    def _add_error(self, id_: str, at: datetime, cause: str, text: str) -> None:
        self.errors.append((id_, to_microseconds(at), cause, text[:500]))


def write_draft(
    database: sqlite3.Connection, draft: Draft, exchanges: Sequence[Sequence[Any]], read_us: int
) -> None:
    """Write the rows of a conversation; `read_us` is the time when its entries were read."""
    record, id_ = draft.record, draft.record.id
    losses, first_ms = 0, dict[str, float]()
    # The gateway never mixes tenants in a conversation; a mixed one would be shown to no tenant.
    tenants = {str(row[0]) for row in exchanges}
    tenant = tenants.pop() if len(tenants) == 1 else ""
    for _, text in exchanges:
        try:
            exchange = msgspec.json.decode(text, type=_Exchange)
        except msgspec.MsgspecError:
            continue
        losses += len(exchange.losses)
        if (first := exchange.timings.get("first_byte_ms")) is not None:
            first_ms[exchange.id] = first
    key = draft.key or tenant.strip("/")
    program = draft.program or ("gateway" if exchanges else "metis")
    run, run_many = database.execute, database.executemany
    run_many(
        "INSERT OR REPLACE INTO calls VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                id_,
                *facts[:3],
                record.workspace_path,
                key,
                tenant,
                *facts[3:],
                first_ms.get(exchange),
            )
            for *facts, exchange in draft.calls
        ],
    )
    run_many(
        "INSERT OR REPLACE INTO tools VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (id_, call_id, tool[0], tool[1], tenant, *tool[2:])
            for call_id, tool in draft.tools.items()
        ],
    )
    run_many(
        "UPDATE tools SET is_done = 1, is_error = ?, took_ms = max(0, (? - at_us) / 1000) "
        "WHERE conversation = ? AND id = ?",
        [(is_error, at_us, id_, call_id) for is_error, at_us, call_id in draft.results],
    )
    run_many(
        "INSERT OR REPLACE INTO errors VALUES (?, ?, ?, ?, ?, ?)",
        [(id_, error[0], error[1], tenant, *error[2:]) for error in draft.errors],
    )
    run_many(
        "INSERT OR REPLACE INTO links VALUES (?, ?, ?, ?)",
        [(parent, id_, kind, place) for parent, kind, place in draft.links],
    )
    write_choices(
        database, tenant, draft.models, program=program, project=record.workspace_path, key=key
    )
    (cost,) = run(
        "SELECT coalesce(sum(pico_usd), 0) FROM calls WHERE conversation = ?", (id_,)
    ).fetchone()
    (errors,) = run("SELECT count(*) FROM errors WHERE conversation = ?", (id_,)).fetchone()
    updated_us = to_microseconds(record.updated_at)
    run(
        "INSERT OR REPLACE INTO conversations VALUES "
        "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *(id_, updated_us, to_microseconds(record.created_at), draft.title),
            *(record.workspace_path, program, key, tenant, record.active_model or draft.model),
            *(
                "\n".join(sorted(draft.models)),
                draft.messages,
                errors,
                losses,
                cost,
                draft.tail_seq,
                read_us,
            ),
        ),
    )


def write_choices(
    database: sqlite3.Connection, tenant: str, models: Iterable[str], **values: str
) -> None:
    """Add the filter values of a conversation; collecting them from all rows takes too long."""
    pairs = [*values.items(), *(("model", model) for model in models)]
    database.executemany(
        "INSERT OR IGNORE INTO choices VALUES (?, ?, ?)",
        [(tenant, name, value) for name, value in pairs if value],
    )


def rebuild_choices(database: sqlite3.Connection) -> None:
    """Collect the filter values again, after conversations were deleted."""
    database.execute("DELETE FROM choices")
    rows = database.execute(
        "SELECT DISTINCT tenant, models, program, project, key FROM conversations"
    )
    for tenant, models, program, project, key in rows.fetchall():
        write_choices(
            database, tenant, models.split("\n"), program=program, project=project, key=key
        )
