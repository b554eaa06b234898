"""The delegate tool: a task runs in a worker session with the model of a tier."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from metis.canonical.errors import (
    ContextOverflowError,
    MetisError,
    RoutingError,
    ToolDefinitionError,
)
from metis.canonical.ids import new_ulid
from metis.canonical.message import Message, Role
from metis.canonical.metadata import StopReason
from metis.canonical.tools import SideEffects, ToolDefinition, ToolSet
from metis.events import Budget, Bus, Event
from metis.events.system_events import DelegateCompleted, DelegateFailed, DelegateStarted
from metis.events.turn_events import SessionCreated
from metis.routing import Tier
from metis.session.conversation import WORKER_KIND, Conversation
from metis.session.events import Trace
from metis.session.options import Setup
from metis.session.prompt import SystemPrompt, system_messages
from metis.session.response import tool_calls_of
from metis.session.session import Session
from metis.session.state import text_of
from metis.session.tools import make_session_tools
from metis.store.entries import SidecarEntry
from metis.tools import (
    Confirmation,
    ErrorClass,
    Registry,
    ToolContext,
    ToolFailedError,
    ToolOutput,
    Workspace,
)
from metis.tools.tool import (
    integer_property,
    object_schema,
    read_arguments,
    string_property,
    text_output,
)

TOOL_NAME = "delegate"
TIMEOUT_S = 300.0
"""How long a worker may take."""

FailureMode = Literal[
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
    def prompt(self) -> str:
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
    record_cost: Callable[[], Awaitable[None]]
    """Keeps what the worker has cost, when it is done or was stopped."""
    missing_tools: tuple[str, ...] = ()


CreateWorker = Callable[[Task, ToolContext], Awaitable[Worker]]
"""Opens a worker for a task."""


class WorkerFailedError(ToolFailedError):
    """A worker that gave no result."""

    def __init__(self, text: str, mode: FailureMode) -> None:
        self.mode: FailureMode = mode
        super().__init__(text)


class Delegate:
    """Gives a task to a worker and brings back its answer."""

    definition = ToolDefinition(
        name=TOOL_NAME,
        description=(
            "Give a task to a worker with a model of its own, and get its answer. The worker sees "
            "nothing of this conversation: tell it everything that it needs."
        ),
        input_schema=object_schema(
            ("tier", "task"),
            tier={
                "type": "string",
                "enum": [tier.value for tier in Tier],
                "description": "How much thought the task needs.",
            },
            task=string_property("What is to be done, and what the answer should hold."),
            context=string_property("What the worker has to know beside the task."),
            allowed_tools={
                "type": "array",
                "items": {"type": "string"},
                "description": "The tools that the worker may call; all if this is left out.",
            },
            output_schema={
                "type": "object",
                "description": "A JSON schema that the answer must match.",
            },
            max_tokens=integer_property("The longest answer, in tokens."),
        ),
        side_effects=SideEffects.NONE,
        requires_workspace=False,
    )

    def __init__(
        self, hire: CreateWorker, bus: Bus | None = None, limit_s: float = TIMEOUT_S
    ) -> None:
        self._hire = hire
        self._bus = bus
        self._limit_s = limit_s

    def cancel(self) -> bool:
        """The worker is ended with the task that waits for it."""
        return False

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Let a worker do the task."""
        task = read_arguments(Task, arguments)
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
        return text_output(answer, value=value)

    async def _answer(self, task: Task, worker: Worker, check: ToolSet | None) -> str:
        try:
            async with asyncio.timeout(self._limit_s):
                message = await worker.session.ask(task.prompt)
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
            await worker.record_cost()
        return _checked(message, check)


def _check(task: Task) -> ToolSet | None:
    """What the answer is held against, if it must match a schema."""
    if task.output_schema is None:
        return None
    try:
        return ToolSet([ToolDefinition(TOOL_NAME, "", task.output_schema, SideEffects.NONE)])
    except ToolDefinitionError as error:
        text = f"The schema of the answer cannot be used: {error}"
        raise ToolFailedError(text, ErrorClass.VALIDATION_ERROR) from None


def _checked(message: Message | None, check: ToolSet | None) -> str:
    if message is None:
        raise WorkerFailedError("The worker said nothing.", "worker_error")
    if message.metadata.stop_reason is StopReason.MAX_TOKENS:
        text = "The answer of the worker was cut at its longest."
        raise WorkerFailedError(text, "max_tokens_exceeded")
    text = text_of(message.content)
    if check is None:
        return text
    try:
        problems = [
            str(each) for each in check.check_input(TOOL_NAME, msgspec.json.decode(_bare(text)))
        ]
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
            tool_call_count=sum(len(tool_calls_of(each)) for each in messages),
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


PARENT_KIND = "session.parent"
"""The kind of the entry that says for whom a worker works."""

WORKER_INSTRUCTIONS = (
    "You do one task for somebody who cannot be asked back. Do it as far as it can be done, and "
    "answer with the result and nothing else."
)


class WorkerFactory:
    """Opens the workers of one session."""

    def __init__(  # noqa: PLR0913 - what a worker has, all by name
        self,
        setup: Setup,
        conversation: Conversation,
        context: SystemPrompt,
        *,
        tools: Registry,
        confirmation: Confirmation | None,
        workspace: Workspace | None,
        reopen: Callable[[str], Awaitable[Session]],
    ) -> None:
        self._setup = setup
        self._conversation = conversation
        self._texts = replace(
            context, base=WORKER_INSTRUCTIONS, skills=(), user="", memory=""
        ).texts()
        self._tools = tools
        self._confirmation = confirmation
        self._workspace = workspace
        self._reopen = reopen
        self._workers: list[Session] = []

    async def create(self, task: Task, context: ToolContext) -> Worker:
        """A worker for a task; it knows nothing of the session that it works for."""
        setup, own = self._setup, self._conversation.id
        record = await setup.store.create_session(workspace_path=setup.workspace_path)
        created = SessionCreated(
            workspace_path=setup.workspace_path, parent_session_id=own, is_worker=True
        )
        Trace(setup.bus, record.id).emit(created)
        conversation = Conversation(setup.store, record.id)
        data = {"session_id": own, "tool_use_id": context.tool_use_id, "tier": task.tier.value}
        await conversation.record(
            SidecarEntry(
                id=new_ulid(),
                session_id=record.id,
                created_at=setup.now(),
                kind=PARENT_KIND,
                data=data,
            )
        )
        await conversation.append(*system_messages(record.id, self._texts, setup.now()))
        wanted = task.allowed_tools
        names = [name for name in self._tools if wanted is None or name in wanted]
        entries = [entry for name in names if (entry := self._tools.get(name))]
        registry = Registry(*(entry.factory for entry in entries))
        session = Session(
            replace(
                setup,
                models=setup.models.with_separate_adapters(),
                toolbox=make_session_tools(registry, (), self._confirmation, self._workspace),
                budget=self._budget(),
                options=replace(
                    setup.options,
                    output=None,  # what the planner has to give is not what a worker has to
                    max_output_tokens=task.max_tokens or setup.options.max_output_tokens,
                ),
                skills=(),
                parent=own,
                tier=task.tier,
            ),
            conversation,
            reopen=self._reopen,
        )
        self._workers.append(session)
        missing = tuple(sorted(set(wanted or ()) - set(names)))
        return Worker(session, partial(self._settle, session), missing)

    async def _settle(self, worker: Session) -> None:
        """Count what a worker has cost against the limits of the session that hired it."""
        self._workers.remove(worker)
        await self._conversation.record(
            SidecarEntry(
                id=new_ulid(),
                session_id=self._conversation.id,
                created_at=self._setup.now(),
                kind=WORKER_KIND,
                data={"session_id": worker.id, "cost_usd": str(worker.cost().total_usd)},
            )
        )

    def _budget(self) -> Budget:
        """What the session, its former workers and those at work have left over."""
        budget = self._conversation.budget(self._setup.budget)
        if budget.session_usd is None:
            return budget
        spent = [each.cost().total_usd for each in (self._conversation, *self._workers)]
        spent.append(self._conversation.workers_usd)
        left = max(Decimal(0), budget.session_usd - sum(spent, Decimal(0)))
        return replace(budget, session_usd=left)
