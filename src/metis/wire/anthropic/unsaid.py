"""What a message says in Anthropic Messages only: keys that the canonical form has no place for."""

from collections.abc import Iterator

from metis.canonical.message import Message
from metis.wire.anthropic.blocks import PROTOCOL, plain_block
from metis.wire.shape import maybe_object
from metis.wire.spelling import says, spelled_blocks, spelling_of, unsaid


def unsaid_keys(message: Message) -> Iterator[str]:
    """The paths of keys that another protocol is not told."""
    spelling = spelling_of(message, PROTOCOL)
    keys = maybe_object(spelling.get("keys"))
    yield from (f"$.{key}" for key, value in keys.items() if says(key, value))
    for index, wire in spelled_blocks(message, spelling).items():
        plain = plain_block(message.content[int(index)])
        yield from unsaid(wire, plain, f"$.content[{index}]")
