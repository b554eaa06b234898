"""JSON lines: bytes in, one document a line out, wherever the bytes are cut."""


class NdjsonParser:
    """Splits a stream of bytes into lines that are not blank; feed it as the bytes come."""

    def __init__(self) -> None:
        self._line: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that are complete with this chunk."""
        first, *others = chunk.split(b"\n")
        self._line.append(first)
        lines: list[bytes] = []
        for following in others:
            lines.append(b"".join(self._line).strip())
            self._line = [following]
        return [line for line in lines if line]

    def finish(self) -> list[bytes]:
        """The last line, if the stream ended without a line end."""
        line = b"".join(self._line).strip()
        self._line = []
        return [line] if line else []
