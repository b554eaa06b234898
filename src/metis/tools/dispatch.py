"""Dispatch: runs the calls of one assistant message, and answers each of them exactly once."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec.structs import replace

from metis.canonical.blocks import ToolUseBlock
from metis.canonical.errors import InvalidValueError
from metis.canonical.message import Message
from metis.canonical.tools import SideEffects, ToolDefinition
from metis.tools.confirmation import Confirmation, Listener, Question
from metis.tools.execution import cancelled, execute
from metis.tools.registry import Entry, Registry
from metis.tools.result import failure_message, output_message
from metis.tools.tool import ErrorClass, ToolContext, ToolFailedError, log

CAP = 4
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
        cap: int = CAP,
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
            output, failure = await execute(entry.factory(), call.input, context, limit)
        if failure is not None:
            return failure_message(call, context, failure, output)
        if output is None:
            raise TypeError(f"{call.name} gave no output")
        return output_message(call, context, output)

    def _limit(self, definition: ToolDefinition) -> float:
        """How long a call may take: by the tool, or by its effect."""
        by_effect = self._timeouts_s.get(definition.side_effects, self._timeout_s)
        return self._timeouts_s.get(definition.name, by_effect)

    def _require_known(self, call: ToolUseBlock) -> Entry:
        entry = self.registry.get(call.name)
        if entry is not None:
            return entry
        near = self.registry.near(call.name)
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
                self.add(call, failure_message(call, context, cancelled()))

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
        raise cancelled()


def _problems(entry: Entry, call: ToolUseBlock) -> list[str]:
    """Why arguments cannot be used: they are no JSON object, or each place that does not match."""
    if call.invalid is not None:
        return [f"no JSON object: {call.invalid.error}"]
    return [str(problem) for problem in entry.problems(call.input)]


def _invalid(call: ToolUseBlock, problems: Sequence[str]) -> ToolFailedError:
    lines = "".join(f"\n- {problem}" for problem in problems)
    text = f"The arguments of {call.name} do not match its schema:{lines}"
    return ToolFailedError(text, ErrorClass.VALIDATION_ERROR)


def _require_workspace(entry: Entry, context: ToolContext) -> None:
    if entry.definition.requires_workspace and context.workspace is None:
        text = f"{entry.definition.name} needs a workspace, and this session has none."
        raise ToolFailedError(text, ErrorClass.PERMISSION_DENIED)


def _wrapped(call: ToolUseBlock, context: ToolContext, error: Exception) -> Message:
    """The answer to a call whose tool raised; only the log knows more than the kind of error."""
    log.error("%s failed", call.name, exc_info=error)
    failure = ToolFailedError(f"{call.name} failed: an internal {type(error).__name__}.")
    return failure_message(call, context, failure)
