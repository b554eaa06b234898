"""Turn: from the words of a user to the last answer, with every call of a tool between.

A turn runs in a task of its own and is told to whoever listens. Cancelling the task at any moment
leaves a whole conversation: what has come of an answer is kept, and every call has a result.
"""

import asyncio
import time
from collections.abc import Sequence
from decimal import Decimal
from typing import Literal

from msgspec.structs import replace

from metis.canonical.blocks import ContentBlock, ToolUseBlock
from metis.canonical.errors import (
    AuthenticationError,
    ContextOverflowError,
    InvalidRequestError,
    NetworkError,
    ProviderError,
    RateLimitError,
    ServerError,
    TurnLimitError,
)
from metis.canonical.ids import new_ulid
from metis.canonical.message import Message, Role
from metis.canonical.metadata import (
    MessageStatus,
    OutcomeStatus,
    RoutingDecisionRecord,
    RoutingMode,
    StopReason,
)
from metis.events import Actor, Event
from metis.events import work as events
from metis.session.answer import ABORTED, calls_of, may_run
from metis.session.calling import Calling
from metis.session.compaction import Compaction
from metis.session.conversation import Conversation
from metis.session.facts import facts_of, has_images, words_of
from metis.session.finishing import finished
from metis.session.models import Served
from metis.session.notices import Routed, ToolStarted, TurnEnded, TurnEvent, TurnStarted, Warned
from metis.session.setup import Setup, TurnRef
from metis.session.told import Told
from metis.session.trace import Trace, hashed, routed, tool_called, tool_ended

_FALLS_BACK = (RateLimitError, ServerError, NetworkError, AuthenticationError)
_NO_TOOLS = "There are no tools here."

Chosen = tuple[Served, RoutingDecisionRecord]
"""A model and why it was chosen."""


class Turn:
    """One turn of a session."""

    def __init__(
        self,
        setup: Setup,
        conversation: Conversation,
        content: Sequence[ContentBlock],
        *,
        override: str | None,
        told: Told,
    ) -> None:
        self.id = new_ulid()
        self.events: asyncio.Queue[TurnEvent | BaseException | None] = asyncio.Queue()
        """What happens, in order; None is the last, after an error if there was one."""
        self._setup = setup
        self._conversation = conversation
        self._content = tuple(content)
        self._override = override
        self._told = told
        self._trace = Trace(setup.bus, conversation.id, self.id)
        self._calling = Calling(
            setup,
            conversation,
            told,
            turn_id=self.id,
            trace=self._trace,
            tell=self.events.put_nowait,
        )
        self._started: Event | None = None
        self._started_s = time.monotonic()
        self._tool_count = 0
        self._compaction = Compaction(setup, conversation, self._trace)
        self._answer: Message | None = None
        self._spent_before = Decimal(0)

    async def run(self) -> None:
        """Do the turn, from top to bottom; what happens is in `events`."""
        self._spent_before = self._conversation.cost().total_usd
        try:
            await self._store_words()
            chosen = await self._route()
            while True:
                answer, chosen = await self._ask(chosen)
                if answer is None:
                    break
                self._answer = answer
                if answer.metadata.stop_reason is StopReason.PAUSE and not calls_of(answer):
                    continue  # the provider's own tools are at work: ask again (T158)
                if not calls_of(answer) or not await self._run_tools(answer):
                    break
            self._end()
            self._trace.emit(self._completed(), parent=self._started)
        except asyncio.CancelledError:
            await finished(self._calling.close(MessageStatus.CANCELLED))
            self._end(StopReason.CANCELLED)
            self._trace.emit(events.TurnCancelled(reason="user_cancel"), parent=self._started)
            raise
        except Exception as error:  # noqa: BLE001 - whoever listens gets it
            await finished(self._calling.close(MessageStatus.ERROR))
            self.events.put_nowait(error)
            name = type(error).__name__
            self._trace.emit(
                events.TurnFailed(error_type=name, error_message=name), parent=self._started
            )
        finally:
            self.events.put_nowait(None)

    async def _store_words(self) -> None:
        message = Message(
            id=new_ulid(),
            session_id=self._conversation.id,
            role=Role.USER,
            content=self._content,
            created_at=self._setup.now(),
        )
        (stored,) = await self._conversation.keep(message)
        self._started = self._calling.parent = self._trace.emit(
            events.TurnStarted(
                user_message_hash=hashed(stored.content_digest().encode()),
                estimated_input_tokens=0,
                has_images=has_images((stored,)),
            ),
            actor=Actor.USER,
        )
        self._tell(TurnStarted(turn_id=self.id, message=stored))

    async def _route(self) -> Chosen:
        """The model that owns the turn."""
        setup, conversation = self._setup, self._conversation
        facts = replace(
            facts_of(conversation.messages, setup.tools, setup.now()),
            message=words_of(self._content),
            override=self._override,
            sticky=conversation.pinned,
            workspace_path=setup.workspace_path,
            cost_today_usd=await self._today_usd(),
        )
        started_s = time.perf_counter()
        decision = setup.router.decide(facts)
        elapsed_ms = (time.perf_counter() - started_s) * 1000
        self._trace.emit(routed(decision, elapsed_ms), parent=self._started)
        served = setup.models.served(decision.require())
        record = decision.record
        if record is None:
            raise AssertionError("a decision without a record")
        record = self._told.with_swap(record)
        self._told.record, self._told.chain = record, decision.chain
        self._tell(Routed(turn_id=self.id, record=record))
        return served, record

    async def _ask(self, chosen: Chosen) -> tuple[Message | None, Chosen]:
        """One answer: from a shorter or repaired history, or by another model, if need be."""
        tried = {chosen[0].id}
        is_compacted = is_repaired = False
        if self._compaction.is_due(self._calling.tokens(chosen[0]), chosen[0]):
            is_compacted = await self._compact(chosen[0], "limit")
        while True:
            self._check_count()
            try:
                return await self._calling.ask(*chosen), chosen
            except ContextOverflowError:
                if is_compacted or not await self._compact(chosen[0], "overflow"):
                    raise
                is_compacted = True
            except InvalidRequestError as error:
                if is_repaired or not self._repair(chosen[0], error):
                    raise
                is_repaired = True
            except _FALLS_BACK as error:
                self._setup.availability.failed(chosen[0].id, error)
                chosen = self._fall_back(chosen[0], error, tried)

    async def _run_tools(self, answer: Message) -> bool:
        """Run the calls of an answer, and store a result for each; whether to ask again."""
        toolbox = self._setup.toolbox
        calls = calls_of(answer)
        if not may_run(answer):
            return False
        if toolbox is None:
            await self._calling.keep(self._calling.results(calls, _NO_TOOLS, OutcomeStatus.ERROR))
            return True
        answers: dict[str | None, Message] = {}
        called: dict[str | None, Event | None] = {}
        after = self._calling.parent

        def started(call: ToolUseBlock) -> None:
            self._tell(ToolStarted(turn_id=self.id, call=call))
            effects = next(t.side_effects for t in toolbox.tools if t.name == call.name)
            called[call.id] = self._trace.emit(tool_called(call, effects), parent=after)

        def answered(message: Message) -> None:
            own = message.metadata.parent_tool_use_id
            answers[own] = message
            self._tool_count += 1
            cause = called.get(own) or after
            self._calling.parent = self._trace.emit(
                tool_ended(message), parent=cause, actor=Actor.TOOL
            )

        turn = TurnRef(session_id=self._conversation.id, turn_id=self.id)
        try:
            await toolbox.run(calls, turn, started, answered)
        finally:
            aborted = self._calling.results(calls, ABORTED, OutcomeStatus.ABORTED)
            await self._calling.keep(
                [answers.get(call.id, rest) for call, rest in zip(calls, aborted, strict=True)]
            )
        return True

    # When something is in the way

    async def _compact(self, served: Served, trigger: Literal["limit", "overflow"]) -> bool:
        count = await self._compaction.run(served, trigger)
        if count:
            full = "full" if trigger == "overflow" else "nearly full"
            text = f"the window is {full}: {count} messages were summed up"
            self._tell(Warned(turn_id=self.id, code="compacted", text=text))
        return count > 0

    def _repair(self, served: Served, error: ProviderError) -> bool:
        repair = self._told.repairs.add(served, error)
        if repair is not None:
            text = f"{served.adapter.name} did not take the history: {repair.text}"
            self._tell(Warned(turn_id=self.id, code="repaired", text=text))
            repaired = events.TurnHistoryRepaired(model=served.id, repairs=(repair.name,))
            self._trace.emit(repaired, parent=self._calling.parent)
        return repair is not None

    def _fall_back(self, served: Served, error: ProviderError, tried: set[str]) -> Chosen:
        """The next model that steps in for one that is down; the error if there is none."""
        setup = self._setup
        facts = facts_of(self._conversation.messages, setup.tools, setup.now())
        named = (*setup.fallbacks.get(served.id, ()), *setup.fallbacks.get("*", ()))
        for name in named:
            model = setup.models.resolve(name)
            if model in tried or setup.router.check(model, facts) is not None:
                continue
            tried.add(model)
            record = RoutingDecisionRecord(
                mode=RoutingMode.RULE,
                chosen_model=model,
                reason=f"steps in for {served.id}, which is down ({type(error).__name__})",
                rule_name="fallback",
                alternatives_considered=(served.id,),
            )
            self._told.record = record
            self._tell(Warned(turn_id=self.id, code="fallback", text=record.reason))
            self._tell(Routed(turn_id=self.id, record=record))
            return setup.models.served(model), record
        raise error

    def _check_count(self) -> None:
        if self._calling.count >= self._setup.max_calls:
            raise TurnLimitError(f"the model was asked {self._calling.count} times in one turn")

    async def _today_usd(self) -> Decimal:
        has_rules = self._setup.has_rules
        return (await self._setup.spending.spent()).day_usd if has_rules else Decimal(0)

    def _completed(self) -> events.TurnCompleted:
        answer = self._answer
        usage = None if answer is None else answer.metadata.usage
        reason = None if answer is None else answer.metadata.stop_reason
        return events.TurnCompleted(
            stop_reason=reason or StopReason.END_TURN,
            llm_call_count=self._calling.count,
            tool_call_count=self._tool_count,
            total_input_tokens=0 if usage is None else usage.prompt_tokens,
            total_output_tokens=0 if usage is None else usage.output_tokens,
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
