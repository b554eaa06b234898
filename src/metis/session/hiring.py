"""Hiring: opens workers for a session, with their own model, tools and part of its budget."""

from collections.abc import Awaitable, Callable
from decimal import Decimal
from functools import partial

from msgspec.structs import replace

from metis.canonical.ids import new_ulid
from metis.events import Budget
from metis.events.work import SessionCreated
from metis.session.context import Context, instructions
from metis.session.conversation import DELEGATED, Conversation
from metis.session.delegate import Task, Worker
from metis.session.session import Session
from metis.session.setup import Setup
from metis.session.toolkit import make_toolkit
from metis.session.trace import Trace
from metis.store.entries import SidecarEntry
from metis.tools import Confirmation, Registry, ToolContext, Workspace

PARENT = "session.parent"
"""The kind of the entry that says for whom a worker works."""

BASE = (
    "You do one task for somebody who cannot be asked back. Do it as far as it can be done, and "
    "answer with the result and nothing else."
)


class Hiring:
    """Opens the workers of one session."""

    def __init__(  # noqa: PLR0913 - what a worker has, all by name
        self,
        setup: Setup,
        conversation: Conversation,
        context: Context,
        *,
        tools: Registry,
        confirmation: Confirmation | None,
        workspace: Workspace | None,
        reopen: Callable[[str], Awaitable[Session]],
    ) -> None:
        self._setup = setup
        self._conversation = conversation
        self._texts = replace(context, base=BASE, skills=(), user="", memory="").texts()
        self._tools = tools
        self._confirmation = confirmation
        self._workspace = workspace
        self._reopen = reopen
        self._workers: list[Session] = []

    async def hire(self, task: Task, context: ToolContext) -> Worker:
        """A worker for a task; it knows nothing of the session that it works for."""
        setup, own = self._setup, self._conversation.id
        record = await setup.store.create_session(workspace_path=setup.workspace_path)
        created = SessionCreated(
            workspace_path=setup.workspace_path, parent_session_id=own, is_worker=True
        )
        Trace(setup.bus, record.id).emit(created)
        conversation = Conversation(setup.store, record.id)
        data = {"session_id": own, "tool_use_id": context.tool_use_id, "tier": task.tier.value}
        await conversation.note(
            SidecarEntry(
                id=new_ulid(), session_id=record.id, created_at=setup.now(), kind=PARENT, data=data
            )
        )
        await conversation.keep(*instructions(record.id, self._texts, setup.now()))
        wanted = task.allowed_tools
        names = [name for name in self._tools if wanted is None or name in wanted]
        entries = [entry for name in names if (entry := self._tools.get(name))]
        registry = Registry(*(entry.factory for entry in entries))
        session = Session(
            replace(
                setup,
                models=setup.models.apart(),
                toolbox=make_toolkit(registry, (), self._confirmation, self._workspace),
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
        await self._conversation.note(
            SidecarEntry(
                id=new_ulid(),
                session_id=self._conversation.id,
                created_at=self._setup.now(),
                kind=DELEGATED,
                data={"session_id": worker.id, "cost_usd": str(worker.cost().total_usd)},
            )
        )

    def _budget(self) -> Budget:
        """What the session, its former workers and those at work have left over."""
        budget = self._conversation.budget(self._setup.budget)
        if budget.session_usd is None:
            return budget
        spent = [each.cost().total_usd for each in (self._conversation, *self._workers)]
        spent.append(self._conversation.delegated_usd)
        left = max(Decimal(0), budget.session_usd - sum(spent, Decimal(0)))
        return replace(budget, session_usd=left)
