"""Cancel a turn at every place where it waits: the session is whole, and goes on everywhere."""

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any

import pytest
from msgspec.structs import replace

from build import call, thinking
from metis import adapters
from metis.adapters import Adapter
from metis.canonical import (
    ContentBlock,
    Message,
    MessageStatus,
    StopReason,
    ToolResultBlock,
    ToolUseBlock,
    new_tool_use_id,
    validate_session,
)
from metis.session import Metis, Session, Stored, TurnEnded
from metis.session.finishing import finished
from metis.sim import Simulator
from metis.streaming import TextDelta
from metis.transport import Transport
from metis.wire.call import AdapterOptions, RequestContext
from session.fake import Fake, Say, say, serving
from session.kit import GPT, SONNET, ReadFile, events_of, options

pytestmark = pytest.mark.anyio
NAMES = ("anthropic", "openai", "openai-responses")


class CancelAt:
    """Runs a coroutine and cancels it at its n-th wait."""

    def __init__(self, work: Coroutine[Any, Any, None], at: int) -> None:
        self._work = work
        self._at = at
        self.waits = 0

    def __await__(self) -> Generator[Any, Any, None]:
        value: Any = None
        error: BaseException | None = None
        while True:
            try:
                if self.waits == self._at:
                    self.waits += 1
                    waiting = self._work.throw(asyncio.CancelledError())
                elif error is not None:
                    waiting = self._work.throw(error)
                else:
                    waiting = self._work.send(value)
            except StopIteration:
                return
            self.waits += 1
            value = error = None
            try:
                value = yield waiting
            except BaseException as thrown:  # noqa: BLE001 - it is passed on
                error = thrown


def script() -> list[Say]:
    thought = thinking("let me see", signature="c2ln")
    calls = [call("read_file", new_tool_use_id(), path=name) for name in ("a", "b")]
    first = say(thought, "I'll read two files.", *calls, pause_s=0.001)
    return [first, say("They hold text.")]


async def run_cancelled(session: Session, at: int) -> tuple[int, bool]:
    """Send, with the turn's own task cancelled at its n-th wait; how often it waited."""
    turn = session._turn("read a and b")  # pyright: ignore[reportPrivateUsage] - the task itself
    cancelling = CancelAt(session._run(turn), at)  # pyright: ignore[reportPrivateUsage] - the same

    async def run() -> None:
        await cancelling

    task = asyncio.create_task(run())
    await asyncio.wait({task})
    is_cancelled = task.cancelled()
    if not is_cancelled:
        task.result()
    return cancelling.waits, is_cancelled


def check_whole(messages: list[Message]) -> None:
    assert validate_session(messages) == []
    calls = {b.id for m in messages for b in m.content if isinstance(b, ToolUseBlock)}
    answered = {
        b.tool_use_id for m in messages for b in m.content if isinstance(b, ToolResultBlock)
    }
    assert calls == answered
    for message in messages:
        assert message.metadata.status is not MessageStatus.PARTIAL


def unsealed(message: Message) -> tuple[ContentBlock, ...]:
    return tuple(block for block in message.content if block.type != "thinking")


async def check_goes_on(messages: list[Message], sim: Simulator, client: Transport) -> None:
    """The strict simulator takes the next request on every protocol."""
    tools = (ReadFile().definition,)
    for name in NAMES:
        adapter: Adapter = adapters.get(name, base_url=sim.base_url)
        # The seal is not one of the simulator's own, which it would notice.
        sent = [replace(m, content=unsealed(m)) for m in messages if unsealed(m)]
        request = adapter.to_wire(sent, tools, AdapterOptions())
        await client.complete(adapter, request, RequestContext(provider=name))


@pytest.mark.parametrize("model", [SONNET, GPT])
async def test_a_cancel_at_any_wait_leaves_a_session_that_goes_on(url: str, model: str) -> None:
    at, outcomes = 0, set[str]()
    async with Simulator() as sim, Transport() as client:
        while True:
            async with serving(Fake(*script())) as fake, Metis(url, options(fake)) as m:
                session = await m.session(model=model)
                waits, is_cancelled = await run_cancelled(session, at)
                fake.script.clear()
                stored = await m.store.messages(session.id)
                assert stored == session.messages
                check_whole(stored)
                outcomes |= {message.metadata.status.value for message in stored}
                answer = await session.ask("go on")
                assert answer is not None
                again = await m.store.messages(session.id)
                check_whole(again)
                await check_goes_on(again, sim, client)
            async with Metis(url, options(fake)) as m:
                assert (await m.resume(session.id)).messages == session.messages
                assert m.store.recovered == []
            if not is_cancelled and waits <= at:
                break
            at += 1
    assert at > 10
    assert outcomes == {"complete", "cancelled"}


async def test_a_cancelled_answer_keeps_what_had_come(url: str) -> None:
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


async def test_whoever_stops_listening_cancels_the_turn(url: str) -> None:
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


async def test_closing_ends_what_still_runs(url: str) -> None:
    slow = say("one two three four", events=4, hang=True)
    async with serving(Fake(slow)) as fake:
        async with Metis(url, options(fake)) as m:
            session = await m.session(model="sonnet")
            turn = session.send("count")
            async for event in turn:
                if isinstance(event, TextDelta):
                    break
        async with Metis(url, options(fake)) as m:
            assert m.store.recovered == []
            check_whole(await m.store.messages(session.id))
        await turn.aclose()


async def test_turns_of_one_session_come_one_after_the_other(url: str) -> None:
    async with serving(Fake(*script(), *script())) as fake, Metis(url, options(fake)) as m:
        session = await m.session(model="sonnet")
        both = await asyncio.gather(events_of(session, "one"), events_of(session, "two"))
        stored = await m.store.messages(session.id)
    check_whole(stored)
    kinds = [message.role.value for message in stored]
    assert kinds == ["user", "assistant", "tool", "tool", "assistant"] * 2
    assert all(isinstance(each[-1], TurnEnded) for each in both)
    assert sum(isinstance(event, Stored) for each in both for event in each) == 8


async def test_finished_work_is_done_though_cancelled() -> None:
    done = asyncio.Event()

    async def work() -> None:
        await asyncio.sleep(0.01)
        done.set()

    task = asyncio.create_task(finished(work()))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done.is_set()
