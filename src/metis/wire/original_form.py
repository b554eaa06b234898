"""How a provider spelled a message, kept so that the same JSON can be written back.

The canonical form states what a message means; a wire message can state the same in different JSON.
For requests to the same provider the difference is stored in the metadata of the message, under the
name of the protocol, where only the codec that wrote it looks. It belongs to the provider that the
message came from: hosts of one protocol do not know each other's ids and extra keys.

- `joined`: the message shares its wire message with the one before it
- `apart`: the message has a wire message of its own, although neighbours of its role share one
- `plain`: the content was a string, not a list of parts
- `success`: a tool result states explicitly that it succeeded
- `keys`: keys of the wire message that the canonical form has no field for
- `blocks`: parts that hold more than their block, by index, as they were received
- `digest`: the content digest that `blocks` belongs to; they are ignored for any other content
- `ids`: the provider's ids of the tool calls in this message, by ours
"""

from collections.abc import Iterator, Mapping
from typing import Any, cast

from msgspec.structs import replace

from metis.canonical.message import Message

EMPTY: Mapping[str, Any] = {}
PROTOCOL_ONLY_KEYS = frozenset({"apart", "digest", "ids", "joined", "plain", "success"})
"""What a spelling remembers that is only of use in its own protocol."""
CANONICAL_KEYS = frozenset({"role", "content", "tool_calls"})
"""Keys of a message that blocks speak for, however they are spelled."""


def original_form_of(message: Message, protocol: str) -> Mapping[str, Any]:
    """How a message was spelled in a protocol; empty if it did not come from there."""
    raw = message.metadata.provider_raw
    return EMPTY if raw is None else raw.get(protocol, EMPTY)


def has_foreign_form(message: Message, protocol: str, provider: str) -> bool:
    """Whether a message is spelled in the protocol, but by another provider or its client."""
    metadata = message.metadata
    raw = metadata.provider_raw
    return (
        raw is not None and (metadata.provider or metadata.origin) != provider and protocol in raw
    )


def extra_keys(message: Message, protocol: str) -> list[str]:
    """The keys of the wire message that say something which the canonical form does not."""
    keys: Mapping[str, Any] = original_form_of(message, protocol).get("keys") or EMPTY
    return [key for key, value in keys.items() if value and key not in CANONICAL_KEYS]


def without_original_form(message: Message) -> Message:
    """The message as the canonical form alone says it."""
    return replace(message, metadata=replace(message.metadata, provider_raw=None))


def original_blocks(message: Message, spelling: Mapping[str, Any]) -> Mapping[str, Any]:
    """The parts as they came, by index, if the content is still what it was then."""
    blocks = spelling.get("blocks", EMPTY)
    return blocks if blocks and spelling.get("digest") == message.content_digest() else EMPTY


def provider_raw_of(protocol: str, spelling: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The value for `provider_raw` that remembers a spelling; None if there is none."""
    kept = {name: value for name, value in spelling.items() if value}
    return {protocol: kept} if kept else None


_IDLE_KEYS = frozenset({"cache_control", "caller", "index"})
"""Keys that mean something to their own protocol only; cache marks are hints of the message."""
_IDLE_VALUES: tuple[object, ...] = (None, "", False, [], {}, {"type": "direct"})
_IDLE = (("detail", "auto"), ("type", "custom"), ("type", "function"))


def unmapped_paths(wire: object, plain: object, path: str) -> Iterator[str]:
    """The paths of what a part says beyond its plain form; other words for the same are no loss."""
    if isinstance(wire, dict) and isinstance(plain, dict):
        known = cast("dict[str, object]", plain)
        for key, value in cast("dict[str, object]", wire).items():
            place = f"{path}.{key}"
            if key in known:
                yield from unmapped_paths(value, known[key], place)
            elif is_meaningful(key, value):
                yield place
    elif isinstance(wire, list) and isinstance(plain, list):
        pairs = zip(cast("list[object]", wire), cast("list[object]", plain), strict=False)
        for index, (one, other) in enumerate(pairs):
            yield from unmapped_paths(one, other, f"{path}[{index}]")


def is_meaningful(key: str, value: object) -> bool:
    """Whether a key that other protocols do not have says anything."""
    return key not in _IDLE_KEYS and value not in _IDLE_VALUES and (key, value) not in _IDLE


def provider_tool_ids(message: Message) -> dict[str, str]:
    """The provider's ids of the calls in a message, by ours."""
    found: dict[str, str] = {}
    for spelling in (message.metadata.provider_raw or EMPTY).values():
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
