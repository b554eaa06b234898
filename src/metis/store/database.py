"""Database: what the store asks of SQLite and of PostgreSQL; the SQL above it is the same."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, TypeVar

A = TypeVar("A")
T = TypeVar("T")
Rows = list[tuple[Any, ...]]

TextOfRow = Callable[[Sequence[Any]], str | None]
"""The words of a row of `messages` that a search can find; None while it is being written."""


class Transaction(Protocol):
    """One connection, inside a transaction; placeholders are `?`."""

    def run(self, sql: str, values: Sequence[Any] = ()) -> Rows:
        """Run one statement and give its rows."""
        ...

    def stream(self, sql: str, values: Sequence[Any] = ()) -> Iterable[Any]:
        """Run one query and give its rows as they come."""
        ...

    def change(self, sql: str, values: Sequence[Any] = ()) -> int:
        """Run one statement and give the number of rows that it changed."""
        ...

    def change_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> int:
        """Run one statement for each row of values and give the number of rows that it changed."""
        ...


SESSION_TABLES = (
    "journal",
    "message_parents",
    "bookmarks",
    "tool_id_map",
    "open_messages",
    "tool_calls",
    "messages",
)
"""The tables with rows of sessions, those that point at others first."""


class SearchIndex(Protocol):
    """An index over the words of messages, which can always be made anew."""

    def catch_up(self, words_of: TextOfRow) -> int:
        """Take in what was stored since, and give the number of messages."""
        ...

    def find(self, words: str, session_id: str | None, limit: int) -> Rows:
        """Session, message and snippet of the best matches among the newest few hundred."""
        ...

    def clear(self) -> None:
        """Drop everything."""
        ...


class Database(Protocol):
    """A place for the tables of the store: one writes, many read."""

    name: str
    """Where it is, for people, without any password."""
    is_cheap_to_commit: bool
    """Whether a small commit takes less time than waking another thread."""

    def write(self, work: Callable[[Transaction], T], /) -> T:
        """Do work in a transaction for writing; it is durable when the answer comes."""
        ...

    def try_write(self, work: Callable[[Transaction, A], T], given: A, /) -> T | None:
        """The same with what the work is given, or None at once if somebody else is writing."""
        ...

    def read(self) -> AbstractContextManager[Transaction]:
        """A transaction for reading, at one point in time; for any thread."""
        ...

    def has_changed(self, transaction: Transaction) -> bool:
        """Whether anybody else may have written since the last transaction for writing."""
        ...

    def lock_sessions(self, transaction: Transaction, ids: Sequence[str]) -> None:
        """Keep others from writing to these sessions until the transaction ends."""
        ...

    def is_conflict(self, error: Exception) -> bool:
        """Whether an error says that a row is there already, or that one is missing."""
        ...

    def claim(self, *, wait: bool) -> bool:
        """Whether no other store has this database open; nobody else can open it until `share`."""
        ...

    def share(self, *, was_alone: bool) -> None:
        """Count as one of those that have it open."""
        ...

    def version(self) -> int:
        """The version of the tables; 0 if there are none."""
        ...

    def migrate(self) -> int:
        """Bring the tables up to date and give their version."""
        ...

    def maintain(self) -> None:
        """Do what is due once in a while after commits."""
        ...

    def check(self) -> list[str]:
        """What is wrong with the database itself."""
        ...

    def backup(self, target: Path) -> None:
        """Copy everything to a file, while others go on."""
        ...

    def erase(self, session_ids: Sequence[str]) -> None:
        """Take sessions away with everything in them, also from the search index."""
        ...

    def purge(self) -> None:
        """Give back the room of what was deleted."""
        ...

    def index(self) -> SearchIndex:
        """The search index."""
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...
