"""Frames of text streams are equal for any chunking of the bytes."""

import json
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metis.canonical.errors import ResponseLimitError
from metis.streaming import (
    JsonArrayParser,
    NdjsonParser,
    SseFrame,
    SseParser,
    StreamLimits,
    encode_sse,
)
from metis.streaming.text_frames import UNREADABLE

# Example streams of the SSE standard, and streams of real servers.
CASES: list[tuple[str, bytes, list[SseFrame]]] = [
    ("one", b"data: a\n\n", [(b"", b"a")]),
    ("named", b"event: ping\ndata: {}\n\n", [(b"ping", b"{}")]),
    ("two", b"data: a\n\ndata: b\n\n", [(b"", b"a"), (b"", b"b")]),
    ("crlf", b"event: x\r\ndata: a\r\n\r\ndata: b\r\n\r\n", [(b"x", b"a"), (b"", b"b")]),
    ("cr", b"event: x\rdata: a\r\rdata: b\r\r", [(b"x", b"a"), (b"", b"b")]),
    (
        "mixed ends",
        b"data: a\r\n\ndata: b\n\r\ndata: c\r\r\n",
        [(b"", b"a"), (b"", b"b"), (b"", b"c")],
    ),
    ("comments", b": OPENROUTER PROCESSING\n\n: x\ndata: a\n\n", [(b"", b"a")]),
    ("several data lines", b"data: YHOO\ndata: +2\ndata: 10\n\n", [(b"", b"YHOO\n+2\n10")]),
    ("no blank after the colon", b"data:test\n\ndata: test\n\n", [(b"", b"test"), (b"", b"test")]),
    ("only one blank is eaten", b"data:  two\n\n", [(b"", b" two")]),
    ("empty data", b"data\n\ndata\ndata\n\ndata:\n\n", [(b"", b""), (b"", b"\n"), (b"", b"")]),
    ("event without data", b"event: x\n\ndata: a\n\n", [(b"", b"a")]),
    ("id and retry", b"id: 1\nretry: 5\ndata: a\n\n", [(b"", b"a")]),
    ("unknown field", b"data: a\ndat: b\n\n", [(UNREADABLE, b"dat: b"), (b"", b"a")]),
    ("no field", b"data: a\n\n{}\n", [(b"", b"a"), (UNREADABLE, b"{}")]),
    ("byte order mark", b"\xef\xbb\xbfdata: a\n\n", [(b"", b"a")]),
    (
        "mark inside is data",
        b"data: a\n\ndata: \xef\xbb\xbf\n\n",
        [(b"", b"a"), (b"", b"\xef\xbb\xbf")],
    ),
    ("no end", b"data: a\n\ndata: b", [(b"", b"a"), (b"", b"b")]),
    ("no blank line", b"data: [DONE]\n", [(b"", b"[DONE]")]),
    ("blank lines between", b"\n\n\ndata: a\n\n\n\ndata: b\n\n", [(b"", b"a"), (b"", b"b")]),
    ("nothing", b"", []),
    ("utf-8", "data: é€😀\n\n".encode(), [(b"", "é€😀".encode())]),
]
IDS = [name for name, _, _ in CASES]


def frames_of(chunks: Iterable[bytes]) -> list[SseFrame]:
    parser = SseParser()
    frames = [frame for chunk in chunks for frame in parser.feed(chunk)]
    return frames + parser.finish()


@pytest.mark.row("T121", "T122")
@pytest.mark.parametrize(("_", "stream", "frames"), CASES, ids=IDS)
def test_stream_gives_equal_frames_for_any_chunking(
    _: str, stream: bytes, frames: list[SseFrame]
) -> None:
    assert frames_of([stream]) == frames
    assert frames_of(bytes([byte]) for byte in stream) == frames
    for at in range(len(stream) + 1):
        assert frames_of([stream[:at], stream[at:]]) == frames
        assert frames_of([stream[:at], b"", stream[at:]]) == frames


PIECES = st.sampled_from(
    [
        b"data: ",
        b"data:",
        b"event: ",
        b"\n",
        b"\r",
        b"\r\n",
        b"\n\n",
        b": c",
        b"x",
        b"\xc3\xa9",
        b"\xef\xbb\xbf",
    ]
)


@pytest.mark.row("T121", "T122")
@given(st.lists(PIECES).map(b"".join), st.lists(st.integers(0, 60), max_size=6))
def test_any_bytes_give_equal_frames_for_any_chunking(stream: bytes, cuts: list[int]) -> None:
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    chunks = [stream[a:b] for a, b in pairwise(places)]
    assert frames_of(chunks) == frames_of([stream]) == frames_of(bytes([b]) for b in stream)


ONE_LINE = st.binary().map(lambda data: data.translate(None, b"\r\n"))
NAMES = st.sampled_from([b"", b"ping", b"message_stop"])


@given(st.lists(st.tuples(NAMES, ONE_LINE)))
def test_encoded_frames_round_trip(frames: list[SseFrame]) -> None:
    written = [encode_sse(data, event) for event, data in frames]
    assert frames_of(written) == frames
    assert frames_of([b"".join(written)]) == frames


def test_a_parser_can_be_used_again_after_the_end() -> None:
    parser = SseParser()
    parser.feed(b"event: x\ndata: half")
    assert parser.finish() == [(b"x", b"half")]
    assert parser.finish() == []
    assert parser.feed(b"\xef\xbb\xbfdata: a\n\n") == [(b"", b"a")]


def lines_of(*chunks: bytes) -> list[bytes]:
    parser = NdjsonParser()
    return [line for chunk in chunks for line in parser.feed(chunk)] + parser.finish()


@pytest.mark.row("T121")
@pytest.mark.parametrize(
    "stream", [b'{"a":1}\n{"b":2}\n', b'{"a":1}\r\n\r\n{"b":2}', b'\n{"a":1}\n\n{"b":2}\n\n']
)
def test_stream_gives_whole_lines_for_any_chunking(stream: bytes) -> None:
    wanted = [b'{"a":1}', b'{"b":2}']
    for at in range(len(stream) + 1):
        assert lines_of(stream[:at], stream[at:]) == wanted
    assert lines_of(*(bytes([byte]) for byte in stream)) == wanted


@given(st.binary(), st.integers(0, 40))
def test_any_bytes_give_equal_lines_for_any_chunking(stream: bytes, at: int) -> None:
    assert lines_of(stream[:at], stream[at:]) == lines_of(stream)


VALUES = st.recursive(
    st.none() | st.integers() | st.text(st.sampled_from('a"\\{}[],é\n'), max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)
ELEMENTS = st.lists(st.dictionaries(st.text(max_size=3), VALUES, max_size=3), max_size=5)


@given(ELEMENTS, st.integers(1, 9), st.sampled_from([None, 2]))
def test_array_elements_are_equal_for_any_chunking(
    elements: list[object], size: int, indent: int | None
) -> None:
    data = json.dumps(elements, indent=indent, ensure_ascii=False).encode()
    parser = JsonArrayParser()
    found: list[object] = []
    for at in range(0, len(data), size):
        found += [json.loads(element) for element in parser.feed(data[at : at + size])]
    assert found == elements
    assert parser.finish() == b""


def test_array_element_is_emitted_when_complete() -> None:
    parser = JsonArrayParser()
    assert parser.feed(b'[{"a": "}') == []
    assert parser.feed(b'"}') == [b'{"a": "}"}']
    assert parser.feed(b',\r\n{"b":') == []
    assert parser.finish() == b'{"b":'


@pytest.mark.parametrize("data", [b"", b"]", b"[", b"[]", b" [ ] "])
def test_empty_array_has_no_element(data: bytes) -> None:
    parser = JsonArrayParser()
    assert parser.feed(data) == []
    assert parser.finish() in (b"", b"[", b"[ ")


@pytest.mark.parametrize("size", [1, 3, 7])
def test_frame_limit_counts_only_bytes_of_that_frame(
    size: int,
) -> None:
    def fed(length: int) -> int:
        parser = SseParser(StreamLimits(frame_bytes=20))
        data = b"data: 123456\n\n" * 3 + b"data: " + b"x" * (length - 6)
        frames: list[SseFrame] = []
        for start in range(0, len(data), size):
            frames += parser.feed(data[start : start + size])
        return len(frames)

    # The end of a chunk with a frame may belong to the next one.
    assert fed(20 - size) == 3
    with pytest.raises(ResponseLimitError, match="20"):
        fed(20 + size)


def fed_bytewise(parser: NdjsonParser | JsonArrayParser, data: bytes) -> list[bytes]:
    return [each for start in range(len(data)) for each in parser.feed(data[start : start + 1])]


def test_frame_of_exactly_the_limit_is_decoded() -> None:
    value = b'{"a":"12345678"}'
    # The end of a line, or of an object, does not count: the frame is complete with it.
    most = StreamLimits(frame_bytes=len(value))
    assert fed_bytewise(NdjsonParser(most), value + b"\n" + value + b"\n") == [value, value]
    assert fed_bytewise(JsonArrayParser(most), b"[" + value + b"]") == [value]
    less = StreamLimits(frame_bytes=len(value) - 2)
    with pytest.raises(ResponseLimitError):
        fed_bytewise(NdjsonParser(less), value + b"\n")
    with pytest.raises(ResponseLimitError):
        fed_bytewise(JsonArrayParser(less), b"[" + value + b"]")
