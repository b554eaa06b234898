"""Events: typed payloads on a bus, stored in a trace; with analytics, exports and budgets."""

from metis.events.budget import Budget, BudgetVerdict, Spending, check_budget
from metis.events.bus import Bus, Filter, Subscription, slow, subscribe_hooks
from metis.events.event import SYSTEM_SESSION, Event, read_event, unfinished_events
from metis.events.redact import Redaction, aggregate, pseudonym, redact
from metis.events.registry import CATALOGUE, Actor, EventType, Payload, Sensitivity
from metis.events.trace import (
    EventQuery,
    MemoryTrace,
    SqliteTrace,
    Sweep,
    TraceStore,
    report_gaps,
    sweep_trace,
)

__all__ = [
    "CATALOGUE",
    "SYSTEM_SESSION",
    "Actor",
    "Budget",
    "BudgetVerdict",
    "Bus",
    "Event",
    "EventQuery",
    "EventType",
    "Filter",
    "MemoryTrace",
    "Payload",
    "Redaction",
    "Sensitivity",
    "Spending",
    "SqliteTrace",
    "Subscription",
    "Sweep",
    "TraceStore",
    "aggregate",
    "check_budget",
    "pseudonym",
    "read_event",
    "redact",
    "report_gaps",
    "slow",
    "subscribe_hooks",
    "sweep_trace",
    "unfinished_events",
]
