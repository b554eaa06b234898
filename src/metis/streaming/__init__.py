"""Streams: events of an answer as it comes, what they add up to, and the frames that carry them."""

from metis.streaming.accumulate import Accumulator
from metis.streaming.arguments import read_arguments
from metis.streaming.event_stream import EventFrame, EventStreamParser
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
from metis.streaming.json_array import JsonArrayParser
from metis.streaming.ndjson import NdjsonParser
from metis.streaming.sse import Frame, SseParser, write_frame

__all__ = [
    "Accumulator",
    "BlockAdded",
    "EventFrame",
    "EventStreamParser",
    "Frame",
    "JsonArrayParser",
    "MessageComplete",
    "MessageStart",
    "NdjsonParser",
    "SseParser",
    "StreamError",
    "StreamEvent",
    "TextDelta",
    "ThinkingDelta",
    "ToolUseEnd",
    "ToolUseInputDelta",
    "ToolUseStart",
    "UsageUpdate",
    "read_arguments",
    "write_frame",
]
