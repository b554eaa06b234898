"""Wire bodies: the bytes of a model call's request and response, as they were sent and received.

A request repeats most of the previous request, so a row has only the bytes between the prefix and
the suffix that both share, compressed. The writer thread stores the bytes up to two seconds after
the messages: no response waits for them, and a crash loses only those of the last two seconds.
Secrets in the body of a request are replaced before it is stored.
"""

import logging
import re
import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from metis.canonical.errors import StoreError
from metis.store.database import Transaction
from metis.store.tables import Tables
from metis.store.writer import WriteJob

log = logging.getLogger("metis.store")

MAX_BODY_BYTES = 16 * 1024 * 1024
"""How many bytes of a request or of a response are stored."""
_LEVEL = 1
"""The zlib level: it compresses streams to a tenth in a third of the time of the default level."""
_MIN_COMPRESSED = 2048
"""Shorter data is not compressed, because zlib initialises 256 KB each time."""
_PLAIN = b"\0"
"""The first byte of uncompressed data; a zlib stream begins with another byte."""
_MIN_SHARED = 256
"""The number of shared bytes from which a row refers to another row."""
_MAX_CHAIN = 40
"""The maximum number of rows from which a request is assembled."""
_REMEMBERED_BYTES = 8 * 1024 * 1024
"""How many bytes of the newest requests are cached, to compare later requests with them."""
# Anthropic and OpenAI read the tokens of MCP servers from the body of a request.
_SECRET = re.compile(rb'("[Aa]uthorization(?:_token)?"\s*:\s*")(?:[^"\\]|\\.)*"')
_COLUMNS = (
    "id, session_id, provider, path, status, base_id, prefix, suffix, request_bytes, "
    "response_bytes, checksum, request, response"
)
# A session may have been deleted before its bytes are written; they are then discarded.
_INSERT = (
    f"INSERT INTO wire_bodies ({_COLUMNS}) SELECT ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ? "  # noqa: S608 - no input
    "WHERE EXISTS (SELECT 1 FROM sessions WHERE id = ?) ON CONFLICT DO NOTHING"
)
_ROW = f"SELECT {_COLUMNS} FROM wire_bodies WHERE session_id = ? AND id = ?"  # noqa: S608 - no input
_PREVIOUS = (
    "SELECT max(id) FROM wire_bodies WHERE session_id = ? AND provider = ? AND id < ? "
    "AND request_bytes > 0"
)


class WireBody(Struct, frozen=True, kw_only=True):
    """The bytes of one model call."""

    id: str
    """The id of the response, or of the exchange of the gateway."""
    session_id: str
    provider: str
    path: str
    """The path of the request."""
    status: int = 200
    request: bytes = b""
    response: Sequence[bytes] = ()
    response_bytes: int = 0
    """The length of the response, if it is longer than its collected parts."""
    conceal: Callable[[bytes], bytes] | None = None
    """Removes the key of the provider from both bodies before they are stored."""

    @property
    def size(self) -> int:
        """The number of bytes of request and response."""
        return len(self.request) + sum(map(len, self.response))


class StoredBody(Struct, frozen=True, kw_only=True):
    """The stored bytes of one model call."""

    id: str
    provider: str
    path: str
    status: int
    request: bytes
    response: bytes
    request_bytes: int
    """The length of the request; `request` may be shorter because of the limit."""
    response_bytes: int


class _Base(Struct, frozen=True):
    id: str
    request: bytes
    depth: int


class BodyPacker:
    """Converts bodies to rows; it caches the newest request of each session."""

    def __init__(self) -> None:
        self._bases: OrderedDict[str, _Base] = OrderedDict()
        self._bytes = 0

    def clear(self) -> None:
        """Clear the cache after a failed write, so that no row refers to one that is not stored."""
        self._bases.clear()
        self._bytes = 0

    def row(self, body: WireBody) -> tuple[Any, ...]:
        """Return the values of `_INSERT`."""
        request, response = body.request, b"".join(body.response)
        if body.conceal is not None:
            request, response = body.conceal(request), body.conceal(response)
        request = without_secrets(request)[:MAX_BODY_BYTES]
        base = self._bases.get(body.session_id)
        prefix = suffix = 0
        if base is not None and base.depth < _MAX_CHAIN:
            prefix = shared_prefix(base.request, request)
            suffix = _shared_suffix(base.request, request, prefix)
        is_alone = base is None or prefix + suffix < _MIN_SHARED
        if is_alone:
            prefix = suffix = 0
        if request:
            depth = 0 if base is None or is_alone else base.depth + 1
            self._remember(body.session_id, _Base(body.id, request, depth))
        response_bytes = max(len(response), body.response_bytes)
        return (
            *(body.id, body.session_id, body.provider, body.path, body.status),
            *("" if base is None or is_alone else base.id, prefix, suffix),
            *(len(body.request), response_bytes, zlib.crc32(request)),
            _packed(request[prefix : len(request) - suffix]),
            _packed(without_secrets(response)[:MAX_BODY_BYTES]),
            body.session_id,
        )

    def _remember(self, session_id: str, base: _Base) -> None:
        old = self._bases.pop(session_id, None)
        self._bytes += len(base.request) - (0 if old is None else len(old.request))
        self._bases[session_id] = base
        while self._bytes > _REMEMBERED_BYTES and self._bases:
            self._bytes -= len(self._bases.popitem(last=False)[1].request)


class BodiesJob(WriteJob):
    """Store the bytes of calls whose messages are stored."""

    def __init__(self, bodies: Sequence[WireBody], packer: BodyPacker) -> None:
        self._bodies = bodies
        self._packer = packer
        self._rows: list[tuple[Any, ...]] | None = None
        self.size = sum([body.size for body in bodies])

    def write(self, tables: Tables) -> None:
        """Compress the bodies and write their rows."""
        if self._rows is None:  # a job runs again if its batch fails
            self._rows = [self._packer.row(body) for body in self._bodies]
        tables.change_many(_INSERT, self._rows)

    def finish(self, result: Any, error: Exception | None) -> None:
        """Set the outcome; no caller waits for it, so a failure is logged."""
        super().finish(result, error)
        if error is not None:
            self._packer.clear()
            count = len(self._bodies)
            log.warning("the bytes of %d model calls are not stored: %s", count, error)


def read_wire_body(transaction: Transaction, session_id: str, body_id: str) -> StoredBody | None:
    """Return the bytes of a call; None if they are not stored.

    Raises:
        StoreError: the rows are damaged.
    """
    rows: list[Sequence[Any]] = []
    next_id = body_id
    while next_id:
        matching = transaction.run(_ROW, (session_id, next_id))
        if not rows and not matching:
            return None
        if not matching or len(rows) > _MAX_CHAIN:
            raise StoreError(f"the bytes of {body_id} are incomplete: run `metis store check`")
        rows.append(matching[0])
        next_id = matching[0][5]
    request = b""
    for row in reversed(rows):
        prefix, suffix = row[6], row[7]
        if prefix < 0 or suffix < 0 or prefix + suffix > len(request):
            raise StoreError(f"the bytes of {body_id} are damaged")
        end = request[len(request) - suffix :]
        request = b"".join((request[:prefix], _unpacked(row[11], body_id), end))
    row = rows[0]
    if zlib.crc32(request) != row[10]:
        raise StoreError(f"the bytes of {body_id} are damaged")
    return StoredBody(
        id=row[0],
        provider=row[2],
        path=row[3],
        status=row[4],
        request=request,
        response=_unpacked(row[12], body_id),
        request_bytes=row[8],
        response_bytes=row[9],
    )


def read_previous_body(
    transaction: Transaction, session_id: str, body: StoredBody
) -> StoredBody | None:
    """Return the bytes of the previous call of a session to the same provider."""
    body_id = transaction.run(_PREVIOUS, (session_id, body.provider, body.id))[0][0]
    return None if body_id is None else read_wire_body(transaction, session_id, body_id)


def without_secrets(data: bytes) -> bytes:
    """Return a body with its tokens replaced.

    >>> without_secrets(b'{"authorization_token":"abc","x":1}')
    b'{"authorization_token":"[secret]","x":1}'
    """
    # A plain search takes a tenth of the time of the pattern, and few requests have the name.
    return _SECRET.sub(rb'\1[secret]"', data) if b"uthorization" in data else data


def shared_prefix(first: bytes, second: bytes) -> int:
    """Return the length of the shared prefix, by binary search: slices are compared fast.

    >>> shared_prefix(b"abcx", b"abyz")
    2
    """
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _shared_suffix(first: bytes, second: bytes, prefix: int) -> int:
    """Return the length of the shared suffix that does not overlap the shared prefix."""
    ends = len(first), len(second)
    low, high = 0, min(ends) - prefix
    while low < high:
        middle = (low + high + 1) // 2
        old = first[ends[0] - middle : ends[0] - low]
        if old == second[ends[1] - middle : ends[1] - low]:
            low = middle
        else:
            high = middle - 1
    return low


def _packed(data: bytes) -> bytes:
    return _PLAIN + data if len(data) < _MIN_COMPRESSED else zlib.compress(data, _LEVEL)


def _unpacked(data: bytes, body_id: str) -> bytes:
    if data[:1] == _PLAIN:
        return bytes(data[1:])
    decoder = zlib.decompressobj()
    try:
        # Limited, because a damaged or foreign row could decompress to any size.
        text = decoder.decompress(bytes(data), MAX_BODY_BYTES)
    except zlib.error:
        raise StoreError(f"the bytes of {body_id} are damaged") from None
    if decoder.unconsumed_tail:
        raise StoreError(f"the bytes of {body_id} are longer than any that are stored")
    return text
