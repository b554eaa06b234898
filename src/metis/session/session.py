"""Session: one conversation, with methods to send prompts, swap models and edit the history."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from decimal import Decimal
from typing import Any, Literal, TypeVar, overload

import msgspec
from msgspec.structs import replace

from metis.canonical.blocks import ContentBlock, TextBlock
from metis.canonical.errors import (
    InvalidAnswerError,
    InvalidValueError,
    NoTurnError,
    SessionEndedError,
)
from metis.canonical.message import Message, Role
from metis.deprecation import renamed_parameters
from metis.events import Actor, Budget
from metis.events.system_events import FeedbackExplicit, FeedbackImplicit
from metis.events.turn_events import SessionEnded, SessionForked
from metis.routing import parse_override
from metis.session.context_window import ContextFitter
from metis.session.conversation import (
    BUDGET_KIND,
    REASONING_KIND,
    TOOLS_KIND,
    Conversation,
    run_to_completion,
)
from metis.session.events import Trace, TurnEvent, TurnReporter
from metis.session.history import HistoryEditor, Position
from metis.session.options import Setup, check_thread_options
from metis.session.prompt import system_messages
from metis.session.reply import Reply, ReplyStream, collect_reply
from metis.session.response import (
    OutputSchema,
    ended_with_error,
    output_format,
    repair_prompt,
    structured_output,
)
from metis.session.route import (
    ModelPin,
    Preview,
    window_use,
)
from metis.session.session_view import SessionView
from metis.session.state import SessionState, TurnContext
from metis.session.turn import Turn, prompt_blocks
from metis.wire.output_format import OutputFormat
from metis.wire.reasoning import Reasoning

log = logging.getLogger("metis.session")

T = TypeVar("T")

Prompt = str | Sequence[ContentBlock | str]
"""What a user sends: a text, or blocks; a string in a list is a text block."""

Disposition = Literal["completed", "abandoned", "error"]
ENDED_KIND = "session.ended"
"""The kind of the sidecar entry that ends a session."""


class Session(SessionView):
    """One conversation; its turns run one after the other, even if several tasks send prompts."""

    def __init__(
        self,
        setup: Setup,
        conversation: Conversation,
        *,
        reopen: Callable[[str], Awaitable["Session"]],
    ) -> None:
        self._reopen = reopen
        self._trace = Trace(setup.options.bus, conversation.id)
        context = TurnContext(
            setup=setup,
            conversation=conversation,
            state=SessionState(),
            reporter=TurnReporter(trace=self._trace),
        )
        super().__init__(context, ModelPin(context))
        self._history = HistoryEditor(conversation, self._trace)
        self._lock = asyncio.Lock()
        self._tasks: dict[asyncio.Task[None], Turn] = {}
        self._is_ended = False
        self._turn_count = 0
        self._opened_s = time.monotonic()

    @property
    def is_running(self) -> bool:
        """Whether a turn is running."""
        return self._lock.locked()

    # Turns

    @renamed_parameters(said="prompt")
    def send(
        self,
        prompt: Prompt,
        *,
        model: str | None = None,
        output: OutputSchema | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[TurnEvent]:
        """Send a prompt; yield every event until the turn ends.

        The turn starts when the first event is requested; closing the generator cancels it.

        Args:
            prompt: a text, or content blocks. `@alias` at the start of a text names a model.
            model: the model of this turn only.
            output: the required form of the responses: an output format or a JSON Schema.
            options: thread options from this turn on: `provider_ptr`, `servers`, `search` and
                `tool_mode`.
        """
        return self._listen(self._new_turn(prompt, model, output_format(output), options))

    def respond(self, *, model: str | None = None) -> AsyncGenerator[TurnEvent]:
        """Send the history without a new prompt; yield every event until the turn ends.

        This is for a turn that failed before or during its response, and for an imported history
        that ends with a prompt.

        Raises:
            NoTurnError: the history does not end with a prompt, a result or a failed response.
        """
        self._check_open()
        messages = self._conversation.messages
        if not messages or not _expects_response(messages[-1]):
            raise NoTurnError("there is nothing to respond to")
        return self._listen(self._turn(None, self._resolve(model)))

    def stream(
        self,
        prompt: Prompt,
        *,
        model: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> ReplyStream:
        """Send a prompt; iterating over the stream yields the text of the response as it arrives.

        Leaving the loop early cancels the turn.
        """
        return ReplyStream(self.send(prompt, model=model, options=options), self.id)

    @renamed_parameters(said="prompt")
    async def ask(
        self,
        prompt: Prompt,
        *,
        model: str | None = None,
        output: OutputSchema | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Reply:
        """Send a prompt and return the reply: text, message, cost and losses."""
        events = self.send(prompt, model=model, output=output, options=options)
        return await collect_reply(events, self.id)

    @overload
    async def ask_json(self, prompt: Prompt, schema: type[T], *, model: str | None = None) -> T: ...
    @overload
    async def ask_json(
        self, prompt: Prompt, schema: OutputSchema, *, model: str | None = None
    ) -> Any: ...
    @renamed_parameters(said="prompt", output="schema")
    async def ask_json(
        self, prompt: Prompt, schema: OutputSchema, *, model: str | None = None
    ) -> Any:
        """Send a prompt and return the value of the response.

        A JSON Schema gives JSON; a type (dataclass, TypedDict, Struct, pydantic model, `list[int]`
        and the like) gives a value of that type. If the response does not match, the model is
        asked to correct it once, in another turn.

        Raises:
            InvalidValueError: `schema` is neither a JSON Schema nor a type that JSON can express.
            InvalidAnswerError: the response has no value, or one that does not match the schema.
        """
        output = structured_output(schema)
        reply = await self.ask(prompt, model=model, output=output.format)
        try:
            return output.value_of(reply.message)
        except InvalidAnswerError as error:
            repair = repair_prompt(error)
            if repair is None:
                raise
        reply = await self.ask([TextBlock(repair)], model=model, output=output.format)
        return output.value_of(reply.message)

    async def retry(self, model: str | None = None) -> AsyncGenerator[TurnEvent]:
        """Undo the last turn and send its prompt again, optionally to another model.

        Raises:
            NoTurnError: there is no turn yet.
        """
        self._check_open()
        override = self._resolve(model)
        options = self.turns[-1].prompt.metadata.options if self.turns else None
        # Undone first, so that the retried turn does not see the response it replaces.
        content = await self.undo()
        signal = FeedbackImplicit(signal="retry", confidence=1.0, subject_id=self.id)
        self._trace.emit(signal, actor=Actor.USER)
        turn = self._turn(content, override, options=options)
        async with aclosing(self._listen(turn)) as events:
            async for event in events:
                yield event

    async def cancel(self) -> None:
        """Cancel the running turn, if any; its partial response is stored."""
        for task in tuple(self._tasks):
            await self._stop(task)

    def _new_turn(
        self,
        prompt: Prompt,
        model: str | None = None,
        output: OutputFormat | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Turn:
        self._check_open()
        if options is not None:
            check_thread_options(options)
        content: Sequence[ContentBlock]
        if isinstance(prompt, str):
            addressed = parse_override(prompt)
            model, content = model or addressed.override, (TextBlock(addressed.text),)
        else:
            content = prompt_blocks(prompt)
        if all(isinstance(block, TextBlock) and not block.text.strip() for block in content):
            # An empty prompt is not sent, so the model would answer the previous prompt again.
            raise InvalidValueError("the prompt is empty", path="$.prompt")
        return self._turn(content, self._resolve(model), output, options)

    def _turn(
        self,
        content: Sequence[ContentBlock] | None,
        override: str | None,
        output: OutputFormat | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Turn:
        context = self._context
        if output is not None:
            request_defaults = replace(self._setup.request_defaults, output=output)
            context = replace(
                context, setup=replace(self._setup, request_defaults=request_defaults)
            )
        return Turn(context, content, override=override, options=options)

    def _resolve(self, model: str | None) -> str | None:
        if model is not None and not isinstance(model, str):  # pyright: ignore[reportUnnecessaryIsInstance] - a caller may be untyped
            fault = f"expected the name of a model, got {type(model).__name__}"
            raise InvalidValueError(fault, path="$.model")
        return None if model is None else self._setup.models.resolve(model)

    def _check_open(self) -> None:
        if self._is_ended:
            raise SessionEndedError(f"session {self.id} was ended")

    async def _listen(self, turn: Turn) -> AsyncGenerator[TurnEvent]:
        # The turn runs in its own task: if the caller stops between two events, a plain generator
        # would end without storing the partial response.
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
                    # A swap during the turn must take effect before the next turn has the lock.
                    await run_to_completion(self._pin.apply_queued())
        finally:
            turn.events.put_nowait(None)

    async def _stop(self, task: asyncio.Task[None]) -> None:
        """Cancel a turn and wait until everything is stored, even if this is cancelled, too."""
        task.cancel()
        # A cancellation of the caller is raised at the end: the next turn must not start while
        # this one still writes.
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
        """Rate the last turn with -1, 0 or 1; the rating is traced."""
        turns = self.turns
        if not turns:
            raise NoTurnError("there is no turn yet")
        if rating not in (-1, 0, 1):
            raise InvalidValueError(f"{rating} is not between -1 and 1", path="$.rating")
        feedback = FeedbackExplicit(scope="turn", rating=rating, subject_id=turns[-1].prompt.id)
        self._trace.emit(feedback, actor=Actor.USER)

    # Model, budget and reasoning

    async def swap(self, model: str | None) -> Preview | None:
        """Set the model of the session from the next turn on; None leaves it to the rules.

        A swap during a turn waits for the end of the turn; of several, the last one counts.

        Raises:
            SwapRefusedError: the history does not fit the model; nothing was changed.
        """
        return await self._pin.swap(model, is_running=self._lock.locked())

    async def set_budget(self, limit_usd: Decimal | None) -> None:
        """Set the cost limit of this session, which is stored; None means no limit."""
        limit = Budget(session_usd=limit_usd).session_usd
        data = {"session_usd": None if limit is None else str(limit)}
        await self._conversation.note(BUDGET_KIND, data)
        # A new limit warns again from the start.
        self._context.state.budget_warnings.pop("session", None)

    async def set_reasoning(self, reasoning: Reasoning | None) -> None:
        """Set the reasoning option from the next turn on; it is stored."""
        data = None if reasoning is None else msgspec.to_builtins(reasoning)
        await self._conversation.note(REASONING_KIND, {"reasoning": data})

    async def enable_tools(self, *, enabled: bool) -> None:
        """Offer the tools to models from the next turn on, or none; the setting is stored.

        Raises:
            InvalidValueError: the session has no tools to offer.
        """
        toolbox = self._setup.toolbox
        if toolbox is None:
            raise InvalidValueError("this session was started without tools", path="$.enabled")
        await self._conversation.note(TOOLS_KIND, {"enabled": enabled})
        toolbox.is_enabled = enabled

    async def prepare_tools(self) -> None:
        """Start the MCP servers that every turn offers, so that `tools` lists their tools."""
        async with self._lock:
            if self._setup.toolbox is not None:
                for name, fault in await self._setup.toolbox.offer_default():
                    log.warning("the tools of %s are left out: %s", name, fault)

    async def add_instructions(self, text: str) -> None:
        """Store a system message, which applies from the next turn on."""
        async with self._lock:
            messages = system_messages(self.id, [text], self._setup.now())
            await self._conversation.append(*messages)

    # History

    async def compact(self, model: str | None = None) -> int:
        """Replace old messages by a summary; return how many messages it replaces."""
        async with self._lock:
            used = window_use(self._context, model)
            if used is None:
                return 0
            resolved = self._setup.models.get(used.model)
            return await ContextFitter(self._context).compact(resolved, "user")

    @renamed_parameters(place="position")
    async def rewind(self, position: Position | None) -> None:
        """Go back to a message, bookmark or checkpoint; None is before the first message.

        Later messages stay in the store, so that a rewind to one of them is possible. A position
        between a tool call and its results is moved behind the results.
        """
        async with self._lock:
            await self._history.rewind(position)

    async def undo(self, count: int = 1) -> tuple[ContentBlock, ...]:
        """Undo the last turns; return the prompt of the first of them.

        Raises:
            NoTurnError: there are fewer turns.
        """
        async with self._lock:
            return await self._history.undo(count)

    async def retract(self, message_id: str, reason: str | None = None) -> None:
        """Remove a message and all that follow it from the history; they stay in the store."""
        async with self._lock:
            await self._history.retract(message_id, reason)

    @renamed_parameters(place="position")
    async def bookmark(self, name: str, position: Position | None = None) -> str:
        """Bookmark a position, by default the newest message; return the message id.

        A bookmark at the end of a thread moves with the messages that are added.
        """
        async with self._lock:
            return await self._history.bookmark(name, position)

    async def unmark(self, name: str) -> None:
        """Remove a bookmark."""
        async with self._lock:
            await self._history.unmark(name)

    async def checkpoint(self, name: str | None = None) -> int:
        """Number the current position; unlike a bookmark, a checkpoint never moves.

        A name makes it a key of `checkpoint_names`; a name in use moves to the new checkpoint.
        """
        async with self._lock:
            return await self._history.checkpoint(name)

    async def fork(self, *, at: Position | None = None) -> "Session":
        """Return a new session that continues from here or from a position."""
        async with self._lock:
            message_id = None if at is None else self._history.find(at)
            record = await self._setup.store.fork(self.id, at=message_id)
        fork_point = message_id or self._conversation.tip or ""
        self._trace.emit(SessionForked(source_session_id=self.id, at_message_id=fork_point))
        return await self._reopen(record.id)

    async def end(self, disposition: Disposition = "completed") -> None:
        """End the session: a running turn is cancelled, and no other can start."""
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
        await self._conversation.note(ENDED_KIND, data)


def _expects_response(last: Message) -> bool:
    return last.role in (Role.USER, Role.TOOL) or ended_with_error(last)
