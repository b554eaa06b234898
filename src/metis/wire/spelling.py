"""Spelling: what a protocol can say in several ways, and which way was taken.

The canonical form says what a message means; a wire message can say the same in different JSON. For
the way back to the same protocol the difference is kept in the metadata of the message, under the
name of the protocol, where only the codec that wrote it looks:

- `joined`: the message shares its wire message with the one before it
- `plain`: the content was a string, not a list of parts
- `keys`: keys of the wire message that the canonical form has no place for
- `blocks`: parts that say more than their block, by index, as they came
- `digest`: the content digest that the spelling of blocks belongs to; another content has none
- `ids`: the provider's ids of the calls in this message, by ours
"""

from collections.abc import Mapping
from typing import Any, cast

from msgspec.structs import replace

from metis.canonical.message import Message

NOTHING: Mapping[str, Any] = {}


def spelling_of(message: Message, protocol: str) -> Mapping[str, Any]:
    """How a message was spelled in a protocol; empty if it did not come from there."""
    raw = message.metadata.provider_raw
    return NOTHING if raw is None else raw.get(protocol, NOTHING)


def spelled_blocks(message: Message, spelling: Mapping[str, Any]) -> Mapping[str, Any]:
    """The parts as they came, by index, if the content is still what it was then."""
    blocks = spelling.get("blocks", NOTHING)
    return blocks if blocks and spelling.get("digest") == message.content_digest() else NOTHING


def spelled(protocol: str, spelling: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The value for `provider_raw` that remembers a spelling; None if there is none."""
    kept = {name: value for name, value in spelling.items() if value}
    return {protocol: kept} if kept else None


def provider_tool_ids(message: Message) -> dict[str, str]:
    """The provider's ids of the calls in a message, by ours."""
    found: dict[str, str] = {}
    for spelling in (message.metadata.provider_raw or NOTHING).values():
        if isinstance(spelling, Mapping):
            found.update(cast("Mapping[str, Any]", spelling).get("ids") or {})
    return found


def with_tool_ids(message: Message, ids: Mapping[str, str]) -> Message:
    """The same message with what is remembered of its calls kept under other ids of ours."""
    raw = message.metadata.provider_raw
    if not provider_tool_ids(message) or raw is None:
        return message
    renamed: dict[str, Any] = {
        protocol: {**spelling, "ids": {ids.get(our, our): their for our, their in kept.items()}}
        if isinstance(spelling, dict) and (kept := cast("dict[str, Any]", spelling).get("ids"))
        else spelling
        for protocol, spelling in raw.items()
    }
    return replace(message, metadata=replace(message.metadata, provider_raw=renamed))
