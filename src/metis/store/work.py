"""Work: something to be written, and what became of it."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from metis.canonical.errors import MetisError
from metis.store.database import Transaction
from metis.store.tables import Tables


class Work:
    """Something to write; it may be run again, in a transaction of its own, if others spoil it."""

    session_ids: Sequence[str] = ()
    """The sessions that it is known to write to."""
    size: int = 0
    """About how many bytes it writes."""
    answer: asyncio.Future[None] | None = None
    """What its caller waits for, if another thread does it."""
    value: Any = None
    error: Exception | None = None
    is_done: bool = False

    def write(self, tables: Tables, /) -> Any:
        """Write it, and give what the caller waits for."""
        raise NotImplementedError

    def explain(self, transaction: Transaction, /) -> MetisError | None:  # noqa: ARG002 - nothing to say
        """What is wrong with it, if it did not fit to what is there."""
        return None

    def end(self, value: Any, error: Exception | None) -> None:
        """Note what became of it."""
        self.value, self.error, self.is_done = value, error, True


class Plain(Work):
    """Work that is one function."""

    def __init__(self, write: Callable[[Tables], Any]) -> None:
        self._write = write

    def write(self, tables: Tables, /) -> Any:
        """Call it."""
        return self._write(tables)
