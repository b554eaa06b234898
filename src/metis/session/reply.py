"""Replies: the response to one prompt with its text, cost and losses, complete or as a stream."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from decimal import Decimal
from typing import Any

from msgspec import Struct

from metis.canonical.blocks import ContentBlock, TextBlock
from metis.canonical.errors import NoTurnError
from metis.canonical.message import Message
from metis.canonical.metadata import MessageMetadata, Usage
from metis.projection.loss import Loss
from metis.session.events import Lost, TurnEnded, TurnEvent
from metis.session.response import text_of
from metis.streaming import TextDelta


class Reply(Struct, frozen=True, kw_only=True):
    """The response to one prompt; `str()` gives its text, iteration its text blocks."""

    text: str
    message: Message | None
    """The last response of the turn; None if it is empty."""
    cost_usd: Decimal
    """The cost of the turn with all its model calls."""
    session_id: str
    losses: tuple[Loss, ...] = ()
    """The parts of the history that the model got changed or not at all."""

    @property
    def cost(self) -> Decimal:
        """The cost of the turn in US dollars."""
        return self.cost_usd

    @property
    def content(self) -> tuple[ContentBlock, ...]:
        """The blocks of the response."""
        return () if self.message is None else self.message.content

    @property
    def metadata(self) -> MessageMetadata:
        """The metadata of the response."""
        return MessageMetadata() if self.message is None else self.message.metadata

    @property
    def model(self) -> str | None:
        """The model that answered."""
        return self.metadata.model

    @property
    def usage(self) -> Usage | None:
        """The tokens of the last model call."""
        return self.metadata.usage

    def __str__(self) -> str:
        return self.text

    def __iter__(self) -> Iterator[str]:
        return (block.text for block in self.content if isinstance(block, TextBlock))

    def _repr_html_(self) -> str:
        """Return the text as HTML for notebooks; markup in the response stays text."""
        # Imported here, because only notebooks need a Markdown parser.
        from metis.interchange.html import markdown_html  # noqa: PLC0415

        return markdown_html(self.text)


class _Collector:
    """Builds a reply from the events of a turn."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._losses: list[Loss] = []
        self._reply: Reply | None = None

    def add(self, event: TurnEvent) -> None:
        if isinstance(event, Lost):
            self._losses.extend(event.losses)
        elif isinstance(event, TurnEnded):
            message = event.message
            self._reply = Reply(
                text="" if message is None else text_of(message.content),
                message=message,
                cost_usd=event.cost_usd,
                session_id=self._session_id,
                losses=tuple(self._losses),
            )

    @property
    def reply(self) -> Reply:
        if self._reply is None:
            raise NoTurnError("the turn has not ended; iterate over the stream to its end first")
        return self._reply


async def collect_reply(events: AsyncGenerator[TurnEvent], session_id: str) -> Reply:
    """Run a turn to its end and return its reply."""
    collector = _Collector(session_id)
    async for event in events:
        collector.add(event)
    return collector.reply


class ReplyStream:
    """A response as it arrives: `async for text in stream`, then `stream.reply`."""

    def __init__(self, events: AsyncGenerator[TurnEvent], session_id: str) -> None:
        self._events = events
        self._collector = _Collector(session_id)

    async def __aiter__(self) -> AsyncIterator[str]:
        try:
            async for event in self._events:
                self._collector.add(event)
                if isinstance(event, TextDelta):
                    yield event.text
        finally:
            # A caller that stops early cancels the turn; the partial response is stored.
            await self._events.aclose()

    @property
    def reply(self) -> Reply:
        """The complete reply.

        Raises:
            NoTurnError: the stream has not been read to its end.
        """
        return self._collector.reply


class SyncReplyStream:
    """A response as it arrives: `for text in stream`, then `stream.reply`."""

    def __init__(self, stream: ReplyStream, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._stream = stream
        self._run = run

    def __iter__(self) -> Iterator[str]:
        texts = aiter(self._stream)
        try:
            while (text := self._run(_next_text(texts))) is not None:
                yield text
        finally:
            self._run(_close(texts))

    @property
    def reply(self) -> Reply:
        """The complete reply.

        Raises:
            NoTurnError: the stream has not been read to its end.
        """
        return self._stream.reply


async def _next_text(texts: AsyncIterator[str]) -> str | None:
    return await anext(texts, None)


async def _close(texts: AsyncIterator[str]) -> None:
    if isinstance(texts, AsyncGenerator):
        await texts.aclose()
