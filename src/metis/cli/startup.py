"""Open the library and the session that a question or a chat works with."""

import logging
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec import Struct

from metis import store
from metis.canonical.errors import (
    EventError,
    InvalidValueError,
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
from metis.cli.stored_sessions import find_session
from metis.events import Bus
from metis.events.trace import SqliteTrace
from metis.routing import RULES_PATH, RulesFile
from metis.session import Metis, Options, Session
from metis.settings import LoadedSettings, UserPaths, load
from metis.settings.settings import AUTO, parse_thinking
from metis.store import SessionRecord, Store
from metis.store.store import sqlite_path
from metis.tools import Answer, Confirmation, Question, Registry, Rule
from metis.tools.builtin import BUILTINS
from metis.tools.confirmation import Ask
from metis.tools.tool import ErrorClass, ToolFailedError
from metis.transport.keys import Keys
from metis.wire.call import AdapterOptions
from metis.wire.output_format import OutputFormat


def read_schema(text: str) -> OutputFormat:
    """The form that a JSON Schema asks for; one without a word asks for any object.

    Raises:
        InvalidValueError: it is no JSON Schema, or the file cannot be read.
    """
    is_inline = text.lstrip().startswith("{")
    place = "--schema" if is_inline else text
    try:
        data = text.encode() if is_inline else Path(text).read_bytes()
        schema = msgspec.json.decode(data)
    except OSError as error:
        told = f"{text} cannot be read as a schema: {error.strerror}"
        raise InvalidValueError(told) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidValueError(f"{place} is no JSON: {error}; give a JSON Schema") from None
    if not isinstance(schema, dict):
        raise InvalidValueError(f"{place} is no JSON Schema: that is an object")
    return OutputFormat(cast("dict[str, Any]", schema) or None)


log = logging.getLogger("metis.cli")

_SESSIONS_SEEN = 50
"""How many sessions are looked through for the one to continue and for who answered last."""
_ANSWERS_SEEN = 8


class StartOptions(Struct, frozen=True, kw_only=True):
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
    approve_all: bool = False
    """Whether tools may change things without anybody being asked."""


class ConfirmationRelay:
    """Whoever is asked before a tool changes something; `ask` may be set when there is a screen."""

    def __init__(self) -> None:
        self.handler: Ask | None = None

    async def __call__(self, question: Question) -> Answer:
        """Pass the question on."""
        if self.handler is None:
            text = f"{question.definition.name} needs to be allowed, and nobody is here to ask."
            raise ToolFailedError(text, ErrorClass.PERMISSION_DENIED)
        return await self.handler(question)


@dataclass(frozen=True, kw_only=True)
class StartedSession:
    """A library with a session in it, ready to talk."""

    library: Metis
    session: Session
    choice: ModelChoice
    loaded: LoadedSettings
    places: UserPaths
    confirmation: ConfirmationRelay
    store_url: str
    notice: str
    """What people should know before they begin, a line each; empty if there is nothing."""
    is_new: bool
    """Whether the session was begun now."""


class _Seen(Struct, frozen=True, kw_only=True):
    """What the store tells before anything is opened."""

    record: SessionRecord | None = None
    held: LastModel | None = None
    """With whom that session was held."""
    last: tuple[str, ...] = ()
    """Who answered lately, newest first."""


@asynccontextmanager
async def start_session(wish: StartOptions) -> AsyncGenerator[StartedSession]:
    """Open the library and the session that are wished for, for as long as the context lasts.

    A session in which nobody said anything leaves no trace in the store.
    """
    places = UserPaths.from_environment()
    thinking = None if wish.thinking is None else parse_thinking(wish.thinking)
    loaded = load({"model": wish.model, "store": wish.store, "tools": wish.tools}, places=places)
    url = loaded.settings.store or places.store_url
    seen = await _look(url, wish)
    keys = Keys(file=places.keys)
    choice = await ModelChooser(loaded, keys, places.local).choose(
        last_model=seen.held, recent_models=seen.last
    )
    asking = ConfirmationRelay()
    async with AsyncExitStack() as stack:
        bus = await stack.enter_async_context(_traced(places))
        urls = await _addresses(stack, loaded, choice, places)
        options = _options(wish, loaded, choice, places, asking, bus, urls)
        library = await stack.enter_async_context(Metis(url, options))
        session = await _session(library, wish, choice, seen, loaded)
        if wish.thinking is not None and thinking != session.reasoning:
            await session.set_reasoning(thinking)
        yield StartedSession(
            library=library,
            session=session,
            choice=choice,
            loaded=loaded,
            places=places,
            confirmation=asking,
            store_url=url,
            notice="\n".join(filter(None, (choice.notice, _broken_rules()))),
            is_new=seen.record is None,
        )
        if seen.record is None:
            await delete_if_empty(library, session)


async def _look(url: str, wish: StartOptions) -> _Seen:
    """Look for the session to go on with, and who answered lately; a new store is not made."""
    wants_old = wish.is_continued or wish.session_id is not None
    if url.startswith("sqlite:") and not sqlite_path(url).exists():
        if wants_old:
            raise StoreError("no conversation was kept yet", hint="start one with `metis`")
        return _Seen()
    async with store.open(url, recover=False) as keep:
        records = await keep.sessions(_SESSIONS_SEEN)
        if not wants_old:
            return _Seen(last=await _answered(keep, records))
        record = await _wanted(keep, wish, records)
        newest = await keep.messages(record.id, newest=_ANSWERS_SEEN)
        return _Seen(record=record, held=last_model_of(record.active_model, newest))


async def _wanted(
    keep: Store, wish: StartOptions, records: Sequence[SessionRecord]
) -> SessionRecord:
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
async def _traced(places: UserPaths) -> AsyncGenerator[Bus]:
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
    stack: AsyncExitStack, loaded: LoadedSettings, choice: ModelChoice, places: UserPaths
) -> Mapping[str, str]:
    """Where providers are asked; the small model is started if it is to answer."""
    if choice.is_simulated:
        return {}
    if not choice.is_local:
        return loaded.settings.base_urls
    url = await stack.enter_async_context(running_server(places.local))
    return {**loaded.settings.base_urls, "llamacpp": url}


def _options(  # noqa: PLR0913, PLR0917 - each is one part of the options
    wish: StartOptions,
    loaded: LoadedSettings,
    choice: ModelChoice,
    places: UserPaths,
    asking: ConfirmationRelay,
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
            reasoning=parse_thinking(settings.thinking or AUTO),
            output=None if wish.schema is None else read_schema(wish.schema),
        ),
        workspace=_here(),
        home=places.home,
        tools=Registry(*BUILTINS) if tools_enabled(loaded, choice) else None,
        confirmation=_confirmation(asking, is_trusting=wish.approve_all),
        simulate=choice.is_simulated,
        free=choice.is_simulated,
        compact_with=settings.compact_with,
    )


def _broken_rules() -> str:
    """What is wrong with the rules of this folder, which then choose nothing."""
    problem = RulesFile(_here() / RULES_PATH, catalog()).read().problem
    return "" if problem is None else f"The rules are not used: {error_line(problem)}"


def tools_enabled(loaded: LoadedSettings, choice: ModelChoice) -> bool:
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


def _confirmation(asking: ConfirmationRelay, *, is_trusting: bool) -> Confirmation:
    rules = dict.fromkeys(SideEffects, Rule.AUTO) if is_trusting else None
    return Confirmation(asking, rules=rules)


async def _session(
    library: Metis, wish: StartOptions, choice: ModelChoice, seen: _Seen, loaded: LoadedSettings
) -> Session:
    pinned = choice.model if choice.is_pinned else None
    if seen.record is None:
        return await library.session(model=pinned, system=wish.system or loaded.settings.system)
    session = await library.resume(seen.record.id)
    if pinned is not None and pinned != session.model:
        await session.swap(pinned)
    return session


async def delete_if_empty(library: Metis, session: Session) -> None:
    """Let nothing be kept of a session in which nobody said anything."""
    if all(message.role in (Role.SYSTEM, Role.DEVELOPER) for message in session.messages):
        with suppress(UnknownSessionError):  # it is gone already
            await library.store.delete(session.id)
