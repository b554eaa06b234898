"""Codec: the functions and properties of one protocol, as one value."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol

from msgspec import Struct

from metis.canonical.blocks import Citation
from metis.canonical.errors import ProviderError
from metis.canonical.message import Message
from metis.canonical.tools import ToolDefinition
from metis.projection.loss import Loss
from metis.projection.target import Target
from metis.streaming import StreamEvent
from metis.wire.call import AdapterOptions, CanonicalRequest, RequestContext
from metis.wire.declared_tools import DeclareTools
from metis.wire.errors import OverflowWording
from metis.wire.history import HistoryEncoder
from metis.wire.json_access import Wire, maybe_list, maybe_object
from metis.wire.output_format import OutputFormatCodec
from metis.wire.reasoning import ReasoningCodec
from metis.wire.request import RequestSteps


class StreamDecoder(Protocol):
    """Turns the bytes of a streamed response into events."""

    def feed(self, chunk: bytes) -> list[StreamEvent]:
        """Return the events that are complete with this chunk."""
        ...

    def finish(self) -> list[StreamEvent]:
        """Return the last events."""
        ...

    @property
    def message(self) -> Message:
        """The message received so far."""
        ...


class StreamEncoder(Protocol):
    """Turns events into the bytes of a streamed response."""

    @property
    def losses(self) -> list[Loss]:
        """What the client does not receive of the answer so far."""
        ...

    def encode(self, event: StreamEvent) -> bytes:
        """Encode one event."""
        ...

    def finish(self) -> bytes:
        """Return the bytes that close the stream."""
        ...


class Route(Struct, frozen=True):
    """The path of a request, and the native options that are not sent there."""

    path: str
    lost_options: tuple[str, ...] = ()


EncodeCitation = Callable[[Citation], Mapping[str, Any] | None]
"""Encodes a citation of another provider; None if the protocol has no citations like it."""


def _no_paths(_: Message) -> Iterable[str]:
    return ()


def _no_citation(_: Citation) -> None:
    return None


def _cache_marks(wire: Mapping[str, Any]) -> list[Wire]:
    """Return the cache marks on a request itself and on its tools."""
    parts = (wire, *map(maybe_object, maybe_list(wire.get("tools"))))
    return [mark for part in parts if (mark := maybe_object(part.get("cache_control")))]


class Codec(Struct, frozen=True, kw_only=True):
    """One wire protocol, both directions."""

    protocol: str
    decode_request: Callable[[bytes, RequestContext], CanonicalRequest]
    request_steps: tuple[RequestSteps, ...]
    """The same step by step, for readers that have decoded a part of the request before; the first
    that fit are used."""
    history: Callable[[], HistoryEncoder]
    decode_response: Callable[[bytes | dict[str, Any], RequestContext], Message]
    encode_response: Callable[[Message, RequestContext], bytes]
    stream_decoder: Callable[[RequestContext], StreamDecoder]
    stream_encoder: Callable[[RequestContext], StreamEncoder]
    decode_error: Callable[[dict[str, Any], int | None], ProviderError]
    encode_error: Callable[[ProviderError], tuple[int, bytes]]
    overflow: OverflowWording
    """How errors of the protocol word a full context window."""
    reasoning: ReasoningCodec
    output: OutputFormatCodec
    shared_keys: frozenset[str]
    """The keys of a request that shared options determine; inner keys have dots."""
    common_keys: frozenset[str] = frozenset()
    """Other keys of a request that mean the same at every host of the protocol."""
    server_tools: Callable[[Mapping[str, Any]], list[str]] | None = None
    """Returns the tools that the provider runs, where they have a shape of their own."""
    unmapped_tool_paths: Callable[[Mapping[str, Any]], Iterable[tuple[str, str]]] | None = None
    """Yields name and path of keys of client tools that `ToolDefinition` has no field for."""
    declared_tools: DeclareTools | None = None
    """Returns the tools of a client that are no plain functions, where the protocol has such."""
    tool_modes: Mapping[str, Mapping[str, Any]] = {}
    """The native keys for tool modes that no other protocol has, by their names in lower case."""
    route: Callable[[HistoryEncoder, Sequence[ToolDefinition], AdapterOptions], Route] | None = None
    """Returns the path of a request, if the protocol has more than one."""
    unmapped_paths: Callable[[Message], Iterable[str]] = _no_paths
    """Yields the paths in the original form of a message that other protocols have no field for."""
    fit_target: Callable[[Target, AdapterOptions], Target] | None = None
    """Changes the target of a projection by the options of the request."""
    encode_citation: EncodeCitation = _no_citation
    stream_citations: Literal["all", "last", "none"] = "none"
    """Which texts of a stream may have citations: they are only known when the message ends."""
    cache_marks: Callable[[Mapping[str, Any]], list[Wire]] = _cache_marks
    """Returns the cache marks that a request sets outside of its messages."""
    has_private_parts: bool = False
    """Whether a host of the protocol has parts that clients of its other hosts cannot read."""
    has_sealed_thinking: bool = False
    """Whether a response has a field for seals, which the client sends back."""
    joins_blocks: bool = False
    """Whether a message has one text and one list of calls, so that thinking has no place."""
    broken_calls: Literal["all", "stream", "native", "none"] = "none"
    """Which responses can hold a call whose arguments are no JSON object: all, streams only, those
    that came from the same provider, or none."""
