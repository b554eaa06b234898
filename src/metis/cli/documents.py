"""Files of messages: one JSON object, a JSON array, or JSON lines, with the line of everything."""

from collections.abc import Iterator
from typing import IO, NamedTuple

import msgspec
from msgspec import Raw

from metis.canonical import Message, decode
from metis.canonical.document import check_json
from metis.canonical.errors import DecodeError
from metis.canonical.place import line_of

_split_array = msgspec.json.Decoder(list[Raw]).decode


class Entry(NamedTuple):
    """One message of a file: its text, the line where that begins, and what was read from it."""

    data: bytes
    line: int
    message: Message | None
    error: DecodeError | None

    def line_of(self, path: str) -> int:
        """The line of the file where the value at a path of this message begins."""
        return self.line + line_of(self.data, path) - 1


def name_of(source: IO[bytes]) -> str:
    """What to call a file in a message about it; standard input is `-`."""
    name = getattr(source, "name", "<stdin>")
    return "-" if name == "<stdin>" else str(name)


def read_entries(data: bytes) -> Iterator[Entry]:
    """Every message of a file, readable or not, in order."""
    data = data.removeprefix(b"\xef\xbb\xbf")
    lines = _json_lines(data)
    if lines is not None:
        for number, line in lines:
            yield _entry(line, number)
    elif data.lstrip()[:1] == b"[":
        yield from _array_entries(data)
    elif data.strip():
        yield _entry(data, 1)


def _json_lines(data: bytes) -> list[tuple[int, bytes]] | None:
    """The lines of a JSONL file with their numbers; None if the file is one JSON document."""
    lines = [(n, line) for n, line in enumerate(data.splitlines(), 1) if line.strip()]
    looks_like_objects = all(line.strip()[:1] == b"{" for _, line in lines)
    return lines if len(lines) > 1 and looks_like_objects else None


def _array_entries(data: bytes) -> Iterator[Entry]:
    try:
        check_json(data)
        items = _split_array(data)
    except DecodeError as error:
        yield Entry(data, 1, None, error)
        return
    offset = 0
    for item in items:
        text = bytes(item)
        offset = data.index(text, offset)
        yield _entry(text, data.count(b"\n", 0, offset) + 1)
        offset += len(text)


def _entry(data: bytes, line: int) -> Entry:
    try:
        return Entry(data, line, decode(data), None)
    except DecodeError as error:
        return Entry(data, line, None, error)
