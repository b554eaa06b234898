"""Documents of gpt2099: files registered as turns of a thread, and the store of their bytes."""

import hashlib
import io
import zipfile
from base64 import b64decode, b64encode
from collections.abc import Mapping
from pathlib import Path
from tempfile import NamedTemporaryFile

from msgspec import Struct
from msgspec.structs import replace

from metis.canonical.blocks import ContentBlock, DocumentBlock, ImageBlock, ImageSource, MediaSource
from metis.canonical.errors import InvalidValueError, StoreCorruptError
from metis.canonical.message import Message, Role
from metis.interchange.conversion import ConversionContext
from metis.interchange.gpt2099.turns import SYSTEM, with_cache_mark
from metis.interchange.source import open_regular
from metis.projection.media import sniff_media_type
from metis.wire.call import RequestContext

MAX_BYTES = 100_000_000
"""The largest file that can be registered."""

_OFFICE = "application/vnd.openxmlformats-officedocument"
_DOCX = f"{_OFFICE}.wordprocessingml.document"
_XLSX = f"{_OFFICE}.spreadsheetml.sheet"
MEDIA_TYPES: Mapping[str, str] = {
    ".csv": "text/csv",
    ".docx": _DOCX,
    ".gif": "image/gif",
    ".jpeg": "image/jpeg",
    ".jpg": "image/jpeg",
    ".json": "application/json",
    ".md": "text/markdown",
    ".pdf": "application/pdf",
    ".png": "image/png",
    ".txt": "text/plain",
    ".webp": "image/webp",
    ".xlsx": _XLSX,
}
"""Media types by file suffix."""

UNKNOWN = "application/octet-stream"
"""The media type of bytes that nothing identifies."""

_SNIFFED_BYTES = 16
_ZIP = b"PK\x03\x04"
_HASH_PREFIX = "sha256-"
_HASH_BYTES = 32


class ContentStore:
    """A directory of files named by their hash, as gpt2099 stores the content of frames."""

    def __init__(self, directory: str | Path) -> None:
        self._directory = Path(directory)

    def put(self, data: bytes) -> str:
        """Store bytes once and return their hash: `sha256-` and base64."""
        digest = hashlib.sha256(data).digest()
        path = self._path(digest)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with NamedTemporaryFile(dir=path.parent, delete=False) as draft:
                draft.write(data)
            Path(draft.name).replace(path)  # atomic, also if others write the same bytes
        return _HASH_PREFIX + b64encode(digest).decode()

    def get(self, integrity: str) -> bytes:
        """Return the bytes of a hash.

        Raises:
            InvalidValueError: this is not a hash, or its bytes are not stored.
            StoreCorruptError: the stored bytes have another hash.
        """
        digest = _digest(integrity)
        try:
            data = self._path(digest).read_bytes()
        except FileNotFoundError:
            text = f"nothing is stored under {integrity}"
            raise InvalidValueError(text, path="$.hash") from None
        # Someone may have edited the file; the hash is the only proof of its content.
        if hashlib.sha256(data).digest() != digest:
            raise StoreCorruptError(f"the bytes under {integrity} have changed")
        return data

    def __contains__(self, integrity: str) -> bool:
        return self._path(_digest(integrity)).exists()

    def _path(self, digest: bytes) -> Path:
        name = digest.hex()
        return self._directory / name[:2] / name[2:]


def _digest(integrity: str) -> bytes:
    try:
        digest = b64decode(integrity.removeprefix(_HASH_PREFIX), validate=True)
    except ValueError:
        digest = b""
    if not integrity.startswith(_HASH_PREFIX) or len(digest) != _HASH_BYTES:
        raise InvalidValueError(f"{integrity!r} is not a sha256 hash", path="$.hash")
    return digest


class RegisteredDocument(Struct, frozen=True):
    """A file that is part of a thread: its turn, and the hash of its bytes."""

    message: Message
    hash: str


def register_document(  # noqa: PLR0913 - settings, most of them by name
    path: str | Path,
    contents: ContentStore,
    *,
    name: str | None = None,
    is_cached: bool = False,
    max_bytes: int = MAX_BYTES,
    context: RequestContext | None = None,
) -> RegisteredDocument:
    """Store the bytes of a file and return a turn that shows it, like `gpt document`.

    Args:
        path: the file.
        contents: where its bytes are stored.
        name: its name in the turn; by default that of the file.
        is_cached: whether a cached prefix ends with it.
        max_bytes: the largest size.
        context: the session and the time of the turn.

    Raises:
        InvalidValueError: the file cannot be read or is too large.
    """
    file = Path(path).absolute()
    data = _read(file, max_bytes)
    kind = media_type(file.name, data)
    conversion = ConversionContext(SYSTEM, SYSTEM, context or RequestContext())
    shown_name = name or file.name
    foreign = {"document": True, "document_name": shown_name, "original_path": str(file)}
    block = _block(data, kind, shown_name)
    message = conversion.message(Role.USER, [block], foreign=foreign)
    # The user adds the file here; it is not an import of another system.
    message = replace(message, metadata=replace(message.metadata, origin=None))
    digest = contents.put(data)
    return RegisteredDocument(with_cache_mark(message) if is_cached else message, digest)


def media_type(name: str, data: bytes) -> str:
    """Return the media type of a file: by its suffix, else by its bytes."""
    by_suffix = MEDIA_TYPES.get(Path(name).suffix.lower())
    return _detect_media_type(data) if by_suffix is None else by_suffix


def _detect_media_type(data: bytes) -> str:
    if data.startswith(b"%PDF-"):
        return MEDIA_TYPES[".pdf"]
    if data.startswith(_ZIP):
        return _archive_type(data)
    image = sniff_media_type(b64encode(data[:_SNIFFED_BYTES]).decode())
    if image is not None:
        return image
    try:
        # NUL bytes are valid UTF-8 and still mean a binary file.
        return UNKNOWN if "\0" in data.decode() else MEDIA_TYPES[".txt"]
    except UnicodeDecodeError:
        return UNKNOWN


def _archive_type(data: bytes) -> str:
    """Return the type of a ZIP archive: a text document, a spreadsheet, or any archive."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        return UNKNOWN
    if any(name.startswith("word/") for name in names):
        return _DOCX
    return _XLSX if any(name.startswith("xl/") for name in names) else "application/zip"


def _read(file: Path, max_bytes: int) -> bytes:
    try:
        with open_regular(file) as opened:
            # One byte more than allowed shows that a file is too large, without reading all of it.
            data = opened.read(max_bytes + 1)
    except OSError as error:
        raise InvalidValueError(f"{file} cannot be read: {error.strerror}") from None
    if len(data) > max_bytes:
        raise InvalidValueError(f"{file} is larger than {max_bytes} bytes")
    return data


def _block(data: bytes, kind: str, name: str) -> ContentBlock:
    text = b64encode(data).decode()
    if kind.startswith("image/"):
        return ImageBlock(ImageSource("base64", text), kind)
    return DocumentBlock(MediaSource("base64", text), kind, name)
