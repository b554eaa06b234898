"""The binary AWS event stream: bytes in, frames out, cut anywhere."""

import struct
import zlib
from collections.abc import Callable, Mapping
from functools import lru_cache

import msgspec
from msgspec import Struct

from metis.canonical.errors import (
    AuthenticationError,
    InvalidRequestError,
    NetworkError,
    OtherProviderError,
    ProviderError,
    RateLimitError,
    ServerError,
)

_PRELUDE = struct.Struct(">III")
_CHECKSUM_SIZE = 4
_LEAST = _PRELUDE.size + _CHECKSUM_SIZE
_USUAL = 256
"""How many bytes the headers of a frame mostly have at the most."""
MAX_FRAME_BYTES = 24 * 1024 * 1024
"""How large a frame may be."""

HeaderValue = str | bytes | int | bool


class EventFrame(Struct, frozen=True):
    """One event: its name, what it says, and all of its headers."""

    name: str
    payload: bytes
    headers: Mapping[str, HeaderValue] = {}


class _Said(Struct):
    """What the payload of an exception tells."""

    message: str = ""


_EXCEPTIONS: Mapping[str, tuple[type[ProviderError], int]] = {
    "accessDeniedException": (AuthenticationError, 403),
    "internalServerException": (ServerError, 500),
    "modelNotReadyException": (RateLimitError, 429),
    "modelStreamErrorException": (ServerError, 424),
    "modelTimeoutException": (NetworkError, 408),
    "serviceQuotaExceededException": (InvalidRequestError, 400),
    "serviceUnavailableException": (ServerError, 503),
    "throttlingException": (RateLimitError, 429),
    "validationException": (InvalidRequestError, 400),
}
_read_said = msgspec.json.Decoder(_Said).decode


class EventStreamParser:
    """Splits a stream of bytes into frames; feed it as the bytes come, then finish.

    `error` is set when the stream is broken or its sender says that it failed; nothing comes after.
    """

    def __init__(self) -> None:
        self._buffer: bytearray = bytearray()
        self.error: ProviderError | None = None

    def feed(self, chunk: bytes) -> list[EventFrame]:
        """The frames that are complete with this chunk."""
        frames: list[EventFrame] = []
        if self.error is not None:
            return frames
        start = 0
        try:
            data = self._joined(chunk)
            while (size := _size_at(data, start)) is not None:
                frame = _frame(data[start : start + size])
                start += size
                self.error = _told(frame)
                if self.error is not None:
                    break
                frames.append(frame)
            self._buffer += data[start:]
        except _BrokenFrameError as broken:
            self.error = NetworkError(f"the event stream is broken: {broken}")
        return frames

    def _joined(self, chunk: bytes) -> bytes:
        """What is there to be read; nothing yet if a frame that began before is still not whole."""
        if not self._buffer:
            return chunk
        self._buffer += chunk
        if _size_at(self._buffer, 0) is None:
            return b""
        data, self._buffer = bytes(self._buffer), bytearray()
        return data

    def finish(self) -> None:
        """Say that no more bytes come; a frame that is not whole is an error."""
        if self._buffer and self.error is None:
            self.error = NetworkError("the event stream was cut off inside of a frame")


def encode_event_frame(headers: Mapping[str, str], payload: bytes) -> bytes:
    """The bytes of a frame whose headers are texts."""
    written = b"".join(
        bytes([len(name)]) + name.encode() + b"\x07" + len(value).to_bytes(2, "big") + value
        for name, value in ((name, text.encode()) for name, text in headers.items())
    )
    size = _LEAST + len(written) + len(payload)
    prelude = struct.pack(">II", size, len(written))
    frame = prelude + zlib.crc32(prelude).to_bytes(4, "big") + written + payload
    return frame + zlib.crc32(frame).to_bytes(_CHECKSUM_SIZE, "big")


class _BrokenFrameError(ValueError):
    """Bytes that are no frame."""


def _size_at(buffer: bytes | bytearray, start: int) -> int | None:
    """The size of the frame that begins here; None if it is not whole yet."""
    if len(buffer) - start < _PRELUDE.size:
        return None
    size, headers, checksum = _PRELUDE.unpack_from(buffer, start)
    if zlib.crc32(buffer[start : start + _PRELUDE.size - _CHECKSUM_SIZE]) != checksum:
        raise _BrokenFrameError("the checksum of a prelude is wrong")
    if size > MAX_FRAME_BYTES or size < _LEAST + headers:
        raise _BrokenFrameError(f"a frame cannot have {size} bytes")
    return size if len(buffer) - start >= size else None


def _frame(data: bytes) -> EventFrame:
    end = len(data) - _CHECKSUM_SIZE
    if zlib.crc32(data[:end]) != int.from_bytes(data[end:], "big"):
        raise _BrokenFrameError("the checksum of a frame is wrong")
    body = _PRELUDE.size + _PRELUDE.unpack_from(data)[1]
    try:
        written = data[_PRELUDE.size : body]
        headers = _known(written) if len(written) <= _USUAL else _headers(written)
    except (IndexError, KeyError, UnicodeDecodeError, struct.error) as error:
        raise _BrokenFrameError(f"a header cannot be read: {error}") from None
    return EventFrame(str(headers.get(":event-type", "")), data[body:end], headers)


@lru_cache(maxsize=64)
def _known(data: bytes) -> Mapping[str, HeaderValue]:
    """The headers of a frame; the same few come again and again."""
    return _headers(data)


def _headers(data: bytes) -> Mapping[str, HeaderValue]:
    found: dict[str, HeaderValue] = {}
    place = 0
    while place < len(data):
        named = place + 1 + data[place]
        name, kind = data[place + 1 : named].decode(), data[named]
        found[name], place = _VALUES[kind](data, named + 1)
    if place > len(data):
        raise _BrokenFrameError("a header is longer than all headers")
    return found


_Reader = Callable[[bytes, int], tuple[HeaderValue, int]]


def _number(form: str) -> _Reader:
    shape = struct.Struct(form)

    def read(data: bytes, place: int) -> tuple[int, int]:
        return shape.unpack_from(data, place)[0], place + shape.size

    return read


def _long(data: bytes, place: int) -> tuple[bytes, int]:
    start = place + 2
    end = start + int.from_bytes(data[place:start], "big")
    return data[start:end], end


def _text(data: bytes, place: int) -> tuple[str, int]:
    value, end = _long(data, place)
    return value.decode(), end


_VALUES: Mapping[int, _Reader] = {
    0: lambda _, place: (True, place),
    1: lambda _, place: (False, place),
    2: _number(">b"),
    3: _number(">h"),
    4: _number(">i"),
    5: _number(">q"),
    6: _long,
    7: _text,
    8: _number(">q"),
    9: lambda data, place: (data[place : place + 16], place + 16),
}
"""How the value of a header is read, by the number of its type."""


def _told(frame: EventFrame) -> ProviderError | None:
    """The error that a frame stands for; None if it is an event."""
    headers = frame.headers
    match headers.get(":message-type", "event"):
        case "event":
            return None
        case "exception":
            name = str(headers.get(":exception-type", ""))
            kind, status = _EXCEPTIONS.get(name, (OtherProviderError, None))
            return kind(_words(frame.payload) or name, status=status, code=name or None, kind=name)
        case other:
            name = str(headers.get(":error-code", other))
            text = str(headers.get(":error-message", "")) or name
            return ServerError(text, code=name, kind=name)


def _words(payload: bytes) -> str:
    """What an exception says; its payload is mostly JSON."""
    try:
        return _read_said(payload).message
    except (ValueError, RecursionError):
        return payload.decode(errors="replace")
