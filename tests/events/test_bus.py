"""The event bus: order, filters, slow and failing subscribers, queue limits, causes."""

import asyncio
import logging
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from build import assistant, thinking, ulid, user
from metis import adapters
from metis.canonical.errors import BusOverflowError, EventError, InvalidEventError
from metis.canonical.ids import UlidSource
from metis.events import (
    Actor,
    Bus,
    Event,
    Filter,
    slow,
    unfinished_events,
)
from metis.events.turn_events import RouteDecided, TurnStarted
from metis.wire.call import AdapterOptions
from sample_events import cause_faults, completed, decided, recording_bus, run_turn


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


TURN = TurnStarted(user_message_hash="h", estimated_input_tokens=1)


@pytest.mark.anyio
async def test_every_subscriber_receives_every_event_in_order() -> None:
    bus, emitted = recording_bus()
    first, second = list[Event](), list[Event]()

    async def one(event: Event) -> None:
        await asyncio.sleep(0)
        first.append(event)

    async def many(events: Sequence[Event]) -> None:
        second.extend(events)

    bus.subscribe(one, name="one")
    bus.subscribe_batches(many, name="many")
    run_turn(bus)
    await bus.drain()
    assert first == second == emitted
    await bus.close()
    with pytest.raises(EventError, match="closed"):
        bus.emit(TURN)


@pytest.mark.anyio
async def test_filter_selects_event_types() -> None:
    bus, emitted = recording_bus()
    received: dict[str, list[Event]] = {"session": [], "type": [], "actor": []}
    filters = {
        "session": Filter(session_ids={"sess_2"}),
        "type": Filter(types={"route.decided"}),
        "actor": Filter(actors={Actor.USER}),
    }
    for name, expected in filters.items():
        bus.subscribe_fast(received[name].append, name=name, event_filter=expected)
    run_turn(bus)
    run_turn(bus, "sess_2")
    assert received["session"] == [event for event in emitted if event.session_id == "sess_2"]
    assert received["type"] == [
        event for event in emitted if isinstance(event.payload, RouteDecided)
    ]
    assert received["actor"] == [event for event in emitted if event.actor is Actor.USER]
    with pytest.raises(InvalidEventError, match=r"route\.undecided"):
        Filter(types={"route.undecided"})


@pytest.mark.anyio
async def test_slow_or_failing_subscriber_does_not_affect_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bus, emitted = recording_bus()
    gate = asyncio.Event()
    received, stuck = list[Event](), list[Event]()

    async def waits(event: Event) -> None:
        await gate.wait()
        stuck.append(event)

    async def raises(event: Event) -> None:
        raise ValueError("secret words")

    async def gives_up(event: Event) -> None:
        raise asyncio.CancelledError

    async def listens(event: Event) -> None:
        received.append(event)

    def raises_at_once(event: Event) -> None:
        raise ValueError("secret words")

    bus.subscribe(waits, name="waits")
    bus.subscribe(raises, name="raises")
    bus.subscribe(gives_up, name="gives up")
    last = bus.subscribe(listens, name="listens")
    bus.subscribe_fast(raises_at_once, name="fast")
    run_turn(bus)
    await last.drain()
    assert received == emitted
    assert stuck == []
    gate.set()
    await bus.drain()
    assert stuck == emitted, "the slow one gets everything in the end"
    run_turn(bus)
    await bus.drain()
    assert received == emitted, "a listener stays after an error"
    assert "subscriber raises raised ValueError" in caplog.text
    assert "secret words" not in caplog.text
    await bus.close()


@pytest.mark.anyio
async def test_full_queue_is_an_error_for_the_emitter(caplog: pytest.LogCaptureFixture) -> None:
    bus, emitted = recording_bus(capacity=3)
    gate = asyncio.Event()

    async def waits(event: Event) -> None:
        await gate.wait()

    bus.subscribe(waits, name="stuck")
    for _ in range(3):
        bus.emit(TURN)
    with caplog.at_level(logging.ERROR), pytest.raises(BusOverflowError) as caught:
        bus.emit(TURN)
    assert (caught.value.subscriber, caught.value.capacity) == ("stuck", 3)
    assert "stuck" in caplog.text
    assert len(emitted) == 3, "nobody gets an event that not all can get"
    gate.set()
    await bus.drain()
    bus.emit(TURN)
    await bus.close()


@pytest.mark.anyio
async def test_hanging_subscriber_does_not_block_close(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bus, _ = recording_bus()

    async def never(event: Event) -> None:
        await asyncio.Event().wait()

    bus.subscribe(never, name="never")
    bus.emit(TURN)
    await bus.close(within_s=0.01)
    assert "never left 1 events undelivered" in caplog.text


@pytest.mark.anyio
async def test_closed_subscription_receives_no_events() -> None:
    bus, emitted = recording_bus()
    received: list[Event] = []

    async def listens(event: Event) -> None:
        received.append(event)

    subscription = bus.subscribe(listens, name="listens")
    end = bus.subscribe_fast(received.append, name="fast")
    bus.emit(TURN)
    await subscription.close()
    await subscription.close()
    end()
    bus.emit(TURN)
    assert len(emitted) == 2
    assert received == [emitted[0], emitted[0]]


@slow
def sluggish(event: Event) -> None: ...


async def asynchronous(event: Event) -> None: ...


def test_slow_subscribers_are_refused_on_the_fast_path() -> None:
    bus, _ = recording_bus()
    for handler in (sluggish, asynchronous):
        with pytest.raises(EventError, match="slow"):
            bus.subscribe_fast(handler, name="x")  # pyright: ignore[reportArgumentType] - the mistake is the test


def test_subscriber_that_emits_does_not_loop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bus, emitted = recording_bus()

    def echoes(event: Event) -> None:
        bus.emit(event.payload)

    bus.subscribe_fast(echoes, name="echo")
    bus.emit(TURN)
    assert len(emitted) == 1
    assert "subscriber echo raised EventError" in caplog.text


@given(st.lists(st.integers(0, 10), min_size=1, max_size=30))
def test_ids_increase_for_any_clock(times: list[int]) -> None:
    ticks = iter(times)
    bus = Bus(ids=UlidSource(now_ms=lambda: next(ticks)))
    events = [bus.emit(TURN) for _ in times]
    ids = [event.id for event in events if event is not None]
    assert ids == sorted(set(ids))


@given(st.integers(1, 3), st.integers(0, 9))
def test_missing_causes_are_detected(turns: int, cut: int) -> None:
    bus, emitted = recording_bus()
    for number in range(turns):
        run_turn(bus, turn_id=f"turn_{number}")
    assert cause_faults(emitted) == ()
    assert unfinished_events(emitted) == ()
    ids = {event.id for event in emitted}
    assert all(event.parent_event_id in {*ids, None} for event in emitted)
    remaining = emitted[: len(emitted) - cut]
    assert bool(unfinished_events(remaining)) == (0 < cut < 9)


def test_wrong_causes_are_found() -> None:
    bus, emitted = recording_bus()
    turn = bus.emit(TURN)
    bus.emit(completed(), parent=turn)
    bus.emit(decided())
    bus.emit(decided(), parent="01J00000000000000000000000")
    texts = [fault.text for fault in cause_faults(emitted)]
    assert texts == [
        "turn.started cannot be the cause of llm.call_completed",
        "route.decided has no cause",
        "the cause 01J00000000000000000000000 is missing",
    ]


def test_dropped_block_is_logged_and_not_an_event(
    caplog: pytest.LogCaptureFixture,
) -> None:
    _, emitted = recording_bus()
    hm = thinking("hm", signature="c2ln", issuer="anthropic")
    answer = assistant(hm, "yes", session_id="sess_bus", id=ulid(2))
    with caplog.at_level(logging.WARNING, logger="metis.adapters"):
        adapters.get("openai").to_wire([user("so?"), answer], [], AdapterOptions())
    lines = [line for line in caplog.records if line.levelno == logging.WARNING]
    assert [getattr(line, "block_type", None) for line in lines] == ["thinking"]
    assert emitted == []
