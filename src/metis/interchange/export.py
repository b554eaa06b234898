"""What every export takes and gives: a conversation, the bytes of a file, and the losses."""

from collections.abc import Callable, Sequence

from msgspec import Struct

from metis.canonical.blocks import ContentBlock
from metis.canonical.message import Message
from metis.projection.loss import Change, Loss
from metis.store import SessionRecord


class Conversation(Struct, frozen=True):
    """A conversation to be written: the session, and the messages on the way to its newest."""

    session: SessionRecord
    messages: Sequence[Message]


class ExportedFile(Struct, frozen=True):
    """The bytes of a file, and what it could not hold."""

    data: bytes
    losses: tuple[Loss, ...] = ()


Writer = Callable[[Conversation], ExportedFile]
"""Writes a conversation; the same conversation always gives the same bytes."""


class ExportLosses:
    """Collects what a form cannot hold."""

    def __init__(self, form: str) -> None:
        self._form = form
        self.losses: list[Loss] = []

    def add(
        self,
        message: Message,
        place: int,
        block: ContentBlock,
        reason: str,
        change: Change = Change.DROPPED,
    ) -> None:
        """One block that does not come through as it is."""
        self.losses.append(
            Loss(
                session_id=message.session_id,
                message_id=message.id,
                block_type=str(block.type),
                adapter=self._form,
                reason=reason,
                change=change,
                path=f"$.content[{place}]",
            )
        )
