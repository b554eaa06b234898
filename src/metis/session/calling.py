"""Calling: one question to a model and its answer, kept however it ends."""

import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from decimal import Decimal

from msgspec.structs import replace

from metis.canonical.errors import NetworkError, ProviderError
from metis.canonical.message import Message
from metis.canonical.metadata import MessageStatus, OutcomeStatus, RoutingDecisionRecord, Usage
from metis.session.answer import ABORTED, NOT_RUN, Asked, calls_of, failed_result, may_run, settle
from metis.session.conversation import Conversation
from metis.session.facts import estimate
from metis.session.models import Served
from metis.session.notices import CallFailed, Lost, Stored, TurnEvent, Warned
from metis.session.setup import Setup
from metis.session.told import Told
from metis.streaming import MessageComplete, StreamError
from metis.transport.failures import error_of
from metis.wire.call import UNPRICED, RequestContext, WireRequest
from metis.wire.codec import StreamReader


class Calling:
    """The calls of one turn."""

    def __init__(
        self,
        setup: Setup,
        conversation: Conversation,
        told: Told,
        *,
        turn_id: str,
        tell: Callable[[TurnEvent], None],
    ) -> None:
        self.count = 0
        """How often a model was asked."""
        self._setup = setup
        self._conversation = conversation
        self._told = told
        self._turn_id = turn_id
        self._tell = tell
        self._asked: Asked | None = None
        self._reader: StreamReader | None = None
        """The answer that is coming in; it must be stored, whatever happens."""

    async def ask(self, served: Served, record: RoutingDecisionRecord) -> Message | None:
        """Ask a model and store what it says; None if it says nothing.

        Raises:
            ProviderError: there is no answer, or it broke off; what came of it is stored.
        """
        tokens = self.tokens(served)
        await self._check_budget(served, tokens)
        self.count += 1
        request = self._request(served)
        context = self._context(served)
        self._asked = Asked(
            served=served,
            record=record,
            input_tokens=tokens,
            started_at=context.created_at,
            started_s=time.monotonic(),
        )
        end = await self._stream(served, request, context)
        if isinstance(end, MessageComplete):
            return await self._store_answer(end.message)
        await self.keep_partial(MessageStatus.ERROR, None if end is None else end.message)
        raise _broken(end, served)

    def tokens(self, served: Served) -> int:
        """About how many tokens the next question takes."""
        return estimate(self._conversation.messages, self._setup.tools, served)

    async def keep(self, messages: Sequence[Message]) -> Message:
        """Store messages of the turn and tell each; gives the first."""
        stored = await self._conversation.keep(*messages)
        for message in stored:
            self._tell(Stored(turn_id=self._turn_id, message=message))
        return stored[0]

    async def keep_partial(self, status: MessageStatus, message: Message | None = None) -> None:
        """Store what has come of an answer that will not be finished, with aborted results."""
        asked, reader = self._asked, self._reader
        self._asked = self._reader = None
        if asked is None or reader is None:
            return
        partial = self._settled(message or reader.message, asked, status)
        if not partial.content:
            if message is not None and message.metadata.usage is not None:
                await self._keep_usage(partial)
            return
        words = ABORTED if status is MessageStatus.CANCELLED else NOT_RUN
        await self.keep([partial, *self.results(partial, words, OutcomeStatus.ABORTED)])

    def results(self, answer: Message, text: str, status: OutcomeStatus) -> list[Message]:
        """A result for each call of an answer that is not run."""
        at, session_id = self._setup.now(), self._conversation.id
        return [failed_result(call, session_id, text, status, at) for call in calls_of(answer)]

    async def _stream(
        self, served: Served, request: WireRequest, context: RequestContext
    ) -> MessageComplete | StreamError | None:
        """Tell the answer as it comes, and give its end."""
        end: MessageComplete | StreamError | None = None
        stream = self._setup.transport.stream(
            served.adapter, request, context, self._tell_failure, self._begin
        )
        async with aclosing(stream) as events:
            async for event in events:
                if isinstance(event, MessageComplete | StreamError):
                    end = event
                self._tell(event)
        return end

    async def _store_answer(self, message: Message) -> Message | None:
        asked = self._asked
        if asked is None:
            raise AssertionError("an answer without a question")
        answer = self._settled(message, asked, MessageStatus.COMPLETE)
        self._setup.availability.succeeded(asked.served.id)
        self._asked = self._reader = None
        if not answer.content:
            # A blank turn would be refused by every provider from now on (T166).
            await self._keep_usage(answer)
            text = f"{asked.served.id} ended its turn without a word"
            self._tell(Warned(turn_id=self._turn_id, code="empty_answer", text=text))
            return None
        kept = [answer]
        if not may_run(answer):
            kept += self.results(answer, NOT_RUN, OutcomeStatus.ERROR)
        return await self.keep(kept)

    async def _keep_usage(self, answer: Message) -> None:
        metadata = answer.metadata
        if metadata.usage is not None:
            await self._conversation.note_usage(metadata.model or "", metadata.usage)

    def _settled(self, message: Message, asked: Asked, status: MessageStatus) -> Message:
        models = self._setup.models
        return settle(message, asked, models, ended_s=time.monotonic(), status=status)

    def _request(self, served: Served) -> WireRequest:
        options = replace(self._setup.options, model=served.id, stream=True)
        messages = self._told.repairs.apply(self._conversation.messages, served)
        request = served.adapter.to_wire(messages, self._setup.tools, options)
        losses = self._told.new_losses(served.id, request.losses)
        if losses:
            self._tell(Lost(turn_id=self._turn_id, model=served.id, losses=losses))
        return request

    def _context(self, served: Served) -> RequestContext:
        return RequestContext(
            session_id=self._conversation.id,
            model=served.id,
            provider=served.adapter.name,
            created_at=self._setup.now(),
            tools=tuple(tool.name for tool in self._setup.tools),
        )

    async def _check_budget(self, served: Served, tokens: int) -> None:
        """Warn of a budget that is nearly spent; a spent one ends the turn before the call."""
        setup, budget = self._setup, self._setup.budget
        if budget.session_usd is None and budget.day_usd is None:
            return
        today = Decimal(0) if budget.day_usd is None else await setup.spending.today_usd()
        prompt = Usage(
            input_tokens=tokens,
            output_tokens=0,
            cost_usd=Decimal(0),
            pricing_version=UNPRICED,
            latency_ms=0,
        )
        next_usd = setup.models.price(prompt, served, setup.now()).cost_usd
        for text in budget.check(self._conversation.cost().total_usd, today, next_usd):
            if self._told.is_new(text):
                self._tell(Warned(turn_id=self._turn_id, code="budget", text=text))

    def _begin(self, reader: StreamReader) -> None:
        self._reader = reader

    async def _tell_failure(self, error: ProviderError, attempt: int, delay: float | None) -> None:
        asked = self._asked
        self._tell(
            CallFailed(
                turn_id=self._turn_id,
                model="" if asked is None else asked.served.id,
                error_class=type(error).__name__,
                attempt=attempt,
                next_in_s=delay,
            )
        )


def _broken(end: StreamError | None, served: Served) -> ProviderError:
    """Why there is no whole answer, once part of it was shown."""
    if end is None:
        return NetworkError("the answer did not end", provider=served.adapter.name)
    return error_of(end, served.adapter.name)
