"""Database: the interface of SQLite and PostgreSQL to the store, with the same SQL for both."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeVar

A = TypeVar("A")
T = TypeVar("T")
Rows = list[tuple[Any, ...]]
SchemaStep = tuple[int, str]
"""The number and the SQL of one schema version."""

TextOfRow = Callable[[Sequence[Any]], str | None]
"""Returns the searchable text of a row of `messages`; None while the message is partial."""


class Transaction(Protocol):
    """A connection inside a transaction; placeholders are `?`."""

    @property
    def binary_text(self) -> str:
        """The format of an SQL expression that selects a text column as bytes.

        `{}` where the driver returns text.
        """
        ...

    def run(self, sql: str, values: Sequence[Any] = ()) -> Rows:
        """Run one statement and return its rows."""
        ...

    def stream(self, sql: str, values: Sequence[Any] = ()) -> Iterable[Any]:
        """Run one query and return its rows without loading all of them."""
        ...

    def change(self, sql: str, values: Sequence[Any] = ()) -> int:
        """Run one statement and return the number of changed rows."""
        ...

    def change_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> int:
        """Run one statement for each row of values and return the number of changed rows."""
        ...


SESSION_TABLES = (
    "wire_bodies",
    "response_items",
    "exchanges",
    "history_ends",
    "digests",
    "journal",
    "message_parents",
    "bookmarks",
    "tool_id_map",
    "open_messages",
    "tool_calls",
    "messages",
)
"""The tables with rows of sessions; a table comes before those that its keys refer to."""


class SearchIndex(Protocol):
    """A full-text index over messages, which can always be rebuilt from them."""

    def catch_up(self, text_of: TextOfRow) -> int:
        """Index the messages stored since the last call; return their number."""
        ...

    def find(self, query: str, session_id: str | None, limit: int) -> Rows:
        """Return session, message and snippet of the best of the newest few hundred matches."""
        ...

    def clear(self) -> None:
        """Empty the index."""


class Database(Protocol):
    """The tables of a store: one connection writes, many read."""

    name: str
    """The location for messages, without a password."""
    is_cheap_to_commit: bool
    """Whether a small commit takes less time than waking another thread."""

    def write(self, work: Callable[[Transaction], T], /) -> T:
        """Call a function in a write transaction; it is durable when this returns."""
        ...

    def try_write(self, work: Callable[[Transaction, A], T], argument: A, /) -> T | None:
        """Write like `write`, but return None at once if another process is writing."""
        ...

    def read(self) -> AbstractContextManager[Transaction]:
        """Open a read transaction that sees one point in time; for any thread."""
        ...

    def has_changed(self, transaction: Transaction) -> bool:
        """Return whether another process may have written since our last write."""
        ...

    def lock_sessions(self, transaction: Transaction, ids: Sequence[str]) -> None:
        """Block other writers of these sessions until the transaction ends."""

    def is_conflict(self, error: Exception) -> bool:
        """Return whether an error means that a row exists already or is missing."""
        ...

    def claim(self, *, wait: bool) -> bool:
        """Return whether no other process has this database open; if so, none can until `share`."""
        ...

    def share(self, *, was_alone: bool) -> None:
        """Allow other processes to open the database."""

    def version(self) -> int:
        """Return the version of the tables; 0 if there are none."""
        ...

    def migrate(self) -> int:
        """Migrate the tables to the newest version and return it."""
        ...

    def maintain(self) -> None:
        """Do the periodic maintenance after commits."""

    def check(self) -> list[str]:
        """Return the faults of the database itself."""
        ...

    def backup(self, target: Path) -> None:
        """Copy all tables to a file, while other processes read and write."""

    def erase(self, session_ids: Sequence[str]) -> None:
        """Delete sessions with all their rows, also from the search index."""

    def purge(self) -> None:
        """Free the space of deleted rows, so that no data of them is left on the disk."""

    def index(self) -> SearchIndex:
        """Return the search index."""
        ...

    def close(self) -> None:
        """Close all connections."""


@cache
def schema_steps(dialect: str) -> list[SchemaStep]:
    """Return every schema file of a dialect in order; a file is never edited once released."""
    files = sorted((Path(__file__).parent / "schema" / dialect).glob("*.sql"))
    return [(int(file.name.partition("_")[0]), file.read_text("utf-8")) for file in files]


def newest_schema(dialect: str) -> int:
    """Return the schema version that this release writes."""
    return schema_steps(dialect)[-1][0]


def schema_statements(text: str) -> list[str]:
    """Split a schema file into statements; a semicolon at the end of a line ends one."""
    # `executescript` of SQLite would commit the surrounding transaction, so files are split.
    lines = [line for line in text.splitlines() if not line.startswith("--")]
    return [part.strip() for part in "\n".join(lines).split(";\n") if part.strip()]
