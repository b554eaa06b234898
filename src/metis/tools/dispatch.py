"""The dispatcher: runs the tool calls of one response, with exactly one result for each."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

from msgspec import UNSET
from msgspec.structs import replace

from metis.canonical.blocks import ContentBlock, TextBlock, ToolResultBlock, ToolUseBlock
from metis.canonical.errors import InvalidValueError
from metis.canonical.ids import new_ulid
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageMetadata, Outcome, OutcomeStatus
from metis.canonical.tools import SideEffects, ToolDefinition
from metis.tools.confirmation import Confirmation, Listener, Question
from metis.tools.registry import RegisteredTool, Registry
from metis.tools.tool import ErrorClass, Tool, ToolContext, ToolFailedError, ToolOutput, log
from metis.tools.walk import WorkspaceError

MAX_PARALLEL_CALLS = 4
"""How many calls of one session run at the same time."""

TIMEOUT_S = 60.0
"""How long a call may take."""

TIMEOUTS_S: Mapping[str, float] = {SideEffects.EXECUTE: 600.0, SideEffects.NETWORK: 600.0}
"""The timeouts that differ from `TIMEOUT_S`, by the name of a tool or its effect."""

CANCEL_TIMEOUT_S = 30.0
"""How long a cancelled tool may take to end."""

_NO_OUTPUT = "(no output)"

ToolEnd = tuple[ToolOutput | None, ToolFailedError | None]
"""The output of a tool, and the failure if it did not complete."""


class Watcher(Listener, Protocol):
    """Receives the events of each call; its methods must not raise."""

    def on_invalid_arguments(self, call: ToolUseBlock, problems: Sequence[str]) -> None:
        """Report a call that will not run, since its arguments do not match the schema."""
        ...

    def on_call_started(self, call: ToolUseBlock, definition: ToolDefinition) -> None:
        """Report that a call starts to run."""
        ...

    def on_call_ended(self, call: ToolUseBlock, message: Message, latency_ms: int) -> None:
        """Report the result of a call; once for every call, also if the turn is cancelled."""
        ...


class Dispatcher:
    """Runs the calls of one session."""

    def __init__(
        self,
        registry: Registry,
        confirmation: Confirmation | None = None,
        *,
        cap: int = MAX_PARALLEL_CALLS,
        timeouts_s: Mapping[str, float] = TIMEOUTS_S,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.registry = registry
        self.confirmation = confirmation or Confirmation()
        self._slots = asyncio.Semaphore(cap)
        self._timeouts_s = timeouts_s
        self._timeout_s = timeout_s

    async def run(
        self,
        calls: Sequence[ToolUseBlock],
        context: ToolContext,
        watcher: Watcher | None = None,
    ) -> list[Message]:
        """Return one TOOL message for each call, in the order of the calls.

        Setting `context.cancel` stops the running calls, and calls without a result get an aborted
        one. Cancelling the task that awaits this does the same; the watcher receives every result
        before the cancellation is raised.

        Raises:
            InvalidValueError: two calls have the same id.
        """
        _require_unique_ids(calls)
        batch = _Batch(calls, context, watcher)
        tasks = [asyncio.create_task(self._run(call, batch)) for call in calls]
        try:
            await _wait_for_all(tasks)
        except asyncio.CancelledError:
            context.cancel.set()
            await _wait_for_all(tasks)
            raise
        finally:
            # Tasks are unfinished here only if the wait for their cancellation was cancelled, too.
            for task in tasks:
                task.cancel()
            batch.abort_rest()
        return batch.messages()

    async def _run(self, call: ToolUseBlock, batch: "_Batch") -> None:
        context = replace(batch.context, tool_use_id=call.id)
        try:
            message = await self._result(call, context, batch)
        except ToolFailedError as failure:
            message = result_message(call, context, None, failure)
        except Exception as error:  # noqa: BLE001 - every call needs a result
            # An exception may contain secrets or paths, so the model gets only its class.
            log.error("%s failed", call.name, exc_info=error)
            failure = ToolFailedError(f"{call.name} failed: an internal {type(error).__name__}.")
            message = result_message(call, context, None, failure)
        batch.add(call, message)

    async def _result(self, call: ToolUseBlock, context: ToolContext, batch: "_Batch") -> Message:
        tool = self._require_tool(call)
        problems = _argument_problems(tool, call)
        if problems:
            if batch.watcher:
                batch.watcher.on_invalid_arguments(call, problems)
            lines = "".join(f"\n- {problem}" for problem in problems)
            text = f"The arguments of {call.name} do not match its schema:{lines}"
            raise ToolFailedError(text, ErrorClass.VALIDATION_ERROR)
        if tool.definition.requires_workspace and context.workspace is None:
            text = f"{call.name} needs a workspace, and this session has none."
            raise ToolFailedError(text, ErrorClass.PERMISSION_DENIED)
        # Confirmed before a slot is acquired: a user may take minutes, and other calls can run.
        await self._confirm(Question(call, tool.definition, context), batch.watcher)
        async with self._slots:
            # The turn may have been cancelled while the call waited for a slot.
            _require_not_cancelled(context)
            batch.start(call, tool.definition)
            limit_s = self._limit_s(tool.definition)
            output, failure = await run_tool(tool.factory(), call.input, context, limit_s)
        if output is None and failure is None:
            raise TypeError(f"{call.name} returned no output")
        return result_message(call, context, output, failure)

    def _limit_s(self, definition: ToolDefinition) -> float:
        by_effect = self._timeouts_s.get(definition.side_effects, self._timeout_s)
        return self._timeouts_s.get(definition.name, by_effect)

    def _require_tool(self, call: ToolUseBlock) -> RegisteredTool:
        tool = self.registry.get(call.name)
        if tool is not None:
            return tool
        similar = self.registry.similar_names(call.name)
        hint = f" Did you mean {' or '.join(similar)}?" if similar else ""
        raise ToolFailedError(f"There is no tool named {call.name!r}.{hint}", ErrorClass.NOT_FOUND)

    async def _confirm(self, question: Question, watcher: Watcher | None) -> None:
        """Wait until the call may run, or until the turn is cancelled."""
        _require_not_cancelled(question.context)
        confirmed = asyncio.create_task(self.confirmation.require(question, watcher))
        cancelled = asyncio.create_task(question.context.cancel.wait())
        try:
            await asyncio.wait({confirmed, cancelled}, return_when=asyncio.FIRST_COMPLETED)
            if confirmed.done():
                confirmed.result()
            _require_not_cancelled(question.context)
        finally:
            confirmed.cancel()
            cancelled.cancel()


class _Batch:
    """The calls of one run and their results so far."""

    def __init__(
        self, calls: Sequence[ToolUseBlock], context: ToolContext, watcher: Watcher | None
    ) -> None:
        self.context = context
        self.watcher = watcher
        self._calls = calls
        self._results: dict[str, Message] = {}
        self._started: dict[str, float] = {}

    def start(self, call: ToolUseBlock, definition: ToolDefinition) -> None:
        self._started[call.id] = time.monotonic()
        if self.watcher:
            self.watcher.on_call_started(call, definition)

    def add(self, call: ToolUseBlock, message: Message) -> None:
        if call.id in self._results:
            return
        self._results[call.id] = message
        if self.watcher:
            now = time.monotonic()
            latency_ms = round((now - self._started.get(call.id, now)) * 1000)
            self.watcher.on_call_ended(call, message, latency_ms)

    def abort_rest(self) -> None:
        for call in self._calls:
            if call.id not in self._results:
                context = replace(self.context, tool_use_id=call.id)
                self.add(call, result_message(call, context, None, cancelled_error()))

    def messages(self) -> list[Message]:
        return [self._results[call.id] for call in self._calls]


async def _wait_for_all(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Wait for all tasks; cancelling the wait cancels none of them."""
    if tasks:
        await asyncio.wait(tasks)
        for task in tasks:
            task.result()


def _require_unique_ids(calls: Sequence[ToolUseBlock]) -> None:
    ids: set[str] = set()
    for index, call in enumerate(calls):
        if call.id in ids:
            raise InvalidValueError("two calls have the same id", path=f"$[{index}].id")
        ids.add(call.id)


def _require_not_cancelled(context: ToolContext) -> None:
    if context.cancel.is_set():
        raise cancelled_error()


def _argument_problems(tool: RegisteredTool, call: ToolUseBlock) -> list[str]:
    # Truncated arguments may look complete; they are never run as `{}` (T123, T139).
    if call.invalid is not None:
        return [f"not a JSON object: {call.invalid.error}"]
    return [str(problem) for problem in tool.problems(call.input)]


async def run_tool(
    tool: Tool, arguments: Mapping[str, Any], context: ToolContext, limit_s: float
) -> ToolEnd:
    """Run a tool until it returns, its time limit is reached or the turn is cancelled."""
    execution = asyncio.ensure_future(tool.execute(arguments, context))
    cancelled = asyncio.create_task(context.cancel.wait())
    try:
        await asyncio.wait(
            {execution, cancelled}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED
        )
        # A tool that ends together with the cancellation has probably ended because of it.
        if execution.done() and not cancelled.done():
            return _tool_end(execution)
        if cancelled.done():
            failure = cancelled_error()
        else:
            failure = ToolFailedError(f"Stopped after {limit_s:g} s.", ErrorClass.TIMEOUT)
        return await _cancel(tool, execution), failure
    finally:
        cancelled.cancel()
        execution.cancel()


def cancelled_error() -> ToolFailedError:
    """Return the failure of a call that was cancelled."""
    return ToolFailedError("Cancelled before it was finished.", ErrorClass.CANCELLED)


def _tool_end(execution: asyncio.Future[ToolOutput]) -> ToolEnd:
    if execution.cancelled():
        return None, ToolFailedError("The tool cancelled itself.")
    try:
        return execution.result(), None
    except WorkspaceError as error:
        kind = ErrorClass.PERMISSION_DENIED if error.is_refused else ErrorClass.EXECUTION_ERROR
        return None, ToolFailedError(f"{error}.", kind)
    except ToolFailedError as failure:
        return None, failure


async def _cancel(tool: Tool, execution: asyncio.Future[ToolOutput]) -> ToolOutput | None:
    """Stop a tool; return its output so far, or None if it has none."""
    if not tool.cancel():
        execution.cancel()
    await asyncio.wait({execution}, timeout=CANCEL_TIMEOUT_S)
    if not execution.done():
        log.warning("%s did not end when it was cancelled", tool.definition.name)
        # asyncio would log a later error as never retrieved.
        execution.add_done_callback(lambda late: late.cancelled() or late.exception())
        return None
    if execution.cancelled() or execution.exception() is not None:
        return None
    return execution.result()


def result_message(
    call: ToolUseBlock,
    context: ToolContext,
    output: ToolOutput | None,
    failure: ToolFailedError | None = None,
) -> Message:
    """Return the TOOL message of a call; a failed call may have a partial output."""
    content: tuple[ContentBlock, ...] = output.content if output else ()
    value = output.value if output else UNSET
    status = OutcomeStatus.SUCCESS if output and output.success else OutcomeStatus.ERROR
    if failure is not None:
        is_cancelled = failure.kind is ErrorClass.CANCELLED
        status = OutcomeStatus.ABORTED if is_cancelled else OutcomeStatus.ERROR
        content = (TextBlock(failure.text), *content)
        value = {"error_class": str(failure.kind)}
    elif status is OutcomeStatus.ERROR and value is UNSET:
        value = {"error_class": str(ErrorClass.EXECUTION_ERROR)}
    outcome = Outcome(
        status=status,
        tool_name=call.name,
        side_effects=_side_effects(output),
        ui=output.ui if output else UNSET,
        value=value,
    )
    # Anthropic and Bedrock refuse tool results without visible text (T25).
    blocks = tuple(_encodable_block(block) for block in content) or (TextBlock(_NO_OUTPUT),)
    is_error = status is not OutcomeStatus.SUCCESS
    block = ToolResultBlock(tool_use_id=call.id, content=blocks, is_error=is_error)
    return Message(
        id=new_ulid(),
        session_id=context.session_id,
        role=Role.TOOL,
        content=(block,),
        created_at=datetime.now(UTC),
        metadata=MessageMetadata(parent_tool_use_id=call.id, outcome=outcome),
    )


def error_class(message: Message) -> ErrorClass | None:
    """Return why the call of a TOOL message failed; None if it did not."""
    outcome = message.metadata.outcome
    if outcome is None or outcome.status is OutcomeStatus.SUCCESS:
        return None
    # Another version or another program may have written the outcome.
    value = outcome.value
    name = value.get("error_class") if isinstance(value, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - any JSON
    return ErrorClass(name) if name in set(ErrorClass) else ErrorClass.EXECUTION_ERROR


def _side_effects(output: ToolOutput | None) -> tuple[Any, ...]:
    if output is None:
        return ()
    files = [{"kind": "write", "path": _encodable(path)} for path in output.files_modified]
    commands = [] if output.command is None else [{"kind": "execute", "command": output.command}]
    return (*files, *commands)


def _encodable_block(block: ContentBlock) -> ContentBlock:
    if isinstance(block, TextBlock) and not block.text.isascii():
        text = _encodable(block.text)
        return block if text == block.text else TextBlock(text)
    return block


def _encodable(text: str) -> str:
    # Python decodes file names that are not UTF-8 to lone surrogates, which JSON cannot encode.
    return text.encode("utf-8", "replace").decode()
