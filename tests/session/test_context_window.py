"""Histories over the context window: summarised, in parts if necessary, or refused."""

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pytest

from metis.canonical import (
    Message,
    Role,
    SideEffects,
    ToolDefinition,
    ToolResultBlock,
    ToolUseBlock,
    new_tool_use_id,
    validate_session,
)
from metis.canonical.errors import BudgetExceededError, ContextOverflowError, ServerError
from metis.events import Bus, Event
from metis.events.analytics import cost_by
from metis.events.turn_events import SessionCompacted
from metis.session import Metis, Session, Warned, text_of
from metis.session.context_window import (
    PENDING_PROMPT_LEAD,
    PIECE_PROMPT,
    SUMMARY_LEAD,
    split_to_fit,
)
from metis.sim import Script, Simulator
from metis.sim.model_output import ModelOutput
from metis.sim.request import Settings, SimulatedCall
from metis.sim.responder import Responder
from metis.store.entries import CompactionEntry
from metis.tools import Registry, ToolContext, ToolOutput
from metis.tools.tool import text_output
from metis.wire.call import AdapterOptions
from session.faults import MODELS, check_whole, options_for
from session.helpers import events_of

pytestmark = pytest.mark.anyio
SMALL = 3000
LONG = "The tide came in over the grey stones and nobody at the harbour saw the lamp. " * 20
LOCAL = "ollama:one-of-my-own"
"""A model that no table knows: its host has 4096 tokens for it."""


class ReadLong:
    """A tool with very long results."""

    definition = ToolDefinition(
        name="read_file",
        description="Reads a file.",
        input_schema={
            "type": "object",
            "properties": {"path": {"type": "string"}},
            "required": ["path"],
        },
        side_effects=SideEffects.READ,
        requires_workspace=False,
    )

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        del context
        return text_output(f"{arguments['path']}: {LONG}")

    def cancel(self) -> bool:
        return False


class EventLog:
    """A bus that records every event."""

    def __init__(self) -> None:
        self.bus, self.events = Bus(), list[Event]()
        self.bus.subscribe_fast(self.events.append, name="test")

    def compacted(self) -> list[SessionCompacted]:
        payloads = (event.payload for event in self.events)
        return [payload for payload in payloads if isinstance(payload, SessionCompacted)]


class Reader(Responder):
    """A scripted model that reads one file after the other."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__()
        self._names = list(names)

    def respond(self, call: SimulatedCall) -> ModelOutput:
        if not call.request.tools or call.request.options.tool_choice is not None:
            return super().respond(call)  # a summary
        if not self._names:
            return ModelOutput.from_text("The last one does.")
        read = ToolUseBlock(new_tool_use_id(), "read_file", {"path": self._names.pop(0)})
        return ModelOutput(content=(*self.visible_thinking("I read on.", call), read))


def refusals(sim: Simulator) -> int:
    return sum(1 for _, reply in sim.service.exchanges if reply.status == 400)


def pieces_asked(sim: Simulator) -> int:
    return sum(
        1
        for prompt_text, _ in sim.service.exchanges
        if PIECE_PROMPT[:60].encode() in prompt_text.body
    )


def codes(events: Sequence[object]) -> list[str]:
    return [event.code for event in events if isinstance(event, Warned)]


async def check_store(m: Metis, session: Session, count: int) -> None:
    """Check that every message is still in the store, and that the resumed session is equal."""
    stored = await m.store.messages(session.id)
    assert len([each for each in stored if each.role is Role.USER]) == count
    assert validate_session(stored) == []
    assert await m.store.check() == []
    check_pairs(session.messages)


def check_pairs(messages: Sequence[Message]) -> None:
    """Check that the view has no call without result and no result without call."""
    calls = [b.id for m in messages for b in m.content if isinstance(b, ToolUseBlock)]
    results = [b.tool_use_id for m in messages for b in m.content if isinstance(b, ToolResultBlock)]
    assert calls == results


@pytest.mark.parametrize("model", MODELS)
async def test_model_with_smaller_window_than_listed_still_answers(url: str, model: str) -> None:
    async with Simulator(settings=Settings(window_tokens=SMALL)) as sim:
        async with Metis(url, options_for(sim.base_url)) as m:
            session = await m.session(model=model, system="Be short.")
            reported: list[str] = []
            for number in range(12):
                events = await events_of(session, f"say {number}: {LONG}")
                reported += codes(events)
            assert set(reported) == {"compacted"}
            used = session.context()
            assert used is not None
            # The first refusal states the actual window, so there are few refusals.
            assert used.window_tokens <= SMALL * 1.3
            assert refusals(sim) < len(reported) + 3
            await check_store(m, session, 12)
        async with Metis(url, options_for(sim.base_url)) as m:
            again = await m.resume(session.id)
            assert again.messages == session.messages
            assert await again.ask("say goodbye") is not None


async def test_no_refusal_near_the_limit(url: str) -> None:
    async with (
        Simulator(settings=Settings(window_tokens=4096)) as sim,
        Metis(url, options_for(sim.base_url)) as m,
    ):
        session = await m.session(model=LOCAL)
        reported: list[str] = []
        for number in range(20):
            reported += codes(await events_of(session, f"say {number}: {LONG}"))
        assert set(reported) == {"compacted"}
        assert refusals(sim) == 0
        await check_store(m, session, 20)


async def test_window_full_of_instructions_is_not_summarised_repeatedly(url: str) -> None:
    async with (
        Simulator(settings=Settings(window_tokens=4096)) as sim,
        Metis(url, options_for(sim.base_url, options=AdapterOptions())) as m,
    ):
        session = await m.session(model=LOCAL, system=LONG * 10)
        reported: list[list[str]] = []
        for number in range(12):
            reported.append(codes(await events_of(session, f"say {number}")))
            used = session.context()
            assert used is not None
            assert used.share > 0.85
        assert reported[:3] == [[], [], []]
        assert sum(map(len, reported)) < 4
        assert refusals(sim) == 0


@pytest.mark.slow
@pytest.mark.row("T208")
@pytest.mark.parametrize("model", MODELS)
async def test_history_larger_than_the_only_window_is_summarised_in_parts(
    url: str, model: str
) -> None:
    async with Simulator() as large, Metis(url, options_for(large.base_url)) as m:
        session = await m.session(model=model)
        for number in range(20):
            await session.ask(f"say {number}: {LONG}")
        await session.ask("Read a.txt and b.txt")
    event_log = EventLog()
    async with (
        Simulator(settings=Settings(window_tokens=SMALL)) as sim,
        Metis(url, options_for(sim.base_url, bus=event_log.bus)) as m,
    ):
        again = await m.resume(session.id)
        before = again.cost().total_usd
        events = await events_of(again, "say all is well")
        # Without a number in the refusal the first estimate is too large.
        assert codes(events) == ["compacted"] * (2 if "ollama" in model else 1)
        assert pieces_asked(sim) > 3
        assert text_of(again.messages[0].content).startswith(SUMMARY_LEAD)
        await check_store(m, again, 22)
        first, *_, last = [*event_log.compacted()] * 2
        assert first.trigger == "overflow"
        assert first.message_count > 20
        assert last.tokens_after < SMALL < first.tokens_before
        spent = cost_by(event_log.events, "none")["all"].cost_usd
        assert spent == again.cost().total_usd - before


@pytest.mark.row("T205")
@pytest.mark.parametrize("model", MODELS)
async def test_turn_that_outgrows_the_window_continues_with_its_prompt(
    url: str, model: str
) -> None:
    prompt_text = "Find out which of the files speaks of the lamp"
    brain = Reader(f"{number}.txt" for number in range(12))
    async with Simulator(responder=brain, settings=Settings(window_tokens=SMALL)) as sim:
        options = options_for(sim.base_url, tools=Registry(ReadLong))
        async with Metis(url, options) as m:
            session = await m.session(model=model)
            events = await events_of(session, prompt_text)
            assert set(codes(events)) == {"compacted"}
            stored = await m.store.messages(session.id)
            check_whole(stored)
            assert len([each for each in stored if each.role is Role.TOOL]) == 12
            assert text_of(stored[-1].content) == "The last one does."
            check_pairs(session.messages)
            first = text_of(session.messages[0].content)
            assert first.startswith(SUMMARY_LEAD)
            assert first.endswith(PENDING_PROMPT_LEAD + prompt_text)


async def test_too_long_prompt_error_states_remedy(url: str) -> None:
    async with (
        Simulator(settings=Settings(window_tokens=SMALL)) as sim,
        Metis(url, options_for(sim.base_url)) as m,
    ):
        session = await m.session(model=MODELS[0])
        await session.ask("say one")
        with pytest.raises(ContextOverflowError, match="send less at once") as caught:
            await session.ask(LONG * 30)
        assert caught.value.limit_tokens == SMALL
        assert (caught.value.input_tokens or 0) > SMALL
        check_whole(await m.store.messages(session.id))
        await session.undo()
        assert await session.ask("say two") is not None


async def test_without_automatic_summaries_the_overflow_is_raised(url: str) -> None:
    async with (
        Simulator(settings=Settings(window_tokens=SMALL)) as sim,
        Metis(url, options_for(sim.base_url, compact_at=None)) as m,
    ):
        session = await m.session(model=MODELS[0])
        await session.ask(f"say {LONG * 3}")
        with pytest.raises(ContextOverflowError):
            await session.ask(f"say {LONG * 3}")
        assert all(
            not isinstance(entry, CompactionEntry) for entry in await m.store.history(session.id)
        )


@pytest.mark.parametrize("fault", ["budget", "down"])
async def test_cost_of_partial_summaries_is_kept_if_the_summary_fails(url: str, fault: str) -> None:
    async with Simulator() as large, Metis(url, options_for(large.base_url)) as m:
        session = await m.session(model=MODELS[0])
        for number in range(20):
            await session.ask(f"say {number}: {LONG}")
    event_log, script = EventLog(), Script()
    async with (
        Simulator(script=script, settings=Settings(window_tokens=SMALL)) as sim,
        Metis(url, options_for(sim.base_url, bus=event_log.bus)) as m,
    ):
        again = await m.resume(session.id)
        before = again.cost().total_usd
        if fault == "budget":
            await again.set_budget(before + Decimal("0.000001"))
        else:
            script.add(ModelOutput.from_text("the first piece"), "sim: 500")
        with pytest.raises(BudgetExceededError if fault == "budget" else ServerError):
            await again.ask("say all is well")
        assert again.cost().total_usd > before
        assert cost_by(event_log.events, "none")["all"].cost_usd == again.cost().total_usd - before
        (reported,) = event_log.compacted()
        assert reported.message_count == 0
        await again.set_budget(None)
        assert await again.ask("say all is well") is not None
        await check_store(m, again, 22)


def test_cutting_a_long_text_counts_each_character_a_few_times() -> None:
    def cut(length: int) -> float:
        counted = 0

        def count(text: str) -> int:
            nonlocal counted
            counted += len(text)
            return len(text) // 4

        # The first half has no space, and the second many.
        text = "x" * (length // 2) + "a b " * (length // 8)
        pieces = list(split_to_fit([text], 1_000, count))
        assert "".join(pieces).replace("\n", "") == text
        assert all(len(piece) // 4 <= 1_000 for piece in pieces)
        return counted / length

    assert cut(2_000_000) < 2 * cut(100_000)


def test_a_dense_part_of_a_text_is_cut_shorter() -> None:
    def count(text: str) -> int:
        return sum(100 if character == "x" else 1 for character in text) // 4

    text = "a" * 200_000 + "x" * 20_000
    pieces = list(split_to_fit([text], 20_000, count))
    assert "".join(pieces).replace("\n", "") == text
    assert all(count(piece) <= 20_010 for piece in pieces)  # two line breaks join parts
