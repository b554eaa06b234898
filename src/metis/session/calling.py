"""Calling: one question to a model and its answer, kept however it ends."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import aclosing

from msgspec.structs import replace

from metis.canonical.blocks import ToolUseBlock
from metis.canonical.errors import NetworkError, ProviderError
from metis.canonical.ids import new_ulid
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageStatus, OutcomeStatus, RoutingDecisionRecord
from metis.events import Actor, Event
from metis.events.work import LlmCallStarted
from metis.projection.loss import Loss
from metis.session.affinity import with_affinity
from metis.session.answer import (
    ABORTED,
    NOT_RUN,
    Asked,
    calls_of,
    continued,
    failed_result,
    may_run,
    open_calls,
    settle,
    words_only,
)
from metis.session.conversation import Conversation
from metis.session.inherited import options_of
from metis.session.models import Served
from metis.session.notices import CallFailed, Lost, Stored
from metis.session.purse import Purse
from metis.session.setup import Setup
from metis.session.telling import Telling
from metis.session.told import Told
from metis.session.trace import completed, failed
from metis.streaming import MessageComplete, StreamError, ToolUseInputDelta, whole
from metis.transport.failures import error_of
from metis.wire.call import RequestContext, WireRequest
from metis.wire.codec import StreamReader


class Calling:
    """The calls of one turn."""

    def __init__(
        self, setup: Setup, conversation: Conversation, told: Told, telling: Telling
    ) -> None:
        self.count = 0
        """How often a model was asked."""
        self.input_tokens = 0
        """What all of these calls took, from caches or not."""
        self.output_tokens = 0
        self._setup = setup
        self._conversation = conversation
        self._told = told
        self._purse = Purse(setup, conversation, told, telling.trace)
        self._turn_id = telling.turn_id
        self._telling = telling
        self._tell = telling.tell
        self._trace = telling.trace
        self.parent: Event | None = None
        """What the next event comes of."""
        self._started: Event | None = None
        self._asked: Asked | None = None
        self._reader: StreamReader | None = None
        """The answer that is coming in; it must be stored, whatever happens."""
        self._broken: Message | None = None
        """What came of an answer whose stream ended with an error."""
        self._left: Message | None = None
        """What came of an answer that will not be finished, and is not stored yet."""
        self._retry_count = 0
        self._tried = 0
        self._first_ms: int | None = None

    async def ask(self, served: Served, record: RoutingDecisionRecord) -> Message | None:
        """Ask a model and store what it says; None if it says nothing.

        Raises:
            ProviderError: there is no answer, or it broke off; what came of it is stored.
        """
        await self.check_budget()
        tokens = self.tokens(served)
        self.count += 1
        request = await self._request(served)
        context = self._context(served)
        self._asked = asked = Asked(
            served=served,
            record=record,
            input_tokens=tokens,
            started_at=context.created_at,
            started_s=time.monotonic(),
        )
        self._broken, self._retry_count, self._first_ms = None, 0, None
        self._started = self._trace.emit(
            LlmCallStarted(
                model=served.id,
                provider=served.adapter.name,
                request_id=new_ulid(),
                estimated_input_tokens=tokens,
                is_worker=self._setup.parent is not None,
            ),
            parent=self.parent,
        )
        try:
            message = await self._whole(served, request, context)
        except BaseException as error:
            self._break_off(asked, error)
            if isinstance(error, Exception):
                await self._keep_left()
            raise
        return await self._store_answer(message, asked)

    def tokens(self, served: Served) -> int:
        """About how many tokens the next question takes."""
        return self._told.tokens(self._conversation.messages, self._setup.tools, served)

    async def keep(self, messages: Sequence[Message]) -> Message:
        """Store messages of the turn and tell each; gives the first."""
        stored = await self._conversation.keep(*messages)
        for message in stored:
            self._tell(Stored(turn_id=self._turn_id, message=message))
        return stored[0]

    async def close(self) -> None:
        """Leave a whole conversation behind: what has come is kept, every call has a result."""
        await self._keep_left()
        unanswered = open_calls(self._conversation.messages)
        if unanswered:
            await self.keep(self.results(unanswered, ABORTED, OutcomeStatus.ABORTED))

    def _break_off(self, asked: Asked, error: BaseException) -> None:
        """Tell that an answer will not be finished, and hold on to what has come of it."""
        reader, self._reader, self._asked = self._reader, None, None
        if reader is not None:
            found = self._broken or reader.message
            is_cancelled = isinstance(error, asyncio.CancelledError)
            status = MessageStatus.CANCELLED if is_cancelled else MessageStatus.ERROR
            usage = found.metadata.usage
            left = self._settled(found, asked, status)
            if self._setup.partial == "text":
                left = words_only(left)
            if left.content or (usage is not None and usage.prompt_tokens + usage.output_tokens):
                self._left = left
                self._count(left)
        ended = failed(asked, error, retries=self._retry_count, partial=self._left)
        self.parent = self._trace.emit(ended, parent=self._started) or self.parent

    async def _keep_left(self) -> None:
        """Store what has come of an answer that will not be finished, with aborted results."""
        left, self._left = self._left, None
        if left is None:
            return
        if not left.content:
            await self._keep_usage(left)
            return
        is_cancelled = left.metadata.status is MessageStatus.CANCELLED
        words = ABORTED if is_cancelled else NOT_RUN
        await self.keep([left, *self.results(calls_of(left), words, OutcomeStatus.ABORTED)])

    def results(
        self, calls: Sequence[ToolUseBlock], text: str, status: OutcomeStatus
    ) -> list[Message]:
        """A result for each of some calls that are not run."""
        at, session_id = self._setup.now(), self._conversation.id
        return [failed_result(call, session_id, text, status, at) for call in calls]

    async def _whole(
        self, served: Served, request: WireRequest, context: RequestContext
    ) -> Message:
        """The whole answer, or the error that says why there is none."""
        if not served.adapter.capabilities(served.id).supports_streaming:
            return await self._at_once(served, request, context)
        end = await self._stream(served, request, context)
        if isinstance(end, MessageComplete):
            return end.message
        self._broken = None if end is None else end.message
        raise _error(end, served)

    async def _at_once(
        self, served: Served, request: WireRequest, context: RequestContext
    ) -> Message:
        """The answer of a model that does not stream, told as if it did."""
        transport = self._setup.transport
        message = await transport.complete(served.adapter, request, context, self._tell_failure)
        for event in whole.events_of(message):
            self._tell(event)
        return message

    async def _stream(
        self, served: Served, request: WireRequest, context: RequestContext
    ) -> MessageComplete | StreamError | None:
        """Tell the answer as it comes, and give its end."""
        end: MessageComplete | StreamError | None = None
        shows_input = served.adapter.capabilities(served.id).supports_streaming_tool_calls
        stream = self._setup.transport.stream(
            served.adapter, request, context, self._tell_failure, self._begin, tried=self._tried
        )
        async with aclosing(stream) as events:
            async for event in events:
                if self._first_ms is None:
                    self._first_ms = self._since()
                if isinstance(event, MessageComplete | StreamError):
                    end = event
                if shows_input or type(event) is not ToolUseInputDelta:
                    self._tell(event)
        return end

    async def _store_answer(self, message: Message, asked: Asked) -> Message | None:
        answer = self._settled(message, asked, MessageStatus.COMPLETE)
        self._count(answer)
        self._tried = 0  # the next question has all its attempts again (T192)
        self._setup.outages.succeeded(asked.served.id, self._trace)
        self._asked = self._reader = None
        told = completed(answer, first_ms=self._first_ms, parent=self._setup.parent)
        self.parent = self._trace.emit(told, parent=self._started, actor=Actor.AGENT)
        if not answer.content:
            # A blank turn would be refused by every provider from now on (T166).
            await self._keep_usage(answer)
            text = f"{asked.served.id} ended its turn without a word"
            self._telling.warn("empty_answer", text)
            return None
        kept = [answer]
        if not may_run(answer):
            kept += self.results(calls_of(answer), NOT_RUN, OutcomeStatus.ERROR)
        return await self.keep(kept)

    async def _keep_usage(self, answer: Message) -> None:
        metadata = answer.metadata
        if metadata.usage is not None:
            await self._conversation.note_usage(metadata.model or "", metadata.usage)

    def _settled(self, message: Message, asked: Asked, status: MessageStatus) -> Message:
        models = self._setup.models
        message = self._conversation.with_fresh_calls(message)
        return settle(message, asked, models, ended_s=time.monotonic(), status=status)

    def _count(self, answer: Message) -> None:
        usage = answer.metadata.usage
        if usage is not None:
            self.input_tokens += usage.prompt_tokens
            self.output_tokens += usage.output_tokens

    def _since(self) -> int:
        """The milliseconds since the model was asked."""
        asked = self._asked
        return 0 if asked is None else round((time.monotonic() - asked.started_s) * 1000)

    async def _request(self, served: Served) -> WireRequest:
        can_stream = served.adapter.capabilities(served.id).supports_streaming
        options = options_of(self._setup, self._conversation, served.id)
        options = replace(options, model=served.id, stream=can_stream or None)
        options = with_affinity(
            options, served.adapter, self._conversation.id, goes_on=self._goes_on()
        )
        messages: Sequence[Message] = self._conversation.messages
        if self._conversation.seen.has_files:
            messages = await self._told.files.shown(messages, self._setup.workspace)
        messages = continued(self._told.repairs.apply(messages, served))
        request = served.adapter.to_wire(messages, self._setup.tools, options)
        self._tell_losses(served, request.losses)
        return request

    def _goes_on(self) -> bool:
        """Whether more requests are to be expected: tools are offered, or this is not the first."""
        messages = self._conversation.messages
        return bool(self._setup.tools) or any(
            message.role is Role.ASSISTANT for message in reversed(messages)
        )

    def _tell_losses(self, served: Served, found: Sequence[Loss]) -> None:
        losses = self._told.new_losses(served.id, found)
        if losses:
            self._tell(Lost(turn_id=self._turn_id, model=served.id, losses=losses))

    def _context(self, served: Served) -> RequestContext:
        return RequestContext(
            session_id=self._conversation.id,
            model=served.id,
            provider=served.adapter.name,
            created_at=self._setup.now(),
            tools=tuple(tool.name for tool in self._setup.tools),
            output=self._setup.options.output,
            tell=lambda loss: self._tell_losses(served, [loss]),
        )

    async def check_budget(self) -> None:
        """Warn of a budget that is nearly spent; a spent one ends the turn before the call."""
        for text in await self._purse.check():
            self._telling.warn("budget", text)

    def _begin(self, reader: StreamReader) -> None:
        self._reader = reader

    async def _tell_failure(self, error: ProviderError, attempt: int, delay: float | None) -> None:
        asked = self._asked
        self._tried = attempt
        if delay is not None:
            self._retry_count += 1
        self._tell(
            CallFailed(
                turn_id=self._turn_id,
                model="" if asked is None else asked.served.id,
                error_class=type(error).__name__,
                attempt=attempt,
                next_in_s=delay,
            )
        )


def _error(end: StreamError | None, served: Served) -> ProviderError:
    """Why there is no whole answer, once part of it was shown."""
    if end is None:
        return NetworkError("the answer did not end", provider=served.adapter.name)
    return error_of(end, served.adapter.name)
