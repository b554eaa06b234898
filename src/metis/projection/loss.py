"""Losses: what does not reach a target as it was, and why."""

from enum import StrEnum

from msgspec import Struct

from metis.canonical.message import Message
from metis.projection.target import Target


class Change(StrEnum):
    """What happened to a part on its way."""

    DROPPED = "dropped"
    ALTERED = "altered"
    SYNTHESISED = "synthesised"


class Loss(Struct, frozen=True, kw_only=True):
    """One part that was left out, changed or made up for a target, with the reason."""

    session_id: str
    message_id: str
    block_type: str
    adapter: str
    reason: str
    change: Change = Change.DROPPED
    path: str = "$"

    def __str__(self) -> str:
        return f"{self.message_id} {self.path}: {self.block_type} {self.change}: {self.reason}"


class LossRecorder:
    """Collects the losses of one request."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.losses: list[Loss] = []
        self.has_large_images = False
        """Whether an image was let through that is large where there are many."""
        self.attachments: list[tuple[Message, Message]] = []
        """The messages of the target's clients that others were attached to, before and after."""

    def record_dropped(self, message: Message, block_type: str, path: str, reason: str) -> None:
        """A part is left out."""
        self._write(Change.DROPPED, message, block_type, path, reason)

    def record_altered(self, message: Message, block_type: str, path: str, reason: str) -> None:
        """A part is sent in another form or place."""
        self._write(Change.ALTERED, message, block_type, path, reason)

    def record_synthesised(self, message: Message, block_type: str, path: str, reason: str) -> None:
        """A part is made up because the target wants one."""
        self._write(Change.SYNTHESISED, message, block_type, path, reason)

    def _write(
        self, change: Change, message: Message, block_type: str, path: str, reason: str
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
            )
        )
