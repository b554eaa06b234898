"""Compaction: the older part of a history becomes a summary; nothing is taken out of the store."""

import logging
from decimal import Decimal
from typing import Literal

import msgspec
from msgspec.structs import replace

from metis.canonical.blocks import TextBlock
from metis.canonical.errors import ProviderError
from metis.canonical.ids import new_ulid
from metis.canonical.message import Message, Role
from metis.canonical.metadata import Usage
from metis.events.work import SessionCompacted
from metis.session.conversation import Conversation
from metis.session.facts import estimate, words_of
from metis.session.models import Served
from metis.session.setup import Setup
from metis.session.trace import Trace
from metis.store.entries import CompactionEntry
from metis.wire.call import UNPRICED, RequestContext, ToolChoice

log = logging.getLogger("metis.session")

KEEP = 0.3
"""The part of the window that the newest messages may keep."""

SPARE = 0.1
"""The part of a window that a summary may take, and the error of an estimate."""

ASK = (
    "Sum up our conversation up to here for somebody who goes on with it and has seen nothing of "
    "it. Keep: what is wanted, what was decided and why, names, paths, numbers and exact words "
    "that are still needed, what was tried and failed, and what comes next. Write plain text, and "
    "call no tool."
)
Trigger = Literal["limit", "user", "overflow"]
"""Why a history is summed up."""

LEAD = "What was said before, summed up:\n\n"


class Compaction:
    """Sums up the history of one session."""

    def __init__(self, setup: Setup, conversation: Conversation, trace: Trace) -> None:
        self._setup = setup
        self._conversation = conversation
        self._trace = trace

    def is_due(self, tokens: int, served: Served) -> bool:
        """Whether the next question would come too near to the limit of the model."""
        at = self._setup.compact_at
        if at is None:
            return False
        return tokens > at * served.adapter.capabilities(served.id).max_context_tokens

    async def run(self, served: Served, trigger: Trigger) -> int:
        """Sum up what is old; gives the number of messages that are in the summary now."""
        messages = self._conversation.messages
        before = estimate(messages, self._setup.tools, served)
        start = self._first_kept(messages, served)
        old = [each for each in messages[:start] if each.role is not Role.SYSTEM]
        if not old:
            return 0
        writer, answer, usage = await self._written(messages[:start], served)
        text = words_of(answer.content)
        if not text.strip():
            await self._conversation.note_usage(writer.id, usage)
            return 0
        await self._conversation.note(
            CompactionEntry(
                id=new_ulid(),
                session_id=self._conversation.id,
                created_at=self._setup.now(),
                summary=LEAD + text,
                first_kept_id=messages[start].id if start < len(messages) else None,
                tokens_before=before,
                details={"model": writer.id, "usage": msgspec.to_builtins(usage)},
            )
        )
        self._trace.emit(
            SessionCompacted(
                trigger=trigger,
                model=writer.id,
                message_count=len(old),
                tokens_before=before,
                tokens_after=estimate(self._conversation.messages, self._setup.tools, served),
                provider=writer.adapter.name,
                input_tokens=usage.input_tokens,
                output_tokens=usage.output_tokens,
                cached_input_tokens=usage.cached_input_tokens,
                cache_creation_input_tokens=usage.cache_creation_input_tokens,
                cache_creation_1h_input_tokens=usage.cache_creation_1h_input_tokens,
                cost_usd=usage.cost_usd,
                pricing_version=usage.pricing_version,
                latency_ms=usage.latency_ms,
            )
        )
        return len(old)

    def _first_kept(self, messages: list[Message], served: Served) -> int:
        """Where the part begins that stays: never between a call and its results.

        The words of the user that are to be answered now always stay.
        """
        adapter = served.adapter
        left = KEEP * adapter.capabilities(served.id).max_context_tokens
        start = len(messages)
        while start > 0:
            left -= adapter.estimate_input_tokens([messages[start - 1]], model=served.id)
            if left < 0:
                break
            start -= 1
        last = max((n for n, each in enumerate(messages) if each.role is Role.USER), default=0)
        # If all of it seems to fit, the provider counts otherwise: then only the last turn stays.
        start = min(start, last) or last
        while 0 < start < len(messages) and messages[start].role is Role.TOOL:
            start -= 1
        return start

    async def _written(
        self, messages: list[Message], served: Served
    ) -> tuple[Served, Message, Usage]:
        """Who wrote a summary, and what: the model that is set for it, or the one of the turn.

        A model that has no room for the history, or that is down, does not end the turn.
        """
        named = self._setup.compact_with
        models = self._setup.models
        other = served if named is None else models.served(models.resolve(named))
        if other.id != served.id and self._has_room(messages, other):
            try:
                return other, *await self._summary(messages, other)
            except ProviderError as error:
                log.warning("%s wrote no summary: %s", other.id, type(error).__name__)
        return served, *await self._summary(messages, served)

    def _has_room(self, messages: list[Message], writer: Served) -> bool:
        adapter = writer.adapter
        tokens = adapter.estimate_input_tokens(messages, self._setup.tools, model=writer.id)
        return tokens < (1 - SPARE) * adapter.capabilities(writer.id).max_context_tokens

    async def _summary(self, messages: list[Message], writer: Served) -> tuple[Message, Usage]:
        setup = self._setup
        now = setup.now()
        question = Message(
            id=new_ulid(),
            session_id=self._conversation.id,
            role=Role.USER,
            content=(TextBlock(ASK),),
            created_at=now,
        )
        options = replace(setup.options, model=writer.id, stream=None, output=None)
        if setup.tools:
            options = replace(options, tool_choice=ToolChoice("none"))
        request = writer.adapter.to_wire([*messages, question], setup.tools, options)
        context = RequestContext(
            session_id=self._conversation.id,
            model=writer.id,
            provider=writer.adapter.name,
            created_at=now,
        )
        answer = await setup.transport.complete(writer.adapter, request, context)
        usage = answer.metadata.usage or _unknown(messages, answer, writer)
        return answer, setup.models.price(usage, writer, now)


def _unknown(messages: list[Message], answer: Message, writer: Served) -> Usage:
    adapter = writer.adapter
    return Usage(
        input_tokens=adapter.estimate_input_tokens(messages, model=writer.id),
        output_tokens=adapter.estimate_input_tokens([answer], model=writer.id),
        cost_usd=Decimal(0),
        pricing_version=UNPRICED,
        latency_ms=0,
        estimated=True,
    )
