"""The library: a store, a client and the sessions between them."""

import asyncio
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self
from weakref import WeakValueDictionary

from msgspec.structs import replace

from metis import adapters
from metis.canonical.errors import StoreClosedError, UnknownModelError
from metis.catalog.load import load_tables
from metis.events.work import SessionCreated, SessionResumed
from metis.routing import PLACE, Availability, Policy, Router, RulesFile, Scope, Tier
from metis.session.configured import Configured
from metis.session.context import Context, instructions, read_context
from metis.session.conversation import Conversation
from metis.session.delegate import Delegate
from metis.session.finishing import finished
from metis.session.hiring import Hiring
from metis.session.memory import Memory, memory_tools
from metis.session.models import Models
from metis.session.options import Options
from metis.session.outages import Outages
from metis.session.servers import Servers
from metis.session.session import Session
from metis.session.setup import Setup
from metis.session.skill_tool import LoadSkill
from metis.session.spending import Spending
from metis.session.stand_in import StandIn
from metis.session.toolkit import Toolkit, make_toolkit
from metis.session.trace import Trace
from metis.store import SessionRecord, Store
from metis.store import open as open_store
from metis.tools import Factory, Registry, Workspace
from metis.transport import Keys, Transport
from metis.wire.call import AdapterOptions


def _now() -> datetime:
    return datetime.now(UTC)


class Metis:
    """Sessions in one store; made by `metis.open`, and used as a context manager."""

    def __init__(self, url: str | None = None, options: Options = Options()) -> None:  # noqa: B008 - an immutable value
        self.options = options
        self._url = url
        self._store: Store | None = None
        self._transport: Transport | None = None
        self._setup: Setup | None = None
        self._sessions: WeakValueDictionary[str, Session] = WeakValueDictionary()
        self._stand_in: StandIn | None = None
        self._workspace: Workspace | None = None
        self._memory: Memory | None = None
        self._servers = Servers(options.servers)

    async def __aenter__(self) -> Self:
        options = self.options
        keys = Keys(options.keys, file=options.key_file)
        models = Models(
            base_urls={**self._simulated(), **options.base_urls},
            accounts=options.accounts,
            keys=keys,
            is_free=options.is_free,
            hides_ids=options.hides_ids,
        )
        if options.workspace is not None:
            self._workspace = Workspace(options.workspace)
        if options.home is not None:
            self._memory = Memory(options.home, options.bus)
        availability = Availability(clock=_now)
        self._store = store = open_store(self._url)
        self._transport = Transport(keys=keys, limits=options.limits, retry=options.retry)
        self._setup = Setup(
            store=store,
            transport=self._transport,
            models=models,
            router=Router(
                models.catalog,
                configured=Configured(models),
                rules=self._rules(models),
                outage=availability.outage,
            ),
            outages=Outages(availability, _now),
            spending=Spending(store, now=_now),
            budget=options.budget,
            bus=options.bus,
            options=_with_budget(options),
            fallbacks={
                name if name == "*" else models.resolve(name): tuple(map(models.resolve, others))
                for name, others in options.fallbacks.items()
            },
            workspace_path=str(options.workspace or ""),
            has_rules=options.workspace is not None,
            compact_at=options.compact_at,
            compact_with=options.compact_with,
            pointers=options.pointers,
            max_calls=options.max_calls,
            partial=options.partial,
            workspace=self._workspace,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await finished(self.close())

    async def close(self) -> None:
        """Cancel what runs, and close the connections and the store."""
        for session in tuple(self._sessions.values()):
            await session.cancel()
        self._sessions.clear()
        if self._transport is not None:
            await self._transport.close()
        if self._store is not None:
            await self._store.close()
        if self._stand_in is not None:
            await self._stand_in.stop()
        if self._workspace is not None:
            self._workspace.close()
        await self._servers.close()
        self._transport = self._store = self._setup = self._stand_in = self._workspace = None

    async def prepare(self) -> None:
        """Do ahead what the first turn would wait for, while somebody writes a question."""
        setup = self._opened()
        await asyncio.to_thread(load_tables)
        await setup.transport.prepare()
        await setup.spending.spent()
        if self._stand_in is not None:
            await self._stand_in.prepare()

    @property
    def store(self) -> Store:
        """The store behind the sessions."""
        return self._opened().store

    @property
    def models(self) -> Models:
        """The models that can be asked, and who serves them."""
        return self._opened().models

    async def session(self, *, model: str | None = None, system: str | None = None) -> Session:
        """A new session; `model` by id or alias is who answers, `system` what it is told first."""
        setup = self._opened()
        active = None if model is None else setup.models.resolve(model)
        record = await setup.store.create_session(
            workspace_path=setup.workspace_path, active_model=active
        )
        conversation = Conversation(setup.store, record.id, pinned=active)
        Trace(setup.bus, record.id).emit(
            SessionCreated(workspace_path=setup.workspace_path, initial_active_model=active)
        )
        context = self._context(system or "")
        texts = context.texts()
        if texts:
            await conversation.keep(*instructions(record.id, texts, _now()))
        return self._hold(conversation, context)

    async def resume(self, session_id: str) -> Session:
        """A session of the store, as it was left; the same object while it is open."""
        if session_id in self._sessions:
            return self._sessions[session_id]
        setup = self._opened()
        record = await setup.store.session(session_id)
        entries = await setup.store.history(session_id)
        Trace(setup.bus, record.id).emit(SessionResumed(message_count=len(entries)))
        if record.active_model is not None:
            with suppress(UnknownModelError):  # another can go on with it, and who asks is told
                setup.models.resolve(record.active_model)
        conversation = Conversation(setup.store, record.id, entries, pinned=record.active_model)
        return self._hold(conversation, self._context(""))

    async def sessions(self, limit: int = 100) -> list[SessionRecord]:
        """The sessions that changed last, newest first."""
        return await self._opened().store.sessions(limit)

    def _hold(self, conversation: Conversation, context: Context) -> Session:
        setup = self._opened()
        # Adapters remember what they sent; a session has its own, so that none forgets another.
        own = replace(setup, models=setup.models.apart(), skills=context.skills)
        own = replace(own, toolbox=self._toolkit(own, conversation, context))
        session = Session(own, conversation, reopen=self.resume)
        self._sessions[session.id] = session
        return session

    def _context(self, base: str) -> Context:
        """What a model is told first; without tools no skill could be loaded."""
        options = self.options
        workspace = None if options.workspace is None else Path(options.workspace)
        context = read_context(base, workspace=workspace, home=options.home, today=_now().date())
        return context if options.tools is not None else replace(context, skills=())

    def _toolkit(
        self, setup: Setup, conversation: Conversation, context: Context
    ) -> Toolkit | None:
        options, house = self.options, list[Factory]()
        if options.tools is None and not self._servers:
            return None
        if options.tools is None:
            return make_toolkit(
                Registry(), (), options.confirmation, self._workspace, self._servers
            )
        if self._memory is not None:
            house += memory_tools(self._memory)
        if context.skills:
            house.append(partial(LoadSkill, context.skills, setup.bus))
        if setup.router.tiers(setup.workspace_path):
            hiring = Hiring(
                setup,
                conversation,
                context,
                tools=options.tools,
                confirmation=options.confirmation,
                workspace=self._workspace,
                reopen=self.resume,
            )
            house.append(partial(Delegate, hiring.hire, setup.bus))
        return make_toolkit(
            options.tools, house, options.confirmation, self._workspace, self._servers
        )

    def _simulated(self) -> dict[str, str]:
        if not self.options.simulate:
            return {}
        self._stand_in = StandIn()
        return dict.fromkeys(adapters.names(), self._stand_in.base_url)

    def _opened(self) -> Setup:
        if self._setup is None:
            raise StoreClosedError("use `async with metis.open() as m`")
        return self._setup

    def _rules(self, models: Models) -> RulesFile | Policy:
        default = self.options.default_model
        common = Scope(
            default=default and models.resolve(default),
            tiers={Tier(name): models.resolve(model) for name, model in self.options.tiers.items()},
        )
        fallback = Policy(common=common)
        if self.options.workspace is None:
            return fallback
        place = Path(self.options.workspace) / PLACE
        return RulesFile(place, models.catalog, fallback=fallback)


def _with_budget(options: Options) -> AdapterOptions:
    """How models are asked, with the room for pictures unless that is said there already."""
    said = options.options
    return (
        said if said.image_budget is not None else replace(said, image_budget=options.image_budget)
    )


def open_metis(url: str | None = None, options: Options = Options()) -> Metis:  # noqa: B008 - an immutable value
    """Sessions in a store: `async with metis.open() as m: s = await m.session(model="sonnet")`.

    Args:
        url: `sqlite:///path` or `postgresql://…`; `metis.db` under `$METIS_HOME` if none is given.
        options: addresses, keys, tools, budgets and the rest.
    """
    return Metis(url, options)
