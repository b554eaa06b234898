"""Compaction: the older part of a history becomes a summary; nothing is taken out of the store."""

from collections.abc import Awaitable, Callable, Sequence
from decimal import Decimal
from typing import Literal

import msgspec
from msgspec import Struct

from metis.canonical.ids import new_ulid
from metis.canonical.message import Message, Role
from metis.canonical.metadata import Usage
from metis.events.work import SessionCompacted
from metis.session.conversation import Conversation
from metis.session.facts import ORIGIN, text_tokens, words_of
from metis.session.models import Served
from metis.session.setup import Setup
from metis.session.summing import SPARE, Summing, Written
from metis.session.told import Told
from metis.session.trace import Trace
from metis.session.transcript import pieces
from metis.store.entries import CompactionEntry

KEEP = 0.3
"""The part of the window that the newest messages may keep."""

Trigger = Literal["limit", "user", "overflow"]
"""Why a history is summed up."""

LEAD = "What was said before, summed up:\n\n"
ASKED = "\n\nThe last question, which is still to be answered:\n\n"


class _Occasion(Struct, frozen=True):
    """Why a history is summed up, for whom, and how long it was."""

    trigger: Trigger
    served: Served
    tokens_before: int


class Compaction:
    """Sums up the history of one session."""

    def __init__(
        self,
        setup: Setup,
        conversation: Conversation,
        told: Told,
        trace: Trace,
        check: Callable[[], Awaitable[object]],
    ) -> None:
        self._setup = setup
        self._conversation = conversation
        self._told = told
        self._trace = trace
        self._check = check
        """Asks whether there is money for another call."""

    def is_due(self, served: Served) -> bool:
        """Whether the next question would come too near to the limit of the model."""
        at = self._setup.compact_at
        if at is None:
            return False
        return self._tokens(served) > at * self._told.window(served) or not self.fits(served)

    def fits(self, served: Served) -> bool:
        """Whether the next question and its answer have room in the window of the model."""
        window = self._told.window(served)
        answer = min(self._setup.options.max_output_tokens or 0, window // 2)
        return self._tokens(served) + answer <= window

    async def run(self, served: Served, trigger: Trigger, *, tightly: bool = False) -> int:
        """Sum up what is old; gives the number of messages that are in the summary now.

        Done tightly, only what has to be answered now stays as it is.
        """
        messages = self._conversation.messages
        occasion = _Occasion(trigger, served, self._tokens(served))
        start = self._first_kept(messages, served, tightly=tightly)
        old = [each for each in messages[:start] if each.role is not Role.SYSTEM]
        if not old:
            return 0
        summing = Summing(self._setup, self._conversation, self._told, self._check)
        try:
            written = await summing.write(messages[:start], served)
        except Exception:
            self._tell(occasion, 0, served, summing.noted)
            raise
        count = len(old) if written.text else 0
        if count:
            await self._keep(written, messages, start, occasion)
        else:
            await self._conversation.note_usage(written.writer.id, written.usage)
        self._tell(occasion, count, written.writer, [*summing.noted, written.usage])
        return count

    def _tokens(self, served: Served) -> int:
        return self._told.tokens(self._conversation.messages, self._setup.tools, served)

    def _first_kept(self, messages: list[Message], served: Served, *, tightly: bool) -> int:
        """Where the part begins that stays: never between a call and its results.

        The words of the user that are to be answered now stay, too, as long as what was done
        about them leaves room for it.
        """
        last = max((n for n, each in enumerate(messages) if each.role is Role.USER), default=0)
        window = self._told.window(served)
        left = 0.0 if tightly else KEEP * window
        start = len(messages)
        while start > 0:
            left -= self._size([messages[start - 1]], served)
            if left < 0:
                break
            start -= 1
        is_long = last < len(messages) - 1 and (
            tightly or self._size(messages[last:], served) > (1 - KEEP) * window
        )
        if not is_long:
            # If all of it seems to fit, the provider counts otherwise: then the last turn stays.
            start = min(start, last) or last
        while 0 < start < len(messages) and messages[start].role is Role.TOOL:
            start -= 1
        return start

    def _size(self, messages: Sequence[Message], served: Served) -> int:
        return served.adapter.estimate_input_tokens(messages, model=served.id)

    async def _keep(
        self, written: Written, messages: list[Message], start: int, occasion: _Occasion
    ) -> None:
        summary = LEAD + written.text
        if not any(each.role is Role.USER for each in messages[start:]):
            summary += self._asked(messages, occasion.served)
        details = {"model": written.writer.id, "usage": msgspec.to_builtins(written.usage)}
        await self._conversation.note(
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

    def _asked(self, messages: Sequence[Message], served: Served) -> str:
        """The question of a turn that goes on behind the summary, or as much as has room."""
        questions = (each for each in reversed(messages) if each.role is Role.USER)
        question = next(questions, None)
        words = "" if question is None else words_of(question.content)
        if question is not None and question.metadata.origin == ORIGIN:
            words = words.rpartition(ASKED)[2] if ASKED in words else ""
        most = round(SPARE * self._told.window(served))
        first = next(pieces([words], most, lambda text: text_tokens(text, served)), "")
        return f"{ASKED}{first}" if first.strip() else ""

    def _tell(
        self, occasion: _Occasion, count: int, writer: Served, usages: Sequence[Usage]
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
