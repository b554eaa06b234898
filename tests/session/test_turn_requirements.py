"""Requirements on a turn: deltas are not stored, interrupts are marked, tools run."""

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager

import pytest

from build import call, image, text, thinking
from metis import interchange
from metis.canonical import (
    ContentBlock,
    OutcomeStatus,
    Role,
    ToolResultBlock,
    new_tool_use_id,
    validate_session,
)
from metis.canonical.errors import SwapRefusedError
from metis.session import Metis, Session, text_of
from metis.store.entries import MessageEntry
from metis.streaming import (
    MessageComplete,
    StreamError,
    TextDelta,
    ThinkingDelta,
    ToolUseStart,
)
from session.fake import Fake, Say, say, serving
from session.helpers import SONNET, ReadFile, events_of, options

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def talking(url: str, *script: Say) -> AsyncGenerator[tuple[Metis, Session, Fake]]:
    ReadFile.ran.clear()
    async with serving(Fake(*script)) as fake, Metis(url, options(fake)) as m:
        yield m, await m.session(model="sonnet"), fake


def reading(path: str = "a.txt", **fields: object) -> Say:
    tool_call = call("read_file", new_tool_use_id(), path=path)
    return say(thinking("hm", signature="c2ln"), "I look.", tool_call, **fields)


@pytest.mark.row("K-084", "K-085", "K-086", "K-083")
async def test_deltas_are_emitted_and_only_whole_messages_are_stored(url: str) -> None:
    async with talking(url, reading(), say("done")) as (m, session, _):
        events = await events_of(session, "read it")
        kept = await m.store.history(session.id)
    kinds = {type(event) for event in events}
    assert {TextDelta, ThinkingDelta, ToolUseStart} <= kinds
    assert {type(entry) for entry in kept} == {MessageEntry}
    roles = [entry.message.role for entry in kept if isinstance(entry, MessageEntry)]
    assert roles == [Role.USER, Role.ASSISTANT, Role.TOOL, Role.ASSISTANT]
    ends = [event for event in events if isinstance(event, MessageComplete | StreamError)]
    assert [type(end) for end in ends] == [MessageComplete, MessageComplete]


@pytest.mark.row("K-102", "K-121", "A-050")
async def test_calls_of_response_are_run_and_results_sent(url: str) -> None:
    async with talking(url, reading("b.txt"), say("it says b")) as (m, session, fake):
        answer = await session.ask("read it")
        stored = await m.store.messages(session.id)
    assert [dict(arguments) for arguments in ReadFile.ran] == [{"path": "b.txt"}]
    (result,) = stored[2].content
    assert isinstance(result, ToolResultBlock)
    assert result.content == (text("contents of b.txt"),)
    assert [message.role for message in fake.requests[1].messages] == ["user", "assistant", "tool"]
    assert answer is not None
    assert text_of(answer.content).strip() == "it says b"
    assert validate_session(stored) == []


@pytest.mark.row("K-011", "K-070")
async def test_interrupt_is_marked_on_response_and_results(url: str) -> None:
    """An interrupt during a stream is `aborted` twice in a klaude-code history."""
    cut = reading(events=8, hang=True)
    async with talking(url, cut) as (m, session, _):
        async with aclosing(session.send("read it")) as events:
            async for event in events:
                if isinstance(event, ToolUseStart):
                    break
        stored = await m.store.messages(session.id)
        kept = await m.store.history(session.id)
    written = interchange.dump("klaude-code", kept).data
    lines = [json.loads(line) for line in written.splitlines()]
    marks = {line["type"]: line["data"] for line in lines}
    assert marks["AssistantMessage"]["stop_reason"] == "aborted"
    assert marks["ToolResultMessage"]["status"] == "aborted"
    outcomes = [m.metadata.outcome for m in stored if m.role is Role.TOOL]
    assert [outcome and outcome.status for outcome in outcomes] == [OutcomeStatus.ABORTED]
    assert ReadFile.ran == []


@pytest.mark.row("M-284")
@pytest.mark.parametrize(
    ("prompt_blocks", "model", "capability"),
    [
        ([text("what is this?"), image()], "openai:gpt-3.5-turbo", "no_vision_support"),
        ([text("word " * 30_000)], "openai:gpt-3.5-turbo", "exceeds_context_window"),
    ],
)
async def test_swap_is_refused_if_history_does_not_fit(
    url: str, prompt_blocks: list[ContentBlock], model: str, capability: str
) -> None:
    async with talking(url, say("a cat")) as (m, session, _):
        await session.ask(prompt_blocks)
        before = await m.store.history(session.id)
        with pytest.raises(SwapRefusedError) as caught:
            await session.swap(model)
        assert session.model == SONNET
        assert await m.store.history(session.id) == before
    assert caught.value.capability == capability
    assert str(caught.value).startswith(f"Cannot swap to {model}: ")
    assert str(caught.value).endswith("Active model unchanged.")
