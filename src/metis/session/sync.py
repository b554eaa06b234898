"""Synchronous sessions for scripts: async sessions that run on an event loop in a thread."""

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from decimal import Decimal
from types import TracebackType
from typing import Any, Self, TypeVar, overload

from metis.adapters.embeddings import Embeddings
from metis.canonical.blocks import ContentBlock
from metis.deprecation import renamed_parameters
from metis.session.events import TurnEvent
from metis.session.history import Position
from metis.session.library import LoopThread, Metis
from metis.session.options import Options
from metis.session.reply import Reply, SyncReplyStream
from metis.session.response import OutputSchema
from metis.session.route import Preview
from metis.session.session import Disposition, Prompt, Session
from metis.session.session_view import SessionView
from metis.store import SessionRecord

T = TypeVar("T")


class SyncSession(SessionView):
    """A `Session` whose methods block until they are done."""

    def __init__(self, session: Session, loop: LoopThread) -> None:
        super().__init__(session._context, session._pin)  # noqa: SLF001 - the same session
        self._session = session
        self._loop = loop

    @renamed_parameters(said="prompt")
    def send(
        self,
        prompt: Prompt,
        *,
        model: str | None = None,
        output: OutputSchema | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Iterator[TurnEvent]:
        """Send a prompt; yield every event until the turn ends."""
        yield from self._iterate(
            self._session.send(prompt, model=model, output=output, options=options)
        )

    def retry(self, model: str | None = None) -> Iterator[TurnEvent]:
        """Undo the last turn and send its prompt again, optionally to another model."""
        yield from self._iterate(self._session.retry(model))

    def respond(self, *, model: str | None = None) -> Iterator[TurnEvent]:
        """Send the history without a new prompt; yield every event until the turn ends."""
        yield from self._iterate(self._session.respond(model=model))

    def _iterate(self, events: AsyncGenerator[TurnEvent]) -> Iterator[TurnEvent]:
        try:
            while (event := self._loop.run(_next(events))) is not None:
                yield event
        finally:
            # A caller that stops early cancels the turn, and waits until it is stored.
            self._loop.run(events.aclose())

    def stream(
        self,
        prompt: Prompt,
        *,
        model: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> SyncReplyStream:
        """Send a prompt; iterating over the stream yields the text of the response as it arrives.

        Leaving the loop early cancels the turn.
        """
        stream = self._session.stream(prompt, model=model, options=options)
        return SyncReplyStream(stream, self._loop.run)

    @renamed_parameters(said="prompt")
    def ask(
        self,
        prompt: Prompt,
        *,
        model: str | None = None,
        output: OutputSchema | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Reply:
        """Send a prompt and return the reply: text, message, cost and losses."""
        return self._loop.run(
            self._session.ask(prompt, model=model, output=output, options=options)
        )

    @overload
    def ask_json(self, prompt: Prompt, schema: type[T], *, model: str | None = None) -> T: ...
    @overload
    def ask_json(
        self, prompt: Prompt, schema: OutputSchema, *, model: str | None = None
    ) -> Any: ...
    @renamed_parameters(said="prompt", output="schema")
    def ask_json(self, prompt: Prompt, schema: OutputSchema, *, model: str | None = None) -> Any:
        """Send a prompt and return the value of the response, as JSON or as the given type."""
        return self._loop.run(self._session.ask_json(prompt, schema, model=model))

    def swap(self, model: str | None) -> Preview | None:
        """Set the model of the session; None leaves the choice to the rules."""
        return self._loop.run(self._session.swap(model))

    def undo(self, count: int = 1) -> tuple[ContentBlock, ...]:
        """Undo the last turns; return the prompt of the first of them."""
        return self._loop.run(self._session.undo(count))

    @renamed_parameters(place="position")
    def rewind(self, position: Position | None) -> None:
        """Go back to a message, bookmark or checkpoint; None is before the first message."""
        self._loop.run(self._session.rewind(position))

    def compact(self, model: str | None = None) -> int:
        """Replace old messages by a summary; return how many messages it replaces."""
        return self._loop.run(self._session.compact(model))

    def fork(self, *, at: Position | None = None) -> "SyncSession":
        """Return a new session that continues from here or from a position."""
        return SyncSession(self._loop.run(self._session.fork(at=at)), self._loop)

    def set_budget(self, limit_usd: Decimal | None) -> None:
        """Set the cost limit of this session; None means no limit."""
        self._loop.run(self._session.set_budget(limit_usd))

    def end(self, disposition: Disposition = "completed") -> None:
        """End the session."""
        self._loop.run(self._session.end(disposition))


class SyncMetis:
    """The sessions of one store; created by `metis.open_sync`, and used as a context manager."""

    def __init__(self, metis: Metis) -> None:
        self._metis = metis
        self._loop: LoopThread | None = None

    def __enter__(self) -> Self:
        self._loop = LoopThread("metis-sync")
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
        """Create a session, with a model by id or alias and a system prompt."""
        session = self._opened().run(self._metis.session(model=model, system=system))
        return SyncSession(session, self._opened())

    def resume(self, session_id: str) -> SyncSession:
        """Return a stored session."""
        return SyncSession(self._opened().run(self._metis.resume(session_id)), self._opened())

    def embed(self, texts: Sequence[str], *, model: str, is_query: bool = False) -> Embeddings:
        """Return the vectors of texts; `Metis.embed` describes the arguments."""
        return self._opened().run(self._metis.embed(texts, model=model, is_query=is_query))

    def sessions(self, limit: int = 100) -> list[SessionRecord]:
        """Return the sessions that changed last, newest first."""
        return self._opened().run(self._metis.sessions(limit))

    def _opened(self) -> LoopThread:
        if self._loop is None:
            raise RuntimeError("use `with metis.open_sync() as m`")
        return self._loop


def open_sync(url: str | None = None, options: Options = Options()) -> SyncMetis:  # noqa: B008 - an immutable value
    """Open a store without async: `with metis.open_sync() as m: …`."""
    return SyncMetis(Metis(url, options))


@renamed_parameters(said="prompt")
def ask(
    prompt: Prompt,
    *,
    model: str | None = None,
    system: str | None = None,
    url: str | None = None,
    options: Options = Options(),  # noqa: B008 - an immutable value
) -> Reply:
    """Send one prompt in a new session, which is stored, and return the reply.

    Args:
        prompt: a text, or content blocks.
        model: the model, by id or alias.
        system: the system prompt.
        url: the store; by default `metis.db` under `$METIS_HOME`.
        options: addresses, keys, tools, budgets and more.
    """
    with open_sync(url, options) as metis:
        session = metis.session(model=model, system=system)
        return session.ask(prompt)


async def _next(events: AsyncGenerator[TurnEvent]) -> TurnEvent | None:
    return await anext(events, None)
