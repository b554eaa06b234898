"""The base of all stream decoders: ids, the start and the end of a streamed response."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import msgspec

from metis.canonical.errors import NetworkError, ProviderError, ResponseLimitError
from metis.canonical.ids import new_ulid
from metis.canonical.message import Message
from metis.canonical.metadata import MessageStatus, StopReason, Usage
from metis.streaming import (
    MessageComplete,
    MessageStart,
    StreamError,
    StreamEvent,
    StreamMeter,
    UsageUpdate,
)
from metis.wire.call import RequestContext
from metis.wire.errors import STREAM_CUT_OFF, stream_error
from metis.wire.json_access import Wire

_read_event = msgspec.json.Decoder(dict[str, Any]).decode


class BaseStreamDecoder(ABC):
    """Turns the bytes of one streamed response into events.

    Every protocol collects what has come in the form of a plain response and decodes the message
    from that (`_build_message`), so that a stream and a plain response cannot differ.
    """

    head_bytes: ClassVar[int] = 65_536
    """How much of a body is stored that does not look like a stream."""

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self._message_id = new_ulid()
        self._has_begun = False
        self._end: MessageComplete | StreamError | None = None
        self._head_bytes = bytearray()
        self._meter = StreamMeter(context.limits)
        self._free_bytes = self._meter.free_bytes
        self._size = 0

    @property
    def message(self) -> Message:
        """The message received so far; complete once the stream has ended."""
        end = self._end
        if end is not None and end.message is not None:
            return end.message
        return self._build_message(MessageStatus.PARTIAL)

    def feed(self, chunk: bytes) -> list[StreamEvent]:
        """Return the events that are complete with this chunk; after the end there are none."""
        events: list[StreamEvent] = []
        if self._end is not None:
            return events
        self._size += len(chunk)
        is_counted = self._size > self._free_bytes
        try:
            if is_counted:
                self._meter.add_chunk(chunk, self._size)
            self._decode_bytes(chunk, events)
            if is_counted:
                self._meter.add_events(events)
        except ResponseLimitError as error:
            self._end_at_limit(error, events)
        return events

    def finish(self) -> list[StreamEvent]:
        """Return the last events; a stream that was cut off ends in an error with its message."""
        events: list[StreamEvent] = []
        if self._end is not None:
            return events
        try:
            self._decode_rest(events)
            if self._end is None:
                self._end_early(events)
        except ResponseLimitError as error:
            self._end_at_limit(error, events)
        return events

    def _end_at_limit(self, error: ResponseLimitError, events: list[StreamEvent]) -> None:
        # The message of what came is built by the code that counts.
        self._meter.lift()
        if self._end is None:
            self._fail(error, events)

    @abstractmethod
    def _decode_bytes(self, chunk: bytes, events: list[StreamEvent]) -> None:
        """Decode the frames that are complete with a chunk."""

    @abstractmethod
    def _decode_rest(self, events: list[StreamEvent]) -> None:
        """Decode the frames that the parser still holds at the end of the bytes."""

    @abstractmethod
    def _build_message(self, status: MessageStatus) -> Message:
        """Decode what has come so far as a plain response would be decoded."""

    def _failed_message(self) -> Message:
        return self._build_message(MessageStatus.ERROR)

    def _end_early(self, events: list[StreamEvent]) -> None:
        """End a stream whose bytes ended before the response did."""
        self._fail(self._early_end_error(), events)

    def _early_end_error(self) -> ProviderError:
        return NetworkError(STREAM_CUT_OFF)

    @property
    def _head(self) -> bytes:
        """The bytes that came before the response began."""
        return bytes(self._head_bytes)

    def _keep_head(self, chunk: bytes) -> None:
        """Store bytes that come before the response begins: they may be an error body."""
        if not self._has_begun and len(self._head_bytes) < self.head_bytes:
            self._head_bytes += chunk

    def _begin(
        self,
        events: list[StreamEvent],
        model: str | None,
        response_id: str | None = None,
        protocol: str | None = None,
        original_form: Wire | None = None,
    ) -> None:
        """Report the start of the message, once."""
        if not self._has_begun:
            # The head is not needed any more, and a stream may be long.
            self._has_begun = True
            self._head_bytes.clear()
            start = MessageStart(
                self._message_id,
                model,
                response_id,
                protocol=protocol,
                provider=self._context.provider,
                original_form=original_form,
            )
            events.append(start)

    def _read_event(self, data: bytes, events: list[StreamEvent]) -> Wire | None:
        """Read the JSON object of an event; anything else ends the stream with an error."""
        try:
            return _read_event(data)
        except (ValueError, RecursionError) as error:
            text = f"the stream contains data that is not an event: {error}"
            self._fail(NetworkError(text), events)
            return None

    def _add_usage(self, usage: Usage | None, events: list[StreamEvent]) -> None:
        if usage is not None:
            events.append(UsageUpdate(self._message_id, usage))

    def _complete(self, events: list[StreamEvent]) -> None:
        self._end_with(self._build_message(MessageStatus.COMPLETE), events)

    def _end_with(self, message: Message, events: list[StreamEvent]) -> None:
        reason = message.metadata.stop_reason or StopReason.UNKNOWN
        self._end = MessageComplete(self._message_id, reason, message)
        events.append(self._end)

    def _fail(self, error: ProviderError, events: list[StreamEvent]) -> None:
        self._end = stream_error(self._message_id, error, self._failed_message())
        events.append(self._end)
