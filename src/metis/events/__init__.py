"""What happened: typed events on a bus, kept in a trace, told in numbers."""

from metis.events.budget import Budget, BudgetVerdict, Spent, judge, spent_by
from metis.events.bus import Bus, Filter, Subscription, slow
from metis.events.causes import CauseFault, cause_faults, causes, unfinished
from metis.events.event import SYSTEM_SESSION, Event, read_event
from metis.events.kinds import CATALOGUE, Actor, Kind, Payload, Sensitivity
from metis.events.redact import Redaction, aggregate, pseudonym, redact
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
    "Filter",
    "Kind",
    "MemoryTrace",
    "Payload",
    "Redaction",
    "Sensitivity",
    "Spent",
    "Subscription",
    "Sweep",
    "TraceStore",
    "aggregate",
    "cause_faults",
    "causes",
    "judge",
    "pseudonym",
    "read_event",
    "redact",
    "report_gaps",
    "slow",
    "spent_by",
    "sweep_trace",
    "unfinished",
]
