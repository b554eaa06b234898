"""Source: a session file of another program, read in bounded pieces and never changed.

The program may be writing while we read: no lock is taken, and a last line without its end is
reported as such. Every size is bounded, because a file may come from anywhere.
"""

import errno
import hashlib
import io
import os
import stat
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple, Self, cast

import msgspec

from metis.canonical.errors import ForeignDocumentError
from metis.canonical.reader import LIMITS, Limits

MAX_FILE_BYTES = 4 * 1024**3
"""The largest file that is read; also the limit of what a compressed file may unpack to."""
MAX_RECORDS = 10_000_000
"""How many lines of one file are read."""
SAMPLE_BYTES = 256 * 1024
"""How much of a file is read to recognise its format."""
MEMBER_MARK = "#"
"""Stands between the name of a database and the id of one of its sessions."""
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"

_DATABASE_SUFFIXES = frozenset({".db", ".sqlite", ".sqlite3"})
_MAX_ZSTD_WINDOW = 128 * 1024 * 1024
_O_BINARY = getattr(os, "O_BINARY", 0)
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_read_json = msgspec.json.Decoder().decode


def member_name(path: Path, member: str) -> str:
    """Return the name of one session in a file of several; without a session, that of the file."""
    return f"{path}{MEMBER_MARK}{member}" if member else str(path)


def file_state(path: Path) -> tuple[int, int]:
    """Return size and time of change of a file; for a database with those of its log.

    Raises:
        OSError: the file cannot be looked at.
    """
    status = path.stat()
    log = log_of(path)
    if log is None:
        return status.st_size, status.st_mtime_ns
    return status.st_size + log.st_size, max(status.st_mtime_ns, log.st_mtime_ns)


def log_of(path: Path) -> os.stat_result | None:
    """Return the status of a write-ahead log: SQLite writes changes there first. None if empty."""
    if path.suffix not in _DATABASE_SUFFIXES:
        return None
    with suppress(OSError):
        status = path.with_name(f"{path.name}-wal").stat()
        return status if status.st_size else None
    return None


class ForeignRecord(NamedTuple):
    """One record of a file: a line, or an item of a list."""

    at: int
    """Its position in the file, from 1: the number of the line or of the item."""
    value: Any
    """Its JSON value; None if it is not JSON."""
    raw: bytes
    fault: str = ""
    """Why it has no value."""
    is_torn: bool = False
    """Whether it is a last line without its end: the program may still be writing it."""

    @property
    def fields(self) -> dict[str, Any]:
        """The value if it is an object, else an empty one."""
        return cast("dict[str, Any]", self.value) if isinstance(self.value, dict) else {}


class Source:
    """A file, the bytes of one, or one session of a database with several."""

    def __init__(self, path: Path | None, data: bytes | None = None, *, member: str = "") -> None:
        self.path = path
        self.member = member
        """The id of the only session to read of a database; empty for all of them."""
        self._data = data
        self._sample: bytes | None = None

    @classmethod
    def of(cls, name: str) -> Self:
        """Return the file of a name, or one session of it: `opencode.db#ses_1`."""
        file, mark, member = name.rpartition(MEMBER_MARK)
        if mark and not Path(name).exists() and Path(file).is_file():
            return cls(Path(file), member=member)
        return cls(Path(name))

    @property
    def name(self) -> str:
        """The name of the file, for people."""
        return "-" if self.path is None else member_name(self.path, self.member)

    @property
    def identity(self) -> str:
        """What tells this file from others; empty for bytes that came from nowhere."""
        return "" if self.path is None else member_name(self.path.absolute(), self.member)

    def is_file(self) -> bool:
        """Return whether there is a regular file of this name."""
        return self.path is not None and self.path.is_file()

    def content_digest(self) -> str:
        """Return a checksum of the beginning, for a file without any other identity."""
        return hashlib.sha256(self.sample()).hexdigest()

    @contextmanager
    def open(self) -> Generator[IO[bytes]]:
        """Open the file for reading; a compressed one is unpacked on the way."""
        if self._data is not None:
            yield _decompressed(io.BytesIO(self._data))
            return
        assert self.path is not None  # noqa: S101 - a source has a path or data
        with open_regular(self.path) as file:
            yield _decompressed(file)

    def has_changed(self, states: dict[str, tuple[int, int]]) -> bool:
        """Return whether size or time differ from those noted before, and note them."""
        if self.path is None:
            return True
        try:
            current = file_state(self.path)
        except OSError:
            return True  # whoever reads it reports the error
        has_changed = states.get(self.identity) != current
        states[self.identity] = current
        return has_changed

    def sample(self) -> bytes:
        """Return the beginning of the file, enough to recognise its format."""
        if self._sample is None:
            try:
                with self.open() as file:
                    self._sample = file.read(SAMPLE_BYTES).removeprefix(_BYTE_ORDER_MARK)
            except OSError:
                self._sample = b""
        return self._sample

    def sample_records(self, count: int = 20) -> list[dict[str, Any]]:
        """Return the first lines that are JSON objects, without those cut off by the sample."""
        records: list[dict[str, Any]] = []
        lines = self.sample().split(b"\n")
        for line in lines[:count] if len(self.sample()) < SAMPLE_BYTES else lines[:-1][:count]:
            record = parse_record(0, line)
            if record.fields:
                records.append(record.fields)
        return records

    def sample_document(self) -> Any:
        """Return the JSON document if the file is a single one that fits the sample, else None."""
        sample = self.sample()
        if len(sample) >= SAMPLE_BYTES:
            return None
        return parse_record(0, sample).value

    def read(self, limit: int = LIMITS.max_bytes) -> bytes:
        """Return the whole file.

        Raises:
            ForeignDocumentError: it is larger than the limit, or its compressed form is damaged.
        """
        with self.open() as file:
            data = file.read(limit + 1)
            fault = _fault_of(file)
        if fault:
            raise ForeignDocumentError(fault, format="session file", line=1)
        if len(data) > limit:
            reason = f"the file has more than {limit} bytes"
            raise ForeignDocumentError(reason, format="session file", line=1)
        return data.removeprefix(_BYTE_ORDER_MARK)

    def records(self, *, limits: Limits = LIMITS, after_byte: int = 0) -> Iterator[ForeignRecord]:
        """Yield the lines of the file as records; empty lines are skipped but counted.

        A line that is too long is yielded without its bytes, so that the others can be read.
        """
        with self.open() as file:
            if after_byte:
                file.seek(after_byte)
            size = 0
            for number in range(1, MAX_RECORDS + 1):
                line = file.readline(limits.max_bytes + 1)
                size += len(line)
                if not line:
                    if fault := _fault_of(file):
                        yield ForeignRecord(number, None, b"", fault)
                    return
                if len(line) > limits.max_bytes:
                    size += _skip_line(file)
                    reason = f"a line of more than {limits.max_bytes} bytes"
                    yield ForeignRecord(number, None, b"", reason)
                elif line.strip():
                    text = line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line
                    record = parse_record(number, text.rstrip(b"\r\n"), limits)
                    is_torn = record.value is None and not line.endswith(b"\n")
                    yield record._replace(is_torn=True) if is_torn else record
                if size > MAX_FILE_BYTES:
                    reason = f"the file has more than {MAX_FILE_BYTES} bytes"
                    yield ForeignRecord(number + 1, None, b"", reason)
                    return


def open_regular(path: Path) -> IO[bytes]:
    """Open a file for reading.

    Raises:
        OSError: it cannot be opened, or is a named pipe, on which opening would wait for ever, or a
            device, which may have no end.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | _O_BINARY)
    file = os.fdopen(descriptor, "rb")
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return file


def read_small_file(path: Path, limit: int) -> bytes:
    """Return the beginning of a file beside a session; empty if it cannot be read."""
    try:
        with open_regular(path) as file:
            return file.read(limit)
    except OSError:
        return b""


def parse_record(number: int, line: bytes, limits: Limits = LIMITS) -> ForeignRecord:
    """Return a line as a record; one that is not JSON has no value but a fault."""
    try:
        value = _read_json(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return ForeignRecord(number, None, line, f"not JSON: {error}")
    # Only a line with many brackets can be deep; the others are not walked.
    has_many = line.count(b"{") + line.count(b"[") > limits.max_depth
    if has_many and _is_deeper(value, limits.max_depth):
        return ForeignRecord(number, None, line, f"nested deeper than {limits.max_depth} levels")
    return ForeignRecord(number, value, line)


def _is_deeper(value: object, depth: int) -> bool:
    level: list[object] = [value]
    for _ in range(depth + 1):
        inner: list[object] = []
        for item in level:
            if isinstance(item, dict):
                inner += cast("dict[str, object]", item).values()
            elif isinstance(item, list):
                inner += cast("list[object]", item)
        if not inner:
            return False
        level = inner
    return True


def _skip_line(file: IO[bytes]) -> int:
    skipped = 0
    while piece := file.readline(1024 * 1024):
        skipped += len(piece)
        if piece.endswith(b"\n") or skipped > MAX_FILE_BYTES:
            break
    return skipped


def _decompressed(file: IO[bytes]) -> IO[bytes]:
    magic = file.read(len(ZSTD_MAGIC))
    file.seek(0)
    if magic != ZSTD_MAGIC:
        return file
    try:
        import zstandard  # noqa: PLC0415 - an optional package, for compressed sessions only
    except ImportError:
        reason = "the file is compressed; install metis-llm[zstd] to read it"
        raise ForeignDocumentError(reason, format="zstd", line=1) from None
    decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_ZSTD_WINDOW)
    reader = decompressor.stream_reader(file, read_across_frames=True)
    stream = _CompressedStream(cast("io.BufferedReader", reader), zstandard.ZstdError)
    return cast("IO[bytes]", io.BufferedReader(stream, 1024 * 1024))


class _CompressedStream(io.RawIOBase):
    """The data of a compressed file; everything before a damaged position is read."""

    def __init__(self, reader: io.BufferedReader, error: type[Exception]) -> None:
        self.fault = ""
        self._reader = reader
        self._error = error
        self._is_empty = True

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = b""
        try:
            if not self.fault:
                # At a damaged frame `read` discards the data before it and `read1` returns it; but
                # `read1` returns nothing while a block is incomplete.
                data = self._reader.read1(len(buffer)) or self._reader.read(len(buffer))
        except self._error as error:
            self.fault = f"the compressed file is damaged: {error}"
        if not data and self._is_empty:
            reason = self.fault or "the compressed file is empty or cut off"
            raise ForeignDocumentError(reason, format="zstd", line=1)
        self._is_empty = False
        buffer[: len(data)] = data
        return len(data)


def _fault_of(file: IO[bytes]) -> str:
    """Return why a file ended before its end; empty if it did not."""
    stream = getattr(file, "raw", None)
    return stream.fault if isinstance(stream, _CompressedStream) else ""
