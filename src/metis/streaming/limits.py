"""StreamLimits: how much one response may hold.

A provider, or a server in its place, could send without end. What exceeds a limit ends the stream
with a `ResponseLimitError`, and the message so far is stored.
"""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from metis.canonical.blocks import ContentBlock, TextBlock, ThinkingBlock, ToolUseBlock
from metis.canonical.errors import ResponseLimitError

_MIB = 1 << 20


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


def limit_content(
    content: Sequence[ContentBlock], limits: StreamLimits
) -> tuple[Sequence[ContentBlock], ResponseLimitError | None]:
    """Return the content of a plain response up to the first limit of a stream, and the error."""
    error: ResponseLimitError | None = None
    if len(content) > limits.blocks:
        content, error = content[: limits.blocks], limit_error(limits, "blocks")
    if len(content) > limits.calls:
        calls = [number for number, block in enumerate(content) if type(block) is ToolUseBlock]
        if len(calls) > limits.calls:
            content, error = content[: calls[limits.calls]], limit_error(limits, "calls")
    length = 0
    for number, block in enumerate(content):
        if isinstance(block, TextBlock | ThinkingBlock):
            length += len(block.text)
            if length > limits.text_bytes:
                return content[:number], limit_error(limits, "text_bytes")
    return content, error
