"""Thinking that a host leaves in the text of a response, between `<think>` and `</think>` (T70).

A response that begins with the tag is decoded as a thinking block and the text after it. When it
is sent to the same host, or encoded for clients of that host, the two are joined into one text.
Thinking without a closing tag extends to the end, because a stream cannot withdraw the deltas that
it has sent. A tag further on stays text: the response may be about tags.
"""

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from metis.adapters.response_decoder import DecoderWrapper
from metis.canonical.blocks import ContentBlock, TextBlock, ThinkingBlock
from metis.canonical.message import Message, Role
from metis.projection import Loss, are_identical
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
"""The formats of thinking between tags, and after a tag that was never closed."""


def split_think_tags(message: Message, issuer: str) -> Message:
    """Return a response with the thinking at its beginning as a block of its own."""
    if message.role is not Role.ASSISTANT or not message.content:
        return message
    first = message.content[0]
    if type(first) is not TextBlock or not first.text.lstrip().startswith(OPENING):
        return message
    return replace(message, content=(*_split_text(first, issuer), *message.content[1:]))


def _split_text(block: TextBlock, issuer: str) -> Iterator[ContentBlock]:
    before, _, rest = block.text.partition(OPENING)
    thinking, closing, after = rest.partition(CLOSING)
    if before:
        yield TextBlock(before)
    yield ThinkingBlock(thinking, format=TAGGED if closing else UNCLOSED, issuer=issuer)
    if after:
        yield replace(block, text=after)


def join_think_tags(message: Message) -> Message:
    """Return a response as its host sent it, with the thinking between its tags."""
    content = message.content
    index = next((n for n, block in enumerate(content) if _is_tagged(block)), None)
    if index is None:
        return message
    thinking = content[index]
    before = content[index - 1] if index else None
    after = content[index + 1] if index + 1 < len(content) else None
    lead = before.text if type(before) is TextBlock else ""
    tail = after.text if type(after) is TextBlock else ""
    closing = CLOSING if getattr(thinking, "format", None) == TAGGED else ""
    text = f"{lead}{OPENING}{getattr(thinking, 'text', '')}{closing}{tail}"
    joined = replace(after, text=text) if type(after) is TextBlock else TextBlock(text)
    start = index - 1 if type(before) is TextBlock else index
    end = index + 2 if type(after) is TextBlock else index + 1
    return replace(message, content=(*content[:start], joined, *content[end:]))


def _is_tagged(block: ContentBlock) -> bool:
    return type(block) is ThinkingBlock and block.format in (TAGGED, UNCLOSED)


def with_think_tags(messages: Sequence[Message], name: str) -> Sequence[Message]:
    """Return a history in which responses of one host have their thinking between tags."""
    joined = [
        join_think_tags(message)
        if message.role is Role.ASSISTANT
        and (message.metadata.provider or message.metadata.origin) == name
        else message
        for message in messages
    ]
    return messages if are_identical(joined, messages) else joined


class ThinkTagDecoder(DecoderWrapper):
    """A stream decoder that turns thinking at the beginning of the first text into its own block.

    `_handle` is the state: the function for the next piece of that text. It is not a bound method,
    which would be a reference cycle.
    """

    def __init__(self, decoder: StreamDecoder, issuer: str) -> None:
        super().__init__(decoder)
        self._issuer = issuer
        self._handle = ThinkTagDecoder._await_tag
        self._pending = ""
        """Text that may still turn out to be part of a tag."""
        self._first_index = 0
        self._block_count = 0
        """How many blocks the first text has become so far."""

    @property
    def message(self) -> Message:
        """The message as far as it has been decoded."""
        return split_think_tags(self._decoder.message, self._issuer)

    def _convert(self, events: list[StreamEvent]) -> list[StreamEvent]:
        return [converted for event in events for converted in self._convert_event(event)]

    def _convert_event(self, event: StreamEvent) -> Iterator[StreamEvent]:
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
            case TextDelta() if self._is_at_start():
                self._first_index = event.content_block_index
                yield from self._handle(self, event.message_id, event.text)
            case TextDelta() if event.content_block_index == self._first_index:
                yield from self._handle(self, event.message_id, event.text)
            case _:
                # Another block follows, so that the pending text cannot be part of a tag.
                yield from self._flush(event.message_id)
                self._handle = ThinkTagDecoder._pass_text
                index = event.content_block_index + max(self._block_count - 1, 0)
                yield replace(event, content_block_index=index)

    def _is_at_start(self) -> bool:
        return (
            not self._block_count
            and self._handle is ThinkTagDecoder._await_tag
            and not self._pending
        )

    def _await_tag(self, message_id: str, text: str) -> Iterator[StreamEvent]:
        """Wait until it is clear whether the text begins with a tag."""
        self._pending += text
        stripped = self._pending.lstrip()
        if len(stripped) < len(OPENING) and OPENING.startswith(stripped):
            return
        pending, self._pending = self._pending, ""
        if not stripped.startswith(OPENING):
            self._handle = ThinkTagDecoder._pass_text
            yield from self._pass_text(message_id, pending)
            return
        lead = pending[: len(pending) - len(stripped)]
        if lead:
            yield self._new_text(message_id, lead)
        # The block exists even if the thinking is empty, as in a plain response.
        self._block_count += 1
        yield self._thinking(message_id, "", format=TAGGED)
        self._handle = ThinkTagDecoder._pass_thinking
        yield from self._pass_thinking(message_id, stripped[len(OPENING) :])

    def _pass_thinking(self, message_id: str, text: str) -> Iterator[StreamEvent]:
        thinking, closing, after = (self._pending + text).partition(CLOSING)
        self._pending = "" if closing else _possible_closing(thinking)
        thinking = thinking[: len(thinking) - len(self._pending)]
        if thinking:
            yield self._thinking(message_id, thinking)
        if closing:
            self._handle = ThinkTagDecoder._await_text
            yield from self._await_text(message_id, after)

    def _await_text(self, message_id: str, text: str) -> Iterator[StreamEvent]:
        # A block without text would be empty, which a plain response never has.
        if text:
            self._handle = ThinkTagDecoder._pass_text
            yield self._new_text(message_id, text)

    def _pass_text(self, message_id: str, text: str) -> Iterator[StreamEvent]:
        if text:
            self._block_count = self._block_count or 1
            yield TextDelta(message_id, self._first_index + self._block_count - 1, text)

    def _new_text(self, message_id: str, text: str) -> TextDelta:
        self._block_count += 1
        return TextDelta(message_id, self._first_index + self._block_count - 1, text)

    def _thinking(
        self,
        message_id: str,
        text: str,
        *,
        format: str | None = None,  # noqa: A002 - its field
    ) -> ThinkingDelta:
        index = self._first_index + self._block_count - 1
        return ThinkingDelta(message_id, index, text, format=format)

    def _flush(self, message_id: str) -> Iterator[StreamEvent]:
        pending, self._pending = self._pending, ""
        if pending and self._handle is ThinkTagDecoder._pass_thinking:
            yield self._thinking(message_id, pending)
        elif pending:
            yield from self._pass_text(message_id, pending)


class ThinkTagEncoder:
    """A stream encoder that writes the thinking of its host's responses between tags."""

    def __init__(self, encoder: StreamEncoder, name: str) -> None:
        self._encoder = encoder
        self._name = name
        self._is_own_response = False
        self._open_block: int | None = None
        """The index of the thinking block whose closing tag is not written yet."""

    @property
    def losses(self) -> list[Loss]:
        """What the client does not receive of the response so far."""
        return self._encoder.losses

    def encode(self, event: StreamEvent) -> bytes:
        """Return the bytes for one event."""
        match event:
            case MessageStart():
                prefix = (event.model or "").partition(":")[0]
                self._is_own_response = (event.provider or prefix) == self._name
            case ThinkingDelta() if self._is_own_response and event.format == TAGGED:
                self._open_block = event.content_block_index
                return self._write_text(event.message_id, OPENING + event.text)
            case ThinkingDelta() if event.content_block_index == self._open_block:
                return self._write_text(event.message_id, event.text)
            case TextDelta() if self._open_block is not None:
                closing = self._close(event.message_id, is_closed=True)
                return closing + self._write_text(event.message_id, event.text)
            case MessageComplete() if self._is_own_response:
                is_closed = not any(_is_unclosed(block) for block in event.message.content)
                closing = self._close(event.message_id, is_closed=is_closed)
                complete = replace(event, message=join_think_tags(event.message))
                return closing + self._encoder.encode(complete)
            case _:
                pass
        return self._encoder.encode(event)

    def finish(self) -> bytes:
        """Return the bytes that close the stream."""
        return self._encoder.finish()

    def _write_text(self, message_id: str, text: str) -> bytes:
        return self._encoder.encode(TextDelta(message_id, 0, text)) if text else b""

    def _close(self, message_id: str, *, is_closed: bool) -> bytes:
        index, self._open_block = self._open_block, None
        return self._write_text(message_id, CLOSING) if index is not None and is_closed else b""


def _is_unclosed(block: ContentBlock) -> bool:
    return type(block) is ThinkingBlock and block.format == UNCLOSED


def _possible_closing(text: str) -> str:
    """Return the longest suffix of a text that may be the beginning of a closing tag."""
    for size in range(min(len(text), len(CLOSING) - 1), 0, -1):
        if text.endswith(CLOSING[:size]):
            return text[-size:]
    return ""
