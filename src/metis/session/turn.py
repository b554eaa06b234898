"""One turn: from a prompt to the last response, with all tool calls between.

    prompt ─ store ─ route ─┬─ fit the history ─ call the model ─ store the response ─┬─ end
                            └──────── run its tool calls, store the results ──────────┘

A turn runs in its own task. Cancelling that task at any moment leaves a valid conversation: a
partial response is stored, and every tool call has a result.
"""

import asyncio
import re
import time
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, cast

from msgspec.structs import replace

from metis.adapters.model import ModelFeatures
from metis.canonical.blocks import Block, ContentBlock, TextBlock
from metis.canonical.errors import (
    AuthenticationError,
    ContextOverflowError,
    InvalidRequestError,
    InvalidValueError,
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
from metis.session.context_window import ContextFitter
from metis.session.conversation import POINTER_OPTION, contains_image, run_to_completion
from metis.session.events import Trace, TurnEnded, TurnEvent, TurnReporter, TurnStarted, short_hash
from metis.session.model_call import ModelCaller, ToolRunner
from metis.session.models import ResolvedModel
from metis.session.options import read_thread_options, resolve_pointer
from metis.session.response import can_run_calls, tool_calls_of
from metis.session.route import ModelChoice, TurnRouter
from metis.session.state import TurnContext
from metis.store.threads import merge_options

# Ollama and other hosts have models that reject every request with tools.
_NO_TOOLS = re.compile(
    r"(?:does not|doesn't) support (?:tools|tool use|function)|tool use is not supported"
    r"|tools? (?:is|are) not supported|no endpoints found that support tool use",
    re.IGNORECASE,
)
# Another model may succeed after these; it would also refuse an invalid request (T193).
_FALLBACK_ERRORS = (RateLimitError, ServerError, NetworkError, AuthenticationError)


class Turn:
    """One turn of a session."""

    def __init__(
        self,
        context: TurnContext,
        content: Sequence[ContentBlock] | None,
        *,
        override: str | None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.id = new_ulid()
        self.events: asyncio.Queue[TurnEvent | BaseException | None] = asyncio.Queue()
        """The events of the turn in order, then an error if there was one, then None."""
        self._content = None if content is None else tuple(content)
        """The prompt; None sends the history without a new prompt."""
        self._override = override
        self._options = None if options is None else dict(options)
        """Thread options that apply from this turn on."""
        self._setup = context.setup
        self._conversation = context.conversation
        self._trace = Trace(context.setup.options.bus, context.conversation.id, self.id)
        self._reporter = TurnReporter(
            trace=self._trace, turn_id=self.id, send=self.events.put_nowait
        )
        self._context = replace(context, reporter=self._reporter)
        self._router = TurnRouter(self._context)

        self._caller = ModelCaller(self._context)
        self._tools = ToolRunner(self._context, self._caller)
        self._response: Message | None = None
        self._started_event: Event | None = None
        self._started_s = time.monotonic()
        self._cost_before = Decimal(0)

    async def run(self) -> None:
        """Run the turn; its events are put into `events`."""
        try:
            choice = await self._start()
            while True:
                response, choice = await self._call_model(choice)
                if response is None:
                    break
                self._response = response
                calls = tool_calls_of(response)
                if calls and can_run_calls(response):
                    await self._tools.run(response)
                elif calls or response.metadata.stop_reason is not StopReason.PAUSE:
                    break  # a pause without calls is continued: server tools are running (T158)
            self._end()
        except asyncio.CancelledError:
            # A second cancellation must not leave a call without a result: providers reject such
            # a history.
            await run_to_completion(self._caller.close())
            self._end_cancelled()
            raise
        except Exception as error:  # noqa: BLE001 - `send` raises it in the caller's task
            await run_to_completion(self._caller.close())
            self._fail(error)
        finally:
            self.events.put_nowait(None)

    async def _start(self) -> ModelChoice:
        """Store the prompt and choose the model."""
        # Not in the constructor, where an earlier turn may still run and add to the cost.
        self._cost_before = self._conversation.cost().total_usd
        await self._check_thread_options()
        prompt = await self._store_prompt()
        facts = self._router.facts(prompt, self._override)
        self._started_event = self._caller.parent_event = self._trace.emit(
            lambda: events.TurnStarted(
                user_message_hash=short_hash(prompt.content_digest().encode()),
                estimated_input_tokens=facts.estimated_input_tokens,
                has_images=any(map(contains_image, prompt.content)),
                has_tool_calls_in_history=facts.has_tool_calls_in_history,
            ),
            actor=Actor.USER,
        )
        self._reporter.send(TurnStarted(turn_id=self.id, message=prompt))
        return await self._router.choose(facts, self._started_event)

    async def _check_thread_options(self) -> None:
        """Check the models and servers of the thread options before anything is stored."""
        setup, conversation = self._setup, self._conversation
        changes = self._options or {}
        merged = conversation.thread_options
        if changes:
            merged = merge_options(merged, changes)
        options = read_thread_options(merged)
        pointer = changes.get(POINTER_OPTION)
        if not pointer and self._override is None:
            pointer = conversation.pointer
        if pointer:
            resolve_pointer(pointer, setup.options.pointers, setup.models)
        if setup.toolbox is not None and options.servers is None:
            for name, fault in await setup.toolbox.offer_default():
                self._reporter.warn("mcp", f"the tools of {name} are left out: {fault}")
        elif setup.toolbox is not None:
            await setup.toolbox.offer(options.servers or ())
        elif options.servers:
            raise UnknownServerError(options.servers[0])

    async def _store_prompt(self) -> Message:
        if self._content is None:
            messages = reversed(self._conversation.messages)
            return next(message for message in messages if message.role is Role.USER)
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

    async def _call_model(self, choice: ModelChoice) -> tuple[Message | None, ModelChoice]:
        """Return one response, and the model that gave it.

        After a failure the history is compacted or repaired, or a fallback is called.
        """
        # A model that failed is no fallback for another one that fails later.
        tried = {choice[0].id}
        is_repaired, overflows = False, 0
        if self._context.needs_compaction(choice[0]):
            await ContextFitter(self._context).fit(choice[0])
        while True:
            self._check_call_limit()  # a model may call tools endlessly
            try:
                return await self._caller.call(*choice), choice
            except ContextOverflowError as error:
                if self._caller.has_shown:
                    raise
                overflows += 1
                fitter = ContextFitter(self._context)
                await fitter.fit_after_overflow(error, choice[0], overflows)
            except InvalidRequestError as error:
                # One repair per response: a second rejection has another cause.
                if is_repaired or self._caller.has_shown or not self._repair(choice[0], error):
                    raise
                is_repaired = True
                choice = self._setup.models.get(choice[0].id), choice[1]
            except _FALLBACK_ERRORS as error:
                choice = self._router.fall_back(choice[0], error, tried)

    def _repair(self, model: ResolvedModel, error: ProviderError) -> bool:
        """Repair the request if there is a repair for the error; return whether it was changed."""
        if model.capabilities.supports_tools and _NO_TOOLS.search(error.text) and self._setup.tools:
            if not self._setup.options.allow_unsupported:
                return False
            # The adapter now leaves the tools out, and reports each as a loss.
            self._setup.models.set_features(model.id, ModelFeatures(tools=False))
            return True
        repair = self._context.state.repairs.add_for_error(
            model, error, self._context.conversation.messages
        )
        if repair is None:
            return False
        self._reporter.warn(
            "repaired", f"{model.provider} rejected the history: {repair.description}"
        )
        payload = events.TurnHistoryRepaired(model=model.id, repairs=(repair.name,))
        self._trace.emit(payload, parent=self._caller.parent_event)
        return True

    def _check_call_limit(self) -> None:
        count = self._caller.call_count
        if count >= self._setup.options.max_calls:
            raise TurnLimitError(f"the model was called {count} times in one turn")

    # The end

    def _end(self) -> None:
        reason = None if self._response is None else self._response.metadata.stop_reason
        self._send_ended(
            StopReason.END_TURN if self._response is None else reason or StopReason.UNKNOWN
        )
        self._trace.emit(
            lambda: events.TurnCompleted(
                stop_reason=reason or StopReason.END_TURN,
                llm_call_count=self._caller.call_count,
                tool_call_count=self._tools.result_count,
                total_input_tokens=self._caller.input_tokens,
                total_output_tokens=self._caller.output_tokens,
                total_cost_usd=self._conversation.cost().total_usd - self._cost_before,
                wall_time_seconds=time.monotonic() - self._started_s,
            ),
            parent=self._started_event,
        )

    def _end_cancelled(self) -> None:
        self._send_ended(StopReason.CANCELLED)
        payload = events.TurnCancelled(
            reason="user_cancel",
            partial_llm_calls=self._caller.call_count,
            partial_tool_calls=self._tools.result_count,
        )
        self._trace.emit(payload, parent=self._started_event)

    def _send_ended(self, stop_reason: StopReason) -> None:
        self._reporter.send(
            TurnEnded(
                turn_id=self.id,
                stop_reason=stop_reason,
                cost_usd=self._conversation.cost().total_usd - self._cost_before,
                message=self._response,
            )
        )

    def _fail(self, error: Exception) -> None:
        self.events.put_nowait(error)
        # The trace gets the class only: an error text may quote the conversation.
        name = type(error).__name__
        payload = events.TurnFailed(error_type=name, error_message=name)
        self._trace.emit(payload, parent=self._started_event)


def prompt_blocks(prompt: object) -> list[ContentBlock]:
    """Return the blocks of a prompt that is a list.

    Raises:
        InvalidValueError: the prompt is not a list, or has an item of another type.
    """
    expected = "expected a text or a list of texts and content blocks"
    if not isinstance(prompt, list | tuple):
        raise InvalidValueError(f"{expected}, got {type(prompt).__name__}", path="$.prompt")
    blocks: list[ContentBlock] = []
    for index, part in enumerate(cast("Sequence[object]", prompt)):
        if isinstance(part, str):
            blocks.append(TextBlock(part))
        elif isinstance(part, Block):
            blocks.append(cast("ContentBlock", part))
        else:
            fault = f"{expected}, got {type(part).__name__} in it"
            raise InvalidValueError(fault, path=f"$.prompt[{index}]")
    return blocks
