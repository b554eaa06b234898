"""The synchronous twin, for scripts: the same sessions, on a loop in a thread of its own."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator, Mapping
from decimal import Decimal
from types import TracebackType
from typing import Any, Self, TypeVar

from msgspec import Struct

from metis.canonical.blocks import ContentBlock
from metis.canonical.message import Message
from metis.session.conversation import SessionCost
from metis.session.events import TurnEvent
from metis.session.history import PastTurn, Position
from metis.session.library import Metis
from metis.session.options import Options
from metis.session.response import OutputSchema
from metis.session.route import Preview, Why, WindowUse
from metis.session.session import Disposition, Prompt, Session
from metis.session.state import text_of
from metis.store import SessionRecord

T = TypeVar("T")


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="metis-sync", daemon=True
        )
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for something; an interrupt from the keyboard cancels it and waits for its end."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise

    def close(self) -> None:
        """End the loop and the thread."""
        self.run(self._loop.shutdown_asyncgens())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class SyncSession:
    """A session whose methods wait."""

    def __init__(self, session: Session, loop: LoopThread) -> None:
        self._session = session
        self._loop = loop

    @property
    def id(self) -> str:
        """The id of the session."""
        return self._session.id

    @property
    def model(self) -> str | None:
        """The model that the user set; None leaves the choice to the rules."""
        return self._session.model

    @property
    def messages(self) -> list[Message]:
        """What a model is shown of the conversation."""
        return self._session.messages

    def send(
        self,
        prompt: Prompt,
        *,
        output: OutputSchema | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Iterator[TurnEvent]:
        """Say something, and get everything that happens until the model has answered."""
        yield from self._each(self._session.send(prompt, output=output, options=options))

    def retry(self, model: str | None = None) -> Iterator[TurnEvent]:
        """Take the last turn back and ask the same again, of another model if one is named."""
        yield from self._each(self._session.retry(model))

    def respond(self, *, model: str | None = None) -> Iterator[TurnEvent]:
        """Let a model answer what was said last, without saying anything more."""
        yield from self._each(self._session.respond(model=model))

    def _each(self, events: AsyncGenerator[TurnEvent]) -> Iterator[TurnEvent]:
        try:
            while (event := self._loop.run(_next(events))) is not None:
                yield event
        finally:
            self._loop.run(events.aclose())

    def ask(
        self,
        prompt: Prompt,
        *,
        output: OutputSchema | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Message | None:
        """Say something and wait for the last answer; None if the model said nothing."""
        return self._loop.run(self._session.ask(prompt, output=output, options=options))

    def ask_json(self, prompt: Prompt, schema: OutputSchema) -> Any:
        """Say something and wait for the value that the answer gives."""
        return self._loop.run(self._session.ask_json(prompt, schema))

    def preview_swap(self, model: str) -> Preview:
        """Whether another model can go on, and exactly what it would not see as it is."""
        return self._session.preview_swap(model)

    def swap(self, model: str | None) -> Preview | None:
        """Let another model answer from now on; None leaves the choice to the rules."""
        return self._loop.run(self._session.swap(model))

    def undo(self, count: int = 1) -> tuple[ContentBlock, ...]:
        """Take the last turns back; gives what the user had said in the first of them."""
        return self._loop.run(self._session.undo(count))

    def rewind(self, position: Position | None) -> None:
        """Go back to a message, a bookmark or a checkpoint; None is before the first message."""
        self._loop.run(self._session.rewind(position))

    def compact(self, model: str | None = None) -> int:
        """Sum up what is old with a model; gives the number of messages that were summed up."""
        return self._loop.run(self._session.compact(model))

    def fork(self, *, at: Position | None = None) -> "SyncSession":
        """A new session that goes on from here, or from a message."""
        return SyncSession(self._loop.run(self._session.fork(at=at)), self._loop)

    @property
    def turns(self) -> list[PastTurn]:
        """The turns that lead to here."""
        return self._session.turns

    def context(self, model: str | None = None) -> WindowUse | None:
        """How full the window of a model is; of the one that would answer, if none is named."""
        return self._session.context(model)

    def why(self) -> Why | None:
        """Why the last turn was answered by its model."""
        return self._session.why()

    def set_budget(self, limit_usd: Decimal | None) -> None:
        """Set what this session may cost; None is no limit."""
        self._loop.run(self._session.set_budget(limit_usd))

    def cost(self) -> SessionCost:
        """What the session has cost so far, exactly."""
        return self._session.cost()

    def end(self, disposition: Disposition = "completed") -> None:
        """End the session."""
        self._loop.run(self._session.end(disposition))


class SyncMetis:
    """Sessions in one store; made by `metis.open_sync`, and used as a context manager."""

    def __init__(self, metis: Metis) -> None:
        self._metis = metis
        self._loop: LoopThread | None = None

    def __enter__(self) -> Self:
        self._loop = LoopThread()
        try:
            self._loop.run(self._metis.__aenter__())
        except BaseException:
            self._loop.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        loop = self._opened()
        try:
            loop.run(self._metis.close())
        finally:
            loop.close()
            self._loop = None

    def session(self, *, model: str | None = None, system: str | None = None) -> SyncSession:
        """A new session; `model` by id or alias is who answers, `system` what it is told first."""
        made = self._opened().run(self._metis.session(model=model, system=system))
        return SyncSession(made, self._opened())

    def resume(self, session_id: str) -> SyncSession:
        """A session of the store, as it was left."""
        return SyncSession(self._opened().run(self._metis.resume(session_id)), self._opened())

    def sessions(self, limit: int = 100) -> list[SessionRecord]:
        """The sessions that changed last, newest first."""
        return self._opened().run(self._metis.sessions(limit))

    def _opened(self) -> LoopThread:
        if self._loop is None:
            raise RuntimeError("use `with metis.open_sync() as m`")
        return self._loop


class Reply(Struct, frozen=True, kw_only=True):
    """What a model answered to one question; as a string it is its words."""

    text: str
    message: Message | None
    cost_usd: Decimal
    session_id: str

    def __str__(self) -> str:
        return self.text


def open_sync(url: str | None = None, options: Options = Options()) -> SyncMetis:  # noqa: B008 - an immutable value
    """The same as `metis.open` for programs without async: `with metis.open_sync() as m: …`."""
    return SyncMetis(Metis(url, options))


def ask(
    prompt: Prompt,
    *,
    model: str | None = None,
    system: str | None = None,
    url: str | None = None,
    options: Options = Options(),  # noqa: B008 - an immutable value
) -> Reply:
    """Ask one question and wait for the answer; it is stored like any other.

    Args:
        prompt: text, or content blocks.
        model: who answers, by id or alias.
        system: what the model is told first.
        url: the store.
        options: addresses, keys, tools, budgets and the rest.
    """
    with open_sync(url, options) as metis:
        session = metis.session(model=model, system=system)
        message = session.ask(prompt)
        return Reply(
            text="" if message is None else text_of(message.content),
            message=message,
            cost_usd=session.cost().total_usd,
            session_id=session.id,
        )


async def _next(events: AsyncGenerator[TurnEvent]) -> TurnEvent | None:
    return await anext(events, None)
