"""Interrupted responses: what is stored, and how a model continues them."""

import asyncio
from typing import Any

import pytest

from build import call, thinking
from metis.canonical import MessageStatus, Role, TextBlock, new_tool_use_id
from metis.canonical.errors import NetworkError
from metis.session import Metis
from metis.session.response import CONTINUE_PROMPT
from metis.streaming import ToolUseStart
from session.fake import Fake, Say, say, serving
from session.faults import check_whole
from session.helpers import GPT, SONNET, options

pytestmark = pytest.mark.anyio
NAMES = {
    "anthropic": SONNET,
    "openai": GPT,
    "openai-responses": "openai-responses:gpt-5",
}


def answer(**fields: Any) -> Say:
    thought = thinking("let me see", signature="c2ln")
    tool_call = call("read_file", new_tool_use_id(), path="a")
    return say(thought, "I read it.", tool_call, **fields)


@pytest.mark.row("KX-07")
@pytest.mark.parametrize("is_cancelled", [True, False])
async def test_only_text_is_kept_if_configured(url: str, *, is_cancelled: bool) -> None:
    broken = answer(events=8, hang=is_cancelled)
    async with (
        serving(Fake(broken, say("fine"))) as fake,
        Metis(url, options(fake, partial="text")) as m,
    ):
        session = await m.session(model="sonnet")
        tasks: list[asyncio.Task[None]] = []
        try:
            async for event in session.send("read"):
                if is_cancelled and isinstance(event, ToolUseStart) and not tasks:
                    tasks.append(asyncio.create_task(session.cancel()))
        except NetworkError:
            assert not is_cancelled
        for task in tasks:
            await task
        stored = await m.store.messages(session.id)
        await session.ask("go on")
        check_whole(await m.store.messages(session.id))
    (_, partial) = stored
    assert partial.content == (TextBlock("I read it. "),)
    status = MessageStatus.CANCELLED if is_cancelled else MessageStatus.ERROR
    assert partial.metadata.status is status
    assert partial.metadata.usage is not None


async def test_everything_is_kept_by_default(url: str) -> None:
    async with serving(Fake(answer(events=8))) as fake, Metis(url, options(fake)) as m:
        session = await m.session(model="sonnet")
        with pytest.raises(NetworkError):
            await session.ask("read")
        stored = await m.store.messages(session.id)
    assert [block.type for block in stored[1].content] == ["thinking", "text", "tool_use"]
    assert stored[2].role is Role.TOOL


@pytest.mark.row("KX-08")
@pytest.mark.parametrize("name", NAMES)
async def test_fallback_model_is_prompted_to_continue(url: str, name: str) -> None:
    broken = say("one two three four", events=4)
    first = GPT if name == "anthropic" else SONNET
    steps_in = {"*": [NAMES[name]]}
    async with (
        serving(Fake(broken, say("three four"))) as fake,
        Metis(url, options(fake, fallbacks=steps_in)) as m,
    ):
        session = await m.session(model=first)
        await session.ask("count")
        stored = await m.store.messages(session.id)
    request = fake.requests[1]
    assert [str(each.role) for each in request.messages] == ["user", "assistant", "user"]
    assert [words(each) for each in request.messages] == ["count", "one two", CONTINUE_PROMPT]
    assert [words(each) for each in stored] == ["count", "one two", "three four"]


@pytest.mark.row("KX-08")
async def test_retried_model_is_prompted_to_continue(url: str) -> None:
    broken = say("one two three four", events=4)
    async with serving(Fake(broken, say("three four"))) as fake, Metis(url, options(fake)) as m:
        session = await m.session(model="sonnet")
        with pytest.raises(NetworkError):
            await session.ask("count")
        await session.ask("and?")
        assert CONTINUE_PROMPT not in str(fake.bodies[-1])
        fake.script += [broken, say("done")]
        with pytest.raises(NetworkError):
            await session.ask("count again")
        async for _ in session.respond():
            pass
    assert [words(each) for each in fake.requests[-1].messages][-2:] == ["one two", CONTINUE_PROMPT]


def words(message: Any) -> str:
    texts = (block.text for block in message.content if isinstance(block, TextBlock))
    return "".join(texts).rstrip()
