"""Streams: the events of a response, their accumulation to content, and the byte framings."""

from metis.streaming.accumulator import Accumulator
from metis.streaming.arguments import parse_arguments
from metis.streaming.aws_event_stream import EventFrame, EventStreamParser
from metis.streaming.events import (
    BlockAdded,
    MessageComplete,
    MessageStart,
    StreamError,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
    UsageUpdate,
)
from metis.streaming.limits import DEFAULT_LIMITS, StreamLimits
from metis.streaming.text_frames import (
    JsonArrayParser,
    NdjsonParser,
    SseFrame,
    SseParser,
    encode_sse,
)

__all__ = [
    "DEFAULT_LIMITS",
    "Accumulator",
    "BlockAdded",
    "EventFrame",
    "EventStreamParser",
    "JsonArrayParser",
    "MessageComplete",
    "MessageStart",
    "NdjsonParser",
    "SseFrame",
    "SseParser",
    "StreamError",
    "StreamEvent",
    "StreamLimits",
    "TextDelta",
    "ThinkingDelta",
    "ToolUseEnd",
    "ToolUseInputDelta",
    "ToolUseStart",
    "UsageUpdate",
    "encode_sse",
    "parse_arguments",
]
