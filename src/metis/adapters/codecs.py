"""Codecs by the name of their protocol, and the AWS frames that Bedrock puts around a stream."""

import binascii
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, Final, cast

import msgspec
import pybase64
from msgspec import Struct

from metis.canonical.errors import (
    AuthenticationError,
    DecodeError,
    InvalidRequestError,
    NetworkError,
    ProviderError,
    RateLimitError,
    ResponseLimitError,
)
from metis.canonical.json_value import json_fault
from metis.canonical.message import Message
from metis.projection import Loss
from metis.streaming import StreamEvent
from metis.streaming.aws_event_stream import EventFrame, EventStreamParser, encode_event_frame
from metis.streaming.limits import StreamLimits
from metis.streaming.text_frames import SseParser, encode_sse
from metis.wire.codec import Codec, StreamDecoder, StreamEncoder
from metis.wire.json_access import read_object
from metis.wire.stream_decoder import BaseStreamDecoder

PROTOCOLS: Final = (
    "anthropic",
    "bedrock_converse",
    "gemini",
    "ollama",
    "openai_chat",
    "openai_responses",
)
"""The names of all protocols."""


class _Codecs(Mapping[str, Codec]):
    """Codecs by protocol, each imported when it is first used: most programs need one or two."""

    def __init__(self) -> None:
        self._imported: dict[str, Codec] = {}

    def __getitem__(self, protocol: str) -> Codec:
        codec = self._imported.get(protocol)
        if codec is None:
            if protocol not in PROTOCOLS:
                raise KeyError(protocol)
            codec = self._imported[protocol] = import_module(f"metis.wire.{protocol}.codec").CODEC
        return codec

    def __iter__(self) -> Iterator[str]:
        return iter(PROTOCOLS)

    def __len__(self) -> int:
        return len(PROTOCOLS)


CODECS: Final[Mapping[str, Codec]] = _Codecs()
"""The codec of each protocol."""

_ERROR_EVENT = b"error"
# The headers of a frame as Bedrock sends it for `invoke-with-response-stream`.
_CHUNK_HEADERS = {
    ":event-type": "chunk",
    ":content-type": "application/json",
    ":message-type": "event",
}
# Clients of Bedrock read the type of an error from a header of its frame.
_EXCEPTION_TYPES: Mapping[type[ProviderError], str] = {
    AuthenticationError: "accessDeniedException",
    InvalidRequestError: "validationException",
    RateLimitError: "throttlingException",
}
_OTHER_EXCEPTION = "internalServerException"


class _Chunk(Struct):
    """The payload of a frame: one event, in base64."""

    bytes: str


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


def body_bytes(body: object) -> bytes:
    """Return a body as bytes; a dict is encoded as JSON.

    Raises:
        DecodeError: the body is neither bytes nor a dict of JSON values.
    """
    # A dict is encoded and then decoded: a message must not share objects that its caller can
    # change later.
    if isinstance(body, bytes):
        return body
    if isinstance(body, bytearray | memoryview):
        return bytes(cast("bytearray", body))
    if not isinstance(body, dict):
        raise DecodeError(f"a body must be bytes or a dict, got {type(body).__name__}")
    wire = cast("dict[str, Any]", body)
    fault = json_fault(wire)
    if fault:
        raise DecodeError(fault[1], path=fault[0])
    try:
        return msgspec.json.encode(wire)
    except (ValueError, OverflowError, RecursionError) as error:
        raise DecodeError(f"the body cannot be written as JSON: {error}") from None


class AwsFrameDecoder:
    """A stream decoder for server-sent events in AWS frames, as Bedrock sends Claude's."""

    def __init__(self, decoder: StreamDecoder, codec: Codec, limits: StreamLimits) -> None:
        self._decoder = decoder
        self._codec = codec
        self._parser = EventStreamParser(limits)
        self._has_failed = False

    @property
    def message(self) -> Message:
        """The message as far as it has been decoded."""
        return self._decoder.message

    def feed(self, chunk: bytes) -> list[StreamEvent]:
        """Return the events that are complete with this chunk."""
        events: list[StreamEvent] = []
        for frame in self._parser.feed(chunk):
            try:
                events += self._decoder.feed(encode_sse(_payload(frame)))
            except ValueError:
                self._parser.error = NetworkError("a frame of the stream contains no event")
                break
        return events + self._failure()

    def finish(self) -> list[StreamEvent]:
        """Return the last events."""
        self._parser.finish()
        return self._failure() + self._decoder.finish()

    def _failure(self) -> list[StreamEvent]:
        # Passed once to the inner decoder, in the form of its protocol, so that its message ends
        # with this error.
        error = self._parser.error
        if error is None or self._has_failed:
            return []
        self._has_failed = True
        if isinstance(error, ResponseLimitError) and isinstance(self._decoder, BaseStreamDecoder):
            return self._decoder.fail(error)
        if error.code is None:
            # AWS stated no error: the bytes are broken, and the response ends here.
            return self._decoder.finish()
        _, body = self._codec.encode_error(error)
        return self._decoder.feed(encode_sse(body, _ERROR_EVENT))


def _payload(frame: EventFrame) -> bytes:
    try:
        return pybase64.b64decode(_decode_chunk(frame.payload).bytes, validate=True)
    except (msgspec.MsgspecError, binascii.Error) as error:
        raise ValueError(str(error)) from None


class AwsFrameEncoder:
    """A stream encoder that puts server-sent events into AWS frames."""

    def __init__(self, encoder: StreamEncoder, codec: Codec) -> None:
        self._encoder = encoder
        self._codec = codec
        self._parser = SseParser()

    @property
    def losses(self) -> list[Loss]:
        """What the client does not receive of the response so far."""
        return self._encoder.losses

    def encode(self, event: StreamEvent) -> bytes:
        """Return the bytes for one event."""
        return self._frames(self._encoder.encode(event))

    def finish(self) -> bytes:
        """Return the bytes that close the stream."""
        return self._frames(self._encoder.finish())

    def _frames(self, lines: bytes) -> bytes:
        return b"".join(self._frame(name, data) for name, data in self._parser.feed(lines))

    def _frame(self, name: bytes, data: bytes) -> bytes:
        if name != _ERROR_EVENT:
            payload = {"bytes": pybase64.b64encode_as_string(data)}
            return encode_event_frame(_CHUNK_HEADERS, msgspec.json.encode(payload))
        error = self._codec.decode_error(read_object(data, "error"), None)
        headers = {
            ":exception-type": _EXCEPTION_TYPES.get(type(error), _OTHER_EXCEPTION),
            ":content-type": "application/json",
            ":message-type": "exception",
        }
        return encode_event_frame(headers, msgspec.json.encode({"message": error.text}))
