"""Fitting a history into a context window: when to compact it, and how a summary is written."""

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from decimal import Decimal
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
from metis.session.conversation import Conversation
from metis.session.events import Trace, TurnReporter
from metis.session.model_call import ModelCaller
from metis.session.models import ResolvedModel
from metis.session.options import Setup
from metis.session.state import SUMMARY_ORIGIN, SessionState, estimate_text_tokens, text_of
from metis.store.entries import CompactionEntry
from metis.wire.call import UNPRICED, RequestContext, ToolChoice

Count = Callable[[str], int]
"""How many tokens a text takes."""

_LEAST_CHARS = 200
"""No piece is cut shorter: a window that does not take this takes nothing."""


def transcript(messages: Sequence[Message]) -> Iterator[str]:
    """What was said, a text for each exchange: the results of calls stand with the calls."""
    told: list[str] = []
    for message in messages:
        if message.role is Role.SYSTEM:
            continue
        if told and message.role is not Role.TOOL:
            yield "\n".join(told)
            told = []
        told.append(f"{message.role.value}: {_words(message.content)}")
    if told:
        yield "\n".join(told)


def split_to_fit(texts: Iterable[str], most: int, count: Count) -> Iterator[str]:
    """The texts in as few pieces as fit; a text is cut only if it alone is too long."""
    held: list[str] = []
    size = 0
    for text in texts:
        for part in _parts(text, most, count):
            own = count(part)
            if held and size + own > most:
                yield "\n\n".join(held)
                held, size = [], 0
            held.append(part)
            size += own
    if held:
        yield "\n\n".join(held)


def _parts(text: str, most: int, count: Count) -> Iterator[str]:
    while (tokens := count(text)) > most and len(text) > _LEAST_CHARS:
        end = max(_LEAST_CHARS, len(text) * most // (tokens + 1))
        # Rather between two lines or words, if there are any near.
        near = max(text.rfind("\n", end // 2, end), text.rfind(" ", end // 2, end))
        end = near if near > 0 else end
        yield text[:end]
        text = text[end:]
    yield text


def _words(content: Sequence[ContentBlock]) -> str:
    return "\n".join(filter(None, map(_told, content)))


def _told(block: ContentBlock) -> str:
    match block:
        case TextBlock():
            return block.text
        case ToolUseBlock():
            return call_as_text(block).text
        case ToolResultBlock():
            return f"[{'failed' if block.is_error else 'gave'}: {_words(block.content)}]"
        case _:
            return f"[{block.type}]"


SPARE_SHARE = 0.1
"""The part of a window that a summary may take, and the error of an estimate."""

_KEEP = (
    "Keep: what is wanted, what was decided and why, names, paths, numbers and exact words that "
    "are still needed, what was tried and failed, and what comes next. Write plain text, and call "
    "no tool."
)
SUMMARY_PROMPT = (
    "Sum up our conversation up to here for somebody who goes on with it and has seen nothing of "
    f"it. {_KEEP}"
)
PIECE_PROMPT = (
    "Sum up this conversation for somebody who goes on with it and has seen nothing of it. It is "
    "too long to be shown at once: you get a piece of it, behind the summary of what came before. "
    f"Write one summary of both. {_KEEP}"
)
_HALVINGS = 4
"""How often a piece is made smaller for a model that takes less than it should."""
_LEAST_ROOM = 100
"""Tokens; a window that has no more room than this for a piece is too small."""


class Summary(Struct, frozen=True, kw_only=True):
    """A summary, and who wrote it."""

    text: str
    writer: ResolvedModel
    usage: Usage
    """What the last call took; those before it are noted."""


class Summariser:
    """Writes one summary of one history."""

    def __init__(
        self,
        setup: Setup,
        conversation: Conversation,
        told: SessionState,
        check: Callable[[], Awaitable[object]],
    ) -> None:
        self._setup = setup
        self._conversation = conversation
        self._told = told
        self._check = check
        self.recorded_usages: list[Usage] = []
        """What calls have taken that wrote the summary of a piece and no more."""

    async def write(self, messages: Sequence[Message], served: ResolvedModel) -> Summary:
        """Sum up with the model that is set for it, or the one of the turn.

        Whoever has room for all of it comes first. A model that is down does not end the turn.

        Raises:
            ProviderError: nobody wrote a summary.
        """
        named = self._setup.compact_with
        models = self._setup.models
        chosen = served if named is None else models.get(models.resolve(named))
        writers = [chosen] if chosen.id == served.id else [chosen, served]
        writers.sort(key=lambda writer: not self._has_room(messages, writer))
        for writer in writers[:-1]:
            try:
                return await self._by(writer, messages)
            except ProviderError as error:
                log.warning("%s wrote no summary: %s", writer.id, type(error).__name__)
        return await self._by(writers[-1], messages)

    async def _by(self, writer: ResolvedModel, messages: Sequence[Message]) -> Summary:
        if self._has_room(messages, writer):
            shown = self._told.repairs.apply(list(messages), writer)
            try:
                return await self._ask(
                    writer, [*shown, self._question(SUMMARY_PROMPT)], self._setup.tools
                )
            except ContextOverflowError as error:
                tokens = writer.adapter.estimate_input_tokens(messages, model=writer.id)
                self._told.learn_window(writer, error, tokens)
        return await self._piecewise(writer, messages)

    def _has_room(self, messages: Sequence[Message], writer: ResolvedModel) -> bool:
        tokens = writer.adapter.estimate_input_tokens(messages, self._setup.tools, model=writer.id)
        return tokens <= self._room(writer)

    def _room(self, writer: ResolvedModel) -> int:
        """The tokens that a question may have, with some left for the answer."""
        window = self._told.context_window(writer)
        answer = min(self._setup.options.max_output_tokens or 0, window // 2)
        return round(window * (1 - SPARE_SHARE)) - max(answer, round(window * SPARE_SHARE))

    async def _piecewise(self, writer: ResolvedModel, messages: Sequence[Message]) -> Summary:
        """Sum up a piece after the other, each together with the summary of those before."""
        left, summary, halvings = list(transcript(messages)), "", 0
        while True:
            room = self._room_for_piece(writer, summary, halvings)
            piece, *more = split_to_fit(left, room, lambda text: estimate_text_tokens(text, writer))
            try:
                written = await self._ask(writer, [self._question(_asked(summary, piece))], ())
            except ContextOverflowError:
                if halvings == _HALVINGS:
                    raise
                halvings += 1
                continue
            if not more or not written.text:
                return written
            await self._note(written)
            left, summary = more, written.text

    def _room_for_piece(self, writer: ResolvedModel, summary: str, halvings: int) -> int:
        taken = estimate_text_tokens(_asked(summary, ""), writer)
        room = (self._room(writer) - taken) >> halvings
        if room < _LEAST_ROOM:
            window = self._told.context_window(writer)
            text = f"the {window} tokens of {writer.id} do not suffice to sum up what was said"
            raise ContextOverflowError(text, provider=writer.adapter.name)
        return room

    async def _note(self, written: Summary) -> None:
        """Keep what a piece has cost, and see whether there is money for the next."""
        self.recorded_usages.append(written.usage)
        await self._conversation.record_usage(written.writer.id, written.usage)
        await self._check()

    async def _ask(
        self, writer: ResolvedModel, messages: Sequence[Message], tools: Sequence[ToolDefinition]
    ) -> Summary:
        setup = self._setup
        now = setup.now()
        options = replace(setup.options, model=writer.id, stream=None, output=None)
        options = replace(options, tool_choice=ToolChoice("none") if tools else None)
        request = writer.adapter.to_wire(messages, tools, options)
        context = RequestContext(
            session_id=self._conversation.id,
            model=writer.id,
            provider=writer.adapter.name,
            created_at=now,
        )
        answer = await setup.transport.complete(writer.adapter, request, context)
        usage = answer.metadata.usage or _unknown(messages, answer, writer)
        priced = setup.models.price(usage, writer, now)
        return Summary(text=text_of(answer.content).strip(), writer=writer, usage=priced)

    def _question(self, text: str) -> Message:
        return Message(
            id=new_ulid(),
            session_id=self._conversation.id,
            role=Role.USER,
            content=(TextBlock(text),),
            created_at=self._setup.now(),
        )


def _asked(summary: str, piece: str) -> str:
    before = f"\n\n<summary>\n{summary}\n</summary>" if summary else ""
    return f"{PIECE_PROMPT}{before}\n\n<conversation>\n{piece}\n</conversation>"


def _unknown(messages: Sequence[Message], answer: Message, writer: ResolvedModel) -> Usage:
    adapter = writer.adapter
    return Usage(
        input_tokens=adapter.estimate_input_tokens(messages, model=writer.id),
        output_tokens=adapter.estimate_input_tokens([answer], model=writer.id),
        cost_usd=Decimal(0),
        pricing_version=UNPRICED,
        latency_ms=0,
        estimated=True,
    )


RECENT_SHARE = 0.3
"""The part of the window that the newest messages may keep."""

CompactionTrigger = Literal["limit", "user", "overflow"]
"""Why a history is summed up."""

SUMMARY_LEAD = "What was said before, summed up:\n\n"
PENDING_PROMPT_LEAD = "\n\nThe last question, which is still to be answered:\n\n"


class _Occasion(Struct, frozen=True):
    """Why a history is summed up, for whom, and how long it was."""

    trigger: CompactionTrigger
    served: ResolvedModel
    tokens_before: int


class Compaction:
    """Sums up the history of one session."""

    def __init__(
        self,
        setup: Setup,
        conversation: Conversation,
        told: SessionState,
        trace: Trace,
        check: Callable[[], Awaitable[object]],
    ) -> None:
        self._setup = setup
        self._conversation = conversation
        self._told = told
        self._trace = trace
        self._check = check
        """Asks whether there is money for another call."""

    def is_due(self, served: ResolvedModel) -> bool:
        """Whether the next question would come too near to the limit of the model."""
        at = self._setup.compact_at
        if at is None:
            return False
        return self._tokens(served) > at * self._told.context_window(served) or not self.fits(
            served
        )

    def fits(self, served: ResolvedModel) -> bool:
        """Whether the next question and its answer have room in the window of the model."""
        window = self._told.context_window(served)
        answer = min(self._setup.options.max_output_tokens or 0, window // 2)
        return self._tokens(served) + answer <= window

    async def run(
        self, served: ResolvedModel, trigger: CompactionTrigger, *, tightly: bool = False
    ) -> int:
        """Sum up what is old; gives the number of messages that are in the summary now.

        Done tightly, only what has to be answered now stays as it is.
        """
        messages = self._conversation.messages
        occasion = _Occasion(trigger, served, self._tokens(served))
        start = self._first_kept(messages, served, tightly=tightly)
        old = [each for each in messages[:start] if each.role is not Role.SYSTEM]
        if not old:
            return 0
        summing = Summariser(self._setup, self._conversation, self._told, self._check)
        try:
            written = await summing.write(messages[:start], served)
        except Exception:
            self._tell(occasion, 0, served, summing.recorded_usages)
            raise
        count = len(old) if written.text else 0
        if count:
            await self._keep(written, messages, start, occasion)
        else:
            await self._conversation.record_usage(written.writer.id, written.usage)
        self._tell(occasion, count, written.writer, [*summing.recorded_usages, written.usage])
        return count

    def _tokens(self, served: ResolvedModel) -> int:
        return self._told.estimate_tokens(self._conversation.messages, self._setup.tools, served)

    def _first_kept(self, messages: list[Message], served: ResolvedModel, *, tightly: bool) -> int:
        """Where the part begins that stays: never between a call and its results.

        The words of the user that are to be answered now stay, too, as long as what was done
        about them leaves room for it.
        """
        last = max((n for n, each in enumerate(messages) if each.role is Role.USER), default=0)
        window = self._told.context_window(served)
        left = 0.0 if tightly else RECENT_SHARE * window
        start = len(messages)
        while start > 0:
            left -= self._size([messages[start - 1]], served)
            if left < 0:
                break
            start -= 1
        is_long = last < len(messages) - 1 and (
            tightly or self._size(messages[last:], served) > (1 - RECENT_SHARE) * window
        )
        if not is_long:
            # If all of it seems to fit, the provider counts otherwise: then the last turn stays.
            start = min(start, last) or last
        while 0 < start < len(messages) and messages[start].role is Role.TOOL:
            start -= 1
        return start

    def _size(self, messages: Sequence[Message], served: ResolvedModel) -> int:
        return served.adapter.estimate_input_tokens(messages, model=served.id)

    async def _keep(
        self, written: Summary, messages: list[Message], start: int, occasion: _Occasion
    ) -> None:
        summary = SUMMARY_LEAD + written.text
        if not any(each.role is Role.USER for each in messages[start:]):
            summary += self._asked(messages, occasion.served)
        details = {"model": written.writer.id, "usage": msgspec.to_builtins(written.usage)}
        await self._conversation.record(
            CompactionEntry(
                id=new_ulid(),
                session_id=self._conversation.id,
                created_at=self._setup.now(),
                summary=summary,
                first_kept_id=messages[start].id if start < len(messages) else None,
                tokens_before=occasion.tokens_before,
                details=details,
            )
        )

    def _asked(self, messages: Sequence[Message], served: ResolvedModel) -> str:
        """The question of a turn that goes on behind the summary, or as much as has room."""
        questions = (each for each in reversed(messages) if each.role is Role.USER)
        question = next(questions, None)
        words = "" if question is None else text_of(question.content)
        if question is not None and question.metadata.origin == SUMMARY_ORIGIN:
            words = words.rpartition(PENDING_PROMPT_LEAD)[2] if PENDING_PROMPT_LEAD in words else ""
        most = round(SPARE_SHARE * self._told.context_window(served))
        first = next(
            split_to_fit([words], most, lambda text: estimate_text_tokens(text, served)), ""
        )
        return f"{PENDING_PROMPT_LEAD}{first}" if first.strip() else ""

    def _tell(
        self, occasion: _Occasion, count: int, writer: ResolvedModel, usages: Sequence[Usage]
    ) -> None:
        """Tell what was summed up and what it took; it may have cost something and not worked."""
        if not usages:
            return
        self._trace.emit(
            SessionCompacted(
                trigger=occasion.trigger,
                model=writer.id,
                message_count=count,
                tokens_before=occasion.tokens_before,
                tokens_after=self._tokens(occasion.served),
                provider=writer.adapter.name,
                input_tokens=sum(each.input_tokens for each in usages),
                output_tokens=sum(each.output_tokens for each in usages),
                cached_input_tokens=sum(each.cached_input_tokens for each in usages),
                cache_creation_input_tokens=sum(
                    each.cache_creation_input_tokens for each in usages
                ),
                cache_creation_1h_input_tokens=sum(
                    each.cache_creation_1h_input_tokens for each in usages
                ),
                cost_usd=sum((each.cost_usd for each in usages), Decimal(0)),
                pricing_version=usages[-1].pricing_version,
                latency_ms=sum(each.latency_ms for each in usages),
            )
        )


log = logging.getLogger("metis.session")

_ATTEMPTS = 2
"""A refused history is summed up with its newest part left, and then without."""


class ContextFitter:
    """Makes room for the questions of one turn."""

    def __init__(
        self,
        setup: Setup,
        conversation: Conversation,
        told: SessionState,
        telling: TurnReporter,
        calling: ModelCaller,
    ) -> None:
        self._setup = setup
        self._told = told
        self._telling = telling
        self._calling = calling
        self._compaction = Compaction(
            setup, conversation, told, telling.trace, calling.check_budget
        )

    async def fit(self, served: ResolvedModel) -> None:
        """Sum up what is old if the next question comes too near to the limit of the model.

        If that fails, the question is asked all the same: there may be room enough, or another
        model may have to step in.
        """
        if not self._compaction.is_due(served):
            return
        try:
            await self._compact(served, "limit")
            if not self._compaction.fits(served):
                await self._compact(served, "limit", tightly=True)
        except ProviderError as error:
            log.warning("the history was not summed up: %s", type(error).__name__)

    async def fit_after_overflow(
        self, error: ContextOverflowError, served: ResolvedModel, overflows: int
    ) -> None:
        """Sum up what is old because the model did not take it all.

        Raises:
            ContextOverflowError: what is to be answered now is too long by itself.
        """
        self._told.learn_window(served, error, self._calling.estimate_tokens(served))
        if self._setup.compact_at is None:
            raise error
        for attempt in range(overflows, _ATTEMPTS + 1):
            if await self._compact(served, "overflow", tightly=attempt > 1):
                return
        raise _too_long(error, served, self._told.context_window(served)) from error

    async def _compact(
        self, served: ResolvedModel, trigger: CompactionTrigger, *, tightly: bool = False
    ) -> int:
        count = await self._compaction.run(served, trigger, tightly=tightly)
        if count:
            full = "full" if trigger == "overflow" else "nearly full"
            text = f"the window is {full}: {count} messages were summed up"
            self._telling.warn("compacted", text)
        return count


def _too_long(
    error: ContextOverflowError, served: ResolvedModel, window_tokens: int
) -> ContextOverflowError:
    text = (
        f"{error.text} (what is to be answered now does not fit into the {window_tokens} tokens of "
        f"{served.id}, even if all that is older is summed up: ask for less at once, or take a "
        "model with a larger window)"
    )
    return ContextOverflowError(
        text, provider=error.provider, status=error.status, code=error.code, kind=error.kind
    )
