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
from metis.events import work as events
from metis.routing import TurnFacts
from metis.session.answer import calls_of, may_run
from metis.session.calling import Calling
from metis.session.conversation import POINTER, Conversation
from metis.session.finishing import finished
from metis.session.inherited import read_inherited
from metis.session.models import Served
from metis.session.notices import TurnEnded, TurnEvent, TurnStarted
from metis.session.pointers import pointed
from metis.session.room import Room
from metis.session.route import Chosen, Route
from metis.session.seen import has_image
from metis.session.setup import Setup
from metis.session.telling import Telling
from metis.session.told import Told
from metis.session.tooling import Tooling
from metis.session.trace import Trace, hashed
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
        told: Told,
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
        self._telling = Telling(turn_id=self.id, tell=self.events.put_nowait, trace=self._trace)
        self._route = Route(setup, conversation, told, self._telling)
        self._calling = Calling(setup, conversation, told, self._telling)
        self._tooling = Tooling(setup.toolbox, self._calling, conversation.id, self._telling)
        self._started: Event | None = None
        self._started_s = time.monotonic()
        self._room = Room(setup, conversation, told, self._telling, self._calling)
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
                if answer.metadata.stop_reason is StopReason.PAUSE and not calls_of(answer):
                    continue  # the provider's own tools are at work: ask again (T158)
                if not await self._run_tools(answer):
                    break
            self._end()
            self._trace.emit(self._completed(), parent=self._started)
        except asyncio.CancelledError:
            await finished(self._calling.close())
            self._end(StopReason.CANCELLED)
            cancelled = events.TurnCancelled(
                reason="user_cancel",
                partial_llm_calls=self._calling.count,
                partial_tool_calls=self._tooling.count,
            )
            self._trace.emit(cancelled, parent=self._started)
            raise
        except Exception as error:  # noqa: BLE001 - whoever listens gets it
            await finished(self._calling.close())
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
        self._started = self._calling.parent = self._trace.emit(
            events.TurnStarted(
                user_message_hash=hashed(stored.content_digest().encode()),
                estimated_input_tokens=facts.estimated_input_tokens,
                has_images=any(map(has_image, stored.content)),
                has_tool_calls_in_history=facts.has_tool_calls_in_history,
            ),
            actor=Actor.USER,
        )
        self._tell(TurnStarted(turn_id=self.id, message=stored))
        return facts

    async def _inherit(self) -> None:
        """See to it that what the thread asks for is there, before anything is stored."""
        setup, thread = self._setup, self._conversation
        said = read_inherited(merge_options(thread.inherited, self._options or {}))
        own = (self._options or {}).get(POINTER)
        name = own or (thread.pointer if self._override is None else None)
        if name:
            pointed(name, setup.pointers, setup.models)
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
        (stored,) = await self._conversation.keep(message)
        return stored

    async def _ask(self, chosen: Chosen) -> tuple[Message | None, Chosen]:
        """One answer: from a shorter or repaired history, or by another model, if need be."""
        tried = {chosen[0].id}
        is_repaired, overflows = False, 0
        await self._calling.check_budget()
        await self._room.make(chosen[0])
        while True:
            self._check_count()
            try:
                return await self._calling.ask(*chosen), chosen
            except ContextOverflowError as error:
                overflows += 1
                await self._room.make_after(error, chosen[0], overflows)
            except InvalidRequestError as error:
                if is_repaired or not self._repair(chosen[0], error):
                    raise
                is_repaired = True
            except _FALLS_BACK as error:
                chosen = self._route.fall_back(chosen[0], error, tried)

    async def _run_tools(self, answer: Message) -> bool:
        """Run the calls of an answer, if there are any that may; whether to ask again."""
        if not calls_of(answer) or not may_run(answer):
            return False
        await self._tooling.run(answer)
        return True

    # When something is in the way

    def _repair(self, served: Served, error: ProviderError) -> bool:
        repair = self._told.repairs.add(served, error)
        if repair is not None:
            text = f"{served.adapter.name} did not take the history: {repair.text}"
            self._telling.warn("repaired", text)
            repaired = events.TurnHistoryRepaired(model=served.id, repairs=(repair.name,))
            self._trace.emit(repaired, parent=self._calling.parent)
        return repair is not None

    def _check_count(self) -> None:
        if self._calling.count >= self._setup.max_calls:
            raise TurnLimitError(f"the model was asked {self._calling.count} times in one turn")

    def _completed(self) -> events.TurnCompleted:
        answer = self._answer
        reason = None if answer is None else answer.metadata.stop_reason
        return events.TurnCompleted(
            stop_reason=reason or StopReason.END_TURN,
            llm_call_count=self._calling.count,
            tool_call_count=self._tooling.count,
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
