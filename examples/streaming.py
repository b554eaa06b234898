"""Split the bytes of a stream into frames, and add stream events up to content."""

from metis.canonical import ArtifactBlock, MediaSource, TextBlock, ThinkingBlock, ToolUseBlock
from metis.streaming import (
    DEFAULT_LIMITS,
    Accumulator,
    BlockAdded,
    EventFrame,
    EventStreamParser,
    JsonArrayParser,
    MessageStart,
    NdjsonParser,
    SseFrame,
    SseParser,
    StreamError,
    StreamEvent,
    StreamLimits,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
    UsageUpdate,
    encode_sse,
    parse_arguments,
)

# Server-sent events, cut anywhere.
sent = encode_sse(b'{"text":"hi"}', b"delta")
parser = SseParser()
frames: list[SseFrame] = [*parser.feed(sent[:7]), *parser.feed(sent[7:]), *parser.finish()]
assert frames == [(b"delta", b'{"text":"hi"}')]

# JSON lines, and a JSON array whose elements arrive one by one.
lines = NdjsonParser()
assert lines.feed(b'{"a":1}\n{"b"') == [b'{"a":1}']
array = JsonArrayParser()
assert array.feed(b'[{"a":1},{"b":2') == [b'{"a":1}']

# Binary frames of AWS.
binary = EventStreamParser()
complete: list[EventFrame] = binary.feed(b"\x00\x00\x00")
assert complete == []

# Events of one response: thinking, text, a tool call, a generated file.
call_id = "tu_01KR3ER9E00000000000000005"
chart = ArtifactBlock(MediaSource("base64", "iVBORw0KGgo="), "image/png")
events: list[StreamEvent] = [
    MessageStart("msg_1", model="anthropic:claude-sonnet-4-6"),
    ThinkingDelta("msg_1", 0, "Look first.", signature="sealed"),
    TextDelta("msg_1", 1, "I read "),
    TextDelta("msg_1", 1, "it."),
    ToolUseStart("msg_1", 2, call_id, "read_file"),
    ToolUseInputDelta("msg_1", 2, call_id, '{"path": "RE'),
    ToolUseInputDelta("msg_1", 2, call_id, 'ADME.md"}'),
    ToolUseEnd("msg_1", 2, call_id, {"path": "README.md"}),
    BlockAdded("msg_1", 3, chart),
]
total = Accumulator()
for event in events:
    total.add(event)
assert total.content == (
    ThinkingBlock("Look first.", signature="sealed"),
    TextBlock("I read it."),
    ToolUseBlock(id=call_id, name="read_file", input={"path": "README.md"}),
    chart,
)


def describe(event: StreamEvent) -> str:
    """Return one line about an event."""
    if isinstance(event, StreamError):
        return f"failed: {event.text}"
    if isinstance(event, UsageUpdate):
        return f"usage: {event}"
    return event.type


print([describe(event) for event in events])

# Arguments that are not a JSON object never run: the text and the fault are kept.
assert parse_arguments('{"path": "a.txt"}') == ({"path": "a.txt"}, None)
arguments, invalid = parse_arguments('{"path": ')
assert arguments == {}
assert invalid is not None
print(invalid.error)

# A response may not grow without limit.
limits = StreamLimits(received_bytes=1_000_000, blocks=100)
assert limits.blocks < DEFAULT_LIMITS.blocks
