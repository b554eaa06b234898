from decimal import Decimal
from pathlib import Path

import pytest

from metis.canonical import RoutingMode, TextBlock, validate_session
from metis.session import Metis, Options, Routed, Stored, TurnEnded
from metis.streaming import TextDelta
from session.fake import Fake, say, serving

pytestmark = pytest.mark.anyio
SONNET = "anthropic:claude-sonnet-4-6"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'metis.db'}"


@pytest.mark.row("M-238")
async def test_a_simple_exchange_is_two_messages_with_an_exact_cost(url: str) -> None:
    async with serving(Fake(say("Hello there."))) as fake:
        options = Options(base_urls=fake.base_urls, default_model="sonnet")
        async with Metis(url, options) as m:
            session = await m.session()
            events = [event async for event in session.send("Hi")]
            words = "".join(event.text for event in events if isinstance(event, TextDelta))
            assert words.strip() == "Hello there."
            stored = await m.store.messages(session.id)
        assert [message.role.value for message in stored] == ["user", "assistant"]
        answer = stored[1].metadata
        assert answer.model == SONNET
        assert answer.routing is not None
        assert answer.routing.mode is RoutingMode.DEFAULT
        assert answer.usage is not None
        assert (answer.usage.input_tokens, answer.usage.output_tokens) == (8, 42)
        assert answer.usage.cost_usd == Decimal("0.000654")
        assert answer.usage.latency_ms >= 0
        assert validate_session(stored) == []
        assert [type(event) for event in events if not hasattr(event, "message_id")][
            -1
        ] is TurnEnded
        assert sum(isinstance(event, Routed) for event in events) == 1
        assert sum(isinstance(event, Stored) for event in events) == 1


async def test_a_session_is_resumed_as_it_was_left(url: str) -> None:
    async with serving(Fake(say("one"), say("two"))) as fake:
        options = Options(base_urls=fake.base_urls)
        async with Metis(url, options) as m:
            session = await m.session(model="sonnet")
            await session.ask("first")
            own = session.id
        async with Metis(url, options) as m:
            again = await m.resume(own)
            assert again.model == SONNET
            answer = await again.ask("second")
            assert answer is not None
            assert answer.content == (TextBlock("two "),)
            assert again.cost().total_usd == 2 * Decimal("0.000654")
        assert len(fake.asked[1].messages) == 3
