"""Metis, the entry point of the library: it opens a store and a transport for sessions."""

import asyncio
import importlib
import logging
import socket
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar
from weakref import WeakValueDictionary

from msgspec.structs import replace

from metis import adapters
from metis.adapters.embeddings import MAX_TEXTS, Embeddings, embedding_path
from metis.canonical.errors import (
    AuthenticationError,
    InvalidValueError,
    StoreClosedError,
    UnknownModelError,
)
from metis.catalog.tables import preload_tables
from metis.events.turn_events import SessionCreated, SessionResumed
from metis.routing import RULES_PATH, Availability, Policy, Router, RulesFile, Scope, Tier
from metis.session.conversation import Conversation, SpendTracker, run_to_completion
from metis.session.delegate import Delegate, WorkerFactory
from metis.session.events import OutageTracker, Trace
from metis.session.models import AvailableProviders, Models, missing_key
from metis.session.options import SIMULATED_MODEL, Options, Setup, utc_now
from metis.session.prompt import (
    Memory,
    SystemPrompt,
    memory_tools,
    read_system_prompt,
    system_messages,
)
from metis.session.session import Session
from metis.session.tools import LoadSkill, McpServers, SessionTools, make_session_tools
from metis.store import SessionRecord, Store
from metis.store import open as open_store
from metis.tools import Factory, Registry, Workspace
from metis.transport import Keys, Transport
from metis.transport.keys import default_key_file
from metis.transport.sockets import send_parts_at_once
from metis.wire.call import AdapterOptions

if TYPE_CHECKING:
    from metis.sim import Simulator

log = logging.getLogger("metis.session")

# Only programs of this machine can reach the simulator.
_HOST = "127.0.0.1"

T = TypeVar("T")


class LoopThread:
    """An event loop in its own thread."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine; return the future of its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and return its result; a keyboard interrupt cancels it."""
        future = self.submit(work)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise

    def close(self) -> None:
        """Stop the loop and the thread."""
        self.run(self._loop.shutdown_asyncgens())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class LazySimulator:
    """A simulator whose port listens at once, and whose code is loaded on the first connection.

    Loading takes as long as everything else before a first prompt; a client that connects earlier
    waits. The simulator has its own thread: like a remote provider, it neither blocks the caller's
    event loop nor stops when the caller blocks that loop.
    """

    def __init__(self) -> None:
        self._socket = socket.create_server((_HOST, 0))
        send_parts_at_once(self._socket)
        self._socket.setblocking(False)  # noqa: FBT003 - positional-only
        self._loading: asyncio.Task[None] | None = None
        self._running: tuple[LoopThread, Simulator] | None = None
        self.base_url = f"http://{_HOST}:{self._socket.getsockname()[1]}"
        asyncio.get_running_loop().add_reader(self._socket, self._start_loading)

    async def prepare(self) -> None:
        """Load the simulator now, so that the first call does not wait."""
        await asyncio.shield(self._start_loading())

    async def stop(self) -> None:
        """Close every connection and the port."""
        asyncio.get_running_loop().remove_reader(self._socket)
        if self._loading is not None:
            await self._loading
        if self._running is not None:
            await asyncio.to_thread(_stop_simulator, *self._running)
        self._socket.close()

    def _start_loading(self) -> asyncio.Task[None]:
        if self._loading is None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._loading = asyncio.create_task(self._load())
        return self._loading

    async def _load(self) -> None:
        try:
            self._running = await asyncio.to_thread(_start_simulator, self._socket)
        except Exception:
            log.exception("the simulator cannot be started")
            self._socket.close()  # clients get an error at once and do not wait for a response


def _start_simulator(listening: socket.socket) -> "tuple[LoopThread, Simulator]":
    simulator: Simulator = importlib.import_module("metis.sim").Simulator(listening=listening)
    thread = LoopThread("metis-simulator")
    thread.run(simulator.start())
    return thread, simulator


def _stop_simulator(thread: LoopThread, simulator: "Simulator") -> None:
    thread.run(simulator.stop())
    thread.close()


class Metis:
    """The sessions of one store; created by `metis.open`, and used as a context manager."""

    def __init__(self, url: str | None = None, options: Options = Options()) -> None:  # noqa: B008 - an immutable value
        if not isinstance(options, Options):  # pyright: ignore[reportUnnecessaryIsInstance] - callers without types
            # The error names the type only: the value may contain keys.
            kind = type(options).__name__
            fault = f"expected an Options, such as Options(simulate=True), got {kind}"
            raise InvalidValueError(fault, path="$.options")
        self.options = options
        self._url = url
        self._store: Store | None = None
        self._transport: Transport | None = None
        self._setup: Setup | None = None
        self._sessions: WeakValueDictionary[str, Session] = WeakValueDictionary()
        self._simulator: LazySimulator | None = None
        self._workspace: Workspace | None = None
        self._memory: Memory | None = None
        self._servers = McpServers(options.servers)

    def __enter__(self) -> NoReturn:
        raise TypeError("use `async with metis.open()`, or `with metis.open_sync()` without async")

    def __exit__(self, *error: object) -> None:
        """Do nothing. Python requires this method for `with`, so that `__enter__` can raise."""

    async def __aenter__(self) -> Self:
        try:
            self._open()
        except BaseException:
            await self.close()  # the store and the port of the simulator may be open
            raise
        return self

    def _open(self) -> None:
        options = self.options
        keys = Keys(options.keys, file=options.key_file or default_key_file())
        models = Models(
            base_urls={**self._simulator_urls(), **options.base_urls},
            accounts=options.accounts,
            keys=keys,
            free=options.free,
            simulated=options.simulate,
            redact_ids=options.redact_ids,
        )
        if options.workspace is not None:
            self._workspace = _open_workspace(options.workspace)
        if options.home is not None:
            self._memory = Memory(options.home, options.bus)
        availability = Availability(clock=utc_now)
        self._store = store = open_store(self._url)
        self._transport = Transport(keys=keys, limits=options.limits, retry=options.retry)
        self._setup = Setup(
            store=store,
            transport=self._transport,
            models=models,
            router=Router(
                models.catalog,
                configured=AvailableProviders(models),
                rules=self._rules(models),
                outage=availability.outage,
                missing_key=missing_key,
                allow_unsupported=options.allow_unsupported,
            ),
            outages=OutageTracker(availability, utc_now),
            spending=SpendTracker(store, now=utc_now),
            options=options,
            request_defaults=_request_defaults(options),
            budget=options.budget,
            fallbacks={
                name if name == "*" else models.resolve(name): tuple(map(models.resolve, others))
                for name, others in options.fallbacks.items()
            },
            workspace=self._workspace,
        )

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await run_to_completion(self.close())

    async def close(self) -> None:
        """Cancel running turns, and close the connections and the store."""
        # Turns first: they still write to the store when they are cancelled.
        for session in tuple(self._sessions.values()):
            await session.cancel()
        self._sessions.clear()
        if self._transport is not None:
            await self._transport.close()
        if self._store is not None:
            await self._store.close()
        if self._simulator is not None:
            await self._simulator.stop()
        if self._workspace is not None:
            self._workspace.close()
        await self._servers.close()
        self._transport = self._store = self._setup = self._simulator = self._workspace = None

    async def prepare(self) -> None:
        """Load tables and modules that the first turn needs, for example while a user types."""
        setup = self._opened()
        await asyncio.to_thread(preload_tables)
        await setup.transport.prepare()
        await setup.spending.totals()
        if self._simulator is not None:
            await self._simulator.prepare()

    @property
    def store(self) -> Store:
        """The store behind the sessions."""
        return self._opened().store

    @property
    def models(self) -> Models:
        """The models that can be called."""
        return self._opened().models

    async def session(self, *, model: str | None = None, system: str | None = None) -> Session:
        """Create a session, with a model by id or alias and a system prompt."""
        setup = self._opened()
        active = None if model is None else setup.models.resolve(model)
        record = await setup.store.create_session(
            workspace_path=setup.workspace_path, active_model=active
        )
        conversation = Conversation(setup.store, record.id, pinned_model=active)
        Trace(setup.options.bus, record.id).emit(
            SessionCreated(workspace_path=setup.workspace_path, initial_active_model=active)
        )
        prompt = self._system_prompt(system or "")
        texts = prompt.texts()
        if texts:
            await conversation.append(*system_messages(record.id, texts, utc_now()))
        return self._open_session(conversation, prompt)

    async def resume(self, session_id: str) -> Session:
        """Return a stored session; while it is open, it is the same object."""
        if session_id in self._sessions:
            return self._sessions[session_id]
        setup = self._opened()
        record = await setup.store.session(session_id)
        entries = await setup.store.history(session_id)
        Trace(setup.options.bus, record.id).emit(SessionResumed(message_count=len(entries)))
        if record.active_model is not None:
            with suppress(UnknownModelError):  # the next turn raises it, unless it names a model
                setup.models.resolve(record.active_model)
        conversation = Conversation(
            setup.store, record.id, entries, pinned_model=record.active_model
        )
        return self._open_session(conversation, self._system_prompt(""))

    async def embed(
        self, texts: Sequence[str], *, model: str, is_query: bool = False
    ) -> Embeddings:
        """Return the vectors of texts, such as those of `openai:text-embedding-3-small`.

        Args:
            texts: any number of texts; they are sent in batches.
            model: an embedding model by id, such as `ollama:nomic-embed-text`.
            is_query: whether the texts are search queries; some models embed queries and
                documents in different ways.
        """
        setup = self._opened()
        resolved = setup.models.get(model)
        name, vectors, tokens = resolved.adapter.wire_model(resolved.id), list[Sequence[float]](), 0
        # Raises if the provider has no embeddings; a missing key would be a misleading error.
        embedding_path(resolved.adapter.profile, name)
        if not setup.models.is_available(resolved.provider):
            raise AuthenticationError(missing_key(resolved.provider), provider=resolved.provider)
        for start in range(0, len(texts), MAX_TEXTS):
            batch = texts[start : start + MAX_TEXTS]
            part = await setup.transport.embed(resolved.adapter, name, batch, is_query=is_query)
            vectors += part.vectors
            tokens += part.input_tokens
        return Embeddings(vectors=tuple(vectors), model=resolved.id, input_tokens=tokens)

    async def sessions(self, limit: int = 100) -> list[SessionRecord]:
        """Return the sessions that changed last, newest first."""
        return await self._opened().store.sessions(limit)

    def _open_session(self, conversation: Conversation, prompt: SystemPrompt) -> Session:
        setup = self._opened()
        setup = replace(setup, models=setup.models.for_session(), skills=prompt.skills)
        toolbox = self._session_tools(setup, conversation, prompt)
        if toolbox is not None:
            # The user may have switched the tools off in an earlier process.
            toolbox.is_enabled = conversation.has_tools
        setup = replace(setup, toolbox=toolbox)
        session = Session(setup, conversation, reopen=self.resume)
        self._sessions[session.id] = session
        return session

    def _system_prompt(self, base: str) -> SystemPrompt:
        """Return the system prompt; it lists no skills if there is no tool to load them."""
        options = self.options
        workspace = None if options.workspace is None else Path(options.workspace)
        prompt = read_system_prompt(
            base, workspace=workspace, home=options.home, today=utc_now().date()
        )
        return prompt if options.tools is not None else replace(prompt, skills=())

    def _session_tools(
        self, setup: Setup, conversation: Conversation, prompt: SystemPrompt
    ) -> SessionTools | None:
        options, builtin = self.options, list[Factory]()
        if options.registry is None and not self._servers:
            return None
        if options.registry is None:
            return make_session_tools(
                Registry(),
                (),
                options.confirmation,
                self._workspace,
                self._servers,
                options.offered_servers,
            )
        if self._memory is not None:
            builtin += memory_tools(self._memory)
        if prompt.skills:
            builtin.append(partial(LoadSkill, prompt.skills, setup.options.bus))
        if setup.router.tiers(setup.workspace_path):
            workers = WorkerFactory(
                conversation, setup, prompt, tools=options.registry, reopen=self.resume
            )
            builtin.append(partial(Delegate, workers))
        return make_session_tools(
            options.registry,
            builtin,
            options.confirmation,
            self._workspace,
            self._servers,
            options.offered_servers,
        )

    def _simulator_urls(self) -> dict[str, str]:
        if not self.options.simulate:
            return {}
        self._simulator = LazySimulator()
        return dict.fromkeys(adapters.names(), self._simulator.base_url)

    def _opened(self) -> Setup:
        if self._setup is None:
            raise StoreClosedError("use `async with metis.open() as m`")
        return self._setup

    def _rules(self, models: Models) -> RulesFile | Policy:
        default = self.options.default_model
        if default is None and self.options.simulate:
            default = SIMULATED_MODEL
        common = Scope(
            default=default and models.resolve(default),
            tiers={Tier(name): models.resolve(model) for name, model in self.options.tiers.items()},
        )
        fallback = Policy(common=common)
        if self.options.workspace is None:
            return fallback
        path = Path(self.options.workspace) / RULES_PATH
        return RulesFile(path, models.catalog, fallback=fallback)


def _open_workspace(path: str | Path) -> Workspace:
    try:
        return Workspace(path)
    except OSError as error:
        fault = f"{path} cannot be opened as a directory: {error.strerror}"
        raise InvalidValueError(fault, path="$.workspace") from None


def _request_defaults(options: Options) -> AdapterOptions:
    """Return the options of every request, with the image budget unless they set one."""
    defaults = options.options
    if defaults.image_budget is not None:
        return defaults
    return replace(defaults, image_budget=options.image_budget)


def open_metis(url: str | None = None, options: Options = Options()) -> Metis:  # noqa: B008 - an immutable value
    """Open a store: `async with metis.open() as m: s = await m.session(model="sonnet")`.

    Args:
        url: `sqlite:///path` or `postgresql://…`; by default `metis.db` under `$METIS_HOME`.
        options: addresses, keys, tools, budgets and more.

    The store is opened by `async with`, not by this call.
    """
    return Metis(url, options)
