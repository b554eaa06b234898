"""Recording: entries that are no messages, and what follows from them."""

from collections.abc import Iterator

from metis.canonical.errors import InvalidValueError, UnknownMessageError
from metis.canonical.ids import is_ulid
from metis.store.entries import (
    AnyEntry,
    BookmarkEntry,
    CompactionEntry,
    MessageEntry,
    RetractionEntry,
    RewindEntry,
    SwapEntry,
    encode_entry,
    place_entry,
)
from metis.store.tables import Head, Tables
from metis.store.work import Work

_ID_LENGTHS = (25, 26)
_LONGEST_NAME = 200


class Record(Work):
    """An entry to be put at the end of its session."""

    def __init__(self, entry: AnyEntry) -> None:
        if isinstance(entry, MessageEntry):
            raise InvalidValueError("messages are appended, not recorded", path="$.type")
        if isinstance(entry, BookmarkEntry):
            check_name(entry.name)
        self._entry = entry
        self.session_ids = [entry.session_id]

    def write(self, tables: Tables) -> AnyEntry:
        """Give the entry its place and write what follows from it."""
        entry = self._entry
        head = tables.head(entry.session_id)
        for message_id in named_messages(entry):
            _check_message(tables, entry.session_id, message_id)
        placed = place_entry(entry, session_id=entry.session_id, seq=head.seq + 1)
        if isinstance(placed, SwapEntry):
            sql = "UPDATE sessions SET active_model = ? WHERE id = ?"
            tables.change(sql, (placed.to_model, placed.session_id))
        elif isinstance(placed, BookmarkEntry):
            _set_bookmark(placed, head, tables)
        head.seq = head.placed = head.seq + 1
        text = encode_entry(placed).decode()
        tables.journal.append((placed.session_id, head.seq, None, text, head.latest_at))
        tables.touch(placed.session_id, head)
        return placed


def named_messages(entry: AnyEntry) -> Iterator[str]:
    """The messages that an entry rests on."""
    match entry:
        case CompactionEntry():
            named = (entry.first_kept_id, entry.head_id)
        case RewindEntry():
            named = (entry.to_id, entry.head_id)
        case RetractionEntry() | BookmarkEntry():
            named = (entry.message_id,)
        case _:
            named = ()
    return (each for each in named if each is not None)


def check_name(name: str) -> None:
    """Refuse names of bookmarks that nobody could read, or that look like an id (G-044, G-045)."""
    if not name.strip() or not name.isprintable() or len(name) > _LONGEST_NAME:
        raise InvalidValueError(f"{name!r} is no name for a bookmark", path="$.name")
    if is_ulid(name.upper()) or (len(name) in _ID_LENGTHS and name.isalnum()):
        raise InvalidValueError(f"{name!r} looks like an id", path="$.name")


def _check_message(tables: Tables, session_id: str, message_id: str) -> None:
    sql = "SELECT 1 FROM messages WHERE id = ? AND session_id = ?"
    if not tables.run(sql, (message_id, session_id)):
        raise UnknownMessageError(session_id, message_id)


def _set_bookmark(entry: BookmarkEntry, head: Head, tables: Tables) -> None:
    if entry.message_id is None:
        head.bookmarks.pop(entry.name, None)
        sql = "DELETE FROM bookmarks WHERE session_id = ? AND name = ?"
        tables.change(sql, (entry.session_id, entry.name))
        return
    head.bookmarks[entry.name] = entry.message_id
    tables.bookmarks.append((entry.session_id, entry.name, entry.message_id))
