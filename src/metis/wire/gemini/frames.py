"""Frames of a streamed answer: server-sent events, an array of chunks, or one plain body.

Which of them it is, the first byte tells: an array begins with a bracket, a body with a brace, and
neither begins a line of an event.
"""

from metis.streaming import JsonArrayParser, SseParser

_BLANKS = b" \t\r\n"
_BOM = b"\xef\xbb\xbf"
_HEAD_BYTES = 65536


class ChunkParser:
    """Splits the bytes of a stream into chunks of JSON; feed it as the bytes come, then finish."""

    def __init__(self) -> None:
        self._events = SseParser()
        self._array: JsonArrayParser | None = None
        self._is_sure = False
        self._is_body: bool = False
        self._head: bytes = b""
        """What came before the first chunk, in case that it is no stream at all."""

    def feed(self, data: bytes) -> list[bytes]:
        """The chunks that are complete with these bytes."""
        if not self._is_sure:
            data = self._recognise(data)
        if self._is_body:
            self._head += data
            return []
        if self._array is not None:
            return self._array.feed(data)
        if len(self._head) < _HEAD_BYTES:
            self._head += data
        return [found for _, found in self._events.feed(data)]

    def finish(self) -> list[bytes]:
        """The last chunks; bytes that were no stream are one chunk."""
        if self._is_body or not self._is_sure:
            return [self._head] if self._head.strip() else []
        if self._array is not None:
            rest = self._array.finish()
            return [rest] if rest else []
        return [found for _, found in self._events.finish()]

    @property
    def head(self) -> bytes:
        """The beginning of what came, if it was no array."""
        return self._head

    def _recognise(self, data: bytes) -> bytes:
        """Find out what kind of stream it is; the bytes that are to be read then."""
        data = self._head + data
        first = data.removeprefix(_BOM).lstrip(_BLANKS)[:1]
        self._head = b""
        if not first or _BOM.startswith(data):
            self._head = data
            return b""
        self._is_sure = True
        if first == b"[":
            self._array = JsonArrayParser()
        self._is_body = first == b"{"
        return data
