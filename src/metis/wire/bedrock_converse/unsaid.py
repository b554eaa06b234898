"""What a message says in Bedrock Converse only: keys that the canonical form has no place for."""

from collections.abc import Iterator
from typing import Any

from metis.canonical.message import Message
from metis.wire.bedrock_converse.blocks import PROTOCOL, plain_block
from metis.wire.shape import Wire, maybe_list, maybe_object
from metis.wire.spelling import NOTHING, says, spelled_blocks, spelling_of, unsaid

_TOLD = {"json": "text", "searchResult": "document"}
"""Parts that are told under another name, with all that they say."""


def unsaid_keys(message: Message) -> Iterator[str]:
    """The paths of keys that another protocol is not told."""
    spelling = spelling_of(message, PROTOCOL)
    keys = maybe_object(spelling.get("keys"))
    yield from (f"$.{key}" for key, value in keys.items() if says(key, value))
    ids = spelling.get("ids") or NOTHING
    for index, wire in spelled_blocks(message, spelling).items():
        plain = plain_block(message.content[int(index)], lambda ours: ids.get(ours, ours))
        yield from unsaid(_normal(wire), plain, f"$.content[{index}]")


def _normal(wire: Any) -> Wire:
    """A part with what is told under another name under that."""
    own = maybe_object(wire)
    answer = maybe_object(own.get("toolResult"))
    if answer:
        content = [_normal(part) for part in maybe_list(answer.get("content"))]
        status = {"status": None} if answer.get("status") == "success" else {}
        return {"toolResult": {**answer, "content": content, **status}}
    call = maybe_object(own.get("toolUse"))
    if call.get("type") == "tool_use":
        return {"toolUse": {key: value for key, value in call.items() if key != "type"}}
    return {_TOLD.get(key, key): value for key, value in own.items()}
