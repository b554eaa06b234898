"""Reply: what goes back over the wire, and how."""

from collections.abc import Iterator, Mapping

from msgspec import Struct


class Asked(Struct, frozen=True, kw_only=True):
    """A request as it came; names of headers are in small letters."""

    method: str
    path: str
    headers: Mapping[str, str] = {}
    body: bytes = b""


class Reply(Struct, frozen=True, kw_only=True):
    """A response: its pieces, the pause between them, and whether it breaks off at the end."""

    status: int = 200
    headers: Mapping[str, str] = {}
    pieces: tuple[bytes, ...] = ()
    is_stream: bool = False
    is_cut: bool = False
    pause_s: float = 0.0

    @property
    def body(self) -> bytes:
        """All of it."""
        return b"".join(self.pieces)


def in_chunks(pieces: tuple[bytes, ...], size: int | None) -> tuple[bytes, ...]:
    """The same bytes in chunks of one size; without a size as they are.

    >>> in_chunks((b"abc", b"de"), 2)
    (b'ab', b'cd', b'e')
    """
    if size is None:
        return pieces
    whole = b"".join(pieces)
    return tuple(whole[at : at + size] for at in range(0, len(whole), size))


def cut_after(pieces: tuple[bytes, ...], size: int) -> Iterator[bytes]:
    """The pieces up to a number of bytes."""
    for piece in pieces:
        if size <= 0:
            return
        yield piece[:size]
        size -= len(piece)
