"""The bases of all stream encoders: dispatch by event, the end of a stream, and open blocks."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import msgspec
from msgspec.structs import replace

from metis.canonical.blocks import Citation, TextBlock
from metis.canonical.errors import EncodeError, NetworkError, ProviderError
from metis.canonical.message import Message
from metis.canonical.metadata import StopReason, Usage
from metis.projection.loss import Loss
from metis.streaming import (
    BlockAdded,
    MessageComplete,
    MessageStart,
    StreamError,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
    UsageUpdate,
)
from metis.streaming.events import provider_error
from metis.wire.call import RequestContext
from metis.wire.errors import STREAM_CUT_OFF, failed_stop_error, is_failed_stop
from metis.wire.json_access import Wire, read_object
from metis.wire.tool_ids import derived_id

_write = msgspec.json.Encoder().encode


class BaseStreamEncoder(ABC):
    """Turns the events of one response into the bytes of a stream.

    A protocol overrides the method of each event type that it encodes; the others return no bytes.
    """

    protocol: ClassVar[str]
    wire_id_prefix: ClassVar[str]
    encode_response: "ClassVar[staticmethod[[Message, RequestContext], bytes]]"
    """Encodes a plain response of the protocol."""
    # A table of the class: bound methods in each encoder would be reference cycles, and an ended
    # stream would stay in memory until a collection of the oldest generation.
    _encoders: ClassVar[Mapping[type, Callable[[Any, Any], bytes]]]

    def __init_subclass__(cls) -> None:
        """Build the table of event methods, in which overrides of the subclass come first."""
        super().__init_subclass__()
        cls._encoders = {
            MessageStart: cls._message_start,
            TextDelta: cls._text,
            ThinkingDelta: cls._thinking,
            ToolUseStart: cls._tool_start,
            ToolUseInputDelta: cls._tool_input,
            ToolUseEnd: cls._tool_end,
            BlockAdded: cls._block,
            UsageUpdate: cls._store_usage,
            MessageComplete: cls._complete,
            StreamError: cls._error,
        }

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self._has_started = False
        self._has_ended = False
        self._is_native = False
        """Whether the events come from this protocol, so that ids and original forms are valid."""
        self.losses: list[Loss] = []
        self._usage: Usage | None = None

    def encode(self, event: StreamEvent) -> bytes:
        """Encode one event; returns no bytes for some events and for any event after the end."""
        return b"" if self._has_ended else self._encoders[type(event)](self, event)

    def finish(self) -> bytes:
        """Return the bytes that close the stream; one without a final event ends in an error."""
        return b"" if self._has_ended else self._fail(NetworkError(STREAM_CUT_OFF))

    def _message_start(self, event: MessageStart) -> bytes:
        self._is_native = event.protocol == self.protocol
        return b""

    def _text(self, _event: TextDelta, /) -> bytes:
        return b""

    def _thinking(self, _event: ThinkingDelta, /) -> bytes:
        return b""

    def _tool_start(self, _event: ToolUseStart, /) -> bytes:
        return b""

    def _tool_input(self, _event: ToolUseInputDelta, /) -> bytes:
        return b""

    def _tool_end(self, _event: ToolUseEnd, /) -> bytes:
        return b""

    def _block(self, _event: BlockAdded, /) -> bytes:
        return b""

    def _store_usage(self, event: UsageUpdate) -> bytes:
        self._usage = event.usage
        return b""

    def _error(self, event: StreamError) -> bytes:
        unsent = b""
        if self._is_native and event.message is not None:
            unsent = self._encode_unsent(event.message)
        return unsent + self._fail(provider_error(event, self.protocol if self._is_native else ""))

    def _encode_unsent(self, _message: Message, /) -> bytes:
        """Encode the parts of a failed response that no event has carried, such as citations."""
        return b""

    def _complete(self, event: MessageComplete) -> bytes:
        self._usage = event.message.metadata.usage or self._usage
        start = self._start_late(event)
        if is_failed_stop(event.stop_reason):
            return start + self._fail(failed_stop_error(event.stop_reason))
        self._has_ended = True
        return start + self._encode_end(event)

    def _start_late(self, _event: MessageComplete, /) -> bytes:
        """Encode the start of a message if no earlier event has caused it to be encoded."""
        return b""

    @abstractmethod
    def _encode_end(self, event: MessageComplete) -> bytes:
        """Encode the end of a complete message."""

    @abstractmethod
    def _encode_failure(self, error: ProviderError) -> bytes:
        """Encode an error that ends the stream."""

    def _fail(self, error: ProviderError) -> bytes:
        self._has_ended = True
        return self._encode_failure(error)

    def _plain_body(self, event: MessageComplete) -> Wire:
        """Return the body of the plain response with the same content as this stream.

        The end of a stream is encoded from it: keys that no event carries, such as log
        probabilities, and values in the provider's original form. This way a client gets the same
        information from a stream as from a plain response.
        """
        message, metadata = event.message, event.message.metadata
        reason = event.stop_reason
        if reason is StopReason.UNKNOWN:
            reason = metadata.stop_reason  # None there has the same meaning
        if metadata.stop_reason is not reason or metadata.usage is not self._usage:
            metadata = replace(metadata, stop_reason=reason, usage=self._usage)
            message = replace(message, metadata=metadata)
        return read_object(self.encode_response(message, self._context), "response")

    def _wire_id(self, event: ToolUseStart) -> str:
        # A wire id of another protocol may contain characters that SDKs of this one reject.
        wire_id = event.provider_id if self._is_native else None
        return wire_id or derived_id(event.tool_use_id, self.wire_id_prefix)


class BlockStreamEncoder(BaseStreamEncoder):
    """The base of encoders for protocols with start and stop events for each block."""

    def __init__(self, context: RequestContext) -> None:
        super().__init__(context)
        self._open_index: int | None = None
        self._started_blocks: set[int] = set()
        """The indexes of blocks whose start has been encoded."""
        self._open_calls: dict[int, bool] = {}
        """Per index of a call without an end: whether a delta with arguments has been encoded."""
        self._citation_count = 0
        """How many citations of the open text block have been encoded."""

    @abstractmethod
    def _encode_start(self, _event: Any, /) -> bytes:
        """Encode the start of the message, unless that has been done."""

    @abstractmethod
    def _encode_block_start(self, index: int, block: Wire) -> bytes:
        """Encode the start of a block."""

    @abstractmethod
    def _encode_block_stop(self, index: int) -> bytes:
        """Encode the end of a block."""

    @abstractmethod
    def _encode_delta(self, index: int, delta: Wire) -> bytes:
        """Encode a delta of a block."""

    @abstractmethod
    def _input_delta(self, text: str) -> Wire:
        """Return the delta that carries a piece of the arguments of a call."""

    @abstractmethod
    def _citation_delta(self, citation: Mapping[str, Any]) -> Wire:
        """Return the delta that carries a citation."""

    def _open_block(self, event: Any, block: Wire) -> bytes:
        """Open the block of an event, unless it is open; an empty `block` has no start event."""
        index: int = event.content_block_index
        if self._open_index == index:
            return b""
        encoded = self._encode_start(event) + self._close_block()
        if index in self._started_blocks and type(event) is not ToolUseStart:
            # The block was interrupted by another one: a second start would be a second block.
            return encoded
        self._started_blocks.add(index)
        self._open_index, self._citation_count = index, 0
        return encoded + self._encode_block_start(index, block) if block else encoded

    def _close_block(self) -> bytes:
        """Close the open block, unless it is a call without an end event, which stays open."""
        index, self._open_index = self._open_index, None
        if index is None or index in self._open_calls:
            return b""
        return self._encode_block_stop(index)

    def _close_all(self) -> bytes:
        """Close all blocks, including calls without an end event."""
        closed = self._close_block() + b"".join(map(self._encode_block_stop, self._open_calls))
        self._open_calls.clear()
        return closed

    def _open_call(self, event: ToolUseStart, block: Wire) -> bytes:
        """Open the block of a call; an empty `block` has no start event."""
        opened = self._open_block(event, block)
        self._open_calls[event.content_block_index] = False
        return opened

    def _tool_input(self, event: ToolUseInputDelta) -> bytes:
        self._check_open(event)
        self._open_calls[event.content_block_index] = True
        return self._encode_delta(event.content_block_index, self._input_delta(event.partial_json))

    def _tool_end(self, event: ToolUseEnd) -> bytes:
        self._check_open(event)
        index, encoded = event.content_block_index, b""
        has_input = self._open_calls.pop(index)
        if (event.final_input or event.invalid) and not has_input:
            text = event.invalid.raw if event.invalid else _write(event.final_input).decode()
            encoded = self._encode_delta(index, self._input_delta(text))
        if self._open_index == index:
            self._open_index = None
        return encoded + self._encode_block_stop(index)

    def _check_open(self, event: ToolUseInputDelta | ToolUseEnd) -> None:
        if event.content_block_index not in self._open_calls:
            fault = f"the call {event.tool_use_id} is not open: encode its tool_use_start first"
            raise EncodeError(fault)

    def _encode_unsent_citations(self, message: Message) -> bytes:
        """Encode citations of the open text block that arrived only with the complete message."""
        index = self._open_index
        if index is None or index >= len(message.content):
            return b""
        block = message.content[index]
        citations = block.citations if type(block) is TextBlock else ()
        return self._encode_citations(index, citations[self._citation_count :])

    def _encode_citations(self, index: int, citations: tuple[Citation, ...]) -> bytes:
        self._citation_count += len(citations)
        return b"".join(
            self._encode_delta(index, self._citation_delta(citation.raw))
            for citation in citations
            if citation.raw is not None
        )
