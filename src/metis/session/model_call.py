"""One request to a model and its response, stored however the call ends."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any
from urllib.parse import urlsplit

from msgspec.structs import replace

from metis.adapters.adapter import Adapter
from metis.canonical.blocks import ToolUseBlock
from metis.canonical.errors import NetworkError, ProviderError
from metis.canonical.ids import new_ulid
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageStatus, OutcomeStatus, RoutingDecisionRecord
from metis.events import Actor, Event
from metis.events.turn_events import LlmCallStarted
from metis.projection.loss import Loss
from metis.session.conversation import Conversation
from metis.session.events import (
    CallFailed,
    Lost,
    Stored,
    TurnReporter,
    llm_call_completed,
    llm_call_failed,
)
from metis.session.models import ResolvedModel
from metis.session.options import BudgetGuard, Setup, request_options
from metis.session.response import (
    ABORTED,
    NOT_RUN,
    PendingCall,
    can_run_calls,
    complete_response,
    error_result,
    text_only,
    tool_calls_of,
    unanswered_calls,
    with_continue_prompt,
)
from metis.session.state import SessionState
from metis.streaming import MessageComplete, StreamError, ToolUseInputDelta, events
from metis.transport.retry import provider_error
from metis.wire.call import AdapterOptions, RequestContext, WireRequest
from metis.wire.codec import StreamDecoder

KEY = "prompt_cache_key"
_KNOWN_AT = {"openai": "openai_chat", "openai-responses": "openai_responses"}
"""The hosts that take such a key, and the protocols in which they do."""

CONTROL = "cache_control"
_EPHEMERAL = {"type": "ephemeral"}
_ASKED_FOR_AT = {"anthropic": "anthropic"}
"""The hosts that cache a request up to its end if asked to, at their own address only."""


def with_cache_key(
    options: AdapterOptions, adapter: Adapter, session_id: str, *, expects_more: bool = False
) -> AdapterOptions:
    """The same options, with the session as the key of the cache where a host knows one.

    Where a cache has to be asked for it is, if the conversation goes on: to write one costs more
    than to do without, and who asks once never reads it.
    """
    protocol = _KNOWN_AT.get(adapter.name)
    if protocol is not None:
        return _with(options, protocol, KEY, session_id)
    protocol = _ASKED_FOR_AT.get(adapter.name)
    if protocol is None or not expects_more or not _is_at_home(adapter):
        return options
    if not adapter.capabilities(options.model or "").supports_prompt_caching:
        return options
    return _with(options, protocol, CONTROL, _EPHEMERAL)


def _is_at_home(adapter: Adapter) -> bool:
    """Whether the provider itself is asked, and nobody who only speaks its protocol (T175)."""
    profile = adapter.profile
    return profile.usual_host in ("", urlsplit(profile.base_url).hostname)


def _with(options: AdapterOptions, protocol: str, key: str, value: Any) -> AdapterOptions:
    own: Mapping[str, Any] = options.native.get(protocol, {})
    if key in own:
        return options
    return replace(options, native={**options.native, protocol: {**own, key: value}})


class ModelCaller:
    """The calls of one turn."""

    def __init__(
        self, setup: Setup, conversation: Conversation, told: SessionState, telling: TurnReporter
    ) -> None:
        self.call_count = 0
        """How often a model was asked."""
        self.input_tokens = 0
        """What all of these calls took, from caches or not."""
        self.output_tokens = 0
        self._setup = setup
        self._conversation = conversation
        self._told = told
        self._purse = BudgetGuard(setup, conversation, told, telling.trace)
        self._turn_id = telling.turn_id
        self._telling = telling
        self._tell = telling.send
        self._trace = telling.trace
        self.parent_event: Event | None = None
        """What the next event comes of."""
        self._started: Event | None = None
        self._asked: PendingCall | None = None
        self._reader: StreamDecoder | None = None
        """The answer that is coming in; it must be stored, whatever happens."""
        self._broken: Message | None = None
        """What came of an answer whose stream ended with an error."""
        self._left: Message | None = None
        """What came of an answer that will not be finished, and is not stored yet."""
        self._retry_count = 0
        self._tried = 0
        self._first_ms: int | None = None

    async def call(self, served: ResolvedModel, record: RoutingDecisionRecord) -> Message | None:
        """Ask a model and store what it says; None if it says nothing.

        Raises:
            ProviderError: there is no answer, or it broke off; what came of it is stored.
        """
        await self.check_budget()
        tokens = self.estimate_tokens(served)
        self.call_count += 1
        request = await self._request(served)
        context = self._context(served)
        self._asked = asked = PendingCall(
            model=served,
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
            parent=self.parent_event,
        )
        try:
            message = await self._whole(served, request, context)
        except BaseException as error:
            self._break_off(asked, error)
            if isinstance(error, Exception):
                await self._keep_left()
            raise
        return await self._store_answer(message, asked)

    def estimate_tokens(self, served: ResolvedModel) -> int:
        """About how many tokens the next question takes."""
        return self._told.estimate_tokens(self._conversation.messages, self._setup.tools, served)

    async def store_messages(self, messages: Sequence[Message]) -> Message:
        """Store messages of the turn and tell each; gives the first."""
        stored = await self._conversation.append(*messages)
        for message in stored:
            self._tell(Stored(turn_id=self._turn_id, message=message))
        return stored[0]

    async def close(self) -> None:
        """Leave a whole conversation behind: what has come is kept, every call has a result."""
        await self._keep_left()
        unanswered = unanswered_calls(self._conversation.messages)
        if unanswered:
            await self.store_messages(
                self.error_results(unanswered, ABORTED, OutcomeStatus.ABORTED)
            )

    def _break_off(self, asked: PendingCall, error: BaseException) -> None:
        """Tell that an answer will not be finished, and hold on to what has come of it."""
        reader, self._reader, self._asked = self._reader, None, None
        if reader is not None:
            found = self._broken or reader.message
            is_cancelled = isinstance(error, asyncio.CancelledError)
            status = MessageStatus.CANCELLED if is_cancelled else MessageStatus.ERROR
            usage = found.metadata.usage
            left = self._settled(found, asked, status)
            if self._setup.partial == "text":
                left = text_only(left)
            if left.content or (usage is not None and usage.prompt_tokens + usage.output_tokens):
                self._left = left
                self._count(left)
        ended = llm_call_failed(asked, error, retries=self._retry_count, partial=self._left)
        self.parent_event = self._trace.emit(ended, parent=self._started) or self.parent_event

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
        await self.store_messages(
            [left, *self.error_results(tool_calls_of(left), words, OutcomeStatus.ABORTED)]
        )

    def error_results(
        self, calls: Sequence[ToolUseBlock], text: str, status: OutcomeStatus
    ) -> list[Message]:
        """A result for each of some calls that are not run."""
        at, session_id = self._setup.now(), self._conversation.id
        return [error_result(call, session_id, text, status, at) for call in calls]

    async def _whole(
        self, served: ResolvedModel, request: WireRequest, context: RequestContext
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
        self, served: ResolvedModel, request: WireRequest, context: RequestContext
    ) -> Message:
        """The answer of a model that does not stream, told as if it did."""
        transport = self._setup.transport
        message = await transport.complete(served.adapter, request, context, self._tell_failure)
        for event in events.events_of_message(message):
            self._tell(event)
        return message

    async def _stream(
        self, served: ResolvedModel, request: WireRequest, context: RequestContext
    ) -> MessageComplete | StreamError | None:
        """Tell the answer as it comes, and give its end."""
        end: MessageComplete | StreamError | None = None
        shows_input = served.adapter.capabilities(served.id).supports_streaming_tool_calls
        stream = self._setup.transport.stream(
            served.adapter,
            request,
            context,
            self._tell_failure,
            self._begin,
            previous_attempts=self._tried,
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

    async def _store_answer(self, message: Message, asked: PendingCall) -> Message | None:
        answer = self._settled(message, asked, MessageStatus.COMPLETE)
        self._count(answer)
        self._tried = 0  # the next question has all its attempts again (T192)
        self._setup.outages.record_success(asked.model.id, self._trace)
        self._asked = self._reader = None
        told = llm_call_completed(answer, first_ms=self._first_ms, parent=self._setup.parent)
        self.parent_event = self._trace.emit(told, parent=self._started, actor=Actor.AGENT)
        if not answer.content:
            # A blank turn would be refused by every provider from now on (T166).
            await self._keep_usage(answer)
            text = f"{asked.model.id} ended its turn without a word"
            self._telling.warn("empty_answer", text)
            return None
        kept = [answer]
        if not can_run_calls(answer):
            kept += self.error_results(tool_calls_of(answer), NOT_RUN, OutcomeStatus.ERROR)
        return await self.store_messages(kept)

    async def _keep_usage(self, answer: Message) -> None:
        metadata = answer.metadata
        if metadata.usage is not None:
            await self._conversation.record_usage(metadata.model or "", metadata.usage)

    def _settled(self, message: Message, asked: PendingCall, status: MessageStatus) -> Message:
        models = self._setup.models
        message = self._conversation.with_unique_call_ids(message)
        return complete_response(message, asked, models, ended_s=time.monotonic(), status=status)

    def _count(self, answer: Message) -> None:
        usage = answer.metadata.usage
        if usage is not None:
            self.input_tokens += usage.prompt_tokens
            self.output_tokens += usage.output_tokens

    def _since(self) -> int:
        """The milliseconds since the model was asked."""
        asked = self._asked
        return 0 if asked is None else round((time.monotonic() - asked.started_s) * 1000)

    async def _request(self, served: ResolvedModel) -> WireRequest:
        can_stream = served.adapter.capabilities(served.id).supports_streaming
        options = request_options(self._setup, self._conversation, served.id)
        options = replace(options, model=served.id, stream=can_stream or None)
        options = with_cache_key(
            options, served.adapter, self._conversation.id, expects_more=self._goes_on()
        )
        messages: Sequence[Message] = self._conversation.messages
        if self._conversation.facts.has_files:
            messages = await self._told.files.embed(messages, self._setup.workspace)
        messages = with_continue_prompt(self._told.repairs.apply(messages, served))
        request = served.adapter.to_wire(messages, self._setup.tools, options)
        self._tell_losses(served, request.losses)
        return request

    def _goes_on(self) -> bool:
        """Whether more requests are to be expected: tools are offered, or this is not the first."""
        messages = self._conversation.messages
        return bool(self._setup.tools) or any(
            message.role is Role.ASSISTANT for message in reversed(messages)
        )

    def _tell_losses(self, served: ResolvedModel, found: Sequence[Loss]) -> None:
        losses = self._told.new_losses(served.id, found)
        if losses:
            self._tell(Lost(turn_id=self._turn_id, model=served.id, losses=losses))

    def _context(self, served: ResolvedModel) -> RequestContext:
        return RequestContext(
            session_id=self._conversation.id,
            model=served.id,
            provider=served.adapter.name,
            created_at=self._setup.now(),
            tools=tuple(tool.name for tool in self._setup.tools),
            output=self._setup.options.output,
            on_loss=lambda loss: self._tell_losses(served, [loss]),
        )

    async def check_budget(self) -> None:
        """Warn of a budget that is nearly spent; a spent one ends the turn before the call."""
        for text in await self._purse.check():
            self._telling.warn("budget", text)

    def _begin(self, reader: StreamDecoder) -> None:
        self._reader = reader

    async def _tell_failure(self, error: ProviderError, attempt: int, delay: float | None) -> None:
        asked = self._asked
        self._tried = attempt
        if delay is not None:
            self._retry_count += 1
        self._tell(
            CallFailed(
                turn_id=self._turn_id,
                model="" if asked is None else asked.model.id,
                error_class=type(error).__name__,
                attempt=attempt,
                next_in_s=delay,
            )
        )


def _error(end: StreamError | None, served: ResolvedModel) -> ProviderError:
    """Why there is no whole answer, once part of it was shown."""
    if end is None:
        return NetworkError("the answer did not end", provider=served.adapter.name)
    return provider_error(end, served.adapter.name)
