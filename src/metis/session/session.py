"""Session: the object that people hold; it sends, swaps, goes back, and knows what it has cost."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from decimal import Decimal
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from metis.canonical.blocks import ContentBlock, TextBlock
from metis.canonical.errors import InvalidValueError, NoTurnError, SessionEndedError
from metis.canonical.ids import new_ulid
from metis.canonical.message import Message, Role
from metis.events import Actor, Budget
from metis.events.system_events import FeedbackExplicit, FeedbackImplicit
from metis.events.turn_events import SessionEnded, SessionForked
from metis.routing import parse_override
from metis.session.context_window import Compaction
from metis.session.conversation import (
    BUDGET_KIND,
    REASONING_KIND,
    Conversation,
    SessionCost,
    run_to_completion,
)
from metis.session.events import Trace, TurnEnded, TurnEvent
from metis.session.history import HistoryEditor, PastTurn, Position, past_turns
from metis.session.options import BudgetGuard, Setup, check_thread_options, request_options
from metis.session.response import OutputSchema, ended_with_error, json_value_of, output_format
from metis.session.route import ModelPin, Preview, Why, WindowUse, last_routing, window_use
from metis.session.state import SessionState
from metis.session.turn import Turn
from metis.store.entries import SidecarEntry
from metis.wire.output_format import OutputFormat
from metis.wire.reasoning import Reasoning

log = logging.getLogger("metis.session")

Prompt = str | Sequence[ContentBlock | str]
"""What a user says: words, or blocks; a list of words is a list of blocks of text."""

Disposition = Literal["completed", "abandoned", "error"]
ENDED_KIND = "session.ended"
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
        self._told = SessionState()
        self._trace = Trace(setup.bus, conversation.id)
        self._pinning = ModelPin(setup, conversation, self._told, self._trace)
        self._history = HistoryEditor(setup, conversation, self._trace)
        self._lock = asyncio.Lock()
        self._tasks: dict[asyncio.Task[None], Turn] = {}
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
        return self._pinning.model

    @property
    def messages(self) -> list[Message]:
        """What a model is shown of the conversation."""
        return list(self._conversation.messages)

    @property
    def turns(self) -> list[PastTurn]:
        """The turns that lead to here, summed up or not; those that were taken back are gone."""
        return past_turns(self._conversation.path)

    @property
    def is_running(self) -> bool:
        """Whether a turn is under way."""
        return self._lock.locked()

    def cost(self) -> SessionCost:
        """What the session has cost so far, exactly; what was taken back has cost the same."""
        return self._conversation.cost()

    def context(self, model: str | None = None) -> WindowUse | None:
        """How full the window of a model is; of the one that would answer, if none is named.

        None if no model can take the next turn.
        """
        return window_use(self._setup, self._conversation, self._told, model)

    def why(self) -> Why | None:
        """Why the last turn was answered by its model, with every slot that was asked."""
        return last_routing(self._told, self._conversation)

    # Turns

    def send(
        self,
        prompt: Prompt,
        *,
        model: str | None = None,
        output: OutputSchema | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[TurnEvent]:
        """Say something, and get everything that happens until the model has answered.

        `model`, or `@alias` at the start of words, lets another model answer this once; `output` is
        what the answers of the turn shall be. `options` hold from this turn on: `provider_ptr`,
        `servers`, `search` and `tool_mode`. Nothing is done before somebody listens, and whoever
        stops listening cancels the turn.
        """
        return self._listen(self._turn(prompt, model, output_format(output), options))

    def respond(self, *, model: str | None = None) -> AsyncGenerator[TurnEvent]:
        """Let a model answer what was said last, without saying anything more.

        For a turn that failed before its answer or in the midst of it, and for a history from
        elsewhere that ends with a question.

        Raises:
            NoTurnError: nothing waits for an answer.
        """
        self._refuse_ended()
        waiting = self._conversation.messages
        if not waiting or not _waits(waiting[-1]):
            raise NoTurnError("nothing waits for an answer")
        return self._listen(self._made(None, model and self._setup.models.resolve(model)))

    async def ask(
        self,
        prompt: Prompt,
        *,
        output: OutputSchema | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Message | None:
        """Say something and wait for the last answer; None if the model said nothing."""
        answer: Message | None = None
        async for event in self.send(prompt, output=output, options=options):
            if isinstance(event, TurnEnded):
                answer = event.message
        return answer

    async def ask_json(self, prompt: Prompt, schema: OutputSchema) -> Any:
        """Say something and wait for the value that the answer gives.

        Raises:
            InvalidAnswerError: the answer gives none, or one that does not keep to the schema.
        """
        form = output_format(schema) or OutputFormat()
        return json_value_of(await self.ask(prompt, output=form), form)

    async def retry(self, model: str | None = None) -> AsyncGenerator[TurnEvent]:
        """Take the last turn back and ask the same again, of another model if one is named.

        Raises:
            NoTurnError: nothing was asked yet.
        """
        self._refuse_ended()
        override = None if model is None else self._setup.models.resolve(model)
        options = self.turns[-1].prompt.metadata.options if self.turns else None
        content = await self.undo()
        signal = FeedbackImplicit(signal="retry", confidence=1.0, subject_id=self.id)
        self._trace.emit(signal, actor=Actor.USER)
        turn = self._made(content, override, options=options)
        async with aclosing(self._listen(turn)) as events:
            async for event in events:
                yield event

    async def cancel(self) -> None:
        """End the turn that runs, if there is one; what has come is kept."""
        for task in tuple(self._tasks):
            await self._stop(task)

    def _turn(
        self,
        said: Prompt,
        model: str | None = None,
        output: OutputFormat | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Turn:
        self._refuse_ended()
        if options is not None:
            check_thread_options(options)
        content: Sequence[ContentBlock]
        if isinstance(said, str):
            asked = parse_override(said)
            model, content = model or asked.override, (TextBlock(asked.text),)
        else:
            content = [TextBlock(each) if isinstance(each, str) else each for each in said]
        return self._made(content, model and self._setup.models.resolve(model), output, options)

    def _made(
        self,
        content: Sequence[ContentBlock] | None,
        override: str | None,
        output: OutputFormat | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Turn:
        setup = self._setup
        if output is not None:
            setup = replace(setup, options=replace(setup.options, output=output))
        return Turn(
            setup,
            self._conversation,
            content,
            override=override,
            told=self._told,
            options=options,
        )

    def _refuse_ended(self) -> None:
        if self._is_ended:
            raise SessionEndedError(f"session {self.id} was ended")

    async def _listen(self, turn: Turn) -> AsyncGenerator[TurnEvent]:
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

    async def _run(self, turn: Turn) -> None:
        try:
            async with self._lock:
                try:
                    await turn.run()
                finally:
                    await run_to_completion(self._pinning.apply_queued())
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

    def rate(self, rating: int) -> None:
        """Tell the bus how good the last turn was, from -1 to 1."""
        turns = self.turns
        if not turns:
            raise NoTurnError("nothing was asked yet")
        if rating not in (-1, 0, 1):
            raise InvalidValueError(f"{rating} is not between -1 and 1", path="$.rating")
        subject = turns[-1].prompt.id
        told = FeedbackExplicit(scope="turn", rating=rating, subject_id=subject)
        self._trace.emit(told, actor=Actor.USER)

    # The model and the money

    def preview_swap(self, model: str) -> Preview:
        """Whether another model can go on, and exactly what it would not see as it is."""
        return self._pinning.preview(model)

    async def swap(self, model: str | None) -> Preview | None:
        """Let another model answer from the next turn on; None leaves the choice to the rules.

        While a turn runs the swap waits for its end, and of several the last one counts.

        Raises:
            SwapRefusedError: the history does not fit the model; nothing was changed.
        """
        return await self._pinning.swap(model, is_running=self._lock.locked())

    @property
    def budget(self) -> Budget:
        """The limits that hold for the session."""
        return self._conversation.budget(self._setup.budget)

    async def set_budget(self, limit_usd: Decimal | None) -> None:
        """Set what this session may cost, from now on and when it is resumed; None is no limit."""
        limit = Budget(session_usd=limit_usd).session_usd
        await self._note(BUDGET_KIND, {"session_usd": None if limit is None else str(limit)})
        self._told.budget_warnings.pop("session", None)

    @property
    def reasoning(self) -> Reasoning | None:
        """How much models think in this session; None is as the options of the library say."""
        return request_options(self._setup, self._conversation, self.model or "").reasoning

    @property
    def options(self) -> dict[str, Any]:
        """What the thread says of its turns, merged along the way to the newest message."""
        return dict(self._conversation.thread_options)

    async def set_reasoning(self, reasoning: Reasoning | None) -> None:
        """Set how much models think, from the next turn on and when the session is resumed."""
        told = None if reasoning is None else msgspec.to_builtins(reasoning)
        await self._note(REASONING_KIND, {"reasoning": told})

    # The history

    async def compact(self, model: str | None = None) -> int:
        """Sum up what is old with a model; gives the number of messages that were summed up."""
        async with self._lock:
            used = window_use(self._setup, self._conversation, self._told, model)
            if used is None:
                return 0
            purse = BudgetGuard(self._setup, self._conversation, self._told, self._trace)
            await purse.check()
            served = self._setup.models.get(used.model)
            compaction = Compaction(
                self._setup, self._conversation, self._told, self._trace, purse.check
            )
            return await compaction.run(served, "user")

    async def rewind(self, position: Position | None) -> None:
        """Go back to a message, a bookmark or a checkpoint; None is before the first message.

        What came after it is no longer seen and still in the store: its messages can be gone back
        to in their turn. A place between a call and its results is moved behind the results.
        """
        async with self._lock:
            await self._history.rewind(position)

    async def undo(self, count: int = 1) -> tuple[ContentBlock, ...]:
        """Take the last turns back; gives what the user had said in the first of them.

        Raises:
            NoTurnError: there are not so many.
        """
        async with self._lock:
            return await self._history.undo(count)

    async def retract(self, message_id: str, reason: str | None = None) -> None:
        """Take a message back, and what follows it with it; the store still has both."""
        async with self._lock:
            await self._history.retract(message_id, reason)

    @property
    def bookmarks(self) -> dict[str, str]:
        """The message of each bookmark."""
        return self._conversation.bookmarks

    async def bookmark(self, name: str, position: Position | None = None) -> str:
        """Give a name to a place, here if none is named; it moves on with what follows."""
        async with self._lock:
            return await self._history.bookmark(name, position)

    async def unmark(self, name: str) -> None:
        """Take a bookmark away."""
        async with self._lock:
            await self._history.unmark(name)

    @property
    def checkpoints(self) -> dict[int, str | None]:
        """The message at each checkpoint; None is before the first."""
        return dict(self._conversation.checkpoints)

    async def checkpoint(self) -> int:
        """Number the place where the conversation is; other than a bookmark it stays there."""
        async with self._lock:
            return await self._history.checkpoint()

    async def fork(self, *, at: Position | None = None) -> "Session":
        """A new session that goes on from here, or from a place; this one stays as it is."""
        async with self._lock:
            own = None if at is None else self._history.find(at)
            record = await self._setup.store.fork(self.id, at=own)
        tip = own or self._conversation.tip or ""
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
        data = {"disposition": disposition, "total_cost_usd": str(cost.total_usd)}
        await self._note(ENDED_KIND, data)

    async def _note(self, kind: str, data: Mapping[str, Any]) -> None:
        await self._conversation.record(
            SidecarEntry(
                id=new_ulid(),
                session_id=self.id,
                created_at=self._setup.now(),
                kind=kind,
                data=data,
            )
        )


def _waits(last: Message) -> bool:
    """Whether an answer is due after a message, or the rest of one."""
    return last.role in (Role.USER, Role.TOOL) or ended_with_error(last)
