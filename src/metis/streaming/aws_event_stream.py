"""The binary AWS event stream: parser for chunks split at any position, and frame encoder.

A frame consists of its length, the length of its headers, a checksum of both, the headers, the
payload and a checksum of all preceding bytes. The stream ends with an error after a wrong checksum,
an exception frame or a truncated frame; otherwise it has ended normally (T135).
"""

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
    ResponseLimitError,
    ServerError,
)
from metis.streaming.limits import DEFAULT_LIMITS, StreamLimits, limit_error

# The length of the frame, the length of its headers, and the checksum of both.
_PRELUDE = struct.Struct(">III")
_CHECKSUM_SIZE = 4
_MIN_FRAME_BYTES = _PRELUDE.size + _CHECKSUM_SIZE
_MAX_CACHED_HEADER_BYTES = 256
"""Parsed headers up to this size are cached, because a stream repeats a few of them."""

HeaderValue = str | bytes | int | bool


class EventFrame(Struct, frozen=True):
    """One event: its name, its payload, and all of its headers."""

    name: str
    payload: bytes
    headers: Mapping[str, HeaderValue] = {}


class _ExceptionPayload(Struct):
    """The part of the payload of an exception that is used."""

    message: str = ""


_EXCEPTIONS: Mapping[str, tuple[type[ProviderError], int]] = {
    "accessDeniedException": (AuthenticationError, 403),
    "internalServerException": (ServerError, 500),
    # The model is being loaded; AWS expects a retry, as after throttling.
    "modelNotReadyException": (RateLimitError, 429),
    "modelStreamErrorException": (ServerError, 424),
    "modelTimeoutException": (NetworkError, 408),
    "serviceQuotaExceededException": (InvalidRequestError, 400),
    "serviceUnavailableException": (ServerError, 503),
    "throttlingException": (RateLimitError, 429),
    "validationException": (InvalidRequestError, 400),
}
_decode_exception = msgspec.json.Decoder(_ExceptionPayload).decode


class EventStreamParser:
    """Splits a stream of bytes into frames: `feed` each chunk, then `finish`.

    `error` is set if the stream is damaged or contains an exception; no frames follow it.
    """

    def __init__(self, limits: StreamLimits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._buffer: bytearray = bytearray()
        self.error: ProviderError | None = None

    def feed(self, chunk: bytes) -> list[EventFrame]:
        """Return the frames that are complete with this chunk."""
        frames: list[EventFrame] = []
        if self.error is not None:
            return frames
        start = 0
        try:
            data = self._available(chunk)
            while (size := _size_at(data, start, self._limits)) is not None:
                frame = _parse_frame(data[start : start + size])
                start += size
                self.error = _error_of(frame)
                if self.error is not None:
                    break
                frames.append(frame)
            self._buffer += data[start:]
        except _BrokenFrameError as broken:
            self.error = NetworkError(f"the event stream is broken: {broken}")
        except ResponseLimitError as error:
            self.error = error
        return frames

    def _available(self, chunk: bytes) -> bytes:
        """Return the bytes to parse; none as long as the buffered frame is incomplete."""
        if not self._buffer:
            return chunk
        self._buffer += chunk
        if _size_at(self._buffer, 0, self._limits) is None:
            return b""
        data, self._buffer = bytes(self._buffer), bytearray()
        return data

    def finish(self) -> None:
        """Mark the end of the bytes; an incomplete frame sets `error`."""
        # The framing has no end marker: only an incomplete frame shows a truncated stream (T135).
        if self._buffer and self.error is None:
            self.error = NetworkError("the event stream was cut off inside of a frame")


def encode_event_frame(headers: Mapping[str, str], payload: bytes) -> bytes:
    """Encode a frame with string headers."""
    encoded_headers = b"".join(
        bytes([len(name)]) + name.encode() + b"\x07" + len(value).to_bytes(2, "big") + value
        for name, value in ((name, text.encode()) for name, text in headers.items())
    )
    size = _MIN_FRAME_BYTES + len(encoded_headers) + len(payload)
    prelude = struct.pack(">II", size, len(encoded_headers))
    frame = prelude + zlib.crc32(prelude).to_bytes(4, "big") + encoded_headers + payload
    return frame + zlib.crc32(frame).to_bytes(_CHECKSUM_SIZE, "big")


class _BrokenFrameError(ValueError):
    """Raised for bytes that are not a valid frame."""


def _size_at(buffer: bytes | bytearray, start: int, limits: StreamLimits) -> int | None:
    """Return the size of the frame at an offset; None if it is incomplete."""
    if len(buffer) - start < _PRELUDE.size:
        return None
    size, header_size, checksum = _PRELUDE.unpack_from(buffer, start)
    if zlib.crc32(buffer[start : start + _PRELUDE.size - _CHECKSUM_SIZE]) != checksum:
        raise _BrokenFrameError("the checksum of a prelude is wrong")
    # Without the limit a damaged length would cause unlimited buffering.
    if size > limits.frame_bytes:
        raise limit_error(limits, "frame_bytes")
    if size < _MIN_FRAME_BYTES + header_size:
        raise _BrokenFrameError(f"a frame cannot have {size} bytes")
    return size if len(buffer) - start >= size else None


def _parse_frame(data: bytes) -> EventFrame:
    end = len(data) - _CHECKSUM_SIZE
    if zlib.crc32(data[:end]) != int.from_bytes(data[end:], "big"):
        raise _BrokenFrameError("the checksum of a frame is wrong")
    body = _PRELUDE.size + _PRELUDE.unpack_from(data)[1]
    try:
        encoded = data[_PRELUDE.size : body]
        is_small = len(encoded) <= _MAX_CACHED_HEADER_BYTES
        headers = _cached_headers(encoded) if is_small else _parse_headers(encoded)
    except (IndexError, KeyError, UnicodeDecodeError, struct.error) as error:
        raise _BrokenFrameError(f"a header cannot be read: {error}") from None
    return EventFrame(str(headers.get(":event-type", "")), data[body:end], headers)


def _parse_headers(data: bytes) -> Mapping[str, HeaderValue]:
    headers: dict[str, HeaderValue] = {}
    offset = 0
    while offset < len(data):
        name_end = offset + 1 + data[offset]
        name, kind = data[offset + 1 : name_end].decode(), data[name_end]
        headers[name], offset = _HEADER_READERS[kind](data, name_end + 1)
    if offset > len(data):
        raise _BrokenFrameError("a header is longer than all headers")
    return headers


_cached_headers = lru_cache(maxsize=64)(_parse_headers)
_Reader = Callable[[bytes, int], tuple[HeaderValue, int]]


def _number_reader(form: str) -> _Reader:
    number = struct.Struct(form)

    def read(data: bytes, offset: int) -> tuple[int, int]:
        return number.unpack_from(data, offset)[0], offset + number.size

    return read


def _read_bytes(data: bytes, offset: int) -> tuple[bytes, int]:
    start = offset + 2
    end = start + int.from_bytes(data[offset:start], "big")
    return data[start:end], end


def _read_text(data: bytes, offset: int) -> tuple[str, int]:
    value, end = _read_bytes(data, offset)
    return value.decode(), end


_HEADER_READERS: Mapping[int, _Reader] = {
    0: lambda _, offset: (True, offset),
    1: lambda _, offset: (False, offset),
    2: _number_reader(">b"),
    3: _number_reader(">h"),
    4: _number_reader(">i"),
    5: _number_reader(">q"),
    6: _read_bytes,
    7: _read_text,
    8: _number_reader(">q"),
    9: lambda data, offset: (data[offset : offset + 16], offset + 16),
}
"""The readers of header values, by the type number of the AWS format."""


def _error_of(frame: EventFrame) -> ProviderError | None:
    """Return the error that a frame reports; None if it is an event."""
    headers = frame.headers
    match headers.get(":message-type", "event"):
        case "event":
            return None
        case "exception":
            name = str(headers.get(":exception-type", ""))
            kind, status = _EXCEPTIONS.get(name, (OtherProviderError, None))
            text = _exception_text(frame.payload) or name
            return kind(text, status=status, code=name or None, kind=name)
        case other:
            name = str(headers.get(":error-code", other))
            text = str(headers.get(":error-message", "")) or name
            return ServerError(text, code=name, kind=name)


def _exception_text(payload: bytes) -> str:
    """Return the message of an exception, whose payload is usually JSON."""
    try:
        return _decode_exception(payload).message
    except (ValueError, RecursionError):
        return payload.decode(errors="replace")
