"""Server-sent events: bytes in, frames out, wherever the bytes are cut.

The parser works on bytes, so that a character cut in two by the network is whole again before
anybody decodes it. It knows what the standard asks for (three line ends, comments, several data
lines, a byte order mark) and forgives what servers get wrong (no blank line at the end). It holds
no more than the frame that is coming in.
"""

import re

Frame = tuple[bytes, bytes]
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

    def feed(self, chunk: bytes) -> list[Frame]:
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

    def finish(self) -> list[Frame]:
        """The last frame, if the stream ended without the blank line that should close it."""
        frames: list[Frame] = []
        if self._line:
            self._take_line(b"".join(self._line), frames)
        self._take_line(b"", frames)
        self.__init__()
        return frames

    def _feed_lines(self, chunk: bytes) -> list[Frame]:
        if self._ended_on_cr and chunk[:1] == b"\n":
            chunk = chunk[1:]
        elif not chunk:
            return []
        self._ended_on_cr = chunk[-1:] == b"\r"
        frames: list[Frame] = []
        first, *others = _LINE_END.split(chunk)
        self._line.append(first)
        for following in others:
            self._take_line(b"".join(self._line), frames)
            self._line = [following] if following else []
        if not first and not others:
            self._line.pop()
        return frames

    def _take_line(self, line: bytes, frames: list[Frame]) -> None:
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


def _whole_frames(blocks: list[bytes]) -> list[Frame] | None:
    """The frames of blocks that all have the usual form; else None."""
    frames: list[Frame] = []
    for block in blocks:
        first, newline, second = block.partition(b"\n")
        if not newline and first[:6] == b"data: ":
            frames.append((b"", first[6:]))
        elif first[:7] == b"event: " and second[:6] == b"data: " and b"\n" not in second:
            frames.append((first[7:], second[6:]))
        else:
            return None
    return frames


def write_frame(data: bytes, event: bytes = b"") -> bytes:
    """A frame as it goes over the wire; the data must be one line."""
    return b"event: %b\ndata: %b\n\n" % (event, data) if event else b"data: %b\n\n" % data
