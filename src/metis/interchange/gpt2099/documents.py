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
from metis.projection.media import sniff_media_type
from metis.wire.call import RequestContext

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


MAX_BYTES = 100_000_000
"""The largest file that is registered."""

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
"""The media types of files by the ends of their names."""

UNKNOWN = "application/octet-stream"
"""What bytes are that nothing is known of."""

_HEAD = 16
_ZIP = b"PK\x03\x04"


class RegisteredDocument(Struct, frozen=True):
    """A file that is part of a thread now: the turn, and the hash of its bytes."""

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
    """Take a file into a thread: its bytes into the store of contents, and a turn that shows it.

    Args:
        path: where the file is.
        contents: where its bytes are kept.
        name: what it is called; by default as the file is.
        is_cached: whether a cached prefix ends with it.
        max_bytes: how large it may be.
        context: the session of the turn, and its time.

    Raises:
        InvalidValueError: it cannot be read, or is too large.
    """
    file = Path(path).absolute()
    data = _read(file, max_bytes)
    kind = media_type(file.name, data)
    desk = ConversionContext(SYSTEM, SYSTEM, context or RequestContext())
    shown = name or file.name
    foreign = {"document": True, "document_name": shown, "original_path": str(file)}
    block = _block(data, kind, shown)
    message = desk.message(Role.USER, [block], foreign=foreign)
    # Nothing imported it: the user says it.
    message = replace(message, metadata=replace(message.metadata, origin=None))
    return RegisteredDocument(
        with_cache_mark(message) if is_cached else message, contents.put(data)
    )


def media_type(name: str, data: bytes) -> str:
    """The media type of a file: by the end of its name, else by its bytes."""
    known = MEDIA_TYPES.get(Path(name).suffix.lower())
    return _detected(data) if known is None else known


def _detected(data: bytes) -> str:
    if data.startswith(b"%PDF-"):
        return MEDIA_TYPES[".pdf"]
    if data.startswith(_ZIP):
        return _office(data)
    picture = sniff_media_type(b64encode(data[:_HEAD]).decode())
    if picture is not None:
        return picture
    try:
        return UNKNOWN if "\0" in data.decode() else MEDIA_TYPES[".txt"]
    except UnicodeDecodeError:
        return UNKNOWN


def _office(data: bytes) -> str:
    """What an archive holds: a document of words, a sheet, or something else."""
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
        with file.open("rb") as opened:
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
