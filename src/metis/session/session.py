"""Session: the object that people hold; it sends, swaps, forks, and knows what it has cost."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Literal

from metis.canonical.blocks import ContentBlock, TextBlock
from metis.canonical.errors import SessionEndedError, SwapRefusedError
from metis.canonical.ids import new_ulid
from metis.canonical.message import Message
from metis.events import Actor
from metis.events.work import (
    RouteConstraintFailed,
    SessionEnded,
    SessionForked,
    SessionModelChanged,
)
from metis.routing import read_override
from metis.session.compaction import Compaction
from metis.session.conversation import PINNED, Conversation, SessionCost
from metis.session.finishing import finished
from metis.session.notices import TurnEnded, TurnEvent
from metis.session.setup import Setup
from metis.session.swap import Preview, preview
from metis.session.told import Told
from metis.session.trace import Trace
from metis.session.turn import Turn
from metis.store.entries import RetractionEntry, SidecarEntry, SwapEntry

log = logging.getLogger("metis.session")

Said = str | Sequence[ContentBlock]
"""What a user says: words, or blocks."""

Disposition = Literal["completed", "abandoned", "error"]
ENDED = "session.ended"
"""The kind of the entry that ends a session."""


class Session:
    """One conversation: turns come one after the other, whoever asks for them."""

    def __init__(
        self,
        setup: Setup,
        conversation: Conversation,
        *,
        reopen: Callable[[str], Awaitable["Session"]],
    ) -> None:
        self._setup = setup
        self._conversation = conversation
        self._reopen = reopen
        self._told = Told()
        self._trace = Trace(setup.bus, conversation.id)
        self._lock = asyncio.Lock()
        self._tasks: dict[asyncio.Task[None], Turn] = {}
        self._queued: list[str | None] = []
        self._is_ended = False
        self._turn_count = 0
        self._opened_s = time.monotonic()

    @property
    def id(self) -> str:
        """The id of the session."""
        return self._conversation.id

    @property
    def model(self) -> str | None:
        """The model that the user set; None leaves the choice to the rules."""
        return self._queued[-1] if self._queued else self._conversation.pinned

    @property
    def messages(self) -> list[Message]:
        """What a model is shown of the conversation."""
        return list(self._conversation.messages)

    @property
    def is_running(self) -> bool:
        """Whether a turn is under way."""
        return self._lock.locked()

    def cost(self) -> SessionCost:
        """What the session has cost so far, exactly."""
        return self._conversation.cost()

    # Turns

    async def send(self, said: Said) -> AsyncGenerator[TurnEvent]:
        """Say something, and get everything that happens until the model has answered.

        `@alias` at the start lets another model answer this once. Whoever stops listening cancels
        the turn.
        """
        turn = self._turn(said)
        self._turn_count += 1
        task = asyncio.create_task(self._run(turn))
        self._tasks[task] = turn
        try:
            while (event := await turn.events.get()) is not None:
                if isinstance(event, BaseException):
                    raise event
                yield event
        finally:
            await self._stop(task)

    async def ask(self, said: Said) -> Message | None:
        """Say something and wait for the last answer; None if the model said nothing."""
        answer: Message | None = None
        async for event in self.send(said):
            if isinstance(event, TurnEnded):
                answer = event.message
        return answer

    async def cancel(self) -> None:
        """End the turn that runs, if there is one; what has come is kept."""
        for task in tuple(self._tasks):
            await self._stop(task)

    def _turn(self, said: Said) -> Turn:
        if self._is_ended:
            raise SessionEndedError(f"session {self.id} was ended")
        if not isinstance(said, str):
            return Turn(self._setup, self._conversation, said, override=None, told=self._told)
        asked = read_override(said)
        override = asked.override and self._setup.models.resolve(asked.override)
        content = (TextBlock(asked.text),)
        return Turn(self._setup, self._conversation, content, override=override, told=self._told)

    async def _run(self, turn: Turn) -> None:
        try:
            async with self._lock:
                try:
                    await turn.run()
                finally:
                    await finished(self._swap_queued())
        finally:
            turn.events.put_nowait(None)

    async def _stop(self, task: asyncio.Task[None]) -> None:
        """Cancel a turn and wait until everything is kept, however often we are cancelled."""
        task.cancel()
        cancelled: asyncio.CancelledError | None = None
        while not task.done():
            try:
                await asyncio.wait({task})
            except asyncio.CancelledError as error:
                cancelled = error
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a turn of %s could not be ended: %s", self.id, type(error).__name__)
        if cancelled is not None:
            raise cancelled

    # The model

    def preview_swap(self, model: str) -> Preview:
        """Whether another model can go on, and exactly what it would not see as it is."""
        served = self._setup.models.served(self._setup.models.resolve(model))
        return preview(self._setup, self._conversation.messages, served)

    async def swap(self, model: str | None) -> Preview | None:
        """Let another model answer from the next turn on; None leaves the choice to the rules.

        While a turn runs the swap waits for its end, and of several the last one counts.

        Raises:
            SwapRefusedError: the history does not fit the model; nothing was changed.
        """
        found = None if model is None else self.preview_swap(model)
        if found is not None and not found.fits:
            raise self._refused(found)
        chosen = None if found is None else found.model
        is_queued = self._lock.locked()
        changed = SessionModelChanged(
            old_model=self._conversation.pinned, new_model=chosen, is_queued=is_queued
        )
        self._trace.emit(changed, actor=Actor.USER)
        if is_queued:
            self._queued = [chosen]
        else:
            await self._pin(chosen)
        return found

    def _refused(self, found: Preview) -> SwapRefusedError:
        self._trace.emit(
            RouteConstraintFailed(
                model=found.model,
                active_model=self._conversation.pinned,
                capability=found.capability or "",
                reason=found.why or "",
            ),
            actor=Actor.USER,
        )
        return SwapRefusedError(
            found.model,
            capability=found.capability or "",
            why=found.why or "",
            active=self._conversation.pinned,
        )

    async def _swap_queued(self) -> None:
        if self._queued:
            chosen = self._queued.pop()
            self._queued.clear()
            await self._pin(chosen)

    async def _pin(self, model: str | None) -> None:
        conversation, now = self._conversation, self._setup.now()
        before = conversation.pinned
        if model == before:
            return
        if model is None:
            await conversation.note(
                SidecarEntry(
                    id=new_ulid(), session_id=self.id, created_at=now, kind=PINNED, data={}
                )
            )
            return
        entry = SwapEntry(
            id=new_ulid(),
            session_id=self.id,
            created_at=now,
            from_model=before,
            to_model=model,
            reason="user swap",
        )
        await conversation.note(entry)
        self._told.swapped_from = before

    # The history

    async def compact(self, model: str | None = None) -> int:
        """Sum up what is old with a model; gives the number of messages that were summed up."""
        async with self._lock:
            name = model or self._conversation.pinned or self._last_model()
            if name is None:
                return 0
            served = self._setup.models.served(self._setup.models.resolve(name))
            return await Compaction(self._setup, self._conversation).run(served)

    async def retract(self, message_id: str, reason: str | None = None) -> None:
        """Take a message back, and what follows it with it; the store still has both."""
        async with self._lock:
            entry = RetractionEntry(
                id=new_ulid(),
                session_id=self.id,
                created_at=self._setup.now(),
                message_id=message_id,
                reason=reason,
            )
            await self._conversation.note(entry)

    async def fork(self, *, at: str | None = None) -> "Session":
        """A new session that goes on from here, or from a message; this one stays as it is."""
        async with self._lock:
            record = await self._setup.store.fork(self.id, at=at)
        tip = at or next((each.id for each in reversed(self._conversation.path)), "")
        self._trace.emit(SessionForked(source_session_id=self.id, at_message_id=tip))
        return await self._reopen(record.id)

    async def end(self, disposition: Disposition = "completed") -> None:
        """End the session: a turn that runs is cancelled, and no other begins."""
        if self._is_ended:
            return
        await self.cancel()
        self._is_ended = True
        cost = self.cost()
        self._trace.emit(
            SessionEnded(
                disposition=disposition,
                turn_count=self._turn_count,
                total_cost_usd=cost.total_usd,
                duration_seconds=time.monotonic() - self._opened_s,
            )
        )
        await self._conversation.note(
            SidecarEntry(
                id=new_ulid(),
                session_id=self.id,
                created_at=self._setup.now(),
                kind=ENDED,
                data={"disposition": disposition, "total_cost_usd": str(cost.total_usd)},
            )
        )

    def _last_model(self) -> str | None:
        named = (message.metadata.model for message in reversed(self._conversation.messages))
        return next((model for model in named if model), None)
