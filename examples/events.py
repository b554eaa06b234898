"""Emit events on a bus, store, redact and sum them up, and check a budget."""

import asyncio
import tempfile
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

from msgspec import json

from metis.canonical import StopReason
from metis.events import (
    CATALOGUE,
    SYSTEM_SESSION,
    Actor,
    Budget,
    BudgetVerdict,
    Bus,
    Event,
    EventQuery,
    EventType,
    Filter,
    MemoryTrace,
    Payload,
    Redaction,
    Sensitivity,
    Spending,
    SqliteTrace,
    Subscription,
    Sweep,
    TraceStore,
    aggregate,
    check_budget,
    pseudonym,
    read_event,
    redact,
    report_gaps,
    slow,
    subscribe_hooks,
    sweep_trace,
    unfinished_events,
)
from metis.events.turn_events import LlmCallCompleted

completed: Payload = LlmCallCompleted(
    model="anthropic:claude-haiku-4-5",
    provider="anthropic",
    input_tokens=8,
    output_tokens=42,
    cost_usd=Decimal("0.000218"),
    pricing_version="2026-05-08",
    latency_ms=820,
    stop_reason=StopReason.END_TURN,
)
kind: EventType = CATALOGUE["llm.call_completed"]
assert kind.sensitivity is not Sensitivity.PRIVATE


@slow
def upload(event: Event) -> None:
    """Send an event elsewhere; too slow to be called inside `emit`."""
    print(event.type)


async def use_bus(path: Path) -> list[Event]:
    """Emit an event; subscribers print and store it."""
    bus, memory = Bus(), MemoryTrace()
    trace: TraceStore = SqliteTrace(path)
    calls = Filter(types={"llm.call_completed"})
    bus.subscribe_fast(lambda event: print(event.type), name="screen", event_filter=calls)
    subscription: Subscription = bus.subscribe_batches(memory.append, name="memory")
    bus.subscribe_batches(trace.append, name="file")
    subscribe_hooks(bus)  # the hooks of installed plugins
    bus.emit(completed, session_id="sess_1", actor=Actor.SYSTEM)
    await subscription.drain()
    assert await report_gaps(memory, bus) == ()
    sweep: Sweep = await sweep_trace(memory, before=datetime(2020, 1, 1, tzinfo=UTC), bus=bus)
    assert sweep.deleted_count == 0
    await bus.close()
    return await trace.select(EventQuery(session_id="sess_1"))


with tempfile.TemporaryDirectory() as directory:
    events = asyncio.run(use_bus(Path(directory) / "trace.db"))
assert read_event(json.encode(events[0])) == events[0]
assert unfinished_events(events) == ()
assert events[0].session_id != SYSTEM_SESSION

# Shared traces name no session, user or workspace.
shared = list(redact(events, Redaction.PSEUDONYMIZE, salt="a secret"))
print(shared[0].session_id, pseudonym("sess_1", "session", "a secret"))
print(aggregate(events)[0])

# A reached limit stops the next call.
budget = Budget(session_usd=Decimal("0.50"))
verdict: BudgetVerdict = check_budget(budget, Spending(session_usd=Decimal("0.60")))
assert verdict.exceeded
