"""What happened: typed events on a bus, kept in a trace, told in numbers."""

from metis.events.budget import Budget, BudgetVerdict, Spending, check_budget, spending_of
from metis.events.bus import Bus, Filter, Subscription, slow
from metis.events.event import (
    SYSTEM_SESSION,
    CauseFault,
    Event,
    cause_chain,
    cause_faults,
    read_event,
    unfinished_events,
)
from metis.events.redact import Redaction, aggregate, pseudonym, redact
from metis.events.registry import CATALOGUE, Actor, EventType, Payload, Sensitivity
from metis.events.trace import (
    EventQuery,
    MemoryTrace,
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
    "CauseFault",
    "Event",
    "EventQuery",
    "EventType",
    "Filter",
    "MemoryTrace",
    "Payload",
    "Redaction",
    "Sensitivity",
    "Spending",
    "Subscription",
    "Sweep",
    "TraceStore",
    "aggregate",
    "cause_chain",
    "cause_faults",
    "check_budget",
    "pseudonym",
    "read_event",
    "redact",
    "report_gaps",
    "slow",
    "spending_of",
    "sweep_trace",
    "unfinished_events",
]
