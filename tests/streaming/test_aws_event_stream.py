"""The AWS binary event stream: any chunking, and any corruption."""

import base64
import json
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpus import STEP, exchanges, needs_corpus
from metis.canonical.errors import (
    InvalidRequestError,
    NetworkError,
    OtherProviderError,
    RateLimitError,
    ServerError,
)
from metis.streaming import EventFrame, EventStreamParser


def frame(payload: bytes, **headers: str) -> bytes:
    """Return a frame as AWS writes it; `_` in the name of a header is `-` on the wire."""
    named = b"".join(
        struct.pack(">B", len(name) + 1)
        + b":"
        + name.replace("_", "-").encode()
        + struct.pack(">BH", 7, len(value))
        + value.encode()
        for name, value in headers.items()
    )
    prelude = struct.pack(">II", 16 + len(named) + len(payload), len(named))
    body = prelude + struct.pack(">I", zlib.crc32(prelude)) + named + payload
    return body + struct.pack(">I", zlib.crc32(body))


def event(name: str, payload: bytes) -> bytes:
    return frame(payload, message_type="event", event_type=name)


def read(*chunks: bytes) -> tuple[list[EventFrame], EventStreamParser]:
    parser = EventStreamParser()
    frames = [one for chunk in chunks for one in parser.feed(chunk)]
    parser.finish()
    return frames, parser


def error_of(frames: list[EventFrame]) -> list[tuple[str, bytes]]:
    return [(one.name, one.payload) for one in frames]


TWO = event("messageStart", b'{"role":"assistant"}') + event("contentBlockDelta", b"{}")


@pytest.mark.row("T135")
def test_frames_are_equal_for_any_chunking() -> None:
    whole, parser = read(TWO)
    assert error_of(whole) == [
        ("messageStart", b'{"role":"assistant"}'),
        ("contentBlockDelta", b"{}"),
    ]
    assert parser.error is None
    for size in range(1, len(TWO)):
        pieces = [TWO[n : n + size] for n in range(0, len(TWO), size)]
        cut, parser = read(*pieces)
        assert (cut, parser.error) == (whole, None)


@needs_corpus
@pytest.mark.row("T135")
def test_recorded_streams_are_decoded() -> None:
    found = 0
    for exchange in exchanges("bedrock_converse"):
        if not exchange.get("raw_b64"):
            continue
        data = base64.b64decode(exchange["raw_b64"])
        frames, parser = read(*(data[n : n + 7] for n in range(0, len(data), 7)))
        assert parser.error is None
        blocks = [block.split("\n") for block in exchange["sse"].strip().split("\n\n")]
        shown = [
            (a.removeprefix("event: "), json.loads(b.removeprefix("data: "))) for a, b in blocks
        ]
        assert [(one.name, json.loads(one.payload)) for one in frames] == shown
        found += 1
    if STEP == 1:  # a part of the corpus may have none
        assert found > 0


@pytest.mark.row("T135")
@pytest.mark.parametrize("kept", range(1, len(event("x", b"{}"))))
def test_truncated_last_frame_is_an_error(kept: int) -> None:
    frames, parser = read(TWO + event("x", b"{}")[:kept])
    assert len(frames) == 2
    assert isinstance(parser.error, NetworkError)
    assert parser.error.is_retryable


@pytest.mark.row("T135")
@pytest.mark.parametrize(
    ("name", "kind", "status"),
    [
        ("throttlingException", RateLimitError, 429),
        ("validationException", InvalidRequestError, 400),
        ("modelStreamErrorException", ServerError, 424),
        ("internalServerException", ServerError, 500),
        ("aNewException", OtherProviderError, None),
    ],
)
def test_an_exception_in_place_of_an_event_ends_the_stream(
    name: str, kind: type[Exception], status: int | None
) -> None:
    bad = frame(b'{"message":"no"}', message_type="exception", exception_type=name)
    frames, parser = read(TWO + bad + event("late", b"{}"), event("later", b"{}"))
    assert len(frames) == 2
    assert parser.error is not None
    assert type(parser.error) is kind
    assert (parser.error.text, parser.error.code, parser.error.status) == ("no", name, status)


@pytest.mark.row("T135")
def test_stream_error_is_read_from_headers() -> None:
    bad = frame(b"", message_type="error", error_code="500", error_message="broken")
    _, parser = read(TWO + bad)
    assert isinstance(parser.error, ServerError)
    assert (parser.error.text, parser.error.code) == ("broken", "500")
    plain = frame(b"not json", message_type="exception", exception_type="x")
    _, parser = read(plain)
    assert parser.error is not None
    assert parser.error.text == "not json"


@pytest.mark.row("T135")
@given(place=st.integers(0, len(TWO) - 1), flip=st.integers(1, 255))
def test_every_changed_byte_is_detected(place: int, flip: int) -> None:
    data = bytearray(TWO)
    data[place] ^= flip
    frames, parser = read(bytes(data))
    assert parser.error is not None
    assert isinstance(parser.error, NetworkError)
    assert len(frames) < 2


@given(st.binary(max_size=200))
def test_any_bytes_give_frames_or_an_error(data: bytes) -> None:
    frames, parser = read(data)
    assert (parser.error is None) is (data == b"")
    assert frames == []


def test_headers_of_every_type_are_decoded() -> None:
    named = b"".join(
        bytes([1]) + name + bytes([kind]) + value
        for name, kind, value in (
            (b"a", 0, b""),
            (b"b", 1, b""),
            (b"c", 2, b"\xff"),
            (b"d", 3, b"\x00\x02"),
            (b"e", 4, b"\x00\x00\x00\x03"),
            (b"f", 5, bytes(7) + b"\x04"),
            (b"g", 6, b"\x00\x02hi"),
            (b"h", 8, bytes(7) + b"\x05"),
            (b"i", 9, bytes(range(16))),
        )
    )
    prelude = struct.pack(">II", 16 + len(named), len(named))
    body = prelude + struct.pack(">I", zlib.crc32(prelude)) + named
    (one,), parser = read(body + struct.pack(">I", zlib.crc32(body)))
    assert parser.error is None
    values = [True, False, -1, 2, 3, 4, b"hi", 5, bytes(range(16))]
    assert list(one.headers.values()) == values
    broken = named[:-1]
    prelude = struct.pack(">II", 16 + len(broken), len(broken))
    body = prelude + struct.pack(">I", zlib.crc32(prelude)) + broken
    _, parser = read(body + struct.pack(">I", zlib.crc32(body)))
    assert isinstance(parser.error, NetworkError)
