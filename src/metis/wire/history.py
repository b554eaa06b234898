"""The wire messages of a conversation, each encoded once, and request bodies with them."""

from collections.abc import Callable, Sequence
from operator import is_
from typing import Any

from msgspec import Raw, Struct

from metis.canonical.tools import ToolDefinition
from metis.wire.call import AdapterOptions
from metis.wire.json_access import Wire

WriteJson = Callable[[Any], bytes]
"""Writes JSON with sorted keys."""
EncodeEnvelope = Callable[[AdapterOptions, Sequence[ToolDefinition]], Wire]
"""Makes the options of a request, with its tools among them."""
EncodedJson = bytes | memoryview
"""Turns as they stand in a list: one or several, with commas between them."""

_GAP = Raw(b"[\0]")  # no JSON holds such a byte, so that it marks where the turns belong


class Envelope(Struct, frozen=True, gc=False):
    """What stands around the turns of a request, and what it was made of."""

    tools: tuple[ToolDefinition, ...]
    options: AdapterOptions
    before: bytes
    after: bytes

    def matches(self, tools: Sequence[ToolDefinition], options: AdapterOptions) -> bool:
        """Whether it says the same: these very tools, and equal options."""
        own = self.tools
        return len(own) == len(tools) and all(map(is_, own, tools)) and self.options == options


class EncodedMessages:
    """Turns that nothing can join any more; each is written once, with the first body it is in.

    What stands around them is written again only when somebody asks otherwise.
    """

    __slots__ = ("_head", "_key", "_waiting", "_write", "_written")

    def __init__(self, key: str, write: WriteJson) -> None:
        """The turns stand under `key`."""
        self._key = key
        self._write = write
        self._written: list[EncodedJson] = []
        self._waiting: list[Any] = []
        self._head: Envelope | None = None

    def copy(self) -> "EncodedMessages":
        """The same turns, to which others can be added."""
        other = EncodedMessages(self._key, self._write)
        other._written, other._waiting = [*self._written], [*self._waiting]
        other._head = self._head
        return other

    @property
    def is_empty(self) -> bool:
        """Whether there are no turns yet."""
        return not self._written and not self._waiting

    def add(self, turns: Sequence[Any]) -> None:
        """Add turns that are complete."""
        self._waiting += turns

    def body(
        self,
        tools: Sequence[ToolDefinition],
        options: AdapterOptions,
        around: EncodeEnvelope,
        last: Any = None,
    ) -> bytes:
        """The request with these turns and what `around` makes of tools and options.

        `last` is a turn that is not complete yet.
        """
        if not self._written:
            return self._first_body(tools, options, around, last)
        if self._waiting:
            self._written.append(memoryview(self._write(self._waiting))[1:-1])
            self._waiting = []
        head = self._head
        if head is None or not head.matches(tools, options):
            head = self._head = self._new_head(tools, options, around(options, tools))
        parts: list[EncodedJson] = [head.before]
        for turn in self._written:
            parts += (turn, b",")
        if last is None:
            parts.pop()
        else:
            parts.append(self._write(last))
        parts.append(head.after)
        return b"".join(parts)

    def _first_body(
        self,
        tools: Sequence[ToolDefinition],
        options: AdapterOptions,
        around: EncodeEnvelope,
        last: Any,
    ) -> bytes:
        """The same in one go: a long history is not copied, its bytes stay where they are."""
        turns = self._waiting if last is None else [*self._waiting, last]
        wire = around(options, tools)
        body = self._write({**wire, self._key: turns})
        if self._waiting:
            head = self._head = self._new_head(tools, options, wire)
            tail = len(head.after)
            if last is not None:
                tail += len(self._write(last)) + len(b",")
            self._written.append(memoryview(body)[len(head.before) : len(body) - tail])
            self._waiting = []
        return body

    def _new_head(
        self, tools: Sequence[ToolDefinition], options: AdapterOptions, wire: Wire
    ) -> Envelope:
        before, _, after = self._write({**wire, self._key: _GAP}).partition(b"\0")
        return Envelope(tuple(tools), options, before, after)
