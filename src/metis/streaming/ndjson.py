"""JSON lines: bytes in, one document a line out, wherever the bytes are cut."""


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
