"""Codecs by the name of their protocol, and the AWS frames that Bedrock puts around a stream."""

import binascii
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Final

import msgspec
import pybase64
from msgspec import Struct

from metis.canonical.errors import (
    AuthenticationError,
    InvalidRequestError,
    NetworkError,
    ProviderError,
    RateLimitError,
)
from metis.canonical.message import Message
from metis.streaming import StreamEvent
from metis.streaming.aws_event_stream import EventFrame, EventStreamParser, encode_event_frame
from metis.streaming.text_frames import SseParser
from metis.streaming.text_frames import encode_sse as write_lines
from metis.wire.codec import Codec, StreamDecoder, StreamEncoder
from metis.wire.json_access import read_object

PROTOCOLS: Final = (
    "anthropic",
    "bedrock_converse",
    "gemini",
    "ollama",
    "openai_chat",
    "openai_responses",
)
"""Every protocol that is spoken."""


class _Codecs(Mapping[str, Codec]):
    """Codecs that are loaded when they are first asked for: most programs speak one or two."""

    def __init__(self) -> None:
        self._loaded: dict[str, Codec] = {}

    def __getitem__(self, protocol: str) -> Codec:
        found = self._loaded.get(protocol)
        if found is None:
            if protocol not in PROTOCOLS:
                raise KeyError(protocol)
            found = self._loaded[protocol] = import_module(f"metis.wire.{protocol}.codec").CODEC
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(PROTOCOLS)

    def __len__(self) -> int:
        return len(PROTOCOLS)


CODECS: Final[Mapping[str, Codec]] = _Codecs()
"""The codec of each protocol."""


_ERROR = b"error"
_EVENT = {
    ":event-type": "chunk",
    ":content-type": "application/json",
    ":message-type": "event",
}
_EXCEPTIONS: Mapping[type[ProviderError], str] = {
    AuthenticationError: "accessDeniedException",
    InvalidRequestError: "validationException",
    RateLimitError: "throttlingException",
}
_OTHER = "internalServerException"


class _Chunk(Struct):
    """What a frame carries: one event, in base64."""

    bytes: str


_read = msgspec.json.Decoder(_Chunk).decode


class AwsFrameDecoder:
    """A stream reader whose events come in frames."""

    def __init__(self, reader: StreamDecoder, codec: Codec) -> None:
        self._reader = reader
        self._codec = codec
        self._parser = EventStreamParser()
        self._has_failed = False

    @property
    def message(self) -> Message:
        """The message as far as it has come."""
        return self._reader.message

    def feed(self, chunk: bytes) -> list[StreamEvent]:
        """The events that are complete with this chunk."""
        events: list[StreamEvent] = []
        for frame in self._parser.feed(chunk):
            try:
                events += self._reader.feed(write_lines(_carried(frame)))
            except ValueError:
                self._parser.error = NetworkError("a frame of the stream holds no event")
                break
        return events + self._failed()

    def finish(self) -> list[StreamEvent]:
        """The last events."""
        self._parser.finish()
        return self._failed() + self._reader.finish()

    def _failed(self) -> list[StreamEvent]:
        """The error that the stream ended with, told once, as the protocol tells its own."""
        error = self._parser.error
        if error is None or self._has_failed:
            return []
        self._has_failed = True
        if error.code is None:
            # Nobody told of an error: the bytes are broken, and the answer with them.
            return self._reader.finish()
        _, body = self._codec.encode_error(error)
        return self._reader.feed(write_lines(body, _ERROR))


def _carried(frame: EventFrame) -> bytes:
    try:
        return pybase64.b64decode(_read(frame.payload).bytes, validate=True)
    except (msgspec.MsgspecError, binascii.Error) as error:
        raise ValueError(str(error)) from None


class AwsFrameEncoder:
    """A stream writer that puts its events into frames."""

    def __init__(self, writer: StreamEncoder, codec: Codec) -> None:
        self._writer = writer
        self._codec = codec
        self._parser = SseParser()

    def encode(self, event: StreamEvent) -> bytes:
        """The bytes for one event."""
        return self._framed(self._writer.encode(event))

    def finish(self) -> bytes:
        """The bytes that close the stream."""
        return self._framed(self._writer.finish())

    def _framed(self, lines: bytes) -> bytes:
        return b"".join(self._frame(name, data) for name, data in self._parser.feed(lines))

    def _frame(self, name: bytes, data: bytes) -> bytes:
        if name != _ERROR:
            carried = {"bytes": pybase64.b64encode_as_string(data)}
            return encode_event_frame(_EVENT, msgspec.json.encode(carried))
        error = self._codec.decode_error(read_object(data, "error"), None)
        headers = {
            ":exception-type": _EXCEPTIONS.get(type(error), _OTHER),
            ":content-type": "application/json",
            ":message-type": "exception",
        }
        return encode_event_frame(headers, msgspec.json.encode({"message": error.text}))
