"""Renaming: the same entries under other ids, for forks and for imports beside the original."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from metis.canonical.blocks import ContentBlock, ToolResultBlock, ToolUseBlock
from metis.canonical.ids import new_ulids
from metis.canonical.message import Message
from metis.store.entries import AnyEntry, MessageEntry, UnknownEntry, place_entry
from metis.wire.spelling import with_tool_ids

_NAMING = ("message_id", "first_kept_id", "head_id", "to_id")


class Renaming(Struct, frozen=True):
    """New ids for old ones."""

    session_id: str
    messages: Mapping[str, str]
    calls: Mapping[str, str]
    entries: Mapping[str, str]

    def entry(self, entry: AnyEntry, seq: int) -> AnyEntry:
        """The same entry under its new ids."""
        if isinstance(entry, UnknownEntry):
            return place_entry(entry, session_id=self.session_id, seq=seq)
        fields: dict[str, Any] = {"id": self.entries[entry.id], "session_id": self.session_id}
        if isinstance(entry, MessageEntry):
            return replace(entry, **fields, seq=seq, message=self.message(entry.message))
        for name in _NAMING:
            old = getattr(entry, name, None)
            if old is not None:
                fields[name] = self.messages.get(old, old)
        return replace(entry, **fields, seq=seq)

    def message(self, message: Message) -> Message:
        """The same message under its new ids."""
        metadata = message.metadata
        parent, parents = metadata.parent_tool_use_id, metadata.parents
        if parent is not None or parents:
            metadata = replace(
                metadata,
                parent_tool_use_id=self.calls.get(parent, parent) if parent else parent,
                parents=tuple(self.messages.get(each, each) for each in parents),
            )
        renamed = replace(
            message,
            id=self.messages[message.id],
            session_id=self.session_id,
            content=tuple(self._block(block) for block in message.content),
            metadata=metadata,
        )
        return with_tool_ids(renamed, self.calls)

    def _block(self, block: ContentBlock) -> ContentBlock:
        if isinstance(block, ToolUseBlock):
            return replace(block, id=self.calls.get(block.id, block.id))
        if isinstance(block, ToolResultBlock):
            return replace(block, tool_use_id=self.calls.get(block.tool_use_id, block.tool_use_id))
        return block


def renaming_for(entries: Sequence[AnyEntry], session_id: str) -> Renaming:
    """Fresh ids for everything in a list of entries, in the same order."""
    fresh = dict(zip((entry.id for entry in entries), new_ulids(len(entries)), strict=True))
    messages = [entry.message for entry in entries if isinstance(entry, MessageEntry)]
    calls = list(dict.fromkeys(_calls(messages)))
    return Renaming(
        session_id=session_id,
        messages={message.id: fresh[message.id] for message in messages},
        calls={old: f"tu_{new}" for old, new in zip(calls, new_ulids(len(calls)), strict=True)},
        entries=fresh,
    )


def _calls(messages: Iterable[Message]) -> Iterable[str]:
    for message in messages:
        for block in message.content:
            if isinstance(block, ToolUseBlock):
                yield block.id
            elif isinstance(block, ToolResultBlock):
                yield block.tool_use_id
