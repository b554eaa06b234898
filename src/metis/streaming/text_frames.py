"""Text framings of streams: server-sent events, JSON lines and JSON arrays.

Each parser is fed with bytes as they arrive, cut anywhere, and returns the frames that are
complete. The parsers work on bytes, so a character cut in two by the network is complete before it
is decoded.
"""

import re

SseFrame = tuple[bytes, bytes]
"""One event: its name, empty if it has none, and its data."""

_BOM = b"\xef\xbb\xbf"
_LINE_END = re.compile(rb"\r\n|\n|\r")


class SseParser:
    """Splits a stream of bytes into frames; feed it as the bytes come, then finish."""

    def __init__(self) -> None:
        self._line: list[bytes] = []
        self._event = b""
        self._data: list[bytes] = []
        self._is_first_line = True
        self._ended_on_cr = False
        self._is_between = True

    def feed(self, chunk: bytes) -> list[SseFrame]:
        """The frames that are complete with this chunk."""
        if self._is_between and b"\r" not in chunk:
            # Most servers send one frame at a time; this is the road that has to be fast.
            match chunk.split(b"\n"):
                case [data, b"", b""] if data[:6] == b"data: ":
                    return [(b"", data[6:])]
                case [event, data, b"", b""] if data[:6] == b"data: " and event[:7] == b"event: ":
                    return [(event[7:], data[6:])]
                case _ if chunk[-2:] == b"\n\n":
                    frames = _whole_frames(chunk[:-2].split(b"\n\n"))
                    if frames is not None:
                        return frames
                case _:
                    pass
        frames = self._feed_lines(chunk)
        self._is_between = not (self._line or self._data or self._event or self._ended_on_cr)
        return frames

    def finish(self) -> list[SseFrame]:
        """The last frame, if the stream ended without the blank line that should close it."""
        frames: list[SseFrame] = []
        if self._line:
            self._take_line(b"".join(self._line), frames)
        self._take_line(b"", frames)
        self.__init__()
        return frames

    def _feed_lines(self, chunk: bytes) -> list[SseFrame]:
        if self._ended_on_cr and chunk[:1] == b"\n":
            chunk = chunk[1:]
        elif not chunk:
            return []
        self._ended_on_cr = chunk[-1:] == b"\r"
        frames: list[SseFrame] = []
        first, *others = _LINE_END.split(chunk)
        self._line.append(first)
        for following in others:
            self._take_line(b"".join(self._line), frames)
            self._line = [following] if following else []
        if not first and not others:
            self._line.pop()
        return frames

    def _take_line(self, line: bytes, frames: list[SseFrame]) -> None:
        if self._is_first_line:
            line = line.removeprefix(_BOM)
            self._is_first_line = False
        if not line:
            if self._data:
                frames.append((self._event, b"\n".join(self._data)))
            self._event, self._data = b"", []
            return
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._event = value


def _whole_frames(blocks: list[bytes]) -> list[SseFrame] | None:
    """The frames of blocks that all have the usual form; else None."""
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
    """A frame as it goes over the wire; the data must be one line."""
    return b"event: %b\ndata: %b\n\n" % (event, data) if event else b"data: %b\n\n" % data


class NdjsonParser:
    """Splits a stream of bytes into lines that are not blank; feed it as the bytes come."""

    def __init__(self) -> None:
        self._line: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that are complete with this chunk."""
        if b"\n" not in chunk:
            self._line.append(chunk)
            return []
        if self._line:
            chunk = b"".join((*self._line, chunk))
            self._line = []
        if chunk.find(b"\n") == len(chunk) - 1:  # a line a chunk is what most servers send
            line = chunk.strip()
            return [line] if line else []
        *lines, rest = chunk.split(b"\n")
        if rest:
            self._line.append(rest)
        return [line for line in map(bytes.strip, lines) if line]

    def finish(self) -> list[bytes]:
        """The last line, if the stream ended without a line end."""
        line = b"".join(self._line).strip()
        self._line = []
        return [line] if line else []


_OUTSIDE = re.compile(rb'["{}\[\]]')
_INSIDE = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)
_BETWEEN = b" \t\r\n,"


class JsonArrayParser:
    """Splits an array of objects into its elements; feed it as the bytes come."""

    def __init__(self) -> None:
        self._buffer: bytearray = bytearray()
        self._seen = 0
        """Up to here the buffer was looked at."""
        self._depth = 0
        self._in_string = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """The elements that are complete with this chunk."""
        data = self._buffer
        data += chunk
        start = 0
        elements: list[bytes] = []
        while (mark := self._next_mark()) is not None:
            at = self._seen
            if mark in b"{[":
                self._depth += 1
                if self._depth == 1:
                    start = at
            else:
                self._depth -= 1
                if self._depth == 1 and mark == b"}":
                    elements.append(bytes(data[start:at]).lstrip(_BETWEEN))
                    start = at
        del data[:start]
        self._seen -= start
        return elements

    def finish(self) -> bytes:
        """What is left: an element that was cut off, or nothing."""
        rest = bytes(self._buffer).strip(_BETWEEN + b"]")
        self.__init__()
        return rest

    def _next_mark(self) -> bytes | None:
        """The next bracket that is no part of a string; None if it has not come yet."""
        data = self._buffer
        while True:
            if self._in_string:
                end = _INSIDE.match(data, self._seen)
                self._seen = end.end() if end else self._seen
                if not data.startswith(b'"', self._seen):
                    return None
                self._seen += 1
                self._in_string = False
            found = _OUTSIDE.search(data, self._seen)
            if found is None:
                self._seen = len(data)
                return None
            self._seen = found.end()
            if found[0] != b'"':
                return bytes(found[0])
            self._in_string = True
