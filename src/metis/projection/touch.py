"""Touches: what can be mended in one message alone, while the rest of a conversation stays.

A picture for a model that sees none, a call without the signature that the target wants: such
things change one message and nothing around it. Most conversations that are not ready are then.
"""

from collections.abc import Sequence

from msgspec import Struct

from metis.canonical.blocks import TextBlock
from metis.canonical.message import Message, Role
from metis.projection.blocks import project_blocks
from metis.projection.ledger import Ledger
from metis.projection.loss import Loss
from metis.projection.signatures import sign_call, unsigned_call
from metis.projection.target import Target, is_native

_ASSISTANT, _USER = Role.ASSISTANT, Role.USER


class Touched(Struct, frozen=True):
    """A conversation of which some messages were mended, and what that cost."""

    messages: list[Message]
    losses: list[Loss]


def touch_up(messages: Sequence[Message], target: Target) -> Touched | None:
    """Mend what concerns one message alone; None if nothing does.

    What was mended is still to be looked at: a message may be empty now.
    """
    ledger, signs = Ledger(target), Ledger(target)
    wants_signatures = bool(target.call_signature)
    mended: dict[int, Message] = {}
    for index, message in enumerate(messages):
        role = message.role
        if role is _USER:
            if _is_text(message) or is_native(message, target):
                continue
            mended[index], _ = project_blocks(message, role, ledger)
        elif wants_signatures and role is _ASSISTANT:
            first = unsigned_call(message, target)
            if first is not None:
                mended[index] = sign_call(message, first, signs)
    if not mended:
        return None
    sent = [mended.get(index, message) for index, message in enumerate(messages)]
    return Touched(sent, ledger.losses + signs.losses)


def _is_text(message: Message) -> bool:
    for block in message.content:  # noqa: SIM110 - a loop is faster, and every question comes by
        if type(block) is not TextBlock:
            return False
    return True
