"""Codec: what each protocol package offers, as one value."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol

from msgspec import Struct

from metis.canonical.blocks import Citation
from metis.canonical.errors import ProviderError
from metis.canonical.message import Message
from metis.canonical.tools import ToolDefinition
from metis.projection.target import Target
from metis.streaming import StreamEvent
from metis.wire.call import AdapterOptions, CanonicalRequest, RequestContext
from metis.wire.json_access import Wire, maybe_list, maybe_object
from metis.wire.original_form import EMPTY
from metis.wire.output_format import OutputFormatCodec
from metis.wire.reasoning import ReasoningCodec


class StreamDecoder(Protocol):
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


class StreamEncoder(Protocol):
    """Turns events into the bytes of a streamed answer."""

    def encode(self, event: StreamEvent) -> bytes:
        """The bytes for one event."""
        ...

    def finish(self) -> bytes:
        """The bytes that close the stream."""
        ...


class HistoryEncoder(Protocol):
    """Writes the turns of a conversation, each once, and request bodies with them."""

    def add(self, messages: Sequence[Message], ids: Mapping[str, str] = EMPTY) -> None:
        """Add messages that were projected for the protocol; `ids` are those of odd calls."""
        ...

    def body(self, tools: Sequence[ToolDefinition], options: AdapterOptions) -> bytes:
        """The request body with these turns."""
        ...

    def copy(self) -> "HistoryEncoder":
        """The same turns, to which others can be added."""
        ...


class Route(Struct, frozen=True):
    """Where a request goes, and which of its protocol's own options have no place there."""

    path: str
    lost_options: tuple[str, ...] = ()


EncodeCitation = Callable[[Citation], Mapping[str, Any] | None]
"""Writes a citation that another provider gave; None if the protocol has no words for it."""


def _nothing(_: Message) -> Iterable[str]:
    return ()


def _marks(wire: Mapping[str, Any]) -> list[Wire]:
    """The marks on a request itself and on its tools."""
    parts = (wire, *map(maybe_object, maybe_list(wire.get("tools"))))
    return [mark for part in parts if (mark := maybe_object(part.get("cache_control")))]


def _no_citation(_: Citation) -> None:
    return None


class Codec(Struct, frozen=True, kw_only=True):
    """One wire protocol, both directions."""

    protocol: str
    decode_request: Callable[[bytes, RequestContext], CanonicalRequest]
    history: Callable[[], HistoryEncoder]
    decode_response: Callable[[bytes | dict[str, Any], RequestContext], Message]
    encode_response: Callable[[Message, RequestContext], bytes]
    stream_decoder: Callable[[RequestContext], StreamDecoder]
    stream_encoder: Callable[[RequestContext], StreamEncoder]
    decode_error: Callable[[dict[str, Any], int | None], ProviderError]
    encode_error: Callable[[ProviderError], tuple[int, bytes]]
    shared_keys: frozenset[str]
    """The keys of a request that the shared options speak for; inner keys have dots."""
    common_keys: frozenset[str] = frozenset()
    """Other keys of a request that mean the same at every host of the protocol."""
    reasoning: ReasoningCodec = ReasoningCodec()
    """How a request says how much the model shall think."""
    output: OutputFormatCodec = OutputFormatCodec()
    """How a request says what the answer shall be."""
    server_tools: Callable[[Mapping[str, Any]], list[str]] | None = None
    """The provider's own tools in a request, where they have a shape of their own."""
    unmapped_tool_paths: Callable[[Mapping[str, Any]], Iterable[tuple[str, str]]] | None = None
    """What such a request says of the client's tools beyond their definitions: tool and path."""
    tool_modes: Mapping[str, Mapping[str, Any]] = {}
    """What a request says for words of a tool mode that no other protocol has, in small letters."""
    route: Callable[[HistoryEncoder, Sequence[ToolDefinition], AdapterOptions], Route] | None = None
    """Where a request goes, if the protocol has more than one place for it."""
    unmapped_paths: Callable[[Message], Iterable[str]] = _nothing
    """The paths of what a message says in this protocol only, kept in its spelling."""
    fit_target: Callable[[Target, AdapterOptions], Target] | None = None
    """What the options of a request change about its target."""
    encode_citation: EncodeCitation = _no_citation
    """How an answer cites what another provider cited."""
    stream_citations: Literal["all", "last", "none"] = "none"
    """Which texts of a streamed answer may have citations: they are known when it has come."""
    cache_marks: Callable[[Mapping[str, Any]], list[Wire]] = _marks
    """The cache marks that a request sets beside its messages."""
    has_private_parts: bool = False
    """Whether a host of the protocol has parts of its own that clients of others cannot read."""
    has_sealed_thinking: bool = False
    """Whether an answer may hold thoughts that the client cannot read."""
    has_generated_images: bool = False
    """Whether an answer may hold pictures that the model made."""
    generated_media_types: frozenset[str] | None = None
    """The media types of what a model made that an answer may hold, where not all may."""
