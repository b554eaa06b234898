"""The ledger of a projection: every change that is made on the way to a target is written here."""

from metis.canonical.message import Message
from metis.projection.loss import Change, Loss
from metis.projection.target import Target


class Ledger:
    """Collects the losses of one request."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.losses: list[Loss] = []
        self.has_large_images = False
        """Whether an image was let through that is large where there are many."""
        self.hosts: list[tuple[Message, Message]] = []
        """The messages of the target's clients that others were attached to, before and after."""

    def dropped(self, message: Message, block_type: str, path: str, reason: str) -> None:
        """A part is left out."""
        self._write(Change.DROPPED, message, block_type, path, reason)

    def altered(self, message: Message, block_type: str, path: str, reason: str) -> None:
        """A part is sent in another form or place."""
        self._write(Change.ALTERED, message, block_type, path, reason)

    def synthesised(self, message: Message, block_type: str, path: str, reason: str) -> None:
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
