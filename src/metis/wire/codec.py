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
        """The losses so far: parts of the response that this stream cannot carry."""
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
"""Encodes a citation of another provider; returns None if the protocol has no equivalent."""


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
    """`decode_request` as separate steps, so that a reader can continue from a history that it has
    decoded before; the first entry that fits the request is used."""
    history: Callable[[], HistoryEncoder]
    decode_response: Callable[[bytes | dict[str, Any], RequestContext], Message]
    encode_response: Callable[[Message, RequestContext], bytes]
    stream_decoder: Callable[[RequestContext], StreamDecoder]
    stream_encoder: Callable[[RequestContext], StreamEncoder]
    decode_error: Callable[[dict[str, Any], int | None], ProviderError]
    encode_error: Callable[[ProviderError], tuple[int, bytes]]
    overflow: OverflowWording
    """The error text by which clients of the protocol recognise a full context window."""
    reasoning: ReasoningCodec
    output: OutputFormatCodec
    shared_keys: frozenset[str]
    """The keys of a request that shared options determine; paths of inner keys use dots."""
    common_keys: frozenset[str] = frozenset()
    """Other keys of a request that have the same meaning at every host of the protocol."""
    server_tools: Callable[[Mapping[str, Any]], list[str]] | None = None
    """Returns the names of the tools in a request that the provider runs; None for protocols that
    list them in `tools` with a `type`."""
    unmapped_tool_paths: Callable[[Mapping[str, Any]], Iterable[tuple[str, str]]] | None = None
    """Yields tool name and path for each key of a client tool without a `ToolDefinition` field."""
    declared_tools: DeclareTools | None = None
    """Returns the client's tools that are not plain functions; None if the protocol has none."""
    tool_modes: Mapping[str, Mapping[str, Any]] = {}
    """The native keys for tool modes that only this protocol has, by mode name in lower case."""
    route: Callable[[HistoryEncoder, Sequence[ToolDefinition], AdapterOptions], Route] | None = None
    """Returns the path of a request, if the protocol has more than one."""
    unmapped_paths: Callable[[Message], Iterable[str]] = _no_paths
    """Yields the paths in the original form of a message that other protocols have no field for."""
    fit_target: Callable[[Target, AdapterOptions], Target] | None = None
    """Adapts the target of a projection to the options of the request."""
    encode_citation: EncodeCitation = _no_citation
    stream_citations: Literal["all", "last", "none"] = "none"
    """Which text blocks of a stream can receive citations that arrive with the end of the message:
    all of them, only the last, or none."""
    cache_marks: Callable[[Mapping[str, Any]], list[Wire]] = _cache_marks
    """Returns the cache marks of a request that are not in its messages."""
    has_private_parts: bool = False
    """Whether some hosts of the protocol send parts that clients of its other hosts reject."""
    has_sealed_thinking: bool = False
    """Whether a response has a field for seals, which the client returns in its next request."""
    joins_blocks: bool = False
    """Whether a message is one text and one list of calls, so that the position of thinking between
    them is lost."""
    broken_calls: Literal["all", "stream", "native", "none"] = "none"
    """Which responses can carry a call whose arguments are not a JSON object: all, streams only,
    responses that came from the same provider, or none."""
