"""The projection: from a conversation to what one target can carry, with every loss named."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from msgspec import Struct

from metis.canonical.blocks import ToolUseBlock
from metis.canonical.message import Message
from metis.projection.blocks import holds_foreign_seals, project_blocks
from metis.projection.exchanges import are_whole, flatten_exchanges, repair_exchanges
from metis.projection.ledger import Ledger
from metis.projection.loss import Loss
from metis.projection.ready import calls_if_ready
from metis.projection.roles import drop_empties, place_roles
from metis.projection.target import Target, is_native
from metis.projection.turns import are_turns_free, place_turns


class Projection(Struct, frozen=True):
    """The messages as they can be sent to a target, and what was lost on the way."""

    messages: Sequence[Message]
    losses: list[Loss]
    calls: AbstractSet[str] | None = None
    """The calls in it, if all are answered: then what follows can be projected alone."""


def project(messages: Sequence[Message], target: Target) -> Projection:
    """Bring a conversation into what a target can carry; the messages given stay as they are."""
    if are_turns_free(messages, target):
        calls = calls_if_ready(messages, target)
        if calls is not None:
            return Projection(messages, [], calls)
    return _project(messages, target, is_start=True)


def project_more(
    messages: Sequence[Message], target: Target, before: AbstractSet[str]
) -> Projection | None:
    """The same for what follows a projection with these calls; None if they must go together."""
    if not are_turns_free(messages, target):
        return None
    calls = calls_if_ready(messages, target, before)
    if calls is not None:
        return Projection(messages, [], calls)
    more = _project(messages, target, is_start=False)
    return None if more.calls is None or not more.calls.isdisjoint(before) else more


def _project(messages: Sequence[Message], target: Target, *, is_start: bool) -> Projection:
    ledger = Ledger(target)
    is_whole = are_whole(messages, target)
    sent = list(messages) if is_whole else repair_exchanges(messages, ledger)
    if not target.takes_tools:
        sent = flatten_exchanges(sent, ledger)
    sent = [
        project_blocks(message, ledger)
        if not is_native(message, target) or holds_foreign_seals(message, target)
        else message
        for message in sent
    ]
    sent = place_roles(sent, ledger, is_start=is_start)
    sent = drop_empties(sent, ledger)
    sent = place_turns(sent, ledger)
    calls = _calls(messages) if is_whole and are_turns_free(messages, target) else None
    return Projection(sent, ledger.losses, calls)


def _calls(messages: Sequence[Message]) -> set[str]:
    return {
        block.id for message in messages for block in message.content if type(block) is ToolUseBlock
    }
