"""The file of a SQLite store.

ownership and version checks, error translation, new files and copies.
"""

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
"""The number by which a file says that it is ours: `meti`."""

_MAGIC = b"SQLite format 3\x00"
_HEADER = 100
_VERSION_AT, _APPLICATION_AT = 60, 68
_PRIMARY = 0xFF

_KINDS: dict[int, tuple[type[StoreError], str, str]] = {
    sqlite3.SQLITE_FULL: (
        StoreFullError,
        "no room is left",
        "make room and try again; nothing older is lost",
    ),
    sqlite3.SQLITE_READONLY: (
        StoreReadOnlyError,
        "it may only be read",
        "make the file and its folder writable, or open another store",
    ),
    sqlite3.SQLITE_BUSY: (
        StoreLockedError,
        "another program holds it",
        "end the other program or try again",
    ),
    sqlite3.SQLITE_LOCKED: (
        StoreLockedError,
        "another program holds it",
        "end the other program or try again",
    ),
    sqlite3.SQLITE_CORRUPT: (
        StoreCorruptError,
        "the file is broken",
        "restore a backup; `metis store check` shows what is left",
    ),
    sqlite3.SQLITE_NOTADB: (
        ForeignStoreError,
        "it is no database of metis",
        "name another file; this one was not touched",
    ),
    sqlite3.SQLITE_CANTOPEN: (
        StoreUnavailableError,
        "it cannot be opened",
        "see whether the folder is there and may be written",
    ),
    sqlite3.SQLITE_IOERR: (
        StoreUnavailableError,
        "the disk failed",
        "see whether there is room, and whether the disk is sound",
    ),
}


def store_error(error: sqlite3.Error, name: str) -> StoreError:
    """What an error of SQLite means, and what to do about it."""
    code = getattr(error, "sqlite_errorcode", 0) & _PRIMARY
    kind, text, hint = _KINDS.get(code, (StoreError, "it refused", "see the log"))
    return kind(f"{name}: {text} ({error})", hint=hint)


def is_busy(error: sqlite3.Error) -> bool:
    """Whether somebody else holds the database."""
    code = getattr(error, "sqlite_errorcode", 0) & _PRIMARY
    return code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


@contextmanager
def translate_errors(name: str) -> Generator[None]:
    """Turn the errors of SQLite into ours."""
    try:
        yield
    except sqlite3.Error as error:
        raise store_error(error, name) from error


def check_file(path: Path, newest: int) -> None:
    """Refuse a file of another program or of a newer metis, without touching it."""
    try:
        if not path.exists() or path.stat().st_size == 0:
            return
        with path.open("rb") as file:
            header = file.read(_HEADER)
    except OSError as error:
        raise StoreUnavailableError(f"{path}: it cannot be read ({error.strerror})") from None
    if not header.startswith(_MAGIC):
        raise ForeignStoreError(f"{path}: it is no database", hint="name another file")
    application, version = _number(header, _APPLICATION_AT), _number(header, _VERSION_AT)
    if application == APPLICATION_ID:
        check_version(path, version, newest)
    elif application or _has_tables(path):
        raise ForeignStoreError(
            f"{path}: it is the database of another program", hint="name another file"
        )


def check_version(path: Path, version: int, newest: int) -> None:
    """Refuse a version that we do not know."""
    if version > newest:
        raise StoreVersionError(
            f"{path}: its tables are of version {version}, this metis knows {newest}",
            hint="update metis; the file was not touched",
        )


def _number(header: bytes, offset: int) -> int:
    return int.from_bytes(header[offset : offset + 4], "big")


def _has_tables(path: Path) -> bool:
    with (
        translate_errors(str(path)),
        closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection,
    ):
        return bool(connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])


_TABLES = (
    "sessions",
    "messages",
    "tool_calls",
    "journal",
    "message_parents",
    "bookmarks",
    "tool_id_map",
    "open_messages",
    "price_versions",
    "events",
    "writers",
)
_AT_ONCE = 1000


def copy_tables(source: Transaction, target: Transaction) -> None:
    """Copy every row; a column that the target does not know has no place there."""
    for table in _TABLES:
        columns = [row[1] for row in target.run(f"PRAGMA table_info({table})")]
        names, marks = ", ".join(columns), ", ".join("?" * len(columns))
        rows = iter(source.stream(f"SELECT {names} FROM {table}"))  # noqa: S608 - a list of ours
        while some := list(islice(rows, _AT_ONCE)):
            target.change_many(f"INSERT INTO {table} ({names}) VALUES ({marks})", some)  # noqa: S608 - a list of ours


@contextmanager
def create_private_file(path: Path) -> Generator[None]:
    """A file for nobody else's eyes that is not there yet, and after a failure neither."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        raise StoreUnavailableError(
            f"{path}: it is there already", hint="name a new file"
        ) from None
    except OSError as error:
        text = f"{path}: it cannot be made ({error.strerror})"
        raise StoreUnavailableError(text, hint="name a folder that may be written") from None
    try:
        yield
    except BaseException:
        for name in ("", "-wal", "-shm", "-lock", "-journal"):
            Path(f"{path}{name}").unlink(missing_ok=True)
        raise
