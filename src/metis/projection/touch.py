"""Touches: what can be mended in one message alone, while the rest of a conversation stays.

A picture for a model that sees none, a call without the signature that the target wants: such
things change one message and nothing around it.
"""

from collections.abc import Sequence

from msgspec import Struct

from metis.canonical.message import Message, Role
from metis.projection.blocks import project_blocks
from metis.projection.ledger import Ledger
from metis.projection.loss import Loss
from metis.projection.signatures import sign_call, unsigned_call
from metis.projection.target import Target, is_native

_USER = Role.USER


class Touched(Struct, frozen=True):
    """A conversation of which some messages were mended, and what that cost."""

    messages: Sequence[Message]
    losses: list[Loss]
    has_large_images: bool = False


def touch_up(messages: Sequence[Message], places: Sequence[int], target: Target) -> Touched | None:
    """Mend media and calls of the messages at some places; None if nothing is left of one."""
    media, calls = Ledger(target), Ledger(target)
    sent = list(messages)
    for place in places:
        message = sent[place]
        if message.role is not _USER:
            first = unsigned_call(message, target)
            if first is not None:
                sent[place] = sign_call(message, first, calls)
        elif message is messages[place] and not is_native(message, target):
            sent[place], _ = project_blocks(message, _USER, media)
            if not sent[place].content:
                return None
    return Touched(sent, media.losses + calls.losses, media.has_large_images)
