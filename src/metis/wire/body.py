"""A request body whose turns are bytes already: the rest is written around them."""

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Raw

from metis.wire.shape import Wire

Write = Callable[[Any], bytes]
"""Writes JSON with sorted keys."""
Written = bytes | memoryview
"""Turns as they stand in a list: one or several, with commas between them."""

_GAP = Raw(b"[\0]")  # no JSON holds such a byte, so that it marks where the turns belong


def write_around(options: Wire, key: str, turns: Sequence[Written], write: Write) -> bytes:
    """The object with these options and, under `key`, the list of the turns.

    >>> import msgspec
    >>> write = msgspec.json.Encoder(order="deterministic").encode
    >>> write_around({"a": 1, "z": 2}, "m", [b"{}", b"[]"], write)
    b'{"a":1,"m":[{},[]],"z":2}'
    """
    before, after = _halves(options, key, write)
    parts: list[Written] = [before]
    for turn in turns:
        parts += (turn, b",")
    parts[-1 if turns else 1 :] = (after,)
    return b"".join(parts)


def _halves(options: Wire, key: str, write: Write) -> tuple[bytes, bytes]:
    """What stands before and behind the turns."""
    before, _, after = write({**options, key: _GAP}).partition(b"\0")
    return before, after


class TurnRecord:
    """Turns that nothing can join any more; each is written once, with the first body it is in."""

    __slots__ = ("_waiting", "_written")

    def __init__(self) -> None:
        self._written: list[Written] = []
        self._waiting: list[Any] = []

    def copy(self) -> "TurnRecord":
        """The same turns, to which others can be added."""
        other = TurnRecord()
        other._written, other._waiting = [*self._written], [*self._waiting]
        return other

    @property
    def is_empty(self) -> bool:
        """Whether there are no turns yet."""
        return not self._written and not self._waiting

    def add(self, turns: Sequence[Any]) -> None:
        """Add turns that are complete."""
        self._waiting += turns

    def body(self, options: Wire, key: str, write: Write, last: Any = None) -> bytes:
        """The object with these options and, under `key`, the turns; `last` is not complete yet."""
        if not self._written:
            return self._first_body(options, key, write, last)
        if self._waiting:
            self._written.append(memoryview(write(self._waiting))[1:-1])
            self._waiting = []
        tail = () if last is None else (write(last),)
        return write_around(options, key, (*self._written, *tail), write)

    def _first_body(self, options: Wire, key: str, write: Write, last: Any) -> bytes:
        """The same in one go: a long history is not copied, its bytes stay where they are."""
        turns = self._waiting if last is None else [*self._waiting, last]
        body = write({**options, key: turns})
        if self._waiting:
            before, after = _halves(options, key, write)
            tail = len(after) if last is None else len(after) + len(write(last)) + len(b",")
            self._written.append(memoryview(body)[len(before) : len(body) - tail])
            self._waiting = []
        return body
