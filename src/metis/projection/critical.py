"""Critical blocks: a request fails rather than lose one of them."""

from metis.canonical.blocks import ContentBlock
from metis.canonical.errors import CriticalLossError
from metis.canonical.message import Message


def fail_if_critical(block: ContentBlock, message: Message, path: str, reason: str) -> None:
    """Raise if a block that is to be changed or left out is marked critical."""
    if getattr(block, "critical", False):
        raise CriticalLossError(
            message_id=message.id, path=path, block_type=block.type, reason=reason
        )
