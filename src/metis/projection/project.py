"""The projection: from a conversation to what one target can carry, with every loss named."""

from collections.abc import Sequence

from msgspec import Struct

from metis.canonical.message import Message
from metis.projection.blocks import project_blocks
from metis.projection.exchanges import flatten_exchanges, repair_exchanges
from metis.projection.ledger import Ledger
from metis.projection.loss import Loss
from metis.projection.ready import is_ready
from metis.projection.roles import drop_empties, place_roles
from metis.projection.signatures import sign_calls
from metis.projection.target import Target, is_native


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
    if not target.takes_tools:
        sent = flatten_exchanges(sent, ledger)
    sent = [
        message if is_native(message, target) else project_blocks(message, ledger)
        for message in sent
    ]
    sent = place_roles(sent, ledger)
    sent = drop_empties(sent, ledger)
    sent = sign_calls(sent, ledger)
    return Projection(sent, ledger.losses)
