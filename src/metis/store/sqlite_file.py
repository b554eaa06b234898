"""The file of a SQLite store: ownership and version checks, error translation, copies."""

import os
import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path

from metis.canonical.errors import (
    ForeignStoreError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreLockedError,
    StoreReadOnlyError,
    StoreUnavailableError,
    StoreVersionError,
)
from metis.store.database import Transaction

APPLICATION_ID = 0x6D657469
"""The application id in the header of our files: `meti`."""

_MAGIC = b"SQLite format 3\x00"
_HEADER_BYTES = 100
# The offsets of `user_version` and `application_id` in the header of a SQLite file.
_VERSION_OFFSET, _APPLICATION_OFFSET = 60, 68
# The low byte of an extended error code of SQLite is the primary code.
_PRIMARY_CODE = 0xFF
_CHOOSE_FILE = "move it away, or choose another file with --store or METIS_STORE"
_LOCKED = (StoreLockedError, "another program is writing", "stop the other program or try again")

_ERRORS: dict[int, tuple[type[StoreError], str, str]] = {
    sqlite3.SQLITE_FULL: (
        StoreFullError,
        "the disk is full",
        "free some space and try again; nothing stored is lost",
    ),
    sqlite3.SQLITE_READONLY: (
        StoreReadOnlyError,
        "read-only",
        "make the file and its directory writable, or choose another file with --store",
    ),
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_CORRUPT: (
        StoreCorruptError,
        "the file is damaged",
        "restore a backup, or save what can be read into a new file with `metis store repair`",
    ),
    sqlite3.SQLITE_NOTADB: (
        ForeignStoreError,
        "not a database of metis",
        f"{_CHOOSE_FILE}; this one was not changed",
    ),
    sqlite3.SQLITE_CANTOPEN: (
        StoreUnavailableError,
        "cannot be opened",
        "check that the directory exists and is writable",
    ),
    sqlite3.SQLITE_IOERR: (
        StoreUnavailableError,
        "the disk failed",
        "check that there is free space and that the disk is healthy",
    ),
}
_TABLES = (
    "sessions",
    "messages",
    "tool_calls",
    "journal",
    "digests",
    "message_parents",
    "bookmarks",
    "tool_id_map",
    "open_messages",
    "price_versions",
    "events",
    "writers",
    "exchanges",
    "history_ends",
    "wire_bodies",
    "response_items",
)
_COPY_BATCH = 1000


def store_error(error: sqlite3.Error, name: str) -> StoreError:
    """Return our error for one of SQLite, with a hint what to do."""
    code = getattr(error, "sqlite_errorcode", 0) & _PRIMARY_CODE
    # The error for invalid UTF-8 comes from the driver and has no code of SQLite.
    if not code and "decode to UTF-8" in str(error):
        code = sqlite3.SQLITE_CORRUPT
    unknown = (StoreError, "SQLite failed", "report this with the output of METIS_DEBUG=1")
    kind, text, hint = _ERRORS.get(code, unknown)
    return kind(f"{name}: {text} ({error})", hint=hint)


def is_busy(error: sqlite3.Error) -> bool:
    """Return whether another connection has locked the database."""
    code = getattr(error, "sqlite_errorcode", 0) & _PRIMARY_CODE
    return code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


@contextmanager
def translate_errors(name: str) -> Generator[None]:
    """Raise the errors of SQLite as ours."""
    try:
        yield
    except sqlite3.Error as error:
        raise store_error(error, name) from error


def check_file(path: Path, newest: int) -> None:
    """Refuse a file of another program or of a newer metis, without changing it."""
    try:
        # An empty file can be used: SQLite itself creates such files.
        if not path.exists() or path.stat().st_size == 0:
            return
        with path.open("rb") as file:
            header = file.read(_HEADER_BYTES)
    except OSError as error:
        raise StoreUnavailableError(f"{path}: cannot be read ({error.strerror})") from None
    if not header.startswith(_MAGIC):
        hint = f"{_CHOOSE_FILE}; a damaged store is saved by `metis store repair`"
        raise ForeignStoreError(f"{path}: not a SQLite database", hint=hint)
    application, version = _number(header, _APPLICATION_OFFSET), _number(header, _VERSION_OFFSET)
    if application == APPLICATION_ID:
        check_version(path, version, newest)
    elif application or _has_tables(path):
        text = f"{path}: the database of another program"
        raise ForeignStoreError(text, hint="choose another file with --store or METIS_STORE")


def check_version(path: Path, version: int, newest: int) -> None:
    """Refuse tables of a newer version."""
    if version > newest:
        raise StoreVersionError(
            f"{path}: its tables have version {version}, this metis supports {newest}",
            hint="update metis; the file was not changed",
        )


def _number(header: bytes, offset: int) -> int:
    return int.from_bytes(header[offset : offset + 4], "big")


def _has_tables(path: Path) -> bool:
    with (
        translate_errors(str(path)),
        closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection,
    ):
        return bool(connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])


def copy_tables(source: Transaction, target: Transaction) -> None:
    """Copy every row into a SQLite database; columns that the target does not have are left out."""
    for table in _TABLES:
        # The source may have a newer version with more columns.
        columns = [row[1] for row in target.run(f"PRAGMA table_info({table})")]
        names, marks = ", ".join(columns), ", ".join("?" * len(columns))
        rows = iter(source.stream(f"SELECT {names} FROM {table}"))  # noqa: S608 - a list of ours
        while batch := list(islice(rows, _COPY_BATCH)):
            target.change_many(f"INSERT INTO {table} ({names}) VALUES ({marks})", batch)  # noqa: S608 - a list of ours


@contextmanager
def create_private_file(path: Path) -> Generator[None]:
    """Create a file that only its owner can read; remove it if the body fails.

    Raises:
        StoreUnavailableError: the file exists already or cannot be created.
    """
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        text = f"{path}: the file exists already"
        raise StoreUnavailableError(text, hint="choose a new file name") from None
    except OSError as error:
        text = f"{path}: cannot create the file ({error.strerror})"
        raise StoreUnavailableError(text, hint="choose a writable directory") from None
    try:
        yield
    except BaseException:
        # SQLite leaves files beside the main one when a copy fails.
        for suffix in ("", "-wal", "-shm", "-lock", "-journal"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        raise
