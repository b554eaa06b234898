"""Fitting a history into a context window: when to compact it, and how a summary is written."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from metis.canonical.blocks import ContentBlock, TextBlock, ToolResultBlock, ToolUseBlock
from metis.canonical.errors import ContextOverflowError, ProviderError
from metis.canonical.ids import new_ulid
from metis.canonical.message import Message, Role
from metis.canonical.metadata import Usage
from metis.canonical.tools import ToolDefinition
from metis.events.turn_events import SessionCompacted
from metis.projection.tool_calls import call_as_text
from metis.session.events import usage_totals
from metis.session.models import ResolvedModel
from metis.session.response import estimated_usage, text_of
from metis.session.state import SUMMARY_ORIGIN, TurnContext, estimate_text_tokens
from metis.store.entries import CompactionEntry
from metis.wire.call import RequestContext, ToolChoice

log = logging.getLogger("metis.session")

RECENT_SHARE = 0.3
"""The share of the window that the newest messages may take when a history is compacted."""

CompactionTrigger = Literal["limit", "user", "overflow"]
"""Why a history is compacted: it is near the limit, on request, or the model refused it."""

SUMMARY_LEAD = "Summary of the earlier conversation:\n\n"
PENDING_PROMPT_LEAD = "\n\nThe last question, which is still to be answered:\n\n"

_OVERFLOW_ATTEMPTS = 2
"""The first compaction of a refused history leaves its newest messages, the second does not."""


class _Cause(Struct, frozen=True):
    """Why a history is compacted, for which model, and how many tokens it had."""

    trigger: CompactionTrigger
    model: ResolvedModel
    tokens_before: int


class ContextFitter:
    """Makes the history of a session fit into the context window of a model.

    Compaction shows a summary in place of old messages; nothing is removed from the store.
    """

    def __init__(self, context: TurnContext) -> None:
        self._context = context
        self._setup = context.setup
        self._conversation = context.conversation
        self._state = context.state

    async def fit(self, model: ResolvedModel) -> None:
        """Compact a history that is close to the limit of the model.

        If no summary can be written, the request is sent anyway: it may fit, or a fallback may
        answer it.
        """
        try:
            await self._compact_and_warn(model, "limit")
            if not self._context.fits_window(model):
                await self._compact_and_warn(model, "limit", tightly=True)
        except ProviderError as error:
            log.warning("the history was not compacted: %s", type(error).__name__)

    async def fit_after_overflow(
        self, error: ContextOverflowError, model: ResolvedModel, overflows: int
    ) -> None:
        """Compact the history because the model refused it as too long.

        Raises:
            ContextOverflowError: the current turn is too long by itself.
        """
        self._state.learn_window(model, error, self._context.estimate_tokens(model))
        if self._setup.options.compact_at is None:
            raise error
        for attempt in range(overflows, _OVERFLOW_ATTEMPTS + 1):
            if await self._compact_and_warn(model, "overflow", tightly=attempt > 1):
                return
        raise _too_long(error, model, self._state.context_window(model)) from error

    async def compact(
        self, model: ResolvedModel, trigger: CompactionTrigger, *, tightly: bool = False
    ) -> int:
        """Replace old messages by a summary; return how many messages it replaces.

        A tight compaction leaves only the messages of the turn that is being answered.
        """
        messages = self._conversation.messages
        cause = _Cause(trigger, model, self._context.estimate_tokens(model))
        start = self._first_recent(messages, model, tightly=tightly)
        old = [message for message in messages[:start] if message.role is not Role.SYSTEM]
        if not old:
            return 0
        summariser = Summariser(self._context)
        try:
            summary = await summariser.summarise(messages[:start], model)
        except Exception:
            self._emit(cause, 0, model, summariser.piece_usages)
            raise
        count = len(old) if summary.text else 0
        if count:
            await self._record(summary, messages, start, cause)
        else:
            await self._conversation.record_usage(summary.writer.id, summary.usage)
        self._emit(cause, count, summary.writer, [*summariser.piece_usages, summary.usage])
        return count

    async def _compact_and_warn(
        self, model: ResolvedModel, trigger: CompactionTrigger, *, tightly: bool = False
    ) -> int:
        count = await self.compact(model, trigger, tightly=tightly)
        if count:
            full = "full" if trigger == "overflow" else "nearly full"
            text = f"the context window is {full}: {count} messages were summarised"
            self._context.reporter.warn("compacted", text)
        return count

    def _first_recent(self, messages: list[Message], model: ResolvedModel, *, tightly: bool) -> int:
        """Return the index of the first message that is not summarised.

        It is never between a call and its results. The last prompt is not summarised either,
        unless the responses and results after it fill the window.
        """
        prompts = (n for n, message in enumerate(messages) if message.role is Role.USER)
        last_prompt = max(prompts, default=0)
        window = self._state.context_window(model)
        remaining = 0.0 if tightly else RECENT_SHARE * window
        start = len(messages)
        while start > 0:
            remaining -= model.estimate_tokens([messages[start - 1]])
            if remaining < 0:
                break
            start -= 1
        fills_window = last_prompt < len(messages) - 1 and (
            tightly or model.estimate_tokens(messages[last_prompt:]) > (1 - RECENT_SHARE) * window
        )
        if not fills_window:
            # If all messages seem to fit, the provider counts more tokens than the estimate: all
            # but the last turn is summarised.
            start = min(start, last_prompt) or last_prompt
        # Results without their call would be rejected.
        while 0 < start < len(messages) and messages[start].role is Role.TOOL:
            start -= 1
        return start

    async def _record(
        self, summary: "Summary", messages: list[Message], start: int, cause: _Cause
    ) -> None:
        text = SUMMARY_LEAD + summary.text
        # Without the prompt, the model would not see what the remaining tool results are for.
        if not any(message.role is Role.USER for message in messages[start:]):
            text += self._pending_prompt(messages, cause.model)
        await self._conversation.record(
            CompactionEntry,
            summary=text,
            first_kept_id=messages[start].id if start < len(messages) else None,
            tokens_before=cause.tokens_before,
            details={"model": summary.writer.id, "usage": msgspec.to_builtins(summary.usage)},
        )

    def _pending_prompt(self, messages: Sequence[Message], model: ResolvedModel) -> str:
        """Return the prompt of the running turn, cut to the space that the summary may take."""
        prompts = (message for message in reversed(messages) if message.role is Role.USER)
        prompt = next(prompts, None)
        text = "" if prompt is None else text_of(prompt.content)
        if prompt is not None and prompt.metadata.origin == SUMMARY_ORIGIN:
            # The message is an earlier summary; only the prompt at its end is unanswered.
            text = text.rpartition(PENDING_PROMPT_LEAD)[2] if PENDING_PROMPT_LEAD in text else ""
        limit = round(SPARE_SHARE * self._state.context_window(model))
        first = next(split_to_fit([text], limit, _counter(model)), "")
        return f"{PENDING_PROMPT_LEAD}{first}" if first.strip() else ""

    def _emit(
        self, cause: _Cause, count: int, writer: ResolvedModel, usages: Sequence[Usage]
    ) -> None:
        """Trace a compaction with the cost of all its calls, also of those without a result."""
        if not usages:
            return
        self._context.reporter.trace.emit(
            SessionCompacted(
                trigger=cause.trigger,
                model=writer.id,
                message_count=count,
                tokens_before=cause.tokens_before,
                tokens_after=self._context.estimate_tokens(cause.model),
                provider=writer.provider,
                **usage_totals(*usages),
                pricing_version=usages[-1].pricing_version,
                latency_ms=sum(usage.latency_ms for usage in usages),
            )
        )


def _too_long(
    error: ContextOverflowError, model: ResolvedModel, window_tokens: int
) -> ContextOverflowError:
    text = (
        f"{error.text} (the current turn does not fit into the {window_tokens} tokens of "
        f"{model.id}, even with everything older summarised: send less at once, or use a model "
        "with a larger context window)"
    )
    return ContextOverflowError(
        text, provider=error.provider, status=error.status, code=error.code, kind=error.kind
    )


# Writing a summary

SPARE_SHARE = 0.1
"""The share of a window that a summary may take; as much is reserved for errors of the estimate."""

_SUMMARY_CONTENT = (
    "Include: the goal, decisions and their reasons, names, paths, numbers and exact wording that "
    "are still needed, what was tried and failed, and the next steps. Write plain text and do not "
    "call tools."
)
SUMMARY_PROMPT = (
    "Summarise our conversation so far for someone who will continue it without having seen it. "
    f"{_SUMMARY_CONTENT}"
)
PIECE_PROMPT = (
    "Summarise this conversation for someone who will continue it without having seen it. It is "
    "too long to show at once: you get one part of it, after the summary of the earlier parts. "
    f"Write one summary of both. {_SUMMARY_CONTENT}"
)
_MAX_HALVINGS = 4
"""How often a piece is halved for a model that accepts fewer tokens than its window has."""
_MIN_PIECE_TOKENS = 100
"""The smallest piece; a window with less space for one is refused."""


class Summary(Struct, frozen=True, kw_only=True):
    """A summary, and the model that wrote it."""

    text: str
    writer: ResolvedModel
    usage: Usage
    """The usage of the last call; the usage of earlier calls is already recorded."""


class Summariser:
    """Lets a model write the summary of a history, at once or piece by piece."""

    def __init__(self, context: TurnContext) -> None:
        self._context = context
        self._setup = context.setup
        self.piece_usages: list[Usage] = []
        """The usage of the calls that wrote the summary of a piece."""

    async def summarise(self, messages: Sequence[Message], model: ResolvedModel) -> Summary:
        """Summarise with the model that is configured for it, or with the model of the turn.

        The model whose window the whole history fits is tried first; if one fails, the other is
        tried.

        Raises:
            ProviderError: no model wrote a summary.
        """
        name, models = self._setup.options.compact_with, self._setup.models
        preferred = model if name is None else models.get(name)
        writers = [preferred] if preferred.id == model.id else [preferred, model]
        # Summarising pieces takes a call for each, and loses more than one summary of everything.
        writers.sort(key=lambda writer: not self._fits(messages, writer))
        for writer in writers[:-1]:
            try:
                return await self._summarise_with(writer, messages)
            except ProviderError as error:
                log.warning("%s wrote no summary: %s", writer.id, type(error).__name__)
        return await self._summarise_with(writers[-1], messages)

    async def _summarise_with(self, writer: ResolvedModel, messages: Sequence[Message]) -> Summary:
        if self._fits(messages, writer):
            history = self._context.state.repairs.apply(list(messages), writer)
            request = [*history, self._prompt(SUMMARY_PROMPT)]
            try:
                return await self._call(writer, request, self._setup.tools)
            except ContextOverflowError as error:
                tokens = writer.estimate_tokens(messages)
                self._context.state.learn_window(writer, error, tokens)
        return await self._summarise_pieces(writer, messages)

    def _fits(self, messages: Sequence[Message], writer: ResolvedModel) -> bool:
        return writer.estimate_tokens(messages, self._setup.tools) <= self._max_input(writer)

    def _max_input(self, writer: ResolvedModel) -> int:
        """Return the tokens that a request may have, so that space is left for the summary."""
        window = self._context.state.context_window(writer)
        output = min(self._setup.request_defaults.max_output_tokens or 0, window // 2)
        return round(window * (1 - SPARE_SHARE)) - max(output, round(window * SPARE_SHARE))

    async def _summarise_pieces(
        self, writer: ResolvedModel, messages: Sequence[Message]
    ) -> Summary:
        """Summarise piece after piece, each together with the summary of those before."""
        remaining, summary, halvings = list(transcript(messages)), "", 0
        while True:
            limit = self._max_piece(writer, summary, halvings)
            # A history may have megabytes; other sessions go on meanwhile.
            piece, *later_texts = await asyncio.to_thread(
                list, split_to_fit(remaining, limit, _counter(writer))
            )
            try:
                written = await self._call(writer, [self._prompt(_piece_prompt(summary, piece))])
            except ContextOverflowError:
                if halvings == _MAX_HALVINGS:
                    raise
                halvings += 1
                continue
            if not later_texts or not written.text:
                return written
            # Recorded at once: a failure in a later piece must not lose the cost of this one.
            self.piece_usages.append(written.usage)
            await self._context.conversation.record_usage(writer.id, written.usage)
            remaining, summary = later_texts, written.text

    def _max_piece(self, writer: ResolvedModel, summary: str, halvings: int) -> int:
        prompt_tokens = estimate_text_tokens(_piece_prompt(summary, ""), writer)
        limit = (self._max_input(writer) - prompt_tokens) >> halvings
        if limit < _MIN_PIECE_TOKENS:
            window = self._context.state.context_window(writer)
            text = f"the {window} tokens of {writer.id} are too few to summarise the history"
            raise ContextOverflowError(text, provider=writer.provider)
        return limit

    async def _call(
        self,
        writer: ResolvedModel,
        messages: Sequence[Message],
        tools: Sequence[ToolDefinition] = (),
    ) -> Summary:
        await self._context.check_budget()
        setup = self._setup
        now = setup.now()
        # The request has the tools, so that it matches the cached prefix; none may be called.
        tool_choice = ToolChoice("none") if tools else None
        options = replace(
            setup.request_defaults,
            model=writer.id,
            stream=None,
            output=None,
            tool_choice=tool_choice,
        )
        request = writer.adapter.to_wire(messages, tools, options)
        context = RequestContext(
            session_id=self._context.conversation.id,
            model=writer.id,
            provider=writer.provider,
            created_at=now,
        )
        response = await setup.transport.complete(writer.adapter, request, context)
        usage = response.metadata.usage
        if usage is None:
            usage = estimated_usage(response, writer, writer.estimate_tokens(messages))
        priced = setup.models.price(usage, writer, now)
        return Summary(text=text_of(response.content).strip(), writer=writer, usage=priced)

    def _prompt(self, text: str) -> Message:
        return Message(
            id=new_ulid(),
            session_id=self._context.conversation.id,
            role=Role.USER,
            content=(TextBlock(text),),
            created_at=self._setup.now(),
        )


def _piece_prompt(summary: str, piece: str) -> str:
    before = f"\n\n<summary>\n{summary}\n</summary>" if summary else ""
    return f"{PIECE_PROMPT}{before}\n\n<conversation>\n{piece}\n</conversation>"


# Transcripts

TokenCounter = Callable[[str], int]

_MIN_CUT_LENGTH = 200
"""The shortest part of a text, in characters; it bounds the number of parts for any limit."""


def _counter(model: ResolvedModel) -> TokenCounter:
    return lambda text: estimate_text_tokens(text, model)


def transcript(messages: Sequence[Message]) -> Iterator[str]:
    """Yield the history as texts: one for each message together with its tool results."""
    lines: list[str] = []
    for message in messages:
        if message.role is Role.SYSTEM:
            continue
        if lines and message.role is not Role.TOOL:
            yield "\n".join(lines)
            lines = []
        lines.append(f"{message.role.value}: {_content_text(message.content)}")
    if lines:
        yield "\n".join(lines)


def split_to_fit(texts: Iterable[str], limit: int, count: TokenCounter) -> Iterator[str]:
    """Join texts into as few pieces as fit the limit; cut a text only if it alone is too long."""
    piece: list[str] = []
    size = 0
    for text in texts:
        for part in _cut(text, limit, count):
            part_size = count(part)
            if piece and size + part_size > limit:
                yield "\n\n".join(piece)
                piece, size = [], 0
            piece.append(part)
            size += part_size
    if piece:
        yield "\n\n".join(piece)


def _cut(text: str, limit: int, count: TokenCounter) -> Iterator[str]:
    tokens = count(text)
    if tokens <= limit:
        yield text
        return
    # The rest is not counted again for each piece: that would cost the square of the length.
    size = max(_MIN_CUT_LENGTH, len(text) * limit // (tokens + 1))
    start = 0
    while start < len(text):
        end = min(len(text), start + size)
        while end - start > _MIN_CUT_LENGTH and count(text[start:end]) > limit:
            end = start + max(_MIN_CUT_LENGTH, (end - start) // 2)
        if end < len(text):
            # Prefer a line end or a space in the second half.
            middle = start + (end - start) // 2
            near = max(text.rfind("\n", middle, end), text.rfind(" ", middle, end))
            end = near if near > start else end
        yield text[start:end]
        start = end


def _content_text(content: Sequence[ContentBlock]) -> str:
    return "\n".join(filter(None, map(_block_text, content)))


def _block_text(block: ContentBlock) -> str:
    match block:
        case TextBlock():
            return block.text
        case ToolUseBlock():
            return call_as_text(block).text
        case ToolResultBlock():
            return f"[{'failed' if block.is_error else 'gave'}: {_content_text(block.content)}]"
        case _:
            return f"[{block.type}]"
