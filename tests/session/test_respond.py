"""Accepted forms of prompts, and continuing the last turn."""

import pytest

from build import text
from metis.canonical import Role, validate_session
from metis.canonical.errors import NoTurnError, ServerError
from metis.session import Metis, TurnEnded, text_of
from session.fake import Fake, say, serving
from session.helpers import SONNET, options

pytestmark = pytest.mark.anyio


@pytest.mark.row("GX-03")
@pytest.mark.parametrize(
    ("prompt_text", "count"),
    [("hello", 1), (["one", "two"], 2), ([text("one"), "two", text("3")], 3)],
)
async def test_prompt_may_be_text_list_of_texts_or_blocks(
    url: str, prompt_text: str | list[str], count: int
) -> None:
    async with serving(Fake()) as fake, Metis(url, options(fake)) as m:
        session = await m.session(model=SONNET)
        assert await session.ask(prompt_text) is not None
        assert [block.type for block in session.messages[0].content] == ["text"] * count


@pytest.mark.row("GX-03")
async def test_respond_continues_last_turn(url: str) -> None:
    down = say(status=500, error="oh")
    async with serving(Fake(down, say("here I am"))) as fake, Metis(url, options(fake)) as m:
        session = await m.session(model=SONNET)
        with pytest.raises(NoTurnError):
            session.respond()
        with pytest.raises(ServerError):
            await session.ask("are you there?")
        events = [event async for event in session.respond(model="openai:gpt-5")]
        assert isinstance(events[-1], TurnEnded)
        assert events[-1].message is not None
        assert text_of(events[-1].message.content).strip() == "here I am"
        assert [each.role for each in session.messages] == [Role.USER, Role.ASSISTANT]
        assert session.messages[-1].metadata.model == "openai:gpt-5"
        with pytest.raises(NoTurnError):
            session.respond()
        assert validate_session(await m.store.messages(session.id)) == []
