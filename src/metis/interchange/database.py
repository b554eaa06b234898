"""SQLite databases of other programs: opened for reading only, with bounds, and never changed."""

import sqlite3

from metis.canonical.errors import ForeignDocumentError
from metis.canonical.reader import LIMITS
from metis.interchange.source import Source, log_of

MAGIC = b"SQLite format 3\0"
"""How every SQLite database begins."""
_LOCK_WAIT_S = 5


def open_database(source: Source, format_name: str) -> sqlite3.Connection:
    """Open the database of a source for reading only; the program may be using it.

    Raises:
        ForeignDocumentError: the source is no file.
    """
    if source.path is None:
        raise ForeignDocumentError(
            "a database is read from a file only", format=format_name, line=1
        )
    # Without a write-ahead log nothing is being written. SQLite would create an empty one beside
    # the database of the other program unless the file is declared immutable.
    mode = "immutable=1" if log_of(source.path) is None else "mode=ro"
    address = f"{source.path.absolute().as_uri()}?{mode}"
    connection = sqlite3.connect(address, uri=True, timeout=_LOCK_WAIT_S)
    connection.row_factory = sqlite3.Row
    # A database is hostile input like any other file: it may not load code through its schema.
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LIMITS.max_bytes)
    return connection


def table_names(source: Source, format_name: str) -> set[str]:
    """Return the names of the tables; an empty set if it is no database that can be read."""
    if not source.sample().startswith(MAGIC) or source.path is None:
        return set()
    try:
        connection = open_database(source, format_name)
    except sqlite3.Error:
        return set()
    try:
        sql = "SELECT name FROM sqlite_master WHERE type = 'table'"
        return {str(row["name"]) for row in connection.execute(sql)}
    except sqlite3.Error:
        return set()
    finally:
        connection.close()
