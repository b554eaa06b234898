"""Workers: a task runs in a separate session, and its response becomes a tool result."""

import asyncio
from contextlib import aclosing
from decimal import Decimal
from typing import Any

import pytest

from build import call
from metis.canonical import (
    RoutingMode,
    StopReason,
    ToolResultBlock,
    new_tool_use_id,
    validate_session,
)
from metis.canonical.errors import BudgetExceededError
from metis.events import Bus, Event
from metis.events.system_events import DelegateCompleted, DelegateFailed, DelegateStarted
from metis.events.turn_events import SessionCreated
from metis.session import Budget, Metis, Session, ToolStarted, text_of
from metis.store.entries import SidecarEntry
from sample_events import cause_faults
from session.fake import Fake, Say, say, serving
from session.helpers import options

pytestmark = pytest.mark.anyio
TIERS = {"fast": "haiku", "balanced": "sonnet", "deep": "opus"}
ONE = Decimal("0.000654")


def delegate_call(**arguments: Any) -> Say:
    given = {"tier": "fast", "task": "count the frotzes", **arguments}
    return say(call("delegate", new_tool_use_id(), **given))


def listening() -> tuple[Bus, list[Event]]:
    bus, bus_events = Bus(), list[Event]()
    bus.subscribe_fast(bus_events.append, name="test")
    return bus, bus_events


def result(session: Session) -> tuple[str, bool]:
    results = [b for m in session.messages for b in m.content if isinstance(b, ToolResultBlock)]
    return text_of(results[-1].content).strip(), results[-1].is_error


async def test_a_worker_answers_with_the_model_of_its_tier(url: str) -> None:
    bus, bus_events = listening()
    reading = say(call("read_file", new_tool_use_id(), path="a"))
    script = [
        delegate_call(context="they are blue", allowed_tools=["read_file", "fly"]),
        reading,
        say("There are three."),
        say("Three."),
    ]
    async with (
        serving(Fake(*script)) as fake,
        Metis(url, options(fake, tiers=TIERS, bus=bus)) as m,
    ):
        session = await m.session(model="sonnet", system="Be short.")
        await session.ask("how many frotzes?")
        assert result(session) == ("There are three.", False)
        (started,) = [e.payload for e in bus_events if isinstance(e.payload, DelegateStarted)]
        (done,) = [e.payload for e in bus_events if isinstance(e.payload, DelegateCompleted)]
        worker = await m.store.messages(started.worker_session_id)
        assert validate_session(worker) == []
        assert [each.role.value for each in worker] == [
            "system",
            "user",
            "assistant",
            "tool",
            "assistant",
        ]
        record = worker[-1].metadata.routing
        assert record is not None
        assert (record.mode, record.chosen_model) == (
            RoutingMode.DELEGATE,
            "anthropic:claude-haiku-4-5",
        )
        usage = [each.metadata.usage for each in worker if each.metadata.usage]
        assert done.worker_total_cost_usd == sum(each.cost_usd for each in usage)
        assert (done.llm_call_count, done.tool_call_count) == (2, 1)
        assert session.cost().total_usd == 2 * ONE
        history = await m.store.history(started.worker_session_id)
        parents = [entry.data for entry in history if isinstance(entry, SidecarEntry)]
        assert parents[0]["session_id"] == session.id
    assert (started.tier, started.context_mode, started.dropped_tools) == (
        "fast",
        "explicit",
        ("fly",),
    )
    assert [tool["name"] for tool in fake.bodies[0]["tools"]] == ["read_file", "delegate"]
    assert [tool["name"] for tool in fake.bodies[1]["tools"]] == ["read_file"]
    assert "they are blue" in str(fake.bodies[1]["messages"])
    assert "how many" not in str(fake.bodies[1])
    assert "Be short." not in str(fake.bodies[1])
    assert list(cause_faults(bus_events)) == []
    assert "delegate.failed" not in {event.type for event in bus_events}


@pytest.mark.parametrize(
    ("arguments", "answer", "mode"),
    [
        (
            {"max_tokens": 5},
            say("one two", stop_reason=StopReason.MAX_TOKENS),
            "max_tokens_exceeded",
        ),
        ({}, say(status=400, error="no such parameter"), "worker_error"),
        (
            {},
            say(status=400, error="prompt is too long: 9 tokens > 8 maximum"),
            "insufficient_context",
        ),
        ({}, say(), "worker_error"),
        (
            {
                "output_schema": {
                    "type": "object",
                    "properties": {"n": {"type": "integer"}},
                    "required": ["n"],
                }
            },
            say('{"n": "three"}'),
            "output_schema_validation_failed",
        ),
    ],
)
async def test_a_worker_without_a_result_is_an_error_result(
    url: str, arguments: dict[str, Any], answer: Say, mode: str
) -> None:
    bus, bus_events = listening()
    async with (
        serving(Fake(delegate_call(**arguments), answer, say("a pity"))) as fake,
        Metis(url, options(fake, tiers=TIERS, bus=bus)) as m,
    ):
        session = await m.session(model="sonnet")
        await session.ask("go")
        assert result(session)[1]
    (failed,) = [e.payload for e in bus_events if isinstance(e.payload, DelegateFailed)]
    assert failed.failure_mode == mode


async def test_an_answer_that_matches_its_schema_comes_back(url: str) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    answer = '```json\n{"n":3}\n```'
    async with (
        serving(Fake(delegate_call(output_schema=schema), say(answer), say("ok"))) as fake,
        Metis(url, options(fake, tiers=TIERS)) as m,
    ):
        session = await m.session(model="sonnet")
        await session.ask("go")
        assert result(session) == (answer, False)


async def test_tier_without_suitable_model_is_an_error_result(url: str) -> None:
    bus, bus_events = listening()
    tiers = {"fast": "gemini:gemini-2.5-flash"}
    async with (
        serving(Fake(delegate_call(), say("a pity"))) as fake,
        Metis(url, options(fake, tiers=tiers, bus=bus)) as m,
    ):
        session = await m.session(model="sonnet")
        await session.ask("go")
        assert result(session)[1]
    (failed,) = [e.payload for e in bus_events if isinstance(e.payload, DelegateFailed)]
    assert failed.failure_mode == "no_model_available_for_tier"


async def test_workers_end_with_the_turn(url: str) -> None:
    bus, bus_events = listening()
    slow = say("one two three four", events=4, hang=True)
    async with (
        serving(Fake(delegate_call(), slow, say("fine"))) as fake,
        Metis(url, options(fake, tiers=TIERS, bus=bus)) as m,
    ):
        session = await m.session(model="sonnet")
        async with aclosing(session.send("go")) as events:
            async for event in events:
                if isinstance(event, ToolStarted):
                    while len(fake.requests) < 2:  # noqa: ASYNC110 - nobody tells
                        await asyncio.sleep(0.005)
                    break
        types = [event.type for event in bus_events]
        assert types.index("delegate.failed") < types.index(
            "turn.cancelled", types.index("delegate.failed")
        )
        (failed,) = [e.payload for e in bus_events if isinstance(e.payload, DelegateFailed)]
        assert failed.failure_mode == "cancelled_by_user"
        assert await m.store.check() == []
        await session.ask("go on")


@pytest.mark.row("K-059")
async def test_cost_of_workers_counts_for_parent_session(url: str) -> None:
    budget = Budget(session_usd=3 * ONE + ONE / 2)
    async with serving(Fake(delegate_call(), say("done"), say("ok"))) as fake:
        async with Metis(url, options(fake, tiers=TIERS, budget=budget)) as m:
            session = await m.session(model="sonnet")
            await session.ask("go")
            (tool_message,) = [each for each in session.messages if each.role.value == "tool"]
            assert tool_message.metadata.outcome is not None
            cost = Decimal(tool_message.metadata.outcome.value["cost_usd"])
            assert cost > 0
            assert session.cost().total_usd == 2 * ONE
            await session.set_budget(2 * ONE + cost)
            with pytest.raises(BudgetExceededError):
                await session.ask("go on")
        async with Metis(url, options(fake, tiers=TIERS)) as m:
            again = await m.resume(session.id)
            with pytest.raises(BudgetExceededError):
                await again.ask("go on")
            await again.set_budget(2 * ONE + 2 * cost)
            assert await again.ask("go on") is not None


async def test_worker_has_remaining_budget(url: str) -> None:
    bus, bus_events = listening()
    async with (
        serving(Fake(delegate_call(), say("never"), say("ok"))) as fake,
        Metis(url, options(fake, tiers=TIERS, bus=bus, budget=Budget(session_usd=ONE))) as m,
    ):
        session = await m.session(model="sonnet")
        with pytest.raises(Exception, match="budget"):
            await session.ask("go")
    assert len(fake.requests) == 1
    (failed,) = [e.payload for e in bus_events if isinstance(e.payload, DelegateFailed)]
    assert failed.failure_mode == "worker_error"


async def test_worker_session_event_names_its_parent(url: str) -> None:
    bus, bus_events = listening()
    script = [delegate_call(), say("three"), say("so three")]
    async with (
        serving(Fake(*script)) as fake,
        Metis(url, options(fake, bus=bus, tiers=TIERS)) as m,
    ):
        session = await m.session(model="sonnet")
        await session.ask("how many?")
    (started,) = [each.payload for each in bus_events if isinstance(each.payload, DelegateStarted)]
    assert [
        (each.session_id, each.payload.parent_session_id, each.payload.is_worker)
        for each in bus_events
        if isinstance(each.payload, SessionCreated)
    ] == [(session.id, None, False), (started.worker_session_id, session.id, True)]
