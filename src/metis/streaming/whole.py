"""Whole answers, told as a stream would tell them: a delta for each block."""

from collections.abc import Iterator

from metis.canonical.blocks import TextBlock, ThinkingBlock, ToolUseBlock
from metis.canonical.message import Message
from metis.canonical.metadata import StopReason
from metis.streaming.events import (
    BlockAdded,
    MessageComplete,
    MessageStart,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseStart,
    UsageUpdate,
)


def events_of(message: Message) -> Iterator[StreamEvent]:
    """The events of an answer that did not come as a stream."""
    own, metadata = message.id, message.metadata
    yield MessageStart(own, metadata.model, metadata.response_id)
    for index, block in enumerate(message.content):
        match block:
            case TextBlock():
                yield TextDelta(own, index, block.text)
            case ThinkingBlock():
                yield ThinkingDelta(own, index, block.text, block.signature)
            case ToolUseBlock():
                yield ToolUseStart(own, index, block.id, block.name)
                yield ToolUseEnd(own, index, block.id, block.input, block.invalid)
            case _:
                yield BlockAdded(own, index, block)
    if metadata.usage is not None:
        yield UsageUpdate(own, metadata.usage)
    yield MessageComplete(own, metadata.stop_reason or StopReason.UNKNOWN, message)
