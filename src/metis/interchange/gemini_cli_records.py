"""The records of a gemini-cli session: the messages that are current, and helpers to read them."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from metis.canonical.message import Message
from metis.canonical.metadata import Usage
from metis.interchange.conversion import parse_time
from metis.interchange.source import ForeignRecord, Source, parse_record
from metis.wire.json_access import Wire, maybe_count, maybe_list, maybe_object, maybe_text
from metis.wire.response import new_usage

_write = msgspec.json.Encoder().encode
_ROLES = ("user", "model", "gemini")
_MAX_CHECKED = 20


class CurrentMessages:
    """The messages of the session at a position in the file, as gemini-cli would load them.

    A record can cut the list, replace it, or replace its last message. Every search starts at the
    end or in a dict, so that a file of many such records takes no longer than another.
    """

    def __init__(self) -> None:
        self._items: list[tuple[str, bytes, str | None]] = []
        self._index: dict[str, int] = {}
        self._message_indexes: list[int] = []

    def add(self, record: ForeignRecord, messages: Sequence[Message]) -> None:
        """Add a record with its messages; none for a note to the user."""
        name = maybe_text(record.fields.get("id"))
        if name is None or name in self._index:
            return
        self._index[name] = len(self._items)
        if messages:
            self._message_indexes.append(len(self._items))
        last = messages[-1].id if messages else self.last_message(len(self._items))
        self._items.append((name, _digest(record), last))

    def cut(self, end: int) -> None:
        """Remove all but the first items."""
        while len(self._items) > end:
            name, _, _ = self._items.pop()
            del self._index[name]
        while self._message_indexes and self._message_indexes[-1] >= end:
            self._message_indexes.pop()

    def index_of(self, name: str | None) -> int | None:
        """Return the position of a record by its id; None if it is not in the list."""
        return None if name is None else self._index.get(name)

    def is_last_message(self, index: int) -> bool:
        """Return whether only notes follow a position."""
        return self._message_indexes[-1:] == [index]

    def last_message(self, end: int) -> str | None:
        """Return our id of the last message before a position; None if there is none."""
        return self._items[end - 1][2] if end else None

    def equal_count(self, items: Sequence[ForeignRecord]) -> int:
        """Return how many of the first items are in the list already, unchanged."""
        for number, (item, present) in enumerate(zip(items, self._items, strict=False)):
            if (item.fields.get("id"), _digest(item)) != present[:2]:
                return number
        return min(len(items), len(self._items))


def _digest(record: ForeignRecord) -> bytes:
    return sha256(_write(record.value)).digest()


def is_message(fields: Wire) -> bool:
    """Return whether a record is a prompt, results, or a response."""
    kind = fields.get("type", fields.get("role"))
    return kind == "gemini" or (kind in _ROLES and ("content" in fields or "parts" in fields))


def is_prompt(fields: Wire) -> bool:
    """Return whether a message is of the user; a saved chat has the roles of the protocol."""
    return fields.get("type", fields.get("role")) == "user"


def content_of(fields: Wire) -> Any:
    """Return the text or the parts of a message; a saved chat has those of the protocol."""
    return fields["content"] if "content" in fields else fields.get("parts")


def is_saved_chat(contents: Any) -> bool:
    """Return whether a list is a chat that `/chat save` wrote: contents of the Gemini protocol."""
    items = [maybe_object(item) for item in maybe_list(contents)[:_MAX_CHECKED]]
    return bool(items) and all(
        item.get("role") in _ROLES
        and isinstance(item.get("parts"), list)
        and not any("type" in maybe_object(part) for part in maybe_list(item["parts"]))
        for item in items
    )


def record_units(records: Iterable[ForeignRecord]) -> Iterator[list[ForeignRecord]]:
    """Yield records; a message that is written again, with more in it, is one with the first."""
    unit: list[ForeignRecord] = []
    for record in records:
        name = record.fields.get("id")
        if unit and name is not None and unit[-1].fields.get("id") == name:
            unit.append(record)
            continue
        if unit:
            yield unit
        unit = [record]
    if unit:
        yield unit


def read_usage(tokens: Wire) -> Usage | None:
    """Return the usage of a response; None if it has none."""
    if not tokens:
        return None
    total = maybe_count(tokens.get("input")) or 0
    cached = min(maybe_count(tokens.get("cached")) or 0, total)
    thoughts = maybe_count(tokens.get("thoughts")) or 0
    return new_usage(
        latency_ms=0,
        input_tokens=total - cached + (maybe_count(tokens.get("tool")) or 0),
        cached_input_tokens=cached,
        output_tokens=(maybe_count(tokens.get("output")) or 0) + thoughts,
        reasoning_output_tokens=thoughts,
    )


def token_counts(usage: Usage | None) -> dict[str, int] | None:
    """Return a usage as a record has it."""
    if usage is None:
        return None
    thoughts = usage.reasoning_output_tokens
    return {
        "input": usage.prompt_tokens,
        "output": usage.output_tokens - thoughts,
        "cached": usage.cached_input_tokens,
        "thoughts": thoughts,
        "tool": 0,
        "total": usage.prompt_tokens + usage.output_tokens,
    }


def is_one_document(source: Source) -> bool:
    """Return whether the file is one document, and not a line per record."""
    sample = source.sample().lstrip()
    first = sample.partition(b"\n")[0]
    if sample.startswith(b"[") or b'"history"' in sample:
        return parse_record(0, first).value is None or b'"parts"' in first
    return b'"messages"' in sample and (
        parse_record(0, first).value is None or b'"messages"' in first
    )


def parent_session(path: Path | None, metadata: Wire) -> str | None:
    """Return the session of a sub-agent, whose files are in a directory of that name."""
    is_agent = metadata.get("kind") == "subagent" or (
        path is not None and path.parent.parent.name == "chats"
    )
    return path.parent.name if is_agent and path is not None else None


def time_of(fields: Wire) -> datetime | None:
    """Return the time of a record; None if it has none."""
    text = maybe_text(fields.get("timestamp")) or maybe_text(fields.get("startTime"))
    return None if text is None else parse_time(text)
