"""A stream decoder stores only the partial message and the incomplete frame."""

import base64
import tracemalloc
from collections.abc import Iterable, Iterator

import pytest

from metis import adapters
from metis.adapters import Adapter
from metis.streaming import (
    MessageStart,
    StreamEvent,
    TextDelta,
    ToolUseInputDelta,
    ToolUseStart,
)
from metis.streaming.aws_event_stream import encode_event_frame
from metis.wire.call import RequestContext

pytestmark = pytest.mark.slow

CONTEXT = RequestContext(session_id="sess_long")
LONG = 30_000_000
"""The size of a long stream in bytes."""
ALLOWANCE = 2_000_000
"""Memory that a decoder may use independently of the input."""
ID = "01KR3QAYG00000000000000000"
PIECE = "The lamp is lit at dusk. " * 20


def frames(adapter: Adapter, events: Iterable[StreamEvent]) -> Iterator[bytes]:
    """Yield the bytes of events, generated one by one."""
    encoder = adapter.stream_encoder(CONTEXT)
    for event in events:
        yield encoder.encode(event)


def peak(adapter: Adapter, chunks: Iterable[bytes]) -> tuple[int, int, int]:
    """Return the peak memory, the number of bytes fed, and the length of the message."""
    decoder = adapter.stream_decoder(CONTEXT)
    came = 0
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for chunk in chunks:
            came += len(chunk)
            decoder.feed(chunk)
        decoder.finish()
        held = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    letters = sum(len(str(getattr(block, "text", ""))) for block in decoder.message.content)
    return held, came, letters


@pytest.mark.parametrize("name", adapters.names())
def test_long_response_is_stored_once(name: str) -> None:
    adapter = adapters.get(name)
    start = MessageStart(ID, "m", "resp_1")
    delta = TextDelta(ID, 0, PIECE)
    size = len(next(iter(frames(adapter, [start, delta]))))
    one = list(frames(adapter, [start, delta, delta]))[2]
    count = LONG // max(len(one), size)
    events = (start, *(delta for _ in range(count)))
    held, came, letters = peak(adapter, frames(adapter, events))
    assert came > LONG * 0.9
    assert letters == count * len(PIECE)
    # The deltas, and the text that is joined at the end.
    assert held < 2.5 * letters + ALLOWANCE


def silence(adapter: Adapter) -> bytes:
    """Return about a thousand bytes of frames without content."""
    if adapter.profile.aws_framed:
        ping = b'{"type":"ping"%b}' % (b" " * 750)
        payload = b'{"bytes":"%b"}' % base64.b64encode(ping)
        return encode_event_frame({":message-type": "event", ":event-type": "chunk"}, payload)
    if adapter.profile.protocol == "bedrock_converse":
        return encode_event_frame({":message-type": "event", ":event-type": "ping"}, b" " * 1000)
    is_lines = adapter.profile.protocol == "ollama"
    return b"\n" * 1000 if is_lines else b": keep-alive %b\n\n" % (b"." * 1000)


@pytest.mark.parametrize("name", adapters.names())
def test_frames_without_content_use_no_memory(name: str) -> None:
    adapter = adapters.get(name)
    start, word = frames(adapter, [MessageStart(ID, "m", "resp_1"), TextDelta(ID, 0, "lit")])
    comment = silence(adapter)
    chunks = (start, *(comment for _ in range(LONG // len(comment))), word)
    held, came, letters = peak(adapter, chunks)
    assert came > LONG * 0.9
    assert letters == 3
    assert held < ALLOWANCE


@pytest.mark.parametrize("name", adapters.names())
def test_fragmented_frame_is_copied_a_bounded_number_of_times(name: str) -> None:
    adapter = adapters.get(name)
    text = "x" * 4_000_000
    start, frame = frames(adapter, [MessageStart(ID, "m", "resp_1"), TextDelta(ID, 0, text)])
    pieces = (frame[place : place + 4096] for place in range(0, len(frame), 4096))
    held, _, letters = peak(adapter, (start, *pieces))
    assert letters == len(text)
    assert held < 6 * len(frame) + ALLOWANCE


IN_PIECES = [
    name
    for name in adapters.names()
    if adapters.get(name).profile.protocol not in ("gemini", "ollama")
]
"""Protocols with streamed arguments; elsewhere a call comes whole."""


@pytest.mark.parametrize("name", IN_PIECES)
def test_long_arguments_are_copied_a_bounded_number_of_times(name: str) -> None:
    adapter = adapters.get(name)
    piece = "lit " * 100
    count = 20_000
    whole = '{"text": "' + piece * count + '"}'
    call = ToolUseStart(ID, 0, "tu_01KR3QAYG00000000000000000", "f")
    events: list[StreamEvent] = [MessageStart(ID, "m", "resp_1"), call]
    events += [
        ToolUseInputDelta(ID, 0, call.tool_use_id, whole[place : place + 400])
        for place in range(0, len(whole), 400)
    ]
    held, came, _ = peak(adapter, list(frames(adapter, events)))
    assert came > len(whole)
    # The deltas, the text, the parsed arguments, and the original form of the call.
    assert held < 8 * len(whole) + ALLOWANCE
