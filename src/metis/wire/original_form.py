"""The original form of a message: how its wire message differs from the default encoding.

The canonical form contains the meaning of a message; different JSON can have the same meaning. To
send the provider exactly its own JSON again, the difference is stored in the metadata of the
message, under the name of the protocol; only the codec of this protocol reads it. It is sent only
to the provider that the message came from: other hosts reject unknown ids and extra keys.

- `joined`: the message shares its wire message with the preceding message
- `apart`: the message has a separate wire message, although messages of its role usually share one
- `plain`: the content was a string, not a list of parts
- `success`: a tool result states explicitly that it succeeded
- `keys`: keys of the wire message that the canonical form has no field for
- `blocks`: the received JSON of parts whose block does not contain all of it, by index
- `digest`: the content digest that `blocks` belongs to; if the message has changed since, the
  entries are matched with blocks by decoding them
- `ids`: the provider's ids of the tool calls in this message, by tool_use_id
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
"""The keys of an original form that have no meaning for other protocols."""
CANONICAL_KEYS = frozenset({"role", "content", "tool_calls"})
"""The keys of a wire message whose values become blocks."""


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
    """Return the original JSON of blocks, by the current index of the block.

    The message may have been edited: unchanged blocks keep their original JSON even if others were
    changed, added or removed. `decode` decodes the JSON of a block, with its wire ids.
    """
    blocks = form.get("blocks", EMPTY)
    # Without stored blocks the digest, which hashes the whole content, is not needed.
    if not blocks or form.get("digest") == message.content_digest():
        return blocks
    call_ids = {wire_id: call for call, wire_id in (form.get("ids") or EMPTY).items()}
    decoded = {index: _with_call_id(decode(wire), call_ids) for index, wire in blocks.items()}
    stored = {int(index): write_sorted(block) for index, block in decoded.items()}
    current = [write_sorted(block) for block in message.content]
    return {str(new): blocks[str(old)] for old, new in aligned(stored, current).items()}


def _with_call_id(block: ContentBlock, call_ids: Mapping[str, str]) -> ContentBlock:
    """Return a block with the tool_use_id of its call in place of the wire id."""
    if isinstance(block, ToolUseBlock):
        return replace(block, id=call_ids.get(block.id, block.id))
    if isinstance(block, ToolResultBlock):
        return replace(block, tool_use_id=call_ids.get(block.tool_use_id, block.tool_use_id))
    return block


def aligned(before: Mapping[int, object], after: Sequence[object]) -> dict[int, int]:
    """Return the new index of each part that is still present, by its old index.

    Parts are compared by hashable keys. The order of the parts is preserved; of several equal
    candidates the one nearest to the old index is used.
    """
    indexes: dict[object, list[int]] = {}
    for index, key in enumerate(after):
        indexes.setdefault(key, []).append(index)
    new_indexes: dict[int, int] = {}
    start = 0
    for old_index in sorted(before):
        candidates = indexes.get(before[old_index], ())
        first = bisect_left(candidates, start)
        at = bisect_left(candidates, old_index, first)
        nearest = [candidates[n] for n in (at - 1, at) if first <= n < len(candidates)]
        if nearest:
            new_index = min(nearest, key=lambda index: abs(index - old_index))
            new_indexes[old_index], start = new_index, new_index + 1
    return new_indexes


def provider_raw_of(protocol: str, form: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the value of `provider_raw` for an original form; None if the form is empty."""
    # Empty values are the default; storing them would only take space.
    stored = {name: value for name, value in form.items() if value}
    return {protocol: stored} if stored else None


def form_metadata(protocol: str, form: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata fields of an original form, for importers that create messages."""
    return {"provider_raw": provider_raw_of(protocol, form)}


# Cache marks become hints of the message; the other keys have no meaning in another protocol.
_MEANINGLESS_KEYS = frozenset({"cache_control", "caller", "index"})
_MEANINGLESS_VALUES: tuple[object, ...] = (None, "", False, [], {}, {"type": "direct"})
# Values that the API assumes if the key is missing, so that dropping them loses nothing.
_DEFAULTS = (("detail", "auto"), ("type", "custom"), ("type", "function"))


def unmapped_paths(wire: object, plain: object, path: str) -> Iterator[str]:
    """Yield the paths of meaningful keys of `wire` that are missing in `plain`, at any depth.

    `plain` is the part as it would be encoded from its block. Values are not compared.
    """
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
    """Whether dropping a key with this value is a loss for another protocol."""
    if key in _MEANINGLESS_KEYS or value in _MEANINGLESS_VALUES:
        return False
    return (key, value) not in _DEFAULTS


def provider_tool_ids(message: Message) -> dict[str, str]:
    """Return the wire ids of the calls in a message, by tool_use_id."""
    wire_ids: dict[str, str] = {}
    for form in (message.metadata.provider_raw or EMPTY).values():
        if isinstance(form, Mapping):
            wire_ids.update(cast("Mapping[str, Any]", form).get("ids") or {})
    return wire_ids


def with_tool_ids(message: Message, ids: Mapping[str, str]) -> Message:
    """Return a message with its wire ids stored under new tool_use_ids; `ids` maps old to new."""
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
    """Yield the stream events of a plain response, with the wire ids of its provider."""
    for protocol, form in (message.metadata.provider_raw or EMPTY).items():
        if isinstance(form, Mapping) and "response" in form:
            stored = cast("Mapping[str, Any]", form)
            forms = stored.get("blocks") or EMPTY
            # After an edit an index may belong to another block, so that the forms are not used.
            is_unchanged = forms and stored.get("digest") == message.content_digest()
            return events_of_message(
                message, protocol, stored.get("ids") or EMPTY, forms if is_unchanged else EMPTY
            )
    return events_of_message(message)
