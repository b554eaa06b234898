"""Cancelling a turn: partial content is stored, and the session continues."""

import asyncio
from typing import Any

import pytest

from build import call, thinking
from metis.canonical import (
    MessageStatus,
    StopReason,
    new_tool_use_id,
)
from metis.session import Metis, Stored, TurnEnded
from metis.session.conversation import run_to_completion
from metis.streaming import TextDelta
from session.fake import Fake, Say, say, serving
from session.faults import check_whole
from session.helpers import events_of, options

pytestmark = pytest.mark.anyio
NAMES = ("anthropic", "openai", "openai-responses")


def script() -> list[Say]:
    thought = thinking("let me see", signature="c2ln")
    calls = [call("read_file", new_tool_use_id(), path=name) for name in ("a", "b")]
    first = say(thought, "I'll read two files.", *calls, pause_s=0.001)
    return [first, say("They hold text.")]


async def test_cancelled_response_keeps_partial_content(url: str) -> None:
    slow = say("one two three four", events=4, hang=True)
    async with serving(Fake(slow, say("fine"))) as fake, Metis(url, options(fake)) as m:
        session = await m.session(model="sonnet")
        events: list[Any] = []
        tasks: list[asyncio.Task[None]] = []
        async for event in session.send("count"):
            events.append(event)
            if isinstance(event, TextDelta) and event.text.startswith("two"):
                tasks.append(asyncio.create_task(session.cancel()))
        await tasks[0]
        assert isinstance(events[-1], TurnEnded)
        assert events[-1].stop_reason is StopReason.CANCELLED
        stored = await m.store.messages(session.id)
        partial = stored[1].metadata
        assert stored[1].content[0].text == "one two "  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType] - a text
        assert partial.status is MessageStatus.CANCELLED
        assert partial.stop_reason is StopReason.CANCELLED
        assert partial.usage is not None
        assert partial.usage.estimated
        assert partial.usage.input_tokens > 0
        assert partial.usage.cost_usd > 0
        await session.ask("go on")


async def test_abandoned_stream_cancels_the_turn(url: str) -> None:
    slow = say("one two three four", events=4, hang=True)
    async with serving(Fake(slow, say("fine"))) as fake, Metis(url, options(fake)) as m:
        session = await m.session(model="sonnet")
        async for event in session.send("count"):
            if isinstance(event, TextDelta):
                break
        answer = await session.ask("again")
        assert answer is not None
        stored = await m.store.messages(session.id)
    assert [m.metadata.status.value for m in stored] == [
        "complete",
        "cancelled",
        "complete",
        "complete",
    ]


async def test_close_ends_running_turns(url: str) -> None:
    slow = say("one two three four", events=4, hang=True)
    async with serving(Fake(slow)) as fake:
        async with Metis(url, options(fake)) as m:
            session = await m.session(model="sonnet")
            turn = session.send("count")
            async for event in turn:
                if isinstance(event, TextDelta):
                    break
        async with Metis(url, options(fake)) as m:
            assert m.store.recoveries == []
            check_whole(await m.store.messages(session.id))
        await turn.aclose()


async def test_turns_of_one_session_are_sequential(url: str) -> None:
    async with serving(Fake(*script(), *script())) as fake, Metis(url, options(fake)) as m:
        session = await m.session(model="sonnet")
        both = await asyncio.gather(events_of(session, "one"), events_of(session, "two"))
        stored = await m.store.messages(session.id)
    check_whole(stored)
    kinds = [message.role.value for message in stored]
    assert kinds == ["user", "assistant", "tool", "tool", "assistant"] * 2
    assert all(isinstance(each[-1], TurnEnded) for each in both)
    assert sum(isinstance(event, Stored) for each in both for event in each) == 8


async def test_work_finished_before_cancellation_is_kept() -> None:
    done = asyncio.Event()

    async def work() -> None:
        await asyncio.sleep(0.01)
        done.set()

    task = asyncio.create_task(run_to_completion(work()))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done.is_set()
