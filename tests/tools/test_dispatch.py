"""Every tool call gets exactly one result: validation, confirmation, timeouts, cancellation."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from build import assistant, user
from metis.canonical import (
    InvalidInput,
    Message,
    OutcomeStatus,
    Role,
    SideEffects,
    ToolDefinition,
    ToolUseBlock,
    validate,
    validate_session,
)
from metis.canonical import new_tool_use_id as fresh
from metis.canonical.errors import (
    DuplicateToolError,
    InvalidValueError,
    ToolDefinitionError,
    ToolError,
)
from metis.tools import (
    Answer,
    Confirmation,
    Dispatcher,
    ErrorClass,
    Question,
    Registry,
    Rule,
    ToolContext,
    ToolFailedError,
    ToolOutput,
    Verdict,
    error_class,
)
from metis.tools.tool import text_output
from tool_helpers import (
    FunctionTool,
    define_tool,
    permissive_dispatcher,
    result_of,
    result_text,
    run_one,
    tool_call,
    tool_context,
    tool_factory,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def echo(arguments: Mapping[str, Any], _: ToolContext) -> ToolOutput:
    return text_output(str(arguments.get("text", "")), value=dict(arguments), ui={"shown": True})


async def forever(_: Mapping[str, Any], context: ToolContext) -> ToolOutput:
    await asyncio.Event().wait()
    return text_output("never")


class RecordingWatcher:
    """Records what a watcher receives."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, SideEffects]] = []
        self.answers: list[Message] = []
        self.refusals: list[tuple[str, Sequence[str]]] = []
        self.questions: list[str] = []
        self.decisions: list[Answer | None] = []

    def on_invalid_arguments(self, call: ToolUseBlock, problems: Sequence[str]) -> None:
        self.refusals.append((call.name, problems))

    def on_question(self, question: Question) -> None:
        self.questions.append(question.call.name)

    def on_answer(self, question: Question, answer: Answer | None) -> None:
        assert question.call.name in self.questions
        self.decisions.append(answer)

    def on_call_started(self, call: ToolUseBlock, definition: ToolDefinition) -> None:
        self.calls.append((call.name, definition.side_effects))

    def on_call_ended(self, call: ToolUseBlock, message: Message, latency_ms: int) -> None:
        assert latency_ms >= 0
        assert message.metadata.parent_tool_use_id == call.id
        self.answers.append(message)


async def test_call_gets_a_tool_message() -> None:
    call = tool_call("echo", text="hi")
    (message,) = await permissive_dispatcher(tool_factory("echo", echo)).run([call], tool_context())
    outcome = message.metadata.outcome
    assert outcome is not None
    assert message.role is Role.TOOL
    assert result_of(message).tool_use_id == call.id == message.metadata.parent_tool_use_id
    assert not result_of(message).is_error
    assert outcome.status is OutcomeStatus.SUCCESS
    assert (outcome.tool_name, outcome.value, outcome.ui) == (
        "echo",
        {"text": "hi"},
        {"shown": True},
    )
    assert validate(message) == []
    assert error_class(message) is None


async def test_results_are_in_call_order_and_valid() -> None:
    async def slower_first(arguments: Mapping[str, Any], _: ToolContext) -> ToolOutput:
        await asyncio.sleep(0.03 - arguments["number"] * 0.01)
        return text_output(str(arguments["number"]))

    calls = [tool_call("work", number=number) for number in range(3)]
    notes = RecordingWatcher()
    dispatcher = permissive_dispatcher(tool_factory("work", slower_first, SideEffects.READ))
    answers = await dispatcher.run(calls, tool_context(), notes)
    assert [result_text(message) for message in answers] == ["0", "1", "2"]
    assert [result_text(message) for message in notes.answers] == ["2", "1", "0"]
    assert notes.calls == [("work", SideEffects.READ)] * 3
    session = answers[0].session_id
    history = [
        user("go", session_id=session),
        assistant(*calls, session_id=session),
        *answers,
    ]
    assert [p for p in validate_session(history) if "tool" in p.text] == []
    assert await dispatcher.run([], tool_context()) == []


async def test_at_most_four_calls_run_concurrently() -> None:
    running, most = 0, 0

    async def count(_: Mapping[str, Any], __: ToolContext) -> ToolOutput:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return text_output("done")

    calls = [tool_call("count") for _ in range(6)]
    answers = await permissive_dispatcher(tool_factory("count", count)).run(calls, tool_context())
    assert (most, len(answers)) == (4, 6)


STRICT = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


@pytest.mark.row("M-144", "M-142")
@pytest.mark.parametrize("effects", SideEffects)
async def test_invalid_arguments_are_reported_completely(effects: SideEffects) -> None:
    ran: list[object] = []

    async def note(arguments: Mapping[str, Any], _: ToolContext) -> ToolOutput:
        ran.append(arguments)
        return text_output("ran")

    factory = tool_factory("note", note, effects, input_schema=STRICT)
    message = await run_one(factory, tool_context(), a="x", c=1)
    assert error_class(message) is ErrorClass.VALIDATION_ERROR
    assert all(part in result_text(message) for part in ("$.a", "$.c", '"b"'))
    assert ran == []


@pytest.mark.row("A-011")
async def test_call_with_non_json_arguments_is_never_run() -> None:
    ran: list[object] = []

    async def note(arguments: Mapping[str, Any], _: ToolContext) -> ToolOutput:
        ran.append(arguments)
        return text_output("ran")

    broken = ToolUseBlock(
        id=fresh(), name="note", input={}, invalid=InvalidInput(raw='{"a":', error="ends early")
    )
    (message,) = await permissive_dispatcher(tool_factory("note", note)).run(
        [broken], tool_context()
    )
    assert error_class(message) is ErrorClass.VALIDATION_ERROR
    assert "ends early" in result_text(message)
    assert ran == []


async def test_unknown_tool_result_suggests_similar_names() -> None:
    calls = [tool_call("read_fil"), tool_call("something_else")]
    answers = await permissive_dispatcher(tool_factory("read_file", echo)).run(
        calls, tool_context()
    )
    assert [error_class(message) for message in answers] == [ErrorClass.NOT_FOUND] * 2
    assert result_text(answers[0]) == "There is no tool named 'read_fil'. Did you mean read_file?"
    assert "Did you mean" not in result_text(answers[1])


@pytest.mark.row("K-014", "K-066")
async def test_exception_of_tool_is_error_result_and_traceback_only_in_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def broken(_: Mapping[str, Any], __: ToolContext) -> ToolOutput:
        raise ValueError("the password is hunter2")

    with caplog.at_level(logging.ERROR, "metis.tools"):
        message = await run_one(tool_factory("broken", broken), tool_context())
    assert error_class(message) is ErrorClass.EXECUTION_ERROR
    assert message.metadata.outcome is not None
    assert message.metadata.outcome.status is OutcomeStatus.ERROR
    assert result_text(message) == "broken failed: an internal ValueError."
    assert "Traceback" in caplog.text


async def test_tool_error_text_is_in_the_result() -> None:
    async def fails(_: Mapping[str, Any], __: ToolContext) -> ToolOutput:
        raise ToolFailedError("No such thing.", ErrorClass.NOT_FOUND)

    message = await run_one(tool_factory("fails", fails), tool_context())
    assert (result_text(message), error_class(message)) == ("No such thing.", ErrorClass.NOT_FOUND)


@pytest.mark.row("K-014", "K-066")
async def test_timed_out_call_is_an_error_and_not_aborted() -> None:
    for effects, limit in ((SideEffects.NONE, "0.01"), (SideEffects.EXECUTE, "0.02")):
        dispatcher = permissive_dispatcher(
            tool_factory("forever", forever, effects),
            timeout_s=0.01,
            timeouts_s={SideEffects.EXECUTE: 0.02},
        )
        (message,) = await dispatcher.run([tool_call("forever")], tool_context())
        assert error_class(message) is ErrorClass.TIMEOUT
        assert message.metadata.outcome is not None
        assert message.metadata.outcome.status is OutcomeStatus.ERROR
        assert result_text(message) == f"Stopped after {limit} s."


@pytest.mark.row("K-012", "K-067")
async def test_cancel_event_aborts_running_and_waiting_calls() -> None:
    turn = tool_context()
    dispatcher = permissive_dispatcher(tool_factory("forever", forever), tool_factory("echo", echo))
    calls = [tool_call("echo", text="fast"), *(tool_call("forever") for _ in range(6))]
    notes = RecordingWatcher()
    running = asyncio.create_task(dispatcher.run(calls, turn, notes))
    while not notes.answers:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.001)
    turn.cancel.set()
    answers = await running
    outcomes = [message.metadata.outcome for message in answers]
    assert [outcome.status for outcome in outcomes if outcome] == [
        OutcomeStatus.SUCCESS,
        *[OutcomeStatus.ABORTED] * 6,
    ]
    assert all(validate(message) == [] for message in answers)


async def test_no_call_of_a_cancelled_turn_is_run() -> None:
    runs: list[object] = []

    async def note(arguments: Mapping[str, Any], _: ToolContext) -> ToolOutput:
        runs.append(arguments)
        return text_output("done")

    turn = tool_context()
    turn.cancel.set()
    dispatcher = permissive_dispatcher(tool_factory("note", note))
    (message,) = await dispatcher.run([tool_call("note")], turn)
    assert runs == []
    assert message.metadata.outcome is not None
    assert message.metadata.outcome.status is OutcomeStatus.ABORTED


async def test_cooperative_tool_may_return_partial_result() -> None:
    async def polite(_: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        await context.cancel.wait()
        return text_output("half of it", files_modified=("a.txt",))

    turn = tool_context()
    definition = define_tool("polite")
    dispatcher = permissive_dispatcher(lambda: FunctionTool(definition, polite, ends_itself=True))
    running = asyncio.create_task(dispatcher.run([tool_call("polite")], turn))
    await asyncio.sleep(0.01)
    turn.cancel.set()
    (message,) = await running
    assert result_text(message) == "Cancelled before it was finished.\nhalf of it"
    assert message.metadata.outcome is not None
    assert message.metadata.outcome.side_effects == ({"kind": "write", "path": "a.txt"},)


async def test_tool_that_ignores_cancellation_is_abandoned(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("metis.tools.dispatch.CANCEL_TIMEOUT_S", 0.01)
    started, stop = asyncio.Event(), asyncio.Event()

    async def stubborn(_: Mapping[str, Any], __: ToolContext) -> ToolOutput:
        started.set()
        while not stop.is_set():
            try:
                await stop.wait()
            except asyncio.CancelledError:
                continue
        return text_output("at last")

    turn = tool_context()
    running = asyncio.create_task(
        permissive_dispatcher(tool_factory("stubborn", stubborn)).run([tool_call("stubborn")], turn)
    )
    await started.wait()
    turn.cancel.set()
    (message,) = await running
    assert error_class(message) is ErrorClass.CANCELLED
    assert "did not end" in caplog.text
    stop.set()
    await asyncio.sleep(0.01)


@pytest.mark.parametrize("steps", range(14))
@pytest.mark.parametrize("again", [False, True])
async def test_task_cancelled_at_any_point_leaves_one_result_per_call(
    steps: int, *, again: bool
) -> None:
    async def several_steps(_: Mapping[str, Any], __: ToolContext) -> ToolOutput:
        for _step in range(3):
            await asyncio.sleep(0)
        return text_output("done")

    async def allow(_: Question) -> Answer:
        await asyncio.sleep(0)
        return Answer(Verdict.ALLOW_ONCE)

    registry = Registry(
        tool_factory("steps", several_steps),
        tool_factory("asked", several_steps, SideEffects.WRITE),
    )
    dispatcher = Dispatcher(registry, Confirmation(allow), cap=2)
    calls = [tool_call(name) for name in ("steps", "asked", "asked", "nothing", "steps")]
    notes = RecordingWatcher()
    running = asyncio.create_task(dispatcher.run(calls, tool_context(), notes))
    for _ in range(steps):
        await asyncio.sleep(0)
    was_done = running.done()
    running.cancel()
    if again:
        await asyncio.sleep(0)
        running.cancel()
    done, _ = await asyncio.wait({running})
    assert done
    # A task that is cancelled before its first step has started no call.
    expected = [] if steps == 0 else sorted(call.id for call in calls)
    assert sorted(result_of(message).tool_use_id for message in notes.answers) == expected
    assert running.cancelled() is not was_done
    assert all(validate(message) == [] for message in notes.answers)
    await asyncio.sleep(0.01)
    assert len(notes.answers) == len(expected)


async def test_two_calls_with_one_id_are_refused() -> None:
    call = tool_call("echo")
    with pytest.raises(InvalidValueError, match=r"\$\[1\]\.id"):
        await permissive_dispatcher(tool_factory("echo", echo)).run([call, call], tool_context())


# Registering


async def test_invalid_tool_is_refused_at_registration() -> None:
    registry = Registry(tool_factory("echo", echo))
    with pytest.raises(DuplicateToolError):
        registry.register(tool_factory("echo", echo))
    with pytest.raises(ToolDefinitionError, match="anyOf"):
        registry.register(tool_factory("bad", echo, input_schema={"type": "object", "anyOf": []}))
    with pytest.raises(ToolDefinitionError, match="snake_case"):
        registry.register(tool_factory("Bad", echo))
    with pytest.raises(ToolError, match="needs a ToolDefinition"):
        registry.register(lambda: FunctionTool(None, echo))  # pyright: ignore[reportArgumentType] - what an untyped caller may do
    assert list(registry) == list(registry.tools) == ["echo"]
    registry.remove("echo")
    assert len(registry) == len(registry.tools) == 0
    with pytest.raises(ToolError, match="no tool is named"):
        registry.remove("echo")


async def test_each_call_gets_a_new_tool_instance() -> None:
    tools: list[FunctionTool] = []
    definition = define_tool("echo")

    def factory() -> FunctionTool:
        tools.append(FunctionTool(definition, echo))
        return tools[-1]

    dispatcher = permissive_dispatcher(factory)
    await dispatcher.run([tool_call("echo"), tool_call("echo")], tool_context())
    assert len(tools) == 3


# Confirming


class AnswerQueue:
    """Answers questions from a queue, and records them."""

    def __init__(self, *answers: Answer) -> None:
        self.questions: list[Question] = []
        self._answers = list(answers)

    async def __call__(self, question: Question) -> Answer:
        self.questions.append(question)
        await asyncio.sleep(0)
        return self._answers.pop(0)


def dispatcher_with(confirmation: Confirmation, *names: tuple[str, SideEffects]) -> Dispatcher:
    return Dispatcher(
        Registry(*(tool_factory(name, echo, kind) for name, kind in names)), confirmation
    )


@pytest.mark.row("M-118")
async def test_calls_with_side_effects_require_confirmation() -> None:
    queue = AnswerQueue(*[Answer(Verdict.ALLOW_ONCE)] * 3)
    kinds = tuple((f"tool_{kind}", kind) for kind in SideEffects)
    dispatcher = dispatcher_with(Confirmation(queue), *kinds)
    answers = await dispatcher.run([tool_call(name) for name, _ in kinds], tool_context())
    assert [question.definition.side_effects for question in queue.questions] == [
        SideEffects.WRITE,
        SideEffects.EXECUTE,
        SideEffects.NETWORK,
    ]
    assert all(error_class(message) is None for message in answers)


async def test_confirmation_applies_once_or_for_session_or_denies_with_reason() -> None:
    queue = AnswerQueue(
        Answer(Verdict.ALLOW_ONCE),
        Answer(Verdict.DENY, "use the other file"),
        Answer(Verdict.DENY),
        Answer(Verdict.ALLOW_FOR_SESSION),
    )
    dispatcher = dispatcher_with(Confirmation(queue), ("write", SideEffects.WRITE))
    answers = await dispatcher.run([tool_call("write") for _ in range(6)], tool_context())
    denied = ErrorClass.USER_DENIED
    assert [error_class(message) for message in answers] == [None, denied, denied, None, None, None]
    assert result_text(answers[1]).endswith("The user says: use the other file")
    assert len(queue.questions) == 4


async def test_overrides_by_tool_and_by_trust() -> None:
    queue = AnswerQueue(Answer(Verdict.ALLOW_ONCE), Answer(Verdict.DENY))
    confirmation = Confirmation(
        queue, is_trusted=True, tools={"reader": Rule.ASK, "banned": Rule.DENY}
    )
    names = ("reader", "writer", "runner", "banned")
    kinds = (SideEffects.READ, SideEffects.WRITE, SideEffects.EXECUTE, SideEffects.NONE)
    dispatcher = dispatcher_with(confirmation, *zip(names, kinds, strict=True))
    answers = await dispatcher.run([tool_call(name) for name in names], tool_context())
    assert [question.definition.name for question in queue.questions] == ["reader", "runner"]
    assert [error_class(message) for message in answers] == [
        None,
        None,
        ErrorClass.USER_DENIED,
        ErrorClass.PERMISSION_DENIED,
    ]


async def test_confirmation_timeout_or_absent_confirmer_denies() -> None:
    async def silent(_: Question) -> Answer:
        await asyncio.Event().wait()
        return Answer(Verdict.ALLOW_ONCE)

    late = dispatcher_with(Confirmation(silent, timeout_s=0.01), ("write", SideEffects.WRITE))
    (message,) = await late.run([tool_call("write")], tool_context())
    assert error_class(message) is ErrorClass.CONFIRMATION_TIMEOUT
    nobody = dispatcher_with(Confirmation(), ("write", SideEffects.WRITE))
    (message,) = await nobody.run([tool_call("write")], tool_context())
    assert error_class(message) is ErrorClass.PERMISSION_DENIED


async def test_cancellation_during_confirmation() -> None:
    is_asked = asyncio.Event()
    was_cancelled = False

    async def silent(_: Question) -> Answer:
        nonlocal was_cancelled
        is_asked.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            was_cancelled = True
            raise
        return Answer(Verdict.ALLOW_ONCE)

    turn = tool_context()
    dispatcher = dispatcher_with(Confirmation(silent), ("write", SideEffects.WRITE))
    running = asyncio.create_task(dispatcher.run([tool_call("write"), tool_call("write")], turn))
    await is_asked.wait()
    turn.cancel.set()
    answers = await running
    assert [error_class(message) for message in answers] == [ErrorClass.CANCELLED] * 2
    await asyncio.sleep(0)
    assert was_cancelled


@pytest.mark.row("M-112")
async def test_tool_that_requires_workspace_runs_only_with_one(tmp_path: Path) -> None:
    factory = tool_factory("echo", echo, requires_workspace=True)
    assert error_class(await run_one(factory, tool_context())) is ErrorClass.PERMISSION_DENIED
    assert error_class(await run_one(factory, tool_context(tmp_path))) is None


async def test_confirmation_of_one_session_does_not_block_another() -> None:
    both_asked = asyncio.Event()
    queue: list[str] = []

    async def ask(question: Question) -> Answer:
        queue.append(question.context.session_id)
        if len(queue) == 2:
            both_asked.set()
        await both_asked.wait()
        return Answer(Verdict.ALLOW_ONCE)

    dispatcher = dispatcher_with(Confirmation(ask), ("write", SideEffects.WRITE))
    contexts = [
        tool_context(),
        replace(tool_context(), session_id="sess_01J00000000000000000000001"),
    ]
    runs = [dispatcher.run([tool_call("write")], one) for one in contexts]
    answers = await asyncio.gather(*runs)
    assert [error_class(message) for (message,) in answers] == [None, None]
    assert len(set(queue)) == 2
