"""Two JSON formats of gpt2099: the context window (messages and options) and the thread (turns)."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from metis.canonical.errors import ForeignDocumentError
from metis.canonical.ids import new_ulid
from metis.canonical.message import Role
from metis.interchange.conversion import ConversionContext
from metis.interchange.document import (
    Record,
    array_records,
    convert_to,
    first_item,
    first_object,
    read_json,
)
from metis.interchange.format import ArrayFormat, Format, entry_of
from metis.interchange.gpt2099 import types
from metis.interchange.gpt2099.turns import (
    CACHE_MARKS,
    DEFAULT_VALUES,
    SYSTEM,
    decode_turn,
    encode_turn,
    messages_of,
    role_of,
    turn_id_of,
    turn_time,
    with_cache_mark,
    without_cache_mark,
)
from metis.interchange.residue import Difference
from metis.store.entries import KnownEntry, SidecarEntry
from metis.store.threads import merged_options
from metis.wire.json_access import Wire, maybe_list, maybe_object, object_at

HEADER = "gpt2099.context"
"""The kind of entry that holds what a context window has beside its messages."""


class Gpt2099Context(Format):
    """What `gpt context resolve` prints and a provider gets."""

    name = "gpt2099-context"
    system = SYSTEM
    default_values = DEFAULT_VALUES

    def fits(self, data: bytes) -> bool:
        """Return whether it is an object with messages, whose content is a list of blocks."""
        messages = maybe_object(first_object(data)).get("messages")
        contents = [maybe_object(message).get("content") for message in maybe_list(messages)]
        return isinstance(messages, list) and all(isinstance(item, list) for item in contents)

    def split(self, data: bytes) -> Iterable[Record]:
        """Return the window without its messages, then each message."""
        window = maybe_object(read_json(data, self.name))
        if "messages" not in window:
            raise ForeignDocumentError("a context window has messages", format=self.name)
        yield Record({**window, "messages": []}, "$")
        yield from array_records(data, window["messages"], "$.messages", self.name)

    def join(self, records: list[Wire], entries: Sequence[KnownEntry]) -> bytes:
        """Return the window; its options are those of all messages, merged in order."""
        header = records[0] if records and "messages" in records[0] else None
        messages = records if header is None else records[1:]
        options = merged_options(messages_of(entries))
        window: Wire = {"messages": [], "options": {}} if header is None else dict(header)
        # A window that was only read keeps its options as they were, empty ones included.
        if options and options != window.get("options"):
            window["options"] = options
        window["messages"] = messages
        return json.dumps(window, ensure_ascii=False, indent=2).encode() + b"\n"

    def prepare(self, entries: list[KnownEntry], conversion: ConversionContext) -> list[KnownEntry]:  # noqa: ARG002 - of the contract
        """Return the entries with the header first."""
        first = next((entry for entry in entries if _is_header(entry)), None)
        if first is None:
            return entries
        return [first, *(entry for entry in entries if entry is not first)]

    def decode(self, record: Wire, conversion: ConversionContext) -> list[KnownEntry]:
        """Return the header, or the messages of one foreign message."""
        if "messages" in record:
            return [self._decode_header(record, conversion)]
        wire = convert_to(types.Message, record, "$")
        # Our options belong to messages; those of the window go to its first message.
        metadata: dict[str, Any] = {"options": conversion.options} if conversion.options else {}
        conversion.options = {}
        messages = decode_turn(Role(wire.role), wire.content, conversion, **metadata)
        if wire.cache:
            messages[-1] = with_cache_mark(messages[-1])
        return [entry_of(message) for message in messages]

    def _decode_header(self, record: Wire, conversion: ConversionContext) -> KnownEntry:
        options = record.get("options")
        conversion.options = {} if options is None else object_at(options, "$.options")
        return SidecarEntry(
            id=new_ulid(),
            session_id=conversion.request_context.session_id,
            created_at=conversion.request_context.created_at,
            kind=HEADER,
            data={"options": conversion.options},
            external={SYSTEM: {"part": 0}},
        )

    def encode(self, entries: Sequence[KnownEntry], conversion: ConversionContext) -> Wire | None:
        """Return the header, or one foreign message."""
        first = entries[0]
        if isinstance(first, SidecarEntry) and _is_header(first):
            return {"messages": [], "options": first.data["options"]}
        messages = messages_of(entries)
        if not messages:
            return None
        return {"role": role_of(messages), "content": encode_turn(messages, conversion)}

    def is_equivalent(self, difference: Difference) -> bool:
        """Return whether both values mean the same; cache marks are hints."""
        # `cache` of a message and a mark on its last block mean the same.
        mark = CACHE_MARKS.get(difference.key)
        is_mark = mark is not None and mark in (difference.expected, difference.actual)
        return is_mark or super().is_equivalent(difference)


def _is_header(entry: KnownEntry) -> bool:
    return isinstance(entry, SidecarEntry) and entry.kind == HEADER and "options" in entry.data


class Gpt2099Thread(ArrayFormat):
    """A JSON array of turns, each with its own options."""

    name = "gpt2099-thread"
    system = SYSTEM
    default_values = DEFAULT_VALUES

    def fits(self, data: bytes) -> bool:
        """Return whether it is an array of turns with an id and a list of blocks."""
        first = first_item(data)
        return first is not None and "id" in first and isinstance(first.get("content"), list)

    def decode(self, record: Wire, conversion: ConversionContext) -> list[KnownEntry]:
        """Return the messages of one turn."""
        wire = convert_to(types.Turn, record, "$")
        messages = decode_turn(
            Role(wire.role or "user"),
            wire.content,
            conversion,
            created_at=turn_time(wire.id),
            foreign={"id": wire.id},
            **({"options": wire.options} if wire.options else {}),
        )
        if wire.cache:
            messages[-1] = with_cache_mark(messages[-1])
        return [entry_of(message) for message in messages]

    def encode(self, entries: Sequence[KnownEntry], conversion: ConversionContext) -> Wire | None:
        """Return one turn."""
        messages = messages_of(entries)
        if not messages:
            return None
        unmarked, is_cached = without_cache_mark(messages)
        return {
            "id": turn_id_of(messages[0]),
            "role": role_of(messages),
            "content": encode_turn(unmarked, conversion),
            "options": messages[0].metadata.options or {},
            "cache": is_cached,
        }

    def is_equivalent(self, difference: Difference) -> bool:
        """Return whether both values mean the same; cache marks are hints."""
        return difference.key in CACHE_MARKS or super().is_equivalent(difference)
