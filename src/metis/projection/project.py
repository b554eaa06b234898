"""The projection: from a conversation to what one target can carry, with every loss named."""

from collections.abc import Sequence

from msgspec import Struct

from metis.canonical.message import Message, Role
from metis.projection.blocks import project_blocks
from metis.projection.cache import plan_marks
from metis.projection.calls import project_calls
from metis.projection.exchanges import flatten_exchanges, repair_exchanges
from metis.projection.hoist import Hoist
from metis.projection.ledger import Ledger
from metis.projection.loss import Loss
from metis.projection.ready import is_ready
from metis.projection.roles import drop_empties, place, placed_roles
from metis.projection.server_calls import drop_halves
from metis.projection.target import Target, is_native
from metis.projection.turns import settle_turns


class Projection(Struct, frozen=True):
    """The messages as they can be sent to a target, and what was lost on the way."""

    messages: list[Message]
    losses: list[Loss]


def project(messages: Sequence[Message], target: Target) -> Projection:
    """Bring a conversation into what a target can carry; the messages given stay as they are."""
    if is_ready(messages, target):
        return Projection(list(messages), [])
    ledger = Ledger(target)
    sent = repair_exchanges(messages, ledger)
    sent = project_calls(sent, ledger) if target.takes_tools else flatten_exchanges(sent, ledger)
    sent = _project_messages(drop_halves(sent, ledger), ledger)
    sent = drop_empties(sent, ledger)
    sent = settle_turns(sent, ledger)
    sent = plan_marks(sent, ledger)
    return Projection(sent, ledger.losses)


def _project_messages(messages: Sequence[Message], ledger: Ledger) -> list[Message]:
    """Each message in its role, with the blocks that may stand there."""
    sent: list[Message] = []
    hoist = Hoist()
    for message, role in zip(messages, placed_roles(messages, ledger.target), strict=True):
        if message.role != Role.TOOL:
            sent += hoist.give()
            hoist.note_calls(message)
        if role is None:
            ledger.dropped(message, "message", "$", f"no target knows the role {message.role}")
        elif is_native(message, ledger.target):
            sent.append(message)
        else:
            carried, media = project_blocks(message, role, ledger)
            hoist.take(message, media)
            sent.append(place(carried, role, ledger))
    return sent + hoist.give()
