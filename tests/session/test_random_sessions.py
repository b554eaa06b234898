"""Random operations on a session are always accepted by the strict simulator.

Operations: swaps, tools, images, thinking, interrupts, forks. `METIS_TEST_WALKS=all` runs two
hundred sequences of thirty operations; the default run is a few short ones.
"""

import asyncio
import os
import random
import zlib
from collections.abc import Sequence
from contextlib import aclosing
from fractions import Fraction
from operator import mul

import pytest

from build import text
from metis.canonical import (
    ContentBlock,
    ImageBlock,
    ImageSource,
    Message,
    Role,
    ToolResultBlock,
    ToolUseBlock,
    Usage,
    validate_session,
)
from metis.canonical.errors import SwapRefusedError
from metis.session import Lost, Metis, Preview, Session, SessionCost, TurnEnded, TurnEvent, Warned
from metis.session.conversation import recorded_usage
from metis.sim import Simulator
from metis.sim.request import Settings
from metis.store.entries import AnyEntry, CompactionEntry, MessageEntry, SidecarEntry
from metis.streaming import TextDelta
from metis.wire.call import AdapterOptions
from session.faults import THINKS, options_for

pytestmark = pytest.mark.anyio
ALL = os.environ.get("METIS_TEST_WALKS") == "all"
WALKS, STEPS = (200, 30) if ALL else (10, 15)
MODELS = (
    "anthropic:claude-sonnet-4-6",
    "anthropic:claude-haiku-4-5",
    "openai:gpt-5",
    "openai:gpt-4.1",
    "openai-responses:gpt-5",
    "gemini:gemini-2.5-flash",
    "gemini:gemini-2.5-pro",
    "ollama:llama3.2",
)
BLIND = "ollama:llama3.2"
PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5E"
    "rkJggg=="
)


class Walk:
    """One random sequence of operations, with the losses that were reported."""

    def __init__(self, session: Session, chance: random.Random) -> None:
        self.session = session
        self.chance = chance
        self.lost: dict[str, set[tuple[str, str]]] = {}
        """Reported losses by model."""

    def words(self) -> str | list[ContentBlock]:
        picture = ImageBlock(source=ImageSource(kind="base64", data=PIXEL), media_type="image/png")
        prompt_blocks: list[str | list[ContentBlock]] = [
            "say all is well",
            "count to 5",
            "Read a.txt",
            "Read a.txt and b.txt",
            "40 words",
        ]
        if self.session.model != BLIND:
            prompt_blocks.append([text("what is in this picture?"), picture])
        return self.chance.choice(prompt_blocks)

    async def step(self) -> None:
        match self.chance.randrange(14):
            case 0 | 1 | 2 | 3:
                await self.swap()
            case 4:
                await self.interrupt()
            case 5:
                await self.cancel()
            case 6:
                self.session = await self.session.fork()
                self.lost = {}  # a fork has new ids, so losses are reported again
            case 7:
                await self.go_back()
            case 8:
                await self.session.compact()
            case _:
                await self.say()

    async def swap(self) -> None:
        model = self.chance.choice(MODELS)
        found = self.session.preview_swap(model)
        try:
            await self.session.swap(model)
        except SwapRefusedError:
            assert (found.fits, found.capability) == (False, "no_vision_support")
            return
        assert found.fits
        await self.check_preview(model, found)

    async def check_preview(self, model: str, found: Preview) -> None:
        """Check that the preview has every loss of the next turn, and none is silent."""
        lost = await self.say("say all is well")
        losses = (*found.dropped, *found.altered, *found.sealed)
        known = {(loss.message_id, loss.path) for loss in losses}
        new = lost - known - self.lost.get(model, set())
        # Only the latest prompt is newer than the preview.
        assert {own for own, _ in new} <= {"", self.session.turns[-1].prompt.id}

    async def say(self, words: str | None = None) -> set[tuple[str, str]]:
        events = [event async for event in self.session.send(words or self.words())]
        assert isinstance(events[-1], TurnEnded)
        assert not [e for e in events if isinstance(e, Warned) and e.code == "repaired"]
        return self.hear(events)

    def hear(self, events: list[TurnEvent]) -> set[tuple[str, str]]:
        reported_losses: set[tuple[str, str]] = set()
        for event in events:
            if isinstance(event, Lost):
                event_losses = {(loss.message_id, loss.path) for loss in event.losses}
                reported_losses |= event_losses
                self.lost.setdefault(event.model, set()).update(event_losses)
        return reported_losses

    async def interrupt(self) -> None:
        """Receive a few deltas and abandon the stream."""
        count, after = 0, self.chance.randrange(4)
        async with aclosing(self.session.send(self.words())) as events:
            async for event in events:
                self.hear([event])
                count += isinstance(event, TextDelta)
                if count > after:
                    break

    async def cancel(self) -> None:
        task = asyncio.create_task(self.session.ask(self.words()))
        await asyncio.sleep(self.chance.random() * 0.02)
        await self.session.cancel()
        await task

    async def go_back(self) -> None:
        turns = self.session.turns
        if turns:
            await self.session.undo(self.chance.randint(1, min(3, len(turns))))
        if self.session.model == BLIND and not self.session.preview_swap(BLIND).fits:
            # The image hidden by a summary is visible again.
            await self.session.swap(MODELS[0])


RATES = {
    "anthropic:claude-sonnet-4-6": ("3", "15", "0.3", "3.75", "6"),
    "anthropic:claude-haiku-4-5": ("1", "5", "0.1", "1.25", "2"),
    "openai:gpt-5": ("1.25", "10", "0.125", "0", "0"),
    "openai:gpt-4.1": ("2", "8", "0.5", "0", "0"),
    "openai-responses:gpt-5": ("1.25", "10", "0.125", "0", "0"),
    "gemini:gemini-2.5-flash": ("0.3", "2.5", "0.03", "0", "0"),
    "gemini:gemini-2.5-pro": ("1.25", "10", "0.125", "0", "0"),
    "ollama:llama3.2": ("0", "0", "0", "0", "0"),
}
"""Dollars per million tokens: input, output, read from a cache, written for 5 minutes, an hour."""


def price_of(model: str, usage: Usage) -> Fraction:
    """Return the cost of a response from the providers' price lists, in exact fractions."""
    assert usage.pricing_version in ("local", "2026-11-15")
    counts = (
        usage.input_tokens,
        usage.output_tokens,
        usage.cached_input_tokens,
        usage.cache_creation_input_tokens - usage.cache_creation_1h_input_tokens,
        usage.cache_creation_1h_input_tokens,
    )
    return sum(map(mul, counts, map(Fraction, RATES[model])), Fraction(0)) / 1_000_000


def check(messages: list[Message]) -> None:
    """Check that every message is valid and every call has a result."""
    assert validate_session(messages) == []
    calls = [b.id for m in messages for b in m.content if isinstance(b, ToolUseBlock)]
    results = [b.tool_use_id for m in messages for b in m.content if isinstance(b, ToolResultBlock)]
    assert sorted(calls) == sorted(results)
    for message in messages:
        assert (message.metadata.usage is not None) == (message.role is Role.ASSISTANT)


def check_costs(entries: Sequence[AnyEntry], cost: SessionCost) -> None:
    """Check that the cost of every call and their sum are exact."""
    total = Fraction(0)
    for entry in entries:
        match entry:
            case MessageEntry() if entry.message.metadata.usage is not None:
                model, usage = entry.message.metadata.model or "", entry.message.metadata.usage
            case SidecarEntry() if "usage" in entry.data:
                model, usage = recorded_usage(entry.data)
            case CompactionEntry():
                model, usage = recorded_usage(entry.details)
            case _:
                continue
        right = price_of(model, usage)
        assert Fraction(usage.cost_usd) == right, model
        total += right
    assert Fraction(cost.total_usd) == total
    assert sum(cost.by_model.values()) == cost.total_usd
    assert cost.unpriced_models == ()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(WALKS))
@pytest.mark.row("T204", "T205")
async def test_random_operations_are_never_refused_in_any_protocol(url: str, seed: int) -> None:
    chance = random.Random(zlib.crc32(b"%d" % seed))  # noqa: S311 - a walk, no secret
    async with Simulator(settings=Settings(pause_s=0.0005)) as sim:
        options = options_for(sim.base_url, options=THINKS if seed % 2 else AdapterOptions())
        async with Metis(url, options) as m:
            session = await m.session(model=chance.choice(MODELS), system="Be short.")
            walk = Walk(session, chance)
            for _ in range(STEPS):
                await walk.step()
            session = walk.session
            stored = await m.store.messages(session.id)
            check(stored)
            check_costs(await m.store.history(session.id), session.cost())
            assert await m.store.check() == []
        async with Metis(url, options) as m:
            again = await m.resume(session.id)
            assert again.messages == session.messages
            assert again.cost() == session.cost()
            assert await again.ask("say goodbye") is not None
