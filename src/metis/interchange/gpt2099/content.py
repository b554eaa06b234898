"""ContentStore: bytes by their hash, as gpt2099 keeps what a frame stands for."""

import hashlib
from base64 import b64decode, b64encode
from pathlib import Path
from tempfile import NamedTemporaryFile

from metis.canonical.errors import InvalidValueError, StoreCorruptError

_PREFIX = "sha256-"
_SIZE = 32


class ContentStore:
    """A folder in which the same bytes lie once, under a name that proves them."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)

    def put(self, data: bytes) -> str:
        """Keep bytes; gives their hash, `sha256-` and base64, however often they are kept."""
        digest = hashlib.sha256(data).digest()
        place = self._place(digest)
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            with NamedTemporaryFile(dir=place.parent, delete=False) as beside:
                beside.write(data)
            Path(beside.name).replace(place)  # all or nothing, whoever else writes the same
        return _PREFIX + b64encode(digest).decode()

    def get(self, integrity: str) -> bytes:
        """The bytes of a hash.

        Raises:
            InvalidValueError: this is no hash, or there are no such bytes.
            StoreCorruptError: what lies there is not what it was.
        """
        digest = _digest(integrity)
        try:
            data = self._place(digest).read_bytes()
        except FileNotFoundError:
            raise InvalidValueError(f"nothing is kept under {integrity}", path="$.hash") from None
        if hashlib.sha256(data).digest() != digest:
            raise StoreCorruptError(f"the bytes under {integrity} are not what they were")
        return data

    def __contains__(self, integrity: str) -> bool:
        return self._place(_digest(integrity)).exists()

    def _place(self, digest: bytes) -> Path:
        name = digest.hex()
        return self._folder / name[:2] / name[2:]


def _digest(integrity: str) -> bytes:
    try:
        digest = b64decode(integrity.removeprefix(_PREFIX), validate=True)
    except ValueError:
        digest = b""
    if not integrity.startswith(_PREFIX) or len(digest) != _SIZE:
        raise InvalidValueError(f"{integrity!r} is no hash of sha256", path="$.hash")
    return digest
