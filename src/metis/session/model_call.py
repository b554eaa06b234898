"""The calls of a turn: to models, and to the tools that their responses call.

Everything that a call returns is stored, also if the call fails or is cancelled.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from metis.canonical.blocks import ToolUseBlock
from metis.canonical.errors import (
    NetworkError,
    ProviderError,
    ResponseLimitError,
    StoreSpooledError,
)
from metis.canonical.ids import new_ulid
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageStatus, OutcomeStatus, RoutingDecisionRecord
from metis.canonical.tools import ToolDefinition
from metis.events import Actor, Event
from metis.events.turn_events import LlmCallStarted, ToolConfirmationResolved
from metis.projection.loss import Loss
from metis.session.events import (
    CallFailed,
    Lost,
    Stored,
    ToolStarted,
    TurnReporter,
    confirmation_requested,
    llm_call_completed,
    llm_call_failed,
    tool_called,
    tool_ended,
    tool_input_invalid,
)
from metis.session.models import ResolvedModel
from metis.session.options import request_options
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
from metis.session.state import TurnContext
from metis.streaming import MessageComplete, StreamError, ToolUseInputDelta
from metis.streaming.events import events_of_message
from metis.tools import Answer, Question, Verdict
from metis.transport.retry import provider_error
from metis.wire.call import AdapterOptions, ReceivedBytes, RequestContext, WireRequest
from metis.wire.codec import StreamDecoder


class ModelCaller:
    """Calls models for one turn, and stores their responses."""

    def __init__(self, context: TurnContext) -> None:
        self.call_count = 0
        self.input_tokens = 0
        """The prompt tokens of all calls, cached or not."""
        self.output_tokens = 0
        self.has_shown = False
        """Whether a part of the last response was shown; the call must not be repeated then."""
        self.parent_event: Event | None = None
        """The cause of the next bus event."""
        self._context = context
        self._setup = context.setup
        self._conversation = context.conversation
        self._reporter = context.reporter
        self._started_event: Event | None = None
        self._failed_attempts = 0
        self._partial: tuple[Message, PendingCall] | None = None
        """An incomplete response that is not stored yet."""

    async def call(self, model: ResolvedModel, record: RoutingDecisionRecord) -> Message | None:
        """Call a model and store its response; return None if the response is empty.

        Raises:
            BudgetExceededError: a limit is reached; no call was made.
            ProviderError: the call failed or was interrupted; the partial response is stored.
        """
        await self._context.check_budget()
        input_tokens = self._context.estimate_tokens(model)
        self.call_count += 1
        self.has_shown = False
        request = await self._build_request(model)
        call = PendingCall(
            model=model,
            record=record,
            input_tokens=input_tokens,
            started_at=self._setup.now(),
            started_s=time.monotonic(),
            request=request,
            received=ReceivedBytes() if self._setup.options.record_bytes else None,
        )
        self._started_event = self._reporter.trace.emit(
            lambda: LlmCallStarted(
                model=model.id,
                provider=model.provider,
                request_id=new_ulid(),
                estimated_input_tokens=input_tokens,
                is_worker=self._setup.parent is not None,
            ),
            parent=self.parent_event,
        )
        try:
            response = await self._receive(call, request)
        except BaseException as error:
            self._abandon(call, error)
            # A cancelled turn stores the partial response in `close`, which cannot be cancelled.
            if isinstance(error, Exception):
                await self._store_partial()
            raise
        return await self._store_response(response, call)

    async def store_messages(self, messages: Sequence[Message]) -> Message:
        """Store messages of the turn and report each; return the first."""
        stored = await self._conversation.append(*messages)
        for message in stored:
            self._reporter.send(Stored(turn_id=self._reporter.turn_id, message=message))
        return stored[0]

    def error_results(
        self, calls: Sequence[ToolUseBlock], text: str, status: OutcomeStatus
    ) -> list[Message]:
        """Return an error result for each of the calls, which are not run."""
        now, session_id = self._setup.now(), self._conversation.id
        return [error_result(call, session_id, text, status, now) for call in calls]

    async def close(self) -> None:
        """Store a partial response, and a result for every call that has none."""
        await self._store_partial()
        unanswered = unanswered_calls(self._conversation.messages)
        if unanswered:
            results = self.error_results(unanswered, ABORTED, OutcomeStatus.ABORTED)
            await self.store_messages(results)

    # Sending

    async def _build_request(self, model: ResolvedModel) -> WireRequest:
        conversation, state = self._conversation, self._context.state
        options = replace(
            request_options(self._setup, conversation, model.id),
            model=model.id,
            stream=model.capabilities.supports_streaming or None,
        )
        options = with_cache_key(options, model, conversation.id, expects_more=self._expects_more())
        messages: Sequence[Message] = conversation.messages
        if conversation.facts.has_files:  # reading files takes a thread, which few turns need
            messages = await state.files.embed(messages, self._setup.workspace)
        messages = with_continue_prompt(state.repairs.apply(messages, model))
        request = model.adapter.to_wire(messages, self._setup.tools, options)
        self._report_losses(model, request.losses)
        return request

    def _expects_more(self) -> bool:
        """Return whether more requests will probably follow: there are tools, or responses."""
        messages = self._conversation.messages
        return bool(self._setup.tools) or any(
            message.role is Role.ASSISTANT for message in reversed(messages)
        )

    def _request_context(self, call: PendingCall) -> RequestContext:
        return RequestContext(
            session_id=self._conversation.id,
            model=call.model.id,
            provider=call.model.provider,
            created_at=call.started_at,
            tools=tuple(tool.name for tool in self._setup.tools),
            output=self._setup.request_defaults.output,
            on_loss=lambda loss: self._report_losses(call.model, [loss]),
            received=call.received,
        )

    # Receiving

    async def _receive(self, call: PendingCall, request: WireRequest) -> Message:
        """Return the complete response.

        Raises:
            ProviderError: the response is not complete.
        """
        if not call.model.capabilities.supports_streaming:
            return await self._complete_unstreamed(call, request)
        last = await self._stream(call, request)
        if isinstance(last, MessageComplete):
            return last.message
        provider = call.model.provider
        if last is None:
            raise NetworkError("the response did not end", provider=provider, response_began=True)
        call.partial = last.message
        raise provider_error(last, provider)

    async def _complete_unstreamed(self, call: PendingCall, request: WireRequest) -> Message:
        """Call a model that does not stream; listeners get events as from a stream."""
        on_failure = partial(self._report_failed_attempt, call)
        try:
            message = await self._setup.transport.complete(
                call.model.adapter, request, self._request_context(call), on_failure
            )
        except ResponseLimitError as error:
            call.partial = error.message if isinstance(error.message, Message) else None
            self.has_shown = call.partial is not None
            raise
        for event in events_of_message(message):
            self._reporter.send(event)
        return message

    async def _stream(
        self, call: PendingCall, request: WireRequest
    ) -> MessageComplete | StreamError | None:
        """Send the events of a response to the listener as they arrive; return the last one."""
        last: MessageComplete | StreamError | None = None
        streams_input = call.model.capabilities.supports_streaming_tool_calls

        def use_decoder(decoder: StreamDecoder) -> None:
            call.decoder = decoder

        stream = self._setup.transport.stream(
            call.model.adapter,
            request,
            self._request_context(call),
            partial(self._report_failed_attempt, call),
            use_decoder,
            previous_attempts=self._failed_attempts,
        )
        async with aclosing(stream) as events:
            async for event in events:
                # The time to the first chunk includes failed attempts, because the user waits for
                # them, too.
                if call.first_chunk_ms is None:
                    call.first_chunk_ms = call.elapsed_ms()
                    self.has_shown = True
                if isinstance(event, MessageComplete | StreamError):
                    last = event
                if streams_input or type(event) is not ToolUseInputDelta:
                    self._reporter.send(event)
        return last

    async def _report_failed_attempt(
        self, call: PendingCall, error: ProviderError, attempt: int, delay_s: float | None
    ) -> None:
        self._failed_attempts = attempt
        if delay_s is not None:
            call.retry_count += 1
        self._reporter.send(
            CallFailed(
                turn_id=self._reporter.turn_id,
                model=call.model.id,
                error_class=type(error).__name__,
                attempt=attempt,
                next_in_s=delay_s,
            )
        )

    def _report_losses(self, model: ResolvedModel, losses: Sequence[Loss]) -> None:
        new = self._context.state.new_losses(model.id, losses)
        if new:
            self._reporter.send(Lost(turn_id=self._reporter.turn_id, model=model.id, losses=new))

    # Storing

    async def _store_response(self, message: Message, call: PendingCall) -> Message | None:
        response = self._completed(message, call, MessageStatus.COMPLETE)
        self._add_usage(response)
        self._failed_attempts = 0  # the next request has the full number of attempts (T192)
        self._setup.outages.record_success(call.model.id, self._reporter.trace)
        self.parent_event = self._reporter.trace.emit(
            lambda: llm_call_completed(
                response, first_chunk_ms=call.first_chunk_ms, parent_session_id=self._setup.parent
            ),
            parent=self._started_event,
            actor=Actor.AGENT,
        )
        if not response.content:
            # Providers reject a history with an empty message, so it must not be stored (T166).
            await self._record_usage(response)
            self._reporter.warn("empty_answer", f"{call.model.id} returned an empty response")
            return None
        messages = [response]
        # Calls of a truncated response may have wrong arguments and are not run. Their error
        # results are stored in the same append, so that a crash cannot leave calls without results.
        if not can_run_calls(response):
            calls = tool_calls_of(response)
            messages += self.error_results(calls, NOT_RUN, OutcomeStatus.ERROR)
        try:
            stored = await self.store_messages(messages)
        except StoreSpooledError:
            # The turn ends here and its calls are not run, but providers reject a history in which
            # a call has no result.
            if len(messages) == 1 and (calls := tool_calls_of(response)):
                results = self.error_results(calls, ABORTED, OutcomeStatus.ABORTED)
                with suppress(StoreSpooledError):
                    await self.store_messages(results)
            raise
        self._store_bytes(stored, call)
        return stored

    def _store_bytes(self, response: Message, call: PendingCall) -> None:
        body = call.wire_body(response)
        if body is not None:
            self._setup.store.add_wire_bodies([body])

    def _abandon(self, call: PendingCall, error: BaseException) -> None:
        """Trace a call that failed or was cancelled, and remember its partial response."""
        # A StreamError has the partial message; before any such event the decoder has it.
        received = call.partial or (None if call.decoder is None else call.decoder.message)
        if received is not None:
            is_cancelled = isinstance(error, asyncio.CancelledError)
            status = MessageStatus.CANCELLED if is_cancelled else MessageStatus.ERROR
            usage = received.metadata.usage
            response = self._completed(received, call, status)
            if self._setup.options.partial == "text":
                response = text_only(response)
            # The provider charges for the tokens even if no text arrived.
            has_usage = usage is not None and usage.prompt_tokens + usage.output_tokens > 0
            if response.content or has_usage:
                self._partial = response, call
                self._add_usage(response)
        partial_response = None if self._partial is None else self._partial[0]
        payload = llm_call_failed(call, error, partial=partial_response)
        event = self._reporter.trace.emit(payload, parent=self._started_event)
        self.parent_event = event or self.parent_event

    async def _store_partial(self) -> None:
        """Store the partial response of a call that failed, with error results for its calls."""
        if self._partial is None:
            return
        (response, call), self._partial = self._partial, None
        if not response.content:
            await self._record_usage(response)
            return
        is_cancelled = response.metadata.status is MessageStatus.CANCELLED
        text = ABORTED if is_cancelled else NOT_RUN
        results = self.error_results(tool_calls_of(response), text, OutcomeStatus.ABORTED)
        self._store_bytes(await self.store_messages([response, *results]), call)

    def _completed(self, message: Message, call: PendingCall, status: MessageStatus) -> Message:
        message = self._conversation.with_unique_call_ids(message)
        return complete_response(message, call, self._setup.models, status=status)

    async def _record_usage(self, response: Message) -> None:
        metadata = response.metadata
        if metadata.usage is not None:
            await self._conversation.record_usage(metadata.model or "", metadata.usage)

    def _add_usage(self, response: Message) -> None:
        usage = response.metadata.usage
        if usage is not None:
            self.input_tokens += usage.prompt_tokens
            self.output_tokens += usage.output_tokens


# Tool calls

_NO_TOOLS = "There are no tools here."


class ToolRunner(Struct):
    """Runs the tool calls of the responses of one turn."""

    context: TurnContext
    caller: ModelCaller
    result_count: int = 0

    async def run(self, response: Message) -> None:
        """Run the calls of a response and store a result for each, also if this is cancelled."""
        context, caller, calls = self.context, self.caller, tool_calls_of(response)
        reporter, toolbox = context.reporter, context.setup.toolbox
        if toolbox is None:
            results = caller.error_results(calls, _NO_TOOLS, OutcomeStatus.ERROR)
            await caller.store_messages(results)
            return
        watcher = _CallWatcher(reporter, caller.parent_event)
        try:
            await toolbox.run(calls, context.conversation.id, reporter.turn_id, watcher)
        finally:
            # Stored after a cancellation, too: every provider rejects a history in which a call
            # has no result.
            self.result_count += len(watcher.results)
            caller.parent_event = watcher.last_event
            aborted = caller.error_results(calls, ABORTED, OutcomeStatus.ABORTED)
            await caller.store_messages(
                [
                    watcher.results.get(call.id, missing)
                    for call, missing in zip(calls, aborted, strict=True)
                ]
            )


_DECISIONS: Mapping[Verdict | None, Literal["deny", "timeout"]] = {
    None: "timeout",
    Verdict.DENY: "deny",
}


class _CallWatcher:
    """Reports what the dispatcher does with the calls of one response, and collects results."""

    def __init__(self, reporter: TurnReporter, parent: Event | None) -> None:
        self.results: dict[str, Message] = {}
        self.last_event = parent
        """The cause of the next model call."""
        self._reporter = reporter
        self._trace = reporter.trace
        self._parent = parent
        self._call_events: dict[str, Event | None] = {}
        self._confirmations: dict[str, tuple[str, Event | None]] = {}

    def on_invalid_arguments(self, call: ToolUseBlock, problems: Sequence[str]) -> None:
        """Trace arguments that do not match the schema."""
        self._trace.emit(tool_input_invalid(call, problems), parent=self._parent)

    def on_question(self, question: Question) -> None:
        """Trace the question whether a call may run."""
        request_id = new_ulid()
        event = self._trace.emit(confirmation_requested(question, request_id), parent=self._parent)
        self._confirmations[question.call.id] = request_id, event

    def on_answer(self, question: Question, answer: Answer | None) -> None:
        """Trace the answer; None if there was none in time."""
        request_id, event = self._confirmations[question.call.id]
        verdict = None if answer is None else answer.verdict
        resolved = ToolConfirmationResolved(
            tool_use_id=question.call.id,
            confirmation_request_id=request_id,
            decision=_DECISIONS.get(verdict, "allow"),
            scope="session" if verdict is Verdict.ALLOW_FOR_SESSION else "once",
        )
        self._trace.emit(resolved, parent=event, actor=Actor.USER)

    def on_call_started(self, call: ToolUseBlock, definition: ToolDefinition) -> None:
        """Report a call that starts to run."""
        self._reporter.send(ToolStarted(turn_id=self._reporter.turn_id, call=call))
        payload = tool_called(call, definition.side_effects)
        self._call_events[call.id] = self._trace.emit(payload, parent=self._parent)

    def on_call_ended(self, call: ToolUseBlock, message: Message, latency_ms: int) -> None:
        """Collect and trace the result of a call."""
        self.results[call.id] = message
        cause = self._call_events.get(call.id) or self._parent
        payload = tool_ended(message, latency_ms)
        event = self._trace.emit(payload, parent=cause, actor=Actor.TOOL)
        self.last_event = event or self.last_event


# Prompt caches


def with_cache_key(
    options: AdapterOptions, model: ResolvedModel, session_id: str, *, expects_more: bool = False
) -> AdapterOptions:
    """Return the options with the key by which the provider reuses the cached prefix (T177).

    OpenAI routes requests with the same cache key to the same cache. Anthropic caches only on
    request and charges for writing, which pays off only if another request follows.
    """
    profile = model.adapter.profile
    if profile.cache_key_option is not None:
        return _with_native(options, profile.protocol, profile.cache_key_option, session_id)
    # Other servers of the same protocol may reject the option (T175).
    if not profile.cache_on_request or not profile.is_usual_host or not expects_more:
        return options
    if not model.capabilities.supports_prompt_caching:
        return options
    return _with_native(options, profile.protocol, "cache_control", {"type": "ephemeral"})


def _with_native(options: AdapterOptions, protocol: str, key: str, value: Any) -> AdapterOptions:
    native: Mapping[str, Any] = options.native.get(protocol, {})
    if key in native:  # the caller set it
        return options
    return replace(options, native={**options.native, protocol: {**native, key: value}})
