"""Start: everything that a conversation at a terminal needs, made from options and settings."""

import logging
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from msgspec import Struct

from metis import store
from metis.canonical.errors import EventError, SettingsError, StoreError, UnknownSessionError
from metis.canonical.message import Role
from metis.canonical.tools import SideEffects
from metis.catalog.load import catalog
from metis.cli.choice import Choice, Chooser
from metis.cli.failure import explain
from metis.cli.finding import find_session
from metis.cli.held import Held, held_with
from metis.cli.local.running import serving
from metis.cli.wanted_form import read_schema
from metis.events import Bus
from metis.events.sqlite_trace import SqliteTrace
from metis.routing import PLACE, RulesFile
from metis.session import Metis, Options, Session
from metis.settings import Loaded, Places, load
from metis.settings.thinking import AUTO, read_thinking
from metis.store import SessionRecord, Store
from metis.store.opening import path_of
from metis.tools import Answer, Confirmation, Question, Registry, Rule
from metis.tools.builtin import BUILTINS
from metis.tools.confirmation import Ask
from metis.tools.tool import ErrorClass, ToolFailedError
from metis.transport.keys import Keys
from metis.wire.call import AdapterOptions

log = logging.getLogger("metis.cli")

_SESSIONS_SEEN = 50
"""How many sessions are looked through for the one to continue and for who answered last."""
_ANSWERS_SEEN = 8


class Wish(Struct, frozen=True, kw_only=True):
    """What the command line asks for; None is left to the settings."""

    model: str | None = None
    store: str | None = None
    tools: bool | None = None
    thinking: str | None = None
    """How much to think in this session, from now on."""
    schema: str | None = None
    """What the answer has to keep to: a JSON Schema, or the file that holds it."""
    system: str | None = None
    session_id: str | None = None
    """The session to go on with; the start of its id is enough."""
    is_continued: bool = False
    """Whether to go on with the newest session of this folder."""
    is_trusting: bool = False
    """Whether tools may change things without anybody being asked."""


class Asking:
    """Whoever is asked before a tool changes something; `ask` may be set when there is a screen."""

    def __init__(self) -> None:
        self.ask: Ask | None = None

    async def __call__(self, question: Question) -> Answer:
        """Pass the question on."""
        if self.ask is None:
            text = f"{question.definition.name} needs to be allowed, and nobody is here to ask."
            raise ToolFailedError(text, ErrorClass.PERMISSION_DENIED)
        return await self.ask(question)


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A library with a session in it, ready to talk."""

    library: Metis
    session: Session
    choice: Choice
    loaded: Loaded
    places: Places
    asking: Asking
    store_url: str
    notice: str
    """What people should know before they begin, a line each; empty if there is nothing."""
    is_new: bool
    """Whether the session was begun now."""


class _Seen(Struct, frozen=True, kw_only=True):
    """What the store tells before anything is opened."""

    record: SessionRecord | None = None
    held: Held | None = None
    """With whom that session was held."""
    last: tuple[str, ...] = ()
    """Who answered lately, newest first."""


@asynccontextmanager
async def opened(wish: Wish) -> AsyncGenerator[Opened]:
    """Open the library and the session that are wished for, for as long as the context lasts.

    A session in which nobody said anything leaves no trace in the store.
    """
    places = Places.of()
    thinking = None if wish.thinking is None else read_thinking(wish.thinking)
    loaded = load({"model": wish.model, "store": wish.store, "tools": wish.tools}, places=places)
    url = loaded.settings.store or places.store_url
    seen = await _look(url, wish)
    keys = Keys(file=places.keys)
    choice = await Chooser(loaded, keys, places.local).choose(held=seen.held, last=seen.last)
    asking = Asking()
    async with AsyncExitStack() as stack:
        bus = await stack.enter_async_context(_traced(places))
        urls = await _addresses(stack, loaded, choice, places)
        options = _options(wish, loaded, choice, places, asking, bus, urls)
        library = await stack.enter_async_context(Metis(url, options))
        session = await _session(library, wish, choice, seen, loaded)
        if wish.thinking is not None and thinking != session.reasoning:
            await session.set_reasoning(thinking)
        yield Opened(
            library=library,
            session=session,
            choice=choice,
            loaded=loaded,
            places=places,
            asking=asking,
            store_url=url,
            notice="\n".join(filter(None, (choice.notice, _broken_rules()))),
            is_new=seen.record is None,
        )
        if seen.record is None:
            await forget_if_silent(library, session)


async def _look(url: str, wish: Wish) -> _Seen:
    """Look for the session to go on with, and who answered lately; a new store is not made."""
    wants_old = wish.is_continued or wish.session_id is not None
    if url.startswith("sqlite:") and not path_of(url).exists():
        if wants_old:
            raise StoreError("no conversation was kept yet", hint="start one with `metis`")
        return _Seen()
    async with store.open(url, recover=False) as keep:
        records = await keep.sessions(_SESSIONS_SEEN)
        if not wants_old:
            return _Seen(last=await _answered(keep, records))
        record = await _wanted(keep, wish, records)
        newest = await keep.messages(record.id, newest=_ANSWERS_SEEN)
        return _Seen(record=record, held=held_with(record.active_model, newest))


async def _wanted(keep: Store, wish: Wish, records: Sequence[SessionRecord]) -> SessionRecord:
    if wish.session_id is not None:
        return await find_session(keep, wish.session_id)
    here = str(Path.cwd())
    found = next((each for each in records if each.workspace_path == here), None)
    if found is None:
        hint = "`metis sessions` lists all; go on with one by -s SESSION"
        raise StoreError("no conversation was held in this folder yet", hint=hint)
    return found


async def _answered(keep: Store, records: Sequence[SessionRecord]) -> tuple[str, ...]:
    """The models that answered last in some sessions, each once."""
    found: dict[str, None] = {}
    for record in records[:_ANSWERS_SEEN]:
        for message in reversed(await keep.messages(record.id, newest=_ANSWERS_SEEN)):
            if message.role is Role.ASSISTANT and message.metadata.model:
                found.setdefault(message.metadata.model)
                break
    return tuple(found)


@asynccontextmanager
async def _traced(places: Places) -> AsyncGenerator[Bus]:
    """A bus whose events are kept; without a place for them the conversation goes on."""
    bus = Bus()
    trace: SqliteTrace | None = None
    try:
        places.home.mkdir(parents=True, exist_ok=True)
        trace = SqliteTrace(places.trace)
        bus.subscribe_batches(trace.append, name="trace")
    except (EventError, OSError) as error:
        log.warning("what happens is not traced: %s", error)
    try:
        yield bus
    finally:
        await bus.close()
        if trace is not None:
            trace.close()


async def _addresses(
    stack: AsyncExitStack, loaded: Loaded, choice: Choice, places: Places
) -> Mapping[str, str]:
    """Where providers are asked; the small model is started if it is to answer."""
    if choice.is_simulated:
        return {}
    if not choice.is_local:
        return loaded.settings.base_urls
    url = await stack.enter_async_context(serving(places.local))
    return {**loaded.settings.base_urls, "llamacpp": url}


def _options(  # noqa: PLR0913, PLR0917 - each is one part of the options
    wish: Wish,
    loaded: Loaded,
    choice: Choice,
    places: Places,
    asking: Asking,
    bus: Bus,
    urls: Mapping[str, str],
) -> Options:
    settings = loaded.settings
    return Options(
        base_urls=urls,
        key_file=places.keys,
        default_model=choice.model,
        fallbacks={} if choice.is_simulated else settings.fallbacks,
        budget=settings.budget,
        bus=bus,
        options=AdapterOptions(
            temperature=settings.temperature,
            max_output_tokens=settings.max_output_tokens,
            reasoning=read_thinking(settings.thinking or AUTO),
            output=None if wish.schema is None else read_schema(wish.schema),
        ),
        workspace=_here(),
        home=places.home,
        tools=Registry(*BUILTINS) if has_tools(loaded, choice) else None,
        confirmation=_confirmation(asking, is_trusting=wish.is_trusting),
        simulate=choice.is_simulated,
        is_free=choice.is_simulated,
        compact_with=settings.compact_with,
    )


def _broken_rules() -> str:
    """What is wrong with the rules of this folder, which then choose nothing."""
    problem = RulesFile(_here() / PLACE, catalog()).read().problem
    return "" if problem is None else f"The rules are not used: {explain(problem)}"


def has_tools(loaded: Loaded, choice: Choice) -> bool:
    """Whether the model is given tools; the small one only if somebody says so, it gets lost."""
    if choice.is_local and loaded.origins["tools"].source == "default":
        return False
    return loaded.settings.tools


def _here() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        reason = "the folder was taken away; go to another one"
        raise SettingsError(reason, place=os.environ.get("PWD", "here")) from None


def _confirmation(asking: Asking, *, is_trusting: bool) -> Confirmation:
    rules = dict.fromkeys(SideEffects, Rule.AUTO) if is_trusting else None
    return Confirmation(asking, rules=rules)


async def _session(
    library: Metis, wish: Wish, choice: Choice, seen: _Seen, loaded: Loaded
) -> Session:
    pinned = choice.model if choice.is_pinned else None
    if seen.record is None:
        return await library.session(model=pinned, system=wish.system or loaded.settings.system)
    session = await library.resume(seen.record.id)
    if pinned is not None and pinned != session.model:
        await session.swap(pinned)
    return session


async def forget_if_silent(library: Metis, session: Session) -> None:
    """Let nothing be kept of a session in which nobody said anything."""
    if all(message.role in (Role.SYSTEM, Role.DEVELOPER) for message in session.messages):
        with suppress(UnknownSessionError):  # it is gone already
            await library.store.delete(session.id)
