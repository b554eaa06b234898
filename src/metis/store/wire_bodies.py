"""Bytes of model calls: the body of a request as it was sent, and the response as it was received.

A request repeats most of the request before it, so a row has only the bytes between the beginning
and the end that both share, compressed. The bytes are written beside the messages, a moment later
and by the thread of the writer: no answer waits for them, and a crash loses those of the last two
seconds at most. Secrets that a request carries in its body are replaced before it is stored.
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
"""Compresses the events of a stream to a tenth in a third of the time of the default level."""
_MIN_COMPRESSED = 2048
"""Compressing less takes longer than storing it: zlib sets up 256 KB each time."""
_PLAIN = b"\0"
"""Stands before bytes that are not compressed; a zlib stream begins with another byte."""
_MIN_SHARED = 256
"""Fewer shared bytes do not justify reading another row."""
_MAX_CHAIN = 40
"""How many rows a request is put together from at most."""
_REMEMBERED_BYTES = 8 * 1024 * 1024
"""How many bytes of the newest requests are held, to compare the next ones with them."""
# Tokens for MCP servers stand in the body, for Anthropic and for OpenAI.
_SECRET = re.compile(rb'("[Aa]uthorization(?:_token)?"\s*:\s*")(?:[^"\\]|\\.)*"')
_COLUMNS = (
    "id, session_id, provider, path, status, base_id, prefix, suffix, request_bytes, "
    "response_bytes, checksum, request, response"
)
# A session may have been deleted meanwhile; its bytes must not come back.
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
    """Where the request was sent, below the address of the provider."""
    status: int = 200
    request: bytes = b""
    response: Sequence[bytes] = ()
    response_bytes: int = 0
    """How long the response was, if that is more than the parts have."""
    conceal: Callable[[bytes], bytes] | None = None
    """Takes the key of the provider out of both bodies before they are stored."""

    @property
    def size(self) -> int:
        """How many bytes it has."""
        return len(self.request) + sum(map(len, self.response))


class StoredBody(Struct, frozen=True, kw_only=True):
    """The bytes of one model call, as far as they are stored."""

    id: str
    provider: str
    path: str
    status: int
    request: bytes
    response: bytes
    request_bytes: int
    """How long the request was; what is stored may be less."""
    response_bytes: int


class _Base(Struct, frozen=True):
    id: str
    request: bytes
    depth: int


class BodyPacker:
    """Turns bodies into rows; it remembers the newest request of each session."""

    def __init__(self) -> None:
        self._bases: OrderedDict[str, _Base] = OrderedDict()
        self._bytes = 0

    def clear(self) -> None:
        """Forget everything, after rows could not be stored: none may refer to them."""
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
        """Compress and write them."""
        if self._rows is None:  # a job runs again if its batch fails
            self._rows = [self._packer.row(body) for body in self._bodies]
        tables.change_many(_INSERT, self._rows)

    def finish(self, result: Any, error: Exception | None) -> None:
        """Note the outcome; nobody waits for it, so that a failure is logged."""
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
    """Return the bytes of the last call of the session before one, to the same provider."""
    body_id = transaction.run(_PREVIOUS, (session_id, body.provider, body.id))[0][0]
    return None if body_id is None else read_wire_body(transaction, session_id, body_id)


def without_secrets(data: bytes) -> bytes:
    """Return a body without the tokens in it.

    >>> without_secrets(b'{"authorization_token":"abc","x":1}')
    b'{"authorization_token":"[secret]","x":1}'
    """
    # A plain search is a tenth of the time of the pattern, and nearly no request has the name.
    return _SECRET.sub(rb'\1[secret]"', data) if b"uthorization" in data else data


def shared_prefix(first: bytes, second: bytes) -> int:
    """Return how many bytes at the beginning are equal, by halving: slices compare fast.

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
    """Return how many bytes at the end are equal, behind a shared beginning."""
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
        # A row of another program must not fill the memory.
        text = decoder.decompress(bytes(data), MAX_BODY_BYTES)
    except zlib.error:
        raise StoreError(f"the bytes of {body_id} are damaged") from None
    if decoder.unconsumed_tail:
        raise StoreError(f"the bytes of {body_id} are longer than any that are stored")
    return text
