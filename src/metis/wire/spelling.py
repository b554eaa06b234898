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
from typing import Any

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
