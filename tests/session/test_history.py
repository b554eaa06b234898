"""Undo, retry, rewind, checkpoints, bookmarks and forks of a session."""

from decimal import Decimal

import pytest

from build import call, text
from metis.canonical import (
    Role,
    TextBlock,
    ToolUseBlock,
    new_tool_use_id,
    validate_session,
)
from metis.canonical.errors import (
    BudgetExceededError,
    InvalidValueError,
    NoTurnError,
    UnknownHeadError,
)
from metis.events import Bus, Event
from metis.events.analytics import cost_by
from metis.events.system_events import FeedbackExplicit
from metis.events.turn_events import SessionCompacted, SessionRewound
from metis.session import Budget, Metis, ModelUse, Session, TurnEnded, text_of
from metis.sim import Simulator
from session.fake import Fake, Say, say, serving
from session.faults import MODELS, options_for
from session.helpers import GPT, SONNET, options

pytestmark = pytest.mark.anyio
ONE = Decimal("0.000654")


def reading() -> list[Say]:
    return [
        say(
            call("read_file", new_tool_use_id(), path="a"),
            call("read_file", new_tool_use_id(), path="b"),
        ),
        say("read"),
    ]


def prompts_of(session: Session) -> list[str]:
    return [text_of(message.content).strip() for message in session.messages]


async def test_undo_removes_last_turn_and_returns_its_prompt(url: str) -> None:
    async with (
        serving(Fake(say("one"), *reading(), say("three"))) as fake,
        Metis(url, options(fake)) as m,
    ):
        session = await m.session(model="sonnet", system="Be short.")
        await session.ask("first")
        await session.ask("second")
        assert [span.number for span in session.turns] == [1, 2]
        assert len(session.turns[1].following) == 4
        assert await session.undo() == (TextBlock("second"),)
        assert prompts_of(session) == ["Be short.", "first", "one"]
        await session.ask("third")
        assert prompts_of(session) == ["Be short.", "first", "one", "third", "three"]
        assert session.cost().total_usd == 4 * ONE
        stored = await m.store.messages(session.id)
        assert validate_session(stored) == []
        assert len(stored) == 10
        assert await session.undo(2) == (TextBlock("first"),)
        assert prompts_of(session) == ["Be short."]
        with pytest.raises(NoTurnError):
            await session.undo()
        # The undone turn still counts as sent.
        assert session.cost().used == {SONNET: ModelUse(4, 4 * 8, 0, 4 * 42)}
        own = session.id
        async with Metis(url, options(fake)) as other:
            again = await other.resume(own)
            assert prompts_of(again) == ["Be short."]
            assert again.cost() == session.cost()
    assert [len(sent_request.messages) for sent_request in fake.requests] == [2, 4, 7, 4]


async def test_retry_sends_prompt_to_another_model(url: str) -> None:
    bus, bus_events = Bus(), list[Event]()
    bus.subscribe_fast(bus_events.append, name="test")
    async with (
        serving(Fake(*reading(), say("better"))) as fake,
        Metis(url, options(fake, bus=bus)) as m,
    ):
        session = await m.session(model="sonnet")
        with pytest.raises(NoTurnError):
            [_ async for _ in session.retry()]
        await session.ask([text("what"), text("now?")])
        events = [event async for event in session.retry(GPT)]
        assert isinstance(events[-1], TurnEnded)
        assert prompts_of(session) == ["what\nnow?", "better"]
        assert session.messages[-1].metadata.model == GPT
        assert session.model == SONNET
        found = session.why()
        assert found is not None
        assert found.record.chosen_model == GPT
        assert found.chain[-1].policy.value == "per_message_override"
    types = [event.type for event in bus_events]
    assert types.index("session.rewound") < types.index("feedback.implicit")
    gone = [each.payload for each in bus_events if isinstance(each.payload, SessionRewound)]
    assert [each.message_count for each in gone] == [5]


async def test_routing_reason_is_available_after_resume(url: str) -> None:
    async with serving(Fake()) as fake:
        async with Metis(url, options(fake)) as m:
            session = await m.session(model="sonnet")
            assert session.why() is None
            await session.ask("one")
        async with Metis(url, options(fake)) as m:
            found = (await m.resume(session.id)).why()
    assert found is not None
    assert found.record.chosen_model == SONNET
    assert found.chain == ()


@pytest.mark.row("AX-06")
async def test_checkpoints_persist_and_branches_can_be_restored(url: str) -> None:
    async with (
        serving(Fake(say("one"), say("two"), say("other"))) as fake,
        Metis(url, options(fake)) as m,
    ):
        session = await m.session(model="sonnet")
        start = await session.checkpoint()
        await session.ask("first")
        first = await session.checkpoint()
        await session.ask("second")
        left = session.messages[-1].id
        await session.rewind(first)
        assert prompts_of(session) == ["first", "one"]
        await session.ask("instead")
        assert prompts_of(session) == ["first", "one", "instead", "other"]
        await session.rewind(left)
        assert prompts_of(session) == ["first", "one", "second", "two"]
        await session.rewind(start)
        assert prompts_of(session) == []
        assert session.checkpoints == {1: None, 2: (await m.store.messages(session.id))[1].id}
        with pytest.raises(InvalidValueError):
            await session.rewind(9)
        with pytest.raises(UnknownHeadError):
            await session.rewind("nowhere")
        own = session.id
        async with Metis(url, options(fake)) as other:
            again = await other.resume(own)
            assert again.checkpoints == session.checkpoints
            await again.rewind(left)
            assert await again.ask("on") is not None


async def test_bookmark_moves_with_its_thread(url: str) -> None:
    async with serving(Fake()) as fake, Metis(url, options(fake)) as m:
        session = await m.session(model="sonnet")
        with pytest.raises(InvalidValueError):
            await session.bookmark("here")
        await session.ask("one")
        one = session.messages[-1].id
        assert await session.bookmark("here") == one
        await session.bookmark("start", session.messages[0].id)
        await session.ask("two")
        assert session.bookmarks == {
            "here": session.messages[-1].id,
            "start": session.messages[0].id,
        }
        await session.unmark("here")
        assert set(session.bookmarks) == {"start"}
        with pytest.raises(InvalidValueError):
            await session.unmark("here")
        await session.rewind("start")
        assert prompts_of(session) == ["one"]


@pytest.mark.parametrize("back", ["rewind", "fork"])
async def test_rewind_target_is_never_between_call_and_results(url: str, back: str) -> None:
    async with serving(Fake(*reading(), say("on"))) as fake, Metis(url, options(fake)) as m:
        session = await m.session(model="sonnet")
        await session.ask("read a and b")
        call_id = session.messages[1].id
        if back == "rewind":
            await session.rewind(call_id)
        else:
            session = await session.fork(at=call_id)
        roles = [message.role for message in session.messages]
        assert roles == [Role.USER, Role.ASSISTANT, Role.TOOL, Role.TOOL]
        await session.ask("go on")
        assert validate_session(await m.store.messages(session.id)) == []
        assert await m.store.check() == []
    assert len(fake.requests[-1].messages) == 5


async def test_rewind_before_summary_shows_original_messages(url: str) -> None:
    bus, bus_events = Bus(), list[Event]()
    bus.subscribe_fast(bus_events.append, name="test")
    async with (
        serving(Fake(say("one"), say("two"), say("the gist"))) as fake,
        Metis(url, options(fake, bus=bus)) as m,
    ):
        session = await m.session(model="sonnet")
        await session.ask("first")
        await session.ask("second")
        before = session.context()
        assert before is not None
        assert before.model == SONNET
        assert 0 < before.share < 0.01
        assert await session.compact() == 2
        assert prompts_of(session)[1:] == ["second", "two"]
        assert "the gist" in prompts_of(session)[0]
        assert [span.number for span in session.turns] == [1, 2]
        await session.undo()
        assert prompts_of(session) == ["first", "one"]
    payloads = [each.payload for each in bus_events if isinstance(each.payload, SessionCompacted)]
    assert [(each.trigger, each.message_count) for each in payloads] == [("user", 2)]
    assert payloads[0].cost_usd == ONE
    assert cost_by(bus_events, "none")["all"].cost_usd == session.cost().total_usd == 3 * ONE


async def test_context_window_without_model_is_unknown(url: str) -> None:
    async with serving(Fake()) as fake, Metis(url, options(fake)) as m:
        session = await m.session()
        assert session.context() is None
        assert await session.compact() == 0
        used = session.context("haiku")
        assert used is not None
        assert used.window_tokens == 200_000


async def test_session_budget_persists_and_can_be_removed(url: str) -> None:
    async with serving(Fake()) as fake:
        async with Metis(url, options(fake, budget=Budget(day_usd=Decimal(5)))) as m:
            session = await m.session(model="sonnet")
            await session.ask("one")
            with pytest.raises(InvalidValueError):
                await session.set_budget(Decimal(-1))
            await session.set_budget(ONE)
            assert session.budget == Budget(session_usd=ONE, day_usd=Decimal(5))
            with pytest.raises(BudgetExceededError):
                await session.ask("two")
        async with Metis(url, options(fake)) as m:
            again = await m.resume(session.id)
            with pytest.raises(BudgetExceededError):
                await again.ask("three")
            await again.set_budget(None)
            assert (await again.ask("four")).message is not None


async def test_repeated_call_after_retry_is_another_call(url: str) -> None:
    async with Simulator() as sim, Metis(url, options_for(sim.base_url)) as m:
        for model in MODELS:
            session = await m.session(model=model)
            await session.ask("Read a.txt and b.txt")
            async for _ in session.retry():
                pass
            assert await session.ask("say all is well") is not None
            stored = await m.store.messages(session.id)
            assert validate_session(stored) == []
            calls = [b.id for each in stored for b in each.content if isinstance(b, ToolUseBlock)]
            assert len(set(calls)) == len(calls) == 4


async def test_no_summary_when_budget_is_exhausted(url: str) -> None:
    async with serving(Fake()) as fake, Metis(url, options(fake)) as m:
        session = await m.session(model="sonnet")
        await session.ask("one")
        await session.ask("two")
        await session.set_budget(ONE)
        with pytest.raises(BudgetExceededError):
            await session.compact()
    assert len(fake.requests) == 2


async def test_a_turn_can_be_rated(url: str) -> None:
    bus, bus_events = Bus(), list[Event]()
    bus.subscribe_fast(bus_events.append, name="test")
    async with serving(Fake()) as fake, Metis(url, options(fake, bus=bus)) as m:
        session = await m.session(model="sonnet")
        with pytest.raises(NoTurnError):
            session.rate(1)
        await session.ask("one")
        session.rate(-1)
        with pytest.raises(InvalidValueError):
            session.rate(5)
        own = session.messages[0].id
    payloads = [each.payload for each in bus_events if isinstance(each.payload, FeedbackExplicit)]
    assert [(each.rating, each.subject_id) for each in payloads] == [(-1, own)]
