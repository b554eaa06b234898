"""Sessions: turns, tools, swaps, fallbacks, summaries, budgets and errors."""

import asyncio
import logging
from decimal import Decimal
from typing import Any

import pytest
from msgspec.structs import replace

from build import call, image, text, thinking
from metis.canonical import (
    ImageBlock,
    Message,
    MessageStatus,
    RoutingMode,
    StopReason,
    TextBlock,
    ToolResultBlock,
    new_tool_use_id,
    validate_session,
)
from metis.canonical.errors import (
    BudgetExceededError,
    ContextOverflowError,
    InvalidRequestError,
    NetworkError,
    ServerError,
    SessionEndedError,
    SwapRefusedError,
    TurnLimitError,
    UnknownModelError,
)
from metis.canonical.metadata import OutcomeStatus
from metis.session import (
    Budget,
    CallFailed,
    Lost,
    Metis,
    Routed,
    Stored,
    TurnEnded,
    Warned,
    text_of,
)
from metis.store.entries import CompactionEntry
from metis.streaming import TextDelta
from metis.transport import Transport
from session.fake import Fake, Say, say, serving
from session.helpers import GPT, SONNET, ReadFile, events_of, options

pytestmark = pytest.mark.anyio
ONE = Decimal("0.000654")


def reading(path: str = "README.md", **fields: object) -> Say:
    return say("I'll read it.", call("read_file", new_tool_use_id(), path=path), **fields)


@pytest.mark.row("M-068")
async def test_a_simple_exchange_is_two_messages_with_an_exact_cost(url: str) -> None:
    async with (
        serving(Fake(say("Hello there."))) as fake,
        Metis(url, options(fake, tools=None, default_model="sonnet")) as m,
    ):
        session = await m.session()
        events = await events_of(session, "Hi")
        stored = await m.store.messages(session.id)
    words = "".join(event.text for event in events if isinstance(event, TextDelta))
    assert words.strip() == "Hello there."
    assert [message.role.value for message in stored] == ["user", "assistant"]
    answer = stored[1].metadata
    assert answer.model == SONNET
    assert answer.routing is not None
    assert answer.routing.mode is RoutingMode.DEFAULT
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (8, 42)
    assert answer.usage.cost_usd == ONE
    assert validate_session(stored) == []
    assert isinstance(events[-1], TurnEnded)
    assert events[-1].cost_usd == ONE
    assert sum(isinstance(event, Routed) for event in events) == 1
    assert sum(isinstance(event, Stored) for event in events) == 1


async def test_resumed_session_equals_original(url: str) -> None:
    async with serving(Fake(say("one"), say("two"))) as fake:
        async with Metis(url, options(fake)) as m:
            session = await m.session(model="sonnet", system="Be short.")
            await session.ask("first")
            own = session.id
        async with Metis(url, options(fake)) as m:
            again = await m.resume(own)
            assert again.model == SONNET
            answer = await again.ask("second")
            assert answer is not None
            assert answer.content == (TextBlock("two "),)
            assert again.cost().total_usd == 2 * ONE
    assert len(fake.requests[1].messages) == 4
    assert fake.bodies[1]["system"]


async def test_session_of_removed_model_continues_with_another(url: str) -> None:
    async with serving(Fake(say("here I am"))) as fake, Metis(url, options(fake)) as m:
        record = await m.store.create_session(active_model="elsewhere:gone-1")
        session = await m.resume(record.id)
        with pytest.raises(UnknownModelError, match="elsewhere:gone-1"):
            await session.ask("are you there?")
        await session.swap("sonnet")
        answer = await session.ask("and you?")
    assert answer is not None
    assert text_of(answer.content) == "here I am "


@pytest.mark.row("M-239", "M-240", "M-241", "M-242", "M-243", "M-244")
async def test_a_tool_round_trip_and_a_swap_to_another_provider(url: str) -> None:
    ReadFile.ran.clear()
    script = [reading(), say("It describes Foo."), reading("LICENSE"), say("It is MIT.")]
    async with serving(Fake(*script)) as fake, Metis(url, options(fake)) as m:
        session = await m.session(model="sonnet")
        await session.ask("Summarize README.md")
        assert [dict(each) for each in ReadFile.ran] == [{"path": "README.md"}]
        found = session.preview_swap("openai:gpt-5")
        assert (found.fits, found.dropped, found.sealed) == (True, (), ())
        await session.swap("openai:gpt-5")
        events = await events_of(session, "What about the LICENSE file?")
        stored = await m.store.messages(session.id)
        calls = await m.store.tool_calls(session.id)
    assert [message.role.value for message in stored[:4]] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert validate_session(stored) == []
    assert [each.status for each in calls] == ["succeeded", "succeeded"]
    assert calls[0].id != calls[1].id
    third = stored[5].metadata
    assert (third.model, third.provider) == (GPT, "openai")
    assert third.routing is not None
    assert third.routing.mode is RoutingMode.MANUAL
    assert "swap" in third.routing.reason
    assert all(message.metadata.usage for message in stored if message.role.value == "assistant")
    assert not [event for event in events if isinstance(event, Lost)]
    wire = fake.bodies[2]["messages"]
    assert wire[0]["role"] == "user"
    wire_call, answered = wire[1]["tool_calls"][0], wire[2]
    assert answered["role"] == "tool"
    assert answered["tool_call_id"] == wire_call["id"]
    assert wire_call["function"]["arguments"] == '{"path":"README.md"}'


@pytest.mark.row("M-244", "T204", "T212")
async def test_withheld_thinking_is_reported_and_sent_to_its_issuer_later(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    thought = thinking("because", signature="c2lnbmVk")
    async with (
        serving(Fake(say(thought, "yes"), say("no"), say("back"))) as fake,
        Metis(url, options(fake, tools=None)) as m,
    ):
        session = await m.session(model="sonnet")
        await session.ask("why?")
        with caplog.at_level(logging.WARNING):
            found = session.preview_swap(GPT)
        assert not caplog.records
        assert found.fits
        assert [loss.block_type for loss in found.sealed] == ["thinking"]
        assert found.dropped == ()
        await session.swap(GPT)
        first = await events_of(session, "and now?")
        again = await events_of(session, "and then?")
        await session.swap("sonnet")
        await session.ask("back?")
    lost = [event for event in first if isinstance(event, Lost)]
    assert [loss.block_type for loss in lost[0].losses] == ["thinking"]
    assert not [event for event in again if isinstance(event, Lost)]
    sent = fake.bodies[3]["messages"][1]["content"][0]
    assert (sent["type"], sent["signature"]) == ("thinking", "c2lnbmVk")


@pytest.mark.row("M-218", "M-245", "M-247", "M-284")
async def test_swap_is_refused_if_history_does_not_fit(url: str) -> None:
    blind = "openai:gpt-3.5-turbo"
    async with serving(Fake(say("a cat"))) as fake, Metis(url, options(fake, tools=None)) as m:
        session = await m.session(model="sonnet")
        await session.ask([text("what is this?"), image()])
        before = await m.store.history(session.id)
        with pytest.raises(SwapRefusedError) as caught:
            await session.swap(blind)
        assert session.model == SONNET
        assert await m.store.history(session.id) == before
    error_text = str(caught.value)
    assert error_text.startswith(f"Cannot swap to {blind}: ")
    assert "session contains images that this model can't process" in error_text
    assert error_text.endswith("Active model unchanged.")
    assert caught.value.capability == "no_vision_support"


async def test_swap_during_turn_is_deferred_and_last_one_wins(url: str) -> None:
    script = [reading(), say("done"), say("next")]
    async with serving(Fake(*script)) as fake, Metis(url, options(fake)) as m:
        session = await m.session(model="sonnet")
        async for event in session.send("read it"):
            if isinstance(event, Stored) and event.message.role.value == "tool":
                await session.swap("openai:gpt-5-mini")
                await session.swap(GPT)
        await session.ask("again")
        stored = await m.store.messages(session.id)
    models = [message.metadata.model for message in stored if message.metadata.model]
    assert models == [SONNET, SONNET, GPT]


async def test_alias_at_start_selects_model_for_one_turn(url: str) -> None:
    async with serving(Fake()) as fake, Metis(url, options(fake)) as m:
        session = await m.session(model="sonnet")
        await session.ask("@gpt-5 hello")
        await session.ask(r"\@gpt-5 is a name")
        with pytest.raises(UnknownModelError):
            await session.ask("@nobody hello")
        stored = await m.store.messages(session.id)
    assert [message.metadata.model for message in stored[1::2]] == [GPT, SONNET]
    first = stored[1].metadata.routing
    assert first is not None
    assert first.mode is RoutingMode.OVERRIDE
    assert stored[0].content == (TextBlock("hello"),)
    assert stored[2].content == (TextBlock("@gpt-5 is a name"),)
    assert len(stored) == 4


@pytest.mark.row("T32")
async def test_malformed_arguments_are_answered_and_never_run(url: str) -> None:
    ReadFile.ran.clear()
    broken = reading(raw_arguments='{"path": "REA')
    async with serving(Fake(broken, say("sorry"))) as fake, Metis(url, options(fake)) as m:
        session = await m.session(model=GPT)
        await session.ask("read it")
        stored = await m.store.messages(session.id)
    assert ReadFile.ran == []
    outcome = stored[2].metadata.outcome
    assert outcome is not None
    assert outcome.status is OutcomeStatus.ERROR
    assert len(fake.requests) == 2
    assert validate_session(stored) == []


@pytest.mark.parametrize("model", [SONNET, GPT])
async def test_truncated_call_is_never_run(url: str, model: str) -> None:
    ReadFile.ran.clear()
    cut = reading(stop_reason=StopReason.MAX_TOKENS)
    async with serving(Fake(cut)) as fake, Metis(url, options(fake)) as m:
        session = await m.session(model=model)
        events = await events_of(session, "read it")
        stored = await m.store.messages(session.id)
    assert ReadFile.ran == []
    assert isinstance(events[-1], TurnEnded)
    assert events[-1].stop_reason is StopReason.MAX_TOKENS
    result = stored[2].content[0]
    assert isinstance(result, ToolResultBlock)
    assert result.is_error
    assert len(fake.requests) == 1


async def test_truncated_stream_is_stored_and_can_be_retried(url: str) -> None:
    broken = reading(events=6)
    async with (
        serving(Fake(broken, say("now it works"))) as fake,
        Metis(url, options(fake)) as m,
    ):
        session = await m.session(model="sonnet")
        with pytest.raises(NetworkError):
            await session.ask("read it")
        stored = await m.store.messages(session.id)
        partial = stored[1].metadata
        assert partial.status is MessageStatus.ERROR
        assert partial.stop_reason is StopReason.ERROR
        assert partial.usage is not None
        assert validate_session(stored) == []
        answer = await session.ask("again")
        assert answer is not None
    assert len(fake.requests) == 2


@pytest.mark.row("T191")
async def test_fallback_model_answers_when_provider_is_down(url: str) -> None:
    down = say(status=503, error="overloaded")
    fallbacks = {"sonnet": [GPT]}
    async with (
        serving(Fake(down, say("here"))) as fake,
        Metis(url, options(fake, fallbacks=fallbacks)) as m,
    ):
        session = await m.session(model="sonnet")
        events = await events_of(session, "hello")
        stored = await m.store.messages(session.id)
    assert [event.attempt for event in events if isinstance(event, CallFailed)] == [1]
    record = stored[1].metadata.routing
    assert record is not None
    assert record.chosen_model == GPT
    assert record.rule_name == "fallback"
    assert SONNET in record.reason
    assert record.alternatives_considered == (SONNET,)
    assert [e.code for e in events if isinstance(e, Warned)] == ["fallback"]


@pytest.mark.row("T193")
async def test_refused_request_is_not_sent_to_fallbacks(url: str) -> None:
    refused = say(status=400, error="no such parameter: frobnicate")
    async with (
        serving(Fake(refused)) as fake,
        Metis(url, options(fake, fallbacks={"*": [GPT]})) as m,
    ):
        session = await m.session(model="sonnet")
        with pytest.raises(InvalidRequestError):
            await session.ask("hello")
    assert len(fake.requests) == 1


async def test_provider_error_is_raised_without_fallback_rule(url: str) -> None:
    async with (
        serving(Fake(say(status=500, error="oh"))) as fake,
        Metis(url, options(fake)) as m,
    ):
        session = await m.session(model="sonnet")
        with pytest.raises(ServerError):
            await session.ask("hello")


@pytest.mark.row("T193")
async def test_refused_history_is_repaired_once_and_sent_again(url: str) -> None:
    thought = thinking("because", signature="c2lnbmVk")
    refused = say(status=400, error="messages.1.content.0: Invalid `signature` in `thinking` block")
    script = [say(thought, "yes"), refused, say("fine"), say("still")]
    async with serving(Fake(*script)) as fake, Metis(url, options(fake, tools=None)) as m:
        session = await m.session(model="sonnet")
        await session.ask("why?")
        events = await events_of(session, "and?")
        await session.ask("so?")
        stored = await m.store.messages(session.id)
    assert [e.code for e in events if isinstance(e, Warned)] == ["repaired"]
    kinds = [[b["type"] for b in body["messages"][1]["content"]] for body in fake.bodies[1:]]
    assert kinds == [["thinking", "text"], ["text"], ["text"]]
    assert stored[1].content[0].type == "thinking"


@pytest.mark.row("T185")
async def test_full_window_is_summarised_and_turn_continues(url: str) -> None:
    full = say(status=400, error="prompt is too long: 250000 tokens > 200000 maximum")
    script = [reading(), say("one"), full, say("the gist"), say("two")]
    async with serving(Fake(*script)) as fake, Metis(url, options(fake)) as m:
        session = await m.session(model="sonnet")
        await session.ask("read it")
        events = await events_of(session, "go on")
        assert [e.code for e in events if isinstance(e, Warned)] == ["compacted"]
        shown = session.messages
        assert "the gist" in text_of(shown[0].content)
        assert len(await m.store.messages(session.id)) == 6
        assert session.cost().total_usd == 4 * ONE
        own = session.id
        async with Metis(url, options(fake)) as other:
            again = await other.resume(own)
            assert again.messages == shown
            assert again.cost().total_usd == 4 * ONE


async def test_a_summary_without_usage_is_priced_by_an_estimate(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete = Transport.complete

    async def without_usage(*arguments: Any) -> Message:
        message = await complete(*arguments)
        return replace(message, metadata=replace(message.metadata, usage=None))

    monkeypatch.setattr(Transport, "complete", without_usage)
    script = [say("one", input_tokens=190_000), say("the gist"), say("two")]
    async with serving(Fake(*script)) as fake, Metis(url, options(fake)) as m:
        session = await m.session(model="haiku")
        await session.ask("first")
        await session.ask("second")
        history = await m.store.history(session.id)
    (summary,) = [entry for entry in history if isinstance(entry, CompactionEntry)]
    assert summary.details is not None
    usage = summary.details["usage"]
    assert usage["estimated"] is True
    assert usage["input_tokens"] > 0
    assert usage["output_tokens"] > 0
    assert Decimal(usage["cost_usd"]) > 0


async def test_history_near_limit_is_summarised_before_the_call(url: str) -> None:
    script = [say("one", input_tokens=190_000), say("the gist"), say("two")]
    async with serving(Fake(*script)) as fake, Metis(url, options(fake, compact_with=GPT)) as m:
        session = await m.session(model="haiku")
        await session.ask("first")
        events = await events_of(session, "second")
    assert [e.code for e in events if isinstance(e, Warned)] == ["compacted"]
    assert fake.bodies[1]["model"] == "gpt-5"
    assert len(fake.requests[2].messages) == 2


@pytest.mark.parametrize("why", ["small", "down"])
async def test_summary_falls_back_to_model_of_the_turn(url: str, why: str) -> None:
    other = "openai:gpt-3.5-turbo" if why == "small" else GPT
    down = [say(status=500, error="oh")] if why == "down" else []
    script = [say("one", input_tokens=190_000), *down, say("the gist"), say("two")]
    async with serving(Fake(*script)) as fake, Metis(url, options(fake, compact_with=other)) as m:
        session = await m.session(model="haiku")
        await session.ask("word " * 20_000)
        events = await events_of(session, "second")
    assert [e.code for e in events if isinstance(e, Warned)] == ["compacted"]
    models = [body["model"] for body in fake.bodies]
    haiku = "claude-haiku-4-5"
    assert models == [haiku, *(["gpt-5"] if why == "down" else []), haiku, haiku]


async def test_a_turn_that_cannot_be_shortened_fails_with_the_overflow(url: str) -> None:
    full = say(status=400, error="prompt is too long: 250000 tokens > 200000 maximum")
    async with serving(Fake(full)) as fake, Metis(url, options(fake)) as m:
        session = await m.session(model="sonnet")
        with pytest.raises(ContextOverflowError):
            await session.ask("x")


async def test_budget_warns_and_then_refuses_before_the_call(url: str) -> None:
    budget = Budget(session_usd=Decimal("0.0013"), day_usd=Decimal(5))
    async with serving(Fake()) as fake, Metis(url, options(fake, budget=budget)) as m:
        session = await m.session(model="sonnet")
        await session.ask("one")
        await session.ask("two")
        with pytest.raises(BudgetExceededError) as caught:
            await session.ask("three")
    assert caught.value.spent_usd == 2 * ONE
    assert len(fake.requests) == 2


async def test_the_budget_of_a_day_counts_all_sessions_and_warns_once(url: str) -> None:
    budget = Budget(day_usd=Decimal("0.0016"))
    async with serving(Fake()) as fake:
        async with Metis(url, options(fake)) as m:
            await (await m.session(model="sonnet")).ask("one")
            await (await m.session(model="sonnet")).ask("two")
        async with Metis(url, options(fake, budget=budget)) as m:
            events = await events_of(await m.session(model="sonnet"), "three")
            assert [e.code for e in events if isinstance(e, Warned)] == ["budget"]
            with pytest.raises(BudgetExceededError):
                await (await m.session(model="sonnet")).ask("four")


async def test_model_without_price_is_reported_as_unpriced(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(Fake()) as fake, Metis(url, options(fake)) as m:
        session = await m.session(model="openai:gpt-unheard-of")
        with caplog.at_level(logging.WARNING, "metis.session"):
            await session.ask("one")
            await session.ask("two")
        cost = session.cost()
        stored = await m.store.messages(session.id)
    assert cost.unpriced_models == ("openai:gpt-unheard-of",)
    assert cost.total_usd == 0
    usage = stored[1].metadata.usage
    assert usage is not None
    assert usage.pricing_version == "unpriced"
    assert len([r for r in caplog.records if r.name == "metis.session"]) == 1


@pytest.mark.row("T166")
async def test_empty_response_is_reported_and_not_stored(url: str) -> None:
    async with serving(Fake(say(), say("yes"))) as fake, Metis(url, options(fake)) as m:
        session = await m.session(model="sonnet")
        events = await events_of(session, "hello?")
        assert [e.code for e in events if isinstance(e, Warned)] == ["empty_answer"]
        assert len(await m.store.messages(session.id)) == 1
        assert session.cost().total_usd == ONE
        await session.ask("well?")


async def test_endless_tool_loop_is_stopped(url: str) -> None:
    async with (
        serving(Fake(*[reading() for _ in range(9)])) as fake,
        Metis(url, options(fake, max_calls=3)) as m,
    ):
        session = await m.session(model="sonnet")
        with pytest.raises(TurnLimitError):
            await session.ask("go")
        assert validate_session(await m.store.messages(session.id)) == []
    assert len(fake.requests) == 3


async def test_a_hundred_sessions_stream_at_once(url: str) -> None:
    steps = [say("one two three", pause_s=0.005) for _ in range(100)]
    async with serving(Fake(*steps)) as fake, Metis(url, options(fake)) as m:
        sessions = [await m.session(model="sonnet") for _ in range(100)]
        answers = await asyncio.gather(*(each.ask("count") for each in sessions))
        assert all(answer is not None for answer in answers)
        assert {each.cost().total_usd for each in sessions} == {ONE}


async def test_log_has_no_content_and_no_key(url: str, caplog: pytest.LogCaptureFixture) -> None:
    key = "sk-canary-0123456789"
    script = [reading("plugh"), say(status=400, error=f"frotz {key}")]
    with caplog.at_level(logging.DEBUG, "metis"):
        async with (
            serving(Fake(*script)) as fake,
            Metis(url, options(fake, keys={"anthropic": key})) as m,
        ):
            session = await m.session(model="sonnet")
            with pytest.raises(InvalidRequestError):
                await session.ask("xyzzy")
    assert not [word for word in ("xyzzy", "plugh", "frotz", key) if word in caplog.text]


async def test_fork_is_independent(url: str) -> None:
    async with serving(Fake()) as fake, Metis(url, options(fake)) as m:
        session = await m.session(model="sonnet")
        await session.ask("one")
        other = await session.fork()
        await other.swap(GPT)
        await other.ask("two")
        assert len(session.messages) == 2
        assert len(other.messages) == 4
        assert session.model == SONNET
        assert other.id != session.id
        assert isinstance(session.messages[0].content[0], TextBlock | ImageBlock)


async def test_ended_session_refuses_turns(url: str) -> None:
    async with serving(Fake()) as fake, Metis(url, options(fake)) as m:
        session = await m.session(model="sonnet")
        await session.ask("one")
        await session.end()
        with pytest.raises(SessionEndedError):
            await session.ask("two")


async def test_call_of_unoffered_tool_gets_error_result(url: str) -> None:
    async with (
        serving(Fake(reading(), say("ok"))) as fake,
        Metis(url, options(fake, tools=None)) as m,
    ):
        session = await m.session(model="sonnet")
        await session.ask("read")
        stored = await m.store.messages(session.id)
    assert [message.role.value for message in stored] == ["user", "assistant", "tool", "assistant"]
