"""A decoder holds the message that comes, the frame that is cut, and nothing else."""

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
"""The bytes of a long stream."""
ROOM = 2_000_000
"""What a decoder may take for itself, whatever comes."""
ID = "01KR3QAYG00000000000000000"
PIECE = "The lamp is lit at dusk. " * 20


def frames(adapter: Adapter, events: Iterable[StreamEvent]) -> Iterator[bytes]:
    """The bytes of events, made one by one."""
    encoder = adapter.stream_encoder(CONTEXT)
    for event in events:
        yield encoder.encode(event)


def peak(adapter: Adapter, chunks: Iterable[bytes]) -> tuple[int, int, int]:
    """The most that was held, the bytes that came, and the letters of the message."""
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
def test_a_long_answer_is_held_once(name: str) -> None:
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
    # The pieces, and the text that is made of them in the end.
    assert held < 2.5 * letters + ROOM


def silence(adapter: Adapter) -> bytes:
    """About a thousand bytes that say nothing."""
    if adapter.profile.aws_framed:
        ping = b'{"type":"ping"%b}' % (b" " * 750)
        payload = b'{"bytes":"%b"}' % base64.b64encode(ping)
        return encode_event_frame({":message-type": "event", ":event-type": "chunk"}, payload)
    if adapter.profile.protocol == "bedrock_converse":
        return encode_event_frame({":message-type": "event", ":event-type": "ping"}, b" " * 1000)
    is_lines = adapter.profile.protocol == "ollama"
    return b"\n" * 1000 if is_lines else b": keep-alive %b\n\n" % (b"." * 1000)


@pytest.mark.parametrize("name", adapters.names())
def test_frames_that_say_nothing_leave_nothing(name: str) -> None:
    adapter = adapters.get(name)
    start, word = frames(adapter, [MessageStart(ID, "m", "resp_1"), TextDelta(ID, 0, "lit")])
    comment = silence(adapter)
    chunks = (start, *(comment for _ in range(LONG // len(comment))), word)
    held, came, letters = peak(adapter, chunks)
    assert came > LONG * 0.9
    assert letters == 3
    assert held < ROOM


@pytest.mark.parametrize("name", adapters.names())
def test_a_frame_in_small_pieces_is_held_a_few_times_at_most(name: str) -> None:
    adapter = adapters.get(name)
    text = "x" * 4_000_000
    start, frame = frames(adapter, [MessageStart(ID, "m", "resp_1"), TextDelta(ID, 0, text)])
    pieces = (frame[place : place + 4096] for place in range(0, len(frame), 4096))
    held, _, letters = peak(adapter, (start, *pieces))
    assert letters == len(text)
    assert held < 6 * len(frame) + ROOM


IN_PIECES = [
    name
    for name in adapters.names()
    if adapters.get(name).profile.protocol not in ("gemini", "ollama")
]
"""Where arguments come in pieces; elsewhere a call comes whole."""


@pytest.mark.parametrize("name", IN_PIECES)
def test_long_arguments_are_held_a_few_times_at_most(name: str) -> None:
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
    # The pieces, the text, what it says, and the call as the provider spelled it.
    assert held < 8 * len(whole) + ROOM
