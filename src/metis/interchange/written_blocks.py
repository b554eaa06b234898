"""Compares the blocks that were written to a file with those that a reader gets from it."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from metis.canonical.blocks import (
    ContentBlock,
    OpaqueBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from metis.canonical.message import Message, Role
from metis.canonical.value import canonical_bytes
from metis.interchange.session_draft import source_position
from metis.projection.loss import Change, Loss
from metis.store.entries import entry_of

_sorted = msgspec.json.Encoder(order="sorted").encode


def missing_blocks(
    written: Sequence[Message], read_back: Iterable[Message], format_name: str, reported: list[Loss]
) -> list[Loss]:
    """Return a loss for each block that a reader of the file does not get and no loss names."""
    present = Counter(_facts(read_back))
    reported_messages = {loss.message_id for loss in reported if loss.path == "$"}
    paths: dict[str, list[str]] = {}
    for loss in reported:
        paths.setdefault(loss.message_id, []).append(loss.path)
    losses: list[Loss] = []
    for message in written:
        for index, block in enumerate(message.content):
            fact = _fact(message.role, block)
            if present[fact] > 0:
                present[fact] -= 1
                continue
            path = f"$.content[{index}]"
            is_reported = any(loss_path.startswith(path) for loss_path in paths.get(message.id, ()))
            if message.id in reported_messages or is_reported:
                continue
            position = source_position(entry_of(message))
            losses.append(
                Loss(
                    session_id=message.session_id,
                    message_id=message.id,
                    block_type=str(block.type),
                    adapter=format_name,
                    reason=f"{format_name} does not return it unchanged{position}",
                    change=Change.ALTERED,
                    path=path,
                )
            )
    return losses


def _facts(messages: Iterable[Message]) -> Iterator[bytes]:
    for message in messages:
        for block in message.content:
            yield _fact(message.role, block)


def _fact(role: Role, block: ContentBlock) -> bytes:
    """Return the content of a block without ids, which differ between programs."""
    match block:
        case TextBlock():
            facts: Any = (str(role), "text", block.text)
        case ThinkingBlock():
            facts = ("thinking", block.text, block.signature)
        case ToolUseBlock():
            facts = ("call", block.name, block.input, block.invalid and block.invalid.raw)
        case ToolResultBlock():
            inner = [_fact(Role.TOOL, part).decode() for part in block.content]
            facts = ("result", inner, block.is_error)
        case OpaqueBlock():
            facts = ("opaque", block.data)
        case _:
            facts = (block.type, canonical_bytes(block).decode())
    return _sorted(facts)
