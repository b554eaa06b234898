"""Backlog: ended exchanges in local files, until there is time to turn them into messages.

Turning an exchange into messages takes longer than answering it. Under load its bytes are appended
to a file instead, which takes a few microseconds and survives the end of the process; they become
messages once the load is less, or in the next process. A file is locked by the process that wrote
it, so that another one reads only those of dead processes, and removed once all of it is stored.
"""

import fcntl
import logging
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from struct import Struct as Layout

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from metis.canonical import codec
from metis.canonical.errors import DecodeError
from metis.canonical.ids import new_ulid
from metis.gateway.exchange import Exchange, Placing
from metis.store.private_files import PRIVATE_FILE, make_private_directory
from metis.store.spool import store_prefix

log = logging.getLogger("metis.gateway")

SEGMENT_BYTES = 16 * 1024 * 1024
"""How long a file becomes before the next one begins; each is removed on its own."""
_SUFFIX = ".backlog"
_MAX_RECORD_BYTES = 1 << 30
_HEADER = Layout("<II")
"""Length and checksum in front of each exchange."""


class _Saved(Struct, array_like=True):
    """An exchange as it is written."""

    exchange: Exchange
    """Without what is written apart, or can be read again from its bytes."""
    response: bytes
    """The decoded response of a translation in its canonical form; empty if there is none."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Saved).decode


class Segment(Struct, gc=False):
    """One file."""

    path: Path
    descriptor: int
    size: int = 0
    count: int = 0
    """How many of its exchanges are not stored yet."""


class Place(Struct, frozen=True, gc=False):
    """Where an exchange stands in a file."""

    segment: Segment
    offset: int
    length: int


class Backlog:
    """The files of one process, and those that it adopted from dead ones."""

    def __init__(
        self, directory: Path, store_url: str, *, segment_bytes: int = SEGMENT_BYTES
    ) -> None:
        self._directory = directory
        self._prefix = store_prefix(store_url)
        self._segment_bytes = segment_bytes
        self._active: Segment | None = None
        self._segments: dict[Path, Segment] = {}

    @property
    def size(self) -> int:
        """How many bytes its files have."""
        return sum(segment.size for segment in self._segments.values())

    def save(self, exchanges: Sequence[Exchange]) -> list[Place]:
        """Append exchanges with one write; they survive the end of the process.

        Raises:
            OSError: the disk is full, or the directory cannot be written.
        """
        segment = self._writable()
        parts: list[bytes] = []
        places: list[Place] = []
        offset = segment.size
        for exchange in exchanges:
            data = _bytes_of(exchange)
            parts += (_HEADER.pack(len(data), zlib.crc32(data)), data)
            places.append(Place(segment, offset + _HEADER.size, len(data)))
            offset += _HEADER.size + len(data)
        try:
            _write_all(segment.descriptor, b"".join(parts))
        except OSError:
            # A part may be there; what follows it could not be found.
            os.ftruncate(segment.descriptor, segment.size)
            raise
        segment.size = offset
        segment.count += len(places)
        return places

    def _writable(self) -> Segment:
        segment = self._active
        if segment is not None and segment.size < self._segment_bytes:
            return segment
        make_private_directory(self._directory)
        self._active = None
        if segment is not None and not segment.count:
            self._remove(segment)
        while self._active is None:
            path = self._directory / f"{self._prefix}-{new_ulid()}{_SUFFIX}"
            flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
            segment = Segment(path, os.open(path, flags, PRIVATE_FILE))
            # Another process may have adopted and removed it before it was locked.
            if _lock(segment.descriptor):
                self._segments[path] = self._active = segment
            else:
                os.close(segment.descriptor)
        return self._active

    def load(self, place: Place) -> Exchange:
        """Return an exchange.

        Raises:
            DecodeError: its bytes are damaged.
            OSError: the file cannot be read.
        """
        start = place.offset - _HEADER.size
        data = os.pread(place.segment.descriptor, _HEADER.size + place.length, start)
        content = data[_HEADER.size :]
        if data[: _HEADER.size] != _HEADER.pack(place.length, zlib.crc32(content)):
            raise DecodeError(f"{place.segment.path}: damaged at {start}")
        try:
            saved = _decode(content)
        except (msgspec.MsgspecError, ValueError) as error:
            raise DecodeError(f"{place.segment.path}: at {start}: {error}") from None
        if saved.response:
            saved.exchange.response = codec.decode_trusted(saved.response)
        return saved.exchange

    def release(self, place: Place) -> None:
        """Note that an exchange is stored; the file is removed with its last one."""
        segment = place.segment
        segment.count -= 1
        if segment.count:
            return
        if segment is not self._active:
            self._remove(segment)
        elif segment.size:
            os.ftruncate(segment.descriptor, 0)
            segment.size = 0

    def _remove(self, segment: Segment) -> None:
        del self._segments[segment.path]
        segment.path.unlink(missing_ok=True)
        os.close(segment.descriptor)

    def adopt(self) -> Iterator[Place]:
        """Yield the exchanges that dead processes left, oldest first."""
        try:
            paths = sorted(self._directory.glob(f"{self._prefix}-*{_SUFFIX}"))
        except OSError:
            return
        for path in paths:
            if path not in self._segments:
                yield from self._adopt(path)

    def _adopt(self, path: Path) -> Iterator[Place]:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return
        if not _lock(descriptor):
            os.close(descriptor)
            return
        segment = Segment(path, descriptor, os.fstat(descriptor).st_size)
        places: list[Place] = []
        offset = 0
        while len(header := os.pread(descriptor, _HEADER.size, offset)) == _HEADER.size:
            length = _HEADER.unpack(header)[0]
            offset += _HEADER.size
            # The last write of a process that was killed may be cut.
            if length > _MAX_RECORD_BYTES or offset + length > segment.size:
                log.warning("%s ends within an exchange", path)
                break
            places.append(Place(segment, offset, length))
            offset += length
        self._segments[path] = segment
        segment.count = len(places)
        if not places:
            self._remove(segment)
        yield from places

    def close(self) -> None:
        """Close all files; those with exchanges that are not stored stay for the next process."""
        for segment in list(self._segments.values()):
            if segment.count:
                os.close(segment.descriptor)
            else:
                self._remove(segment)
        self._segments.clear()
        self._active = None


def left_bytes(directory: Path, store_url: str) -> int:
    """Return how many bytes of exchanges ended processes have left, for the next gateway."""
    size = 0
    for path in directory.glob(f"{store_prefix(store_url)}-*{_SUFFIX}"):
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            if _lock(descriptor):
                size += os.fstat(descriptor).st_size
            os.close(descriptor)
    return size


def _bytes_of(exchange: Exchange) -> bytes:
    response = exchange.response
    data = b"" if response is None else codec.encode(response)
    join = exchange.facts.get("join")
    placing = None if join is None else Placing(join.scope, join.kind, join.parent_session_id)
    bare = replace(
        exchange,
        request=None,
        response=None,
        adapter=None,
        facts={},
        placing=placing or exchange.placing,
    )
    return _encode(_Saved(bare, data))


def _lock(descriptor: int) -> bool:
    """Lock an open file; False if another process has, or has removed it."""
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.fstat(descriptor).st_nlink > 0
    return False


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
