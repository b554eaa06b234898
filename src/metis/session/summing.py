"""Summing: a model writes down what a history comes to, at once or piece by piece."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from decimal import Decimal

from msgspec import Struct
from msgspec.structs import replace

from metis.canonical.blocks import TextBlock
from metis.canonical.errors import ContextOverflowError, ProviderError
from metis.canonical.ids import new_ulid
from metis.canonical.message import Message, Role
from metis.canonical.metadata import Usage
from metis.canonical.tools import ToolDefinition
from metis.session.conversation import Conversation
from metis.session.facts import text_tokens, words_of
from metis.session.models import Served
from metis.session.setup import Setup
from metis.session.told import Told
from metis.session.transcript import pieces, transcript
from metis.wire.call import UNPRICED, RequestContext, ToolChoice

log = logging.getLogger("metis.session")

SPARE = 0.1
"""The part of a window that a summary may take, and the error of an estimate."""

_KEEP = (
    "Keep: what is wanted, what was decided and why, names, paths, numbers and exact words that "
    "are still needed, what was tried and failed, and what comes next. Write plain text, and call "
    "no tool."
)
ASK = (
    "Sum up our conversation up to here for somebody who goes on with it and has seen nothing of "
    f"it. {_KEEP}"
)
ASK_PIECE = (
    "Sum up this conversation for somebody who goes on with it and has seen nothing of it. It is "
    "too long to be shown at once: you get a piece of it, behind the summary of what came before. "
    f"Write one summary of both. {_KEEP}"
)
_HALVINGS = 4
"""How often a piece is made smaller for a model that takes less than it should."""
_LEAST_ROOM = 100
"""Tokens; a window that has no more room than this for a piece is too small."""


class Written(Struct, frozen=True, kw_only=True):
    """A summary, and who wrote it."""

    text: str
    writer: Served
    usage: Usage
    """What the last call took; those before it are noted."""


class Summing:
    """Writes one summary of one history."""

    def __init__(
        self,
        setup: Setup,
        conversation: Conversation,
        told: Told,
        check: Callable[[], Awaitable[object]],
    ) -> None:
        self._setup = setup
        self._conversation = conversation
        self._told = told
        self._check = check
        self.noted: list[Usage] = []
        """What calls have taken that wrote the summary of a piece and no more."""

    async def write(self, messages: Sequence[Message], served: Served) -> Written:
        """Sum up with the model that is set for it, or the one of the turn.

        Whoever has room for all of it comes first. A model that is down does not end the turn.

        Raises:
            ProviderError: nobody wrote a summary.
        """
        named = self._setup.compact_with
        models = self._setup.models
        chosen = served if named is None else models.served(models.resolve(named))
        writers = [chosen] if chosen.id == served.id else [chosen, served]
        writers.sort(key=lambda writer: not self._has_room(messages, writer))
        for writer in writers[:-1]:
            try:
                return await self._by(writer, messages)
            except ProviderError as error:
                log.warning("%s wrote no summary: %s", writer.id, type(error).__name__)
        return await self._by(writers[-1], messages)

    async def _by(self, writer: Served, messages: Sequence[Message]) -> Written:
        if self._has_room(messages, writer):
            shown = self._told.repairs.apply(list(messages), writer)
            try:
                return await self._ask(writer, [*shown, self._question(ASK)], self._setup.tools)
            except ContextOverflowError as error:
                tokens = writer.adapter.estimate_input_tokens(messages, model=writer.id)
                self._told.overflowed(writer, error, tokens)
        return await self._piecewise(writer, messages)

    def _has_room(self, messages: Sequence[Message], writer: Served) -> bool:
        tokens = writer.adapter.estimate_input_tokens(messages, self._setup.tools, model=writer.id)
        return tokens <= self._room(writer)

    def _room(self, writer: Served) -> int:
        """The tokens that a question may have, with some left for the answer."""
        window = self._told.window(writer)
        answer = min(self._setup.options.max_output_tokens or 0, window // 2)
        return round(window * (1 - SPARE)) - max(answer, round(window * SPARE))

    async def _piecewise(self, writer: Served, messages: Sequence[Message]) -> Written:
        """Sum up a piece after the other, each together with the summary of those before."""
        left, summary, halvings = list(transcript(messages)), "", 0
        while True:
            room = self._room_for_piece(writer, summary, halvings)
            piece, *more = pieces(left, room, lambda text: text_tokens(text, writer))
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

    def _room_for_piece(self, writer: Served, summary: str, halvings: int) -> int:
        taken = text_tokens(_asked(summary, ""), writer)
        room = (self._room(writer) - taken) >> halvings
        if room < _LEAST_ROOM:
            window = self._told.window(writer)
            text = f"the {window} tokens of {writer.id} do not suffice to sum up what was said"
            raise ContextOverflowError(text, provider=writer.adapter.name)
        return room

    async def _note(self, written: Written) -> None:
        """Keep what a piece has cost, and see whether there is money for the next."""
        self.noted.append(written.usage)
        await self._conversation.note_usage(written.writer.id, written.usage)
        await self._check()

    async def _ask(
        self, writer: Served, messages: Sequence[Message], tools: Sequence[ToolDefinition]
    ) -> Written:
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
        return Written(text=words_of(answer.content).strip(), writer=writer, usage=priced)

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
    return f"{ASK_PIECE}{before}\n\n<conversation>\n{piece}\n</conversation>"


def _unknown(messages: Sequence[Message], answer: Message, writer: Served) -> Usage:
    adapter = writer.adapter
    return Usage(
        input_tokens=adapter.estimate_input_tokens(messages, model=writer.id),
        output_tokens=adapter.estimate_input_tokens([answer], model=writer.id),
        cost_usd=Decimal(0),
        pricing_version=UNPRICED,
        latency_ms=0,
        estimated=True,
    )
