"""Thinking that a host leaves in the text of a response, between `<think>` and `</think>` (T70).

A response that begins with the tag is decoded as a thinking block and the text after it; sent back
to the same host, or encoded in its place, it is one text again. Thinking whose end tag never came
extends to the end, because a stream cannot take back what it has shown. A tag further on in a text
stays text: somebody may be writing about tags.
"""

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from metis.canonical.blocks import ContentBlock, TextBlock, ThinkingBlock
from metis.canonical.message import Message, Role
from metis.streaming import (
    MessageComplete,
    MessageStart,
    StreamError,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    UsageUpdate,
)
from metis.wire.codec import StreamDecoder, StreamEncoder

OPENING, CLOSING = "<think>", "</think>"
TAGGED, UNCLOSED = "tagged", "tagged_unclosed"
"""The formats of thoughts that stood between tags, or after one that was never closed."""


def split_think_tags(message: Message, issuer: str) -> Message:
    """The answer with the thought at its beginning as a block of its own."""
    if message.role is not Role.ASSISTANT or not message.content:
        return message
    first = message.content[0]
    if type(first) is not TextBlock or not first.text.lstrip().startswith(OPENING):
        return message
    parts = tuple(_parts(first, issuer))
    return replace(message, content=(*parts, *message.content[1:]))


def _parts(block: TextBlock, issuer: str) -> Iterator[ContentBlock]:
    before, _, rest = block.text.partition(OPENING)
    thought, closing, after = rest.partition(CLOSING)
    if before:
        yield TextBlock(before)
    yield ThinkingBlock(thought, format=TAGGED if closing else UNCLOSED, issuer=issuer)
    if after:
        yield replace(block, text=after)


def join_think_tags(message: Message) -> Message:
    """The answer as the host gave it, with the thought between its tags again."""
    content = message.content
    place = next((n for n, block in enumerate(content) if _is_tagged(block)), None)
    if place is None:
        return message
    thought = content[place]
    before = content[place - 1] if place else None
    after = content[place + 1] if place + 1 < len(content) else None
    lead = before.text if type(before) is TextBlock else ""
    tail = after.text if type(after) is TextBlock else ""
    closing = CLOSING if getattr(thought, "format", None) == TAGGED else ""
    text = f"{lead}{OPENING}{getattr(thought, 'text', '')}{closing}{tail}"
    whole = replace(after, text=text) if type(after) is TextBlock else TextBlock(text)
    start = place - 1 if type(before) is TextBlock else place
    end = place + 2 if type(after) is TextBlock else place + 1
    return replace(message, content=(*content[:start], whole, *content[end:]))


def _is_tagged(block: ContentBlock) -> bool:
    return type(block) is ThinkingBlock and block.format in (TAGGED, UNCLOSED)


def with_think_tags(messages: Sequence[Message], name: str) -> Sequence[Message]:
    """The messages as one host knows them: its own thoughts between its tags."""
    found = [
        join_think_tags(message)
        if message.role is Role.ASSISTANT
        and (message.metadata.provider or message.metadata.origin) == name
        else message
        for message in messages
    ]
    same = all(one is other for one, other in zip(found, messages, strict=True))
    return messages if same else found


class ThinkTagDecoder:
    """A stream reader that shows the thought at the beginning of a text as one."""

    def __init__(self, reader: StreamDecoder, issuer: str) -> None:
        self._reader = reader
        self._issuer = issuer
        self._take = self._begin
        self._held = ""
        """What may still turn out to be a tag."""
        self._first = 0
        self._blocks = 0
        """How many blocks the first text has become so far."""

    @property
    def message(self) -> Message:
        """The message as far as it has come."""
        return split_think_tags(self._reader.message, self._issuer)

    def feed(self, chunk: bytes) -> list[StreamEvent]:
        """The events that are complete with this chunk."""
        return [read for event in self._reader.feed(chunk) for read in self._read(event)]

    def finish(self) -> list[StreamEvent]:
        """The last events."""
        return [read for event in self._reader.finish() for read in self._read(event)]

    def _read(self, event: StreamEvent) -> Iterator[StreamEvent]:
        match event:
            case MessageStart() | UsageUpdate():
                yield event
            case MessageComplete():
                yield from self._flush(event.message_id)
                yield replace(event, message=split_think_tags(event.message, self._issuer))
            case StreamError():
                yield from self._flush(event.message_id)
                message = event.message and split_think_tags(event.message, self._issuer)
                yield replace(event, message=message)
            case TextDelta() if not self._blocks and self._take == self._begin and not self._held:
                self._first = event.content_block_index
                yield from self._take(event.message_id, event.text)
            case TextDelta() if event.content_block_index == self._first:
                yield from self._take(event.message_id, event.text)
            case _:
                yield from self._flush(event.message_id)
                self._take = self._go_on
                index = event.content_block_index + max(self._blocks - 1, 0)
                yield replace(event, content_block_index=index)

    def _begin(self, message_id: str, text: str) -> Iterator[StreamEvent]:
        """Wait until it is clear whether the text begins with a tag."""
        self._held += text
        bare = self._held.lstrip()
        if len(bare) < len(OPENING) and OPENING.startswith(bare):
            return
        held, self._held = self._held, ""
        if not bare.startswith(OPENING):
            self._take = self._go_on
            yield from self._go_on(message_id, held)
            return
        lead = held[: len(held) - len(bare)]
        if lead:
            yield self._text(message_id, lead)
        # An empty thought is one, too.
        self._blocks += 1
        yield ThinkingDelta(message_id, self._first + self._blocks - 1, "", format=TAGGED)
        self._take = self._think
        yield from self._think(message_id, bare[len(OPENING) :])

    def _think(self, message_id: str, text: str) -> Iterator[StreamEvent]:
        thought, closing, after = (self._held + text).partition(CLOSING)
        self._held = "" if closing else _beginning(thought)
        thought = thought[: len(thought) - len(self._held)]
        if thought:
            yield ThinkingDelta(message_id, self._first + self._blocks - 1, thought)
        if closing:
            self._take = self._answer
            yield from self._answer(message_id, after)

    def _answer(self, message_id: str, text: str) -> Iterator[StreamEvent]:
        """The text after the thought: one more block, if there is any."""
        if text:
            self._take = self._go_on
            yield self._text(message_id, text)

    def _go_on(self, message_id: str, text: str) -> Iterator[StreamEvent]:
        if text:
            self._blocks = self._blocks or 1
            yield TextDelta(message_id, self._first + self._blocks - 1, text)

    def _text(self, message_id: str, text: str) -> TextDelta:
        self._blocks += 1
        return TextDelta(message_id, self._first + self._blocks - 1, text)

    def _flush(self, message_id: str) -> Iterator[StreamEvent]:
        held, self._held = self._held, ""
        if held and self._take == self._think:
            yield ThinkingDelta(message_id, self._first + self._blocks - 1, held)
        elif held:
            yield from self._go_on(message_id, held)


class ThinkTagEncoder:
    """A stream writer that writes thoughts of its own host between tags again."""

    def __init__(self, writer: StreamEncoder, name: str) -> None:
        self._writer = writer
        self._name = name
        self._is_own = False
        self._thought: int | None = None
        """The block that is being thought."""

    def encode(self, event: StreamEvent) -> bytes:
        """The bytes for one event."""
        match event:
            case MessageStart():
                self._is_own = (event.model or "").partition(":")[0] == self._name
            case ThinkingDelta() if self._is_own and event.format == TAGGED:
                self._thought = event.content_block_index
                return self._say(event.message_id, OPENING + event.text)
            case ThinkingDelta() if event.content_block_index == self._thought:
                return self._say(event.message_id, event.text)
            case TextDelta() if self._thought is not None:
                closing = self._close(event.message_id, is_closed=True)
                return closing + self._say(event.message_id, event.text)
            case MessageComplete() if self._is_own:
                is_closed = not any(_is_unclosed(block) for block in event.message.content)
                closing = self._close(event.message_id, is_closed=is_closed)
                return closing + self._writer.encode(
                    replace(event, message=join_think_tags(event.message))
                )
            case _:
                pass
        return self._writer.encode(event)

    def finish(self) -> bytes:
        """The bytes that close the stream."""
        return self._writer.finish()

    def _say(self, message_id: str, text: str) -> bytes:
        return self._writer.encode(TextDelta(message_id, 0, text)) if text else b""

    def _close(self, message_id: str, *, is_closed: bool) -> bytes:
        thought, self._thought = self._thought, None
        return self._say(message_id, CLOSING) if thought is not None and is_closed else b""


def _is_unclosed(block: ContentBlock) -> bool:
    return type(block) is ThinkingBlock and block.format == UNCLOSED


def _beginning(text: str) -> str:
    """The longest end of a text that the closing tag could begin with."""
    for size in range(min(len(text), len(CLOSING) - 1), 0, -1):
        if text.endswith(CLOSING[:size]):
            return text[-size:]
    return ""
