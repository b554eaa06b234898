"""The store: sessions and what happened in them, kept so that nothing acknowledged is lost."""

from metis.store.maintenance import Policy, Sweep
from metis.store.queries import Overview
from metis.store.records import EventRecord, Match, SessionRecord, ToolCallRecord
from metis.store.store import Durability, Store
from metis.store.store import open_store as open  # noqa: A004 - the word for it, `store.open`

__all__ = [
    "Durability",
    "EventRecord",
    "Match",
    "Overview",
    "Policy",
    "SessionRecord",
    "Store",
    "Sweep",
    "ToolCallRecord",
    "open",
]
