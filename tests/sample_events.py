"""Sample bus events: one of every type, and whole turns with their causes."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any, Literal, get_args, get_origin, get_type_hints

from msgspec import Struct

from metis.canonical import SideEffects, StopReason
from metis.canonical.ids import UlidSource
from metis.canonical.metadata import ChainPolicy
from metis.events import CATALOGUE, Actor, Bus, Event, Payload
from metis.events.turn_events import (
    LlmCallCompleted,
    LlmCallFailed,
    LlmCallStarted,
    RouteDecided,
    RouteStep,
    ToolCalled,
    ToolCompleted,
    TurnCompleted,
    TurnStarted,
)

START = datetime(2026, 5, 8, 12, 0, 0, 123456, tzinfo=UTC)
PRIVATE, NAMED, REFERENCE = "private words", "given name", "somebody"
_WORDS = {"private": PRIVATE, "user_controlled": NAMED, "pseudonymous": REFERENCE}


def clock() -> Iterator[datetime]:
    """Return a clock that advances a second per call."""
    at = START
    while True:
        yield at
        at += timedelta(seconds=1)


def recording_bus(**settings: Any) -> tuple[Bus, list[Event]]:
    """Return a bus with a fixed clock, and the list of emitted events."""
    times = clock()
    ids = UlidSource(now_ms=lambda: int(START.timestamp() * 1000), random_bits=lambda: 7)
    given: dict[str, Any] = {"ids": ids, "clock": lambda: next(times)}
    bus = Bus(**given | settings)
    emitted: list[Event] = []
    bus.subscribe_fast(emitted.append, name="recorder")
    return bus, emitted


def example(hint: Any, sensitivity: str = "") -> Any:
    """Return a valid value of a type, with texts that state their privacy class."""
    if hasattr(hint, "__metadata__"):
        return example(hint.__origin__, hint.__metadata__[0].extra["sensitivity"])
    parts = get_args(hint)
    if parts:
        first = parts[0] if get_origin(hint) is Literal else example(parts[0])
        return (first,) if get_origin(hint) is tuple else first
    if issubclass(hint, Struct | StrEnum):
        return filled(hint) if issubclass(hint, Struct) else next(iter(hint))
    plain: dict[type, Any] = {
        str: _WORDS.get(sensitivity, "plain"),
        bool: True,
        int: 3,
        float: 0.5,
        Decimal: Decimal("1.50"),
        datetime: START,
    }
    return plain[hint]


def filled(kind: type[Struct]) -> Any:
    """Return a Struct with a value in every field."""
    hints = get_type_hints(kind, include_extras=True)
    return kind(**{name: example(hints[name]) for name in kind.__struct_fields__})


def every_payload() -> list[Payload]:
    """Return one payload of each type, with a value in every field."""
    return [filled(row.payload) for _, row in sorted(CATALOGUE.items())]


def every_event() -> list[Event]:
    """Return one event of each type."""
    bus, emitted = recording_bus()
    for payload in every_payload():
        bus.emit(payload, session_id="sess_1", turn_id="turn_1")
    return emitted


def completed(model: str = "anthropic:claude-haiku-4-5", **fields: Any) -> LlmCallCompleted:
    """Return a successful call."""
    given: dict[str, Any] = {
        "model": model,
        "provider": model.partition(":")[0],
        "input_tokens": 100,
        "output_tokens": 20,
        "cost_usd": Decimal("0.001"),
        "pricing_version": "2026-05-08",
        "latency_ms": 800,
        "stop_reason": StopReason.END_TURN,
    }
    return LlmCallCompleted(**given | fields)


def failed(error_class: Any = "server_error", model: str = "openai:gpt-5") -> LlmCallFailed:
    """Return a failed call."""
    return LlmCallFailed(
        model=model,
        provider=model.partition(":")[0],
        error_class=error_class,
        error_message="upstream",
        latency_ms=5,
    )


def decided(policy: ChainPolicy = ChainPolicy.GLOBAL_DEFAULT, model: str | None = "a:x") -> Any:
    """Return a decision of one slot, or a failure without a model."""
    step = RouteStep(
        policy=policy,
        verdict="chose" if model else "rejected",
        reason="so",
        candidate_model="a:x",
        validation_failure=None if model else "not_configured",
    )
    winner = 0 if model else -1
    return RouteDecided(chosen_model=model, winner_index=winner, elapsed_ms=0.1, chain=(step,))


def run_turn(bus: Bus, session_id: str = "sess_1", turn_id: str = "turn_1") -> None:
    """Emit a turn with a tool: routed, called, run, called again, completed."""

    def emit(payload: Payload, parent: Event | None, actor: Actor = Actor.AGENT) -> Event:
        event = bus.emit(
            payload, session_id=session_id, turn_id=turn_id, parent=parent, actor=actor
        )
        assert event is not None
        return event

    model = "anthropic:claude-haiku-4-5"
    ask = LlmCallStarted(model=model, provider="anthropic", request_id="req_1")
    turn = emit(TurnStarted(user_message_hash="h", estimated_input_tokens=9), None, Actor.USER)
    emit(decided(), turn)
    call = emit(ask, turn)
    answer = emit(completed(stop_reason=StopReason.TOOL_USE, cached_input_tokens=50), call)
    tool = emit(
        ToolCalled(
            tool_use_id="tu_1",
            tool_name="read_file",
            side_effects=SideEffects.READ,
            input_hash="h",
            input_size_bytes=2,
        ),
        answer,
    )
    ran = emit(
        ToolCompleted(tool_use_id="tu_1", success=True, output_size_bytes=5, latency_ms=3), tool
    )
    again = emit(ask, ran)
    emit(completed(), again)
    emit(
        TurnCompleted(
            stop_reason=StopReason.END_TURN,
            llm_call_count=2,
            tool_call_count=1,
            total_input_tokens=250,
            total_output_tokens=40,
            total_cost_usd=Decimal("0.002"),
            wall_time_seconds=9.0,
        ),
        turn,
    )


class CauseFault(Struct, frozen=True):
    """An event whose cause is missing or impossible."""

    event_id: str
    text: str


def cause_faults(events: Iterable[Event]) -> tuple[CauseFault, ...]:
    """Return every cause that is missing, comes after its effect, or has an impossible type."""
    by_id = {event.id: event for event in events}
    faults = ((event.id, _fault(event, by_id)) for event in by_id.values())
    return tuple(CauseFault(event_id, fault) for event_id, fault in faults if fault is not None)


def _fault(event: Event, by_id: Mapping[str, Event]) -> str | None:
    parents = event.event_type.parents
    if event.parent_event_id is None:
        return f"{event.type} has no cause" if parents else None
    parent = by_id.get(event.parent_event_id)
    if parent is None:
        return f"the cause {event.parent_event_id} is missing"
    if parent.id >= event.id:
        return "the cause comes after the effect"
    if parents and parent.type not in parents:
        return f"{parent.type} cannot be the cause of {event.type}"
    return None
