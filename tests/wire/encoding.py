"""Helpers for tests of one codec."""

from collections.abc import Sequence

from metis.canonical import Message, ToolDefinition
from metis.wire.call import AdapterOptions
from metis.wire.codec import Codec


def encode_request(
    codec: Codec,
    messages: Sequence[Message],
    tools: Sequence[ToolDefinition],
    options: AdapterOptions,
) -> bytes:
    """Encode a request whose history has not been encoded before."""
    history = codec.history()
    history.add(messages)
    return history.body(tools, options)
