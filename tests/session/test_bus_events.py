"""Bus events of a session besides its turns: confirmations, outages, rules, budgets."""

from collections.abc import Mapping
from contextlib import aclosing
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from build import call
from metis.canonical import SideEffects, ToolDefinition, new_tool_use_id
from metis.canonical.errors import (
    AuthenticationError,
    BudgetExceededError,
    RefusedChoiceError,
    ServerError,
)
from metis.events import Bus, Event, Payload
from metis.events.analytics import cost_by
from metis.events.event import encode_json
from metis.events.system_events import (
    BudgetExceeded,
    BudgetWarned,
    RoutingPolicyInvalid,
    RoutingProviderUnavailable,
)
from metis.events.turn_events import (
    LlmCallCompleted,
    LlmCallFailed,
    RouteDecided,
    SessionEnded,
    ToolCompleted,
    ToolConfirmationRequested,
    ToolConfirmationResolved,
    ToolFailed,
    ToolInputInvalid,
    TurnCancelled,
    TurnCompleted,
    TurnStarted,
)
from metis.session import Budget, Metis, Warned
from metis.streaming import TextDelta
from metis.tools import Answer, Confirmation, Question, Registry, ToolContext, ToolOutput, Verdict
from metis.transport import Retry
from sample_events import cause_faults
from session.fake import Fake, say, serving
from session.helpers import GPT, SONNET, ReadFile, events_of, options

pytestmark = pytest.mark.anyio
ONE = Decimal("0.000654")
P = TypeVar("P", bound=Payload)


class EventLog(list[Event]):
    """Collects all events of a bus."""

    def __init__(self) -> None:
        super().__init__()
        self.bus = Bus()
        self.bus.subscribe_fast(self.append, name="test")

    def of(self, kind: type[P]) -> list[P]:
        return [each.payload for each in self if isinstance(each.payload, kind)]


class WriteFile(ReadFile):
    """A tool that claims to have written a file."""

    @property
    def definition(self) -> ToolDefinition:
        schema = {"type": "object", "properties": {"path": {"type": "string"}}}
        return ToolDefinition(
            "write_file", "Writes.", schema, SideEffects.WRITE, requires_workspace=False
        )

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        output = await super().execute(arguments, context)
        return ToolOutput(content=output.content, files_modified=("out.txt",), command="frotz -x")


@pytest.mark.row("M-145")
async def test_refused_arguments_are_one_event_without_their_content(url: str) -> None:
    event_log = EventLog()
    wrong = say(call("read_file", new_tool_use_id(), path=["xyzzy"]))
    async with (
        serving(Fake(wrong, say("sorry"))) as fake,
        Metis(url, options(fake, bus=event_log.bus)) as m,
    ):
        await (await m.session(model="sonnet")).ask("read it")
    (emitted,) = event_log.of(ToolInputInvalid)
    assert emitted.tool_name == "read_file"
    assert [each.partition(":")[0] for each in emitted.validation_errors] == ["$.path"]
    assert "xyzzy" not in b"".join(map(encode_json, event_log)).decode()
    assert [each.error_class for each in event_log.of(ToolFailed)] == ["validation_error"]
    assert list(cause_faults(event_log)) == []


@pytest.mark.parametrize(
    ("verdict", "decision", "scope"),
    [
        (Verdict.ALLOW_ONCE, "allow", "once"),
        (Verdict.ALLOW_FOR_SESSION, "allow", "session"),
        (Verdict.DENY, "deny", "once"),
        (None, "timeout", "once"),
    ],
)
async def test_confirmation_and_answer_are_events(
    url: str, verdict: Verdict | None, decision: str, scope: str
) -> None:
    event_log = EventLog()

    async def ask(_: Question) -> Answer:
        if verdict is None:
            raise TimeoutError
        return Answer(verdict)

    writing = say(call("write_file", new_tool_use_id(), path="plugh.txt"))
    confirmation = Confirmation(ask)
    async with (
        serving(Fake(writing, say("done"), writing, say("done"))) as fake,
        Metis(
            url,
            options(fake, bus=event_log.bus, tools=Registry(WriteFile), confirmation=confirmation),
        ) as m,
    ):
        session = await m.session(model="sonnet")
        await session.ask("write")
    (requested,) = event_log.of(ToolConfirmationRequested)
    (resolved,) = event_log.of(ToolConfirmationResolved)
    assert requested.confirmation_request_id == resolved.confirmation_request_id
    assert (resolved.decision, resolved.scope) == (decision, scope)
    assert requested.input_summary == "path (20 bytes)"
    emitted = b"".join(map(encode_json, event_log))
    assert b"plugh" not in emitted
    assert b"frotz" not in emitted
    for done in event_log.of(ToolCompleted):
        assert done.files_modified == ("out.txt",)
        assert done.command_executed
    assert list(cause_faults(event_log)) == []


async def test_permission_of_one_session_does_not_apply_to_another(url: str) -> None:
    questions: list[str] = []

    async def ask(question: Question) -> Answer:
        questions.append(question.context.session_id)
        return Answer(Verdict.ALLOW_FOR_SESSION)

    steps = [
        step
        for _ in range(3)
        for step in (say(call("write_file", new_tool_use_id(), path="a")), say("done"))
    ]
    async with (
        serving(Fake(*steps)) as fake,
        Metis(url, options(fake, tools=Registry(WriteFile), confirmation=Confirmation(ask))) as m,
    ):
        one, two = await m.session(model="sonnet"), await m.session(model="sonnet")
        await one.ask("write")
        await one.ask("write")
        await two.ask("write")
    assert questions == [one.id, two.id]


async def test_turn_event_has_tokens_and_durations(url: str) -> None:
    event_log = EventLog()
    reading = say("I read.", call("read_file", new_tool_use_id(), path="a"), pause_s=0.01)
    async with (
        serving(Fake(reading, say("done"))) as fake,
        Metis(url, options(fake, bus=event_log.bus)) as m,
    ):
        await (await m.session(model="sonnet")).ask("read a")
    (started,), (ended,) = event_log.of(TurnStarted), event_log.of(TurnCompleted)
    assert started.estimated_input_tokens > 0
    assert (ended.total_input_tokens, ended.total_output_tokens) == (16, 84)
    assert (ended.llm_call_count, ended.tool_call_count) == (2, 1)
    calls = event_log.of(LlmCallCompleted)
    assert all(each.time_to_first_chunk_ms is not None for each in calls)
    assert calls[0].latency_ms >= 10
    first_chunk_ms = calls[0].time_to_first_chunk_ms
    assert first_chunk_ms is not None
    assert 0 <= first_chunk_ms <= calls[0].latency_ms


@pytest.mark.row("T137")
async def test_cancelled_turn_event_has_partial_cost(url: str) -> None:
    event_log = EventLog()
    slow = say("one two three four", events=4, hang=True)
    async with serving(Fake(slow)) as fake, Metis(url, options(fake, bus=event_log.bus)) as m:
        session = await m.session(model="sonnet")
        async with aclosing(session.send("count")) as events:
            async for event in events:
                if isinstance(event, TextDelta):
                    break
        (failed,) = event_log.of(LlmCallFailed)
        usage = session.messages[-1].metadata.usage
        assert usage is not None
        assert usage.estimated
        assert failed.error_class == "cancelled"
        assert failed.input_tokens == usage.input_tokens > 0
        assert failed.cost_usd == session.cost().total_usd > 0
        assert cost_by(event_log, "none")["all"].cost_usd == failed.cost_usd
        (cancelled,) = event_log.of(TurnCancelled)
        assert cancelled.partial_llm_calls == 1


async def test_outage_and_recovery_are_one_event_each(url: str) -> None:
    event_log = EventLog()
    down = [say(status=503, error="overloaded") for _ in range(5)]
    retry = Retry(attempts=2, first_s=0.0)
    async with (
        serving(Fake(*down, *down)) as fake,
        Metis(url, options(fake, bus=event_log.bus, retry=retry)) as m,
    ):
        session = await m.session(model="sonnet")
        warned: list[str] = []

        async def listen() -> None:
            async for event in session.send("x"):
                match event:
                    case Warned():
                        warned.append(event.code)
                    case _:
                        pass

        for _ in range(5):
            with pytest.raises(ServerError):
                await listen()
        with pytest.raises(RefusedChoiceError):
            await session.ask("x")
    assert warned == ["outage"]
    (outage,) = event_log.of(RoutingProviderUnavailable)
    assert outage.models_affected == (SONNET,)
    assert [each.retry_count for each in event_log.of(LlmCallFailed)] == [1] * 5
    assert event_log.of(RouteDecided)[-1].winner_index == -1


async def test_turn_after_refused_key_is_sent(url: str) -> None:
    event_log = EventLog()
    refused = say(status=401, error="invalid x-api-key")
    async with (
        serving(Fake(refused, refused, say("at last"))) as fake,
        Metis(url, options(fake, bus=event_log.bus)) as m,
    ):
        session = await m.session(model="sonnet")
        for _ in range(2):
            with pytest.raises(AuthenticationError):
                await session.ask("x")
        assert await session.ask("x") is not None
    assert len(event_log.of(RoutingProviderUnavailable)) == 2


async def test_new_key_in_file_is_used_at_once(url: str, tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    async with serving(Fake()) as fake:
        given = options(fake, key_file=file)
        without = {name: at for name, at in given.base_urls.items() if name != "openai"}
        async with Metis(url, replace(given, base_urls=without)) as m:
            session = await m.session(model="sonnet")
            assert not session.preview_swap(GPT).fits
            file.write_text('[keys]\nopenai = "sk-none"\n')
            file.chmod(0o600)
            assert session.preview_swap(GPT).fits


async def test_broken_rules_are_reported_once_and_last_valid_rules_apply(
    url: str, tmp_path: Path
) -> None:
    event_log = EventLog()
    rules = tmp_path / ".metis" / "routing.toml"
    rules.parent.mkdir()
    rules.write_text('schema_version = 1\nglobal_default = "haiku"\n')
    async with (
        serving(Fake()) as fake,
        Metis(url, options(fake, bus=event_log.bus, workspace=tmp_path)) as m,
    ):
        session = await m.session()
        await session.ask("one")
        rules.write_text("schema_version = 1\nglobal_default = 7\n")
        events = await events_of(session, "two")
        await (await m.session()).ask("three")
        assert [each.code for each in events if isinstance(each, Warned)] == ["rules_invalid"]
        rules.write_text(f'schema_version = 1\nglobal_default = "{GPT}"\n')
        await session.ask("four")
        models = [m.metadata.model for m in session.messages if m.metadata.model]
    assert models == ["anthropic:claude-haiku-4-5", "anthropic:claude-haiku-4-5", GPT]
    (emitted,) = event_log.of(RoutingPolicyInvalid)
    assert emitted.errors
    assert emitted.using_last_known_good


@pytest.mark.row("M-214", "M-217", "T208")
async def test_rules_and_windows_use_size_of_turn(url: str, tmp_path: Path) -> None:
    rules = tmp_path / ".metis" / "routing.toml"
    rules.parent.mkdir()
    rules.write_text(
        f'schema_version = 1\nglobal_default = "haiku"\n[[rules]]\nname = "long"\n'
        f'when = {{ estimated_input_tokens_gt = 1000 }}\nuse = "{GPT}"\n'
    )
    event_log = EventLog()
    async with (
        serving(Fake()) as fake,
        Metis(url, options(fake, bus=event_log.bus, workspace=tmp_path, tools=None)) as m,
    ):
        session = await m.session()
        await session.ask("short")
        await session.ask("word " * 5000)
        found = session.why()
        assert found is not None
        assert (found.record.rule_name, found.record.chosen_model) == ("long", GPT)
        small = await m.session(model="openai:gpt-3.5-turbo")
        with pytest.raises(RefusedChoiceError) as caught:
            await small.ask("word " * 50_000)
        assert caught.value.reason == "exceeds_context_window"
    assert len(fake.requests) == 2


@pytest.mark.row("T208")
async def test_history_larger_than_window_is_summarised(url: str) -> None:
    script = [say("one", input_tokens=210_000), say("the gist"), say("two")]
    async with serving(Fake(*script)) as fake:
        async with Metis(url, options(fake)) as m:
            session = await m.session(model="haiku")
            await session.ask("first")
            events = await events_of(session, "second")
        assert [e.code for e in events if isinstance(e, Warned)] == ["compacted"]
        async with Metis(url, options(fake, compact_at=None)) as m:
            other = await m.session(model="haiku")
            fake.script.append(say("one", input_tokens=210_000))
            await other.ask("first")
            with pytest.raises(RefusedChoiceError):
                await other.ask("second")


async def test_budget_warning_and_exhaustion_are_events(url: str) -> None:
    event_log = EventLog()
    budget = Budget(month_usd=Decimal("0.0013"), warn_at=(Decimal("0.5"),))
    async with (
        serving(Fake()) as fake,
        Metis(url, options(fake, bus=event_log.bus, budget=budget)) as m,
    ):
        session = await m.session(model="sonnet")
        await session.ask("one")
        await session.ask("two")
        with pytest.raises(BudgetExceededError):
            await session.ask("three")
    assert [(each.scope, each.spent_usd) for each in event_log.of(BudgetWarned)] == [("month", ONE)]
    assert [each.spent_usd for each in event_log.of(BudgetExceeded)] == [2 * ONE]


async def test_the_end_of_a_call_has_its_start_as_its_cause(url: str) -> None:
    event_log = EventLog()
    calls = [call("read_file", new_tool_use_id(), path=path) for path in ("a", ["b"])]
    async with (
        serving(Fake(say(*calls), say("done"))) as fake,
        Metis(url, options(fake, bus=event_log.bus)) as m,
    ):
        await (await m.session(model="sonnet")).ask("read both")
    by_id = {event.id: event for event in event_log}
    (completed,) = [each for each in event_log if isinstance(each.payload, ToolCompleted)]
    (failed,) = [each for each in event_log if isinstance(each.payload, ToolFailed)]
    started = by_id[str(completed.parent_event_id)]
    assert started.type == "tool.called"
    called, ended = started.payload, completed.payload
    assert getattr(called, "tool_use_id", "") == getattr(ended, "tool_use_id", None)
    # Refused arguments start no call: the response with them is the cause.
    assert by_id[str(failed.parent_event_id)].type == "llm.call_completed"


async def test_the_end_of_a_session_is_one_event_with_its_totals(url: str) -> None:
    event_log = EventLog()
    async with serving(Fake()) as fake, Metis(url, options(fake, bus=event_log.bus)) as m:
        session = await m.session(model="sonnet")
        await session.ask("one")
        await session.end("abandoned")
        await session.end()
    (ended,) = event_log.of(SessionEnded)
    assert (ended.disposition, ended.turn_count) == ("abandoned", 1)
    assert ended.total_cost_usd == session.cost().total_usd > 0
    assert ended.duration_seconds >= 0
