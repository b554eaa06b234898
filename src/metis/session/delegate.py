"""delegate: a task for a worker, which is a session of its own with the model of a tier."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Literal

import msgspec
from msgspec import Struct

from metis.canonical.errors import (
    ContextOverflowError,
    MetisError,
    RoutingError,
    ToolDefinitionError,
)
from metis.canonical.message import Message, Role
from metis.canonical.metadata import StopReason
from metis.canonical.tools import SideEffects, ToolDefinition, ToolSet
from metis.events import Bus, Event
from metis.events.house import DelegateCompleted, DelegateFailed, DelegateStarted
from metis.routing import Tier
from metis.session.answer import calls_of
from metis.session.facts import words_of
from metis.session.session import Session
from metis.session.trace import Trace
from metis.tools import ErrorClass, ToolContext, ToolFailedError, ToolOutput
from metis.tools.arguments import integer, read, schema, string
from metis.tools.tool import said

NAME = "delegate"
LIMIT_S = 300.0
"""How long a worker may take."""

Failure = Literal[
    "worker_error",
    "max_tokens_exceeded",
    "insufficient_context",
    "output_schema_validation_failed",
    "no_model_available_for_tier",
    "timeout",
]
_FENCE = "```"


class Task(Struct, frozen=True, forbid_unknown_fields=True):
    """What a worker is given."""

    tier: Tier
    task: str
    context: str = ""
    allowed_tools: tuple[str, ...] | None = None
    output_schema: Mapping[str, Any] | None = None
    max_tokens: int | None = None

    @property
    def words(self) -> str:
        """The task as the worker is told it."""
        parts = [self.task]
        if self.context:
            parts.append(f"# What you should know\n\n{self.context}")
        if self.output_schema is not None:
            wanted = msgspec.json.encode(self.output_schema).decode()
            parts.append(f"Answer with one JSON object that matches this schema:\n{wanted}")
        return "\n\n".join(parts)


class Worker(Struct, frozen=True):
    """A session that was opened for a task, and the tools that it was to have and has not."""

    session: Session
    settle: Callable[[], Awaitable[None]]
    """Keeps what the worker has cost, when it is done or was stopped."""
    missing_tools: tuple[str, ...] = ()


Hire = Callable[[Task, ToolContext], Awaitable[Worker]]
"""Opens a worker for a task."""


class WorkerFailedError(ToolFailedError):
    """A worker that gave no result."""

    def __init__(self, text: str, mode: Failure) -> None:
        self.mode: Failure = mode
        super().__init__(text)


class Delegate:
    """Gives a task to a worker and brings back its answer."""

    definition = ToolDefinition(
        name=NAME,
        description=(
            "Give a task to a worker with a model of its own, and get its answer. The worker sees "
            "nothing of this conversation: tell it everything that it needs."
        ),
        input_schema=schema(
            ("tier", "task"),
            tier={
                "type": "string",
                "enum": [tier.value for tier in Tier],
                "description": "How much thought the task needs.",
            },
            task=string("What is to be done, and what the answer should hold."),
            context=string("What the worker has to know beside the task."),
            allowed_tools={
                "type": "array",
                "items": {"type": "string"},
                "description": "The tools that the worker may call; all if this is left out.",
            },
            output_schema={
                "type": "object",
                "description": "A JSON schema that the answer must match.",
            },
            max_tokens=integer("The longest answer, in tokens."),
        ),
        side_effects=SideEffects.NONE,
        requires_workspace=False,
    )

    def __init__(self, hire: Hire, bus: Bus | None = None, limit_s: float = LIMIT_S) -> None:
        self._hire = hire
        self._bus = bus
        self._limit_s = limit_s

    def cancel(self) -> bool:
        """The worker is ended with the task that waits for it."""
        return False

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Let a worker do the task."""
        task = read(Task, arguments)
        check = _check(task)
        worker = await self._hire(task, context)
        trace = Trace(self._bus, context.session_id, context.turn_id)
        started = trace.emit(
            DelegateStarted(
                tool_use_id=context.tool_use_id,
                worker_session_id=worker.session.id,
                tier=task.tier.value,
                context_mode="explicit" if task.context else "minimal",
                included_count=1 if task.context else 0,
                dropped_tools=worker.missing_tools,
            )
        )
        try:
            answer = await self._answer(task, worker, check)
        except BaseException as error:
            _tell_failure(trace, started, worker.session, context, error)
            raise
        _tell_success(trace, started, worker.session, context, answer)
        value = {"session_id": worker.session.id, "cost_usd": str(_cost(worker.session))}
        return said(answer, value=value)

    async def _answer(self, task: Task, worker: Worker, check: ToolSet | None) -> str:
        try:
            async with asyncio.timeout(self._limit_s):
                message = await worker.session.ask(task.words)
        except TimeoutError:
            text = f"The worker was stopped after {self._limit_s:g} s."
            raise WorkerFailedError(text, "timeout") from None
        except RoutingError as error:
            text = f"No model can take a task of tier {task.tier}: {error}"
            raise WorkerFailedError(text, "no_model_available_for_tier") from None
        except ContextOverflowError:
            text = "The task is larger than the window of the worker."
            raise WorkerFailedError(text, "insufficient_context") from None
        except MetisError as error:
            text = f"The worker failed: {type(error).__name__}."
            raise WorkerFailedError(text, "worker_error") from None
        finally:
            await worker.session.end()
            await worker.settle()
        return _checked(message, check)


def _check(task: Task) -> ToolSet | None:
    """What the answer is held against, if it must match a schema."""
    if task.output_schema is None:
        return None
    try:
        return ToolSet([ToolDefinition(NAME, "", task.output_schema, SideEffects.NONE)])
    except ToolDefinitionError as error:
        text = f"The schema of the answer cannot be used: {error}"
        raise ToolFailedError(text, ErrorClass.VALIDATION_ERROR) from None


def _checked(message: Message | None, check: ToolSet | None) -> str:
    if message is None:
        raise WorkerFailedError("The worker said nothing.", "worker_error")
    if message.metadata.stop_reason is StopReason.MAX_TOKENS:
        text = "The answer of the worker was cut at its longest."
        raise WorkerFailedError(text, "max_tokens_exceeded")
    text = words_of(message.content)
    if check is None:
        return text
    try:
        problems = [str(each) for each in check.check_input(NAME, msgspec.json.decode(_bare(text)))]
    except msgspec.DecodeError as error:
        problems = [str(error)]
    if problems:
        told = "; ".join(problems)
        text = f"The answer of the worker does not match the schema: {told}"
        raise WorkerFailedError(text, "output_schema_validation_failed")
    return text


def _bare(text: str) -> str:
    """The JSON in an answer: models like to put a fence around it."""
    inner = text.strip()
    if inner.startswith(_FENCE) and inner.endswith(_FENCE):
        inner = inner.removesuffix(_FENCE).partition("\n")[2]
    return inner


def _cost(session: Session) -> Decimal:
    return session.cost().total_usd


def _models(messages: Sequence[Message]) -> list[str]:
    return [each.metadata.model for each in messages if each.metadata.model]


def _tell_success(
    trace: Trace, started: Event | None, session: Session, context: ToolContext, answer: str
) -> None:
    messages = session.messages
    trace.emit(
        DelegateCompleted(
            tool_use_id=context.tool_use_id,
            worker_session_id=session.id,
            success=True,
            model=_models(messages)[-1],
            result_size_bytes=len(answer.encode()),
            worker_total_cost_usd=_cost(session),
            llm_call_count=sum(each.role is Role.ASSISTANT for each in messages),
            tool_call_count=sum(len(calls_of(each)) for each in messages),
        ),
        parent=started,
    )


def _tell_failure(
    trace: Trace,
    started: Event | None,
    session: Session,
    context: ToolContext,
    error: BaseException,
) -> None:
    is_ours = isinstance(error, WorkerFailedError)
    mode = error.mode if is_ours else "cancelled_by_user"
    trace.emit(
        DelegateFailed(
            tool_use_id=context.tool_use_id,
            worker_session_id=session.id,
            failure_mode=mode,
            error_message=mode,
            partial_cost_usd=_cost(session),
        ),
        parent=started,
    )
