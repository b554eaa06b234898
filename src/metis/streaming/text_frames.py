"""Text framings of streams: server-sent events, JSON lines and JSON arrays.

Each parser is fed chunks of bytes, split at any position, and returns the frames that are complete.
It works on bytes, so that a character split between two chunks is complete before it is decoded. A
frame that exceeds the limits raises a ResponseLimitError.
"""

import re

from metis.streaming.limits import DEFAULT_LIMITS, StreamLimits, limit_error

SseFrame = tuple[bytes, bytes]
"""The name and the data of one event; the name is empty if the event has none."""

UNREADABLE = b"\n"
"""The name of a frame for a line without a known field; no event can have this name."""

_IGNORED_FIELDS = frozenset({b"", b"id", b"retry"})
"""Fields without content: comments, and the fields by which browsers reconnect."""
_BOM = b"\xef\xbb\xbf"
_LINE_END = re.compile(rb"\r\n|\n|\r")


class SseParser:
    """Splits server-sent events into frames: `feed` each chunk, then `finish`.

    The parser supports the standard (three line ends, comments, several data lines, a byte order
    mark) and tolerates a missing blank line at the end. It buffers at most one frame.

    A line that the standard does not define becomes a frame named `UNREADABLE`. The standard
    ignores such lines, but in a response one may be a damaged piece of the text.
    """

    def __init__(self, limits: StreamLimits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._buffered = 0
        """How many bytes have been received since the last frame."""
        self._line: list[bytes] = []
        self._event = b""
        self._data: list[bytes] = []
        self._is_first_line = True
        self._ended_on_cr = False
        self._is_between_frames = True

    def feed(self, chunk: bytes) -> list[SseFrame]:
        """Return the frames that are complete with this chunk."""
        if self._is_between_frames and b"\r" not in chunk:
            # Fast path: most servers send one frame per chunk, thousands per response, so that the
            # common forms are parsed without splitting lines.
            match chunk.split(b"\n"):
                case [data, b"", b""] if data[:6] == b"data: ":
                    return [(b"", data[6:])]
                case [event, data, b"", b""] if data[:6] == b"data: " and event[:7] == b"event: ":
                    return [(event[7:], data[6:])]
                case _ if chunk[-2:] == b"\n\n":
                    frames = _split_frames(chunk[:-2].split(b"\n\n"))
                    if frames is not None:
                        return frames
                case _:
                    pass
        frames = self._feed_lines(chunk)
        self._is_between_frames = not (self._line or self._data or self._event or self._ended_on_cr)
        if self._is_between_frames:
            self._buffered = 0
        else:
            self._buffered = len(chunk) + (0 if frames else self._buffered)
            if self._buffered > self._limits.frame_bytes:
                raise limit_error(self._limits, "frame_bytes")
        return frames

    def finish(self) -> list[SseFrame]:
        """Return the last frame, if the stream ended without the blank line that closes it."""
        frames: list[SseFrame] = []
        if self._line:
            self._read_line(b"".join(self._line), frames)
        self._read_line(b"", frames)
        self.__init__(self._limits)
        return frames

    def _feed_lines(self, chunk: bytes) -> list[SseFrame]:
        """Split a chunk into lines, and return the frames that they complete."""
        # A CRLF may be split between two chunks: this is its second byte.
        if self._ended_on_cr and chunk[:1] == b"\n":
            chunk = chunk[1:]
        elif not chunk:
            return []
        self._ended_on_cr = chunk[-1:] == b"\r"
        frames: list[SseFrame] = []
        first, *others = _LINE_END.split(chunk)
        self._line.append(first)
        for following in others:
            self._read_line(b"".join(self._line), frames)
            self._line = [following] if following else []
        if not first and not others:
            self._line.pop()
        return frames

    def _read_line(self, line: bytes, frames: list[SseFrame]) -> None:
        """Read one line; an empty line ends the current frame."""
        # The standard allows a byte order mark only at the start of the stream.
        if self._is_first_line:
            line = line.removeprefix(_BOM)
            self._is_first_line = False
        if not line:
            # The standard drops events without data.
            if self._data:
                frames.append((self._event, b"\n".join(self._data)))
            self._event, self._data = b"", []
            return
        # A comment has an empty name; OpenRouter sends them to keep the connection open.
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._event = value
        elif name not in _IGNORED_FIELDS:
            frames.append((UNREADABLE, line))


def _split_frames(blocks: list[bytes]) -> list[SseFrame] | None:
    """Return the frames of blocks that all have a common form; None otherwise."""
    frames: list[SseFrame] = []
    for block in blocks:
        first, newline, second = block.partition(b"\n")
        if not newline and first[:6] == b"data: ":
            frames.append((b"", first[6:]))
        elif first[:7] == b"event: " and second[:6] == b"data: " and b"\n" not in second:
            frames.append((first[7:], second[6:]))
        else:
            return None
    return frames


def encode_sse(data: bytes, event: bytes = b"") -> bytes:
    """Encode one server-sent event; the data must be one line."""
    return b"event: %b\ndata: %b\n\n" % (event, data) if event else b"data: %b\n\n" % data


# Ollama streams JSON lines.
class NdjsonParser:
    """Splits JSON lines into documents, one for each non-empty line."""

    def __init__(self, limits: StreamLimits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._line: list[bytes] = []
        self._buffered = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that are complete with this chunk."""
        if b"\n" not in chunk:
            self._line.append(chunk)
            self._buffered += len(chunk)
            if self._buffered > self._limits.frame_bytes:
                raise limit_error(self._limits, "frame_bytes")
            return []
        if self._line:
            chunk = b"".join((*self._line, chunk))
            self._line = []
            self._buffered = 0
        if chunk.find(b"\n") == len(chunk) - 1:  # most servers send one line per chunk
            line = chunk.strip()
            return [line] if line else []
        *lines, incomplete = chunk.split(b"\n")
        if incomplete:
            self._line.append(incomplete)
            self._buffered = len(incomplete)
        return [line for line in map(bytes.strip, lines) if line]

    def finish(self) -> list[bytes]:
        """Return the last line, if the stream ended without a line end."""
        line = b"".join(self._line).strip()
        self._line = []
        return [line] if line else []


_BRACKET_OR_QUOTE = re.compile(rb'["{}\[\]]')
_STRING_BODY = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)
_SEPARATORS = b" \t\r\n,"


# Gemini streams a JSON array unless the URL has `alt=sse`.
class JsonArrayParser:
    """Splits an array of objects into its elements, each as soon as it is complete.

    The parser tracks only brackets and strings; the caller decodes the elements and finds invalid
    JSON. No byte is scanned twice, however small the chunks are.
    """

    def __init__(self, limits: StreamLimits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._buffer: bytearray = bytearray()
        self._scanned = 0
        """How many bytes of the buffer were scanned."""
        self._depth = 0
        self._in_string = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the elements that are complete with this chunk."""
        data = self._buffer
        data += chunk
        start = 0
        elements: list[bytes] = []
        while (bracket := self._next_bracket()) is not None:
            end = self._scanned
            if bracket in b"{[":
                self._depth += 1
                if self._depth == 1:
                    start = end
            else:
                self._depth -= 1
                if self._depth == 1 and bracket == b"}":
                    elements.append(bytes(data[start:end]).lstrip(_SEPARATORS))
                    start = end
        del data[:start]
        self._scanned -= start
        if len(data) > self._limits.frame_bytes:
            raise limit_error(self._limits, "frame_bytes")
        return elements

    def finish(self) -> bytes:
        """Return the bytes of an incomplete element; empty if there is none."""
        incomplete = bytes(self._buffer).strip(_SEPARATORS + b"]")
        self.__init__(self._limits)
        return incomplete

    def _next_bracket(self) -> bytes | None:
        """Return the next bracket outside of strings; None at the end of the buffer."""
        data = self._buffer
        while True:
            if self._in_string:
                body = _STRING_BODY.match(data, self._scanned)
                self._scanned = body.end() if body else self._scanned
                if not data.startswith(b'"', self._scanned):
                    return None
                self._scanned += 1
                self._in_string = False
            match = _BRACKET_OR_QUOTE.search(data, self._scanned)
            if match is None:
                self._scanned = len(data)
                return None
            self._scanned = match.end()
            if match[0] != b'"':
                return bytes(match[0])
            self._in_string = True
