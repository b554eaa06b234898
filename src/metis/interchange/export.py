"""Exports: the conversation that every writer gets, and the file and losses that it returns."""

from collections.abc import Callable, Sequence

from msgspec import Struct

from metis.canonical import (
    ArtifactBlock,
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    OpaqueBlock,
    RedactedThinkingBlock,
    UnknownBlock,
    VideoBlock,
)
from metis.canonical.message import Message
from metis.canonical.tools import ToolDefinition
from metis.interchange.conversion import make_loss
from metis.projection.loss import Change, Loss
from metis.store import SessionRecord
from metis.wire.call import SIMULATED

_MAX_LOCATION = 60


class Conversation(Struct, frozen=True):
    """A conversation to export: the session, and the messages on the path to its newest one."""

    session: SessionRecord
    messages: Sequence[Message]
    tools: Sequence[ToolDefinition] = ()
    """Definitions of tools that the messages may call; the store has none."""


class ExportedFile(Struct, frozen=True):
    """The bytes of a file, and what it could not hold."""

    data: bytes
    losses: tuple[Loss, ...] = ()


Writer = Callable[[Conversation], ExportedFile]
"""Exports a conversation; the same conversation always gives the same bytes."""


class ExportLosses:
    """Collects what a format cannot hold."""

    def __init__(self, format_name: str) -> None:
        self._format_name = format_name
        self.losses: list[Loss] = []

    def add(
        self,
        message: Message,
        index: int,
        block: ContentBlock,
        reason: str,
        change: Change = Change.DROPPED,
    ) -> None:
        """Record one block that is not written as it is; `index` is its position in the message."""
        path = f"$.content[{index}]"
        self.losses.append(
            make_loss(message, self._format_name, str(block.type), path, reason, change=change)
        )


def model_label(message: Message) -> str:
    """Return the model of a message, with a mark if the simulator answered in its place."""
    metadata = message.metadata
    is_simulated = metadata.usage is not None and metadata.usage.pricing_version == SIMULATED
    return f"{metadata.model}, simulated" if is_simulated else metadata.model or ""


def describe_block(block: ContentBlock) -> str:
    """Return one line about a block that cannot be shown as text."""
    match block:
        case RedactedThinkingBlock():
            return "(thinking, encrypted by its provider)"
        case ImageBlock():
            return f"[image {block.media_type}, {_location(block.source.kind, block.source.data)}]"
        case DocumentBlock() | AudioBlock() | VideoBlock() | ArtifactBlock():
            name = getattr(block, "name", None) or ""
            location = _location(block.source.kind, block.source.data)
            return " ".join(f"[{block.type} {name} {block.media_type}, {location}]".split())
        case OpaqueBlock():
            return (
                f"[{block.kind or 'opaque part'} of {block.issuer}, {len(bytes(block.raw))} bytes]"
            )
        case UnknownBlock():
            return f"[unknown block {block.type!r}, stored unchanged]"
        case _:
            return f"[{block.type}]"


def _location(kind: str, data: str) -> str:
    if kind == "base64":
        return f"{len(data) * 3 // 4} bytes inline"
    if kind == "text":
        return f"{len(data)} characters inline"
    # A URL can be thousands of characters long.
    if len(data) > _MAX_LOCATION:
        return f"{data[:_MAX_LOCATION]}… ({len(data) - _MAX_LOCATION} more characters)"
    return data
