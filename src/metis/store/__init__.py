"""The store: sessions and their history in SQLite or PostgreSQL; no acknowledged write is lost."""

from metis.store.connection import Durability
from metis.store.maintenance import Policy, Sweep
from metis.store.queries import Overview
from metis.store.records import EventRecord, Match, SessionRecord, ToolCallRecord
from metis.store.repair import RepairReport, repair
from metis.store.store import Store
from metis.store.store import open_store as open  # noqa: A004 - called as `store.open`

__all__ = [
    "Durability",
    "EventRecord",
    "Match",
    "Overview",
    "Policy",
    "RepairReport",
    "SessionRecord",
    "Store",
    "Sweep",
    "ToolCallRecord",
    "open",
    "repair",
]
