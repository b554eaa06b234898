"""Bodies of responses as they come: decompressed in small pieces, and counted.

The HTTP client would decompress whatever one read brings in one go, and 64 kB of gzip can be 64 MB.
Here a body is decompressed piece by piece, with a limit on both sides, and other tasks run between
two pieces.
"""

import asyncio
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

from metis.canonical.errors import NetworkError
from metis.streaming.limits import StreamLimits, limit_error

if TYPE_CHECKING:
    import aiohttp

ACCEPTED_ENCODINGS: Final = "gzip, deflate"
"""What requests allow servers to use; both can be decompressed with a limit."""

LARGE_BYTES: Final = 1 << 20
"""From this size on, a response is decoded in a thread, where Python lets other tasks run."""

_PIECE_BYTES = 1 << 16
_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS
_DEFLATE_METHOD = 8
_Result = TypeVar("_Result")


async def body_chunks(
    response: "aiohttp.ClientResponse", limits: StreamLimits
) -> AsyncGenerator[bytes]:
    """Yield the body of a response in pieces of limited size, decompressed.

    The client must not decompress by itself (`auto_decompress=False`).

    Raises:
        ResponseLimitError: more bytes came than allowed.
        NetworkError: the compressed data is damaged, or of a kind that was not requested.
    """
    decompress = _decompressor(response.headers.get("content-encoding", ""))
    received, size = limits.received_bytes, limits.body_bytes
    async for data in response.content.iter_any():
        available = data[:received]
        for piece in _cut(available) if decompress is None else decompress(available):
            # What is within the limit is decoded, so that it can be stored.
            yield piece[:size]
            size -= len(piece)
            if size < 0:
                raise limit_error(limits, "body_bytes")
            if len(piece) == _PIECE_BYTES:
                await asyncio.sleep(0)
        received -= len(data)
        if received < 0:
            raise limit_error(limits, "received_bytes")


async def read_rest(
    chunks: AsyncIterator[bytes], max_bytes: int, start: bytes = b""
) -> tuple[bytes, bool]:
    """Return what chunks make of a body after its start, and whether that is all of it."""
    body = bytearray(start)
    async for chunk in chunks:
        body += chunk
        if len(body) > max_bytes:
            return bytes(body[:max_bytes]), False
    return bytes(body), True


async def run_outside(function: Callable[..., _Result], *arguments: object) -> _Result:
    """Call a function in a thread; a cancelled task waits for its end.

    Otherwise the thread would go on changing a decoder while the caller reads the message of it.
    """
    future = asyncio.get_running_loop().run_in_executor(None, function, *arguments)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        raise


def _cut(data: bytes) -> Iterator[bytes]:
    return (data[start : start + _PIECE_BYTES] for start in range(0, len(data), _PIECE_BYTES))


def _decompressor(encoding: str) -> Callable[[bytes], Iterator[bytes]] | None:
    """Return a function that decompresses bytes to pieces; None for a body as it is."""
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return None
    if name not in ("gzip", "x-gzip", "deflate"):
        raise NetworkError(f"the response is compressed in a way that was not requested: {name}")
    return _Inflater(is_deflate=name == "deflate").feed


class _Inflater:
    """Decompresses gzip and deflate; a body of gzip may have several members."""

    def __init__(self, *, is_deflate: bool) -> None:
        self._is_deflate = is_deflate
        self._inflate: Any = None

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield what the data holds, in pieces of limited size."""
        while data:
            inflate = self._inflate or self._begin(data)
            try:
                piece = inflate.decompress(data, _PIECE_BYTES)
            except zlib.error:
                raise NetworkError("the compressed response is damaged") from None
            data = inflate.unconsumed_tail
            if inflate.eof:
                data, self._inflate = inflate.unused_data, None
            elif not data and len(piece) == _PIECE_BYTES:
                # More may be inside of the decompressor than one piece.
                yield piece
                yield from self._rest(inflate)
                continue
            if piece:
                yield piece

    def _rest(self, inflate: Any) -> Iterator[bytes]:
        while piece := inflate.decompress(b"", _PIECE_BYTES):
            yield piece
        if inflate.eof:
            self._inflate = None

    def _begin(self, data: bytes) -> Any:
        # Some servers send deflate without the header of zlib that the standard asks for.
        is_raw = self._is_deflate and data[0] & 0xF != _DEFLATE_METHOD
        self._inflate = zlib.decompressobj(-zlib.MAX_WBITS if is_raw else _GZIP_OR_ZLIB)
        return self._inflate
