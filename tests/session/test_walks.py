"""Random walks against the strict simulator: swaps, tools, images, thoughts, interrupts, forks."""

import asyncio
import random
import zlib
from decimal import Decimal

import pytest
from msgspec.structs import replace

from build import text
from metis.canonical import (
    ContentBlock,
    ImageBlock,
    ImageSource,
    Message,
    Role,
    ToolResultBlock,
    ToolUseBlock,
    validate_session,
)
from metis.catalog import cost
from metis.session import Metis, Options, Session, TurnEnded
from metis.sim import Simulator
from metis.sim.call import Settings
from metis.streaming import TextDelta
from metis.tools import Registry
from metis.transport import Retry
from metis.wire.call import AdapterOptions
from session.kit import ReadFile

pytestmark = pytest.mark.anyio
NAMES = ("anthropic", "openai", "openai-responses")
MODELS = ("sonnet", "haiku", "openai:gpt-5", "openai-responses:gpt-5", "openai:gpt-4.1")
THINKS = AdapterOptions(
    max_output_tokens=3000,
    native={"anthropic": {"thinking": {"type": "enabled", "budget_tokens": 1024}}},
)
PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5E"
    "rkJggg=="
)


def words(chance: random.Random) -> str | list[ContentBlock]:
    picture = ImageBlock(source=ImageSource(kind="base64", data=PIXEL), media_type="image/png")
    return chance.choice(
        [
            "say all is well",
            "count to 5",
            "Read a.txt",
            "Read a.txt and b.txt",
            "40 words",
            [text("what is in this picture?"), picture],
        ]
    )


async def interrupted(session: Session, said: str | list[ContentBlock], after: int) -> None:
    """Listen to a few events and go away."""
    count = 0
    async for event in session.send(said):
        count += isinstance(event, TextDelta)
        if count > after:
            break


async def step(session: Session, chance: random.Random) -> Session:
    match chance.randrange(10):
        case 0 | 1 | 2:
            model = chance.choice(MODELS)
            found = session.preview_swap(model)
            assert found.fits, found.why
            await session.swap(model)
        case 3:
            await interrupted(session, words(chance), chance.randrange(4))
        case 4:
            session = await session.fork()
        case 5:
            task = asyncio.create_task(session.ask(words(chance)))
            await asyncio.sleep(chance.random() * 0.02)
            await session.cancel()
            await task
        case _:
            events = [event async for event in session.send(words(chance))]
            assert isinstance(events[-1], TurnEnded)
    return session


def check(messages: list[Message], session: Session) -> None:
    assert validate_session(messages) == []
    calls = [b.id for m in messages for b in m.content if isinstance(b, ToolUseBlock)]
    results = [b.tool_use_id for m in messages for b in m.content if isinstance(b, ToolResultBlock)]
    assert sorted(calls) == sorted(results)
    total = Decimal(0)
    for message in messages:
        if message.role is Role.ASSISTANT:
            usage, model = message.metadata.usage, message.metadata.model or ""
            assert usage is not None
            priced = model.replace("openai-responses:", "openai:")
            plain = replace(usage, cost_usd=Decimal(0))
            assert usage.cost_usd == cost(plain, priced, message.created_at)
            total += usage.cost_usd
    by_model = session.cost().by_model
    assert sum(by_model.values(), Decimal(0)) == session.cost().total_usd
    assert session.cost().total_usd >= total


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.row("T204", "T205")
async def test_a_walk_over_all_protocols_is_never_refused(url: str, seed: int) -> None:
    chance = random.Random(zlib.crc32(b"%d" % seed))  # noqa: S311 - a walk, no secret
    settings = Settings(pause_s=0.0005)
    async with Simulator(settings=settings) as sim:
        options = Options(
            base_urls=dict.fromkeys(NAMES, sim.base_url),
            tools=Registry(ReadFile),
            retry=Retry(attempts=1),
            options=THINKS if seed % 2 else AdapterOptions(),
        )
        async with Metis(url, options) as m:
            session = await m.session(model=chance.choice(MODELS), system="Be short.")
            for _ in range(25):
                session = await step(session, chance)
            check(await m.store.messages(session.id), session)
            assert await m.store.check() == []
        async with Metis(url, options) as m:
            again = await m.resume(session.id)
            assert again.messages == session.messages
            assert again.cost() == session.cost()
            assert await again.ask("say goodbye") is not None
