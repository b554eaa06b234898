"""Run the tool calls of one assistant message and give each exactly one result."""

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

_SILENT = "(no output)"


def output_message(call: ToolUseBlock, context: ToolContext, output: ToolOutput) -> Message:
    """The answer of a tool that ran to its end."""
    status = OutcomeStatus.SUCCESS if output.success else OutcomeStatus.ERROR
    value = output.value
    if not output.success and value is UNSET:
        value = {"error_class": str(ErrorClass.EXECUTION_ERROR)}
    return _message(call, context, status, output.content, output, value)


def failure_message(
    call: ToolUseBlock,
    context: ToolContext,
    failure: ToolFailedError,
    output: ToolOutput | None = None,
) -> Message:
    """The answer to a call that failed or was cancelled; what it gave until then is kept."""
    is_cancelled = failure.kind is ErrorClass.CANCELLED
    status = OutcomeStatus.ABORTED if is_cancelled else OutcomeStatus.ERROR
    content = (TextBlock(failure.text), *(output.content if output else ()))
    value = {"error_class": str(failure.kind)}
    return _message(call, context, status, content, output, value)


def error_class(message: Message) -> ErrorClass | None:
    """Why the call that a message answers failed; None for a call that did not."""
    outcome = message.metadata.outcome
    if outcome is None or outcome.status is OutcomeStatus.SUCCESS:
        return None
    value = outcome.value
    named = value.get("error_class") if isinstance(value, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - any JSON
    return ErrorClass(named) if named in set(ErrorClass) else ErrorClass.EXECUTION_ERROR


def _message(  # noqa: PLR0913, PLR0917 - the parts of one message, private
    call: ToolUseBlock,
    context: ToolContext,
    status: OutcomeStatus,
    content: tuple[ContentBlock, ...],
    output: ToolOutput | None,
    value: Any,
) -> Message:
    is_error = status is not OutcomeStatus.SUCCESS
    outcome = Outcome(
        status=status,
        tool_name=call.name,
        side_effects=_side_effects(output),
        ui=output.ui if output else UNSET,
        value=value,
    )
    blocks = tuple(_writable(block) for block in content) or (TextBlock(_SILENT),)
    block = ToolResultBlock(tool_use_id=call.id, content=blocks, is_error=is_error)
    return Message(
        id=new_ulid(),
        session_id=context.session_id,
        role=Role.TOOL,
        content=(block,),
        created_at=datetime.now(UTC),
        metadata=MessageMetadata(parent_tool_use_id=call.id, outcome=outcome),
    )


def _side_effects(output: ToolOutput | None) -> tuple[Any, ...]:
    """What the call did to the world, as plain values."""
    if output is None:
        return ()
    files = [{"kind": "write", "path": _mended(path)} for path in output.files_modified]
    ran = [] if output.command is None else [{"kind": "execute", "command": output.command}]
    return (*files, *ran)


def _writable(block: ContentBlock) -> ContentBlock:
    """The same block; halves of characters, as odd file names have them, are replaced."""
    if isinstance(block, TextBlock) and not block.text.isascii():
        text = _mended(block.text)
        return block if text == block.text else TextBlock(text)
    return block


def _mended(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


CANCEL_TIMEOUT_S = 30.0
"""How long a tool is waited for that was told to end."""

ToolEnd = tuple[ToolOutput | None, ToolFailedError | None]
"""What a tool gave, and why it did not come to its end, if it did not."""


async def run_tool(
    tool: Tool, arguments: Mapping[str, Any], context: ToolContext, limit_s: float
) -> ToolEnd:
    """Run a tool until it ends, its time is over or the turn is cancelled."""
    running = asyncio.ensure_future(tool.execute(arguments, context))
    stopped = asyncio.create_task(context.cancel.wait())
    try:
        await asyncio.wait({running, stopped}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        # A tool that ends at the moment of the cancellation has most likely ended because of it.
        if running.done() and not stopped.done():
            return _ended(running)
        if stopped.done():
            failure = cancelled_error()
        else:
            failure = ToolFailedError(f"Stopped after {limit_s:g} s.", ErrorClass.TIMEOUT)
        return await _end(tool, running), failure
    finally:
        stopped.cancel()
        running.cancel()


def cancelled_error() -> ToolFailedError:
    """The failure of a call that was cancelled."""
    return ToolFailedError("Cancelled before it was finished.", ErrorClass.CANCELLED)


def _ended(running: asyncio.Future[ToolOutput]) -> ToolEnd:
    if running.cancelled():
        return None, ToolFailedError("The tool ended itself.")
    try:
        return running.result(), None
    except WorkspaceError as error:
        refused, failed = ErrorClass.PERMISSION_DENIED, ErrorClass.EXECUTION_ERROR
        return None, ToolFailedError(f"{error}.", refused if error.is_refused else failed)
    except ToolFailedError as failure:
        return None, failure


async def _end(tool: Tool, running: asyncio.Future[ToolOutput]) -> ToolOutput | None:
    """Make a tool end; gives what it had until then, if it says."""
    if not tool.cancel():
        running.cancel()
    await asyncio.wait({running}, timeout=CANCEL_TIMEOUT_S)
    if not running.done():
        log.warning("%s did not end when it was told to", tool.definition.name)
        # Nobody waits any more; a late error would otherwise be reported as never looked at.
        running.add_done_callback(lambda late: late.cancelled() or late.exception())
        return None
    if running.cancelled() or running.exception() is not None:
        return None
    return running.result()


MAX_PARALLEL_CALLS = 4
"""How many calls of one session run at the same time."""

TIMEOUT_S = 60.0
"""How long a call may take."""

TIMEOUTS_S: Mapping[str, float] = {SideEffects.EXECUTE: 600.0, SideEffects.NETWORK: 600.0}
"""How long a call may take where that is not `TIMEOUT_S`, by its tool or by the tool's effect."""


class Watcher(Listener, Protocol):
    """Told what happens to each call; it must not raise."""

    def refused(self, call: ToolUseBlock, problems: Sequence[str]) -> None:
        """The arguments of a call do not match its schema; it will not run."""
        ...

    def called(self, call: ToolUseBlock, definition: ToolDefinition) -> None:
        """A call starts to run."""
        ...

    def answered(self, call: ToolUseBlock, message: Message, latency_ms: int) -> None:
        """A call has its answer; said once for every call, also when the turn is cancelled."""
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
        """One TOOL message for each call, in the order of the calls.

        Setting `context.cancel` ends what still runs, and the calls that have no answer yet get an
        aborted one. Cancelling the task that waits here does the same; the watcher is then told
        every answer before the cancellation goes on to the caller. Two calls of one id are refused.
        """
        _require_own_ids(calls)
        batch = _Batch(calls, context, watcher)
        tasks = [asyncio.create_task(self._run(call, batch)) for call in calls]
        try:
            await _all(tasks)
        except asyncio.CancelledError:
            context.cancel.set()
            await _all(tasks)
            raise
        finally:
            # Reached with unfinished tasks only if cancelling was itself cancelled.
            for task in tasks:
                task.cancel()
            batch.abort_rest()
        return batch.messages()

    async def _run(self, call: ToolUseBlock, batch: "_Batch") -> None:
        context = replace(batch.context, tool_use_id=call.id)
        try:
            message = await self._answer(call, context, batch)
        except ToolFailedError as failure:
            message = failure_message(call, context, failure)
        except Exception as error:  # noqa: BLE001 - whatever a tool raises, the call needs an answer
            message = _wrapped(call, context, error)
        batch.add(call, message)

    async def _answer(self, call: ToolUseBlock, context: ToolContext, batch: "_Batch") -> Message:
        entry = self._require_known(call)
        problems = _problems(entry, call)
        if problems:
            batch.refuse(call, problems)
            raise _invalid(call, problems)
        _require_workspace(entry, context)
        await self._confirm(Question(call, entry.definition, context), batch.watcher)
        async with self._slots:
            _require_running(context)
            batch.start(call, entry.definition)
            limit = self._limit(entry.definition)
            output, failure = await run_tool(entry.factory(), call.input, context, limit)
        if failure is not None:
            return failure_message(call, context, failure, output)
        if output is None:
            raise TypeError(f"{call.name} gave no output")
        return output_message(call, context, output)

    def _limit(self, definition: ToolDefinition) -> float:
        """How long a call may take: by the tool, or by its effect."""
        by_effect = self._timeouts_s.get(definition.side_effects, self._timeout_s)
        return self._timeouts_s.get(definition.name, by_effect)

    def _require_known(self, call: ToolUseBlock) -> RegisteredTool:
        entry = self.registry.get(call.name)
        if entry is not None:
            return entry
        near = self.registry.similar_names(call.name)
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        raise ToolFailedError(f"There is no tool named {call.name!r}.{hint}", ErrorClass.NOT_FOUND)

    async def _confirm(self, question: Question, watcher: Watcher | None) -> None:
        """Wait until the call may run, or until the turn is cancelled."""
        _require_running(question.context)
        asked = asyncio.create_task(self.confirmation.require(question, watcher))
        stopped = asyncio.create_task(question.context.cancel.wait())
        try:
            await asyncio.wait({asked, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if asked.done():
                asked.result()
            _require_running(question.context)
        finally:
            asked.cancel()
            stopped.cancel()


class _Batch:
    """The calls of one run and their answers so far."""

    def __init__(
        self, calls: Sequence[ToolUseBlock], context: ToolContext, watcher: Watcher | None
    ) -> None:
        self.context = context
        self._calls = calls
        self.watcher = watcher
        self._answers: dict[str, Message] = {}
        self._started: dict[str, float] = {}

    def refuse(self, call: ToolUseBlock, problems: Sequence[str]) -> None:
        if self.watcher:
            self.watcher.refused(call, problems)

    def start(self, call: ToolUseBlock, definition: ToolDefinition) -> None:
        self._started[call.id] = time.monotonic()
        if self.watcher:
            self.watcher.called(call, definition)

    def add(self, call: ToolUseBlock, message: Message) -> None:
        if call.id in self._answers:
            return
        self._answers[call.id] = message
        if self.watcher:
            now = time.monotonic()
            spent = round((now - self._started.get(call.id, now)) * 1000)
            self.watcher.answered(call, message, spent)

    def abort_rest(self) -> None:
        for call in self._calls:
            if call.id not in self._answers:
                context = replace(self.context, tool_use_id=call.id)
                self.add(call, failure_message(call, context, cancelled_error()))

    def messages(self) -> list[Message]:
        return [self._answers[call.id] for call in self._calls]


async def _all(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Wait for all of them; being cancelled here cancels none of them."""
    if tasks:
        await asyncio.wait(tasks)
        for task in tasks:
            task.result()


def _require_own_ids(calls: Sequence[ToolUseBlock]) -> None:
    seen: set[str] = set()
    for index, call in enumerate(calls):
        if call.id in seen:
            raise InvalidValueError("two calls share one id", path=f"$[{index}].id")
        seen.add(call.id)


def _require_running(context: ToolContext) -> None:
    if context.cancel.is_set():
        raise cancelled_error()


def _problems(entry: RegisteredTool, call: ToolUseBlock) -> list[str]:
    """Why arguments cannot be used: they are no JSON object, or each place that does not match."""
    if call.invalid is not None:
        return [f"no JSON object: {call.invalid.error}"]
    return [str(problem) for problem in entry.problems(call.input)]


def _invalid(call: ToolUseBlock, problems: Sequence[str]) -> ToolFailedError:
    lines = "".join(f"\n- {problem}" for problem in problems)
    text = f"The arguments of {call.name} do not match its schema:{lines}"
    return ToolFailedError(text, ErrorClass.VALIDATION_ERROR)


def _require_workspace(entry: RegisteredTool, context: ToolContext) -> None:
    if entry.definition.requires_workspace and context.workspace is None:
        text = f"{entry.definition.name} needs a workspace, and this session has none."
        raise ToolFailedError(text, ErrorClass.PERMISSION_DENIED)


def _wrapped(call: ToolUseBlock, context: ToolContext, error: Exception) -> Message:
    """The answer to a call whose tool raised; only the log knows more than the kind of error."""
    log.error("%s failed", call.name, exc_info=error)
    failure = ToolFailedError(f"{call.name} failed: an internal {type(error).__name__}.")
    return failure_message(call, context, failure)
