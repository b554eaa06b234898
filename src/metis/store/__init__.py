"""The store: sessions and what happened in them, kept so that nothing acknowledged is lost."""

from metis.store.opening import Durability
from metis.store.opening import open_store as open  # noqa: A004 - the word for it, `store.open`
from metis.store.overview import Overview
from metis.store.records import EventRecord, Match, SessionRecord, ToolCallRecord
from metis.store.retention import Policy, Sweep
from metis.store.store import Store

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
