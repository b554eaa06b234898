"""StreamLimits: how much one response may hold, and the meter that counts it.

A provider, or a server in its place, could send without end. Every stream decoder counts
with one `StreamMeter`; what exceeds a limit ends the stream with a `ResponseLimitError`, and the
message so far is stored.
"""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from metis.canonical.blocks import ContentBlock, ToolUseBlock
from metis.canonical.errors import ResponseLimitError
from metis.streaming.events import StreamEvent, TextDelta, ThinkingDelta

_MIB = 1 << 20
_FREE_BYTES = _MIB
"""Most responses are smaller: counting would cost a fifth of the time of a delta."""


class StreamLimits(Struct, frozen=True, kw_only=True):
    """How much one response may hold; the defaults are far above what models can generate.

    The longest output of today's models is some 128,000 tokens, which are less than 1 MB of text
    and some 40 MB of events. Twenty alternatives per token (log probabilities) make 2 kB of each.
    """

    received_bytes: int = 128 * _MIB
    """Bytes of the body as they come over the network."""
    body_bytes: int = 128 * _MIB
    """Bytes of the body after decompression."""
    frame_bytes: int = 32 * _MIB
    """Bytes of one event or line; generated images come in one."""
    events: int = 2_000_000
    blocks: int = 10_000
    calls: int = 1_000
    argument_bytes: int = 16 * _MIB
    """Characters in the arguments of one call."""
    text_bytes: int = 32 * _MIB
    """Characters of text and thinking together."""
    containers: int = 4_000_000
    """JSON objects and arrays: an empty one takes two bytes of a body and 70 of memory."""


DEFAULT_LIMITS: Final = StreamLimits()
"""The default limits of a response."""

NO_LIMITS: Final = StreamLimits(**dict.fromkeys(StreamLimits.__struct_fields__, 1 << 62))
"""Limits that nothing meets, for what is limited in another way."""

_NAMES = {
    "received_bytes": "bytes received",
    "body_bytes": "bytes",
    "frame_bytes": "bytes in one event",
    "events": "events",
    "blocks": "content blocks",
    "calls": "tool calls",
    "argument_bytes": "characters in the arguments of one call",
    "text_bytes": "characters of text",
    "containers": "JSON objects and arrays",
}


def limit_error(limits: StreamLimits, name: str) -> ResponseLimitError:
    """Return the error for a response that exceeds a limit, by the name of its field."""
    text = f"the response has more than {getattr(limits, name):,} {_NAMES[name]}"
    return ResponseLimitError(text, code=name)


def check_content(content: Sequence[ContentBlock], limits: StreamLimits) -> None:
    """Raise an error if the content of a plain response exceeds the limits of a stream."""
    if len(content) > limits.blocks:
        raise limit_error(limits, "blocks")
    if len(content) > limits.calls < sum(type(block) is ToolUseBlock for block in content):
        raise limit_error(limits, "calls")


class StreamMeter:
    """Counts what one response holds; each method raises a ResponseLimitError at its limit."""

    __slots__ = (
        "_arguments",
        "_blocks",
        "_calls",
        "_containers",
        "_events",
        "_text",
        "free_bytes",
        "limits",
    )

    def __init__(self, limits: StreamLimits = DEFAULT_LIMITS) -> None:
        self.limits = limits
        counted = limits.body_bytes, limits.events, limits.text_bytes, limits.containers
        self.free_bytes: int = min(_FREE_BYTES, *counted)
        """Up to this size nothing is counted but blocks and calls: no limit can be exceeded."""
        self._events = self._blocks = self._calls = self._text = 0
        self._containers = 0
        self._arguments: dict[object, int] = {}

    def lift(self) -> None:
        """Count without limits from here on: an error is building the message of what came."""
        self.limits = NO_LIMITS

    def add_chunk(self, chunk: bytes, size: int) -> None:
        """Count a chunk, before it is parsed; `size` is that of all chunks."""
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
        """Count a tool call that begins, which is a block as well."""
        self._calls += 1
        if self._calls > self.limits.calls:
            raise limit_error(self.limits, "calls")
        self.add_block()

    def add_arguments(self, call: object, size: int) -> None:
        """Count characters of the arguments of one call, which `call` identifies."""
        total = self._arguments[call] = self._arguments.get(call, 0) + size
        if total > self.limits.argument_bytes:
            raise limit_error(self.limits, "argument_bytes")
