"""The base of all stream decoders: ids, the start, the end and the limits of a response."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from metis.canonical.errors import NetworkError, ProviderError, ResponseLimitError
from metis.canonical.ids import new_ulid
from metis.canonical.message import Message
from metis.canonical.metadata import MessageStatus, StopReason, Usage
from metis.streaming import (
    MessageComplete,
    MessageStart,
    SseParser,
    StreamError,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    UsageUpdate,
)
from metis.streaming.limits import DEFAULT_LIMITS, NO_LIMITS, StreamLimits, limit_error
from metis.wire.call import RequestContext
from metis.wire.errors import STREAM_CUT_OFF, stream_error
from metis.wire.json_access import Wire

_read_event = msgspec.json.Decoder(dict[str, Any]).decode


_UNCOUNTED_BYTES = 1 << 20
"""Most responses are smaller; counting takes a fifth of the time of decoding a delta."""


class StreamMeter:
    """Counts the parts of one response; each method raises a ResponseLimitError above its limit."""

    __slots__ = (
        "_arguments",
        "_blocks",
        "_calls",
        "_containers",
        "_events",
        "_text",
        "limits",
        "uncounted_bytes",
    )

    def __init__(self, limits: StreamLimits = DEFAULT_LIMITS) -> None:
        self.limits = limits
        counted = limits.body_bytes, limits.events, limits.text_bytes, limits.containers
        self.uncounted_bytes: int = min(_UNCOUNTED_BYTES, *counted)
        """Up to this body size no other limit than those of blocks and calls can be exceeded."""
        self._events = self._blocks = self._calls = self._text = 0
        self._containers = 0
        self._arguments: dict[object, int] = {}

    def remove_limits(self) -> None:
        """Stop raising errors, so that the partial message can be built after a limit error."""
        self.limits = NO_LIMITS

    def add_chunk(self, chunk: bytes, size: int) -> None:
        """Count a chunk before it is parsed; `size` is the total size of all chunks so far."""
        limits = self.limits
        self._containers += chunk.count(b"{") + chunk.count(b"[")
        if self._containers > limits.containers:
            raise limit_error(limits, "containers")
        if size > limits.body_bytes:
            raise limit_error(limits, "body_bytes")

    def add_events(self, events: Sequence[StreamEvent]) -> None:
        """Count events, and the characters of text and thinking in them."""
        limits = self.limits
        self._events += len(events)
        for event in events:
            if type(event) is TextDelta or type(event) is ThinkingDelta:
                self._text += len(event.text)
        if self._text > limits.text_bytes:
            raise limit_error(limits, "text_bytes")
        if self._events > limits.events:
            raise limit_error(limits, "events")

    def add_block(self) -> None:
        """Count a content block that begins."""
        self._blocks += 1
        if self._blocks > self.limits.blocks:
            raise limit_error(self.limits, "blocks")

    def add_call(self) -> None:
        """Count a tool call that begins; it counts as a block, too."""
        self._calls += 1
        if self._calls > self.limits.calls:
            raise limit_error(self.limits, "calls")
        self.add_block()

    def add_arguments(self, call: object, size: int) -> None:
        """Count characters of the arguments of one call.

        `call` is any key that identifies the call. It must not refer to this meter: the reference
        cycle would keep an ended stream in memory.
        """
        total = self._arguments[call] = self._arguments.get(call, 0) + size
        if total > self.limits.argument_bytes:
            raise limit_error(self.limits, "argument_bytes")


class BaseStreamDecoder(ABC):
    """Turns the bytes of one streamed response into events.

    Every protocol collects the received data in the form of a plain response and decodes the
    message from that (`_build_message`), so that both give the same message.
    """

    head_bytes: ClassVar[int] = 65_536
    """The most bytes that are stored before the response starts: they may be an error body."""

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self._message_id = new_ulid()
        self._has_started = False
        self._end: MessageComplete | StreamError | None = None
        self._head_bytes = bytearray()
        self._meter = StreamMeter(context.limits)
        self._uncounted_bytes = self._meter.uncounted_bytes
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
        self._size = size = self._size + len(chunk)
        try:
            # Most responses stay below this size, and counting would slow down every delta.
            if size <= self._uncounted_bytes:
                self._decode_bytes(chunk, events)
            else:
                self._meter.add_chunk(chunk, size)
                self._decode_bytes(chunk, events)
                self._meter.add_events(events)
        except ResponseLimitError as error:
            self._end_at_limit(error, events)
        except RecursionError:
            self._end_too_deep(events)
        return events

    def finish(self) -> list[StreamEvent]:
        """Return the last events; a truncated stream ends in an error with the partial message."""
        events: list[StreamEvent] = []
        if self._end is not None:
            return events
        try:
            self._decode_remaining(events)
            if self._end is None:
                self._end_early(events)
        except ResponseLimitError as error:
            self._end_at_limit(error, events)
        except RecursionError:
            self._end_too_deep(events)
        return events

    def fail(self, error: ProviderError) -> list[StreamEvent]:
        """End the response with an error of the transport or framing; return the last events."""
        events: list[StreamEvent] = []
        if self._end is None:
            self._meter.remove_limits()
            self._fail(error, events)
        return events

    def _end_too_deep(self, events: list[StreamEvent]) -> None:
        """End a stream whose values are nested deeper than functions of Python can call others."""
        error = NetworkError("the stream contains data that is nested too deeply")
        self._meter.remove_limits()
        try:
            if self._end is None:
                self._fail(error, events)
        except RecursionError:
            raise error from None  # the message cannot be built either

    def _end_at_limit(self, error: ResponseLimitError, events: list[StreamEvent]) -> None:
        # Building the partial message counts its blocks again, which would raise a second error.
        self._meter.remove_limits()
        if self._end is None:
            self._fail(error, events)

    @abstractmethod
    def _decode_bytes(self, chunk: bytes, events: list[StreamEvent]) -> None:
        """Decode the frames that this chunk completes, and append their events."""

    @abstractmethod
    def _decode_remaining(self, events: list[StreamEvent]) -> None:
        """Decode the frames that are still buffered when the bytes end."""

    @abstractmethod
    def _build_message(self, status: MessageStatus) -> Message:
        """Decode the data received so far as a plain response would be decoded."""

    def _failed_message(self) -> Message:
        return self._build_message(MessageStatus.ERROR)

    def _end_early(self, events: list[StreamEvent]) -> None:
        """End a stream whose bytes ended before the response was complete."""
        self._fail(self._early_end_error(), events)

    def _early_end_error(self) -> ProviderError:
        return NetworkError(STREAM_CUT_OFF)

    @property
    def _head(self) -> bytes:
        """The bytes received before the response started."""
        return bytes(self._head_bytes)

    def _store_head(self, chunk: bytes) -> None:
        """Store bytes received before the response starts: they may be an error body."""
        if not self._has_started and len(self._head_bytes) < self.head_bytes:
            self._head_bytes += chunk

    def _begin(
        self,
        events: list[StreamEvent],
        model: str | None,
        response_id: str | None = None,
        protocol: str | None = None,
        original_form: Wire | None = None,
    ) -> None:
        """Append the event for the start of the message, once."""
        if not self._has_started:
            # The head is needed only for bodies that are not a stream.
            self._has_started = True
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


class SseStreamDecoder(BaseStreamDecoder):
    """The base of decoders for responses that are server-sent events."""

    def __init__(self, context: RequestContext) -> None:
        super().__init__(context)
        self._frames = SseParser(context.limits)

    def _decode_bytes(self, chunk: bytes, events: list[StreamEvent]) -> None:
        if not self._has_started:
            self._store_head(chunk)
        for name, data in self._frames.feed(chunk):
            self._decode_frame(name, data, events)

    def _decode_remaining(self, events: list[StreamEvent]) -> None:
        for name, data in self._frames.finish():
            self._decode_frame(name, data, events)

    @abstractmethod
    def _decode_frame(self, name: bytes, data: bytes, events: list[StreamEvent]) -> None:
        """Decode the data of an event; the name `UNREADABLE` marks a line that is not SSE."""
