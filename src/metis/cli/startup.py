"""Open the library and the session for a question or a chat."""

import logging
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec import Struct

from metis.adapters.model import ModelFeatures
from metis.canonical.errors import (
    CatalogError,
    EventError,
    SettingsError,
    StoreError,
    UnknownSessionError,
)
from metis.canonical.message import Role
from metis.canonical.tools import SideEffects
from metis.catalog.tables import catalog
from metis.cli.default_model import LastModel, ModelChoice, ModelChooser, last_model_of
from metis.cli.error_text import error_line
from metis.cli.local_model import running_server
from metis.cli.local_servers import stated_features
from metis.cli.schemas import read_schema
from metis.cli.stored_sessions import find_session
from metis.events import Bus, subscribe_hooks
from metis.events.trace import SqliteTrace
from metis.routing import RULES_PATH, RulesFile
from metis.session import Metis, Options, Session
from metis.settings import LoadedSettings, Settings, UserPaths, load
from metis.settings.settings import AUTO, parse_thinking
from metis.store import SessionRecord, Store
from metis.store import open as open_store
from metis.store.connection import sqlite_path
from metis.tools import Answer, Confirmation, Question, Registry, Rule, plugin_tools
from metis.tools.builtin import BUILTINS, RunCommand
from metis.tools.confirmation import Ask
from metis.tools.mcp import McpServer
from metis.tools.tool import ErrorClass, ToolFailedError
from metis.transport.keys import Keys
from metis.wire.call import AdapterOptions

log = logging.getLogger("metis.cli")

# How many sessions are searched for the one to continue.
_RECENT_SESSIONS = 50
# How many sessions, and messages of each, are searched for the model that answered last.
_RECENT_MESSAGES = 8


class StartOptions(Struct, frozen=True, kw_only=True):
    """The options of the command line; None leaves a value to the settings."""

    model: str | None = None
    store: str | None = None
    tools: bool | None = None
    thinking: str | None = None
    schema: str | None = None
    """A JSON Schema that the response has to match, or the file that contains it."""
    system: str | None = None
    session_id: str | None = None
    """The session to continue; a part of its id or title is enough."""
    is_continued: bool = False
    """Whether to continue the last session of this directory."""
    is_unlogged: bool = False
    """Whether nothing of the conversation is stored."""
    approve_all: bool = False
    """Whether tools may change things without asking for confirmation."""


class ConfirmationRelay:
    """Passes confirmation questions to the `handler`, which is set once there is a screen."""

    def __init__(self) -> None:
        self.handler: Ask | None = None

    async def __call__(self, question: Question) -> Answer:
        """Ask the handler; without one the tool fails."""
        if self.handler is None:
            text = f"{question.definition.name} needs confirmation; run with --yes to allow it"
            raise ToolFailedError(text, ErrorClass.PERMISSION_DENIED)
        return await self.handler(question)


@dataclass(frozen=True, kw_only=True)
class StartedSession:
    """An open library with a session in it."""

    library: Metis
    session: Session
    choice: ModelChoice
    opener: "LibraryOpener"
    chooser: ModelChooser
    loaded: LoadedSettings
    paths: UserPaths
    confirmation: ConfirmationRelay
    notice: str
    """What users should know before they begin, one line each; empty if there is nothing."""


class LibraryOpener:
    """Opens the library for a model, and opens it again for a model that needs another one.

    A library simulates every provider or none, and has the address of the small local model only
    while that runs. One library is open at a time, so that no session is in memory twice.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - each is one part of the options
        self,
        url: str,
        start: StartOptions,
        loaded: LoadedSettings,
        paths: UserPaths,
        confirmation: ConfirmationRelay,
        bus: Bus,
    ) -> None:
        self._url = url
        self._start = start
        self._loaded = loaded
        self._paths = paths
        self._confirmation = confirmation
        self._bus = bus
        self._stack = AsyncExitStack()
        self.library: Metis | None = None
        self.choice: ModelChoice | None = None
        """The model for which the library is open."""

    def fits(self, choice: ModelChoice) -> bool:
        """Return whether the open library can be used for a model."""
        current = self.choice
        if current is None or choice.is_simulated != current.is_simulated:
            return False
        return current.is_local or not choice.is_local

    async def open(self, choice: ModelChoice) -> Metis:
        """Open a library for a model, and then close the one that is open."""
        async with AsyncExitStack() as stack:
            urls = await _base_urls(stack, self._loaded, choice, self._paths)
            options = _options(
                self._start, self._loaded, choice, self._paths, self._confirmation, self._bus, urls
            )
            library = await stack.enter_async_context(Metis(self._url, options))
            await self.state_features(library, choice.model)
            await self._stack.aclose()
            self._stack = stack.pop_all()
        self.library, self.choice = library, choice
        return library

    async def close(self) -> None:
        """Close the library."""
        await self._stack.aclose()

    async def state_features(self, library: Metis, model: str) -> None:
        """Set the features of a model in the library, from the settings or its local server."""
        settings, models = self._loaded.settings, library.models
        if not library.options.simulate:
            features = await stated_features(model, settings.base_urls)
            if features is not None:
                models.set_features(model, features)
        for name, has_tools in settings.model_tools.items():
            try:
                models.set_features(name, ModelFeatures(tools=has_tools))
            except CatalogError as error:
                place = self._loaded.origins[f"model_tools.{name}"].location
                raise SettingsError(error_line(error), place=place) from None


class _StoredState(Struct, frozen=True, kw_only=True):
    """What is read from the store before the library is opened."""

    record: SessionRecord | None = None
    """The session to continue, if any."""
    last_model: LastModel | None = None
    """The model of that session."""
    recent_models: tuple[str, ...] = ()
    """The models that answered last in other sessions, newest first."""


@asynccontextmanager
async def start_session(start: StartOptions) -> AsyncGenerator[StartedSession]:
    """Open the library and a new or stored session for as long as the context lasts.

    A new session without any message is not kept in the store.
    """
    paths = UserPaths.from_environment()
    thinking = None if start.thinking is None else parse_thinking(start.thinking)
    loaded = load({"model": start.model, "store": start.store, "tools": start.tools}, paths=paths)
    # The store is read before the library opens, since its last model decides about the simulator.
    url = loaded.settings.store or paths.store_url
    stored = await _stored_state(url, start)
    chooser = ModelChooser(loaded, Keys(file=paths.keys), paths.local)
    choice = await chooser.choose(last_model=stored.last_model, recent_models=stored.recent_models)
    confirmation = ConfirmationRelay()
    async with AsyncExitStack() as stack:
        if start.is_unlogged:
            # A session needs a store, for tools and long histories; this one is deleted at the end.
            directory = stack.enter_context(TemporaryDirectory(prefix="metis-"))
            url = f"sqlite:///{directory}/unlogged.db"
            bus = Bus()
            stack.push_async_callback(bus.close)
        else:
            bus = await stack.enter_async_context(_traced_bus(paths))
        subscribe_hooks(bus)
        opener = LibraryOpener(url, start, loaded, paths, confirmation, bus)
        stack.push_async_callback(opener.close)
        library = await opener.open(choice)
        session = await _open_session(library, start, choice, stored, loaded)
        if start.thinking is not None and thinking != session.reasoning:
            await session.set_reasoning(thinking)
        yield StartedSession(
            library=library,
            session=session,
            choice=choice,
            opener=opener,
            chooser=chooser,
            loaded=loaded,
            paths=paths,
            confirmation=confirmation,
            notice="\n".join(filter(None, (choice.notice, _rules_problem()))),
        )
        # Opening the chat and leaving at once must not fill the list of sessions.
        if stored.record is None:
            await delete_if_empty(opener.library or library, session.id)


async def _stored_state(url: str, start: StartOptions) -> _StoredState:
    """Find the session to continue, or the models that answered last; no store is created."""
    is_continuing = start.is_continued or start.session_id is not None
    if url.startswith("sqlite:") and not sqlite_path(url).exists():
        if is_continuing:
            raise StoreError("no conversation is stored yet", hint="start one with `metis`")
        return _StoredState()
    # Recovery would end turns of other processes that are still running.
    async with open_store(url, recover=False) as store:
        records = await store.sessions(_RECENT_SESSIONS)
        if not is_continuing:
            return _StoredState(recent_models=await _recent_models(store, records))
        record = await _session_to_continue(store, start, records)
        newest = await store.messages(record.id, newest=_RECENT_MESSAGES)
        return _StoredState(record=record, last_model=last_model_of(record.active_model, newest))


async def _session_to_continue(
    store: Store, start: StartOptions, records: Sequence[SessionRecord]
) -> SessionRecord:
    if start.session_id is not None:
        return await find_session(store, start.session_id)
    workspace = str(_workspace())
    record = next((record for record in records if record.workspace_path == workspace), None)
    # Clients of the gateway may name no directory; their sessions count for every directory.
    for other in records if record is None else ():
        if not other.workspace_path and await store.messages(other.id, newest=1):
            record = other
            break
    if record is None:
        hint = "`metis sessions` lists all; continue one with -s SESSION"
        raise StoreError("no conversation in this directory yet", hint=hint)
    return record


async def _recent_models(store: Store, records: Sequence[SessionRecord]) -> tuple[str, ...]:
    """Return the models that answered last in the newest sessions, without duplicates."""
    models: dict[str, None] = {}
    # A few sessions are enough to find a usable model, and each costs a query.
    for record in records[:_RECENT_MESSAGES]:
        for message in reversed(await store.messages(record.id, newest=_RECENT_MESSAGES)):
            if message.role is Role.ASSISTANT and message.metadata.model:
                models.setdefault(message.metadata.model)
                break
    return tuple(models)


@asynccontextmanager
async def _traced_bus(paths: UserPaths) -> AsyncGenerator[Bus]:
    """Open a bus whose events are stored in the trace, if that can be opened."""
    bus = Bus()
    trace: SqliteTrace | None = None
    try:
        trace = SqliteTrace(paths.trace)
        bus.subscribe_batches(trace.append, name="trace")
    # A full disk or a read-only home must not prevent a conversation.
    except (EventError, OSError) as error:
        log.warning("events are not traced: %s", error)
    try:
        yield bus
    finally:
        await bus.close()
        if trace is not None:
            trace.close()


async def _base_urls(
    stack: AsyncExitStack, loaded: LoadedSettings, choice: ModelChoice, paths: UserPaths
) -> Mapping[str, str]:
    """Return the addresses of providers; the small local model is started if it was chosen."""
    if choice.is_simulated:
        return {}
    if not choice.is_local:
        return loaded.settings.base_urls
    url = await stack.enter_async_context(running_server(paths.local))
    return {**loaded.settings.base_urls, "llamacpp": url}


def _options(  # noqa: PLR0913, PLR0917 - each is one part of the options
    start: StartOptions,
    loaded: LoadedSettings,
    choice: ModelChoice,
    paths: UserPaths,
    confirmation: ConfirmationRelay,
    bus: Bus,
    urls: Mapping[str, str],
) -> Options:
    settings = loaded.settings
    rules = dict.fromkeys(SideEffects, Rule.AUTO) if start.approve_all else None
    has_tools = tools_enabled(loaded, choice)
    servers: Sequence[McpServer] = ()
    if has_tools and settings.mcp:
        # Imported only if there are servers: the module imports the commands on settings.
        from metis.cli.mcp_servers import mcp_servers  # noqa: PLC0415 - see above

        servers = mcp_servers(settings.mcp)
    return Options(
        base_urls=urls,
        key_file=paths.keys,
        default_model=choice.model,
        # A fallback of the simulator would send the conversation to a real provider.
        fallbacks={} if choice.is_simulated else settings.fallbacks,
        budget=settings.budget,
        bus=bus,
        options=AdapterOptions(
            temperature=settings.temperature,
            max_output_tokens=settings.max_output_tokens,
            reasoning=parse_thinking(settings.thinking or AUTO),
            output=None if start.schema is None else read_schema(start.schema),
        ),
        workspace=_workspace(),
        home=paths.home,
        tools=_tools(settings) if has_tools else None,
        servers=servers,
        offered_servers=tuple(settings.mcp) if servers else (),
        confirmation=Confirmation(confirmation, rules=rules),
        simulate=choice.is_simulated,
        allow_unsupported=True,
        free=choice.is_simulated,
        compact_with=settings.compact_with,
        record_bytes=settings.record_bytes,
    )


def _tools(settings: Settings) -> Registry:
    """Return the built-in tools and those of plugins; commands see the variables set by users."""
    command = partial(RunCommand, allowed_variables=settings.command_variables)
    registry = Registry(*(command if tool is RunCommand else tool for tool in BUILTINS))
    for tool in plugin_tools(reserved=tuple(registry)):
        registry.register(tool)
    return registry


def tools_enabled(loaded: LoadedSettings, choice: ModelChoice) -> bool:
    """Return whether the model gets tools."""
    # The small local model cannot use tools reliably, so only an explicit setting enables them.
    if choice.is_local and loaded.origins["tools"].source == "default":
        return False
    return loaded.settings.tools


def _rules_problem() -> str:
    """Return what is wrong with the routing rules of this directory, which then are not used."""
    problem = RulesFile(_workspace() / RULES_PATH, catalog()).read().problem
    return "" if problem is None else f"The routing rules are not used: {error_line(problem)}"


def _workspace() -> Path:
    try:
        return Path.cwd()
    # The shell can be in a directory that another process has deleted.
    except FileNotFoundError:
        directory = os.environ.get("PWD", "current directory")
        reason = "the directory was deleted; change to another one"
        raise SettingsError(reason, place=directory) from None


async def _open_session(
    library: Metis,
    start: StartOptions,
    choice: ModelChoice,
    stored: _StoredState,
    loaded: LoadedSettings,
) -> Session:
    pinned = choice.model if choice.is_pinned else None
    if stored.record is None:
        return await library.session(model=pinned, system=start.system or loaded.settings.system)
    session = await library.resume(stored.record.id)
    if pinned is not None and pinned != session.model:
        await session.swap(pinned)
    return session


async def delete_if_empty(library: Metis, session_id: str) -> None:
    """Delete a session from the store if it has never had a message but instructions.

    Every branch counts: `/system` may have added the newest message, and `/rewind` may have left
    nothing before the current position, of a conversation that the user wants to keep.
    """
    if not await library.store.has_dialogue(session_id):
        with suppress(UnknownSessionError):  # it was deleted already
            await library.store.delete(session_id)
