"""JSON arrays as streams: bytes in, one element out as soon as it is whole, wherever they are cut.

Only brackets and quotes are looked at; whether an element is JSON is for its reader to say. No byte
is looked at twice, however small the pieces are.
"""

import re

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
