"""What the formats of gpt2099 share: roles, cache marks, options."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from metis.canonical.message import Message, Role
from metis.canonical.metadata import CacheHint
from metis.interchange.desk import foreign_of
from metis.interchange.gpt2099.blocks import EPHEMERAL, SYSTEM
from metis.interchange.gpt2099.turn_ids import turn_id
from metis.store.entries import KnownEntry, MessageEntry

ROLES = {Role.USER: "user", Role.ASSISTANT: "assistant", Role.SYSTEM: "system", Role.TOOL: "user"}
"""Their word for each of our roles; results of calls ride with the user."""

SILENT: Mapping[str, tuple[Any, ...]] = {
    "role": ("user",),
    "options": ({}, None),
    "cache": (False, None),
    "is_error": (False, None),
    "id": (None,),
    "tool_use_id": (None,),
}
"""Values that say the same as leaving the key out."""

HINTS = {"cache": True, "cache_control": EPHEMERAL}
"""Marks for caches: hints, whatever their place."""


def messages_of(entries: Sequence[KnownEntry]) -> list[Message]:
    """The messages of one turn; none if one of them has no role here."""
    found = [entry.message for entry in entries if isinstance(entry, MessageEntry)]
    return found if all(message.role in ROLES for message in found) else []


def role_of(messages: Sequence[Message]) -> str:
    """The role of a turn."""
    return ROLES[messages[0].role]


def foreign_id(message: Message) -> str:
    """The id of the turn that a message begins."""
    found = foreign_of(message, SYSTEM).get("id")
    return found if isinstance(found, str) else turn_id(message.id)


def cached(message: Message) -> Message:
    """The message with a mark at its end, as a turn with `cache` has it."""
    last = CacheHint(after=len(message.content) - 1)
    hints = (*(hint for hint in message.metadata.hints if hint.after != last.after), last)
    return replace(message, metadata=replace(message.metadata, hints=hints))


def uncached(messages: Sequence[Message]) -> tuple[list[Message], bool]:
    """The messages without the mark at the end of the turn, and whether there was one."""
    *rest, last = messages
    end = len(last.content) - 1
    hints = tuple(hint for hint in last.metadata.hints if hint.after != end)
    if len(hints) == len(last.metadata.hints):
        return list(messages), False
    return [*rest, replace(last, metadata=replace(last.metadata, hints=hints))], True
