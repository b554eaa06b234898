"""The projection: from a conversation to what one target can carry, with every loss named."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from msgspec import Struct
from msgspec.structs import replace

from metis.canonical.blocks import OpaqueBlock, ToolUseBlock
from metis.canonical.message import Message, Role
from metis.projection.attach import attach, reaches_back
from metis.projection.blocks import holds_foreign_seals, project_blocks
from metis.projection.cache import plan_marks
from metis.projection.calls import project_calls
from metis.projection.documents import hold_documents, settle_documents
from metis.projection.exchanges import are_whole, flatten_exchanges, repair_exchanges
from metis.projection.frame import INSTRUCTING, is_opening, settle_frame
from metis.projection.hoist import Hoist
from metis.projection.ledger import Ledger
from metis.projection.loss import Loss
from metis.projection.ready import look
from metis.projection.roles import drop_empties, place, placed_roles
from metis.projection.server_calls import drop_halves
from metis.projection.signatures import sign_calls
from metis.projection.target import Target, is_native
from metis.projection.touch import touch_up
from metis.projection.turns import are_turns_free, place_turns


class Projection(Struct, frozen=True):
    """The messages as they can be sent to a target, and what was lost on the way."""

    messages: Sequence[Message]
    losses: list[Loss]
    calls: AbstractSet[str] | None = None
    """The calls in it, if all are answered: then what follows can be projected alone."""
    has_large_images: bool = False
    """Whether images are in it that are too large where there are many (T90)."""
    hosts: Sequence[tuple[Message, Message]] = ()
    """The messages of the target's clients that others were attached to, before and after."""


def project(messages: Sequence[Message], target: Target) -> Projection:
    """Bring a conversation into what a target can carry; the messages given stay as they are."""
    if are_turns_free(messages, target):
        quick = _quick(messages, target)
        if quick is not None:
            return quick if _is_under_way(messages) else replace(quick, calls=None)
    return project_carefully(messages, target)


def project_carefully(
    messages: Sequence[Message], target: Target, *, is_start: bool = True
) -> Projection:
    """The same by every rule, one after the other, whether or not it has anything to say."""
    ledger = Ledger(target)
    told = attach(messages, ledger)
    is_whole = are_whole(told, target)
    sent = list(told) if is_whole else repair_exchanges(told, ledger)
    sent = project_calls(sent, ledger) if target.takes_tools else flatten_exchanges(sent, ledger)
    sent = _project_messages(drop_halves(sent, ledger), ledger, is_start=is_start)
    sent = drop_empties(sent, ledger)
    sent = sign_calls(sent, ledger)
    sent = settle_frame(sent, ledger, is_start=is_start)
    sent = place_turns(sent, ledger)
    sent = settle_documents(sent, ledger)
    sent = plan_marks(sent, ledger)
    is_closed = is_whole and are_turns_free(messages, target) and not _has_hints(messages)
    is_closed = is_closed and bool(sent) and (not is_start or _is_under_way(sent))
    calls = _calls(messages) if is_closed else None
    return Projection(sent, ledger.losses, calls, ledger.has_large_images, ledger.hosts)


def _quick(
    messages: Sequence[Message], target: Target, before: AbstractSet[str] | None = None
) -> Projection | None:
    """The projection of a conversation that is ready, at once or with a touch here and there."""
    ready = look(messages, target, before)
    if ready is None:
        return None
    if not ready.flaws:
        return Projection(messages, [], ready.calls)
    touched = touch_up(messages, ready.flaws, target)
    if touched is None:
        return None
    return Projection(touched.messages, touched.losses, ready.calls, touched.has_large_images)


def project_more(
    messages: Sequence[Message], target: Target, before: AbstractSet[str]
) -> Projection | None:
    """The same for what follows a projection with these calls; None if they must go together."""
    if not are_turns_free(messages, target):
        return None
    quick = _quick(messages, target, before)
    if quick is not None:
        return quick
    if any(type(block) is OpaqueBlock for message in messages for block in message.content):
        return None  # it may be the other half of something before (T197)
    if reaches_back(messages, target):
        return None
    if target.names_documents and hold_documents(messages):
        return None  # another may have its name already (T95)
    more = project_carefully(messages, target, is_start=False)
    return None if more.calls is None or not more.calls.isdisjoint(before) else more


def _project_messages(
    messages: Sequence[Message], ledger: Ledger, *, is_start: bool
) -> list[Message]:
    """Each message in its role, with the blocks that may stand there."""
    sent: list[Message] = []
    hoist = Hoist()
    roles = placed_roles(messages, ledger.target, is_start=is_start)
    for message, role in zip(messages, roles, strict=True):
        if message.role != Role.TOOL:
            sent += hoist.give()
            hoist.note_calls(message)
        if role is None:
            ledger.dropped(message, "message", "$", f"no target knows the role {message.role}")
        elif is_native(message, ledger.target) and not holds_foreign_seals(message, ledger.target):
            sent.append(message)
        else:
            carried, media = project_blocks(message, role, ledger)
            hoist.take(message, media)
            sent.append(place(carried, role, ledger))
    return sent + hoist.give()


def _is_under_way(sent: Sequence[Message]) -> bool:
    """Whether more was sent than instructions, and than words that stand in for a first question.

    What follows those is still the start, and may do without such words.
    """
    return bool(sent) and sent[-1].role not in INSTRUCTING and not is_opening(sent[-1])


def _has_hints(messages: Sequence[Message]) -> bool:
    """Whether marks are to be placed, which a longer conversation moves."""
    return any(message.metadata.hints for message in messages)


def _calls(messages: Sequence[Message]) -> set[str]:
    return {
        block.id for message in messages for block in message.content if type(block) is ToolUseBlock
    }
