"""The wire messages of a conversation, each encoded once, and the request bodies with them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from operator import is_
from typing import Any, ClassVar, Self

from msgspec import Raw, Struct

from metis.canonical.message import Message
from metis.canonical.tools import ToolDefinition
from metis.wire.call import AdapterOptions
from metis.wire.json_access import Wire
from metis.wire.original_form import EMPTY
from metis.wire.tool_ids import TOOL_ID_PREFIX

WriteJson = Callable[[Any], bytes]
"""Writes JSON with sorted keys, so that a stored history gives the same bytes again (T176)."""
EncodeEnvelope = Callable[[AdapterOptions, Sequence[ToolDefinition]], Wire]
"""Encodes the keys of a request other than its messages: options and tools."""
EncodedJson = bytes | memoryview
"""One or several wire messages as they occur in a JSON list, separated by commas."""

# JSON contains no NUL byte, so that this one marks where the messages are inserted.
_PLACEHOLDER = Raw(b"[\0]")


class Envelope(Struct, frozen=True, gc=False):
    """The bytes before and after the messages of a request, and the values they encode."""

    tools: tuple[ToolDefinition, ...]
    options: AdapterOptions
    before: bytes
    after: bytes

    def matches(self, tools: Sequence[ToolDefinition], options: AdapterOptions) -> bool:
        """Whether the envelope was encoded from these tools (by identity) and equal options."""
        if len(self.tools) != len(tools) or self.options != options:
            return False
        return all(map(is_, self.tools, tools))


class EncodedMessages(Struct, eq=False):
    """Complete wire messages; each is encoded once, together with the first body that contains it.

    The envelope is encoded again only when tools or options change.
    """

    _key: str
    """The key of the messages in a request."""
    _write: WriteJson
    _encoded: list[EncodedJson] = []
    _waiting: list[Any] = []
    _envelope: Envelope | None = None

    def copy(self) -> "EncodedMessages":
        """Return an independent copy: messages added to it are not added to this one."""
        encoded, waiting = [*self._encoded], [*self._waiting]
        return EncodedMessages(self._key, self._write, encoded, waiting, self._envelope)

    @property
    def is_empty(self) -> bool:
        """Whether there are no messages yet."""
        return not self._encoded and not self._waiting

    def add(self, messages: Sequence[Any]) -> None:
        """Add wire messages that are complete."""
        self._waiting += messages

    def encode_waiting(self) -> None:
        """Encode the messages that were added since the last body was built."""
        if self._waiting:
            self._encoded.append(memoryview(self._write(self._waiting))[1:-1])
            self._waiting = []

    def body(
        self,
        tools: Sequence[ToolDefinition],
        options: AdapterOptions,
        encode_envelope: EncodeEnvelope,
        open_message: Any = None,
    ) -> bytes:
        """Return the request body; `open_message` is the last message, which may still grow."""
        # Encoding a long history with its first body avoids one copy of all its bytes.
        if not self._encoded and (self._envelope is None or not self._waiting):
            return self._first_body(tools, options, encode_envelope, open_message)
        self.encode_waiting()
        envelope = self._envelope
        if envelope is None or not envelope.matches(tools, options):
            wire = encode_envelope(options, tools)
            envelope = self._envelope = self._new_envelope(tools, options, wire)
        pieces: list[EncodedJson] = [envelope.before]
        for messages in self._encoded:
            pieces += (messages, b",")
        if open_message is None:
            pieces.pop()
        else:
            pieces.append(self._write(open_message))
        pieces.append(envelope.after)
        return b"".join(pieces)

    def _first_body(
        self,
        tools: Sequence[ToolDefinition],
        options: AdapterOptions,
        encode_envelope: EncodeEnvelope,
        open_message: Any,
    ) -> bytes:
        """Encode the first body in one pass, and store its messages as a view of its bytes."""
        messages = self._waiting if open_message is None else [*self._waiting, open_message]
        wire = encode_envelope(options, tools)
        body = self._write({**wire, self._key: messages})
        if messages:
            self._envelope = self._new_envelope(tools, options, wire)
        if self._envelope is not None and self._waiting:
            envelope = self._envelope
            suffix_length = len(envelope.after)
            if open_message is not None:
                suffix_length += len(self._write(open_message)) + len(b",")
            self._encoded.append(memoryview(body)[len(envelope.before) : len(body) - suffix_length])
            self._waiting = []
        return body

    def _new_envelope(
        self, tools: Sequence[ToolDefinition], options: AdapterOptions, wire: Wire
    ) -> Envelope:
        before, _, after = self._write({**wire, self._key: _PLACEHOLDER}).partition(b"\0")
        return Envelope(tuple(tools), options, before, after)


class HistoryEncoder(ABC):
    """Encodes the messages of one conversation, each once, and builds request bodies from them.

    Copies share the wire ids: the wire id of a call is the same in every request.
    """

    wire_id_prefix: ClassVar[str] = ""
    """The prefix of wire ids that are derived from tool_use_ids."""
    _shared: ClassVar[tuple[str, ...]] = ()
    """The attributes that a subclass shares with its copies, and therefore never changes in place.

    Dicts by call id may be extended in place: their values are the same for all copies.
    """

    def __init__(self, key: str, write: WriteJson) -> None:
        """Create the encoder of an empty history; `key` is the key of the messages in a request."""
        self._encoded = EncodedMessages(key, write)
        self._open: Any = None
        """The last wire message, as long as further blocks may be added to it."""
        self._wire_ids: dict[str, str] = {}

    def copy(self) -> Self:
        """Return an encoder of the same history that can be extended independently."""
        # Attributes are assigned one by one: copying `__dict__` takes three times as long.
        other = object.__new__(type(self))
        other._encoded, other._open = self._encoded.copy(), self._open
        other._wire_ids = self._wire_ids
        for name in self._shared:
            setattr(other, name, getattr(self, name))
        return other

    @property
    def is_empty(self) -> bool:
        """Whether a request would contain no message besides the system prompt."""
        return self._open is None and self._encoded.is_empty

    @abstractmethod
    def add(self, messages: Sequence[Message], ids: Mapping[str, str] = EMPTY) -> None:
        """Add messages that were projected for the protocol; `ids` are wire ids of some calls."""

    def body(self, tools: Sequence[ToolDefinition], options: AdapterOptions) -> bytes:
        """Return the request body with this history."""
        return self._encoded.body(tools, options, self._encode_envelope, self._open)

    def encode_waiting(self) -> None:
        """Encode all complete messages now, so that copies share the bytes."""
        self._encoded.encode_waiting()

    @abstractmethod
    def _encode_envelope(self, options: AdapterOptions, tools: Sequence[ToolDefinition]) -> Wire:
        """Encode options, tools and the system prompt as keys of the request."""

    def _wire_id(self, tool_use_id: str) -> str:
        wire_id = self._wire_ids.get(tool_use_id)
        return wire_id or self.wire_id_prefix + tool_use_id.removeprefix(TOOL_ID_PREFIX)
