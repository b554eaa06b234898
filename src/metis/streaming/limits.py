"""StreamLimits: the size limits of one response.

A faulty or hostile server could send data without end. A stream that exceeds a limit ends with a
`ResponseLimitError`, and the message received so far is stored.
"""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from metis.canonical.blocks import ContentBlock, TextBlock, ThinkingBlock, ToolUseBlock
from metis.canonical.errors import ResponseLimitError

_MIB = 1 << 20


class StreamLimits(Struct, frozen=True, kw_only=True):
    """The size limits of one response; the defaults are far above the output of any model.

    The longest outputs have about 128,000 tokens, which is less than 1 MB of text and about 40 MB
    of events. With log probabilities of twenty alternatives each token takes 2 kB.
    """

    received_bytes: int = 128 * _MIB
    """Bytes of the body as received, before decompression."""
    body_bytes: int = 128 * _MIB
    """Bytes of the body after decompression."""
    frame_bytes: int = 32 * _MIB
    """Bytes of one event or line, which may contain a generated image."""
    events: int = 2_000_000
    blocks: int = 10_000
    calls: int = 1_000
    argument_bytes: int = 16 * _MIB
    """Characters in the arguments of one call."""
    text_bytes: int = 32 * _MIB
    """Characters of text and thinking together."""
    containers: int = 4_000_000
    """JSON objects and arrays: an empty one has two bytes in the body but takes 70 in memory."""


DEFAULT_LIMITS: Final = StreamLimits()
"""The default limits of a response."""

NO_LIMITS: Final = StreamLimits(**dict.fromkeys(StreamLimits.__struct_fields__, 1 << 62))
"""Limits that are never reached, for data that is limited in another way."""

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
    """Return the error for a response that exceeds a limit; `name` is a field of StreamLimits."""
    text = f"the response has more than {getattr(limits, name):,} {_NAMES[name]}"
    return ResponseLimitError(text, code=name)


def limit_content(
    content: Sequence[ContentBlock], limits: StreamLimits
) -> tuple[Sequence[ContentBlock], ResponseLimitError | None]:
    """Return the content of a plain response within the limits, and the error if it was cut."""
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
