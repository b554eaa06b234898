"""Losses: the parts of a history that a target does not receive unchanged, with reasons."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from enum import StrEnum

from msgspec import Struct

from metis.canonical.blocks import ContentBlock
from metis.canonical.message import Message
from metis.projection.content import fail_if_critical
from metis.projection.target import Target


class Change(StrEnum):
    """What happened to a part of a message or an option."""

    DROPPED = "dropped"
    ALTERED = "altered"
    SYNTHESISED = "synthesised"


class Loss(Struct, frozen=True, kw_only=True):
    """One part that was dropped, altered or synthesised for a target, with the reason."""

    session_id: str
    message_id: str
    block_type: str
    adapter: str
    reason: str
    change: Change = Change.DROPPED
    path: str = "$"
    as_text: bool = False
    """Whether the complete content of an altered part is sent as text."""

    def __str__(self) -> str:
        return f"{self.message_id} {self.path}: {self.block_type} {self.change}: {self.reason}"

    def log_fields(self) -> dict[str, str]:
        """Return the fields for a log record of the loss."""
        names = ("session_id", "message_id", "block_type", "adapter", "reason")
        return {name: getattr(self, name) for name in names}


class Projection(Struct, frozen=True):
    """The messages as they can be sent to a target, and the losses."""

    messages: Sequence[Message]
    losses: list[Loss]
    call_ids: AbstractSet[str] | None = None
    """The ids of all calls, if later messages can be projected separately; None otherwise."""
    has_large_images: bool = False
    """Whether there are images that are too large for a request with many images (T90)."""
    attachments: Sequence[tuple[Message, Message]] = ()
    """Native messages before and after a developer message was attached to them."""


class LossRecorder:
    """Collects the losses of one request to a target."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.losses: list[Loss] = []
        self.has_large_images = False
        self.attachments: list[tuple[Message, Message]] = []

    def record_dropped(self, message: Message, block_type: str, path: str, reason: str) -> None:
        """Record a part that is dropped."""
        self._record(Change.DROPPED, message, block_type, path, reason)

    def record_altered(self, message: Message, block_type: str, path: str, reason: str) -> None:
        """Record a part that is sent in another form or at another position."""
        self._record(Change.ALTERED, message, block_type, path, reason)

    def record_synthesised(self, message: Message, block_type: str, path: str, reason: str) -> None:
        """Record a part that is synthesised because the target needs it."""
        self._record(Change.SYNTHESISED, message, block_type, path, reason)

    def record_block(
        self, change: Change, block: ContentBlock, message: Message, path: str, reason: str
    ) -> None:
        """Record a block that is changed or dropped.

        Raises:
            CriticalLossError: the block is marked critical.
        """
        fail_if_critical(block, message, path, reason)
        self._record(change, message, block.type, path, reason)

    def record_as_text(self, block: ContentBlock, message: Message, path: str, reason: str) -> None:
        """Record a block whose complete content is sent as text.

        Raises:
            CriticalLossError: the block is marked critical.
        """
        fail_if_critical(block, message, path, reason)
        reason = f"{reason}; sent as text"
        self._record(Change.ALTERED, message, block.type, path, reason, as_text=True)

    def _record(  # noqa: PLR0913 - the fields of a loss
        self,
        change: Change,
        message: Message,
        block_type: str,
        path: str,
        reason: str,
        *,
        as_text: bool = False,
    ) -> None:
        self.losses.append(
            Loss(
                session_id=message.session_id,
                message_id=message.id,
                block_type=block_type,
                adapter=self.target.adapter,
                reason=reason,
                change=change,
                path=path,
                as_text=as_text,
            )
        )
