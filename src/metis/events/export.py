"""Export: events as lines of JSON and as CSV; the same events always give the same bytes."""

import csv
import io
from collections.abc import Iterable, Iterator

from metis.events.event import Event, read_event, write

COLUMNS = (
    "id",
    "timestamp",
    "session_id",
    "turn_id",
    "parent_event_id",
    "type",
    "actor",
    "sensitivity",
    "payload",
)
"""The columns of the CSV."""


def jsonl(events: Iterable[Event]) -> Iterator[bytes]:
    """One line of JSON an event, in the order of their ids."""
    return (write(event) + b"\n" for event in _ordered(events))


def read_jsonl(lines: Iterable[bytes]) -> Iterator[Event]:
    """The events of such lines; types that we do not know are skipped with a warning."""
    events = (read_event(line) for line in lines if line.strip())
    return (event for event in events if event is not None)


def csv_lines(events: Iterable[Event]) -> Iterator[bytes]:
    """A header and one line an event, in the order of their ids; the payload is one column."""
    yield _line(COLUMNS)
    for event in _ordered(events):
        yield _line(
            (
                event.id,
                event.timestamp.isoformat(timespec="microseconds"),
                event.session_id,
                event.turn_id or "",
                event.parent_event_id or "",
                event.type,
                event.actor,
                event.sensitivity,
                write(event.payload).decode(),
            )
        )


def _ordered(events: Iterable[Event]) -> list[Event]:
    return sorted(events, key=lambda event: event.id)


def _line(cells: Iterable[str]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerow([_harmless(cell) for cell in cells])
    return text.getvalue().encode()


def _harmless(cell: str) -> str:
    """A cell that no spreadsheet takes for a formula."""
    return f"'{cell}" if cell[:1] in ("=", "+", "-", "@", "\t", "\r") else cell
