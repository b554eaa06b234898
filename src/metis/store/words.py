"""Words: what of a message a search can find."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from metis.canonical.blocks import (
    ArtifactBlock,
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from metis.canonical.message import Message
from metis.canonical.metadata import MessageStatus
from metis.store.rows import from_row

_write_json = msgspec.json.Encoder().encode


def words_of_row(row: Sequence[Any]) -> str | None:
    """The words of a row of `messages`; None while the message is being written."""
    message = from_row(row)
    if message.metadata.status == MessageStatus.PARTIAL:
        return None
    return words_of(message)


def words_of(message: Message) -> str:
    """Text, and what tools were asked and answered."""
    parts = (part for block in message.content for part in _parts(block))
    return "\n".join(part for part in parts if part).replace("\x00", " ")


def _parts(block: ContentBlock) -> Iterator[str | None]:
    match block:
        case TextBlock() | ThinkingBlock():
            yield block.text
        case ToolUseBlock():
            yield block.name
            yield block.invalid.raw if block.invalid else _write_json(block.input).decode()
        case ToolResultBlock():
            for inner in block.content:
                yield from _parts(inner)
        case DocumentBlock():
            yield block.name
            yield block.context
            yield block.source.data if block.source.kind == "text" else None
        case AudioBlock() | ArtifactBlock():
            yield block.transcript
        case _:
            return
