"""The original form of a message: how a provider wrote it, so that it is written back the same.

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
- `digest`: the content digest that `blocks` belongs to; in a message that has changed since, they
  are found by what they decode to
- `ids`: the provider's ids of the tool calls in this message, by ours
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from metis.canonical.blocks import ContentBlock, ToolResultBlock, ToolUseBlock
from metis.canonical.message import Message
from metis.streaming.events import StreamEvent, events_of_message

EMPTY: Mapping[str, Any] = {}
write_sorted = msgspec.json.Encoder(order="deterministic").encode
"""Writes JSON with sorted keys, to compare values: `1`, `1.0` and `true` are different."""
PROTOCOL_ONLY_KEYS = frozenset({"apart", "carriers", "digest", "ids", "joined", "plain", "success"})
"""The keys of an original form that other protocols lose nothing by."""
CANONICAL_KEYS = frozenset({"role", "content", "tool_calls"})
"""Keys of a wire message that blocks hold, in whatever form."""


def original_form_of(message: Message, protocol: str) -> Mapping[str, Any]:
    """Return the original form of a message in a protocol; empty if it has none."""
    raw = message.metadata.provider_raw
    return EMPTY if raw is None else raw.get(protocol, EMPTY)


def has_foreign_form(message: Message, protocol: str, provider: str) -> bool:
    """Whether the original form in a protocol is that of another provider or its client."""
    metadata = message.metadata
    raw = metadata.provider_raw
    return (
        raw is not None and (metadata.provider or metadata.origin) != provider and protocol in raw
    )


def extra_keys(message: Message, protocol: str) -> list[str]:
    """Return the keys of the wire message that the canonical form has no field for."""
    keys: Mapping[str, Any] = original_form_of(message, protocol).get("keys") or EMPTY
    return [key for key, value in keys.items() if value and key not in CANONICAL_KEYS]


def without_original_form(message: Message) -> Message:
    """Return a message without its original form."""
    return replace(message, metadata=replace(message.metadata, provider_raw=None))


def original_blocks(
    message: Message, form: Mapping[str, Any], decode: Callable[[Any], ContentBlock]
) -> Mapping[str, Any]:
    """Return the original blocks by the index that their block has now.

    A message may have been changed since: blocks that are as they were keep their original form,
    also if others were changed, added or removed. `decode` decodes a block with its wire ids.
    """
    blocks = form.get("blocks", EMPTY)
    # The digest is computed only if there is something to protect by it.
    if not blocks or form.get("digest") == message.content_digest():
        return blocks
    ours = {wire_id: call for call, wire_id in (form.get("ids") or EMPTY).items()}
    decoded = {index: _with_our_id(decode(wire), ours) for index, wire in blocks.items()}
    before = {int(index): write_sorted(block) for index, block in decoded.items()}
    after = [write_sorted(block) for block in message.content]
    return {str(now): blocks[str(index)] for index, now in aligned(before, after).items()}


def _with_our_id(block: ContentBlock, ours: Mapping[str, str]) -> ContentBlock:
    if isinstance(block, ToolUseBlock):
        return replace(block, id=ours.get(block.id, block.id))
    if isinstance(block, ToolResultBlock):
        return replace(block, tool_use_id=ours.get(block.tool_use_id, block.tool_use_id))
    return block


def aligned(before: Mapping[int, object], after: Sequence[object]) -> dict[int, int]:
    """Return the index now of each part that was at an index before and is still there.

    Parts are compared by hashable keys. Equal ones stay in their order, each as near to its old
    place as it can.
    """
    places: dict[object, list[int]] = {}
    for index, key in enumerate(after):
        places.setdefault(key, []).append(index)
    places_now: dict[int, int] = {}
    start = 0
    for index in sorted(before):
        candidates = places.get(before[index], ())
        first = bisect_left(candidates, start)
        at = bisect_left(candidates, index, first)
        near = [candidates[n] for n in (at - 1, at) if first <= n < len(candidates)]
        if near:
            now = min(near, key=lambda each: abs(each - index))
            places_now[index], start = now, now + 1
    return places_now


def provider_raw_of(protocol: str, form: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the value of `provider_raw` for an original form; None if the form is empty."""
    # Only what differs from the usual form takes space in the store.
    stored = {name: value for name, value in form.items() if value}
    return {protocol: stored} if stored else None


def form_metadata(protocol: str, form: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of a message that has an original form, for readers of its own files."""
    return {"provider_raw": provider_raw_of(protocol, form)}


# Cache marks are hints of the message, and the others mean nothing outside of their protocol.
_MEANINGLESS_KEYS = frozenset({"cache_control", "caller", "index"})
_MEANINGLESS_VALUES: tuple[object, ...] = (None, "", False, [], {}, {"type": "direct"})
_DEFAULTS = (("detail", "auto"), ("type", "custom"), ("type", "function"))


def unmapped_paths(wire: object, plain: object, path: str) -> Iterator[str]:
    """Yield the paths of keys that a part has beyond its plain form; values are not compared."""
    if isinstance(wire, dict) and isinstance(plain, dict):
        mapped = cast("dict[str, object]", plain)
        for key, value in cast("dict[str, object]", wire).items():
            if key in mapped:
                yield from unmapped_paths(value, mapped[key], f"{path}.{key}")
            elif is_meaningful(key, value):
                yield f"{path}.{key}"
    elif isinstance(wire, list) and isinstance(plain, list):
        pairs = zip(cast("list[object]", wire), cast("list[object]", plain), strict=False)
        for index, (item, plain_item) in enumerate(pairs):
            yield from unmapped_paths(item, plain_item, f"{path}[{index}]")


def is_meaningful(key: str, value: object) -> bool:
    """Whether another protocol loses something without a key."""
    if key in _MEANINGLESS_KEYS or value in _MEANINGLESS_VALUES:
        return False
    return (key, value) not in _DEFAULTS


def provider_tool_ids(message: Message) -> dict[str, str]:
    """Return the wire ids of the calls in a message, by our ids."""
    wire_ids: dict[str, str] = {}
    for form in (message.metadata.provider_raw or EMPTY).values():
        if isinstance(form, Mapping):
            wire_ids.update(cast("Mapping[str, Any]", form).get("ids") or {})
    return wire_ids


def with_tool_ids(message: Message, ids: Mapping[str, str]) -> Message:
    """Return a message whose calls have other ids of ours: `ids` maps the old ones to new ones."""
    raw = message.metadata.provider_raw
    if not provider_tool_ids(message) or raw is None:
        return message
    renamed: dict[str, Any] = {
        protocol: {**form, "ids": {ids.get(call, call): wire_id for call, wire_id in old.items()}}
        if isinstance(form, dict) and (old := cast("dict[str, Any]", form).get("ids"))
        else form
        for protocol, form in raw.items()
    }
    return replace(message, metadata=replace(message.metadata, provider_raw=renamed))


def response_events(message: Message) -> Iterator[StreamEvent]:
    """Yield the events of a response that was not streamed, with the ids that its provider gave."""
    for protocol, form in (message.metadata.provider_raw or EMPTY).items():
        if isinstance(form, Mapping) and "response" in form:
            stored = cast("Mapping[str, Any]", form)
            forms = stored.get("blocks") or EMPTY
            # What is as the blocks say has no form; edited content may have that of another block.
            is_same = forms and stored.get("digest") == message.content_digest()
            return events_of_message(
                message, protocol, stored.get("ids") or EMPTY, forms if is_same else EMPTY
            )
    return events_of_message(message)
