"""Exchanges of the gateway: their rows, and the messages with which clients' histories end.

One exchange is one write job: its session if it is new, its entries in order, the record of the
exchange and the ends of its history, all in one transaction.
"""

from collections.abc import Sequence
from decimal import Decimal

import msgspec
from msgspec import Struct
from msgspec.structs import astuple, replace

from metis.canonical.errors import MetisError
from metis.store.append import AppendJob, PreparedMessage, RecordJob, prepare_message
from metis.store.database import Transaction
from metis.store.entries import AnyEntry, RewindEntry
from metis.store.records import SessionRecord, session_row
from metis.store.tables import Tables
from metis.store.transfer import INSERT_SESSION
from metis.store.writer import WriteJob

EXTERNAL_KEY = "metis-gateway"
"""The key of `MessageMetadata.external` under which a response names its exchange."""
_MAX_DIGESTS = 200
"""How many digests one query looks up; SQLite limits the values of a statement."""


_INSERT_SESSION = (
    f"{INSERT_SESSION} ON CONFLICT (id) DO UPDATE SET workspace_path = excluded.workspace_path "
    "WHERE sessions.workspace_path = ''"
)
"""An earlier call without a directory may have created the session; then the path is set."""


class ExchangeRow(Struct, frozen=True):
    """The record of an exchange, with its session and tenant."""

    id: str
    session_id: str
    tenant: str
    record_json: str


class HistoryEnd(Struct, gc=False):
    """The stored message with which a history ends, and the calls of its last response.

    It changes once: `message_id` is set to the id under which the message was stored.
    """

    session_id: str
    message_id: str
    call_ids: tuple[str, ...] = ()
    is_stored: bool = False
    """Whether a transaction with the message was committed."""
    are_calls_answered: bool = False
    """Whether results of its calls are stored; other results then need a copy of the calls."""
    used_s: float = 0.0
    """When a request last ended or began with this history, on a monotonic clock."""


class ExchangeJob(WriteJob):
    """Store one exchange: its session, messages and entries, its record, the ends of its history.

    `parent` is the end of the history that the first message follows. Without one the message
    begins a new thread, and `rewind` is recorded before it if the session has messages, because it
    would otherwise follow the newest of them. Only the transaction can see messages of other
    processes. `ends` has, for each digest, the position of its message in the job; -1 is the
    parent.
    """

    def __init__(  # noqa: PLR0913 - all but two by name
        self,
        row: ExchangeRow,
        items: Sequence[PreparedMessage | AnyEntry] = (),
        *,
        session: SessionRecord | None = None,
        parent: HistoryEnd | None = None,
        rewind: RewindEntry | None = None,
        scope: str = "",
        ends: Sequence[tuple[str, int, HistoryEnd]] = (),
    ) -> None:
        self._row = row
        self._items = items
        self._session = session
        self._parent = parent
        self._rewind = rewind
        self._scope = scope
        self._ends = ends
        self.session_ids = (row.session_id,) if items else ()
        self.size = len(row.record_json) + sum(
            [item.size for item in items if isinstance(item, PreparedMessage)]
        )

    @property
    def items(self) -> Sequence[PreparedMessage | AnyEntry]:
        """The messages and entries in order."""
        return self._items

    @property
    def rewind(self) -> RewindEntry | None:
        """The entry that is recorded before the messages if the session has others."""
        return self._rewind

    @property
    def session(self) -> SessionRecord | None:
        """The session to create, unless it exists."""
        return self._session

    def write(self, tables: Tables) -> list[str]:
        """Write all rows; return the ids under which the messages were stored."""
        if self._session is not None:
            tables.change(_INSERT_SESSION, session_row(self._session))
        rewind = self._rewind
        # Only here are messages of other processes visible.
        if rewind is not None and tables.head(rewind.session_id).newest_id:
            RecordJob(rewind).write(tables)
        ids: list[str] = []
        for item in self._items:
            if not isinstance(item, PreparedMessage):
                RecordJob(item).write(tables)
                continue
            prepared = item if ids else self._after_parent(item)
            job = AppendJob((prepared,), renew_ids=True, stored_parents=self._stored_parents())
            ids.append(job.write(tables)[0].id)
        row = self._row
        tables.exchanges.append((row.id, row.session_id, row.tenant, row.record_json))
        for digest, position, end in self._ends:
            # Set now, because the next job of the same transaction may follow this message.
            if position >= 0:
                end.message_id = ids[position]
            calls = " ".join(end.call_ids)
            tables.history_ends.append((self._scope, digest, end.session_id, end.message_id, calls))
        return ids

    def _stored_parents(self) -> frozenset[str]:
        parent = self._parent
        return frozenset((parent.message_id,)) if parent and parent.is_stored else frozenset()

    def _after_parent(self, prepared: PreparedMessage) -> PreparedMessage:
        """Return the first message with its parent, whose id may have been renewed meanwhile."""
        parent, message = self._parent, prepared.message
        if parent is None or message.metadata.parents == (parent.message_id,):
            return prepared
        metadata = replace(message.metadata, parents=(parent.message_id,))
        return prepare_message(replace(message, metadata=metadata))

    def settle(self) -> None:
        """Mark the history ends as stored; called after the commit."""
        for _, _, end in self._ends:
            end.is_stored = True

    def explain(self, transaction: Transaction) -> MetisError | None:
        """Return the error for the first message that conflicts with stored rows."""
        prepared = [item for item in self._items if isinstance(item, PreparedMessage)]
        return AppendJob(prepared).explain(transaction)


class ExchangesJob(WriteJob):
    """Store several exchanges in one transaction."""

    def __init__(self, jobs: Sequence[ExchangeJob]) -> None:
        self._jobs = jobs
        self.session_ids = sorted({name for job in jobs for name in job.session_ids})
        self.size = sum([job.size for job in jobs])

    def write(self, tables: Tables) -> None:
        """Write one exchange after the other."""
        for job in self._jobs:
            job.write(tables)

    def explain(self, transaction: Transaction) -> MetisError | None:
        """Return the error for the first message that conflicts with stored rows."""
        return next(filter(None, (job.explain(transaction) for job in self._jobs)), None)


def read_exchange(transaction: Transaction, exchange_id: str) -> ExchangeRow | None:
    """Return the row of an exchange; None if there is none."""
    sql = "SELECT id, session_id, tenant, record_json FROM exchanges WHERE id = ?"
    rows = transaction.run(sql, (exchange_id,))
    return ExchangeRow(*rows[0]) if rows else None


class _Cost(Struct):
    cost_usd: str | None = None


_read_cost = msgspec.json.Decoder(_Cost).decode


def read_costs(transaction: Transaction, tenant: str, first_id: str) -> dict[str, Decimal]:
    """Return the costs of a tenant's exchanges, by id, from `first_id` on."""
    sql = "SELECT id, record_json FROM exchanges WHERE id >= ? AND tenant = ?"
    rows = transaction.run(sql, (first_id, tenant))
    return {exchange_id: Decimal(_read_cost(text).cost_usd or 0) for exchange_id, text in rows}


class ResponseItems(Struct, frozen=True):
    """The items of a response, which clients of OpenAI Responses may continue by its id."""

    tenant: str
    id: str
    session_id: str
    previous_id: str
    """The response that the request continued; empty if there was none."""
    items_json: str


_INSERT_ITEMS = (
    "INSERT INTO response_items (tenant, id, session_id, previous_id, items_json) "
    "VALUES (?, ?, ?, ?, ?) ON CONFLICT (tenant, id) DO UPDATE SET "
    "session_id = excluded.session_id, previous_id = excluded.previous_id, "
    "items_json = excluded.items_json"
)


def write_response_items(tables: Tables, row: ResponseItems) -> None:
    """Write the items of a response; if a provider repeats an id, the new items replace the old."""
    tables.change(_INSERT_ITEMS, astuple(row))


def read_response_items(
    transaction: Transaction, tenant: str, response_id: str
) -> ResponseItems | None:
    """Return the items of a response; None if there are none."""
    sql = (
        "SELECT tenant, id, session_id, previous_id, items_json FROM response_items "
        "WHERE tenant = ? AND id = ?"
    )
    rows = transaction.run(sql, (tenant, response_id))
    return ResponseItems(*rows[0]) if rows else None


def read_history_ends(
    transaction: Transaction, scope: str, digests: Sequence[str]
) -> dict[str, HistoryEnd]:
    """Return the stored history ends with these digests, by digest."""
    ends: dict[str, HistoryEnd] = {}
    for start in range(0, len(digests), _MAX_DIGESTS):
        part = digests[start : start + _MAX_DIGESTS]
        marks = ", ".join("?" * len(part))
        sql = (
            "SELECT digest, session_id, message_id, call_ids FROM history_ends "  # noqa: S608 - marks
            f"WHERE scope = ? AND digest IN ({marks})"
        )
        for digest, session_id, message_id, calls in transaction.run(sql, (scope, *part)):
            ends[digest] = HistoryEnd(
                session_id=session_id,
                message_id=message_id,
                call_ids=tuple(calls.split()),
                is_stored=True,
            )
    return ends
