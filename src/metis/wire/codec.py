"""Codec: what each protocol package offers, as one value."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from msgspec import Struct

from metis.canonical.errors import ProviderError
from metis.canonical.message import Message
from metis.canonical.tools import ToolDefinition
from metis.streaming import StreamEvent
from metis.wire.call import AdapterOptions, CanonicalRequest, RequestContext


class StreamReader(Protocol):
    """Turns the bytes of a streamed answer into events."""

    def feed(self, chunk: bytes) -> list[StreamEvent]:
        """The events that are complete with this chunk."""
        ...

    def finish(self) -> list[StreamEvent]:
        """The last events."""
        ...

    @property
    def message(self) -> Message:
        """The message as far as it has come."""
        ...


class StreamWriter(Protocol):
    """Turns events into the bytes of a streamed answer."""

    def encode(self, event: StreamEvent) -> bytes:
        """The bytes for one event."""
        ...

    def finish(self) -> bytes:
        """The bytes that close the stream."""
        ...


class Route(Struct, frozen=True):
    """Where a request goes, and which of its protocol's own options have no place there."""

    path: str
    lost: tuple[str, ...] = ()


class Codec(Struct, frozen=True, kw_only=True):
    """One wire protocol, both directions."""

    protocol: str
    decode_request: Callable[[bytes, RequestContext], CanonicalRequest]
    encode_request: Callable[[Sequence[Message], Sequence[ToolDefinition], AdapterOptions], bytes]
    decode_response: Callable[[bytes | dict[str, Any], RequestContext], Message]
    encode_response: Callable[[Message, RequestContext], bytes]
    stream_reader: Callable[[RequestContext], StreamReader]
    stream_writer: Callable[[RequestContext], StreamWriter]
    decode_error: Callable[[dict[str, Any], int | None], ProviderError]
    encode_error: Callable[[ProviderError], tuple[int, bytes]]
    shared_keys: frozenset[str]
    """The keys of a request that the shared options speak for."""
    route: Callable[[Sequence[Message], Sequence[ToolDefinition], AdapterOptions], Route] | None = (
        None
    )
    """Where a request goes, if the protocol has more than one place for it."""
