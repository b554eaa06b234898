"""Copying: everything of one database into another one, table by table."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from metis.canonical.errors import StoreUnavailableError
from metis.store.database import Transaction

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
def new_file(path: Path) -> Generator[None]:
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
