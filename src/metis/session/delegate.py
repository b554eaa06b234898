"""The delegate tool: a task runs in a worker session with the model of a tier."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from decimal import Decimal
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
from metis.canonical.message import Message, Role
from metis.canonical.metadata import StopReason
from metis.canonical.tools import SideEffects, ToolDefinition, ToolSet
from metis.events import Budget
from metis.events.system_events import DelegateCompleted, DelegateFailed, DelegateStarted
from metis.events.turn_events import SessionCreated
from metis.routing import Tier
from metis.session.conversation import WORKER_KIND, Conversation
from metis.session.events import Trace
from metis.session.options import Setup
from metis.session.prompt import SystemPrompt, system_messages
from metis.session.response import text_of, tool_calls_of
from metis.session.session import Session
from metis.session.tools import make_session_tools
from metis.store.entries import PARENT_KIND
from metis.tools import (
    ErrorClass,
    Registry,
    ToolContext,
    ToolFailedError,
    ToolOutput,
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
# Models tend to put JSON into a fenced code block.
_FENCE = "```"


class Task(Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of the tool: a task for a worker."""

    tier: Tier
    task: str
    context: str = ""
    allowed_tools: tuple[str, ...] | None = None
    output_schema: Mapping[str, Any] | None = None
    max_tokens: int | None = None

    @property
    def prompt(self) -> str:
        """The prompt of the worker."""
        parts = [self.task]
        if self.context:
            parts.append(f"# What you should know\n\n{self.context}")
        if self.output_schema is not None:
            schema = msgspec.json.encode(self.output_schema).decode()
            parts.append(f"Answer with one JSON object that matches this schema:\n{schema}")
        return "\n\n".join(parts)


class WorkerFailedError(ToolFailedError):
    """A worker returned no usable result."""

    def __init__(self, text: str, mode: FailureMode) -> None:
        self.mode: FailureMode = mode
        super().__init__(text)


class Delegate:
    """The tool that runs a task in a worker and returns its result."""

    definition = ToolDefinition(
        name=TOOL_NAME,
        description=(
            "Delegate a task to a worker with its own model, and get its answer. The worker does "
            "not see this conversation: include everything it needs."
        ),
        input_schema=object_schema(
            ("tier", "task"),
            tier={
                "type": "string",
                "enum": [tier.value for tier in Tier],
                "description": "How difficult the task is.",
            },
            task=string_property("The task, and what the answer should contain."),
            context=string_property("Background that the worker needs."),
            allowed_tools={
                "type": "array",
                "items": {"type": "string"},
                "description": "The tools that the worker may call; all by default.",
            },
            output_schema={
                "type": "object",
                "description": "A JSON schema that the answer must match.",
            },
            max_tokens=integer_property("The maximum length of the answer in tokens."),
        ),
        side_effects=SideEffects.NONE,
        requires_workspace=False,
    )

    def __init__(self, workers: "WorkerFactory", timeout_s: float = TIMEOUT_S) -> None:
        self._workers = workers
        self._timeout_s = timeout_s

    def cancel(self) -> bool:
        """Return False: the worker ends with the asyncio task that waits for it."""
        return False

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Run the task in a worker session and return its response."""
        task = read_arguments(Task, arguments)
        checker = _output_checker(task)
        worker, missing_tools = await self._workers.create(task, context)
        trace = Trace(self._workers.bus, context.session_id, context.turn_id)
        started = trace.emit(
            DelegateStarted(
                tool_use_id=context.tool_use_id,
                worker_session_id=worker.id,
                tier=task.tier.value,
                context_mode="explicit" if task.context else "minimal",
                included_count=1 if task.context else 0,
                dropped_tools=missing_tools,
            )
        )
        try:
            result = await self._run(task, worker, checker)
        except BaseException as error:
            trace.emit(_failed(worker, context, error), parent=started)
            raise
        trace.emit(_completed(worker, context, result), parent=started)
        cost_usd = str(worker.cost().total_usd)
        return text_output(result, value={"session_id": worker.id, "cost_usd": cost_usd})

    async def _run(self, task: Task, worker: Session, checker: ToolSet | None) -> str:
        try:
            async with asyncio.timeout(self._timeout_s):
                reply = await worker.ask(task.prompt)
        except TimeoutError:
            text = f"The worker was stopped after {self._timeout_s:g} s."
            raise WorkerFailedError(text, "timeout") from None
        except RoutingError as error:
            text = f"No model can take a task of tier {task.tier}: {error}"
            raise WorkerFailedError(text, "no_model_available_for_tier") from None
        except ContextOverflowError:
            text = "The task does not fit into the context window of the worker."
            raise WorkerFailedError(text, "insufficient_context") from None
        except MetisError as error:
            # Only the class: the text of a provider error may quote the worker's conversation.
            text = f"The worker failed: {type(error).__name__}."
            raise WorkerFailedError(text, "worker_error") from None
        finally:
            # The cost of the worker is also recorded after a timeout or a cancellation.
            await worker.end()
            await self._workers.record_cost(worker)
        return _checked_text(reply.message, checker)


def _output_checker(task: Task) -> ToolSet | None:
    """Return a validator for the result: a tool set whose only input is the output schema."""
    if task.output_schema is None:
        return None
    try:
        return ToolSet([ToolDefinition(TOOL_NAME, "", task.output_schema, SideEffects.NONE)])
    except ToolDefinitionError as error:
        text = f"output_schema cannot be used: {error}"
        raise ToolFailedError(text, ErrorClass.VALIDATION_ERROR) from None


def _checked_text(message: Message | None, checker: ToolSet | None) -> str:
    if message is None:
        raise WorkerFailedError("The worker returned an empty response.", "worker_error")
    if message.metadata.stop_reason is StopReason.MAX_TOKENS:
        text = "The response of the worker was cut off at its token limit."
        raise WorkerFailedError(text, "max_tokens_exceeded")
    text = text_of(message.content)
    if checker is None:
        return text
    try:
        value = msgspec.json.decode(_without_fence(text))
        problems = [str(problem) for problem in checker.check_input(TOOL_NAME, value)]
    except msgspec.DecodeError as error:
        problems = [str(error)]
    if problems:
        text = f"The result of the worker does not match the schema: {'; '.join(problems)}"
        raise WorkerFailedError(text, "output_schema_validation_failed")
    return text


def _without_fence(text: str) -> str:
    """Return the JSON in a response: models tend to put it into a fenced code block."""
    inner = text.strip()
    if inner.startswith(_FENCE) and inner.endswith(_FENCE):
        inner = inner.removesuffix(_FENCE).partition("\n")[2]
    return inner


def _completed(worker: Session, context: ToolContext, result: str) -> DelegateCompleted:
    messages = worker.messages
    models = [message.metadata.model for message in messages if message.metadata.model]
    return DelegateCompleted(
        tool_use_id=context.tool_use_id,
        worker_session_id=worker.id,
        success=True,
        model=models[-1],
        result_size_bytes=len(result.encode()),
        worker_total_cost_usd=worker.cost().total_usd,
        llm_call_count=sum(message.role is Role.ASSISTANT for message in messages),
        tool_call_count=sum(len(tool_calls_of(message)) for message in messages),
    )


def _failed(worker: Session, context: ToolContext, error: BaseException) -> DelegateFailed:
    mode = error.mode if isinstance(error, WorkerFailedError) else "cancelled_by_user"
    return DelegateFailed(
        tool_use_id=context.tool_use_id,
        worker_session_id=worker.id,
        failure_mode=mode,
        error_message=mode,
        partial_cost_usd=worker.cost().total_usd,
    )


WORKER_INSTRUCTIONS = (
    "You do one task and cannot ask questions. Complete it as far as possible, and answer with the "
    "result and nothing else."
)


class WorkerFactory:
    """Creates the worker sessions of one session."""

    def __init__(
        self,
        conversation: Conversation,
        setup: Setup,
        prompt: SystemPrompt,
        *,
        tools: Registry,
        reopen: Callable[[str], Awaitable[Session]],
    ) -> None:
        self.bus = setup.options.bus
        self._conversation = conversation
        self._setup = setup
        # A worker needs the rules of the workspace, and nothing about the user.
        prompt = replace(prompt, base=WORKER_INSTRUCTIONS, skills=(), user="", memory="")
        self._system_texts = prompt.texts()
        self._tools = tools
        self._reopen = reopen
        self._workers: list[Session] = []

    async def create(self, task: Task, context: ToolContext) -> tuple[Session, tuple[str, ...]]:
        """Create a worker for a task; return it and the names of tools that do not exist.

        The worker gets no part of its parent's history.
        """
        setup, parent_id = self._setup, self._conversation.id
        record = await setup.store.create_session(workspace_path=setup.workspace_path)
        created = SessionCreated(
            workspace_path=setup.workspace_path, parent_session_id=parent_id, is_worker=True
        )
        Trace(self.bus, record.id).emit(created)
        conversation = Conversation(setup.store, record.id)
        call = {"tool_use_id": context.tool_use_id, "tier": task.tier.value}
        await conversation.note(PARENT_KIND, {"session_id": parent_id, **call})
        await conversation.append(*system_messages(record.id, self._system_texts, setup.now()))
        allowed = task.allowed_tools
        names = [name for name in self._tools if allowed is None or name in allowed]
        tools = [tool for name in names if (tool := self._tools.get(name))]
        registry = Registry(*(tool.factory for tool in tools))
        session = Session(
            replace(
                setup,
                models=setup.models.for_session(),
                # Without the built-in tools, so that a worker cannot delegate again.
                toolbox=make_session_tools(
                    registry, (), setup.options.confirmation, setup.workspace
                ),
                budget=self._budget(),
                request_defaults=replace(
                    setup.request_defaults,
                    output=None,  # the output format of the parent does not concern the worker
                    max_output_tokens=task.max_tokens or setup.request_defaults.max_output_tokens,
                ),
                skills=(),
                parent=parent_id,
                tier=task.tier,
            ),
            conversation,
            reopen=self._reopen,
        )
        self._workers.append(session)
        missing = tuple(sorted(set(allowed or ()) - set(names)))
        return session, missing

    async def record_cost(self, worker: Session) -> None:
        """Add the cost of a worker to the spending of its parent session."""
        self._workers.remove(worker)
        cost_usd = str(worker.cost().total_usd)
        data = {"session_id": worker.id, "cost_usd": cost_usd}
        await self._conversation.note(WORKER_KIND, data)

    def _budget(self) -> Budget:
        """Return the part of the budget that the session and all its workers have not spent."""
        budget = self._conversation.budget(self._setup.budget)
        if budget.session_usd is None:
            return budget
        costs = [source.cost().total_usd for source in (self._conversation, *self._workers)]
        costs.append(self._conversation.workers_usd)
        remaining = max(Decimal(0), budget.session_usd - sum(costs, Decimal(0)))
        return replace(budget, session_usd=remaining)
