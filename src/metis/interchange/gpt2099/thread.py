"""The thread records of gpt2099: turns in order, each with its own options."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from metis.canonical.message import Role
from metis.interchange.aside import Difference
from metis.interchange.desk import Desk
from metis.interchange.document import Record, array_records, first_item, read_json, shaped
from metis.interchange.format import Format, entry_of
from metis.interchange.gpt2099 import types
from metis.interchange.gpt2099.blocks import SYSTEM, decode_turn, encode_turn
from metis.interchange.gpt2099.turn_ids import turn_time
from metis.interchange.gpt2099.turns import (
    HINTS,
    SILENT,
    cached,
    foreign_id,
    messages_of,
    role_of,
    uncached,
)
from metis.store.entries import KnownEntry
from metis.wire.shape import Wire


class Gpt2099Thread(Format):
    """A JSON array of thread records."""

    name = "gpt2099-thread"
    system = SYSTEM
    silent = SILENT

    def fits(self, data: bytes) -> bool:
        """Whether it is an array of turns with an id and a list of blocks."""
        first = first_item(data)
        return first is not None and "id" in first and isinstance(first.get("content"), list)

    def split(self, data: bytes) -> Iterable[Record]:
        """The turns."""
        return array_records(data, read_json(data, self.name), "$", self.name)

    def join(self, records: list[Wire], entries: Sequence[KnownEntry]) -> bytes:  # noqa: ARG002 - every format has it
        """The array."""
        return json.dumps(records, ensure_ascii=False, indent=2).encode() + b"\n"

    def decode(self, record: Wire, desk: Desk) -> list[KnownEntry]:
        """The messages of one turn."""
        wire = shaped(types.Turn, record, "$")
        facts: dict[str, Any] = {"foreign": {"id": wire.id}}
        if wire.options:
            facts["options"] = wire.options
        role = Role(wire.role or "user")
        messages = decode_turn(role, wire.content, desk, created_at=turn_time(wire.id), **facts)
        if wire.cache:
            messages[-1] = cached(messages[-1])
        return [entry_of(message) for message in messages]

    def encode(self, entries: Sequence[KnownEntry], desk: Desk) -> Wire | None:
        """One turn."""
        messages = messages_of(entries)
        if not messages:
            return None
        bare, is_cached = uncached(messages)
        return {
            "id": foreign_id(messages[0]),
            "role": role_of(messages),
            "content": encode_turn(bare, desk),
            "options": messages[0].metadata.options or {},
            "cache": is_cached,
        }

    def says_the_same(self, difference: Difference) -> bool:
        """Marks for caches are hints."""
        key = difference.steps[-1] if difference.steps else ""
        return key in HINTS or super().says_the_same(difference)
