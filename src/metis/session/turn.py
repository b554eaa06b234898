"""Turn: from the words of a user to the last answer, with every call of a tool between.

A turn runs in a task of its own and is told to whoever listens. Cancelling the task at any moment
leaves a whole conversation: what has come of an answer is kept, and every call has a result.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from metis.canonical.blocks import ContentBlock
from metis.canonical.errors import (
    AuthenticationError,
    ContextOverflowError,
    InvalidRequestError,
    NetworkError,
    ProviderError,
    RateLimitError,
    ServerError,
    TurnLimitError,
    UnknownServerError,
)
from metis.canonical.ids import new_ulid
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageMetadata, StopReason
from metis.events import Actor, Event
from metis.events import turn_events as events
from metis.routing import TurnFacts
from metis.session.context_window import ContextFitter
from metis.session.conversation import (
    POINTER_OPTION,
    Conversation,
    contains_image,
    run_to_completion,
)
from metis.session.events import Trace, TurnEnded, TurnEvent, TurnReporter, TurnStarted, short_hash
from metis.session.model_call import ModelCaller
from metis.session.models import ResolvedModel
from metis.session.options import Setup, read_thread_options, resolve_pointer
from metis.session.response import can_run_calls, tool_calls_of
from metis.session.route import ModelChoice, TurnRouter
from metis.session.state import SessionState
from metis.session.tools import ToolRunner
from metis.store.threads import merge_options

_FALLS_BACK = (RateLimitError, ServerError, NetworkError, AuthenticationError)


class Turn:
    """One turn of a session."""

    def __init__(  # noqa: PLR0913 - what makes a turn, most of it by name
        self,
        setup: Setup,
        conversation: Conversation,
        content: Sequence[ContentBlock] | None,
        *,
        override: str | None,
        told: SessionState,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.id = new_ulid()
        self.events: asyncio.Queue[TurnEvent | BaseException | None] = asyncio.Queue()
        """What happens, in order; None is the last, after an error if there was one."""
        self._setup = setup
        self._conversation = conversation
        self._content = None if content is None else tuple(content)
        """What the user says; None answers what was said before."""
        self._override = override
        self._options = None if options is None else dict(options)
        """What holds from this turn on."""
        self._told = told
        self._trace = Trace(setup.bus, conversation.id, self.id)
        self._telling = TurnReporter(
            turn_id=self.id, send=self.events.put_nowait, trace=self._trace
        )
        self._route = TurnRouter(setup, conversation, told, self._telling)
        self._calling = ModelCaller(setup, conversation, told, self._telling)
        self._tooling = ToolRunner(setup.toolbox, self._calling, conversation.id, self._telling)
        self._started: Event | None = None
        self._started_s = time.monotonic()
        self._room = ContextFitter(setup, conversation, told, self._telling, self._calling)
        self._answer: Message | None = None
        self._spent_before = Decimal(0)

    async def run(self) -> None:
        """Do the turn, from top to bottom; what happens is in `events`."""
        self._spent_before = self._conversation.cost().total_usd
        try:
            facts = await self._start()
            chosen = await self._route.choose(facts, self._started)
            while True:
                answer, chosen = await self._ask(chosen)
                if answer is None:
                    break
                self._answer = answer
                if answer.metadata.stop_reason is StopReason.PAUSE and not tool_calls_of(answer):
                    continue  # the provider's own tools are at work: ask again (T158)
                if not await self._run_tools(answer):
                    break
            self._end()
            self._trace.emit(self._completed(), parent=self._started)
        except asyncio.CancelledError:
            await run_to_completion(self._calling.close())
            self._end(StopReason.CANCELLED)
            cancelled = events.TurnCancelled(
                reason="user_cancel",
                partial_llm_calls=self._calling.call_count,
                partial_tool_calls=self._tooling.result_count,
            )
            self._trace.emit(cancelled, parent=self._started)
            raise
        except Exception as error:  # noqa: BLE001 - whoever listens gets it
            await run_to_completion(self._calling.close())
            self.events.put_nowait(error)
            name = type(error).__name__
            self._trace.emit(
                events.TurnFailed(error_type=name, error_message=name), parent=self._started
            )
        finally:
            self.events.put_nowait(None)

    async def _start(self) -> TurnFacts:
        """Store what the user said, and tell it; gives what the choice of a model depends on."""
        await self._inherit()
        stored = await self._question()
        facts = self._route.facts(stored, self._override)
        self._started = self._calling.parent_event = self._trace.emit(
            events.TurnStarted(
                user_message_hash=short_hash(stored.content_digest().encode()),
                estimated_input_tokens=facts.estimated_input_tokens,
                has_images=any(map(contains_image, stored.content)),
                has_tool_calls_in_history=facts.has_tool_calls_in_history,
            ),
            actor=Actor.USER,
        )
        self._tell(TurnStarted(turn_id=self.id, message=stored))
        return facts

    async def _inherit(self) -> None:
        """See to it that what the thread asks for is there, before anything is stored."""
        setup, thread = self._setup, self._conversation
        said = read_thread_options(merge_options(thread.thread_options, self._options or {}))
        own = (self._options or {}).get(POINTER_OPTION)
        name = own or (thread.pointer if self._override is None else None)
        if name:
            resolve_pointer(name, setup.pointers, setup.models)
        if setup.toolbox is not None:
            await setup.toolbox.offer(said.servers or ())
        elif said.servers:
            raise UnknownServerError(said.servers[0])

    async def _question(self) -> Message:
        """What is to be answered, in the store."""
        if self._content is None:
            said = reversed(self._conversation.messages)
            return next(message for message in said if message.role is Role.USER)
        message = Message(
            id=new_ulid(),
            session_id=self._conversation.id,
            role=Role.USER,
            content=self._content,
            created_at=self._setup.now(),
            metadata=MessageMetadata(options=self._options or None),
        )
        (stored,) = await self._conversation.append(message)
        return stored

    async def _ask(self, chosen: ModelChoice) -> tuple[Message | None, ModelChoice]:
        """One answer: from a shorter or repaired history, or by another model, if need be."""
        tried = {chosen[0].id}
        is_repaired, overflows = False, 0
        await self._calling.check_budget()
        await self._room.fit(chosen[0])
        while True:
            self._check_count()
            try:
                return await self._calling.call(*chosen), chosen
            except ContextOverflowError as error:
                overflows += 1
                await self._room.fit_after_overflow(error, chosen[0], overflows)
            except InvalidRequestError as error:
                if is_repaired or not self._repair(chosen[0], error):
                    raise
                is_repaired = True
            except _FALLS_BACK as error:
                chosen = self._route.fall_back(chosen[0], error, tried)

    async def _run_tools(self, answer: Message) -> bool:
        """Run the calls of an answer, if there are any that may; whether to ask again."""
        if not tool_calls_of(answer) or not can_run_calls(answer):
            return False
        await self._tooling.run(answer)
        return True

    # When something is in the way

    def _repair(self, served: ResolvedModel, error: ProviderError) -> bool:
        repair = self._told.repairs.add_for_error(served, error)
        if repair is not None:
            text = f"{served.adapter.name} did not take the history: {repair.description}"
            self._telling.warn("repaired", text)
            repaired = events.TurnHistoryRepaired(model=served.id, repairs=(repair.name,))
            self._trace.emit(repaired, parent=self._calling.parent_event)
        return repair is not None

    def _check_count(self) -> None:
        if self._calling.call_count >= self._setup.max_calls:
            raise TurnLimitError(
                f"the model was asked {self._calling.call_count} times in one turn"
            )

    def _completed(self) -> events.TurnCompleted:
        answer = self._answer
        reason = None if answer is None else answer.metadata.stop_reason
        return events.TurnCompleted(
            stop_reason=reason or StopReason.END_TURN,
            llm_call_count=self._calling.call_count,
            tool_call_count=self._tooling.result_count,
            total_input_tokens=self._calling.input_tokens,
            total_output_tokens=self._calling.output_tokens,
            total_cost_usd=self._conversation.cost().total_usd - self._spent_before,
            wall_time_seconds=time.monotonic() - self._started_s,
        )

    def _tell(self, event: TurnEvent) -> None:
        self.events.put_nowait(event)

    def _end(self, reason: StopReason | None = None) -> None:
        answer = self._answer
        if reason is None:
            reason = StopReason.END_TURN if answer is None else answer.metadata.stop_reason
        spent = self._conversation.cost().total_usd - self._spent_before
        self._tell(
            TurnEnded(
                turn_id=self.id,
                stop_reason=reason or StopReason.UNKNOWN,
                cost_usd=spent,
                message=answer,
            )
        )
