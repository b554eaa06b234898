"""Requirement rows that need a whole session."""

import asyncio
from contextlib import aclosing

import pytest
from aiohttp import web
from msgspec import UNSET

from build import call, thinking
from metis.canonical import Role, ToolResultBlock, new_tool_use_id, validate_session
from metis.canonical.errors import ServerError
from metis.canonical.metadata import OutcomeStatus
from metis.session import CallFailed, Metis, Stored, TurnEnded, text_of
from metis.store.entries import MessageEntry
from metis.streaming import TextDelta, ThinkingDelta, ToolUseStart
from metis.tools import Answer, Confirmation, Question, Registry, ToolContext, ToolOutput, Verdict
from metis.tools.tool import text_output
from metis.transport import Retry
from metis.wire.call import AdapterOptions
from session.fake import Fake, say, serving
from session.helpers import GPT, SONNET, ReadFile, events_of, options
from session.test_bus_events import WriteFile

pytestmark = pytest.mark.anyio


@pytest.mark.row("K-083", "K-084", "K-085", "K-086", "K-102")
async def test_stream_events_are_emitted_and_only_messages_are_stored(url: str) -> None:
    ReadFile.ran.clear()
    first = say(
        thinking("because", signature="c2ln"),
        "I read it.",
        call("read_file", new_tool_use_id(), path="a"),
    )
    async with serving(Fake(first, say("done"))) as fake, Metis(url, options(fake)) as m:
        session = await m.session(model="sonnet")
        events = await events_of(session, "read a")
        entries = await m.store.history(session.id)
    for kind in (TextDelta, ThinkingDelta, ToolUseStart):
        assert any(isinstance(event, kind) for event in events)
    assert all(isinstance(entry, MessageEntry) for entry in entries)
    stored_messages = [event.message for event in events if isinstance(event, Stored)]
    messages = [entry.message for entry in entries if isinstance(entry, MessageEntry)]
    assert messages[1:] == stored_messages
    words = "".join(e.text for e in events if isinstance(e, TextDelta))
    assert words == "".join(
        text_of(each.content) for each in messages if each.role.value == "assistant"
    )
    assert [dict(each) for each in ReadFile.ran] == [{"path": "a"}]
    assert isinstance(events[-1], TurnEnded)
    assert events[-1].message == messages[-1]


class Lookup(ReadFile):
    """A tool with a value for programs and another for screens."""

    async def execute(self, arguments: object, context: ToolContext) -> ToolOutput:  # noqa: ARG002 - the same for all
        return text_output(
            "three", value={"count": 3}, ui={"shown": True}, files_modified=("a.txt",)
        )


@pytest.mark.row("K-120", "K-121", "K-122")
async def test_tool_payload_is_stored_with_result(url: str) -> None:
    tool_call = call("read_file", new_tool_use_id(), path="a")
    async with (
        serving(Fake(say(tool_call), say("done"))) as fake,
        Metis(url, options(fake, tools=Registry(Lookup))) as m,
    ):
        session = await m.session(model="sonnet")
        await session.ask("count")
        (result,) = [each for each in await m.store.messages(session.id) if each.role is Role.TOOL]
    own = session.messages[1].content[0].id  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType] - the call
    block, outcome = result.content[0], result.metadata.outcome
    assert isinstance(block, ToolResultBlock)
    assert outcome is not None
    assert block.tool_use_id == result.metadata.parent_tool_use_id == own
    assert text_of(block.content) == "three"
    assert (outcome.status, outcome.tool_name) == (OutcomeStatus.SUCCESS, "read_file")
    assert (outcome.value, outcome.ui) == ({"count": 3}, {"shown": True})
    assert outcome.side_effects == ({"kind": "write", "path": "a.txt"},)
    assert outcome.value is not UNSET
    assert "shown" not in str(fake.bodies[-1])


@pytest.mark.parametrize("path", ["yes", "no with words", "no", "always"])
@pytest.mark.row("GX-09")
async def test_every_confirmation_answer_leaves_a_valid_thread(url: str, path: str) -> None:
    answers = {
        "yes": Answer(Verdict.ALLOW_ONCE),
        "no with words": Answer(Verdict.DENY, "use the other file"),
        "no": Answer(Verdict.DENY),
        "always": Answer(Verdict.ALLOW_FOR_SESSION),
    }
    questions: list[str] = []

    async def ask(question: Question) -> Answer:
        questions.append(question.call.name)
        return answers[path]

    steps = [
        step
        for _ in range(2)
        for step in (say(call("write_file", new_tool_use_id(), path="a")), say("done"))
    ]
    chosen = {"tools": Registry(WriteFile), "confirmation": Confirmation(ask)}
    async with serving(Fake(*steps)) as fake, Metis(url, options(fake, **chosen)) as m:
        session = await m.session(model="sonnet")
        await session.ask("write")
        await session.ask("write again")
        stored = await m.store.messages(session.id)
    assert validate_session(stored) == []
    results = [m.content[0] for m in stored if m.role is Role.TOOL]
    assert len(questions) == (1 if path == "always" else 2)
    for result in results:
        assert isinstance(result, ToolResultBlock)
        assert result.is_error == path.startswith("no")
        assert ("use the other file" in text_of(result.content)) == (path == "no with words")


class Watched(Fake):
    """A provider that records whether a client has disconnected."""

    def __init__(self, *script: object) -> None:
        super().__init__(*script)  # pyright: ignore[reportArgumentType] - steps
        self.is_gone = asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        try:
            return await super().handle(request)
        finally:
            if request.transport is None or request.transport.is_closing():
                self.is_gone.set()


@pytest.mark.row("T137")
async def test_abandoned_stream_closes_connection_to_provider(url: str) -> None:
    slow = say("one two three four", events=4, hang=True)
    fake = Watched(slow)
    async with serving(fake), Metis(url, options(fake)) as m:
        session = await m.session(model="sonnet")
        async with aclosing(session.send("count")) as events:
            async for event in events:
                if isinstance(event, TextDelta):
                    break
        await fake.is_gone.wait()
        usage = session.messages[-1].metadata.usage
    assert usage is not None
    assert usage.estimated


@pytest.mark.row("T156")
async def test_every_call_has_its_usage_and_the_sum_is_computed(url: str) -> None:
    calls = [say(call("read_file", new_tool_use_id(), path="a"), input_tokens=n) for n in (10, 20)]
    async with (
        serving(Fake(*calls, say("done", input_tokens=30))) as fake,
        Metis(url, options(fake)) as m,
    ):
        session = await m.session(model="sonnet")
        events = await events_of(session, "read")
        usages = [each.metadata.usage for each in session.messages if each.metadata.usage]
    assert [usage.input_tokens for usage in usages] == [10, 20, 30]
    assert isinstance(events[-1], TurnEnded)
    assert events[-1].cost_usd == sum(usage.cost_usd for usage in usages)
    assert session.cost().total_usd == events[-1].cost_usd


@pytest.mark.row("T177")
async def test_session_keeps_its_api_key_and_cache(url: str) -> None:
    keys = {"openai": ["key-one", "key-two"], "anthropic": ["key-three"]}
    limited = say(status=429, error="slow down")
    script = [say("a"), say("b"), limited, say("c"), say("d"), say("e")]
    given = {"keys": keys, "retry": Retry(attempts=2, first_s=0.0)}
    async with serving(Fake(*script)) as fake, Metis(url, options(fake, **given)) as m:
        session, other = await m.session(model=GPT), await m.session(model=GPT)
        await session.ask("one")
        await other.ask("one")
        await session.ask("two")
        await session.swap(SONNET)
        await session.ask("three")
        mine = AdapterOptions(native={"openai_chat": {"prompt_cache_key": "mine"}})
    used = [request.get("authorization") for request in fake.headers]
    one, two = "Bearer key-one", "Bearer key-two"
    assert used == [one, one, one, two, None]
    names = [body.get("prompt_cache_key") for body in fake.bodies]
    assert names == [session.id, other.id, session.id, session.id, None]
    async with serving(Fake()) as fake, Metis(url, options(fake, options=mine)) as m:
        await (await m.session(model=GPT)).ask("four")
    assert fake.bodies[0]["prompt_cache_key"] == "mine"


@pytest.mark.row("T192", "AX-02")
async def test_fallbacks_share_one_attempt_limit(url: str) -> None:
    down = say(status=503, error="overloaded")
    chosen = {
        "retry": Retry(attempts=3, first_s=0.0),
        "fallbacks": {"*": [GPT, "openai-responses:gpt-5"]},
    }
    async with serving(Fake(*[down] * 9)) as fake, Metis(url, options(fake, **chosen)) as m:
        session = await m.session(model="sonnet")
        attempts: list[int] = []

        async def listen() -> None:
            async for event in session.send("hello"):
                match event:
                    case CallFailed():
                        attempts.append(event.attempt)
                    case _:
                        pass

        with pytest.raises(ServerError):
            await listen()
        assert attempts == [1, 2, 3, 4, 5]
        fake.script[:] = [down, say("fine")]
        assert await session.ask("again") is not None
    assert len(fake.requests) == 7
